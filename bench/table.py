"""What the bench reports: one row a comparison, with its spread, its target, and whether that is met."""

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

TABLE = "bench"
PEERS = "bench-peers"
"""Which table: a document has the lines `<!-- NAME: begin -->` and `<!-- NAME: end -->` around each."""

HEADINGS = ("Case", "What", "Against", "Ratio or figure (min - median - max)", "Target", "Met", "Medians")


@dataclass(frozen=True, slots=True)
class Target:
    """`value` is a lower bound, or an upper one with `is_ceiling`."""

    value: float
    is_ceiling: bool = False

    def is_met(self, median: float) -> bool:
        return median <= self.value if self.is_ceiling else median >= self.value

    def __str__(self) -> str:
        return f"{'<=' if self.is_ceiling else '>='} {number(self.value)}"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one case: its values over the rounds, in `unit` ("x": a ratio)."""

    case: str
    what: str
    against: str
    values: tuple[float, ...]
    unit: str = "x"
    target: Target | None = None
    medians: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of `HEADINGS`."""
        low, middle, high = number(min(self.values)), number(self.median), number(max(self.values))
        return (
            self.case,
            self.what,
            self.against,
            f"{low} - {middle} - {high} {self.unit}",
            str(self.target) if self.target else "",
            "" if self.target is None else "yes" if self.target.is_met(self.median) else "NO",
            self.medians,
        )


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 2 if abs(value) < 10 else 1
    return f"{value:.{digits}f}" if abs(value) >= 0.1 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Seconds in the unit that reads best."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{number(seconds * factor)} {unit}"
    return f"{number(seconds * 1e6)} us"


def markdown(rows: Sequence[Row]) -> str:
    """All rows as one Markdown table, with columns aligned for people."""
    return _aligned([row.cells() for row in rows])


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    lines = [HEADINGS, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    texts = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    texts.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(texts)


def as_json(rows: Sequence[Row], machine: str) -> dict[str, object]:
    """The same for machines."""
    return {
        "machine": machine,
        "rows": [
            asdict(row) | {"median": row.median, "met": row.target.is_met(row.median) if row.target else None}
            for row in rows
        ],
    }


def describe_machine(directory: Path) -> str:
    """What a reader must know to compare, and nothing that names the machine."""
    kernel = ".".join(platform.release().split("-")[0].split(".")[:2])
    return (
        f"{os.cpu_count()} cores, {platform.system()} {kernel}, {filesystem_of(directory)}, "
        f"{platform.python_implementation()} {platform.python_version()}"
    )


def filesystem_of(directory: Path) -> str:
    """The type of the filesystem that holds a directory."""
    best, found = "", "unknown filesystem"
    resolved = str(directory.resolve())
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, mount, kind, *_ = line.split()
        inside = resolved == mount or resolved.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, found = mount, kind
    return found


def write_docs(document: Path, table: str, rows: Sequence[Row], machine: str, *, is_all: bool) -> None:
    """Put this run's machine and rows between the markers of a table: all of it, or only the rows that were measured.

    ValueError: there are no such markers, or rows that stay come from another machine or other sizes.
    """
    head, old, tail = _parted(document, table)
    cells = [row.cells() for row in rows]
    kept = [] if is_all else _rows_of(old)
    if kept and f"\n{machine}.\n" not in old:
        raise ValueError(f"the table in {document} is not of {machine}: measure all cases, or add the rows by hand")
    document.write_text(f"{head}\n\n{machine}.\n\n{_aligned(_merged(kept, cells))}\n\n{tail}", encoding="utf-8")


def read_docs(document: Path, table: str) -> list[Row]:
    """The rows of a table as they stand in a document: of the values the least, the median and the greatest.

    ValueError: there are no such markers.
    """
    return [_row(cells) for cells in _rows_of(_parted(document, table)[1])]


def _row(cells: tuple[str, ...]) -> Row:
    case, what, against, figures, bound, _, medians = cells
    low, middle, high = figures.split(" - ")
    high, _, unit = high.partition(" ")
    values = tuple(float(value.replace(",", "")) for value in (low, middle, high))
    kind, _, value = bound.partition(" ")
    target = Target(float(value.replace(",", "")), is_ceiling=kind == "<=") if bound else None
    return Row(case, what, against, values, unit, target, medians)


def _parted(document: Path, table: str) -> tuple[str, str, str]:
    """A document up to a table's first marker, what stands between the markers, and the rest from the second one on."""
    begin, end = f"<!-- {table}: begin -->", f"<!-- {table}: end -->"
    head, found_begin, rest = document.read_text(encoding="utf-8").partition(begin)
    between, found_end, tail = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"{document} has no lines {begin} and {end} around a table")
    return head + begin, between, end + tail


def _rows_of(table: str) -> list[tuple[str, ...]]:
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [tuple(cell.strip() for cell in line[1:-1].split("|")) for line in lines[1:]]


def _compared(row: tuple[str, ...]) -> tuple[str, str, str]:
    """What a row compares; behind a colon stands what the other side came to."""
    return row[0], row[1], row[2].partition(":")[0]


def _merged(old: Sequence[tuple[str, ...]], new: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """New rows in the place of those that compare the same things; others behind the last row of their case."""
    rows = {_compared(row): row for row in old} | {_compared(row): row for row in new}
    cases = list(dict.fromkeys(row[0] for row in rows.values()))
    return sorted(rows.values(), key=lambda row: cases.index(row[0]))

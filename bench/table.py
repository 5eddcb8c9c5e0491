"""What the bench reports: one row a comparison, with its spread, its target, and whether that is met."""

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

import msgspec

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


OURSELVES = "the engine, called"
"""What a transport is held against, to see what it adds: of the measured tree, so that no other tree has this peer."""


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
    lines = [HEADINGS, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    texts = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    texts.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(texts)


@dataclass(frozen=True, slots=True)
class Results:
    """What was measured on one machine."""

    machine: str
    rows: tuple[Row, ...]

    def as_json(self) -> str:
        """The same for machines: a row a line, each with its median and whether its target was met."""
        rows = (
            asdict(row) | {"median": row.median, "met": row.target.is_met(row.median) if row.target else None}
            for row in self.rows
        )
        lines = ",\n".join(json.dumps(row) for row in rows)
        return f'{{"machine": {json.dumps(self.machine)}, "rows": [\n{lines}\n]}}\n'


def read_results(file: Path) -> Results:
    """What `Results.as_json` wrote."""
    return msgspec.json.decode(file.read_bytes(), type=Results)


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
    """Put this run's machine and rows into a table's JSON beside the document, and what of them has a target into the
    document: all of it, or only the rows that were measured.

    ValueError: the document has no place for them, or rows that stay come from another machine or other sizes.
    """
    file = results_file(document, table)
    old = read_results(file) if file.exists() and not is_all else Results(machine, ())
    if old.machine != machine:
        raise ValueError(f"the rows in {file} are not of {machine}: measure all cases, or add the rows by hand")
    results = Results(machine, _merged(old.rows, rows))
    text = with_summary(document, table, results)
    file.parent.mkdir(exist_ok=True)
    file.write_text(results.as_json(), encoding="utf-8")
    document.write_text(text, encoding="utf-8")


def results_file(document: Path, table: str) -> Path:
    """Where all rows of a table of a document are kept."""
    return document.with_suffix("") / f"{table}.json"


def with_summary(document: Path, table: str, results: Results) -> str:
    """The text of a document whose table has the rows with a target, and names the JSON that has all.

    ValueError: the document has no markers of that table.
    """
    begin, end = f"<!-- {table}: begin -->", f"<!-- {table}: end -->"
    head, found_begin, rest = document.read_text(encoding="utf-8").partition(begin)
    _, found_end, tail = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"{document} has no lines {begin} and {end} around a table")
    aimed = [row for row in results.rows if row.target]
    said = (
        f"{results.machine}. {len(aimed)} of {len(results.rows)} rows have a target; one in bold is not met. "
        f"[All rows]({results_file(document, table).relative_to(document.parent)}) are beside this page."
    )
    lines = ["| What | Against | Median (least - greatest) | Target |", "|-|-|-|-|"]
    for case, rows in groupby(aimed, lambda row: row.case):
        lines += [f"| **{case}** | | | |", *map(_summary, rows)]
    return "\n".join([head + begin, "", said, "", *lines, "", end + tail])


def _summary(row: Row) -> str:
    """A line of the document."""
    low, high = min(row.values), max(row.values)
    figure = f"{number(row.median)} {row.unit}".rstrip() + (f" ({number(low)} - {number(high)})" if low < high else "")
    target = str(row.target) if row.target is None or row.target.is_met(row.median) else f"**{row.target}**"
    return f"| {row.what} | {row.against} | {figure} | {target} |"


def _compared(row: Row) -> tuple[str, str, str]:
    """What a row compares; behind a colon stands what the other side came to."""
    return row.case, row.what, row.against.partition(":")[0]


def _merged(old: Sequence[Row], new: Sequence[Row]) -> tuple[Row, ...]:
    """New rows in the place of those that compare the same things; others behind the last row of their case."""
    rows = {_compared(row): row for row in (*old, *new)}
    cases = list(dict.fromkeys(row.case for row in rows.values()))
    return tuple(sorted(rows.values(), key=lambda row: cases.index(row.case)))

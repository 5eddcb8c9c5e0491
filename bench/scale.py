"""`python -m bench.scale`: what a node costs that holds ever more handles, in bounded memory.

One repository grows by decades. At each size a process of its own opens it, puts, reads what is cold, surveys, and is
killed, all in a memory cgroup that counts page cache too, as a container does:

    fill to 100,000 -> open | put | get | survey | kill, open -> fill to 1,000,000 -> open | ...

--counts N ...   handles: 100,000 and a million by default; `make bench-scale` goes to 100 million
--calls N        puts and gets of a size whose times are taken
--memory-mib N   of the cgroup: 2,048 by default; 0: no cgroup
--dir DIR        where to work: on the disk that is to be measured
--write-docs     put the table into docs/performance.md

It needs the right to make a memory cgroup below its own (root, mostly). Exit code 1: a bound is not met.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.exponents import slope
from bench.scale_phases import spec_of
from bench.table import Row, Target, describe_machine, duration, markdown, write_docs
from ullage.engine.engine import Engine

ROOT: Final = Path(__file__).parents[1]
TABLE: Final = "bench-scale"
MIB: Final = 1 << 20
COUNTS: Final = (100_000, 1_000_000)

EXPONENT: Final = Target(1.05, is_ceiling=True)
HANDLE_BYTES: Final = Target(16, is_ceiling=True)
OPEN: Final = Target(10, is_ceiling=True)
OPEN_KILLED: Final = Target(30, is_ceiling=True)
CHECKPOINT: Final = Target(4, is_ceiling=True)
WRITTEN: Final = Target(10, is_ceiling=True)
PUTS: Final = Target(0.7)
COLD: Final = Target(3, is_ceiling=True)
PAUSE: Final = Target(2, is_ceiling=True)
SURVEY: Final = Target(0.3, is_ceiling=True)

RECORD_BYTES: Final = 150
"""A handle with 16 bytes of content and three attributes: its record, its claim and its content."""

Found = dict[str, dict[str, float]]
"""What each phase found."""


class PhaseFailed(Exception):
    """A process ended otherwise than it should, such as for want of memory."""


@contextmanager
def memory_group(mib: int) -> Iterator[Path | None]:
    """A cgroup with so much memory, removed afterwards. OSError if there may be none."""
    if not mib:
        yield None
        return
    version_2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    mine = next(
        line.split(":", 2)[2]
        for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
        if (line.startswith("0::") if version_2 else ":memory:" in line)
    )
    parent = Path("/sys/fs/cgroup" if version_2 else "/sys/fs/cgroup/memory")
    group = parent / mine.lstrip("/") / f"ullage-scale-{os.getpid()}"
    group.mkdir()
    try:
        (group / ("memory.max" if version_2 else "memory.limit_in_bytes")).write_text(str(mib * MIB))
        yield group
    finally:
        group.rmdir()


def phase(name: str, path: Path, group: Path | None, count: int, calls: int) -> dict[str, float]:
    """What a process of its own finds. PhaseFailed."""
    command = [sys.executable, "-m", "bench.scale_phases", name, str(path), str(count), str(calls)]
    command += [] if group is None else ["--group", str(group)]
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if name == "killed" and ended.returncode == -9 and not ended.stdout:
        return {}
    if ended.returncode:
        raise PhaseFailed(f"{name} at {path} ended with status {ended.returncode} (-9: it ran out of memory)")
    found: dict[str, float] = json.loads(ended.stdout)
    return found


def measured(path: Path, group: Path | None, count: int, calls: int) -> Found:
    """All phases with so many handles."""
    found = {"fill": phase("fill", path, group, count, calls)}
    for name in ("opened", "puts", "gets", "surveyed", "killed"):
        print(f"{count:,} handles: {name}", file=sys.stderr, flush=True)
        found[name] = phase(name, path, group, count, calls)
    found["opened again"] = phase("opened", path, group, count, calls)
    found["disk"] = {"bytes": float(sum(each.stat().st_blocks * 512 for each in path.rglob("*")))}
    return found


def rows(found: Mapping[int, Found]) -> list[Row]:
    """The table, of the largest number of handles, and how each cost grows up to it."""
    counts = sorted(found)
    few, many = found[counts[0]], found[counts[-1]]
    at = f"at {counts[-1]:,} handles"
    peak = max(figures.get("peak", 0) for figures in many.values())
    more = (many["opened"]["resident"] - few["opened"]["resident"]) / max(1, counts[-1] - counts[0])
    table = [
        Row("scale", f"memory of a handle, {at}", "", (more,), "bytes", HANDLE_BYTES),
        Row("scale", f"memory of the largest process, {at}", "", (peak / MIB,), "MiB", Target(2_048, is_ceiling=True)),
        Row("scale", f"disk, {at}", "", (many["disk"]["bytes"] / (1 << 30),), "GiB"),
        Row("scale", f"open after a clean stop, {at}", "", (many["opened"]["seconds"],), "s", OPEN),
        Row("scale", f"open after SIGKILL, {at}", "", (many["opened again"]["seconds"],), "s", OPEN_KILLED),
        _bytes("bytes of a checkpoint for each handle that is new, 1%", at, many["puts"]["checkpoint"], CHECKPOINT),
        _bytes("bytes written for each handle that is put", at, many["fill"]["written"], WRITTEN),
        Row(
            "scale", f"puts of 1 KB, {at}", f"at {counts[0]:,}", (few["puts"]["put"] / many["puts"]["put"],), "x", PUTS
        ),
        _of("p99 of a get of a cold handle", at, "a bare pread", many["gets"], "get", "pread", COLD),
        _of("p99 of a put beside checkpoints", at, "alone", many["puts"], "p99 beside checkpoints", "quiet p99", PAUSE),
        Row("scale", f"survey and plan after 1% changed, {at}", "", (many["surveyed"]["seconds"],), "s", SURVEY),
    ]
    return [*table, *_exponents(found)] if len(counts) > 1 else table


def _of(what: str, at: str, against: str, figures: Mapping[str, float], one: str, other: str, target: Target) -> Row:
    ratio = figures[one] / (figures[other] or float("nan"))
    return Row("scale", f"{what}, {at}", against, (ratio,), "x", target)


def _bytes(what: str, at: str, each: float, target: Target) -> Row:
    return Row("scale", f"{what}, {at}", f"{RECORD_BYTES} bytes", (each / RECORD_BYTES,), "x", target)


def _exponents(found: Mapping[int, Found]) -> Iterator[Row]:
    """1: what is done to one handle costs the same however many there are, and what touches all so many times that."""
    each = {
        "putting a handle in a batch": ("fill", "seconds", 1),
        "opening": ("opened", "seconds", 0),
        "opening after SIGKILL": ("opened again", "seconds", 0),
        "memory": ("opened", "resident", 0),
        "a put of 1 KB": ("puts", "put", 1),
        "a get of a cold handle": ("gets", "get", 1),
        "a survey and a plan": ("surveyed", "seconds", 0),
    }
    for what, (name, figure, is_single) in each.items():
        costs = {count: max(figures[name][figure], 1e-9) for count, figures in found.items()}
        say = _mebibytes if figure == "resident" else duration
        told = ", ".join(map(say, costs.values()))
        yield Row("scale", f"{what}: exponent of its growth", "", (is_single + slope(costs),), "", EXPONENT, told)


def _mebibytes(count: float) -> str:
    return f"{count / MIB:,.1f} MiB"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--memory-mib", type=int, default=2_048)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--write-docs", action="store_true")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and judge."""
    options = _parser().parse_args(arguments)
    found: dict[int, Found] = {}
    with (
        tempfile.TemporaryDirectory(prefix="ullage-scale-", dir=options.dir) as place,
        memory_group(options.memory_mib) as group,
    ):
        machine = describe_machine(Path(place))
        path = Path(place) / "repository"
        Engine.initialize(spec_of(path))
        try:
            for count in sorted(options.counts):
                found[count] = measured(path, group, count, options.calls)
        except PhaseFailed as error:
            print(error, file=sys.stderr)
    judged = rows(found) if found else []
    print(f"{machine}, {options.memory_mib or 'all'} MiB of memory\n\n{markdown(judged)}")
    if options.write_docs:
        write_docs(ROOT / "docs" / "performance.md", TABLE, judged, machine, is_all=True)
    is_met = all(row.target is None or row.target.is_met(row.median) for row in judged)
    return int(not is_met or len(found) < len(options.counts))


if __name__ == "__main__":
    raise SystemExit(main())

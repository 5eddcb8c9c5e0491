"""How fast a rewrite copies: beside `cp` and a sync, and beside the least that a rewrite could be."""

import os
import shutil
import statistics
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from bench.reclaim import KB, MB, fragmented, space_ratio
from bench.rounds import seconds_of, settle
from bench.table import Row, Target, number
from bench.workbench import Workbench
from ullage.engine.engine import Engine
from ullage.engine.model import Action, ContentClaim
from ullage.engine.reclaim.plan import ReclamationPlan
from ullage.engine.reclaim.report import ReclamationReport

PIECE = MB
OUTPUT = 64 * MB


class _Round(NamedTuple):
    """Seconds of one round: a rewrite whose sources stay, one that gives them back, and what they are held against."""

    report: ReclamationReport
    copied: float
    given_back: float
    cp: float
    rm: float
    bare: float
    disk: float


def copying(bench: Workbench) -> Iterator[Row]:
    """A rewrite without a limit beside `cp` and a sync of the same live bytes, with the sources kept, as `cp` keeps its
    own; and with the sources given back, beside `cp`, a sync and `rm`.
    """
    for size in (10 * KB, MB):
        for dead in (0.5, 0.8):
            what = f"claims of {number(size / KB)} KiB, {dead:.0%} dead"
            found: list[_Round] = []
            for turn in range(bench.sizes.pause_rounds + 1):
                bench.say(f"{what}, round {turn}")
                found.append(_copy_once(bench, size, dead, turn))
            yield from _rows(what, found[1:])  # the first one warms up


def _rows(what: str, found: list[_Round]) -> Iterator[Row]:
    def ratios(value: Callable[[_Round], float]) -> tuple[float, ...]:
        return tuple(map(value, found))

    copies = statistics.median(one.report.copied_bytes / one.copied for one in found) / 1e6
    given = statistics.median(one.report.copied_bytes / one.given_back for one in found) / 1e6
    yield Row(
        "reclaim",
        f"rewriting {what}",
        "cp + sync",
        ratios(lambda one: one.cp / one.copied),
        target=Target(0.6),
        medians=f"{number(copies)} MB/s",
    )
    yield Row(
        "reclaim",
        f"{what}: a bare loop that reads, verifies, writes and syncs",
        "cp + sync",
        ratios(lambda one: one.cp / one.bare),
    )
    yield Row(
        "reclaim",
        f"rewriting {what}, sources given back",
        "cp + sync + rm",
        ratios(lambda one: (one.cp + one.rm) / one.given_back),
        medians=f"{number(given)} MB/s",
    )
    read = ratios(lambda one: one.report.read_bytes / max(1, one.report.copied_bytes))
    yield Row("reclaim", f"{what}: bytes read", "bytes copied", read, target=Target(2.0, True))
    yield Row("reclaim", f"{what}: disk / live after it", "", ratios(lambda one: one.disk), target=Target(1.12, True))


def _copy_once(bench: Workbench, size: int, dead: float, seed: int) -> _Round:
    scratch = bench.path("scratch")
    with fragmented(bench, size, dead, seed) as repository:
        plan = _plan_of_rewrites(repository)
        sources = _sources(repository, plan)
        live = scratch / "live"
        live.write_bytes(os.urandom(plan.copies_bytes))
        kept = [scratch / path.name for path in sources]
        for path, link in zip(sources, kept, strict=True):
            os.link(path, link)
        settle()  # all sides read from the page cache
        cp = seconds_of(lambda: _copy_and_sync(live, scratch))
        bare = _settled(lambda: _copy_barely(sources, scratch))
        copied = _settled(lambda: repository.compactor.execute(plan))
        rm = _settled(lambda: _remove(kept))
    with fragmented(bench, size, dead, seed) as repository:
        plan = _plan_of_rewrites(repository)
        reports: list[ReclamationReport] = []
        given_back = _settled(lambda: reports.append(repository.compactor.execute(plan)))
        disk = space_ratio(repository)
    shutil.rmtree(scratch)
    return _Round(reports[0], copied, given_back, cp, rm, bare, disk)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink()


def _settled(work: Callable[[], object]) -> float:
    settle()
    return seconds_of(work)


def _plan_of_rewrites(repository: Engine) -> ReclamationPlan:
    return repository.compactor.plan(policy="CompactAll", actions=frozenset({Action.REWRITE}))


def _sources(repository: Engine, plan: ReclamationPlan) -> dict[Path, list[ContentClaim]]:
    """The files of a plan and what lives in them, in order."""
    sources: dict[Path, list[ContentClaim]] = {}
    for step in plan.steps:
        entry = repository.ledger.entry(step.resource)
        assert entry is not None
        path = repository.content.path_of(entry.claim)
        sources[Path(path)] = sorted(entry.residents().claims, key=lambda claim: claim.offset)
    return sources


def _copy_and_sync(path: Path, target: Path) -> None:
    """What `cp` does, and a sync, in files of an output's size."""
    with path.open("rb") as source:
        size = os.fstat(source.fileno()).st_size
        for begin in range(0, size, OUTPUT):
            with (target / f"copy-{begin}").open("wb") as copy:
                for offset in range(begin, min(begin + OUTPUT, size), PIECE):
                    count = min(PIECE, size - offset)
                    os.copy_file_range(source.fileno(), copy.fileno(), count, offset, offset - begin)
                os.fdatasync(copy.fileno())


def _copy_barely(sources: dict[Path, list[ContentClaim]], target: Path) -> None:
    """The least that a rewrite is in this language: each claim read and verified, pieces written, outputs synced."""
    buffer = memoryview(bytearray(2 * PIECE))
    output, written, filled = (target / "bare-0").open("wb"), 0, 0
    for path, claims in sources.items():
        with path.open("rb") as source:
            for claim in claims:
                piece = buffer[filled : filled + claim.length]
                os.preadv(source.fileno(), [piece], claim.offset)
                assert crc32c(piece) == claim.crc
                filled += claim.length
                if filled >= PIECE:
                    written += os.write(output.fileno(), buffer[:filled])
                    filled = 0
                if written >= OUTPUT:
                    os.fdatasync(output.fileno())
                    output.close()
                    output, written = (target / f"bare-{path.name}-{claim.offset}").open("wb"), 0
    os.write(output.fileno(), buffer[:filled])
    os.fdatasync(output.fileno())
    output.close()

"""Tenants: what files of their own cost (spec.isolation), in turns with everybody's content in the same files."""

import random
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from bench.reclaim import KB, NO_GUARDS, PLAIN, space_ratio
from bench.rounds import settle
from bench.table import Row
from bench.workbench import Workbench
from ullage.contract import Duration, Isolation
from ullage.engine.files import File, OsFiles
from ullage.uuids import parse_uuid

TENANTS = (10, 200, 1_000)
"""Few; as many as have a file open at a time; and so many that each finds its last one sealed."""

DEAD = 0.7


class Spent(NamedTuple):
    """What so many puts cost."""

    files: int
    seconds: float
    syncs: int
    before: float
    after: float
    copied: float


def tenants(bench: Workbench) -> Iterator[Row]:
    """Single puts of 1 to 8 KiB of so many tenants at random, of which 70% die; then all their space is given back."""
    for count in TENANTS:
        found: dict[Isolation, list[Spent]] = {isolation: [] for isolation in Isolation}
        for turn in range(bench.sizes.pause_rounds):
            for isolation, spent in found.items():
                bench.say(f"round {turn + 1}: {count} tenants, {isolation}")
                spent.append(_measure(bench, isolation, count, turn))
        shared, own = found[Isolation.NONE], found[Isolation.PER_TENANT]
        pairs = list(zip(shared, own, strict=True))
        against = "shared files"

        def row(what: str, values: list[float], count: int = count, unit: str = "x", against: str = against) -> Row:
            return Row("tenants", f"{count:,} tenants: {what}", against, tuple(values), unit)

        yield row("speed of single puts", [one.seconds / other.seconds for one, other in pairs])
        yield row("syncs", [other.syncs / one.syncs for one, other in pairs])
        yield row("files", [other.files / one.files for one, other in pairs])
        yield row("files made", [float(other.files) for other in own], unit="", against="")
        for name, each in (("own", own), (against, shared)):
            yield row(f"disk / live when 70% died, {name}", [spent.before for spent in each], against="")
            yield row(f"disk / live after CompactAll, {name}", [spent.after for spent in each], against="")
            yield row(f"bytes copied / bytes put, {name}", [spent.copied for spent in each], against="")


def _measure(bench: Workbench, isolation: Isolation, tenants: int, seed: int) -> Spent:
    chooser = random.Random(seed)
    block = chooser.randbytes(8 * KB)
    files = _Syncs()
    compaction = NO_GUARDS | {"deleted_retention": Duration(0)}
    with bench.repository("tenants", files, isolation=isolation, compaction=compaction, **PLAIN) as repository:
        sizes = [chooser.randint(KB, 8 * KB) for _ in range(bench.sizes.commits * 4)]
        settle()
        before, began = files.count, time.perf_counter()
        handles = [
            repository.handles.put_many([block[:size]], by=f"tenant-{chooser.randrange(tenants)}")[0] for size in sizes
        ]
        seconds, syncs = time.perf_counter() - began, files.count - before
        repository.content.retire_idle()
        made = sum(1 for _ in repository.ledger.entries())
        repository.handles.forget([parse_uuid(each) for each in chooser.sample(handles, int(DEAD * len(handles)))], "")
        repository.reclamation.clean()
        fragmented = space_ratio(repository)
        compactor = repository.compactor
        report = compactor.execute(compactor.plan(policy="CompactAll"))
        return Spent(
            made, seconds, syncs, fragmented, space_ratio(repository), report.copied_bytes / max(1, sum(sizes))
        )


class _Syncs(OsFiles):
    """The disk, with its syncs counted."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def create(self, path: str) -> File:
        return _Counted(super().create(path), self)

    def sync_directory(self, path: str) -> None:
        self.count += 1
        super().sync_directory(path)


class _Counted:
    """One file; all but `sync` is its own."""

    def __init__(self, file: File, syncs: _Syncs) -> None:
        self._file = file
        self._syncs = syncs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def sync(self) -> None:
        self._syncs.count += 1
        self._file.sync()

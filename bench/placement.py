"""Placement: how content is packed into files, and what that costs when most of it has died."""

import random
import statistics
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from bench.reclaim import KB, MB, NO_GUARDS, PLAIN
from bench.rounds import settle
from bench.table import Row, number
from bench.workbench import Workbench
from ullage.contract import Quantity
from ullage.engine.engine import Engine
from ullage.engine.model import Action, Lifetime

LIMITS = (50 * KB, MB, 16 * MB, 64 * MB)
OUTPUTS = (4 * MB, 16 * MB, 64 * MB)
DEAD = 0.7
IN_PLACE = frozenset({Action.DELETE, Action.TRUNCATE, Action.PUNCH})


class Packing(NamedTuple):
    """One way to place content. `apart`: contents of a MiB or more get resource claims of their own."""

    appendable_bytes: int
    apart: bool = False
    output_bytes: int = 64 * MB

    def __str__(self) -> str:
        size = (
            f"{self.appendable_bytes // KB} KiB" if self.appendable_bytes < MB else f"{self.appendable_bytes // MB} MiB"
        )
        return f"maxAppendableSize {size}{', large ones apart' if self.apart else ''}"


class Outcome(NamedTuple):
    """What one packing came to, over the same contents and deaths as every other one of its round."""

    files: int
    write_seconds: float
    in_place: float
    copied: float
    after: float
    reclaim_seconds: float


def placement(bench: Workbench) -> Iterator[Row]:
    """Limits of resource claims, with large contents among small ones or apart."""
    yield from _compare(bench, [Packing(limit, apart) for limit in LIMITS for apart in (False, True)], str)


def outputs(bench: Workbench) -> Iterator[Row]:
    """Sizes of a rewrite's output."""
    packings = [Packing(50 * KB, output_bytes=size) for size in OUTPUTS]
    yield from _compare(bench, packings, lambda packing: f"outputSize {packing.output_bytes // MB} MiB")


def _compare(bench: Workbench, packings: list[Packing], name: Any) -> Iterator[Row]:
    found: dict[Packing, list[Outcome]] = {packing: [] for packing in packings}
    for turn in range(bench.sizes.pause_rounds):
        for packing in packings:
            bench.say(f"round {turn + 1}: {name(packing)}")
            found[packing].append(_measure(bench, packing, turn))
    first = found[packings[0]]
    for packing in packings:
        what, outcomes = name(packing), found[packing]
        files = statistics.median(outcome.files for outcome in outcomes)
        speeds = tuple(
            base.write_seconds / outcome.write_seconds for base, outcome in zip(first, outcomes, strict=True)
        )
        costs = tuple(
            outcome.reclaim_seconds / base.reclaim_seconds for base, outcome in zip(first, outcomes, strict=True)
        )
        against = name(packings[0])
        yield Row("placement", f"{what}: files", "", tuple(float(outcome.files) for outcome in outcomes), "")
        yield Row("placement", f"{what}: writing", against, speeds, medians=f"{number(files)} files")
        yield Row("placement", f"{what}: disk / live without copying", "", tuple(o.in_place for o in outcomes))
        yield Row("placement", f"{what}: bytes copied to get the rest", "bytes put", tuple(o.copied for o in outcomes))
        yield Row("placement", f"{what}: disk / live after it", "", tuple(o.after for o in outcomes))
        yield Row("placement", f"{what}: time of reclamation", against, costs)


def _measure(bench: Workbench, packing: Packing, seed: int) -> Outcome:
    chooser = random.Random(seed)
    claims = {"max_appendable_size": Quantity(packing.appendable_bytes)}
    compaction = NO_GUARDS | {"output_size": Quantity(packing.output_bytes)}
    with bench.repository("placement", claims=claims, compaction=compaction, **PLAIN) as repository:
        settle()
        began = time.perf_counter()
        put_bytes = _put(repository, bench.sizes.stream_bytes // 4, chooser, apart=packing.apart)
        write_seconds = time.perf_counter() - began
        repository.content.retire_idle()
        files = sum(1 for _ in repository.ledger.entries())
        repository.queues.drop(repository.queue("drop"))
        repository.reclamation.truncate()
        settle()
        compactor = repository.compactor
        began = time.perf_counter()
        compactor.execute(compactor.plan(actions=IN_PLACE))
        in_place = _ratio(repository)
        report = compactor.execute(compactor.plan())
        compactor.execute(compactor.plan(actions=IN_PLACE))
        seconds = time.perf_counter() - began
        return Outcome(files, write_seconds, in_place, report.copied_bytes / put_bytes, _ratio(repository), seconds)


def _put(repository: Engine, total: int, chooser: random.Random, *, apart: bool) -> int:
    """Commits of twenty contents: most of them small, a third of the bytes in contents of one to eight MiB."""
    written = 0
    block = chooser.randbytes(8 * MB)
    while written < total:
        with repository.session() as session:
            for _ in range(20):
                draw = chooser.random()
                size = chooser.randint(1, 40) * KB if draw < 0.85 else chooser.randint(100, 900) * KB
                size = chooser.randint(1, 8) * MB if draw > 0.98 else size
                lifetime = Lifetime.LONG if apart and size >= MB else Lifetime.DEFAULT
                record = session.write(session.create(), block[:size], lifetime)
                session.transfer(record, "drop" if chooser.random() < DEAD else "keep")
                written += size
            session.commit()
    return written


def _ratio(repository: Engine) -> float:
    container = repository.reclamation.survey().containers[0]
    return container.disk_bytes / max(1, container.live_bytes)

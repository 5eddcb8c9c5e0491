"""How the main operations grow: each at three sizes a factor of ten apart, with the exponent fitted through them."""

import gc
import math
import random
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from bench.growth import RESIDENT, open_seconds
from bench.provenance import KEPT, index_all
from bench.reclaim import NO_GUARDS
from bench.rounds import seconds_of, settle
from bench.table import Row, Target, duration
from bench.workbench import BATCH, Workbench, fill, spec_at
from ullage.contract import ContentRepositorySpec
from ullage.engine.engine import Engine
from ullage.engine.model import Delete, Update, format_uuid, pack_attributes, parse_uuid
from ullage.wire.provenance import EventQuery

EXPONENT = Target(1.1, is_ceiling=True)
CONTENT = bytes(100)
CALLS = 50
"""Of one operation in a round, where one call does not touch everything."""

PAGE = 100
"""Records of one call that takes several."""

Costs = dict[str, float]
"""Seconds of each operation for one of the things that there are so many of."""


def exponents(bench: Workbench) -> Iterator[Row]:
    """1: an operation on one thing costs the same however many there are, and one on all of them so many times that."""
    many = bench.sizes.recovery[1]
    counts = (many // 100, many // 10, many)
    rounds: list[dict[int, Costs]] = []
    for turn in range(bench.sizes.pause_rounds):
        rounds.append({})
        for count in counts:
            bench.say(f"{count:,} contents, round {turn + 1}")
            rounds[-1][count] = _measured(bench, count, turn)
    for operation in rounds[0][many]:
        costs = [{count: found[count][operation] for count in counts} for found in rounds]
        spent = ", ".join(duration(statistics.median(each[count] for each in costs)) for count in counts)
        yield Row(
            "growth",
            f"{operation}, exponent of its growth",
            f"one of {counts[0]:,}, of {counts[1]:,}, of {many:,}",
            tuple(1 + slope(each) for each in costs),
            "",
            EXPONENT,
            spent,
        )


def slope(costs: Mapping[int, float]) -> float:
    """The exponent that fits best, by least squares, where cost is proportional to count ** exponent."""
    points = [(math.log(count), math.log(cost)) for count, cost in costs.items()]
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def _measured(bench: Workbench, count: int, seed: int) -> Costs:
    """Half of the contents are in a queue, the other half is known by handles."""
    path = bench.path("exponents")
    spec = spec_at(
        path,
        flow_file=RESIDENT,
        archive={"enabled": False},
        compaction=NO_GUARDS,
        provenance={"max_storage_size": KEPT, "rollover_events": 1 << 30},
    )
    Engine.initialize(spec)
    chooser = random.Random(seed)
    with Engine.open(spec) as repository:
        costs, handles = _filled(repository, count)
        costs |= _calls(repository, handles, chooser)
        costs |= _history(repository, count, chooser)
        costs |= _whole(repository, count, bench.directory / "backup")
    costs["open"] = open_seconds(spec) / count
    costs |= _reclaimed(spec, count, handles, chooser)
    shutil.rmtree(path)
    return costs


def _filled(repository: Engine, count: int) -> tuple[Costs, list[str]]:
    handles: list[str] = []

    def put() -> None:
        for first in range(0, count // 2, BATCH):
            handles.extend(repository.handles.put_many([CONTENT] * min(BATCH, count // 2 - first)))

    costs = {
        "ingest in batches": seconds_of(partial(fill, repository, "work", count // 2, content=CONTENT)) / (count // 2),
        "put in batches": seconds_of(put) / (count // 2),
    }
    settle()
    return costs, handles


def _calls(repository: Engine, handles: Sequence[str], chooser: random.Random) -> Costs:
    queue = repository.queue("work")
    records = queue.records(PAGE)

    def get() -> None:
        with repository.handles.get(chooser.choice(handles)) as stream:
            stream.read()

    def commit() -> None:
        packed = pack_attributes({"status": str(chooser.random())})
        repository.committer.commit([Update(record.uuid, set_attributes=packed) for record in records], creates=False)

    def poll() -> None:
        """And back to the front, as a rollback does."""
        queue.requeue(repository.queues.poll(queue, PAGE))

    return {
        "put of one": _each(lambda: repository.handles.put(CONTENT)),
        "get": _each(get),
        f"commit of {PAGE} updates": _each(commit),
        f"poll of {PAGE}, and back": _each(poll),
    }


def _history(repository: Engine, count: int, chooser: random.Random) -> Costs:
    uuids = [format_uuid(record.uuid) for record in repository.queue("work").records(count)]
    costs = {
        "drain of events": seconds_of(repository.provenance.drain) / count,
        "indexing of events": seconds_of(lambda: index_all(repository)) / count,
    }
    costs["provenance query by uuid"] = _each(
        lambda: repository.history.query(EventQuery(flow_file=chooser.choice(uuids), limit=PAGE))
    )
    return costs


def _whole(repository: Engine, count: int, backup: Path) -> Costs:
    settle()
    costs = {
        "checkpoint": seconds_of(repository.checkpoint) / count,
        "backup": seconds_of(lambda: repository.backup(str(backup))) / count,
    }
    shutil.rmtree(backup)
    return costs


def _reclaimed(spec: ContentRepositorySpec, count: int, handles: Sequence[str], chooser: random.Random) -> Costs:
    """Of the handles, half are deleted at random, and everything is rewritten."""
    with Engine.open(spec) as repository:
        dead = chooser.sample(list(handles), len(handles) // 2)
        for first in range(0, len(dead), BATCH):
            uuids = b"".join(map(parse_uuid, dead[first : first + BATCH]))
            repository.committer.commit([Delete(uuids)], creates=False)
        repository.content.retire_idle()
        repository.checkpoint()
        compactor = repository.compactor
        costs = {
            "survey": seconds_of(repository.reclamation.survey) / count,
            "plan": seconds_of(compactor.plan) / count,
        }
        plan = compactor.plan(policy="CompactAll")
        settle()
        costs["rewrite"] = seconds_of(lambda: compactor.execute(plan)) / count
        costs["drop of a queue"] = seconds_of(lambda: repository.queues.drop(repository.queue("work"))) / count
    return costs


def _each(call: Callable[[], object]) -> float:
    """The median, since a pause of the machine would weigh as much as all calls together."""
    gc.collect()
    return statistics.median(seconds_of(call) for _ in range(CALLS))

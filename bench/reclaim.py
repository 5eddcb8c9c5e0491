"""Reclamation: what one run leaves and costs, what a steady state costs, what a budget keeps, and growth."""

import math
import os
import random
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.rounds import seconds_of, settle
from bench.table import Row, Target, duration, number
from bench.workbench import Workbench, spec_at
from ullage.clock import Clock
from ullage.contract import PunchSettings, Quantity
from ullage.engine.engine import Engine
from ullage.engine.model import (
    HANDLE_QUEUE,
    NO_ATTRIBUTES,
    Action,
    ContentClaim,
    Delete,
    FlowFileRecord,
    Operation,
    ResourceClaim,
    new_uuids,
)

KB = 1 << 10
MB = 1 << 20
LIVE_SHARE = 30 / 105
"""Seed 001: 30 GB queued held 105 GB."""

IN_PLACE = frozenset({Action.DELETE, Action.TRUNCATE})

NO_GUARDS: dict[str, Any] = {"bytes_per_second": Quantity(0), "min_used_percentage": 0, "min_reclaim": 0}
NO_SWAPPING = {"swap_threshold": 1 << 30}
PLAIN: dict[str, Any] = {"archive": {"enabled": False}, "flow_file": NO_SWAPPING}


def story(bench: Workbench) -> Iterator[Row]:
    """Seed 001 a hundredth as large: many small files, most of them merged away, with survivors everywhere."""
    before: list[float] = []
    in_place: list[float] = []
    after: list[float] = []
    copied: list[float] = []
    claims = {"max_appendable_size": Quantity(MB)}  # as NiFi had it when the seed was written
    for turn in range(bench.sizes.pause_rounds):
        with bench.repository("story", claims=claims, compaction=NO_GUARDS, **PLAIN) as repository:
            bench.say(f"round {turn + 1}: writing and merging")
            _tell_story(repository, bench.sizes.stream_bytes, random.Random(turn))
            compactor = repository.compactor
            before.append(space_ratio(repository))
            compactor.execute(compactor.plan(actions=IN_PLACE))
            in_place.append(space_ratio(repository))
            bench.say(f"round {turn + 1}: reclaiming")
            plan = compactor.plan(policy="CompactAll")
            rewritten = sum(step.copies_bytes for step in plan.steps if step.action == Action.REWRITE)
            report = compactor.execute(plan)
            after.append(space_ratio(repository))
            copied.append(report.copied_bytes / max(1, rewritten))
    disk = f"disk / live, {number(bench.sizes.stream_bytes / 1e6)} MB of small files, 29% of them alive"
    yield Row("reclaim", f"{disk}: before", "", tuple(before))
    yield Row("reclaim", f"{disk}: after delete and truncate, all that NiFi can", "", tuple(in_place))
    yield Row("reclaim", f"{disk}: after one run", "", tuple(after), target=Target(1.05, is_ceiling=True))
    yield Row("reclaim", "bytes copied by that run", "live bytes rewritten", tuple(copied), target=Target(1.1, True))


def steady(bench: Workbench) -> Iterator[Row]:
    """Overwrites of ten times the live size and more, with disk / live held at 1.4: bytes written for each of ours."""
    for name, hot, limit in (("90/10", 0.9, 2.0), ("uniform", 0.0, 2.3)):
        values: list[float] = []
        spaces: list[float] = []
        for turn in range(max(1, bench.sizes.pause_rounds // 2)):
            bench.say(f"{name} overwrites, round {turn + 1}")
            amplification, history = Churn(bench, hot, turn).run()
            values.append(amplification)
            spaces.append(statistics.fmean(history[len(history) // 2 :]))
        at = f"at disk / live {number(statistics.median(spaces))}"
        target = Target(limit, is_ceiling=True)
        yield Row("reclaim", f"{name} overwrites: bytes written", f"bytes put, {at}", tuple(values), target=target)


def paced(bench: Workbench) -> Iterator[Row]:
    """A budget is kept, and those who commit and read meanwhile hardly notice."""
    rate = max(MB, bench.sizes.stream_bytes // 64)
    kept: list[float] = []
    commits: list[float] = []
    reads: list[float] = []
    for turn in range(bench.sizes.pause_rounds):
        with fragmented(bench, 10 * KB, 0.5, turn) as repository:
            hot = repository.handles.put_many([os.urandom(10 * KB) for _ in range(100)])
            compactor = repository.compactor
            plan = compactor.plan(policy="CompactAll")
            seconds = plan.copies_bytes / rate
            bench.say(f"round {turn + 1}: in the quiet")
            quiet = _Foreground(repository, hot)
            quiet.run(min(seconds, 10))
            bench.say(f"round {turn + 1}: during a paced run")
            busy = _Foreground(repository, hot)
            thread = threading.Thread(target=busy.run, args=(seconds,))
            thread.start()
            report = compactor.execute(plan, bytes_per_second=rate)
            busy.stop()
            thread.join()
            kept.append(report.copied_bytes / report.seconds / rate)
            commits.append(busy.commit_p99 / quiet.commit_p99)
            reads.append(busy.read_p99 / quiet.read_p99)
    yield Row(
        "reclaim", "rate of a paced run", f"its budget of {number(rate / 1e6)} MB/s", tuple(kept), target=Target(0.9)
    )
    yield Row("reclaim", "p99 of a commit during it", "without it", tuple(commits), target=Target(2.0, True))
    yield Row("reclaim", "p99 of a hot read during it", "without it", tuple(reads), target=Target(2.0, True))


def growth(bench: Workbench) -> Iterator[Row]:
    """Survey and plan of ten and a hundred times the resource claims, all of which are looked at, and of the largest
    number where a hundredth has changed; no file is read for either.
    """
    costs: dict[int, list[float]] = {}
    plans: dict[int, list[float]] = {}
    many = bench.sizes.recovery[1]
    rounds = bench.sizes.pause_rounds
    counts = (many // 100, many // 10, many)
    for count in counts:
        with bench.repository("growth", flow_file=NO_SWAPPING) as repository:
            bench.say(f"registering {count:,} resource claims")
            _register(repository, count)
            costs[count] = [_anew(repository, repository.reclamation.survey) / count for _ in range(rounds)]
            plans[count] = [_anew(repository, repository.compactor.plan) / count for _ in range(rounds)]
            if count == many:
                changed = tuple(plans[many][0] * count / _after_a_hundredth(repository) for _ in range(rounds))
                yield Row("reclaim", "survey and plan after 1% changed", "all looked at", changed, target=Target(10))
    for what, found in (("survey", costs), ("survey and plan", plans)):
        base = statistics.median(found[counts[0]])
        # Over a factor of a hundred the cost of one claim grows by 100 ** (exponent - 1).
        exponents = tuple(1 + math.log10(cost / base) / 2 for cost in found[many])
        spent = f"{duration(statistics.median(found[many]))} a resource claim"
        yield Row(
            "reclaim",
            f"{what} of {counts[0]:,} to {many:,} resource claims: exponent of its growth",
            "",
            exponents,
            "",
            Target(1.1, is_ceiling=True),
            spent,
        )


def space_ratio(repository: Engine) -> float:
    """Disk / live of the only container."""
    container = repository.reclamation.survey().containers[0]
    return container.disk_bytes / container.live_bytes


def _tell_story(repository: Engine, total: int, chooser: random.Random) -> None:
    """Small files of 1 to 40 KB; a share of them stays queued, the others are merged and sent on."""
    written = 0
    while written < total:
        sizes = [chooser.randint(KB, 40 * KB) for _ in range(100)]
        with repository.session() as session:
            for size in sizes:
                session.ingest("queued" if chooser.random() < LIVE_SHARE else "merging", [chooser.randbytes(size)])
            session.commit()
        written += sum(sizes)
        with repository.session() as session:
            parts = session.get_many("merging", 100)
            merged = session.merge(parts)
            session.transfer(merged, "sent")
            session.remove_many(parts)
            session.commit()
            written += merged.size
        repository.queues.drop(repository.queue("sent"))
    repository.content.retire_idle()
    repository.reclamation.truncate()


def fragmented(bench: Workbench, size: int, dead: float, seed: int) -> Any:
    """A repository whose files of 64 MiB hold claims of one size, of which a share is dead."""
    return _Fragmented(bench, size, dead, seed)


class _Fragmented:
    def __init__(self, bench: Workbench, size: int, dead: float, seed: int) -> None:
        self._bench = bench
        self._chooser = random.Random(seed)
        self._size = size
        self._dead = dead
        claims = {"max_appendable_size": Quantity(64 * MB), "max_flow_files": 1 << 30, "large_claim": Quantity(4 * MB)}
        compaction = NO_GUARDS | {"punch": PunchSettings(enabled=False)}
        self._opened = bench.repository("fragmented", claims=claims, compaction=compaction, **PLAIN)

    def __enter__(self) -> Engine:
        repository = self._opened.__enter__()
        data = self._chooser.randbytes(self._size)
        for _ in range(0, self._bench.sizes.stream_bytes, 16 * MB):
            with repository.session() as session:
                for _ in range(16 * MB // self._size):
                    session.ingest("drop" if self._chooser.random() < self._dead else "keep", [data])
                session.commit()
        repository.content.retire_idle()
        repository.queues.drop(repository.queue("drop"))
        repository.reclamation.truncate()
        repository.checkpoint()
        settle()
        return repository

    def __exit__(self, *error: object) -> None:
        self._opened.__exit__(None, None, None)


class _Time(Clock):
    """A clock that a second of passes with each batch: what is old is told from what is young."""

    def __init__(self) -> None:
        self.millis = 1_700_000_000_000

    def now_millis(self) -> int:
        return self.millis

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Churn:
    """Overwrites of a set of contents, `hot` of them in a tenth of the set; 0: all alike."""

    SIZE = 16 * KB
    SPACE = 1.4
    TURNOVERS = 12

    def __init__(self, bench: Workbench, hot: float, seed: int) -> None:
        self._bench = bench
        self._hot = hot
        self._chooser = random.Random(seed)
        self._count = max(256, bench.sizes.stream_bytes // 8 // self.SIZE)
        self._batch = max(16, self._count // 128)

    def run(self) -> tuple[float, list[float]]:
        """Write amplification over the second half of twelve times the live size, and disk / live after each batch of
        all of it.
        """
        batch_bytes = self._batch * self.SIZE
        claims = {
            "max_appendable_size": Quantity(batch_bytes),
            "max_flow_files": 1 << 30,
            "large_claim": Quantity(64 * MB),
        }
        compaction = NO_GUARDS | {
            "punch": PunchSettings(enabled=False),
            "max_live_fraction": 0.95,
            "output_size": Quantity(batch_bytes),
        }
        path = self._bench.path("churn")
        clock = _Time()
        spec = spec_at(path, claims=claims, compaction=compaction, **PLAIN)
        Engine.initialize(spec)
        with Engine.open(spec, None, clock) as repository:
            found = self._churn(repository, clock)
        shutil.rmtree(path)
        return found

    def _churn(self, repository: Engine, clock: _Time) -> tuple[float, list[float]]:
        ids: list[bytes] = []
        while len(ids) < self._count:
            ids += self._put(repository)
            clock.millis += 1_000
        ids = ids[: self._count]
        user = copied = 0
        spaces: list[float] = []
        rounds = self.TURNOVERS * self._count // self._batch
        for turn in range(rounds):
            chosen = {self._choose() for _ in range(self._batch)}
            fresh = self._put(repository)
            repository.committer.commit([Delete(b"".join(ids[at] for at in chosen))], creates=False)
            for at, id in zip(chosen, fresh, strict=False):
                ids[at] = id
            spare = fresh[len(chosen) :]
            if spare:
                repository.committer.commit([Delete(b"".join(spare))], creates=False)
            clock.millis += 1_000
            moved = self._reclaim(repository)
            spaces.append(space_ratio(repository))
            if turn >= rounds // 2:
                user += self._batch * self.SIZE
                copied += moved
        return 1 + copied / user, spaces

    def _put(self, repository: Engine) -> list[bytes]:
        data = self._chooser.randbytes(self.SIZE)
        ids = repository.handles.put_many([data] * self._batch)
        return [bytes.fromhex(id.replace("-", "")) for id in ids]

    def _choose(self) -> int:
        edge = self._count // 10
        if self._hot and self._chooser.random() < self._hot:
            return self._chooser.randrange(edge)
        return self._chooser.randrange(edge if self._hot else 0, self._count)

    def _reclaim(self, repository: Engine) -> int:
        """As little as keeps disk / live where it is to be; bytes copied."""
        repository.reclamation.clean()
        container = repository.reclamation.survey().containers[0]
        excess = container.disk_bytes - int(self.SPACE * container.live_bytes)
        if excess <= 0:
            return 0
        compactor = repository.compactor
        return compactor.execute(compactor.plan(frees_wanted=excess)).copied_bytes


class _Foreground:
    """One thread that commits a content and reads a hot one, over and over."""

    def __init__(self, repository: Engine, hot: list[str]) -> None:
        self._repository = repository
        self._hot = hot
        self._commits: list[float] = []
        self._reads: list[float] = []
        self._stop = threading.Event()

    def run(self, seconds: float) -> None:
        """For so long, or until it is stopped; a hundred times at least."""
        end = time.monotonic() + seconds
        data = os.urandom(4 * KB)
        number_ = 0
        while len(self._reads) < 100 or (time.monotonic() < end and not self._stop.is_set()):
            self._commits.append(seconds_of(lambda: self._repository.handles.put(data)))
            for _ in range(10):
                handle = self._hot[number_ % len(self._hot)]
                number_ += 1
                begin = time.perf_counter()
                with self._repository.handles.get(handle) as stream:
                    stream.read()
                self._reads.append(time.perf_counter() - begin)

    def stop(self) -> None:
        self._stop.set()

    @property
    def commit_p99(self) -> float:
        return statistics.quantiles(self._commits, n=100)[98]

    @property
    def read_p99(self) -> float:
        return statistics.quantiles(self._reads, n=100)[98]


def _anew(repository: Engine, call: Callable[[], object]) -> float:
    """Seconds of a call whose survey looks at everything."""
    repository.ledger.forget_changed()
    return seconds_of(call)


def _after_a_hundredth(repository: Engine) -> float:
    """Seconds of a plan when the claims of every hundredth file have been pinned and given back."""
    claims = [claim for entry in repository.ledger.entries() for claim in entry.residents().claims][::100]
    repository.ledger.pin(claims)
    repository.ledger.unpin(claims)
    return seconds_of(repository.compactor.plan)


def _register(repository: Engine, count: int) -> None:
    """Resource claims with two claims each, of which one lives: records only, since a survey reads no file."""
    batch = 2_000
    now = repository.clock.now_millis()
    for first in range(1, count + 1, batch):
        operations: list[Operation] = []
        for index in range(first, min(first + batch, count + 1)):
            claim = ContentClaim(index, 0, 40 * KB, 1)
            operations.append(ResourceClaim(index, "c1", now - index, length=100 * KB, sealed=True, generation=1))
            operations.append(
                FlowFileRecord(new_uuids(1)[0], HANDLE_QUEUE, claim, 0, claim.length, now, now, 0, NO_ATTRIBUTES)
            )
        repository.committer.commit(operations, creates=False)

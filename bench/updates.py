"""FlowFile updates: commits of one record and of many, in one thread and in many, beside bare write and sync loops."""

import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from bench.rounds import looped, take_turns
from bench.table import Row, Target, duration
from bench.workbench import SharedLog, SlowDisk, Workbench, fill
from ullage.engine.engine import Engine
from ullage.engine.model import Update, pack_attributes

THREADS = (1, 8, 32)
QUEUED = 10_000
SLOW_SYNC_SECONDS = 0.002

Commit = Callable[[int], None]
"""One durable single-record commit by the thread of this number."""


def threads(bench: Workbench) -> Iterator[Row]:
    """Single-record commits at 1, 8 and 32 threads: sessions and bare transactions, beside bare loops."""
    with bench.repository("updates") as repository, ExitStack() as stack:
        fill(repository, "work", QUEUED)
        frame = bytes(_frame_bytes(repository))
        descriptors = [stack.enter_context(bench.peer_file(f"updates.{number}.peer")) for number in range(max(THREADS))]
        shared = SharedLog(stack.enter_context(bench.peer_file("updates.shared.peer")))
        uuids = [record.uuid for record in repository.queue("work").records(max(THREADS))]

        def by_session(_: int) -> None:
            _touch_one(repository)

        def by_transaction(number: int) -> None:
            _update_one(repository, uuids[number])

        def own_file(number: int) -> None:
            os.write(descriptors[number], frame)
            os.fdatasync(descriptors[number])

        def one_file(_: int) -> None:
            shared.commit(frame)

        comparisons: tuple[tuple[str, Commit, str, Commit, Target | None], ...] = (
            ("get, put_attribute, transfer, commit", by_session, "a file each", own_file, None),
            ("one Update, committed", by_transaction, "a file each", own_file, Target(0.7)),
            ("get, put_attribute, transfer, commit", by_session, "one shared group commit", one_file, None),
            ("one Update, committed", by_transaction, "one shared group commit", one_file, None),
        )
        for count in THREADS:
            each = max(1, bench.sizes.commits // count)
            for what, engine, peer_name, peer, target in comparisons:
                bench.say(f"{what}, {count} threads, {peer_name}")
                turns = take_turns(
                    bench.sizes.rounds, each * count, looped(count, each, engine), looped(count, each, peer)
                )
                yield turns.row("updates", f"{what}: {_threads(count)}", f"write + fdatasync, {peer_name}", target)


def slow_disk(bench: Workbench) -> Iterator[Row]:
    """Where a sync takes 2 ms longer: commits a second of 32 threads, as a multiple of one thread's."""
    many = max(THREADS)
    with bench.repository("slow", SlowDisk(SLOW_SYNC_SECONDS)) as repository:
        fill(repository, "work", QUEUED)
        uuids = [record.uuid for record in repository.queue("work").records(many)]
        each = bench.sizes.slow_commits
        cases: tuple[tuple[str, Commit], ...] = (
            ("get, put_attribute, transfer, commit", lambda _: _touch_one(repository)),
            ("one Update, committed", lambda number: _update_one(repository, uuids[number])),
        )
        for what, commit in cases:
            bench.say(f"{what} on a slow disk")
            one = looped(1, each, commit)
            all_threads = looped(many, each, commit)
            turns = take_turns(bench.sizes.rounds, each, all_threads, one)
            gains = tuple(many * alone / together for together, alone in zip(turns.engine, turns.peer, strict=True))
            alone = duration(statistics.median(turns.peer) / each)
            together = duration(statistics.median(turns.engine) / (each * many))
            yield Row(
                "updates",
                f"{what}: {many} threads, 2 ms syncs",
                "1 thread",
                gains,
                target=Target(8),
                medians=f"{together} a commit, 1 thread {alone}",
            )


def batches(bench: Workbench) -> Iterator[Row]:
    """1, 100 and 10,000 records a commit, beside write and sync of as many bytes as the engine logs for them."""
    with bench.repository("update-batches") as repository:
        fill(repository, "work", QUEUED)
        for size in (1, 100, QUEUED):
            commits = max(1, bench.sizes.commits // size // 2)
            before = repository.log.log_bytes
            _touch_many(repository, size)
            frame = bytes(repository.log.log_bytes - before)
            with bench.peer_file("update-batches.peer") as descriptor:

                def engine(_: int, size: int = size) -> None:
                    _touch_many(repository, size)

                def peer(_: int, frame: bytes = frame, descriptor: int = descriptor) -> None:
                    os.write(descriptor, frame)
                    os.fdatasync(descriptor)

                bench.say(f"{size} records a commit")
                turns = take_turns(
                    bench.sizes.rounds, commits * size, looped(1, commits, engine), looped(1, commits, peer)
                )
                yield turns.row(
                    "updates", f"{size:,} records a commit, a record", "write + fdatasync of the same bytes"
                )


def _touch_one(repository: Engine) -> None:
    with repository.session() as session:
        flow_file = session.get("work")
        assert flow_file is not None
        session.put_attribute(flow_file, "status", "seen")
        session.transfer(flow_file, "work")
        session.commit()


def _touch_many(repository: Engine, count: int) -> None:
    with repository.session() as session:
        flow_files = session.get_many("work", count)
        assert len(flow_files) == count
        for flow_file in flow_files:
            session.put_attribute(flow_file, "status", "seen")
        session.transfer_many(flow_files, "work")
        session.commit()


def _update_one(repository: Engine, uuid: bytes) -> None:
    update = Update(uuid, set_attributes=pack_attributes({"status": "seen"}))
    repository.committer.commit([update], creates=False)


def _frame_bytes(repository: Engine) -> int:
    """What the engine logs for one update: the peers write as much."""
    _touch_one(repository)
    before = repository.log.log_bytes
    _touch_one(repository)
    return repository.log.log_bytes - before


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"

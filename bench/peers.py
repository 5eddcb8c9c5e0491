"""The engine beside Apache NiFi's own classes and beside the disk: the same work, in turns, in one run."""

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count as counter
from pathlib import Path

from bench.arena import DISK, KILOBYTE, MEGABYTE, SYNCED, UNSYNCED, Arena, rows
from bench.growth import RESIDENT
from bench.rounds import Timed, looped, rotate, seconds_of, settle
from bench.table import Row, Target
from bench.workbench import SharedLog, empty, fill, make_sections
from ullage.engine.engine import Engine
from ullage.engine.model import FlowFileRecord, Update, pack_attributes


def contents(arena: Arena) -> Iterator[Row]:
    """Sessions that create FlowFiles with content and commit."""
    bench, nifi = arena.bench, arena.nifi
    with ExitStack() as stack:
        repository = stack.enter_context(bench.repository("ullage", archive={"enabled": False}, flow_file=RESIDENT))
        for name, is_synced in (("synced", True), ("unsynced", False)):
            nifi.ask("open", name, sync=is_synced)
            stack.callback(nifi.forget, name)
        make_sections(repository, arena.sizes.warm_files)
        for size, claims, sessions in arena.sizes.contents:
            what = f"{claims} content{'s' if claims > 1 else ''} of {bytes_text(size)} a session"
            bench.say(what)
            yield from _content_rows(arena, repository, what, (size, claims, sessions))


def _content_rows(arena: Arena, repository: Engine, what: str, work: tuple[int, int, int]) -> Iterator[Row]:
    size, claims, sessions = work
    is_large = size > MEGABYTE
    store = _store_stream if is_large else _store_batch
    with arena.bench.peer_file("disk") as descriptor:
        piece = os.urandom(min(size, MEGABYTE))

        # Large contents go after each round, small ones stay until the end, on all sides alike: pages that a side has
        # just freed are cheaper to write to than others.
        def engine() -> float:
            settle()
            seconds = seconds_of(partial(store, repository, piece, work))
            if is_large:
                empty(repository, "inbox")
            return seconds

        def disk() -> float:
            settle()
            seconds = seconds_of(partial(_write_bare, descriptor, piece, work))
            if is_large:
                os.ftruncate(descriptor, 0)
                os.lseek(descriptor, 0, os.SEEK_SET)
            return seconds

        def peer(name: str) -> float:
            settle()
            seconds = arena.nifi.seconds("write", name, size=size, claims=claims, sessions=sessions)
            if is_large:
                _unlink_large(arena.nifi.directory / name / "content")
            return seconds

        sides: dict[str, Timed] = {
            "engine": engine,
            SYNCED: partial(peer, "synced"),
            UNSYNCED: partial(peer, "unsynced"),
            DISK: disk,
        }
        seconds = rotate(arena.sizes.rounds, sides)
    is_batch = claims >= 100
    yield from rows(
        "content",
        what,
        claims * sessions,
        seconds,
        {
            SYNCED: Target(2 if is_batch else 0.9),
            UNSYNCED: Target(1) if is_batch else None,
            DISK: Target(0.95) if size >= 1 << 30 else None,
        },
    )


def _unlink_large(directory: Path) -> None:
    """Remove NiFi's large content files, which it has closed for good and is not asked for again."""
    for path in directory.glob("*/*"):
        if path.is_file() and path.stat().st_size > MEGABYTE:
            path.unlink()


def _store_batch(repository: Engine, piece: bytes, work: tuple[int, int, int]) -> None:
    _, claims, sessions = work
    batch = [piece] * claims
    for _ in range(sessions):
        with repository.session() as session:
            session.ingest("inbox", batch)
            session.commit()


def _store_stream(repository: Engine, piece: bytes, work: tuple[int, int, int]) -> None:
    size, claims, sessions = work
    for _ in range(sessions):
        with repository.session() as session:
            for _ in range(claims):
                flow_file = session.create()
                with session.writing(flow_file) as out:
                    for _ in range(size // len(piece)):
                        out.write(piece)
                session.transfer(flow_file, "inbox")
            session.commit()


def _write_bare(descriptor: int, piece: bytes, work: tuple[int, int, int]) -> None:
    size, claims, sessions = work
    for _ in range(sessions):
        if size <= MEGABYTE:
            os.writev(descriptor, [piece] * claims)
        else:
            for _ in range(claims * size // len(piece)):
                os.write(descriptor, piece)
        os.fdatasync(descriptor)


def reads(arena: Arena) -> Iterator[Row]:
    """Random reads of whole claims of 1 KB, out of the page cache and from the disk."""
    bench, nifi, count = arena.bench, arena.nifi, arena.sizes.reads
    sessions = max(1, count // 5)
    with bench.repository("ullage", archive={"enabled": False}, flow_file=RESIDENT) as repository:
        bench.say("storing what will be read")
        for _ in range(sessions):
            with repository.session() as session:
                session.ingest("inbox", [os.urandom(KILOBYTE) for _ in range(100)])
                session.commit()
        nifi.ask("open", "nifi", sync=False)
        nifi.ask("write", "nifi", size=KILOBYTE, claims=100, sessions=sessions)
        stored = [record.claim for record in repository.queue("inbox").records() if record.claim is not None]
        seeds = counter()
        chance = random.Random(1)

        def engine(*, cold: bool) -> float:
            if cold:
                evict(bench.directory / "ullage")
            chosen = chance.choices(stored, k=count)
            return seconds_of(lambda: [repository.reader.read(claim, 0, claim.length) for claim in chosen])

        def peer(*, cold: bool) -> float:
            if cold:
                evict(bench.directory / "nifi")
            return nifi.seconds("read", "nifi", size=KILOBYTE, count=count, seed=next(seeds))

        for name, cold in (("hot", False), ("cold", True)):
            bench.say(f"random reads, {name}")
            sides: dict[str, Timed] = {"engine": partial(engine, cold=cold), "NiFi": partial(peer, cold=cold)}
            seconds = rotate(arena.sizes.rounds, sides)
            target = {"NiFi": Target(1)}
            yield from rows("content", f"random reads of 1 KB, {name}, verified by us", count, seconds, target)
        nifi.forget("nifi")


def evict(directory: Path) -> None:
    """Have the kernel forget the pages of all files below a directory."""
    os.sync()
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def updates(arena: Arena) -> Iterator[Row]:
    """Calls that change one attribute of 1 to 10,000 FlowFiles which have five, in 1 to 8 threads."""
    bench, nifi, sizes = arena.bench, arena.nifi, arena.sizes
    resident = max(sizes.threads) * max(size for size, _ in sizes.calls)
    with ExitStack() as stack:
        repository = stack.enter_context(bench.repository("ullage", flow_file=RESIDENT))
        for name, is_synced in (("synced", True), ("unsynced", False)):
            nifi.ask("open", name, sync=is_synced)
            stack.callback(nifi.forget, name)
            nifi.ask("fill", name, count=resident)
        fill(repository, "work", resident, with_attributes=True, say=bench.say)
        records = repository.queue("work").records(resident)
        for size, calls in sizes.calls:
            for threads in sizes.threads:
                what = f"{size:,} a call, {threads} thread{'s' if threads > 1 else ''}"
                bench.say(what)
                yield from _update_rows(arena, repository, records, what, (size, threads, max(1, calls // threads)))


def _update_rows(
    arena: Arena, repository: Engine, records: Sequence[FlowFileRecord], what: str, work: tuple[int, int, int]
) -> Iterator[Row]:
    size, threads, calls = work
    number = counter()

    def call(thread: int) -> None:
        packed = pack_attributes({"status": f"seen-{next(number) % 100_000}"})
        mine = records[thread * size : (thread + 1) * size]
        repository.committer.commit([Update(record.uuid, set_attributes=packed) for record in mine], creates=False)

    def peer(name: str) -> float:
        return arena.nifi.seconds("update", name, size=size, threads=threads, calls=calls)

    before = repository.log.log_bytes
    call(0)
    frame = bytes(repository.log.log_bytes - before)
    with arena.bench.peer_file("disk") as descriptor:
        shared = SharedLog(descriptor)
        sides: dict[str, Timed] = {
            "engine": looped(threads, calls, call),
            SYNCED: partial(peer, "synced"),
            UNSYNCED: partial(peer, "unsynced"),
            DISK: looped(threads, calls, lambda _: shared.commit(frame)),
        }
        seconds = rotate(arena.sizes.rounds, sides)
    target = 2.0 if size >= 100 or threads >= 8 else 0.9 if threads == 1 else None
    targets = {SYNCED: Target(target) if target else None}
    yield from rows("updates", what, size * threads * calls, seconds, targets)


def bytes_text(size: int) -> str:
    """A size as people say it."""
    for unit, name in ((1 << 30, "GB"), (MEGABYTE, "MB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size // KILOBYTE} KB"

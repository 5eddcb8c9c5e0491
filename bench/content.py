"""Content: batches of small claims, one large stream, random reads, each beside the bare system calls."""

import os
import random
import time
from collections.abc import Iterator
from functools import partial

from bench.rounds import seconds_of, settle, take_turns
from bench.table import Row, Target
from bench.workbench import Workbench, empty, make_sections
from ullage.engine.engine import Engine
from ullage.engine.model import ContentClaim

KILOBYTE = 1_024
MEGABYTE = 1 << 20
BATCH_CLAIMS = 1_000
IOV_MAX = 1_024


def batches(bench: Workbench) -> Iterator[Row]:
    """1,000 claims of 1 KB a commit, durable, beside `writev` and `fdatasync` of the same bytes in the same batches."""
    sizes = bench.sizes
    contents = [os.urandom(KILOBYTE) for _ in range(BATCH_CLAIMS)]
    with (
        bench.repository("batches", archive={"enabled": False}) as repository,
        bench.peer_file("batches.peer") as descriptor,
    ):
        make_sections(repository, sizes.warm_files)

        def ingest() -> None:
            for _ in range(sizes.batches):
                with repository.session() as session:
                    session.ingest("inbox", contents)
                    session.commit()

        def engine() -> float:
            settle()
            seconds = seconds_of(ingest)
            empty(repository, "inbox")
            return seconds

        def engine_piling_up() -> float:
            settle()
            return seconds_of(ingest)

        def peer() -> float:
            settle()
            begin = time.perf_counter()
            for _ in range(sizes.batches):
                os.writev(descriptor, contents)
                os.fdatasync(descriptor)
            seconds = time.perf_counter() - begin
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            return seconds

        bench.say("batches into a queue that is emptied")
        turns = take_turns(sizes.rounds, sizes.batches, engine, peer)
        yield turns.row("content", "1,000 claims of 1 KB a commit", "writev + fdatasync", Target(0.7))
        bench.say("batches into a queue that swaps out")
        turns = take_turns(sizes.rounds, sizes.batches, engine_piling_up, peer)
        yield turns.row("content", "the same into a queue that swaps out", "writev + fdatasync")


def stream(bench: Workbench) -> Iterator[Row]:
    """One content streamed in pieces of 1 MiB, beside plain writes and one sync."""
    count = bench.sizes.stream_bytes // MEGABYTE
    piece = os.urandom(MEGABYTE)
    with bench.repository("stream", archive={"enabled": False}) as repository:

        def store() -> None:
            with repository.session() as session:
                flow_file = session.create()
                with session.writing(flow_file) as out:
                    for _ in range(count):
                        out.write(piece)
                session.transfer(flow_file, "inbox")
                session.commit()

        def engine() -> float:
            settle()
            seconds = seconds_of(store)
            empty(repository, "inbox")
            return seconds

        def peer() -> float:
            settle()
            with bench.peer_file("stream.peer") as descriptor:
                begin = time.perf_counter()
                for _ in range(count):
                    os.write(descriptor, piece)
                os.fdatasync(descriptor)
                return time.perf_counter() - begin

        bench.say(f"streaming {count:,} MiB")
        turns = take_turns(bench.sizes.stream_rounds, count, engine, peer)
        yield turns.row("content", f"{count:,} MiB streamed, a MiB", "write + fdatasync", Target(0.95))


def reads(bench: Workbench) -> Iterator[Row]:
    """Random reads of whole claims, verified, beside `pread` of the same bytes of the same files."""
    chance = random.Random(1)
    with bench.repository("reads") as repository:
        for size, name in ((KILOBYTE, "1 KB"), (MEGABYTE, "1 MB")):
            bench.say(f"random reads of {name}")
            stored = max(4, 20 * bench.sizes.reads * KILOBYTE // size)
            ids = _store_handles(repository, size, stored)
            count = bench.sizes.reads if size == KILOBYTE else bench.sizes.reads // 5
            chosen = chance.choices(ids, k=count)
            claims = [_claim_of(repository, id) for id in chosen]
            yield from _read_rows(bench, repository, name, chosen, claims)


def _read_rows(
    bench: Workbench, repository: Engine, name: str, ids: list[str], claims: list[ContentClaim]
) -> Iterator[Row]:
    places = [(_descriptor_path(repository, claim), claim.offset, claim.length) for claim in claims]
    descriptors = {path: os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path, _, _ in places}

    def read_claims() -> None:
        for claim in claims:
            repository.reader.read(claim, 0, claim.length)

    def read_handles() -> None:
        for id in ids:
            with repository.handles.get(id) as content:
                content.read()

    def pread() -> None:
        for path, offset, length in places:
            os.pread(descriptors[path], length, offset)

    try:
        for what, work in (("claims", read_claims), ("handles", read_handles)):
            turns = take_turns(bench.sizes.rounds, len(claims), partial(seconds_of, work), partial(seconds_of, pread))
            yield turns.row("content", f"random reads of {name} by {what}, from the page cache", "pread")
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)


def _store_handles(repository: Engine, size: int, count: int) -> list[str]:
    at_a_time = min(count, 16 * MEGABYTE // size)
    ids: list[str] = []
    while len(ids) < count:
        ids += repository.handles.put_many([os.urandom(size) for _ in range(min(at_a_time, 1_000))])
    return ids


def _claim_of(repository: Engine, id: str) -> ContentClaim:
    claim = repository.handles.record(bytes.fromhex(id.replace("-", ""))).claim
    assert claim is not None
    return claim


def _descriptor_path(repository: Engine, claim: ContentClaim) -> str:
    entry = repository.ledger.entry(claim.resource)
    assert entry is not None
    return repository.content.path_of(entry.claim)

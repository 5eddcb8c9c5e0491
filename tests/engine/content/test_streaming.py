"""Content of any size in bounded memory, and what a reader gets when bytes are wrong."""

import tracemalloc
from collections.abc import Iterator

import pytest

from tests.support import Workshop, claim_of, committing, flip, put_all
from ullage.engine.engine import Engine
from ullage.engine.model import BLOCK_BYTES, ContentClaim
from ullage.errors import ContentCorrupt, ContentMissing, SessionMisuse

MB = 1 << 20


def pattern(count: int) -> bytes:
    return b"".join(number.to_bytes(8, "big") for number in range(count // 8 + 1))[:count]


def store_one(workshop: Workshop, content: bytes) -> tuple[Engine, ContentClaim]:
    repository = workshop.make()
    put_all(repository, "q", [b"small"])
    return repository, claim_of(put_all(repository, "q", [content])[0])


def test_300_megabytes_pass_in_bounded_memory(repository: Engine) -> None:
    """Writing and reading 300 MB never holds more than 16 MB."""
    piece = pattern(MB)

    def pieces() -> Iterator[bytes]:
        for _ in range(300):
            yield piece

    tracemalloc.start()
    try:
        with committing(repository) as session:
            flow_file = session.write(session.create(), pieces())
            session.transfer(flow_file, "q")
        with repository.session() as session:
            (record,) = session.get_many("q", 1)
            count = sum(data == piece for data in session.read(record))
            session.rollback()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert record.size == 300 * MB
    assert count == 300
    assert peak < 16 * MB


@pytest.mark.parametrize(
    ("start", "size"),
    [
        (0, 1),
        (BLOCK_BYTES - 1, 2),
        (BLOCK_BYTES, BLOCK_BYTES),
        (BLOCK_BYTES - 7, 2 * BLOCK_BYTES + 14),
        (5 * BLOCK_BYTES + 3, 0),
        (3 * MB + 10, 5),
        (0, 3 * MB + 15),
    ],
)
def test_ranges_across_block_edges_are_exact(workshop: Workshop, start: int, size: int) -> None:
    """Any range reads as the same slice of what was written, at once and streamed."""
    content = pattern(3 * MB + 15)

    repository, claim = store_one(workshop, content)

    assert repository.reader.read(claim, start, size) == content[start : start + size]
    assert b"".join(repository.reader.stream(claim, start, size)) == content[start : start + size]


def test_a_flipped_byte_spoils_its_block_only(workshop: Workshop) -> None:
    """The damaged block raises ContentCorrupt with resource claim, offset and file; its neighbours read."""
    content = pattern(2 * MB)
    repository, claim = store_one(workshop, content)
    path = workshop.content_file(claim.resource)

    flip(path, claim.offset + 2 * BLOCK_BYTES + 5)

    good = repository.reader.read(claim, 0, 2 * BLOCK_BYTES)
    assert good == content[: 2 * BLOCK_BYTES]
    assert repository.reader.read(claim, 3 * BLOCK_BYTES, 10) == content[3 * BLOCK_BYTES :][:10]
    with pytest.raises(ContentCorrupt) as caught:
        repository.reader.read(claim, 2 * BLOCK_BYTES + 100, 1)
    assert f"resource claim {claim.resource} " in str(caught.value)
    assert f"offset {claim.offset + 2 * BLOCK_BYTES} " in str(caught.value)
    assert str(path) in str(caught.value)
    assert str(path) in repository.check(deep=True).problems[0]
    workshop.expects_problems = True


def test_a_flipped_byte_in_a_small_claim_is_corrupt(workshop: Workshop, repository: Engine) -> None:
    """A claim of up to one block is its own block."""
    record = put_all(repository, "q", [b"0123456789"])[0]

    flip(workshop.content_file(claim_of(record).resource), 3)

    with pytest.raises(ContentCorrupt):
        repository.reader.read(claim_of(record), 8, 1)
    workshop.expects_problems = True


@pytest.mark.parametrize("left", [0, 10, 4096 + BLOCK_BYTES + 1])
def test_a_short_file_is_missing_content(workshop: Workshop, left: int) -> None:
    """What the file does not hold is an error, never zeros and never fewer bytes."""
    repository, claim = store_one(workshop, pattern(MB))
    path = workshop.content_file(claim.resource)

    with path.open("r+b") as file:
        file.truncate(left)

    with pytest.raises(ContentMissing, match=str(path)):
        repository.reader.read(claim, BLOCK_BYTES, 10)
    workshop.expects_problems = True


@pytest.mark.parametrize(("start", "size"), [(0, 11), (11, 0), (-1, 2), (5, 6), (3, -1)])
def test_a_range_beyond_the_claim_is_missing_content(repository: Engine, start: int, size: int) -> None:
    """Bytes that a claim has not got are an error that names it, whatever follows it in the file."""
    record, _ = put_all(repository, "q", [b"0123456789", b"of somebody else"])

    with pytest.raises(ContentMissing, match=f"at offset {claim_of(record).offset} of resource claim"):
        repository.reader.read(claim_of(record), start, size)


def test_an_absent_file_is_missing_content(workshop: Workshop) -> None:
    """The error names the resource claim and where its file should be."""
    repository, claim = store_one(workshop, pattern(MB))
    path = workshop.content_file(claim.resource)
    path.unlink()

    with pytest.raises(ContentMissing, match=f"resource claim {claim.resource} is missing: {path}"):
        repository.reader.read(claim, 0, 1)
    workshop.expects_problems = True


def test_lost_block_checksums_are_worked_out_again_from_the_claims_own(workshop: Workshop) -> None:
    """The CRC of the whole claim proves the block CRCs: content that is only archived or pinned stays readable."""
    content = pattern(2 * MB)
    repository, claim = store_one(workshop, content)
    kept = repository.reader.known_blocks(claim)
    key = claim.resource, claim.offset

    repository.ledger.blocks.delete(key)
    read = repository.reader.read(claim, MB, 100)
    assert repository.reader.known_blocks(claim) == kept
    repository.ledger.blocks.delete(key)
    streamed = b"".join(repository.reader.stream(claim, MB - 5, 10))
    repository.ledger.blocks.delete(key)
    flip(workshop.content_file(claim.resource), claim.offset + 7)
    with pytest.raises(ContentCorrupt):
        repository.reader.read(claim, MB, 100)
    assert repository.reader.known_blocks(claim) is None
    flip(workshop.content_file(claim.resource), claim.offset + 7)

    assert read == content[MB : MB + 100]
    assert streamed == content[MB - 5 : MB + 5]


def test_a_stream_that_is_over_takes_no_more(repository: Engine) -> None:
    """After close, after a failure or after the session's end nothing is written through an old stream."""
    with committing(repository) as session:
        flow_file = session.create()
        with session.writing(flow_file) as closed:
            closed.write(b"x" * (2 * MB))
        with pytest.raises(SessionMisuse):
            closed.write(b"late")
        session.transfer(flow_file, "q")
    with repository.session() as session:
        context = session.writing(session.create())  # kept: it ends with its last reference
        left = context.__enter__()
        left.write(b"y" * (2 * MB))
        session.rollback()
        with pytest.raises(SessionMisuse):
            left.write(b"into somebody else's file")


def test_a_closed_stream_is_not_read(repository: Engine) -> None:
    """Its pin was given back, so its bytes may be gone."""
    handle = repository.handles.put(b"content")

    stream = repository.handles.get(handle)
    stream.close()

    with pytest.raises(ValueError, match="closed"):
        stream.read()

"""Large answers are made and sent in pieces: none takes long to make, they are never joined, and say what one would."""

import base64
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.service.running import Running, document_at
from ullage.embedded.rows import LazyRows
from ullage_agent.service.http.reads import READ_BYTES
from ullage_agent.service.http.rows import TEXT_CHARACTERS, Pieces, RowsAnswer, as_they_are
from ullage_agent.service.limits import KIB, PIECE_BYTES

LONG = 3 * TEXT_CHARACTERS


class SomeRow(msgspec.Struct, frozen=True):
    """As events are: two mappings, and short texts around them."""

    id: str
    attributes: dict[str, str]
    text: str
    before: dict[str, str]


def texts(chosen: random.Random) -> dict[str, str]:
    """Short ones, long ones, and ones that JSON writes in another way."""
    lengths = (0, 1, 100, TEXT_CHARACTERS, TEXT_CHARACTERS + 1, LONG)
    return {
        f'name "{number}"': chosen.choice('a\x01"\\é\U0001f600') * chosen.choice(lengths)
        for number in range(chosen.randrange(12))
    }


def answer_of(rows: list[SomeRow], sizes: int) -> RowsAnswer:
    return RowsAnswer(LazyRows(rows, lambda row: row, lambda _: sizes), lambda found: {"rows": found, "next": None})


@pytest.mark.parametrize("size", [1, PIECE_BYTES + 1], ids=["whole-rows", "rows-in-parts"])
def test_parts_say_what_the_whole_would(size: int, seed: int) -> None:
    """Whatever the rows are, and however many."""
    chosen = random.Random(seed)
    for count in (0, 1, 2, 7):
        rows = [SomeRow(f"id {number}", texts(chosen), "\0\x01", texts(chosen)) for number in range(count)]
        ids: list[str] = []
        parts = list(answer_of(rows, size).parts(ids))
        assert b"".join(parts) == msgspec.json.encode({"rows": rows, "next": None})
        assert ids == [row.id for row in rows]
        assert size == 1 or max(map(len, parts)) <= 13 * TEXT_CHARACTERS


def test_a_row_of_megabytes_is_made_bit_by_bit_in_hardly_more_memory_than_it_takes() -> None:
    """A megabyte of control characters is six of JSON: as one text it took 25 ms, and joined it was there twice."""
    rows = [SomeRow(str(number), {"a": "\x01" * 1_000_000}, "", {}) for number in range(5)]
    answer, pieces = answer_of(rows, 6_000_100), Pieces()
    tracemalloc.start()
    try:
        steps = sum(1 for _ in pieces.gather(answer.parts([])))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert steps > 5 * 30
    assert peak < 1.1 * answer.room_bytes
    sent = list(pieces.take())
    assert max(len(piece) for piece, _ in sent) <= PIECE_BYTES
    assert [more for _, more in sent] == [True] * (len(sent) - 1) + [False]
    assert b"".join(piece for piece, _ in sent) == msgspec.json.encode({"rows": rows, "next": None})
    assert list(pieces.take()) == []


def test_small_rows_go_together() -> None:
    """Each send costs as much as a hundred of them."""
    rows = [SomeRow(str(number), {}, "x" * 100, {}) for number in range(10_000)]
    pieces = Pieces()
    for _ in pieces.gather(RowsAnswer(LazyRows(rows, lambda row: row, lambda _: 1), as_they_are).parts([])):
        pass
    assert len(list(pieces.take())) <= 2 + pieces.size // (PIECE_BYTES - KIB)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with Running(document_at(tmp_path / "r")) as made:
        yield made


def test_large_answers_arrive_whole_and_say_how_long_they_are(running: Running) -> None:
    """Lists of large rows, none and one."""
    item: dict[str, Any] = {"content": "", "attributes": {"text": "\x01" * 300_000, "other": "é"}}
    path = "/v1/queues/in/flowfiles"
    assert running.client.post("/v1/queues/in/batch", json={"items": [item] * 3}).status_code == 201

    whole, one, none = (running.client.get(path, params={"limit": 5, "skip": skip}) for skip in (0, 2, 3))

    assert [len(each.json()) for each in (whole, one, none)] == [3, 1, 0]
    assert whole.json()[2] == one.json()[0]
    attributes = whole.json()[0]["attributes"]
    assert {name: attributes[name] for name in item["attributes"]} == item["attributes"]
    assert whole.headers["content-length"] == str(len(whole.content))
    assert whole.headers["content-type"] == "application/json"


@pytest.mark.parametrize("size", [0, 1, READ_BYTES, READ_BYTES + 1, 5 * READ_BYTES + 2])
def test_contents_of_a_batch_arrive_in_both_notations(running: Running, size: int, seed: int) -> None:
    """Whatever they have, and beside what there is not."""
    content = random.Random(seed).randbytes(size)
    ids = [running.repository.handles.put(each).partition("@")[0] for each in (content, b"short")]
    body = {"ids": [*ids, "01999999-0000-7000-8000-000000000000"]}
    expected = [content, b"short", None]

    written = running.client.post("/v1/handles/batch/get", json=body)
    packed = running.client.post("/v1/handles/batch/get", json=body, headers={"Accept": "application/x-msgpack"})

    found = [each["content"] for each in written.json()]
    assert [None if each is None else base64.b64decode(each) for each in found] == expected
    assert [each["content"] for each in msgspec.msgpack.decode(packed.content)] == expected
    assert [each["id"] for each in msgspec.msgpack.decode(packed.content)] == body["ids"]
    assert written.json()[2]["problem"] == "no-such-handle"
    assert (written.headers["content-type"], packed.headers["content-type"]) == (
        "application/json",
        "application/x-msgpack",
    )

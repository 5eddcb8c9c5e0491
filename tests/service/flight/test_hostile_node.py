"""What a node sends that is not what it ought to be: no byte of it is used, and the client says so."""

import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pyarrow as pa
import pytest

from tests.service.flight import raw
from ullage.client.flight import FlightClient
from ullage.errors import NotReachable
from ullage.wire.schemas import BATCH_ROWS_MAX, GET_SCHEMA, SCHEMAS, schema_sent
from ullage.wire.tickets import ABOUT, Nothing, TableTicket


class _Answers(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, messages: Sequence[bytes]) -> None:
        self._messages = messages

    def service(self, handler_call_details: Any) -> Any:
        def answer(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
            next(requests)
            return iter(self._messages)

        return grpc.stream_stream_rpc_method_handler(answer)


@contextmanager
def node_that_sends(*messages: bytes) -> Iterator[FlightClient]:
    """A client of a node that answers everything with these messages."""
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, handlers=[_Answers(messages)])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            with FlightClient(f"grpc://127.0.0.1:{port}") as client:
                yield client
        finally:
            server.stop(None).wait()


def rows(*found: tuple[int | None, int, bytes | None, str | None]) -> pa.RecordBatch:
    columns = zip(*found, strict=True)
    loose = pa.schema([field.with_nullable(True) for field in GET_SCHEMA])
    return pa.record_batch([pa.array(each, field.type) for each, field in zip(columns, loose, strict=True)], loose)


def stream(*batches: pa.RecordBatch, schema: pa.Schema = GET_SCHEMA) -> list[bytes]:
    return [raw.schema_message(schema), *map(raw.batch_message, batches)]


def test_what_is_sound_is_read() -> None:
    """The other tests change this."""
    with node_that_sends(*stream(rows((0, 0, b"on", None), (0, 2, b"e", None), (1, 0, b"", None)))) as client:
        assert client.get_many(["a", "b"]) == [b"one", b""]


def test_a_batch_that_is_not_as_it_says_is_not_read() -> None:
    """What lay behind it in the client's memory would be part of a content."""
    header, body = raw.batch_parts(rows((0, 0, b"x" * 16, None), (1, 0, b"y" * 16, None)))
    offsets = struct.pack("<iii", 0, 16, 32)
    assert body.count(offsets) == 1
    lies = raw.data(header, body.replace(offsets, struct.pack("<iii", 0, 16, 200_000)))

    with node_that_sends(raw.schema_message(GET_SCHEMA), lies) as client:
        for read in (client.get_many, lambda ids: list(client.get_batches(ids))):
            with pytest.raises(NotReachable):
                read(["a", "b"])


WRONG = {
    "a row that was not asked for": rows((0, 0, b"x", None), (2, 0, b"y", None)),
    "a row below the first": rows((-1, 0, b"x", None)),
    "rows in another order": rows((1, 0, b"x", None), (0, 0, b"y", None)),
    "a piece that is missing": rows((0, 0, b"x", None), (0, 5, b"y", None), (1, 0, b"z", None)),
    "a content that is missing": rows((0, 0, b"x", None)),
    "neither content nor problem": rows((0, 0, None, None), (1, 0, b"y", None)),
    "content and problem": rows((0, 0, b"x", "no-such-handle"), (1, 0, b"y", None)),
    "no number": rows((None, 0, b"x", None), (1, 0, b"y", None)),
}


@pytest.mark.parametrize("batch", WRONG.values(), ids=WRONG)
def test_rows_that_make_no_answer_are_not_used(batch: pa.RecordBatch) -> None:
    """Each would have been some content, or an error of Python's."""
    with node_that_sends(*stream(batch)) as client, pytest.raises(NotReachable):
        client.get_many(["a", "b"])


def test_other_columns_than_asked_for_are_not_read() -> None:
    """Of contents and of tables; whoever reads a table hears it before the first batch."""
    queues = SCHEMAS["queues"]
    batch = pa.record_batch([pa.array([], field.type) for field in queues], schema=queues)
    with node_that_sends(*stream(batch, schema=queues)) as client:
        with pytest.raises(NotReachable):
            client.get_many(["a"])
        with pytest.raises(NotReachable):
            client.table(TableTicket(name="claims"))
        with pytest.raises(NotReachable):
            client.table(TableTicket(name="queues", columns=["queue"]))
        assert client.table(TableTicket(name="queues")).read_all().num_rows == 0


def test_a_table_with_a_text_that_is_none_is_not_read() -> None:
    """UTF-8 too is validated."""
    names = pa.schema([SCHEMAS["queues"].field("queue")])
    header, body = raw.batch_parts(pa.record_batch([pa.array(["abcdefgh"])], schema=names))
    lies = raw.data(header, body.replace(b"abcdefgh", b"abc\xff\xfefgh"))
    with node_that_sends(raw.schema_message(names), lies) as client:
        reader = client.table(TableTicket(name="queues", columns=["queue"]))
        with pytest.raises(NotReachable):
            reader.read_all()


@pytest.mark.parametrize(
    ("ends", "rows"),
    [([BATCH_ROWS_MAX + 1], BATCH_ROWS_MAX + 1), ([5, 2], 7), ([3], 4), ([-1, 4], 4), ([0, 4], 4)],
    ids=["more rows than may come", "runs that go back", "rows without a run", "a run before the first", "no row"],
)
def test_runs_that_are_none_are_not_read(ends: list[int], rows: int) -> None:
    """Made rows again, a few bytes may be gigabytes."""
    wanted = TableTicket(name="flowfiles", columns=["queue"], runs=True)
    schema = schema_sent("flowfiles", ["queue"], runs=True)
    sound = [10 * (at + 1) for at in range(len(ends))]
    names = pa.array(["in"] * len(ends))
    column = pa.RunEndEncodedArray.from_arrays(pa.array(sound, pa.int32()), names)
    header, body = raw.batch_parts(pa.record_batch([column], schema=schema))
    lies = body.replace(struct.pack(f"<{len(ends)}i", *sound), struct.pack(f"<{len(ends)}i", *ends))
    length = struct.pack("<q", sound[-1])
    assert (body.count(struct.pack(f"<{len(ends)}i", *sound)), length in header) == (1, True)

    with node_that_sends(
        raw.schema_message(schema), raw.data(header.replace(length, struct.pack("<q", rows)), lies)
    ) as client:
        reader = client.table(wanted)
        with pytest.raises(NotReachable):
            reader.read_all()


def test_answers_that_are_no_documents_are_not_used() -> None:
    """Of an action, and of a put."""
    with node_that_sends(raw.field(1, b'{"node": 7')) as client:
        with pytest.raises(NotReachable):
            client.act(ABOUT, Nothing())
        with pytest.raises(NotReachable):
            list(client.put_many([[b"x"]]))

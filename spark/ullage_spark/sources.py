"""Contents that are not in Spark, on their way into a fleet: files that executors see, or whatever a program opens."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from ullage.streams import PIECE_BYTES, AnyContent, pieces_of
from ullage.wire.schemas import ATTRIBUTES, PUT_ATTRIBUTES, PUT_CONTENT, PUT_CONTINUES
from ullage_spark.opener import pickled

SCHEMA: Final = "content binary, attributes map<string,string>, continues boolean"
TARGET: Final = pa.schema([(PUT_CONTENT, pa.binary()), (PUT_ATTRIBUTES, ATTRIBUTES), (PUT_CONTINUES, pa.bool_())])

BATCH_BYTES: Final = 4 << 20
"""What a task holds of contents before it hands them on, beside one piece of up to a MiB."""

BATCH_ROWS: Final = 10_000
"""The same in rows: of empty contents any number would fit."""

Open = Callable[[Mapping[str, Any]], AnyContent]
"""The content of a row: bytes, a file opened with `rb`, which is closed at its end, or pieces."""

Piece = tuple[bytes, Any, bool]


def contents_from(df: DataFrame, open: Open) -> DataFrame:
    """What `open` opens for each row, for `write.format("ullage")`: in pieces, so that a content may be of any size.

    `open(row)` runs in the tasks; a row is a dictionary by column. A column `attributes` goes along. Do not shuffle the
    rows of the result: a content is several, which follow one another.
    """
    made = pickled(open)
    return df.mapInArrow(lambda batches: _batches(made, batches), SCHEMA)


def _batches(made: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import cloudpickle  # noqa: PLC0415 - tasks need it without this

    open = cloudpickle.loads(made)
    rows: list[Piece] = []
    size = 0
    for batch in batches:
        for row in batch.to_pylist(maps_as_pydicts="strict"):
            for piece in _pieces(open(row), row.get(PUT_ATTRIBUTES)):
                rows.append(piece)
                size += len(piece[0])
                if size >= BATCH_BYTES or len(rows) >= BATCH_ROWS:
                    yield _batch(rows)
                    rows, size = [], 0
    if rows:
        yield _batch(rows)


def _pieces(content: AnyContent, attributes: Any) -> Iterator[Piece]:
    """A row for each MiB, whatever pieces it comes in, such as lines or gigabytes; of an empty content one as well."""
    try:
        held: list[bytes] = []
        size = 0
        for part in _parts(content):
            if held and size + len(part) > PIECE_BYTES:
                yield b"".join(held), attributes, True
                held, size = [], 0
            held.append(part)
            size += len(part)
        yield b"".join(held), attributes, False
    finally:
        close = getattr(content, "close", None)
        if close is not None:
            close()


def _parts(content: AnyContent) -> Iterator[bytes]:
    """Its pieces, of which none is larger than a row."""
    for piece in pieces_of(content):
        for at in range(0, len(piece), PIECE_BYTES):
            yield piece[at : at + PIECE_BYTES]


def _batch(rows: list[Piece]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(list(column), field.type) for column, field in zip(columns, TARGET, strict=True)], schema=TARGET
    )

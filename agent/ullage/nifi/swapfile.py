"""A swap file: FlowFiles of a long queue, which are not in the checkpoint.

The format of org.apache.nifi.controller: `FileSystemSwapManager`, `swap/SchemaSwapSerializer` and `swap/SwapSchema`.
"""

import os
import re
import struct
from collections.abc import Iterator
from typing import Any, Final

from ullage.nifi.fields import INLINE, SchemaField, read_schema, reader, text
from ullage.nifi.flowfiles import Attributes, NiFiFlowFile, RecordFormat
from ullage.nifi.opened import open_regular
from ullage.nifi.pieces import PieceReader
from ullage.nifi.trouble import Unparsable

MAGIC: Final = b"SWAP"
WRITER: Final = "Schema Swap Serialization"
SUMMARY: Final = "Swap Summary"
FLOWFILES: Final = "FlowFiles"

SWAP_NAME: Final = re.compile(r"\d+-.+\.swap")


def read_swap_file(path: str, *, attributes: Attributes) -> Iterator[NiFiFlowFile]:
    """All its FlowFiles. TornFile or Unparsable when it can't be read further; FileNotFoundError, OSError."""
    descriptor = open_regular(path)
    try:
        pieces = PieceReader(descriptor, os.fstat(descriptor).st_size)
        form, count = pieces.take(lambda data, at: _header(data, at, attributes=attributes))
        for _ in range(count):
            yield pieces.take(form.flowfile)
    finally:
        os.close(descriptor)


def read_form(data: bytes, at: int) -> tuple[tuple[SchemaField, ...], int]:
    """The fields of the summary and of the FlowFiles, and where the summary's values begin."""
    if len(data) < at + len(MAGIC):
        raise IndexError
    if data[at : at + len(MAGIC)] != MAGIC:
        raise Unparsable("another beginning than a swap file: it is encrypted, or of a NiFi before 1.1")
    writer, at = text(data, at + len(MAGIC))
    if writer != WRITER:
        raise Unparsable(f"the name {writer[:80]!r} where a swap file names its format")
    fields, at = read_schema(data, at)
    if [field.name for field in fields] != [SUMMARY, FLOWFILES] or fields[1].repetition != "ZERO_OR_MORE":
        raise Unparsable("a schema that is not of a swap file")
    if data[at] != INLINE:
        raise Unparsable("a summary in another file")
    return fields, at + 1


def _header(data: bytes, at: int, *, attributes: Attributes) -> tuple[tuple[RecordFormat, int], int]:
    """What reads its FlowFiles, and how many there are."""
    fields, at = read_form(data, at)
    values: dict[str, Any] = {}
    at = reader((fields[0],), frozenset({"Queue Identifier"}))(data, at, values)
    (count,) = struct.unpack_from(">i", data, at)
    queue = values.get("Queue Identifier")
    if count < 0 or not isinstance(queue, str):
        raise Unparsable("a negative number of FlowFiles, or no queue")
    return (RecordFormat(fields[1].fields, attributes=attributes, queue=queue), count), at + 4

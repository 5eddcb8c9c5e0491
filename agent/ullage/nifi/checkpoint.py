"""The checkpoint of a FlowFile repository: all FlowFiles as they were at one transaction.

The format of org.apache.nifi.wali.HashMapSnapshot. It has no checksum and no end mark: what is torn ends too early.
"""

import struct
from typing import Final

from ullage.nifi.fields import text
from ullage.nifi.flowfiles import Attributes, FlowFileMap, RecordFormat, check_writer
from ullage.nifi.pieces import PieceReader
from ullage.nifi.trouble import NotSurveyable, TornFile, Unparsable

WRITER: Final = "org.apache.nifi.wali.HashMapSnapshot"
VERSION: Final = 1

NUMBERS: Final = struct.Struct(">iqi")


def read_checkpoint(pieces: PieceReader, into: FlowFileMap, *, attributes: Attributes) -> int:
    """Put all that can be read into a map; returns the last transaction that is in it.

    TornFile or Unparsable: up to there it is read. NotSurveyable.
    """
    if pieces.is_at_end:  # NiFi takes an empty one for none
        return -1
    transaction, count, form = pieces.take(lambda data, at: _header(data, at, attributes=attributes))
    into.formats.append(form)
    for _ in range(count):
        update = pieces.take(form.inline)
        if update.flowfile is not None:  # NiFi passes over others as well
            into.flowfiles[update.id] = update.flowfile
    for _ in range(pieces.take(_number)):
        into.add_swap(pieces.take(text))
    return transaction


def checkpoint_transaction(pieces: PieceReader) -> int:
    """The last transaction that is in it, as the header says."""
    if pieces.is_at_end:
        return -1
    transaction, _, _ = pieces.take(lambda data, at: _header(data, at, attributes=False))
    return transaction


def read_end(error: Exception) -> str:
    """What kept a file from being read to its end."""
    return str(error) if isinstance(error, TornFile) else f"it has {error}"


def _header(data: bytes, at: int, *, attributes: Attributes) -> tuple[tuple[int, int, RecordFormat], int]:
    writer, at = text(data, at)
    if writer != WRITER:
        raise Unparsable(f"the name {writer[:80]!r} where a checkpoint names its writer")
    version, at = _number(data, at)
    if version != VERSION:
        raise NotSurveyable(f"the checkpoint is of version {version}: read is version {VERSION}")
    serde, at = text(data, at)
    serde_version, transaction, count = NUMBERS.unpack_from(data, at)
    at += NUMBERS.size
    check_writer(serde, serde_version)
    if count < 0:
        raise Unparsable("a negative number of records")
    form, at = RecordFormat.from_header(serde, serde_version, data, at, attributes=attributes)
    return (transaction, count, form), at


def _number(data: bytes, at: int) -> tuple[int, int]:
    number: int = struct.unpack_from(">i", data, at)[0]
    return number, at + 4

"""Files as NiFi's FlowFile repository has them, written here: for moments that no golden sample has, and for sizes.

The golden samples, which NiFi's own classes wrote, show that what is read from such files is right.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ullage.nifi import checkpoint, journal, swapfile
from ullage.nifi.flowfiles import SERDE

ONCE, MAYBE, MANY = "EXACTLY_ONE", "ZERO_OR_ONE", "ZERO_OR_MORE"


class Field(NamedTuple):
    name: str
    kind: str
    repetition: str = ONCE
    fields: "tuple[Field, ...]" = ()


CLAIM = Field(
    "Content Claim",
    "COMPLEX",
    MAYBE,
    (
        Field(
            "Resource Claim",
            "COMPLEX",
            ONCE,
            (
                *(Field(name, "STRING") for name in ("Container", "Section", "Identifier")),
                Field("Loss Tolerant", "BOOLEAN"),
            ),
        ),
        *(Field(name, "LONG") for name in ("Resource Claim Offset", "Content Claim Offset", "Content Claim Length")),
    ),
)
ATTRIBUTES = Field(
    "Attributes", "MAP", MAYBE, (Field("Attribute Name", "LONG_STRING"), Field("Attribute Value", "LONG_STRING"))
)
NUMBERS = (
    "Record ID",
    "Entry Date",
    "Lineage Start Date",
    "Lineage Start Index",
    "Queued Date",
    "Queued Date Index",
    "FlowFile Size",
)
FLOWFILE = (*(Field(name, "LONG") for name in NUMBERS), CLAIM, ATTRIBUTES)
CREATED = (Field("Action", "STRING"), *FLOWFILE, Field("Queue Identifier", "STRING"))
SWAPPED_IN = (*CREATED, Field("Swap Location", "STRING"))
GONE = (Field("Action", "STRING"), Field("Record ID", "LONG"))
SWAPPED_OUT = (*GONE, Field("Queue Identifier", "STRING"), Field("Swap Location", "STRING"))
RECORD = Field(
    "Repository Record Update",
    "UNION",
    ONCE,
    (
        Field("Create or Update", "COMPLEX", ONCE, CREATED),
        Field("Delete", "COMPLEX", ONCE, GONE),
        Field("Swap Out", "COMPLEX", ONCE, SWAPPED_OUT),
        Field("Swap In", "COMPLEX", ONCE, SWAPPED_IN),
    ),
)
RESOURCE_CLAIM = CLAIM.fields[0]
SWAP_SUMMARY = Field(
    "Swap Summary",
    "COMPLEX",
    ONCE,
    (
        Field("Queue Identifier", "STRING"),
        Field("FlowFile Count", "INT"),
        Field("FlowFile Size", "LONG"),
        Field("Max Record ID", "LONG"),
        Field("Resource Claims", "MAP", ONCE, (RESOURCE_CLAIM, Field("Claim Count", "INT"))),
    ),
)


class Written(NamedTuple):
    """One FlowFile, to be written. `file`: container, section and identifier with slashes between; empty: none."""

    id: int
    queue: str
    file: str = ""
    start: int = 0
    size: int = 0
    queued_millis: int = 0
    attributes: Mapping[str, str] = {}


def utf(value: str) -> bytes:
    """As java.io.DataOutput.writeUTF does; of characters that are the same in modified UTF-8."""
    data = value.encode()
    return struct.pack(">H", len(data)) + data


def long_utf(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">i", len(data)) + data


def schema(fields: tuple[Field, ...]) -> bytes:
    return struct.pack(">i", len(fields)) + b"".join(
        struct.pack(">i", 4)
        + utf("Field Name") + utf("String") + utf(field.name)
        + utf("Field Type") + utf("String") + utf(field.kind)
        + utf("Repetition") + utf("String") + utf(field.repetition)
        + utf("SubFields") + utf("SubFieldList") + schema(field.fields)
        for field in fields
    )  # fmt: skip


def flowfile(each: Written) -> bytes:
    """Its fields, as a swap file has them."""
    queued = each.queued_millis
    numbers = struct.pack(">7q", each.id, queued, queued, 0, queued, each.id, each.size)
    claim = b"\0"
    if each.file:
        claim = b"\1" + b"".join(map(utf, each.file.split("/"))) + b"\0" + struct.pack(">3q", each.start, 0, each.size)
    pairs = b"".join(long_utf(name) + long_utf(value) for name, value in each.attributes.items())
    return numbers + claim + b"\1" + struct.pack(">i", len(each.attributes)) + pairs


def created(each: Written, action: str = "CREATE") -> bytes:
    return b"\1" + utf("Create or Update") + utf(action) + flowfile(each) + utf(each.queue)


def deleted(number: int) -> bytes:
    return b"\1" + utf("Delete") + utf("DELETE") + struct.pack(">q", number)


def swapped_out(number: int, queue: str, location: str) -> bytes:
    return b"\1" + utf("Swap Out") + utf("SWAP_OUT") + struct.pack(">q", number) + utf(queue) + utf(location)


def overflowed(location: str) -> bytes:
    """Instead of a transaction's records: the path of the file that they are in."""
    return b"\x08" + utf(location)


def checkpoint_pieces(
    transaction: int, flowfiles: Iterable[Written], count: int, swaps: Sequence[str] = ()
) -> Iterator[bytes]:
    yield utf(checkpoint.WRITER) + struct.pack(">i", 1) + utf(SERDE) + struct.pack(">iqi", 2, transaction, count)
    yield schema((RECORD,))
    yield from map(created, flowfiles)
    yield struct.pack(">i", len(swaps))
    yield from map(utf, swaps)


def checkpoint_of(transaction: int, flowfiles: Sequence[Written], swaps: Sequence[str] = ()) -> bytes:
    return b"".join(checkpoint_pieces(transaction, flowfiles, len(flowfiles), swaps))


def journal_header() -> bytes:
    form = schema((RECORD,))
    return utf(journal.WRITER) + struct.pack(">i", 1) + utf(SERDE) + struct.pack(">ii", 2, len(form)) + form


def transaction_of(number: int, records: bytes) -> bytes:
    return struct.pack(">Bqi", journal.TRANSACTION_FOLLOWS, number, len(records)) + records


def swap_file_of(queue: str, flowfiles: Iterable[Written]) -> bytes:
    swapped = list(flowfiles)
    records = [flowfile(each) for each in swapped]
    files = Counter(each.file for each in swapped if each.file)
    form = schema((SWAP_SUMMARY, Field("FlowFiles", "COMPLEX", MANY, FLOWFILE)))
    summary = b"\1" + utf(queue) + struct.pack(">iqqi", len(records), 0, 0, len(files))
    for file, number in files.items():
        summary += b"".join(map(utf, file.split("/"))) + b"\0" + struct.pack(">i", number)
    count = struct.pack(">i", len(records))
    return b"".join((swapfile.MAGIC, utf(swapfile.WRITER), form, summary, count, *records))

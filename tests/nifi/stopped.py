"""A small NiFi that has stopped, with every kind of dead byte, in real files; and what it had, to compare with.

Its events are written here as `EventIdFirstSchemaRecordWriter` writes them; those of golden_events are NiFi's own.
"""

import os
import random
import struct
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path

from tests.nifi.written import (
    MANY,
    MAYBE,
    ONCE,
    Field,
    Written,
    checkpoint_of,
    created,
    deleted,
    journal_header,
    long_utf,
    schema,
    swap_file_of,
    swapped_out,
    transaction_of,
    utf,
)
from ullage.nifi.events import WRITER
from ullage.nifi.home import NiFiHome

QUEUE = "11111111-2222-3333-4444-555555555555"
BLOCK = 4096
OLD_NS = 1_700_000_000_123_456_789
TRANSACTION = 40
CLOSED = b"\x7f\x7f"
SWAP = f"1700000000000-{QUEUE}-aaaa.swap"

MIXED, EMPTY, DEAD, LIVE, SHARED, NAMED = (
    *("default/1/1700000000000-1", "default/2/1700000000000-2", "second/3/1700000000000-3"),
    *("default/4/1700000000000-4", "second/5/1700000000000-5", "default/6/1700000000000-6"),
)
SIZES = {
    MIXED: 20 * BLOCK + 77,
    EMPTY: 10 * BLOCK,
    DEAD: 6 * BLOCK + 1,
    LIVE: 2 * BLOCK + 5,
    SHARED: 30 * BLOCK,
    NAMED: 16 * BLOCK,
}
FLOWFILES = (
    Written(1, QUEUE, MIXED, 3 * BLOCK + 100, 2 * BLOCK),
    Written(2, QUEUE, MIXED, 9 * BLOCK - 1, BLOCK + 2),
    Written(3, QUEUE, EMPTY, 2 * BLOCK + 50, 0),
    Written(4, QUEUE, LIVE, 0, 2 * BLOCK + 5),
    Written(5, QUEUE, SHARED, 4 * BLOCK, 4 * BLOCK),  # and a part of it, and a clone
    Written(6, QUEUE, SHARED, 5 * BLOCK + 7, 100),
    Written(7, QUEUE, SHARED, 4 * BLOCK, 4 * BLOCK),
    Written(8, QUEUE),
    Written(9, QUEUE, NAMED, 0, 10),
)
SWAPPED = (Written(20, QUEUE, SHARED, 12 * BLOCK, BLOCK // 2), Written(21, QUEUE, SHARED, 14 * BLOCK, 10))
NAMES = ((NAMED, 4 * BLOCK + 1, 3 * BLOCK), (DEAD, 100, 50), (LIVE, 0, 50))
"""What events name: file, first byte, bytes."""


def stopped_nifi(place: Path) -> NiFiHome:
    """Write it."""
    flowfiles = place / "flowfile_repository"
    for name in ("journals", "swap"):
        (flowfiles / name).mkdir(parents=True)
    (flowfiles / "checkpoint").write_bytes(checkpoint_of(TRANSACTION, FLOWFILES[:6]))
    journal = journal_header()
    records = b"".join(map(created, (*FLOWFILES[6:], Written(30, QUEUE, MIXED, 0, BLOCK))))
    journal += transaction_of(TRANSACTION + 1, records + b"".join(map(created, SWAPPED)))
    location = str(flowfiles / "swap" / SWAP)
    journal += transaction_of(TRANSACTION + 2, b"".join(swapped_out(each.id, QUEUE, location) for each in SWAPPED))
    journal += transaction_of(TRANSACTION + 3, deleted(30))
    (flowfiles / "journals" / f"{TRANSACTION + 1}.journal").write_bytes(journal + CLOSED)
    (flowfiles / "swap" / SWAP).write_bytes(swap_file_of(QUEUE, SWAPPED))
    home = NiFiHome(
        str(flowfiles),
        {"default": str(place / "content_repository"), "second": str(place / "content_second")},
        provenance=(str(place / "provenance_repository"),),
    )
    for number, (file, size) in enumerate(SIZES.items()):
        path = path_of(home, file)
        path.parent.mkdir(parents=True)
        path.write_bytes(random.Random(number).randbytes(size))
        os.utime(path, ns=(OLD_NS, OLD_NS))
    index = place / "provenance_repository" / "lucene-9-index-1"
    index.mkdir(parents=True)
    (index / "segments").write_bytes(b"index")
    (place / "provenance_repository" / "0.prov").write_bytes(event_file(NAMES))
    return home


def path_of(home: NiFiHome, file: str) -> Path:
    container, _, below = file.partition("/")
    return Path(home.containers[container]) / below


def contents(home: NiFiHome) -> dict[int, bytes]:
    """Of each FlowFile the digest of its content."""
    found = {}
    for each in (*FLOWFILES, *SWAPPED):
        data = b""
        if each.size:
            with path_of(home, each.file).open("rb") as file:
                file.seek(each.start)
                data = file.read(each.size)
            assert len(data) == each.size
        found[each.id] = sha256(data).digest()
    return found


def everything(*folders: str | Path) -> dict[str, tuple[int, bytes]]:
    """All files below, with their dates and bytes."""
    found = {}
    for folder in folders:
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                found[str(path)] = (path.stat().st_mtime_ns, sha256(path.read_bytes()).digest())
    return found


def of_nifi(home: NiFiHome) -> dict[str, tuple[int, bytes]]:
    """All that NiFi has: contents, FlowFiles and events, without what a reclaim notes down for itself."""
    found = everything(home.flowfiles, *home.containers.values(), *(home.provenance or ()))
    return {path: what for path, what in found.items() if "ullage-reclaim" not in path}


def allocated(home: NiFiHome) -> int:
    paths = [path for folder in home.containers.values() for path in Path(folder).rglob("*") if path.is_file()]
    return sum(path.stat().st_blocks * 512 for path in paths)


PLACE = (
    *(Field(f"Content Claim {name}", "STRING") for name in ("Container", "Section", "Identifier")),
    *(Field(f"Content Claim {name}", "LONG") for name in ("Offset", "Size")),
)
EITHER = (Field("No Value", "STRING"), Field("Explicit Value", "STRING"), Field("Lookup Value", "INT"))
ATTRIBUTE = Field("Attribute Name", "LONG_STRING")
EVENT = (
    *(Field(name, "INT") for name in ("Event Type", "Event Time", "FlowFile Entry Date", "Event Duration")),
    Field("Lineage Start Date", "INT"),
    Field("Component ID", "UNION", ONCE, EITHER),
    Field("Component Type", "UNION", ONCE, EITHER[1:]),
    Field("Event Details", "STRING", MAYBE),
    Field("Previous Attributes", "MAP", ONCE, (ATTRIBUTE, Field("Attribute Value", "LONG_STRING"))),
    Field("Updated Attributes", "MAP", ONCE, (ATTRIBUTE, Field("Attribute Value", "LONG_STRING", MAYBE))),
    Field(
        "Content Claim",
        "UNION",
        ONCE,
        (EITHER[0], Field("Unchanged", "STRING"), Field("Explicit Value", "COMPLEX", ONCE, PLACE)),
    ),
    Field("Previous Content Claim", "COMPLEX", MAYBE, PLACE),
    Field("Source Queue Identifier", "UNION", ONCE, EITHER),
    *(Field(name, "STRING", MANY) for name in ("Parent UUIDs", "Child UUIDs")),
)
HEADER = (Field("First Event ID", "LONG"), Field("Component Identifiers", "STRING", MANY))


def event_file(names: Iterable[tuple[str, int, int]], first: int = 0) -> bytes:
    """An event of each content that is named; as the one it has and the one it had, in turn."""
    parts = [utf(WRITER), struct.pack(">i", 1)]
    for form in (schema(EVENT), schema(HEADER)):
        parts += [struct.pack(">i", len(form)), form]
    parts.append(b"\1" + struct.pack(">qi", first, 1) + utf("component"))
    for number, (file, begin, size) in enumerate(names):
        body = event(file, begin, size, is_previous=bool(number % 2))
        parts.append(struct.pack(">ii", number, len(body)) + body)
    return b"".join(parts)


def event(file: str, begin: int, size: int, *, is_previous: bool) -> bytes:
    place = b"".join(map(utf, file.split("/"))) + struct.pack(">qq", begin, size)
    attributes = struct.pack(">i", 1) + long_utf("name") + long_utf("value")
    updated = struct.pack(">i", 2) + long_utf("gone") + b"\0" + long_utf("new") + b"\1" + long_utf("value")
    current = utf("Unchanged") + utf("Unchanged") if is_previous else utf("Explicit Value") + place
    return b"".join(
        (
            b"\1" + struct.pack(">5i", 4, 0, 0, 1, 0),
            utf("Lookup Value") + struct.pack(">i", 0) + utf("Explicit Value") + utf("Processor"),
            b"\1" + utf("details") + attributes + updated,
            current + (b"\1" + place if is_previous else b"\0"),
            utf("No Value") + utf("") + struct.pack(">ii", 0, 0),
        )
    )


def spans_of(names: Sequence[tuple[str, int, int]], file: str) -> list[tuple[int, int]]:
    return [(begin, begin + size) for named, begin, size in names if named == file]

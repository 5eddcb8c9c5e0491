"""Which contents NiFi's provenance events name: those may be looked at, downloaded and replayed.

The format of org.apache.nifi.provenance.EventIdFirstSchemaRecordWriter: event files, of which all but the newest are
compressed, a gzip member after the other. An event names its content, and the one that it had before.
"""

import gzip
import os
import struct
import zlib
from collections.abc import Container, Iterable, Iterator
from contextlib import closing
from typing import IO, Any, Final, cast

from ullage.nifi.fields import INLINE, OUT_OF_BYTES, Read, SchemaField, read_schema, reader, text
from ullage.nifi.opened import open_regular
from ullage.nifi.pieces import LONGEST_BYTES, StreamPieces
from ullage.nifi.spans import Span, merged
from ullage.nifi.trouble import Damages, NiFiDamage, TornFile, Unparsable

WRITER: Final = "EventIdFirstSchemaRecordWriter"
VERSION: Final = 1

ENDINGS: Final = (".prov", ".prov.gz")

CURRENT: Final = "Content Claim"
PREVIOUS: Final = "Previous Content Claim"
CONTAINER, SECTION, IDENTIFIER = (f"{CURRENT} {part}" for part in ("Container", "Section", "Identifier"))
OFFSET, SIZE = (f"{CURRENT} {part}" for part in ("Offset", "Size"))
PLACE: Final = {CONTAINER: "STRING", SECTION: "STRING", IDENTIFIER: "STRING", OFFSET: "LONG", SIZE: "LONG"}

PENDING_SPANS: Final = 256
"""Of one file, before those that touch become one: memory is that of what is named apart."""


def event_files(names: Iterable[str]) -> list[str]:
    """Those of a folder that NiFi reads: of one that it was compressing when it died, what it was made from."""
    found = {name for name in names if name.endswith(ENDINGS)}
    return sorted(name for name in found if name.removesuffix(".gz") not in found or not name.endswith(".gz"))


class NamedContents:
    """The spans of files that events name."""

    def __init__(self, files: Container[str]) -> None:
        """`files`: those that matter; of other ones nothing is kept."""
        self._damages = Damages()
        self.events = 0
        self._files = files
        self._spans: dict[str, list[Span]] = {}
        self._limits: dict[str, int] = {}

    @property
    def damages(self) -> list[NiFiDamage]:
        """Event files that could not be read, or not to their end."""
        return self._damages.all()

    def read(self, directories: Iterable[str]) -> None:
        """All event files of NiFi's provenance directories, newest included. One that is not there has none."""
        for directory in directories:
            try:
                names = event_files(os.listdir(directory))
            except FileNotFoundError:  # NiFi makes it at its first start
                continue
            except (OSError, ValueError) as error:
                self._damaged(directory, f"it can't be read: {error}")
                continue
            for name in names:
                self._file(os.path.join(directory, name))

    def of(self, file: str) -> list[Span]:
        """What events name of a file, in order and apart."""
        return merged(self._spans.get(file, ()))

    def _file(self, path: str) -> None:
        try:
            with (
                os.fdopen(open_regular(path), "rb") as raw,
                closing(_plain(raw, is_compressed=path.endswith(".gz"))) as opened,
            ):
                for values in _places(StreamPieces(opened)):
                    self._name(values)
        except TornFile:
            # NiFi died as it wrote the last event: NiFi can't read that one either.
            if path.endswith(".gz"):
                self._damaged(path, "it ends amid an event")
        except (OSError, EOFError, zlib.error, Unparsable) as error:
            self._damaged(path, f"not all its events can be read: {error}")

    def _name(self, values: dict[str, Any]) -> None:
        self.events += 1
        if IDENTIFIER not in values:
            return
        file = f"{values[CONTAINER]}/{values[SECTION]}/{values[IDENTIFIER]}"
        if file not in self._files:
            return
        begin, size = values[OFFSET], values[SIZE]
        spans = self._spans.setdefault(file, [])
        spans.append((max(begin, 0), max(begin, 0) + max(size, 0)))
        if len(spans) >= self._limits.get(file, PENDING_SPANS):
            spans[:] = merged(spans)
            self._limits[file] = 2 * len(spans) + PENDING_SPANS

    def _damaged(self, file: str, what: str) -> None:
        self._damages.add(NiFiDamage(file, what, loses_flowfiles=False))


def _plain(raw: IO[bytes], *, is_compressed: bool) -> IO[bytes]:
    return cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if is_compressed else raw


def _places(pieces: StreamPieces) -> Iterator[dict[str, Any]]:
    """Of each event the place of its content, and of the one before; empty where it has none."""
    if pieces.is_at_end:  # begun, and nothing written yet
        return
    readers = pieces.take(_header)
    while not pieces.is_at_end:
        body = pieces.take(_event)
        at = 1
        try:
            for is_claim, read in readers:
                values: dict[str, Any] = {}
                at = read(body, at, values)
                if is_claim:
                    yield values
        except OUT_OF_BYTES as error:
            raise Unparsable("an event that ends before its content is named") from error


def _event(data: bytes, at: int) -> tuple[bytes, int]:
    _, length = struct.unpack_from(">ii", data, at)
    if not 0 < length <= LONGEST_BYTES:
        raise Unparsable(f"an event of {length:,} bytes")
    begin, end = at + 8, at + 8 + length
    if end > len(data):
        raise IndexError
    if data[begin] != INLINE:
        raise Unparsable(f"an event that begins with the byte {data[begin]}")
    return data[begin:end], end


def _header(data: bytes, at: int) -> tuple[list[tuple[bool, Read]], int]:
    """What reads an event up to the contents that it names."""
    writer, at = text(data, at)
    if writer != WRITER:
        raise Unparsable(f"they are of the format {writer[:80]!r}: read is {WRITER}")
    (version,) = struct.unpack_from(">i", data, at)
    if version != VERSION:
        raise Unparsable(f"they are of version {version} of their format: read is version {VERSION}")
    fields, at = _stated_schema(data, at + 4)
    values, at = _stated_schema(data, at)
    if data[at] != INLINE:
        raise Unparsable("a header in another file")
    at = reader(values, frozenset())(data, at + 1, {})
    return _readers(fields), at


def _stated_schema(data: bytes, at: int) -> tuple[tuple[SchemaField, ...], int]:
    (length,) = struct.unpack_from(">i", data, at)
    fields, end = read_schema(data, at + 4)
    if end != at + 4 + length:
        raise Unparsable("a schema of another length than it states")
    return fields, end


def _readers(fields: tuple[SchemaField, ...]) -> list[tuple[bool, Read]]:
    wanted = frozenset((CONTAINER, SECTION, IDENTIFIER))
    names = [field.name for field in fields]
    if names.count(CURRENT) != 1 or names.count(PREVIOUS) != 1:
        raise Unparsable("a schema of events that name no contents")
    found: list[tuple[bool, Read]] = []
    passed: list[SchemaField] = []
    for field in fields[: max(names.index(CURRENT), names.index(PREVIOUS)) + 1]:
        if field.name not in (CURRENT, PREVIOUS):
            passed.append(field)
            continue
        if passed:
            found.append((False, reader(tuple(passed), frozenset())))
            passed = []
        _check_place(field)
        found.append((True, reader((field,), wanted)))
    return found


def _check_place(field: SchemaField) -> None:
    """Unparsable if this is not how NiFi states where a content lies."""
    place = field if field.name == PREVIOUS else next((each for each in field.fields if each.fields), field)
    if {each.name: each.kind for each in place.fields} != PLACE:
        raise Unparsable("a schema of events in which contents have no place")

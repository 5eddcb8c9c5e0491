"""FlowFiles as NiFi's FlowFile repository has them, and what its records say of them.

Of org.apache.nifi.controller.repository: `SchemaRepositoryRecordSerde` (versions 1 to 3) and `schema/*`.
"""

import enum
import struct
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from ullage.nifi.fields import EXTERNAL, INLINE, Read, SchemaField, read_schema, readable, reader, text
from ullage.nifi.trouble import NotSurveyable, Unparsable

SERDE: Final = "org.apache.nifi.controller.repository.SchemaRepositoryRecordSerde"
SERDE_VERSION_MAX: Final = 3

KINDS: Final = {
    "Action": "STRING",
    "Record ID": "LONG",
    "Entry Date": "LONG",
    "Lineage Start Date": "LONG",
    "Lineage Start Index": "LONG",
    "Queued Date": "LONG",
    "Queued Date Index": "LONG",
    "FlowFile Size": "LONG",
    "Container": "STRING",
    "Section": "STRING",
    "Identifier": "STRING",
    "Resource Claim Offset": "LONG",
    "Content Claim Offset": "LONG",
    "Queue Identifier": "STRING",
    "Swap Location": "STRING",
    "Original Swap Location": "STRING",
}
"""Of the fields that are used here: a schema in which one is of another kind is none of NiFi's."""

TEXTS: Final = frozenset(name for name, kind in KINDS.items() if kind == "STRING")

ATTRIBUTES: Final = "Attributes"
DETAILS: Final = ("Record ID", "Entry Date", "Lineage Start Date", "Lineage Start Index", "Queued Date Index")


class Kept(enum.Enum):
    """More than some attributes."""

    EVERYTHING = "all that a record says of a FlowFile, as `FlowFileDetails`"
    RECORD = "the record of a FlowFile that no swap file has, as it stands in its file, byte for byte"


Attributes = bool | frozenset[str] | Kept
"""Which of a FlowFile's attributes are kept: all, none, or those of these names; or everything, packed."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(dict[str, str]).decode


NUMBERS: Final = struct.Struct("<5q")


class FlowFileDetails(msgspec.Struct, frozen=True, gc=False):
    """What an import needs beyond what a survey does. `numbers`: NiFi's number of it, its entry date, and where it is
    among those of its lineage and of its queue, packed; there may be millions of them. `packed`: its attributes, which
    take a fifth of the memory so; None: they are no Unicode.
    """

    numbers: bytes
    packed: bytes | None

    @property
    def id(self) -> int:
        return self._number(0)

    @property
    def entry_millis(self) -> int:
        return self._number(1)

    @property
    def lineage_millis(self) -> int:
        return self._number(2)

    @property
    def lineage_index(self) -> int:
        return self._number(3)

    @property
    def queued_index(self) -> int:
        return self._number(4)

    def _number(self, which: int) -> int:
        number: int = NUMBERS.unpack(self.numbers)[which]
        return number

    def attributes(self) -> dict[str, str]:
        """All of them; none where they are no Unicode."""
        return {} if self.packed is None else _unpack(self.packed)


RECORD: Final = "\0record"
"""Among the values of a record: its bytes. No schema has a field of this name that is used here."""


class NiFiFlowFile(msgspec.Struct, frozen=True, gc=False):
    """A FlowFile that a queue holds.

    `file`: container, section and identifier of the resource claim in which its content lies, with slashes between;
    empty: it has none. `start`: of the content in that file, in bytes; `claim_start`: of what NiFi wrote there in one
    go, of which the content is all or a part. `attributes` and `record` only where they were asked for.
    """

    queue: str
    file: str
    start: int
    size: int
    queued_millis: int
    attributes: dict[str, str] | None = None
    claim_start: int = 0
    details: FlowFileDetails | None = None
    record: bytes = b""


class FlowFileUpdate(msgspec.Struct, frozen=True, gc=False):
    """One record of a journal. `swap` and `former`: names of swap files; `location`: of `swap`, as NiFi has it."""

    action: str
    id: int
    flowfile: NiFiFlowFile | None
    swap: str
    former: str
    location: str = ""


class FlowFileMap:
    """All FlowFiles that are not in swap files, by their number, and the names of the swap files.

    `locations`: where NiFi says that these are, whole paths. `formats`: of each file that was read.
    """

    def __init__(self) -> None:
        self.flowfiles: dict[int, NiFiFlowFile] = {}
        self.swaps: set[str] = set()
        self.locations: dict[str, str] = {}
        self.formats: list[RecordFormat] = []

    def add_swap(self, location: str) -> None:
        """By its whole path, which is another one where a copy of the repository is read."""
        name = base_name(location)
        self.swaps.add(name)
        self.locations[name] = location

    def apply(self, updates: Iterable[FlowFileUpdate]) -> None:
        """As `HashMapSnapshot.update` does."""
        for update in updates:
            action = update.action
            if action in ("SWAP_OUT", "SWAP_FILE_RENAMED"):
                self.swaps.discard(update.former)
                self.swaps.add(update.swap)
                self.locations[update.swap] = update.location
            elif action in ("SWAP_IN", "SWAP_FILE_DELETED"):
                self.swaps.discard(update.swap)
            if update.flowfile is not None:
                self.flowfiles[update.id] = update.flowfile
            else:
                self.flowfiles.pop(update.id, None)


class RecordFormat:
    """Reads the records of one file, as its header describes them. Strings that are the same are one object."""

    def __init__(self, fields: tuple[SchemaField, ...], *, attributes: Attributes, queue: str = "") -> None:
        """`queue`: whose records these are, where they do not say so themselves."""
        _check(fields)
        self.fields = fields
        self.header: tuple[str, int, bytes] | None = None
        """Where a header stated it: what wrote it, in which version, and the schema's bytes."""
        self._is_whole = attributes is Kept.RECORD
        wanted = TEXTS if attributes is False or self._is_whole else TEXTS | {ATTRIBUTES}
        self._read: Read = reader(fields, wanted)
        self._attributes = attributes
        self._queue = queue
        self._strings: dict[str, str] = {}
        self._files: dict[tuple[str, str, str], str] = {}

    @classmethod
    def from_header(
        cls, serde: str, version: int, data: bytes, at: int, *, attributes: Attributes
    ) -> tuple["RecordFormat", int]:
        """The format that a checkpoint or journal states at this position, and the position behind it.

        NotSurveyable if what wrote it encrypts, or is newer than what is known here.
        """
        check_writer(serde, version)
        fields, end = read_schema(data, at)
        found = cls(fields, attributes=attributes)
        found.header = (serde, version, data[at:end])
        return found, end

    def update(self, data: bytes, at: int) -> tuple[FlowFileUpdate | str, int]:
        """The record at this position, or the path of the file in which it and those after it were put, and what is
        behind.
        """
        sentinel = data[at]
        if sentinel == EXTERNAL:
            return text(data, at + 1)
        if sentinel != INLINE:
            raise Unparsable(f"no record begins with the byte {sentinel}")
        values: dict[str, Any] = {}
        end = self._read(data, at + 1, values)
        if self._is_whole:
            values[RECORD] = data[at:end]
        return self._update(values), end

    def inline(self, data: bytes, at: int) -> tuple[FlowFileUpdate, int]:
        """The same where nothing is put into other files."""
        found, at = self.update(data, at)
        if isinstance(found, str):
            raise Unparsable("a reference to another file where there are none")
        return found, at

    def flowfile(self, data: bytes, at: int) -> tuple[NiFiFlowFile, int]:
        """A FlowFile of a swap file, where records are neither marked nor named."""
        values: dict[str, Any] = {}
        at = self._read(data, at, values)
        try:
            return self._flowfile(values), at
        except KeyError as error:
            raise Unparsable(f"a FlowFile without {error}") from error

    def _update(self, values: dict[str, Any]) -> FlowFileUpdate:
        action = values.get("Action", "")
        location = values.get("Swap Location", "")
        swap = base_name(location)
        try:
            if action in ("CREATE", "UPDATE", "SWAP_IN"):
                return FlowFileUpdate(action, values["Record ID"], self._flowfile(values), swap, "")
            if action in ("DELETE", "CONTENTMISSING", "SWAP_OUT"):
                return FlowFileUpdate(action, values["Record ID"], None, swap, "", location)
        except KeyError as error:
            raise Unparsable(f"a record without {error}") from error
        if action in ("SWAP_FILE_DELETED", "SWAP_FILE_RENAMED"):
            former = base_name(values.get("Original Swap Location", ""))
            return FlowFileUpdate(action, -1, None, swap, former, location)
        raise Unparsable(f"a record of the unknown kind {action[:40]!r}")

    def _flowfile(self, values: dict[str, Any]) -> NiFiFlowFile:
        size, start, claim_start, file = values["FlowFile Size"], 0, 0, ""
        if "Identifier" in values:
            claim_start = start = values["Resource Claim Offset"]
            if values["Content Claim Offset"]:
                start += values["Content Claim Offset"]
            file = self._file((values["Container"], values["Section"], values["Identifier"]))
        if size < 0 or claim_start < 0 or start < 0:
            raise Unparsable("a FlowFile whose content has a negative size or place")
        return NiFiFlowFile(
            self._shared(values.get("Queue Identifier") or self._queue),
            file,
            start,
            size,
            values["Queued Date"],
            self._kept(values),
            claim_start,
            _details(values) if self._attributes is Kept.EVERYTHING else None,
            values.get(RECORD, b""),
        )

    def _kept(self, values: dict[str, Any]) -> dict[str, str] | None:
        wanted = self._attributes
        if wanted is False or isinstance(wanted, Kept):
            return None
        found: dict[str, str] = values.get(ATTRIBUTES, {})
        return found if wanted is True else {name: readable(found[name]) for name in wanted if name in found}

    def _file(self, parts: tuple[str, str, str]) -> str:
        known = self._files.get(parts)
        if known is None:
            if any(part in ("", ".", "..") or "/" in part or "\0" in part for part in parts):
                raise Unparsable("a resource claim whose name leads out of its folder")
            known = self._files[parts] = "/".join(parts)
        return known

    def _shared(self, string: str) -> str:
        return self._strings.setdefault(string, string)


def _details(values: dict[str, Any]) -> FlowFileDetails:
    try:
        packed = _pack(values.get(ATTRIBUTES, {}))
    except UnicodeEncodeError:
        packed = None
    try:
        return FlowFileDetails(NUMBERS.pack(*(values[name] for name in DETAILS)), packed)
    except struct.error as error:  # a damaged schema says that there are several
        raise Unparsable("a FlowFile of which a number is none") from error


def check_writer(serde: str, version: int) -> None:
    """NotSurveyable if FlowFiles written by this class, in this version, can't be read."""
    if "Encrypted" in serde:
        raise NotSurveyable(
            f"the FlowFile repository is encrypted ({serde.rpartition('.')[2]}): it can't be read without NiFi's key"
        )
    if serde != SERDE or not 0 < version <= SERDE_VERSION_MAX:
        raise NotSurveyable(
            f"the FlowFile repository is of the format {serde.rpartition('.')[2][:80]}, version {version}: read are "
            f"{SERDE.rpartition('.')[2]} up to version {SERDE_VERSION_MAX}, which NiFi 1.16 to 2.11 write"
        )


def base_name(location: str) -> str:
    """A swap file is named by its absolute path, which is another one where a copy of the repository is read."""
    return location.replace("\\", "/").rpartition("/")[2]


def _check(fields: tuple[SchemaField, ...]) -> None:
    for field in fields:
        kind = KINDS.get(field.name)
        if (kind is not None and field.kind != kind) or (field.name == ATTRIBUTES and field.kind != "MAP"):
            raise Unparsable(f"a schema in which {field.name!r} is of the type {field.kind[:40]!r}")
        if field.kind != "MAP":
            _check(field.fields)

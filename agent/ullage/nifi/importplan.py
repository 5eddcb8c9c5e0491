"""What of a NiFi can be brought into another system, in which order, and what is left out and why: nothing is written.

The order is NiFi's own, of org.apache.nifi.controller.queue.QueuePrioritizer: what the queue's prioritizers say, then
where the contents lie, then the number of a FlowFile. FlowFiles of swap files stand behind those in memory, a file
after the other, as NiFi swaps them in.
"""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple

import msgspec

from ullage.nifi.contents import ARCHIVE
from ullage.nifi.fields import readable
from ullage.nifi.flowfiles import Kept, NiFiFlowFile
from ullage.nifi.home import NiFiConnection, NiFiHome, connections_of
from ullage.nifi.moment import NiFiMoment
from ullage.nifi.trouble import NiFiDamage, hidden_contents, unreadable

NAME_MAX: Final = 255
"""Characters of a queue's name."""

BATCH_FLOWFILES: Final = 9_000
BATCH_RECORD_BYTES: Final = 5 << 20
"""Of records with their attributes, at the most, in one batch, unless one is larger."""

BATCH_CONTENT_BYTES: Final = 256 << 20
RECORD_BYTES: Final = 160
"""Of a record beside its attributes."""

UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
INTEGER: Final = re.compile(r"-?\d+", re.ASCII)
LONG_MAX: Final = (1 << 63) - 1

FIRST_IN: Final = "FirstInFirstOutPrioritizer"
OLDEST: Final = "OldestFlowFileFirstPrioritizer"
NEWEST: Final = "NewestFlowFileFirstPrioritizer"
BY_ATTRIBUTE: Final = "PriorityAttributePrioritizer"
PRIORITY: Final = "priority"
KNOWN: Final = frozenset({FIRST_IN, OLDEST, NEWEST, BY_ATTRIBUTE})

Refusal = Callable[[dict[str, str]], str]
"""Why a FlowFile with these attributes can't be taken; empty: it can."""


class LeftOut(msgspec.Struct, frozen=True, gc=False):
    """A FlowFile that is not brought over."""

    uuid: str
    filename: str
    queue: str
    why: str


class ImportQueue(msgspec.Struct, frozen=True):
    """A queue of NiFi's: what it is called there and here, and which rows are its own: from `first` to `end`."""

    identifier: str
    original: str
    name: str
    connection: NiFiConnection | None
    first: int
    end: int


class SharedContent(msgspec.Struct, gc=False):
    """Bytes of a file that several FlowFiles have, whole or in parts. `left`: FlowFiles that were not seen yet."""

    file: str
    start: int
    end: int
    left: int = 0


class ContentPlaces:
    """Where contents lie on the disk, and how long their files are."""

    def __init__(self, containers: Mapping[str, str]) -> None:
        self._containers = containers
        self._known: dict[str, tuple[str, int]] = {}
        self._why: dict[str, str] = {}

    def why_not(self, file: str) -> str:
        """Why a resource claim that was looked for can't be read, where it may well be there."""
        return self._why.get(file, "")

    def root_of(self, file: str) -> str:
        """The directory of its container."""
        return self._containers.get(file.partition("/")[0], "")

    def damages(self) -> Iterator[NiFiDamage]:
        """The containers that can't be read."""
        for path in self._containers.values():
            try:
                os.scandir(path).close()
            except (OSError, ValueError) as error:
                yield hidden_contents(path, error)

    def find(self, file: str) -> tuple[str, int]:
        """The path and the length of a resource claim; no bytes where it is not there."""
        known = self._known.get(file)
        if known is None:
            known = self._known[file] = self._look(file)
        return known

    def _look(self, file: str) -> tuple[str, int]:
        container, section, identifier = file.split("/")
        root = self._containers.get(container)
        for path in (
            ()
            if root is None
            else (
                os.path.join(root, section, identifier),
                os.path.join(root, section, ARCHIVE, identifier),
            )
        ):
            try:
                return path, os.stat(path).st_size
            except FileNotFoundError:  # looked for elsewhere
                continue
            except OSError as error:
                self._why[file] = unreadable(error)
            except ValueError:  # no name that a file can have
                continue
        return "", 0


class NiFiImportPlan(NamedTuple):
    """What is brought over. `rows`: all FlowFiles of a queue in their order, a queue after the other. `shared`: of each
    row whose content others have too, by its number. `stored`: bytes of contents, each once. `id`: of all this; another
    moment of NiFi has another one. `notes`: what is taken over in another way than NiFi has it.
    """

    id: bytes
    transaction: int
    rows: list[NiFiFlowFile]
    queues: list[ImportQueue]
    shared: dict[int, SharedContent]
    places: ContentPlaces
    size: int
    stored: int
    attribute_bytes: int
    left_out: list[LeftOut]
    notes: list[str]
    damages: list[NiFiDamage]

    def batches(self) -> Iterator[tuple[int, int]]:
        """The rows of each transaction: the same at each call."""
        first = records = contents = 0
        for number, row in enumerate(self.rows):
            packed = _packed(row)
            taken = RECORD_BYTES + len(packed) * (2 if b"alternate.identifier" in packed else 1)
            is_full = number - first >= BATCH_FLOWFILES or records + taken > BATCH_RECORD_BYTES
            if number > first and (is_full or contents + row.size > BATCH_CONTENT_BYTES):
                yield first, number
                first, records, contents = number, 0, 0
            records += taken
            contents += row.size
        if first < len(self.rows):
            yield first, len(self.rows)


def plan_import(home: NiFiHome, refusal: Refusal, reserved: str = "") -> NiFiImportPlan:
    """What there is at NiFi's last transaction. No queue gets a name that begins with `reserved`. NotSurveyable."""
    with closing(NiFiMoment(home.flowfiles, attributes=Kept.EVERYTHING)) as moment:
        moment.read()
        moment.read_swaps()
        moment.tell_missing()
        connections, damages = connections_of(home.flow)
        parts = [list(moment.in_memory()), *(flowfiles for _, flowfiles in moment.swapped())]
        transaction = moment.transaction
        damages += moment.damages
    del moment  # and all that it knows
    notes: list[str] = []
    sorted_rows, named = _in_order(parts, connections, reserved, notes)
    del parts
    places = ContentPlaces(home.containers)
    damages += places.damages()
    taken = _Taken(places, refusal, named)
    rows: list[NiFiFlowFile] = []
    queues = []
    for identifier, found in sorted_rows:
        first = len(rows)
        rows += filter(taken.is_taken, found)
        connection = connections.get(identifier)
        original = connection.name if connection else ""
        queues.append(ImportQueue(identifier, original, named[identifier], connection, first, len(rows)))
    notes += taken.notes()
    left_out = taken.left_out
    del taken  # which knows all uuids: the next step needs room
    sorted_rows.clear()
    shared, stored = _shared(rows)
    return NiFiImportPlan(
        id=_digest(rows, queues),
        transaction=transaction,
        rows=rows,
        queues=queues,
        shared=shared,
        places=places,
        size=sum(row.size for row in rows),
        stored=stored,
        attribute_bytes=sum(len(_packed(row)) for row in rows),
        left_out=left_out,
        notes=notes,
        damages=damages,
    )


def legal_names(queues: Mapping[str, str], reserved: str = "") -> dict[str, str]:
    """Of each queue, by its identifier, a name that no other one has, that is no longer than a name may be, and that
    does not begin with what is reserved.

    >>> legal_names({"a1": "in", "b2": "in", "c3": ""})
    {'a1': 'in (a1)', 'b2': 'in (b2)', 'c3': 'c3'}
    """
    plain = {
        identifier: "".join(c if c.isprintable() else "_" for c in name).strip() or identifier
        for identifier, name in queues.items()
    }
    if reserved:
        plain = {each: f"NiFi {name}" if name.startswith(reserved) else name for each, name in plain.items()}
    often = Counter(plain.values())
    made: dict[str, str] = {}
    for identifier, name in plain.items():
        if often[name] > 1 or len(name) > NAME_MAX or name in made.values():
            ending = f" ({identifier[: NAME_MAX - 3]})"
            name = name[: NAME_MAX - len(ending)] + ending if name != identifier else name[:NAME_MAX]  # noqa: PLW2901
        made[identifier] = name
    return made


class _Taken:
    """Looks at FlowFiles one by one, and remembers what is left out."""

    def __init__(self, places: ContentPlaces, refusal: Refusal, names: Mapping[str, str]) -> None:
        self.left_out: list[LeftOut] = []
        self._places = places
        self._refusal = refusal
        self._names = names
        self._uuids: set[bytes] = set()
        self._defaulted = 0

    def is_taken(self, flowfile: NiFiFlowFile) -> bool:
        assert flowfile.details is not None
        attributes = flowfile.details.attributes()
        uuid = attributes.get("uuid", "")
        why = self._why_not(flowfile, attributes, uuid)
        if why:
            name = readable(attributes.get("filename", ""))
            self.left_out.append(LeftOut(uuid, name, self._names[flowfile.queue], why))
            return False
        self._uuids.add(bytes.fromhex(uuid.replace("-", "")))
        self._defaulted += "filename" not in attributes or "path" not in attributes
        return True

    def notes(self) -> Iterator[str]:
        if self._defaulted:
            yield f"{self._defaulted:,} FlowFiles have no filename or no path in NiFi, and get their defaults here"

    def _why_not(self, flowfile: NiFiFlowFile, attributes: dict[str, str], uuid: str) -> str:
        details = flowfile.details
        assert details is not None
        if details.packed is None:
            return "an attribute is no Unicode text"
        if not UUID.fullmatch(uuid):
            return f"its uuid is {uuid[:60]!r}, and not written as NiFi writes one"
        if bytes.fromhex(uuid.replace("-", "")) in self._uuids:
            return "another FlowFile of this NiFi has its uuid"
        if details.entry_millis < 0 or details.lineage_millis < 0:
            return "its dates are before 1970"
        return self._refusal(attributes) or self._missing(flowfile)

    def _missing(self, flowfile: NiFiFlowFile) -> str:
        if not flowfile.size:
            return ""
        if not flowfile.file:
            return f"it has {flowfile.size:,} bytes, and no content"
        there = self._places.find(flowfile.file)[1] - flowfile.start
        if there >= flowfile.size:
            return ""
        if why := self._places.why_not(flowfile.file):
            return f"of its content in {flowfile.file}, {why}"
        return f"of its {flowfile.size:,} bytes in {flowfile.file} {max(0, there):,} are on the disk"


def _in_order(
    parts: Iterable[list[NiFiFlowFile]], connections: Mapping[str, NiFiConnection], reserved: str, notes: list[str]
) -> tuple[list[tuple[str, list[NiFiFlowFile]]], dict[str, str]]:
    """The FlowFiles of each queue as NiFi would hand them out, and what each queue is called here."""
    found: dict[str, list[list[NiFiFlowFile]]] = {}
    for part in parts:
        by_queue: dict[str, list[NiFiFlowFile]] = {}
        for flowfile in part:
            by_queue.setdefault(flowfile.queue, []).append(flowfile)
        for queue, flowfiles in by_queue.items():
            found.setdefault(queue, []).append(flowfiles)
    known = {queue: connections[queue].name if queue in connections else "" for queue in found}
    identifiers = sorted(found, key=lambda queue: (known[queue], queue))
    named = legal_names({queue: known[queue] for queue in identifiers}, reserved)
    for queue in identifiers:
        key = order_of(connections[queue].prioritizers if queue in connections else (), named[queue], notes)
        for flowfiles in found[queue]:
            flowfiles.sort(key=key)
        if queue not in connections and connections:
            notes.append(f"NiFi's flow has no queue {queue}: NiFi would drop its FlowFiles at its next start")
    return [(queue, [each for part in found[queue] for each in part]) for queue in identifiers], named


def order_of(prioritizers: Sequence[str], name: str, notes: list[str]) -> Callable[[NiFiFlowFile], Any]:
    """The key by which NiFi sorts a queue."""
    unknown = [each for each in prioritizers if each not in KNOWN]
    if unknown:
        notes.append(f"{name}: the order is without {', '.join(unknown)}, which is not one of NiFi's own")
    keys = [_KEYS[each] for each in prioritizers if each in KNOWN]
    places: dict[str, tuple[str, ...]] = {"": ("", "", "")}

    def key(flowfile: NiFiFlowFile) -> tuple[Any, ...]:
        details, file = flowfile.details, flowfile.file
        assert details is not None
        place = places.get(file)
        if place is None:
            container, section, identifier = file.split("/")
            place = places[file] = (identifier, container, section)
        return (*(of(flowfile) for of in keys), place, flowfile.claim_start, flowfile.start, details.id)

    return key


def _by_attribute(flowfile: NiFiFlowFile) -> tuple[int, int, bytes]:
    """Numbers, then words, then nothing; of two that are the same number the text counts, as Java compares it."""
    assert flowfile.details is not None
    value = flowfile.details.attributes().get(PRIORITY)
    if value is None:
        return 2, 0, b""
    text = value.encode("utf-16-be", "surrogatepass")
    if INTEGER.fullmatch(value.strip()):
        number = int(value.strip()) if len(value) <= 40 else LONG_MAX + 1
        if -LONG_MAX - 1 <= number <= LONG_MAX:
            return 0, number, text
    return 1, 0, text


def _queued(flowfile: NiFiFlowFile) -> tuple[int, int]:
    assert flowfile.details is not None
    return flowfile.queued_millis, flowfile.details.queued_index


def _oldest(flowfile: NiFiFlowFile) -> tuple[int, int]:
    assert flowfile.details is not None
    return flowfile.details.lineage_millis, flowfile.details.lineage_index


def _newest(flowfile: NiFiFlowFile) -> tuple[int, int]:
    millis, index = _oldest(flowfile)
    return -millis, -index


_KEYS: Final[dict[str, Callable[[NiFiFlowFile], Any]]] = {
    FIRST_IN: _queued,
    OLDEST: _oldest,
    NEWEST: _newest,
    BY_ATTRIBUTE: _by_attribute,
}


def _shared(rows: Sequence[NiFiFlowFile]) -> tuple[dict[int, SharedContent], int]:
    """Rows whose bytes others have too, wholly or in part, and how many bytes there are in all, each counted once."""
    shared: dict[int, SharedContent] = {}
    stored = 0
    numbers = [number for number, row in enumerate(rows) if row.size]
    numbers.sort(key=lambda number: (rows[number].file, rows[number].start))
    at = 0
    while at < len(numbers):
        row = rows[numbers[at]]
        end, behind = row.start + row.size, at + 1
        while behind < len(numbers):
            other = rows[numbers[behind]]
            if other.file != row.file or other.start >= end:
                break
            end = max(end, other.start + other.size)
            behind += 1
        if behind > at + 1:
            content = SharedContent(row.file, row.start, end, behind - at)
            shared.update(dict.fromkeys(numbers[at:behind], content))
        stored += end - row.start
        at = behind
    return shared, stored


def _packed(row: NiFiFlowFile) -> bytes:
    assert row.details is not None
    return row.details.packed or b""


def _digest(rows: Iterable[NiFiFlowFile], queues: Iterable[ImportQueue]) -> bytes:
    """Of everything that is brought over, and where to: which import this is."""
    digest = hashlib.blake2b(digest_size=16)
    for queue in queues:
        digest.update(msgspec.json.encode((queue.identifier, queue.name, queue.first, queue.end)))
    for row in rows:
        digest.update(b"%d\0%b\0%d\0%d\0" % (row.queued_millis, row.file.encode(), row.start, row.size))
        digest.update(_packed(row))
    return digest.digest()

"""Documents of a list, each made when it is asked for, and what they take as an answer.

What stands packed in memory takes up to six times as much as JSON, and twenty times as much as Python's objects. Who
answers somebody else makes room for the one, and never has the other of all rows at a time.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

from ullage.engine import documents
from ullage.engine.model import UUID_BYTES, FlowFileRecord
from ullage.engine.provenance.events import ProvenanceEvent
from ullage.engine.updates import attribute_count
from ullage.wire.provenance import Event
from ullage.wire.queues import FlowFile

D = TypeVar("D")

ROW_BYTES: Final = 1_000
"""JSON of a row beside its attributes, relatives and texts: names of fields, numbers, ids."""

UUID_JSON_BYTES: Final = 39
CONTROL_JSON_BYTES: Final = 6
QUOTED: Final = b'"\\'
CONTROLS: Final = bytes(range(32))


class LazyRows(Generic[D]):
    """Some rows. `answer_bytes` is what they take as JSON, at most."""

    def __init__(self, records: Sequence[Any], document: Callable[[Any], D], bytes_of: Callable[[Any], int]) -> None:
        self._records = records
        self._document = document
        self._sizes = list(map(bytes_of, records))
        self.answer_bytes = sum(self._sizes)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._records)

    def __iter__(self) -> Iterator[D]:
        return map(self._document, self._records)

    def sized(self) -> Iterator[tuple[D, int]]:
        """Each with what it takes as JSON, at most."""
        return zip(self, self._sizes, strict=True)


def flow_file_rows(records: Sequence[FlowFileRecord]) -> LazyRows[FlowFile]:
    """FlowFiles as they are."""
    return LazyRows(records, documents.flow_file, record_answer_bytes)


def event_rows(events: Sequence[ProvenanceEvent]) -> LazyRows[Event]:
    """Events."""
    return LazyRows(events, documents.event, _event_answer_bytes)


def record_answer_bytes(record: FlowFileRecord) -> int:
    """What a FlowFile or handle takes as JSON, at most."""
    return ROW_BYTES + attributes_answer_bytes(record.attributes) + _uuids_answer_bytes(record.parents)


def _event_answer_bytes(event: ProvenanceEvent) -> int:
    texts = (event.component, event.component_type, event.relationship, event.details, event.transit_uri)
    return (
        ROW_BYTES
        + attributes_answer_bytes(event.attributes)
        + attributes_answer_bytes(event.attributes_before)
        + _uuids_answer_bytes(event.parents)
        + _uuids_answer_bytes(event.children)
        + CONTROL_JSON_BYTES * sum(map(len, (*texts, event.alternate_identifier, event.queue)))
    )


def attributes_answer_bytes(packed: bytes) -> int:
    """The same of packed attributes: four signs around each text where msgpack has one byte at least, and more for what
    JSON writes in another way.
    """
    quoted = len(packed) - len(packed.translate(None, QUOTED))
    controls = len(packed) - len(packed.translate(None, CONTROLS))
    return len(packed) + 4 * attribute_count(packed) + quoted + (CONTROL_JSON_BYTES - 1) * controls


def _uuids_answer_bytes(uuids: bytes) -> int:
    return len(uuids) // UUID_BYTES * UUID_JSON_BYTES

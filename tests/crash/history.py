"""Provenance as the crash tests hold it: every event exactly once, in order, whatever retention has removed."""

from collections.abc import Sequence
from itertools import pairwise

from tests.engine.provenance.history import history, read_events
from tests.support import event_store
from ullage.engine.engine import Engine
from ullage.engine.files import read_file
from ullage.engine.model import Operation
from ullage.engine.provenance.eventfiles import EventFiles
from ullage.engine.provenance.events import ProvenanceEvent, RecordedTransaction, count_events
from ullage.engine.provenance.manifest import EventFile
from ullage.engine.provenance.series import expand

EVENTS = b"events"
"""Their key in a state, among the uuids."""

FILES_KEPT = 500

Told_ = tuple[object, ...]

_read: dict[tuple[EventFile, bytes], list[ProvenanceEvent]] = {}
"""The events of files by their bytes: thousands of crash states share a few files, and decoding one costs as much as
all else of a recovery.
"""


class History:
    """Events by sequence. Two are equal if they end alike and agree wherever both still have their events."""

    def __init__(self, events: tuple[Told_, ...]) -> None:
        self.events = events

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, History):
            return NotImplemented
        shared = min(len(self.events), len(other.events))
        if shared == 0:
            return self.last == other.last or not (self.events or other.events)
        return self.events[-shared:] == other.events[-shared:]

    def __hash__(self) -> int:
        return hash(self.last)

    def __repr__(self) -> str:
        return repr(self.events)

    @property
    def last(self) -> object:
        """The sequence of the last event, 0 for none."""
        return self.events[-1][0] if self.events else 0


def history_of(repository: Engine) -> History:
    """All events there are; between what retention removed and the newest none is missing."""
    events = history(repository, _read_once)
    sequences = [event.sequence for event in events]
    assert all(one + 1 == other for one, other in pairwise(sequences)), f"events are missing or double: {sequences}"
    removed = event_store(repository).manifest.removed_through
    assert not sequences or sequences[0] == removed + 1, f"events {removed + 1} to {sequences[0] - 1} are lost"
    return History(tuple(map(_told, events)))


def _read_once(event_files: EventFiles, file: EventFile) -> list[ProvenanceEvent]:
    key = (file, read_file(event_files._files, event_files.path(file)))
    if key not in _read:
        if len(_read) >= FILES_KEPT:
            _read.clear()
        _read[key] = read_events(event_files, file)
    return _read[key]


def history_after(before: History, operations: Sequence[Operation]) -> History:
    """What a transaction of removals adds."""
    last = before.last
    assert isinstance(last, int)
    told = RecordedTransaction(0, 0, operations, count_events(operations))
    return History((*before.events, *map(_told, expand(told, last + 1, str))))


def _told(event: ProvenanceEvent) -> Told_:
    attributes = tuple(sorted(event.attribute_map().items()))
    return (
        event.sequence,
        event.type,
        event.uuid,
        event.details,
        event.parents,
        event.children,
        attributes,
        event.size,
    )

"""What the tests of provenance share: a repository's whole history, however it is stored at the moment."""

from collections.abc import Callable

from tests.support import committing, event_store, put_all
from ullage.engine.engine import Engine
from ullage.engine.model import EventType
from ullage.engine.provenance.eventfiles import EventFiles
from ullage.engine.provenance.events import ProvenanceEvent
from ullage.engine.provenance.manifest import EventFile

ReadEvents = Callable[[EventFiles, EventFile], list[ProvenanceEvent]]


def read_events(event_files: EventFiles, file: EventFile) -> list[ProvenanceEvent]:
    """The events of one file."""
    return [event for _, table in event_files.scan(file) for event in event_files.events(file, table)]


def history(repository: Engine, read: ReadEvents = read_events) -> list[ProvenanceEvent]:
    """All events there are, in order: those in event files, then those that only the log holds."""
    store = event_store(repository)
    manifest, newest = store.snapshot()
    events: list[ProvenanceEvent] = []
    for file in manifest.files:
        events += read(store.event_files, file)
    for numbered in newest:
        events += store.expand(numbered)
    return events


def types(events: list[ProvenanceEvent]) -> list[str]:
    """The types of events, in order."""
    return [event.type.name for event in events]


def told(event: ProvenanceEvent) -> tuple[object, ...]:
    """What an event says, with attributes as mappings: their packed order is nobody's business."""
    return (
        *(event.sequence, event.transaction, event.ordinal, event.millis, event.type, event.uuid),
        *(event.component, event.component_type, event.relationship, event.details, event.transit_uri),
        *(event.alternate_identifier, event.duration_millis, event.queue, event.entry_millis, event.lineage_millis),
        *(event.parents, event.children, event.content_before, event.content),
        *(tuple(sorted(each.items())) for each in (event.previous_attributes(), event.attribute_map())),
    )


def of_type(repository: Engine, type: EventType) -> list[ProvenanceEvent]:
    """The events of one type."""
    return [event for event in history(repository) if event.type == type]


def work(repository: Engine, count: int = 3) -> None:
    """So many FlowFiles in a queue, then one of them with another attribute in another queue."""
    for number in range(count):
        put_all(repository, "a", [b"x" * number], n=str(number))
    with committing(repository) as session:
        (flow_file,) = session.get_many("a", 1)
        session.transfer(session.put_attribute(flow_file, "seen", "yes"), "b", "seen")

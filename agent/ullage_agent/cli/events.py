"""Events of provenance as documents, from files or from a running service alike, and how they are shown."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ullage_agent.cli.output import print_table, size, tell
from ullage_agent.engine.model import Content
from ullage_agent.engine.provenance.events import ProvenanceEvent
from ullage_agent.engine.provenance.lineage import Lineage

if TYPE_CHECKING:
    from ullage_agent.client import documents

Document = Mapping[str, Any]

NESTED: Final = ("previous_attributes", "attributes", "content", "content_before")
MOMENTS: Final = ("time_millis", "entry_millis", "lineage_millis")


def document(event: ProvenanceEvent) -> Document:
    """An event for programs; times in milliseconds, sizes in bytes."""
    return {
        "sequence": event.sequence,
        "id": str(event.id),
        "type": event.type.name,
        "time_millis": event.millis,
        "flow_file": event.flow_file,
        "component": event.component,
        "component_type": event.component_type,
        "relationship": event.relationship,
        "details": event.details,
        "transit_uri": event.transit_uri,
        "alternate_identifier": event.alternate_identifier,
        "duration_millis": None if event.duration_millis < 0 else event.duration_millis,
        "queue": event.queue,
        "entry_millis": event.entry_millis,
        "lineage_millis": event.lineage_millis,
        "size": event.size,
        "parents": event.parent_ids,
        "children": event.child_ids,
        "previous_attributes": event.previous_attributes(),
        "attributes": event.attribute_map(),
        "content_before": _content_document(event.content_before),
        "content": _content_document(event.content),
    }


def served_document(event: "documents.Event") -> Document:
    """The same from a service's answer."""
    fields: dict[str, Any] = msgspec.to_builtins(event)
    before = fields.pop("previous_content")
    return fields | {"content_before": before}


def lineage_document(found: Lineage) -> Document:
    """A lineage for programs: events, and what led to what as pairs of sequences."""
    return {
        "events": [document(event) for event in found.events],
        "links": [list(link) for link in found.links],
        "unexpanded": [uuid.hex() for uuid in found.unexpanded],
        "is_cut": found.is_cut,
        "removed_through": found.removed_through,
    }


def filename(event: Document) -> str:
    """The file name at the event; without one, the FlowFile."""
    return str(event["attributes"].get("filename", event["flow_file"]))


def print_events(events: Sequence[Document]) -> None:
    """A table, a row an event."""
    print_table(
        (">event", "time", "type", "component", "FlowFile", "file name", ">size", "details"),
        [
            (
                event["sequence"],
                _moment(event["time_millis"]),
                event["type"],
                event["component_type"] or event["component"],
                event["flow_file"],
                filename(event),
                size(event["size"]),
                event["relationship"] or event["transit_uri"] or event["details"],
            )
            for event in events
        ],
    )


def print_event(event: Document, refusal: str) -> None:
    """Everything that one event says, and why it cannot be replayed; empty if it can."""
    rows = [
        (name.removesuffix("_millis"), _moment(value)) if name in MOMENTS else (name, value)
        for name, value in event.items()
        if name not in NESTED and value not in ("", [], None)
    ]
    print_table(("field", "value"), rows)
    before, now = event["previous_attributes"], event["attributes"]
    print_table(
        ("attribute", "before", "now"),
        [(name, before.get(name, ""), now.get(name, "")) for name in sorted({*before, *now})],
    )
    tell(f"content: {_place(event['content'])}; before: {_place(event['content_before'])}")
    tell(refusal or "can be replayed")


def _content_document(content: Content | None) -> Document | None:
    if content is None:
        return None
    claim = content.claim
    return {
        "resource": claim.resource if claim else None,
        "offset": claim.offset if claim else None,
        "length": claim.length if claim else None,
        "start": content.start,
        "size": content.size,
    }


def _place(content: Document | None) -> str:
    if content is None or content["resource"] is None:
        return "none"
    return f"{size(content['size'])} of resource claim {content['resource']} at {content['offset'] + content['start']}"


def _moment(millis: int) -> str:
    """In UTC, as every table shows time."""
    return datetime.fromtimestamp(millis / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")

"""`ullage provenance --url`: what a running service tells of the past, as the documents of files."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ullage_agent.cli.events import Document, served_document
from ullage_agent.engine.provenance.lineage import Way
from ullage_agent.engine.provenance.query import Query

if TYPE_CHECKING:
    from ullage_agent.client import Client


class Found(NamedTuple):
    """A page of events; `next` goes on, `lost` are the first sequence and the number of events without room."""

    events: Sequence[Document]
    next: int | None
    removed_through: int
    lost: Sequence[tuple[int, int]]


class Refusal(NamedTuple):
    """Why an event cannot be replayed: in a word, and in a sentence."""

    reason: str
    message: str


def served_search(client: "Client", query: Query) -> Found:
    """The page that the service finds."""
    page = client.provenance.search(_parameters(query))
    return Found([served_document(event) for event in page.events], page.next, page.removed_through, page.lost)


def served_event(client: "Client", event: str) -> tuple[Document, Refusal | None]:
    """One event, and why it cannot be replayed; None if it can."""
    found, answer = client.provenance.event(event), client.provenance.replayability(event)
    return served_document(found), None if answer.is_possible else Refusal(answer.reason, answer.message)


def served_lineage(client: "Client", flow_file: str, way: Way, depth: int, limit: int) -> Document:
    """The document of `ullage provenance lineage`."""
    found = client.provenance.lineage(flow_file, way, depth, limit)
    fields: dict[str, Any] = msgspec.to_builtins(found)
    return fields | {"events": [served_document(event) for event in found.events]}


def _parameters(query: Query) -> dict[str, str | Sequence[str]]:
    """What the query says, as parameters of the interface; what it does not say is left out."""
    texts = {
        "flow_file": query.flow_file,
        "component": query.component,
        "relationship": query.relationship,
        "filename": query.filename,
    }
    numbers = {
        "since_millis": query.since_millis,
        "until_millis": query.until_millis,
        "size_min": query.size_min,
        "size_max": query.size_max,
        "before": query.before,
    }
    lists = {
        "type": [each.name for each in query.types],
        "related": list(query.related),
        "attribute": [f"{name}={value}" for name, value in query.attributes],
    }
    always = {
        "after": str(query.after),
        "limit": str(query.limit),
        "newest_first": "true" if query.newest_first else "false",
    }
    return {
        **{name: text for name, text in texts.items() if text},
        **{name: str(number) for name, number in numbers.items() if number is not None},
        **{name: values for name, values in lists.items() if values},
        **always,
    }

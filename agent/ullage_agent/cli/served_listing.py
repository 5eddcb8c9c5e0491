"""`ullage ls --url`: what a running service tells of its queues, FlowFiles, resource claims and handles."""

import enum
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ullage_agent.client import Client
    from ullage_agent.client.documents import Head, Queue, Record, Resource

PAGE: Final = 1_000
"""What one answer may have; of a queue no more can be listed."""

Row = dict[str, Any]


class Kind(enum.StrEnum):
    """What can be listed."""

    QUEUES = "queues"
    FLOW_FILES = "flowfiles"
    RESOURCE_CLAIMS = "resource-claims"
    HANDLES = "handles"


def served_rows(client: "Client", kind: Kind, queue: str | None, limit: int) -> tuple[int | None, list[Row]]:
    """How many there are, None if that is not told, and at most so many rows; 0: all. Rows have the fields that a
    repository's own have, but for those that a service does not tell.
    """
    if kind == Kind.QUEUES:
        queues = client.queues.all()
        return len(queues), [_queue_row(each) for each in queues[: limit or None]]
    if kind == Kind.RESOURCE_CLAIMS:
        resources = list(client.resources())
        return len(resources), [_resource_row(each) for each in resources[: limit or None]]
    if kind == Kind.HANDLES:
        rows = [_handle_row(head) for head in islice(_handles(client), limit + 1 if limit else None)]
        return (None, rows[:limit]) if limit and len(rows) > limit else (len(rows), rows)
    chosen = [client.queues.find(queue)] if queue is not None else client.queues.all()
    found = _flow_files(client, chosen, min(limit or PAGE, PAGE))
    return sum(each.flow_files for each in chosen), list(islice(found, limit or None))


def _handles(client: "Client") -> "Iterator[Head]":
    after: str | None = ""
    while after is not None:
        page = client.handles(after, PAGE)
        yield from page.handles
        after = page.next


def _flow_files(client: "Client", queues: "Iterable[Queue]", each_max: int) -> Iterator[Row]:
    for queue in queues:
        for record in client.queues.flow_files(queue.name, each_max):
            yield _flow_file_row(queue.name, record)


def _queue_row(queue: "Queue") -> Row:
    return {
        "name": queue.name,
        "flow_files": queue.flow_files,
        "bytes": queue.size_bytes,
        "swapped": queue.swapped,
        "is_full": queue.is_full,
        "count_max": queue.count_max,
        "bytes_max": queue.bytes_max,
        "priority": queue.priority,
        "expiration_millis": queue.expiration_millis,
    }


def _flow_file_row(queue: str, record: "Record") -> Row:
    return {
        "uuid": record.id,
        "queue": queue,
        "size": record.size,
        "filename": record.attributes.get("filename", ""),
        "path": record.attributes.get("path", ""),
        "entry_millis": record.entry_millis,
        "lineage_millis": record.lineage_millis,
        "parents": record.parents,
        "attributes": record.attributes,
    }


def _handle_row(head: "Head") -> Row:
    return {
        "uuid": head.handle,
        "size": head.size,
        "filename": head.attributes.get("filename", ""),
        "state": "deleted" if head.deleted_millis else "live",
        "entry_millis": head.entry_millis,
        "expires_millis": head.expires_millis,
        "deleted_millis": head.deleted_millis,
        "attributes": head.attributes,
    }


def _resource_row(resource: "Resource") -> Row:
    state = (
        "moved" if resource.output else "archived" if resource.is_archived else "free" if resource.is_free else "in use"
    )
    return {
        "resource_claim": resource.resource,
        "container": resource.container,
        "file": "",
        "state": state,
        "length": resource.length,
        "live_bytes": resource.live_bytes,
        "dead_tail_bytes": resource.dead_tail_bytes,
        "claimants": resource.claimants,
        "is_sealed": resource.is_sealed,
    }

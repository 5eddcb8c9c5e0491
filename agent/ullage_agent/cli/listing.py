"""`ullage ls`: queues, FlowFiles, resource claims and handles."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any

import typer

from ullage_agent.cli.choice import Config, Json, Root, opened
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.output import print_json, print_table, say, size
from ullage_agent.cli.served_listing import Kind, Row, served_rows
from ullage_agent.cli.service import Ca, TokenFile, Url, chosen_service, connected
from ullage_agent.contract import Claims
from ullage_agent.engine.model import HANDLE_QUEUE, FlowFile
from ullage_agent.engine.reclaim.plan import is_truncation_candidate
from ullage_agent.engine.reclaim.survey import ResourceFigures
from ullage_agent.engine.repository import Repository


def ls(
    ctx: typer.Context,
    kind: Annotated[Kind, typer.Argument(help="What to list.")] = Kind.QUEUES,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="Only FlowFiles of this queue.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="At most so many; 0 lists all.")] = 50,
    root: Root = None,
    config: Config = None,
    url: Url = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    as_json: Json = False,
) -> None:
    """List what the repository holds."""
    if queue is not None and kind == Kind.QUEUES:
        kind = Kind.FLOW_FILES
    if queue is not None and kind != Kind.FLOW_FILES:
        raise typer.BadParameter(f"--queue goes with flowfiles, not with {kind}")
    service = chosen_service(ctx, root, config, url, token_file, ca)
    if service is not None:
        with connected(service) as client:
            total, shown = served_rows(client, kind, queue, limit)
    else:
        with opened(ctx, root, config) as repository, interrupts.allowed():
            total, rows = _rows(repository, kind, queue)
            shown = list(islice(rows, limit or None))
    if as_json:
        print_json({kind.replace("-", "_"): shown, "total": total})
        return
    columns = COLUMNS[kind]
    print_table(
        [title for title, _ in columns.values()],
        [[show(row[name]) for name, (_, show) in columns.items()] for row in shown],
    )
    if total is None:
        say(f"the first {len(shown):,}; there are more")
    elif len(shown) < total:
        say(f"{len(shown):,} of {total:,}" + ("; --limit 0 lists all" if service is None else ""))


def _rows(repository: Repository, kind: Kind, queue: str | None) -> tuple[int, Iterator[Row]]:
    """How many there are, and the rows."""
    if kind == Kind.QUEUES:
        queues = repository.queues.all()
        return len(queues), iter(_queue_rows(repository))
    if kind == Kind.RESOURCE_CLAIMS:
        resources = repository.reclamation.survey().resources
        ordered = sorted(resources, key=lambda figures: figures.resource)
        return len(ordered), (_resource_row(repository, figures) for figures in ordered)
    if kind == Kind.HANDLES:
        handles = [record for record in repository.ledger.flow_files() if record.queue == HANDLE_QUEUE]
        handles.sort(key=lambda record: (record.entry_millis, record.uuid))
        now = repository.clock.now_millis()
        return len(handles), (_handle_row(record, now) for record in handles)
    chosen = [repository.queues.find(queue)] if queue is not None else repository.queues.all()
    total = sum(found.figures().flow_files for found in chosen)
    return total, (
        _flow_file_row(found.name, record, repository.spec.claims)
        for found in chosen
        for record in _in_queue(repository, found.name)
    )


def _in_queue(repository: Repository, name: str) -> Iterator[FlowFile]:
    """Those in memory in their order, then the swapped out ones."""
    queue = repository.queues.find(name)
    yield from queue.records()
    for summary in queue.swap_summaries():
        yield from repository.swap_files.read(summary.name).records


def _queue_rows(repository: Repository) -> Iterable[Row]:
    for queue in repository.queues.all():
        figures, definition = queue.figures(), queue.definition
        yield {
            "name": queue.name,
            "flow_files": figures.flow_files,
            "bytes": figures.size_bytes,
            "swapped": figures.swapped,
            "is_full": queue.is_full,
            "count_max": definition.count_max,
            "bytes_max": definition.bytes_max,
            "priority": definition.priority,
            "expiration_millis": definition.expiration_millis,
        }


def _flow_file_row(queue: str, record: FlowFile, claims: Claims) -> Row:
    attributes = record.attribute_map()
    return {
        "uuid": record.id,
        "queue": queue,
        "size": record.size,
        "filename": attributes["filename"],
        "path": attributes["path"],
        "entry_millis": record.entry_millis,
        "lineage_millis": record.lineage_millis,
        "parents": record.parent_ids,
        "attributes": attributes,
        "claim": _claim(record),
        "truncation_candidate": record.claim is not None and is_truncation_candidate(record.claim, claims),
    }


def _handle_row(record: FlowFile, now_millis: int) -> Row:
    attributes = record.attribute_map()
    is_expired = 0 < record.expires_millis <= now_millis
    return {
        "uuid": record.id,
        "size": record.size,
        "filename": attributes["filename"],
        "state": "deleted" if record.deleted_millis else "expired" if is_expired else "live",
        "entry_millis": record.entry_millis,
        "expires_millis": record.expires_millis,
        "deleted_millis": record.deleted_millis,
        "attributes": attributes,
        "claim": _claim(record),
    }


def _claim(record: FlowFile) -> Row | None:
    if record.claim is None:
        return None
    return {"resource_claim": record.claim.resource, "offset": record.claim.offset + record.start}


def _resource_row(repository: Repository, figures: ResourceFigures) -> Row:
    entry = repository.ledger.entry(figures.resource)
    state = (
        "moved"
        if figures.output
        else "archived"
        if figures.archived_millis
        else "free"
        if figures.is_free
        else "in use"
    )
    return {
        "resource_claim": figures.resource,
        "container": figures.container,
        "file": ""
        if entry is None or figures.output
        else repository.content.container_of(entry.claim).current_path(entry.claim),
        "state": state,
        "length": figures.length,
        "live_bytes": figures.live_bytes,
        "dead_tail_bytes": figures.dead_tail_bytes,
        "claimants": figures.claimants,
        "is_sealed": figures.is_sealed,
    }


def _date(millis: int) -> str:
    """Local time for people."""
    if not millis:
        return ""
    return datetime.fromtimestamp(millis / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _number(count: int) -> str:
    return f"{count:,}"


def _limits(count: int) -> str:
    return f"{count:,}" if count else "none"


def _size_limit(count: int) -> str:
    return size(count) if count else "none"


def _yes(value: bool) -> str:
    return "yes" if value else ""


COLUMNS: dict[Kind, dict[str, tuple[str, Any]]] = {
    Kind.QUEUES: {
        "name": ("queue", str),
        "flow_files": (">FlowFiles", _number),
        "bytes": (">content", size),
        "swapped": (">swapped", _number),
        "is_full": ("full", _yes),
        "count_max": (">max count", _limits),
        "bytes_max": (">max size", _size_limit),
        "priority": ("priority", str),
    },
    Kind.FLOW_FILES: {
        "uuid": ("uuid", str),
        "queue": ("queue", str),
        "size": (">size", size),
        "entry_millis": ("entered", _date),
        "path": ("path", str),
        "filename": ("filename", str),
    },
    Kind.RESOURCE_CLAIMS: {
        "resource_claim": (">claim", str),
        "container": ("container", str),
        "state": ("state", str),
        "length": (">length", size),
        "live_bytes": (">live", size),
        "dead_tail_bytes": (">dead tail", size),
        "claimants": (">claimants", _number),
        "file": ("file", str),
    },
    Kind.HANDLES: {
        "uuid": ("uuid", str),
        "size": (">size", size),
        "state": ("state", str),
        "entry_millis": ("stored", _date),
        "expires_millis": ("expires", _date),
        "deleted_millis": ("deleted", _date),
        "filename": ("filename", str),
    },
}
"""For each kind: the fields that people see, their titles and how they are written. JSON has all fields."""

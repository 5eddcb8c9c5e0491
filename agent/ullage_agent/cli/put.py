"""`ullage put`: files, directory trees and stdin become FlowFiles or handles."""

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import IO, Annotated

import typer

from ullage_agent.cli.choice import Config, Json, Root, opened
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.output import Bar, bar
from ullage_agent.cli.served_put import ServedHandles, ServedQueue
from ullage_agent.cli.service import Ca, TokenFile, Url, chosen_service, connected
from ullage_agent.cli.sources import BATCH_BYTES, BATCH_FILES, Source, Stored, Target, as_text, gather, put_all, report
from ullage_agent.contract import Duration
from ullage_agent.engine.repository import Repository


def put(
    ctx: typer.Context,
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH...", help="Files, directory trees, or - for stdin.", show_default=False)
    ],
    queue: Annotated[str, typer.Option("--queue", "-q", help="The queue they go to; made on first use.")] = "inbox",
    handle: Annotated[bool, typer.Option("--handle", help="Store handles, which stand in no queue.")] = False,
    ttl: Annotated[str, typer.Option(help="When a handle expires: 30m, 12h; 0s is never.")] = "0s",
    attribute: Annotated[
        list[str] | None, typer.Option("--attribute", "-a", metavar="NAME=VALUE", help="For all of them; repeatable.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Put even though the queue is full.")] = False,
    root: Root = None,
    config: Config = None,
    url: Url = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    as_json: Json = False,
) -> None:
    """Store content: each file becomes a FlowFile of a queue, or a handle.

    Many small files share a commit, large ones stream. When this returns, everything is on disk.
    """
    common = parse_attributes(attribute or [])
    ttl_millis = parse_duration(ttl)
    if ttl_millis and not handle:
        raise typer.BadParameter("--ttl is for handles: add --handle")
    started = time.monotonic()
    target: Target
    service = chosen_service(ctx, root, config, url, token_file, ca)
    if service is not None:
        sources, skipped = gather(paths)
        with connected(service) as client, _progress(sources) as progress:
            target = (
                ServedHandles(client, ttl_millis, progress) if handle else ServedQueue(client, queue, force, progress)
            )
            put_all(target, sources, common, skipped)
    else:
        with opened(ctx, root, config) as repository:
            with interrupts.allowed():
                sources, skipped = gather(paths, repository.root)
            with _progress(sources) as progress:
                target = (
                    _Handles(repository, ttl_millis, progress) if handle else _Queue(repository, queue, force, progress)
                )
                put_all(target, sources, common, skipped)
    report(target, skipped, as_json, time.monotonic() - started)
    if skipped:
        raise typer.Exit(ExitCode.USAGE)


def _progress(sources: list[Source]) -> AbstractContextManager[Bar]:
    return bar("Putting", sum(source.size for source in sources) or None)


def parse_attributes(pairs: Iterable[str]) -> dict[str, str]:
    """`NAME=VALUE` pairs."""
    attributes = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--attribute")
        if name == "uuid":
            raise typer.BadParameter("uuid is given by the repository", param_hint="--attribute")
        attributes[name] = as_text(value)
    return attributes


def parse_duration(text: str) -> int:
    """Milliseconds."""
    try:
        return int(Duration.parse(text))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--ttl") from error


class _Queue(Target):
    """A queue: small files share commits."""

    def __init__(self, repository: Repository, queue: str, force: bool, progress: Bar) -> None:
        super().__init__(queue, progress)
        self.repository = repository
        self._queue = queue
        self._force = force
        self._batch: list[tuple[Source, dict[str, str], bytes]] = []
        self._bytes = 0
        self._room = self._batch_room()

    def add(self, source: Source, attributes: dict[str, str], data: bytes | IO[bytes]) -> None:
        if isinstance(data, bytes):
            self._batch.append((source, attributes, data))
            self._bytes += len(data)
            if len(self._batch) >= self._room or self._bytes >= BATCH_BYTES:
                self.flush()
            return
        self.flush()
        with self.repository.session() as session:
            if not self._force:
                session.require_room(self._queue)
            flow_file = session.import_from(session.create(attributes=attributes), data)
            session.transfer(flow_file, self._queue)
            session.commit()
        self._note([Stored(flow_file.id, source.path, flow_file.size)])

    def flush(self) -> None:
        if not self._batch:
            return
        with self.repository.session() as session:
            if not self._force:
                session.require_room(self._queue)
            records = session.ingest(
                self._queue,
                [data for _, _, data in self._batch],
                [attributes for _, attributes, _ in self._batch],
            )
            session.commit()
        batch, self._batch, self._bytes = self._batch, [], 0
        self._note(
            Stored(record.id, source.path, record.size) for record, (source, _, _) in zip(records, batch, strict=True)
        )

    def _note(self, stored: Iterable[Stored]) -> None:
        self.stored.extend(stored)
        self.commits += 1
        self._room = self._batch_room()
        interrupts.check()

    def _batch_room(self) -> int:
        """How many files the next commit may have: back-pressure is looked at once a commit."""
        queue = self.repository.queue(self._queue)
        limit = queue.definition.count_max
        if self._force or not limit:
            return BATCH_FILES
        return min(BATCH_FILES, max(1, limit - queue.figures().flow_files))


class _Handles(Target):
    """Handles: each has its own commit."""

    def __init__(self, repository: Repository, ttl_millis: int, progress: Bar) -> None:
        super().__init__(None, progress)
        self.repository = repository
        self._ttl_millis = ttl_millis

    def add(self, source: Source, attributes: dict[str, str], data: bytes | IO[bytes]) -> None:
        uuid = self.repository.handles.put(data, attributes, self._ttl_millis)
        self.stored.append(Stored(uuid, source.path, self.repository.handles.head(uuid).size))
        self.commits += 1
        interrupts.check()

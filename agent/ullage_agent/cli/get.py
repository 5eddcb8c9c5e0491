"""`ullage get`: content of a FlowFile or handle, or the next FlowFiles of a queue."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ullage_agent.cli.choice import Config, Json, Root, opened
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.output import bar
from ullage_agent.cli.saving import STDOUT, copy, free_path, report_taken, sync_directory, write_file
from ullage_agent.cli.served_get import get_from_queue, get_one
from ullage_agent.cli.service import Ca, TokenFile, Url, chosen_service, connected
from ullage_agent.engine.content.reader import ContentStream
from ullage_agent.engine.errors import FlowFileNotFound, SessionMisuse
from ullage_agent.engine.model import HANDLE_QUEUE, FlowFile, parse_uuid
from ullage_agent.engine.repository import Repository

BATCH_FLOW_FILES = 100
"""FlowFiles that one commit takes out of a queue, after all of them are safe in the directory."""


def get(
    ctx: typer.Context,
    uuid: Annotated[str | None, typer.Argument(help="Of a FlowFile or handle.", show_default=False)] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A file, - for stdout; with --queue a directory.", show_default=False),
    ] = None,
    range_: Annotated[
        str | None, typer.Option("--range", metavar="START:LENGTH", help="A part of it; without LENGTH to its end.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", help="Take the next FlowFiles of this queue.", show_default=False)
    ] = None,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="With --queue: how many; 0 takes all.")] = 1,
    root: Root = None,
    config: Config = None,
    url: Url = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    as_json: Json = False,
) -> None:
    """Read content. By UUID it goes to stdout and stays where it is; its checksum is verified on the way.

    With --queue, FlowFiles are written to a directory (default: the current one) and leave the queue once they are
    durable there.
    """
    if (uuid is None) == (queue is None):
        raise typer.BadParameter("say either a UUID or --queue NAME")
    if queue is not None and range_ is not None:
        raise typer.BadParameter("--range goes with a UUID, not with --queue")
    if uuid is not None and as_json:
        raise typer.BadParameter("--json goes with --queue: by UUID the output is the content itself")
    start, length = parse_range(range_)
    service = chosen_service(ctx, root, config, url, token_file, ca)
    if service is not None:
        with connected(service) as client:
            if uuid is not None:
                get_one(client, uuid, start, length, output or STDOUT)
            else:
                assert queue is not None
                get_from_queue(client, queue, count, output or Path(), as_json)
        return
    with opened(ctx, root, config) as repository:
        if uuid is not None:
            with interrupts.allowed():
                _get_one(repository, uuid, start, length, output or STDOUT)
        else:
            assert queue is not None
            _get_from_queue(repository, queue, count, output or Path(), as_json)


def parse_range(text: str | None) -> tuple[int, int | None]:
    """`START:LENGTH` or `START:` in bytes."""
    if text is None:
        return 0, None
    start, colon, length = text.partition(":")
    if not (colon and start.isdecimal() and (length.isdecimal() or not length)):
        raise typer.BadParameter(f"{text!r} is not START:LENGTH", param_hint="--range")
    return int(start), int(length) if length else None


def _get_one(repository: Repository, text: str, start: int, length: int | None, output: Path) -> None:
    with open_content(repository, text, start, length) as content, bar("Getting", content.size) as progress:
        if output == STDOUT:
            copy(content, sys.stdout.buffer, progress)
            sys.stdout.buffer.flush()
        else:
            write_file(output, content, progress)


def open_content(repository: Repository, text: str, start: int = 0, length: int | None = None) -> ContentStream:
    """The content of a FlowFile, also of a swapped out one, or of a handle."""
    try:
        uuid = parse_uuid(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a uuid", param_hint="UUID") from error
    record = repository.ledger.find(uuid)
    if record is not None and record.queue == HANDLE_QUEUE:
        return repository.handles.get(record.id, start, length)
    crcs: dict[tuple[int, int], bytes] = {}
    if record is None:
        record, crcs = _find_swapped(repository, uuid)
    length = record.size - start if length is None else length
    if not 0 <= start <= start + length <= record.size:
        raise SessionMisuse(f"range {start}:{length} lies outside FlowFile {record.id} of {record.size} bytes")
    claim = record.claim
    if claim is None:
        return ContentStream(iter(()), 0, lambda: None)
    known = crcs.get((claim.resource, claim.offset))
    # Nobody else has the repository open and this process changes nothing meanwhile, so nothing needs a pin.
    return ContentStream(repository.reader.stream(claim, record.start + start, length, known), length, lambda: None)


def _find_swapped(repository: Repository, uuid: bytes) -> tuple[FlowFile, dict[tuple[int, int], bytes]]:
    """A swapped out FlowFile, and the checksums that lie beside it."""
    for name in repository.ledger.swaps:
        content = repository.swap_files.read(name)
        for record in content.records:
            if record.uuid == uuid:
                return record, {(blocks.resource, blocks.offset): blocks.crcs for blocks in content.blocks}
    raise FlowFileNotFound("there is no FlowFile and no handle with this uuid")


def _get_from_queue(repository: Repository, name: str, count: int, directory: Path, as_json: bool) -> None:
    queue = repository.queues.find(name)
    waiting = queue.figures().flow_files
    wanted = min(count, waiting) if count else waiting
    directory.mkdir(parents=True, exist_ok=True)
    taken: list[dict[str, object]] = []
    with bar("Getting", wanted, is_bytes=False) as progress:
        while len(taken) < wanted:
            batch = _take_batch(repository, name, min(BATCH_FLOW_FILES, wanted - len(taken)), directory)
            if not batch:
                break
            taken.extend(batch)
            progress.advance(len(batch))
            interrupts.check()
    report_taken(name, directory, taken, queue.figures().flow_files, as_json)


def _take_batch(repository: Repository, name: str, count: int, directory: Path) -> list[dict[str, object]]:
    """Write the next FlowFiles to the directory, durably, then let them leave the queue."""
    written: list[Path] = []
    taken: list[dict[str, object]] = []
    with repository.session() as session:
        try:
            for record in session.get_many(name, count):
                path = free_path(directory, record.attribute_map(), record.id)
                with interrupts.allowed():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with session.read(record) as content, path.open("xb") as file:
                        written.append(path)
                        for piece in content:
                            file.write(piece)
                        file.flush()
                        os.fsync(file.fileno())
                taken.append(
                    {"uuid": record.id, "file": str(path), "size": record.size, "attributes": record.attribute_map()}
                )
                session.remove(record)
            for folder in sorted({path.parent for path in written}):
                sync_directory(folder)
        except BaseException:
            for path in written:
                path.unlink(missing_ok=True)
            raise
        session.commit()
    return taken

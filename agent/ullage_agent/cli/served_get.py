"""`ullage get --url`: content of a handle, or the next FlowFiles of a queue, from a running service."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ullage_agent.cli.output import bar, many
from ullage_agent.cli.saving import STDOUT, copy, free_path, report_taken, sync_directory, write_file

if TYPE_CHECKING:
    from ullage_agent.client import Client
    from ullage_agent.client.documents import Held

BATCH_FLOW_FILES: Final = 100
"""FlowFiles that one session takes out of a queue, after all of them are safe in the directory."""

VISIBILITY_SECONDS: Final = 60.0
HEARTBEAT_SECONDS: Final = 15.0
"""A session is extended as long as bytes come: of a client that vanished its FlowFiles are back within a minute."""


def get_one(client: "Client", handle: str, start: int, length: int | None, output: Path) -> None:
    """The content of a handle, to a file or stdout. A FlowFile of a queue can only be taken."""
    total = client.head(handle).size
    with bar("Getting", total - start if length is None else length) as progress:
        pieces = client.stream(handle, start, length)
        if output == STDOUT:
            copy(pieces, sys.stdout.buffer, progress)
            sys.stdout.buffer.flush()
        else:
            write_file(output, pieces, progress)


def get_from_queue(client: "Client", queue: str, count: int, directory: Path, as_json: bool) -> None:
    """FlowFiles leave the queue once they are durable in the directory."""
    waiting = client.queues.find(queue).flow_files
    wanted = min(count, waiting) if count else waiting
    directory.mkdir(parents=True, exist_ok=True)
    taken: list[dict[str, Any]] = []
    with bar("Getting", wanted, is_bytes=False) as progress:
        while len(taken) < wanted:
            batch = _take_batch(client, queue, min(BATCH_FLOW_FILES, wanted - len(taken)), directory)
            if not batch:
                break
            taken.extend(batch)
            progress.advance(len(batch))
    report_taken(queue, directory, taken, client.queues.find(queue).flow_files, as_json)


def _take_batch(client: "Client", queue: str, count: int, directory: Path) -> list[dict[str, Any]]:
    held = client.queues.poll(queue, count, VISIBILITY_SECONDS)
    written: list[Path] = []
    try:
        taken = _write_held(client, held, directory, written)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        client.queues.rollback(held.session)
        raise
    try:
        client.queues.commit(held.session)
    except Exception as error:
        # They may be all that is left, if only the answer was lost.
        error.add_note(f"{many(len(written), 'file')} stay in {directory}; the FlowFiles may be in their queue, too")
        raise
    return taken


def _write_held(client: "Client", held: "Held", directory: Path, written: list[Path]) -> list[dict[str, Any]]:
    taken = []
    alive = _Heartbeat(lambda: client.queues.extend(held.session, VISIBILITY_SECONDS))
    for record in held.flow_files:
        path = free_path(directory, record.attributes, record.id)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            written.append(path)
            for piece in alive.while_coming(client.queues.content(held.session, record.id)):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        taken.append({"uuid": record.id, "file": str(path), "size": record.size, "attributes": record.attributes})
    for folder in sorted({path.parent for path in written}):
        sync_directory(folder)
    return taken


class _Heartbeat:
    """Extends a session now and then."""

    def __init__(self, extend: Callable[[], None]) -> None:
        self._extend = extend
        self._last = time.monotonic()

    def while_coming(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            if time.monotonic() - self._last > HEARTBEAT_SECONDS:
                self._extend()
                self._last = time.monotonic()
            yield piece

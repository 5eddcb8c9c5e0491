"""What is got: written to a file as a whole or not at all, and durably where something is given up for it."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ullage_agent.cli.output import Bar, many, print_json, say, size

STDOUT = Path("-")

NAME_BYTES_MAX = 200
"""Longer names are replaced by the uuid: a filesystem's limit is 255, and a uuid may have to be added."""


def free_path(directory: Path, attributes: Mapping[str, str], id: str) -> Path:
    """Where a FlowFile goes by its attributes `path` and `filename`: below the directory, over no other file."""
    name = PurePosixPath(attributes.get("filename", "")).name
    if name in ("", ".", "..") or "\0" in name or len(name.encode()) > NAME_BYTES_MAX:
        name = id
    below = PurePosixPath(attributes.get("path", ""))
    if below.is_absolute() or ".." in below.parts or "\0" in str(below):
        below = PurePosixPath()
    path = directory / below / name
    return path.with_name(f"{name}.{id}") if os.path.lexists(path) else path


def write_file(path: Path, content: Iterable[bytes], progress: Bar) -> None:
    """The whole content or no file: it gets its name last."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            copy(content, file, progress)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def copy(pieces: Iterable[bytes], file: IO[bytes], progress: Bar) -> None:
    """All of it, in order."""
    for piece in pieces:
        file.write(piece)
        progress.advance(len(piece))


def sync_directory(path: Path) -> None:
    """Names in it are durable afterwards."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def report_taken(queue: str, directory: Path, taken: list[dict[str, Any]], left: int, as_json: bool) -> None:
    """What came out of a queue, and how much is left in it."""
    if as_json:
        print_json({"queue": queue, "directory": str(directory), "flow_files": taken, "left": left})
        return
    total = sum(item["size"] for item in taken)
    say(f"{many(len(taken), 'FlowFile')}, {size(total)}, from queue {queue} to {directory}; {left:,} are left")

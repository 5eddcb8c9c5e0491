"""The demo's input: real files, and their SHA-256."""

import contextlib
import hashlib
import os
import shutil
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from ullage.streams import PIECE_BYTES
from ullage_agent.cli.trees import Source, walk

if TYPE_CHECKING:
    from ullage import Session

MARKER = ".made-by-ullage-demo"

LARGE_BYTES = 50 << 10
"""From here on a file streams, and lies behind the small ones of its session: what `truncate` can give back alone."""

ENOUGH_FILES = 3_000
"""Some distributions ship a short library; the packages installed beside it then join in."""

FILES_MAX = 10_000

_unless_unreadable = contextlib.suppress(PermissionError, FileNotFoundError)  # listed before, gone or closed since

NOT_THE_LIBRARY = frozenset({"site-packages", "dist-packages"})


def library_files() -> list[Source]:
    """The running Python's standard library, several thousand files on most machines."""
    top = sysconfig.get_path("stdlib")
    skipped: list[str] = []
    sources = [
        source
        for source in walk(top, os.devnull, skipped)
        if NOT_THE_LIBRARY.isdisjoint(os.path.relpath(source.path, top).split(os.sep))
    ]
    if len(sources) < ENOUGH_FILES:
        sources.extend(walk(sysconfig.get_path("purelib"), os.devnull, skipped))
    return sources[:FILES_MAX]


def ingest(
    session: "Session", sources: Sequence[Source], queue: str, on_bytes: Callable[[int], None]
) -> dict[str, str]:
    """Put files into a queue as one transaction; uuid and SHA-256 of each, to be believed once this returns.

    Small files go first, so that they and the large ones behind them share resource claims. A file that vanished since
    it was listed, or is not for us to read, is left out.
    """
    small = [source for source in sources if source.size < LARGE_BYTES]
    read = [(source, data) for source in small for data in _read(source, on_bytes)]
    ids = session.ingest(queue, [data for _, data in read], [_attributes_of(source) for source, _ in read])
    found = {id: hashlib.sha256(data).hexdigest() for id, (_, data) in zip(ids, read, strict=True)}
    large = (source for source in sources if source.size >= LARGE_BYTES)
    for source in sorted(large, key=lambda source: source.size):
        with _unless_unreadable, open(source.path, "rb") as file:
            sha256 = hashlib.sha256()
            flow_file = session.create(attributes=_attributes_of(source))
            session.write(flow_file, _hashed(file, sha256, on_bytes))
            session.transfer(flow_file, queue)
            found[flow_file.id] = sha256.hexdigest()
    session.commit()
    return found


def _read(source: Source, on_bytes: Callable[[int], None]) -> Iterator[bytes]:
    """A small file, or nothing where it cannot be read."""
    with _unless_unreadable:
        data = Path(source.path).read_bytes()
        on_bytes(len(data))
        yield data


def _attributes_of(source: Source) -> dict[str, str]:
    """What routing looks at beside the file's names."""
    return source.attributes | {"suffix": os.path.splitext(source.path)[1]}


def _hashed(file: IO[bytes], sha256: "hashlib._Hash", on_bytes: Callable[[int], None]) -> Iterator[bytes]:
    """A file that is read once: by the repository, and on the way by SHA-256."""
    while piece := file.read(PIECE_BYTES):
        sha256.update(piece)
        on_bytes(len(piece))
        yield piece


def make_folder(directory: Path) -> Path:
    """A fresh folder. One that an earlier demo left is replaced, any other one is left alone."""
    folder = directory.absolute()
    if os.path.lexists(folder):
        if not (folder / MARKER).is_file():
            raise click.BadParameter(
                f"{directory} exists and was not made by the demo: name another with --dir", param_hint="--dir"
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARKER).touch()
    return folder

"""What `put` finds: files, and whole directory trees in a stable order."""

import os
import stat
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from ullage_agent.cli.failures import message_of
from ullage_agent.cli.filefacts import FileType, attributes_of, encoded_path

STDIN = "-"

SPECIAL: Final = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


class Source(NamedTuple):
    """Something to put: a file, stdin, or what else stands in a tree."""

    path: str
    size: int
    attributes: dict[str, str]
    type: FileType = FileType.FILE
    is_walked: bool = False
    """Whether it is what stood there when its tree was walked, and nothing that a link leads to."""


class WantedOfTree(NamedTuple):
    """What of a tree is wanted beside its files. `whole`: directories, and links as they are. `follows`: what links
    lead to, instead of the links.
    """

    whole: bool = False
    follows: bool = False


def gather(paths: Iterable[str], wanted: WantedOfTree, repository_root: str = "") -> tuple[list[Source], list[str]]:
    """All that is wanted below the paths, but for a repository's own files; and what was skipped, with the reason."""
    skipped: list[str] = []
    sources: list[Source] = []
    for path in paths:
        if path == STDIN:
            sources.append(Source(STDIN, 0, {}))
        elif os.path.isdir(path):
            sources.extend(walk(path, repository_root, skipped, wanted))
        else:
            try:
                sources.append(source_of(path, ""))
            except OSError as error:
                skipped.append(message_of(error))
    return sources, skipped


FILES_ALONE: Final = WantedOfTree()


def walk(top: str, repository_root: str, skipped: list[str], wanted: WantedOfTree = FILES_ALONE) -> Iterator[Source]:
    """A tree in a stable order: of each directory its files, by name, then what is below it, and itself at the end.

    Whoever takes them out in this order writes into a directory before it gets its time and its permissions.
    """
    own = _identity(repository_root) if repository_root else None
    folders = [_Folder(top, ".", _identity(top), skipped, wanted)]
    if own is not None and folders[0].id == own:
        skipped.append(f"{top}: the repository itself")
        return
    while folders:
        current = folders[-1]
        entry = next(current.entries, None)
        if entry is None:
            folders.pop()
            if wanted.whole:
                yield from _unless_gone(current.path, _parent(current.below), FileType.DIRECTORY, skipped)
            continue
        if current.is_folder(entry):
            id = _identity(entry.path)
            if id is not None and id == own:
                continue
            if id is not None and any(id == above.id for above in folders):
                skipped.append(f"{entry.path}: a link that leads to a directory above it")
                continue
            below = os.path.normpath(os.path.join(current.below, entry.name))
            folders.append(_Folder(entry.path, below, id, skipped, wanted))
        else:
            yield from _found(entry, current.below, wanted, skipped)


class _Folder:
    """A directory that is being walked. One that can't be listed has nothing in it, and is told."""

    def __init__(
        self, path: str, below: str, id: tuple[int, int] | None, skipped: list[str], wanted: WantedOfTree
    ) -> None:
        self.path = path
        self.below = below
        self.id = id
        self._follows = wanted.follows
        found: list[os.DirEntry[str]] = []
        try:
            with os.scandir(path) as entries:
                found = list(entries)
        except OSError as error:
            skipped.append(message_of(error))
        self.entries = iter(sorted(found, key=lambda entry: (self.is_folder(entry), entry.name)))

    def is_folder(self, entry: "os.DirEntry[str]") -> bool:
        """Whether it is walked into."""
        try:
            return entry.is_dir(follow_symlinks=self._follows)
        except OSError:  # a link that leads nowhere, or round in a circle: what reads it says so
            return False


def _identity(path: str) -> tuple[int, int] | None:
    """What tells a directory from any other, whatever path leads to it; None of one that can't be looked at.

    By its resolved path a tree of 600 nested directories took nine times as long: each step resolves all names above.
    """
    try:
        found = os.stat(path)
    except OSError:  # whoever lists it is told
        return None
    return found.st_dev, found.st_ino


def source_of(path: str, below: str, type: FileType = FileType.FILE, *, is_walked: bool = False) -> Source:
    """The file with the attributes that NiFi's GetFile gives it."""
    absolute = os.path.abspath(path)
    relative = "./" if below in ("", ".") else f"./{below}/"
    is_top = type is FileType.DIRECTORY and below == ""
    name = "." if is_top else os.path.basename(absolute)
    attributes = {
        "filename": name,
        "path": relative,
        "absolute.path": (absolute if is_top else os.path.dirname(absolute)) + "/",
        **encoded_path(os.path.normpath(os.path.join(relative, name))),
    }
    found = os.stat(path, follow_symlinks=type is not FileType.LINK)
    said = {key: as_text(value) for key, value in attributes.items()} | attributes_of(found, type)
    return Source(path, 0 if type is FileType.DIRECTORY else found.st_size, said, type, is_walked)


def as_text(name: str) -> str:
    """A name from the system as UTF-8: bytes that are none become replacement characters."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _found(entry: "os.DirEntry[str]", below: str, wanted: WantedOfTree, skipped: list[str]) -> Iterator[Source]:
    try:
        kind = stat.S_IFMT(entry.stat(follow_symlinks=wanted.follows).st_mode)
    except OSError as error:
        skipped.append(message_of(error))
        return
    if kind == stat.S_IFLNK and not wanted.whole:
        skipped.append(f"{entry.path}: a symbolic link: --tree keeps it, --follow takes what it leads to")
    elif kind in (stat.S_IFREG, stat.S_IFLNK):
        type = FileType.LINK if kind == stat.S_IFLNK else FileType.FILE
        yield from _unless_gone(entry.path, below, type, skipped, is_walked=not wanted.follows)
    else:
        skipped.append(f"{entry.path}: {SPECIAL.get(kind, 'a special file')}, which has no content to keep")


def _unless_gone(
    path: str, below: str, type: FileType, skipped: list[str], *, is_walked: bool = False
) -> Iterator[Source]:
    try:
        yield source_of(path, below, type, is_walked=is_walked)
    except OSError as error:
        skipped.append(message_of(error))


def _parent(below: str) -> str:
    """The directory in which one stands; nothing for the top, which stands in none that is put."""
    return "" if below == "." else os.path.dirname(below) or "."

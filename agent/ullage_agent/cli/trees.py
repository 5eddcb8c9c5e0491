"""What `put` finds: files, and whole directory trees in a stable order."""

import os
import stat
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from ullage.beneath import LeadsOut, opened_folder, walked
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
    top: str = ""
    """Of a tree whose links are not followed, its top: no directory below it may be a link by the time of reading."""


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
    if own is not None and _identity(top) == own:
        skipped.append(f"{top}: the repository itself")
        return
    folders = [_Folder(top, top, ".", skipped, wanted)]
    while folders:
        current = folders[-1]
        entry = next(current.entries, None)
        if entry is None:
            folders.pop()
            if wanted.whole:
                yield from current.itself()
            continue
        if entry.is_folder:
            if entry.id == own:
                continue
            if any(entry.id == above.id for above in folders):
                skipped.append(f"{entry.path}: a link that leads to a directory above it")
                continue
            below = os.path.normpath(os.path.join(current.below, entry.name))
            folders.append(_Folder(top, entry.path, below, skipped, wanted))
        else:
            yield from _found(entry, current.below, wanted, top, skipped)


class _TreeEntry(NamedTuple):
    """What stands in a directory, and what is known of it; or why nothing is."""

    name: str
    path: str
    found: os.stat_result | None
    problem: str = ""

    @property
    def is_folder(self) -> bool:
        """Whether it is walked into."""
        return self.found is not None and stat.S_ISDIR(self.found.st_mode)

    @property
    def id(self) -> tuple[int, int] | None:
        """What tells it from any other."""
        return None if self.found is None else (self.found.st_dev, self.found.st_ino)


class _Folder:
    """A directory that is being walked. One that can't be listed has nothing in it, and is told."""

    def __init__(self, top: str, path: str, below: str, skipped: list[str], wanted: WantedOfTree) -> None:
        self.path = path
        self.below = below
        self.id: tuple[int, int] | None = None
        self._found: os.stat_result | None = None
        found: list[_TreeEntry] = []
        try:
            found = self._listed(top, wanted.follows)
        except LeadsOut as error:
            skipped.append(f"{path}: {error.strerror}")
        except OSError as error:
            error.filename = path
            skipped.append(message_of(error))
        self.entries = iter(sorted(found, key=lambda entry: (entry.is_folder, entry.name)))

    def itself(self) -> Iterator[Source]:
        """The directory, unless it was gone before anything could be known of it."""
        if self._found is not None:
            yield source_of(self.path, _parent(self.below), FileType.DIRECTORY, found=self._found)

    def _listed(self, top: str, follows: bool) -> list[_TreeEntry]:
        """What stands in it. By descriptors, from the top on: where others write, a directory may be a link by now."""
        names = [] if follows or self.below == "." else self.below.split("/")
        with opened_folder(self.path if follows else top) as held, walked(held, names) as folder:
            self._found = os.fstat(folder)
            self.id = (self._found.st_dev, self._found.st_ino)
            listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        try:
            with os.scandir(listed) as entries:
                return [self._entry(entry, follows) for entry in entries]
        finally:
            os.close(listed)

    def _entry(self, entry: "os.DirEntry[str]", follows: bool) -> _TreeEntry:
        path = os.path.join(self.path, entry.name)
        try:
            return _TreeEntry(entry.name, path, entry.stat(follow_symlinks=follows))
        except OSError as error:  # a link that leads nowhere, or round in a circle, or what is gone
            return _TreeEntry(entry.name, path, None, f"{path}: {error.strerror}")


def _identity(path: str) -> tuple[int, int] | None:
    """What tells a directory from any other, whatever path leads to it; None of one that can't be looked at.

    By its resolved path a tree of 600 nested directories took nine times as long: each step resolves all names above.
    """
    try:
        found = os.stat(path)
    except OSError:  # whoever lists it is told
        return None
    return found.st_dev, found.st_ino


def source_of(
    path: str, below: str, type: FileType = FileType.FILE, *, found: os.stat_result | None = None, top: str = ""
) -> Source:
    """The file with the attributes that NiFi's GetFile gives it. `found`: what is known of it already."""
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
    found = os.stat(path, follow_symlinks=type is not FileType.LINK) if found is None else found
    said = {key: as_text(value) for key, value in attributes.items()} | attributes_of(found, type)
    return Source(path, 0 if type is FileType.DIRECTORY else found.st_size, said, type, top)


def as_text(name: str) -> str:
    """A name from the system as UTF-8: bytes that are none become replacement characters."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _found(entry: _TreeEntry, below: str, wanted: WantedOfTree, top: str, skipped: list[str]) -> Iterator[Source]:
    if entry.found is None:
        skipped.append(entry.problem)
        return
    kind = stat.S_IFMT(entry.found.st_mode)
    if kind == stat.S_IFLNK and not wanted.whole:
        skipped.append(f"{entry.path}: a symbolic link: --tree keeps it, --follow takes what it leads to")
    elif kind in (stat.S_IFREG, stat.S_IFLNK):
        type = FileType.LINK if kind == stat.S_IFLNK else FileType.FILE
        yield source_of(entry.path, below, type, found=entry.found, top="" if wanted.follows else top)
    else:
        skipped.append(f"{entry.path}: {SPECIAL.get(kind, 'a special file')}, which has no content to keep")


def _parent(below: str) -> str:
    """The directory in which one stands; nothing for the top, which stands in none that is put."""
    return "" if below == "." else os.path.dirname(below) or "."

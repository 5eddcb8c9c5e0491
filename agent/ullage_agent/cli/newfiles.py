"""New files below a folder, where FlowFiles say which: what `get --queue` writes, plain or as the tree that was put."""

from __future__ import annotations

import errno
import os
import stat
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

from ullage.beneath import NO_NAMES, LeadsOut, sync_folder, walk, walked
from ullage.streams import PIECE_BYTES
from ullage_agent.cli.filefacts import FileFacts, FileType, facts_of, give, own_link, path_of
from ullage_agent.cli.partfiles import (
    FileIdentity,
    PartFile,
    identity_of,
    is_part_name,
    name_beside,
    part_name,
    usual_mode,
)

NAME_BYTES_MAX = 200
"""Longer names are replaced by the uuid: a filesystem's limit is 255, and a uuid may have to be added."""

FOLDERS_MAX = 32
"""Folders that an attribute `path` may make below the directory: each one takes an inode, and a long path could make as
many as the volume has.
"""

TREE_FOLDERS_MAX = 2_048
"""The same with --tree, where the tree is the user's own: more than a path of Linux, of 4,096 bytes, can have."""

TREE_NAME_BYTES_MAX = 255
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
CLOSED = 0o700
"""The permissions of a directory while it is filled."""

MADE = part_name("made")
"""Is in a directory that a get has made, until its own permissions have come: one that was there before keeps its own.
"""

LINK_BYTES_MAX = 4_095
"""Where a symbolic link may lead, at most, on Linux. More is content that only says that it is a link's."""

NOTHING_SAID = FileFacts(FileType.FILE, None, None, None, None)

Place = tuple[tuple[str, ...], str]
"""The folders below the directory, and the name in the last of them."""


def place_of(attributes: Mapping[str, str], id: str, *, hidden: bool) -> Place:
    """Where a FlowFile goes by its attributes `path` and `filename`: the folders below the directory, and its name.

    Whoever wrote the FlowFile chose these. What could lead out of the directory, surprise a terminal, or (without
    `hidden`) be taken for a program's settings is left: for the directory itself, and for the uuid as a name.
    """
    name = attributes.get("filename", "").rpartition("/")[2]
    if not _is_plain(name, hidden=hidden):
        name = id
    path = attributes.get("path", "")
    below = tuple(part for part in path.split("/") if part not in ("", "."))
    is_plain = len(below) <= FOLDERS_MAX and all(_is_plain(part, hidden=hidden) for part in below)
    return (() if path.startswith("/") or not is_plain else below), name


def tree_place_of(attributes: Mapping[str, str], id: str) -> Place:
    """The same of what `put --tree` put: names of any bytes that a filesystem takes, but none that leads out. The top
    itself has the name `.`.
    """
    name = attributes.get("filename", "")
    encoded = path_of(attributes)
    path = encoded if encoded is not None else os.path.join(attributes.get("path", ""), name)
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if not parts and name == "." and facts_of(attributes).type is FileType.DIRECTORY:
        return (), "."
    is_good = 0 < len(parts) <= TREE_FOLDERS_MAX and all(map(_is_possible, parts))
    return ((), id) if path.startswith("/") or not is_good else (parts[:-1], parts[-1])


def _is_plain(name: str, *, hidden: bool) -> bool:
    if name in NO_NAMES or (name.startswith(".") and not hidden):
        return False
    # Control characters, those that turn the direction of writing, halves of surrogate pairs, ends of lines.
    if any(unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp") for each in name):
        return False
    return len(name.encode()) <= NAME_BYTES_MAX


def _is_possible(name: str) -> bool:
    try:
        return name not in NO_NAMES and "\0" not in name and len(os.fsencode(name)) <= TREE_NAME_BYTES_MAX
    except UnicodeEncodeError:  # half of a surrogate pair, which no filesystem gave
        return False


def _is_same(folder: int, one: str, other: str) -> bool:
    """Whether two names have plain files of the same bytes."""
    try:
        with (
            open(os.open(one, READ, dir_fd=folder), "rb") as first,
            open(os.open(other, READ, dir_fd=folder), "rb") as second,
        ):
            found = [os.fstat(file.fileno()) for file in (first, second)]
            if found[0].st_size != found[1].st_size or not all(stat.S_ISREG(each.st_mode) for each in found):
                return False
            while piece := first.read(PIECE_BYTES):
                if piece != second.read(PIECE_BYTES):
                    return False
            return True
    except OSError:  # a link, a directory, or what nobody may read: it is something else
        return False


def _leads_to(folder: int, name: str, target: bytes) -> bool:
    """Whether a name is a link to this."""
    try:
        return os.fsencode(os.readlink(name, dir_fd=folder)) == target
    except OSError:  # no link
        return False


class NewFiles:
    """Files that one batch writes below a folder: each is new, and none lies behind a link."""

    def __init__(self, folder: int, path: str, *, hidden: bool) -> None:
        """`path`: what people know the folder by."""
        self.written: dict[tuple[int, str], FileIdentity | None] = {}
        """What this batch made: the descriptor of the folder, and the name in it."""

        self._path = path
        self._hidden = hidden
        self._mode = usual_mode()
        self._parts: list[PartFile] = []
        self._changed: set[int] = set()
        self._folders: dict[tuple[str, ...], int] = {(): folder}

    def close(self) -> None:
        """Give back the descriptors of folders."""
        for names, folder in self._folders.items():
            if names:
                os.close(folder)

    def take(self, attributes: Mapping[str, str], id: str, size: int, content: Iterable[bytes]) -> tuple[str, ...]:
        """Write a FlowFile as a synced file; the names that lead to it."""
        del size
        below, name = place_of(attributes, id, hidden=self._hidden)
        return self._write(below, name, id, content)

    def remove(self) -> None:
        """Take back all that was made: nothing that stood there before, and nothing that somebody put there since."""
        for (folder, name), identity in self.written.items():
            with suppress(OSError):  # it stays, then, and is replaced when its FlowFile is taken again
                if identity_of(name, folder) == identity:
                    os.unlink(name, dir_fd=folder)
        self.settle()

    def settle(self) -> None:
        """Their FlowFiles have left the queue: no later get has to know these files for its own."""
        for part in self._parts:
            part.drop()
        self._parts.clear()

    def sync_names(self) -> None:
        """They are durable afterwards."""
        for folder in self._changed:
            sync_folder(folder)

    def _write(
        self,
        below: tuple[str, ...],
        name: str,
        id: str,
        content: Iterable[bytes],
        facts: FileFacts = NOTHING_SAID,
        earlier: FileIdentity | None = None,
    ) -> tuple[str, ...]:
        """`facts`: what the file gets, before it is synced. `earlier`: the file that may be replaced."""
        below, folder = self._folder(below)
        with self._named((*below, name)), PartFile(folder, id) as part:

            def make(each: str, folder: int) -> None:
                self._changed.add(folder)
                try:
                    part.link_as(each)
                except FileExistsError:
                    if self._is_there(part, each, facts):
                        return
                    found = identity_of(each, folder)
                    if found is None or not (found == earlier or self._is_own(part, each, name)):
                        raise
                    part.replace(each)
                    if (folder, each) not in self.written:
                        return  # what has stood there is not this batch's to take back
                self.written[folder, each] = part.identity

            part.fill(content, lambda path: self._finish(path, facts))
            made = self._make(below, name, id, make)
            self._parts.append(part)
            return made

    def _finish(self, path: str, facts: FileFacts) -> None:
        if facts.mode is None:
            os.chmod(path, self._mode)
        give(path, facts)

    def _is_there(self, part: PartFile, each: str, facts: FileFacts) -> bool:
        """Whether the file of this name is all that is to be written already, and is kept."""
        del part, each, facts
        return False

    def _is_own(self, part: PartFile, each: str, name: str) -> bool:
        """Whether a get that was killed has made the file of this name from the same FlowFile, and nobody has written
        to it since. With the uuid behind it, the same bytes say so.
        """
        return (each != name or part.is_left_as(each)) and _is_same(part.folder, part.part, each)

    def _make(self, below: tuple[str, ...], name: str, id: str, make: Callable[[str, int], None]) -> tuple[str, ...]:
        """What `make` makes of a name in a folder; with the uuid behind its name where that is taken."""
        below, folder = self._folder(below)
        # A name of a part is never given: the next get would take the file for what a killed one has left.
        names = (name_beside(name, id), id) if is_part_name(name) else (name, name_beside(name, id), id)
        for each in names:
            try:
                make(each, folder)
            except FileExistsError:
                continue  # under the other name, then
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:  # a filesystem that takes less than Linux does
                    raise
                continue
            return (*below, each)
        raise FileExistsError(
            errno.EEXIST, "it is there, with and without the uuid behind it", os.path.join(self._path, *below, name)
        )

    @contextmanager
    def _named(self, names: tuple[str, ...]) -> Iterator[None]:
        """Errors of the directory name the file in it, and say what to do."""
        try:
            yield
        except OSError as error:
            error.filename, error.filename2 = os.path.join(self._path, *names), None
            error.add_note(
                "what this commit had written is taken back, and its FlowFiles are in their queue: when the directory "
                "can take them, or with another one, the same command goes on"
            )
            raise

    def _folder(self, below: tuple[str, ...]) -> tuple[tuple[str, ...], int]:
        if below not in self._folders:
            try:
                self._folders[below] = self._walked(below)
            except (LeadsOut, PermissionError):
                # A link, a file or a locked folder has this name: what others left there must not stop a queue.
                return (), self._folders[()]
        return below, self._folders[below]

    def _walked(self, below: tuple[str, ...]) -> int:
        return walk(self._folders[()], below, make=True)


class TreeSoFar:
    """What `get --tree` has made, in all batches: a later version of a file replaces its own earlier one, and
    directories get their time again when nothing is written into them any more.
    """

    def __init__(self) -> None:
        self.files: dict[Place, tuple[str, FileIdentity | None]] = {}
        """What each was made from, and the file itself: somebody may have put another there."""

        self.folders: dict[tuple[str, ...], FileFacts] = {}
        self.has_made_top = False

    def make_top(self, directory: str) -> None:
        """Make the directory, or find it. One that this get or a killed one has made gets what the tree's top had, with
        everything; one that was there before, which others may use, only its time.
        """
        if above := os.path.dirname(directory):
            os.makedirs(above, exist_ok=True)
        try:
            os.mkdir(directory, CLOSED)
        except FileExistsError:
            if not os.path.isdir(directory):
                raise
            if not os.path.lexists(os.path.join(directory, MADE)):
                return
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            os.close(os.open(os.path.join(directory, MADE), flags, 0o600))
        self.has_made_top = True

    def end(self, top: int) -> None:
        """Give all directories what is known of them. Those of which nothing is stay closed: another get may have taken
        what says that they are private, or a later one will.
        """
        _forget_made(top)
        self.give_folders(top, self.folders)

    def give_folders(self, top: int, only: Iterable[tuple[str, ...]]) -> None:
        """Their permissions, times and owners, the deepest first: one may be closed to its owner from then on."""
        for names in sorted(only, key=len, reverse=True):
            facts = self.folders[names]
            if not names:
                _forget_made(top)  # before it gets its time
            is_theirs = not names and not self.has_made_top
            self._give(top, names, facts._replace(mode=None, owner=None, group=None) if is_theirs else facts)

    def _give(self, top: int, names: tuple[str, ...], facts: FileFacts) -> None:
        # Somebody put something else there, or took it away; or it is somebody else's, who gave it what it has, or its
        # owner may not read it, and so can't sync it.
        with suppress(LeadsOut, FileNotFoundError, PermissionError), walked(top, names) as folder:
            give(f"/proc/self/fd/{folder}", facts)
            sync_folder(folder)


def _forget_made(top: int) -> None:
    with suppress(FileNotFoundError):  # an earlier batch did
        os.unlink(MADE, dir_fd=top)


class TreeFiles(NewFiles):
    """The files, links and directories of a tree that one batch brings back as they were put."""

    def __init__(self, folder: int, path: str, tree: TreeSoFar) -> None:
        super().__init__(folder, path, hidden=True)
        self._tree = tree
        self._given: list[tuple[str, ...]] = []
        self._kept: set[FileIdentity | None] = set()

    def take(self, attributes: Mapping[str, str], id: str, size: int, content: Iterable[bytes]) -> tuple[str, ...]:
        """Bring one back, with what is known of it; the names that lead to it."""
        facts = facts_of(attributes)
        below, name = tree_place_of(attributes, id)
        origin = attributes.get("absolute.path", "")
        if facts.type is FileType.DIRECTORY and not size and name != id:
            names = (*below, name) if name != "." else ()
            self._make_way(names, f"{origin}{name}/")
            return self._directory(names, facts)
        self._make_way(below, origin)
        # Only its own earlier version: of two trees both files stay, and of files that came from nowhere.
        known, identity = self._tree.files.get((below, name), ("", None))
        earlier = identity if origin and origin == known else None
        made = None
        if facts.type is FileType.LINK and 0 < size <= LINK_BYTES_MAX:
            target = b"".join(content)
            made = self._link(below, name, id, target, facts, earlier) if b"\0" not in target else None
            content = (target,)
        if made is None:
            made = self._write(below, name, id, content, facts, earlier)
        identity = identity_of(made[-1], self._folder(made[:-1])[1])
        # A file that was kept may be somebody's own: a later version goes beside it.
        self._tree.files[made[:-1], made[-1]] = origin, None if identity in self._kept else identity
        return made

    def sync_names(self) -> None:
        """They are durable afterwards, directories with what is known of them."""
        self.settle()  # before directories get their times; a later get knows these files by their bytes
        super().sync_names()
        self._tree.give_folders(self._folders[()], self._given)

    def _walked(self, below: tuple[str, ...]) -> int:
        """Directories are closed to others while they are filled, and open to whoever fills them."""
        top = self._folders[()]
        folder = walk(top, ())
        try:
            if self._tree.has_made_top:
                self._open(folder, ())
            for depth, name in enumerate(below, 1):
                try:
                    folder, parent = walk(folder, (name,)), folder
                except FileNotFoundError:
                    break
                os.close(parent)
                self._open(folder, below[:depth])
        finally:
            os.close(folder)
        return walk(top, below, make=True, mode=CLOSED)

    def _open(self, folder: int, names: tuple[str, ...]) -> None:
        """A directory that an earlier FlowFile, or a killed get, has closed to its owner is given back its permissions
        with this batch.
        """
        found = os.fstat(folder)
        if found.st_uid != os.geteuid() or found.st_mode & CLOSED == CLOSED:
            return
        facts = FileFacts(FileType.DIRECTORY, stat.S_IMODE(found.st_mode), found.st_mtime_ns, None, None)
        self._tree.folders.setdefault(names, facts)
        self._given.append(names)
        os.chmod(f"/proc/self/fd/{folder}", stat.S_IMODE(found.st_mode) | CLOSED)

    def _make_way(self, below: tuple[str, ...], origin: str) -> None:
        """What was a file when it was put first, and a directory later, becomes one here, too: this get's own file of
        that place goes, as an earlier version does.
        """
        for depth, name in enumerate(below):
            place = (below[:depth], name)
            known, identity = self._tree.files.get(place, ("", None))
            if identity is None or not known or not origin.startswith(f"{known}{name}/"):
                continue
            above, folder = self._folder(below[:depth])
            if above == below[:depth] and identity_of(name, folder) == identity:
                os.unlink(name, dir_fd=folder)
                # The directory that takes its place may get its number, and would be taken for it.
                del self._tree.files[place]
                self._changed.add(folder)
                self.written.pop((folder, name), None)

    def _is_there(self, part: PartFile, each: str, facts: FileFacts) -> bool:
        """A get that was killed has left files whose FlowFiles are in the queue still. Such a file is kept, and no copy
        beside it, if it is the same to the byte, and in all that is known of it: then nobody loses anything if it was
        somebody's own, with other names, say.
        """
        if not _is_same(part.folder, part.part, each):
            return False
        if not part.is_as(each, is_dated=facts.modified_nanos is not None):
            return False
        with open(os.open(each, READ, dir_fd=part.folder), "rb") as file:
            os.fsync(file.fileno())  # whoever wrote it need not have
        self._kept.add(identity_of(each, part.folder))
        return True

    def _link(
        self, below: tuple[str, ...], name: str, id: str, target: bytes, facts: FileFacts, earlier: FileIdentity | None
    ) -> tuple[str, ...]:
        def make(each: str, folder: int) -> None:
            self._changed.add(folder)
            if earlier is not None and identity_of(each, folder) == earlier:
                os.unlink(each, dir_fd=folder)
            try:
                os.symlink(os.fsdecode(target), each, dir_fd=folder)
                self.written[folder, each] = identity_of(each, folder)
            except FileExistsError:
                found = os.stat(each, dir_fd=folder, follow_symlinks=False)
                if not _leads_to(folder, each, target):  # as it does after a get that was killed
                    raise
                self._kept.add(identity_of(each, folder))
                if found.st_uid != os.geteuid():  # somebody's own; or this user's, with all that is known of it
                    return
            own_link(each, folder, facts)

        with self._named((*below, name)):
            return self._make(below, name, id, make)

    def _directory(self, names: tuple[str, ...], facts: FileFacts) -> tuple[str, ...]:
        with self._named(names):
            found, _ = self._folder(names)
        if found == names:
            self._tree.folders[names] = facts
            self._given.append(names)
        return names

"""The files of a base, written where they belong, and how far that is: so that whoever is stopped goes on there.

    write some | sync | note in the marker | write some more | sync | note | ... | end of the base: it is proved
    a crash anywhere: what is noted is read, and if every byte of it is as noted, the base is read from there on

A base is never written twice under one name, so what was read of it once stays what lies there. Which restoration it is
stands in the marker with the note: the share, the base, and the log object that it ends with. Whatever else somebody
asks for is refused there; what is made never has some of one moment and some of another.
"""

import os
from collections.abc import Callable
from contextlib import closing
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from ullage.engine.files import File, Files, length_of, read_file, replace_file
from ullage.engine.opening import IDENTITY, RESTORING
from ullage.engine.shipping.baseobject import BasePosition, BaseReader
from ullage.engine.shipping.contentpack import PIECE_BYTES
from ullage.engine.shipping.sharedocs import ListedBase
from ullage.engine.wal.format import UNDECODABLE
from ullage.errors import DirectoryNotEmpty, RepositoryDamaged

NOTED_BYTES: Final = 64 << 20
"""So much of a base at most is read again."""


class MemberWritten(NamedTuple):
    """A file of a base, or the first bytes of one."""

    name: str
    length: int
    crc: int


class BaseNote(msgspec.Struct, frozen=True):
    """Up to where a base was read, and all that was written of it, durable; the last may go on."""

    position: BasePosition
    members: tuple[MemberWritten, ...]


class BegunRestoration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a marker holds. `asked` is the point as somebody said it, None for the newest; `through` is the log object
    that it ends with, whatever was put since.
    """

    share: str
    base: ListedBase
    asked: int | None
    through: int
    containers: dict[str, str]
    note: BaseNote | None = None

    def is_same(self, other: "BegunRestoration") -> bool:
        """Whether both make the same, however far they are."""
        return msgspec.structs.replace(self, note=None) == msgspec.structs.replace(other, note=None)


def begun_restoration(files: Files, root: str) -> BegunRestoration | None:
    """What was begun in a directory and cut short; None if nothing was. DirectoryNotEmpty: it was of a backup."""
    marker = os.path.join(root, RESTORING)
    if not files.exists(marker) or files.exists(os.path.join(root, IDENTITY)):
        return None
    try:
        return msgspec.json.decode(read_file(files, marker), type=BegunRestoration)
    except UNDECODABLE:
        raise DirectoryNotEmpty(
            f"{root} holds part of a backup: a restoration was cut short there. Say that one, or remove what is there"
        ) from None


def mark_begun(files: Files, root: str, begun: BegunRestoration) -> None:
    """From here on what lies there is of this one."""
    replace_file(files, os.path.join(root, RESTORING), msgspec.json.encode(begun))


class RestoredBase:
    """Writes the files of a base. `target` says where a member goes, and None of one that goes nowhere; `noted` is what
    an earlier try told `note`; `told` hears of each byte that is there.
    """

    def __init__(
        self,
        files: Files,
        target: Callable[[str], str | None],
        noted: BaseNote | None,
        note: Callable[[BaseNote], None],
        told: Callable[[int], None],
    ) -> None:
        self._files = files
        self._target = target
        self._note = note
        self._told = told
        self._noted = noted if noted is not None and all(map(self._is_there, noted.members)) else None
        self._members: list[MemberWritten] = list(self._noted.members) if self._noted is not None else []
        self._names = {each.name for each in self._members}
        self._file: File | None = None
        self._since_note = 0
        self.kept, self.kept_bytes = len(self._members), sum(each.length for each in self._members)
        self.written_bytes = 0
        self.directories = {os.path.dirname(path) for each in self._members if (path := target(each.name))}
        told(self.kept_bytes)

    @property
    def position(self) -> BasePosition | None:
        """Where reading begins, None for the beginning."""
        return None if self._noted is None else self._noted.position

    @property
    def written(self) -> int:
        """How many files were written."""
        return len(self._members) - self.kept

    def take(self, reader: BaseReader) -> None:
        """All that is read, noted now and then. RepositoryDamaged: a member is there twice."""
        try:
            current, path = "", None
            for name, piece in reader.members():
                if name != current:
                    current, path = name, self._target(name)
                if path is not None:
                    self._write(name, path, piece)
                if self._since_note >= NOTED_BYTES:
                    self._tell(reader.position)
            self._tell(reader.position)
        finally:
            self._finish()

    def _write(self, name: str, path: str, piece: bytes) -> None:
        if not self._members or self._members[-1].name != name:
            self._finish()
            self._begin(name, path)
        elif self._file is None:
            self._file = self._files.open(path, writable=True)  # which goes on where an earlier try was
        last, file = self._members[-1], self._file
        assert file is not None, "it was just opened"
        if piece:
            file.write(piece, last.length)
        self._members[-1] = MemberWritten(name, last.length + len(piece), crc32c(piece, last.crc))
        self._since_note += len(piece)
        self.written_bytes += len(piece)
        self._told(len(piece))

    def _begin(self, name: str, path: str) -> None:
        if name in self._names:
            raise RepositoryDamaged(f"the base has a member twice: {name}")
        if self._files.exists(path):  # an earlier try made it, and nothing was noted of it
            self._files.unlink(path)
        self._file = self._files.create(path)
        self._members.append(MemberWritten(name, 0, 0))
        self._names.add(name)
        self.directories.add(os.path.dirname(path))

    def _tell(self, position: BasePosition) -> None:
        if self._file is not None:
            self._file.sync()
        self._note(BaseNote(position, tuple(self._members)))
        self._since_note = 0

    def _finish(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with closing(file):
                file.sync()

    def _is_there(self, member: MemberWritten) -> bool:
        """Whether an earlier try has written these bytes."""
        path = self._target(member.name)
        if path is None or (length_of(self._files, path) or 0) < member.length or not self._files.exists(path):
            return False
        crc = 0
        try:
            with closing(self._files.open(path)) as file:
                for at in range(0, member.length, PIECE_BYTES):
                    crc = crc32c(file.read(min(PIECE_BYTES, member.length - at), at), crc)
        except OSError:  # what the disk can't read is written anew
            return False
        return crc == member.crc

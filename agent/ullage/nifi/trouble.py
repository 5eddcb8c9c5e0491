"""What keeps a NiFi's file from being read, and how it is told."""

import errno
from typing import Final

import msgspec

from ullage.errors import InvalidArgument, NotFound, RepositoryLocked


class NotSurveyable(InvalidArgument):
    """This NiFi keeps its repositories in a way that can't be read here: encrypted, in memory, or of an old format."""


class NiFiInUse(RepositoryLocked):
    """A NiFi works on these repositories, or may do so: what it would stumble over is not changed."""


class NothingToUndo(NotFound):
    """There is no reclaim that could be taken back: it was for good, or NiFi was started since."""


class NeedsMore(Exception):
    """The bytes at hand end amid a value: more of the file may complete it."""


class TornFile(Exception):
    """The file ends amid a value, as one does that is being written, or was when its writer died. `position`: where."""

    def __init__(self, position: int) -> None:
        super().__init__(f"it ends at byte {position:,} amid a record")
        self.position = position


class Unparsable(ValueError):
    """These bytes are nothing that NiFi writes."""


class NiFiDamage(msgspec.Struct, frozen=True):
    """A file that is damaged or missing, and what follows from that.

    `loses_flowfiles`: there may be FlowFiles that were not read, so that what looks dead may be theirs.
    `hides_contents`: a folder with contents was not looked at, which then look as if they were not there.
    """

    file: str
    what: str
    loses_flowfiles: bool
    hides_contents: bool = False

    @property
    def is_serious(self) -> bool:
        """Whether what was found is not all that there is."""
        return self.loses_flowfiles or self.hides_contents


LISTED_MAX: Final = 100
"""Damages of one journal, or of one listing, that are told one by one. A journal of 28 MB had two million."""


class Damages:
    """What was found amiss in one place: the first ones, and how many more."""

    def __init__(self) -> None:
        self._first: list[NiFiDamage] = []
        self._more = 0
        self._last: NiFiDamage | None = None

    def add(self, damage: NiFiDamage) -> None:
        """One more."""
        if len(self._first) < LISTED_MAX:
            self._first.append(damage)
        else:
            self._more += 1
            loses, hides = damage.loses_flowfiles, damage.hides_contents
            if self._last is not None:
                loses, hides = loses or self._last.loses_flowfiles, hides or self._last.hides_contents
            self._last = msgspec.structs.replace(damage, loses_flowfiles=loses, hides_contents=hides)

    def all(self) -> list[NiFiDamage]:
        """Each of the first ones, and one for all that came after them, which says how many."""
        if self._last is None:
            return list(self._first)
        return [
            *self._first,
            msgspec.structs.replace(self._last, what=f"{self._more:,} more, the last: {self._last.what}"),
        ]


def unreadable(error: OSError) -> str:
    """Why something can't be read, and what helps."""
    helps = ": run this as NiFi's user or as root" if error.errno in (errno.EACCES, errno.EPERM) else ""
    return f"it can't be read: {error.strerror}{helps}"


def hidden_contents(path: str, error: OSError | ValueError) -> NiFiDamage:
    """A folder of contents that can't be looked at; ValueError: nifi.properties names none, but one with NUL, or half
    of a character.
    """
    if isinstance(error, OSError):
        return NiFiDamage(path, unreadable(error), loses_flowfiles=False, hides_contents=True)
    return NiFiDamage(repr(path), f"it can't be read: {error}", loses_flowfiles=False, hides_contents=True)


class NiFiContentLost(Exception):
    """A content can't be read, or not to its end; the text says why."""

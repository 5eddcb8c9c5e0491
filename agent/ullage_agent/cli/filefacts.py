"""What a FlowFile says of the file that it was made from, so that `get --tree` can bring it back as it was.

Attributes with the names and forms of NiFi's GetFile, where it has one: `file.permissions` as rwxr-x---, with the
letters of `ls` for setuid, setgid and sticky; `file.lastModifiedTime` with all digits that the filesystem has, which
NiFi cuts to seconds; `file.owner` and `file.group` as names, or numbers where they have none. Ours are `file.type` and
`file.path.encoded`.
https://nifi.apache.org/components/org.apache.nifi.processors.standard.GetFile/
"""

import grp
import os
import pwd
import re
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

PERMISSIONS, MODIFIED, OWNER, GROUP = "file.permissions", "file.lastModifiedTime", "file.owner", "file.group"
TYPE: Final = "file.type"
ENCODED: Final = "file.path.encoded"
"""The path below the tree's top, percent-encoded, of a file whose name is no UTF-8: attributes are texts."""

SET_IDS: Final = stat.S_ISUID | stat.S_ISGID
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
TIME: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([+-]\d{4})")
LETTERS: Final = re.compile(r"([r-][w-][xsS-])([r-][w-][xsS-])([r-][w-][xtT-])")


class FileType(StrEnum):
    """What stands in a tree. The content of a link is where it leads, that of a directory is empty."""

    FILE = "file"
    LINK = "link"
    DIRECTORY = "directory"


class FileFacts(NamedTuple):
    """What is known of a file besides its name and content; None is what no attribute says, or one says wrongly."""

    type: FileType
    mode: int | None
    modified_nanos: int | None
    owner: str | None
    group: str | None


def attributes_of(found: os.stat_result, type: FileType = FileType.FILE) -> dict[str, str]:
    """As a FlowFile has them. That it is a plain file need not be said."""
    said = {
        PERMISSIONS: stat.filemode(found.st_mode)[1:],
        OWNER: _owner_of(found.st_uid),
        GROUP: _group_of(found.st_gid),
    }
    with suppress(OverflowError):  # a damaged time, of the year 10,000 or later: there is no text for it
        said[MODIFIED] = _time_of(found.st_mtime_ns)
    return said if type is FileType.FILE else {**said, TYPE: type}


def facts_of(attributes: Mapping[str, str]) -> FileFacts:
    """What attributes say, whoever wrote them: a type that nobody knows is a plain file's."""
    said = attributes.get(TYPE, FileType.FILE)
    return FileFacts(
        FileType(said) if said in set(FileType) else FileType.FILE,
        _mode_of(attributes.get(PERMISSIONS, "")),
        _nanos_of(attributes.get(MODIFIED, "")),
        attributes.get(OWNER),
        attributes.get(GROUP),
    )


def give(path: str, facts: FileFacts) -> None:
    """Give a file what was known of it: its owner, as far as this process may, then permissions and time.

    Without its owner it gets no setuid and setgid: a program of somebody else's would run as whoever brought it back.
    `path`: one that no link of another can have taken the place of, such as that of a descriptor in /proc.
    """
    is_owned = _own(path, facts)
    if facts.mode is not None and facts.type is not FileType.LINK:
        os.chmod(path, facts.mode if is_owned else facts.mode & ~SET_IDS)
    _date(path, facts)


def own_link(name: str, folder: int, facts: FileFacts) -> None:
    """The same of a symbolic link, which has no permissions: by its name, and never what it leads to."""
    _date(name, facts, dir_fd=folder, follow_symlinks=False)  # before its owner, by which one knows that it is whole
    user, group = _ids(facts)
    if os.geteuid() == 0 and (user, group) != (-1, -1):
        with suppress(PermissionError):  # as in `_own`
            os.chown(name, user, group, dir_fd=folder, follow_symlinks=False)


def encoded_path(path: str) -> dict[str, str]:
    """`file.path.encoded`, if a path below the top has a name that is no UTF-8."""
    raw = os.fsencode(path)
    try:
        raw.decode()
    except UnicodeDecodeError:
        return {ENCODED: quote_from_bytes(raw)}
    return {}


def path_of(attributes: Mapping[str, str]) -> str | None:
    """The path below the top of which `file.path.encoded` tells; None if there is none."""
    said = attributes.get(ENCODED)
    return None if said is None else os.fsdecode(unquote_to_bytes(said))


def _own(path: str, facts: FileFacts) -> bool:
    """Whether it has its owner and group now. Only root may give files away, and goes by names first, as tar does."""
    if os.geteuid() != 0:
        found = os.stat(path)
        return (facts.owner, facts.group) == (_owner_of(found.st_uid), _group_of(found.st_gid))
    user, group = _ids(facts)
    if (user, group) != (-1, -1):
        try:
            os.chown(path, user, group)
        except PermissionError:  # root in a container without CAP_CHOWN, or a network's filesystem that knows no root
            return False
    return user != -1 and group != -1


def _date(name: str, facts: FileFacts, **where: Any) -> None:
    """Give it its time; `where` is what os.utime takes besides."""
    if facts.modified_nanos is not None:
        with suppress(OverflowError):  # a time that this filesystem does not have: it keeps the present one
            os.utime(name, ns=(facts.modified_nanos, facts.modified_nanos), **where)


def _ids(facts: FileFacts) -> tuple[int, int]:
    """The numbers of owner and group on this machine; -1, which changes nothing, for one that it does not know."""
    return (
        _number_of(facts.owner, lambda name: pwd.getpwnam(name).pw_uid),
        _number_of(facts.group, lambda name: grp.getgrnam(name).gr_gid),
    )


def _number_of(said: str | None, look_up: Callable[[str], int]) -> int:
    if not said or "\0" in said:
        return -1
    try:
        return look_up(said)
    except KeyError:
        return int(said) if len(said) <= 10 and said.isdecimal() and said.isascii() and int(said) < 2**32 - 1 else -1


@lru_cache(1_024)
def _owner_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@lru_cache(1_024)
def _group_of(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _time_of(nanos: int) -> str:
    seconds, rest = divmod(nanos, 1_000_000_000)
    moment = EPOCH + timedelta(seconds=seconds)
    return f"{moment.replace(tzinfo=None).isoformat()}.{rest:09}+0000"


def _nanos_of(said: str) -> int | None:
    found = TIME.fullmatch(said)
    if found is None:
        return None
    whole, digits, zone = found.groups()
    try:
        moment = datetime.strptime(whole + zone, "%Y-%m-%dT%H:%M:%S%z")
        since = moment - EPOCH
    except (ValueError, OverflowError):
        return None
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + int((digits or "").ljust(9, "0"))


def _mode_of(said: str) -> int | None:
    """The inverse of what `ls` shows: r, w, x; s and t where x is set as well, S and T where it is not."""
    found = LETTERS.fullmatch(said)
    if found is None:
        return None
    mode = 0
    specials = (stat.S_ISUID, stat.S_ISGID, stat.S_ISVTX)
    for place, (letters, special) in enumerate(zip(found.groups(), specials, strict=True)):
        bits = sum(bit for bit, letter in zip((4, 2, 1), letters, strict=True) if letter in "rwxst")
        mode |= bits << (6 - 3 * place) | (special if letters[2] in "sStT" else 0)
    return mode

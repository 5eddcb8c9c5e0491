"""Whether a NiFi works on its repositories: nothing is changed beside one.

NiFi locks nothing of its content and FlowFile repositories. But it has its newest journal open, and locks the index of
its provenance events; when it is stopped, it ends that journal with a mark. A NiFi elsewhere, which has these volumes
mounted, is seen by the mark alone.
"""

import fcntl
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from ullage.nifi.home import NiFiHome
from ullage.nifi.journal import JOURNAL_COMPLETE
from ullage.nifi.moment import CHECKPOINT, JOURNAL_NAME, JOURNALS, PARTIAL, SWAP, first_of
from ullage.nifi.opened import open_regular
from ullage.nifi.trouble import NiFiInUse

PROCESSES: Final = "/proc"
MAIN: Final = b"org.apache.nifi"
"""In the command line of a NiFi, and of what starts it."""

INDEX_LOCK: Final = "write.lock"
OLD_LOCK: Final = "wali.lock"

FLOCK: Final = struct.Struct("hhqqi4x")
"""`struct flock` of 64-bit Linux: kind, whence, start, length, who."""

FileNumber = tuple[int, int]
"""What tells a file from all others: its device and its number there."""


class RepositoryState(NamedTuple):
    """What is in a FlowFile repository, by names, sizes and times: a NiFi that starts changes it at once."""

    files: tuple[tuple[str, int, int], ...]


def refuse_in_use(home: NiFiHome, *, is_assured: bool = False) -> None:
    """NiFiInUse if a NiFi works here. `is_assured`: someone said that none does, where only that can be known."""
    numbers = _numbers(home)
    for path in _locks(home):
        holder = _holder(path)
        if holder is not None:
            raise NiFiInUse(f"NiFi is running: {holder} holds a lock on {path}. Stop it first")
    for process in _processes():
        opened = _opened(process)
        if opened is None:
            if not is_assured and _is_nifi(process):
                raise NiFiInUse(
                    f"process {process} is a NiFi, whose open files may not be looked at: run this as its user or as "
                    "root; if it is a NiFi of other repositories, say --not-running"
                )
        elif numbers & opened:
            raise NiFiInUse(f"NiFi is running: process {process} has files of {home.flowfiles} open. Stop it first")
    if not is_assured and not _is_closed(home.flowfiles):
        raise NiFiInUse(
            f"the newest journal of {home.flowfiles} was not closed: NiFi was killed, its disk was full, or it runs "
            "where this machine can't see it. If no NiFi runs anywhere that has these repositories, say --not-running"
        )


def state_of(flowfiles: str) -> RepositoryState:
    """Of a FlowFile repository: as long as it is the same, no NiFi was started with it."""
    found = []
    for folder in ("", JOURNALS, SWAP):
        for name in _names(os.path.join(flowfiles, folder)):
            if folder or name in (CHECKPOINT, PARTIAL):
                with suppress(FileNotFoundError):  # gone since its folder was read: the next state differs
                    status = os.stat(os.path.join(flowfiles, folder, name))
                    if not os.path.isdir(os.path.join(flowfiles, folder, name)):
                        found.append((os.path.join(folder, name), status.st_size, status.st_mtime_ns))
    return RepositoryState(tuple(sorted(found)))


def _is_closed(flowfiles: str) -> bool:
    """Whether the newest journal ends as NiFi ends it. Where there is none, none is open."""
    names = sorted(filter(JOURNAL_NAME.fullmatch, _names(os.path.join(flowfiles, JOURNALS))), key=first_of)
    if not names:
        return True
    descriptor = open_regular(os.path.join(flowfiles, JOURNALS, names[-1]))
    try:
        return os.pread(descriptor, 1, max(0, os.fstat(descriptor).st_size - 1)) == bytes((JOURNAL_COMPLETE,))
    finally:
        os.close(descriptor)


def _numbers(home: NiFiHome) -> set[FileNumber]:
    """Of the files that a NiFi has open as long as it runs."""
    journals = os.path.join(home.flowfiles, JOURNALS)
    found = set()
    for path in (*_locks(home), *(os.path.join(journals, name) for name in _names(journals))):
        with suppress(OSError):  # gone since its folder was read
            status = os.stat(path)
            found.add((status.st_dev, status.st_ino))
    return found


def _locks(home: NiFiHome) -> Iterator[str]:
    yield os.path.join(home.flowfiles, OLD_LOCK)
    for directory in home.provenance or ():
        for name in _names(directory):
            if "index-" in name:
                yield os.path.join(directory, name, INDEX_LOCK)


def _holder(path: str) -> str | None:
    """Who has a lock on a file; None: nobody, or there is no such file."""
    try:
        descriptor = open_regular(path)
    except OSError:  # what may not be read is no hint; who has it open is asked as well
        return None
    try:
        asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, process = FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    except OSError:  # a filesystem without locks
        return None
    finally:
        os.close(descriptor)
    if kind == fcntl.F_UNLCK:
        return None
    return f"process {process}" if process > 0 else "another machine, or a container,"


def _processes() -> Iterable[str]:
    return [name for name in _names(PROCESSES) if name.isdecimal() and int(name) != os.getpid()]


def _opened(process: str) -> set[FileNumber] | None:
    """Files that a process has open; None: that may not be looked at."""
    folder = os.path.join(PROCESSES, process, "fd")
    try:
        names = os.listdir(folder)
    except PermissionError:
        return None
    except OSError:  # it has ended
        return set()
    found = set()
    for name in names:
        with suppress(OSError):  # closed since
            status = os.stat(os.path.join(folder, name))
            found.add((status.st_dev, status.st_ino))
    return found


def _is_nifi(process: str) -> bool:
    try:
        with open(os.path.join(PROCESSES, process, "cmdline"), "rb") as file:
            return MAIN in file.read(1 << 20)
    except OSError:  # it has ended
        return False


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:  # it is not there; what must be there was read before
        return []

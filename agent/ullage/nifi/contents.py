"""The files of a content repository: names, sizes and ages; nobody opens them.

The layout of org.apache.nifi.controller.repository.FileSystemRepository: CONTAINER/SECTION/IDENTIFIER, and what nobody
refers to any more, until its retention is over, in CONTAINER/SECTION/archive/IDENTIFIER.
"""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from ullage.nifi.trouble import Damages, NiFiDamage, hidden_contents, unreadable

ARCHIVE: Final = "archive"
SECTION: Final = re.compile(r"\d{1,4}")
IDENTIFIER: Final = re.compile(r"\d+-\d+")
"""Of a resource claim: the millisecond in which it was made, and a number."""

BLOCK_BYTES: Final = 512
"""What st_blocks counts in."""


class ClaimFile(NamedTuple):
    """What the file system says of one file: bytes, bytes that are allocated to it, and when it was last written."""

    size: int
    allocated: int
    modified_millis: int


class FileTotals:
    """How many files there are of a kind, and their bytes."""

    def __init__(self) -> None:
        self.files = 0
        self.size = 0
        self.allocated = 0

    def add(self, file: ClaimFile, count: int = 1) -> None:
        """Count it; -1: no more."""
        self.files += count
        self.size += file.size * count
        self.allocated += file.allocated * count


class ContentListing:
    """All files of the containers. `files`: resource claims by container, section and identifier, slashes between.

    `archive`: what is kept for replays. `foreign`: what has no name that NiFi gives, which it removes at its next start
    if it lies in a section, and never otherwise.
    """

    def __init__(self, containers: Mapping[str, str]) -> None:
        self.files: dict[str, ClaimFile] = {}
        self.archive = FileTotals()
        self.foreign = FileTotals()
        self._damages = Damages()
        self._containers = containers

    @property
    def damages(self) -> list[NiFiDamage]:
        """What could not be read, or not looked at."""
        return self._damages.all()

    def read(self) -> None:
        """List all containers; a folder that can't be read is a damage."""
        for name, path in self._containers.items():
            self._container(name, path)

    def look_again(self, file: str) -> bool:
        """Bring what is known of a resource claim up to date; whether there is such a file now.

        It may be new, larger, gone, or in the archive, from which NiFi reads what a replay refers to.
        """
        known = self.files.pop(file, None)
        for path, is_archived in self._places(file):
            with suppress(OSError):  # what is not there, or may not be looked at, is missing to whoever asks
                found = self.files[file] = _facts(os.stat(path))
                if is_archived and known is None:
                    self.archive.add(found, -1)  # it was counted there when its folder was listed
                return True
        return False

    def settle_unused(self, file: str) -> None:
        """The same of a resource claim that no FlowFile refers to: NiFi removes or archives those."""
        del self.files[file]
        for path, is_archived in self._places(file):
            with suppress(OSError):  # it is gone, as it may be
                found = _facts(os.stat(path))
                if is_archived:
                    self.archive.add(found)
                else:
                    self.files[file] = found
                return

    def _places(self, file: str) -> Iterator[tuple[str, bool]]:
        """Where it may lie, and whether that is the archive."""
        container, section, identifier = file.split("/")
        root = self._containers.get(container)
        if root is not None:
            yield os.path.join(root, section, identifier), False
            yield os.path.join(root, section, ARCHIVE, identifier), True

    def _container(self, name: str, root: str) -> None:
        for entry in self._entries(root):
            if not entry.is_dir(follow_symlinks=False):
                self._add_foreign(entry)
                continue
            for below in self._entries(entry.path):
                if below.name == ARCHIVE:
                    for kept in self._entries(below.path):
                        self._add(kept, self.archive)
                elif SECTION.fullmatch(entry.name) and IDENTIFIER.fullmatch(below.name):
                    facts = self._of(below)
                    if facts is not None:
                        self.files[f"{name}/{entry.name}/{below.name}"] = facts
                else:
                    self._add_foreign(below)

    def _add_foreign(self, entry: "os.DirEntry[str]") -> None:
        waiting = [entry]  # no recursion: folders may be nested deeper than Python goes
        while waiting:
            found = waiting.pop()
            if found.is_dir(follow_symlinks=False):
                waiting.extend(self._entries(found.path))
            else:
                self._add(found, self.foreign)

    def _add(self, entry: "os.DirEntry[str]", totals: FileTotals) -> None:
        facts = self._of(entry)
        if facts is not None:
            totals.add(facts)

    def _of(self, entry: "os.DirEntry[str]") -> ClaimFile | None:
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # NiFi has removed it since its folder was read
            return None
        except OSError as error:
            self._damaged(entry.path, error)
            return None
        return _facts(found) if stat.S_ISREG(found.st_mode) else None

    def _entries(self, path: str) -> "Iterator[os.DirEntry[str]]":
        try:
            with os.scandir(path) as entries:
                yield from entries
        except (OSError, ValueError) as error:
            self._damages.add(hidden_contents(path, error))

    def _damaged(self, path: str, error: OSError) -> None:
        self._damages.add(NiFiDamage(path, unreadable(error), loses_flowfiles=False))


def _facts(found: os.stat_result) -> ClaimFile:
    return ClaimFile(found.st_size, found.st_blocks * BLOCK_BYTES, found.st_mtime_ns // 1_000_000)

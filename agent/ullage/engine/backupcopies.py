"""Copying the files of a repository to where its backup lies, as many at a time as that place takes."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from ullage.engine.backupcontent import ContentGatherer
from ullage.engine.backupdirectory import read_pieces
from ullage.engine.backupfiles import RUNS_DIRECTORIES, BackupFile, is_run
from ullage.engine.backupplace import BackupPlace
from ullage.engine.backupresume import NotedCopies
from ullage.engine.backuptally import Progress, Tally
from ullage.engine.content.availability import Damage
from ullage.engine.documents import unavailable_event_file, unavailable_run
from ullage.engine.files import Files
from ullage.engine.lanes import in_lanes
from ullage.engine.ledger.keyspaces import FOLLOWING
from ullage.errors import ContentMissing
from ullage.wire.unavailable import UnavailableContent

Source = tuple[str, BackupFile]
"""Where a file is now, and what it is in the backup."""

NONE: Final[Mapping[tuple[int, int], Damage]] = MappingProxyType({})


class CopyDamages:
    """What could not be read while a backup was written."""

    def __init__(self) -> None:
        self.files = 0
        self.lost: dict[tuple[int, int], Damage] = {}  # by resource claim and offset
        self.saved: dict[tuple[int, int], Damage] = {}
        self.beside: list[UnavailableContent] = []

    def add(self, copy: "_Copy") -> None:
        """Those of one more file."""
        self.files += copy.is_damaged
        self.lost.update(copy.lost)
        self.saved.update(copy.saved)
        self.beside.extend(copy.beside)


class _Copy(NamedTuple):
    """What became of a file: what was put, if anything was; whether that is all of it; and what can't be read."""

    file: BackupFile | None
    is_damaged: bool = False
    lost: Mapping[tuple[int, int], Damage] = NONE
    saved: Mapping[tuple[int, int], Damage] = NONE
    beside: tuple[UnavailableContent, ...] = ()


class Copier:
    """Copies the files of one backup, and notes what is there."""

    def __init__(
        self,
        files: Files,
        gatherer: ContentGatherer,
        place: BackupPlace,
        sequence: int,
        before: Mapping[int, str],
        noted: NotedCopies,
    ) -> None:
        """`before` is what the place has of resource claims."""
        self._files = files
        self._gatherer = gatherer
        self._place = place
        self._sequence = sequence
        self._before = before
        self._noted = noted
        self.damages = CopyDamages()

    def copy_all(self, sources: Sequence[Source], on_progress: Progress) -> list[BackupFile]:
        """What was put of the sources, with the checksums; what can't be read is in `damages`."""
        total = sum(file.length for _, file in sources)
        done = 0
        on_progress(Tally(0, len(sources), 0, total))
        copied: list[BackupFile] = []
        place = self._place
        copying = in_lanes(sources, self._copy, _length, place.lanes, place.in_flight_bytes)
        for files_done, ((_, file), copy) in enumerate(copying, 1):
            self.damages.add(copy)
            if copy.file is not None:
                copied.append(copy.file)
                if not copy.is_damaged:
                    self._noted.add(copy.file)
            done += file.length
            on_progress(Tally(files_done, len(sources), done, total))
        return copied

    def _copy(self, job: Source) -> _Copy:
        source, file = job
        damaged = self._gatherer.damaged(file.resource) if file.container else {}
        if damaged or (file.container and not holds(self._files, source, file.length)):
            # Under a name of its own: the one of a whole copy stays free for the day when the file is mended.
            partial = msgspec.structs.replace(file, path=f"{file.path}-{self._sequence}", suffix=self._place.suffix)
            earlier = self._before.get(file.resource)
            found = self._gatherer.gather(
                self._place, file.resource, source, earlier, partial.lies_at, file.length, damaged
            )
            put = None if found.put is None else msgspec.structs.replace(partial, crc=found.put.crc)
            return _Copy(put, is_damaged=True, lost=found.lost, saved=found.saved)
        try:
            return _Copy(put_file(self._place, file, read_pieces(self._files, source, file.length)))
        except ContentMissing as error:
            if not file.directory:
                raise
            if file.directory in [RUNS_DIRECTORIES[space] for space in FOLLOWING]:
                return _Copy(None)  # nothing is lost: what it held is worked out again
            named = unavailable_run if is_run(file) else unavailable_event_file
            # A restored repository goes on without them.
            return _Copy(None, is_damaged=True, beside=(named(source, file.name, file.length, error),))


def put_file(place: BackupPlace, file: BackupFile, pieces: Iterable[bytes]) -> BackupFile:
    """Put a file where it belongs; what was put."""
    file = msgspec.structs.replace(file, suffix=place.suffix)
    length, crc = place.put(file.lies_at, pieces, file.length)
    return msgspec.structs.replace(file, length=length, crc=crc)


def holds(files: Files, path: str, length: int) -> bool:
    """Whether a file is there, and as long as that at least."""
    return files.exists(path) and files.size(path).length >= length


def _length(job: Source) -> int:
    return job[1].length

"""What a backup that was cut short leaves to the next run (docs/storage.md, "Backup").

    copy some files | note them | copy some more | note them | ... | publish
    a crash anywhere: what is noted and lies there in its length is not copied again

A note counts only for a run that follows the same manifest as the one that wrote it. Whoever published that manifest
may be removing still what it had listed before: that was put by runs which followed an earlier one.
"""

import os
import re
from collections.abc import Iterator, Mapping

from ullage.engine.backupfiles import BackupFile, BackupManifest, BackupNote, all_files, decode_note, encode_note
from ullage.engine.backupplace import NOTES, SNAPSHOTS, BackupPlace

BEGIN = 0
"""The number of the note that a first run begins with."""

BEGINNING = re.compile(rf"(?:{NOTES}/{BEGIN}|{SNAPSHOTS}/probe)[.][0-9a-f]{{16}}")
"""What a run may have put before that note was whole."""

NOTED_BYTES = 64 << 20
"""So much at most is copied again."""

NOTED_FILES = 256
"""And so many files."""


def files_there(place: BackupPlace, repository: str, previous: BackupManifest | None) -> dict[str, BackupFile]:
    """The files by path that need not be copied: of the last backup, and those that were noted since. What somebody has
    removed or cut is not among them.
    """
    held = place.held()
    files = [file for note in _notes(place, held, repository, _followed(previous)) for file in note.files]
    if previous is not None:
        files.extend(all_files(previous))
    return {file.path: file for file in files if held.get(file.lies_at) == file.length}


def was_begun(place: BackupPlace, held: Mapping[str, int], repository: str) -> bool:
    """Whether a first run of this repository began here, and was cut short before it published."""
    return any(True for _ in _notes(place, held, repository, _followed(None)))


def note_begin(place: BackupPlace, repository: str) -> None:
    """Before anything else is put where there is no manifest: what else lies there is not ours, then. A crash may leave
    the names of what is put later, so it must not lose this one.
    """
    place.settle([_put(place, BEGIN, BackupNote(repository=repository, followed=_followed(None), files=()))])


class NotedCopies:
    """What one run has copied, noted where it lies now and then."""

    def __init__(self, place: BackupPlace, repository: str, previous: BackupManifest | None) -> None:
        self._place = place
        self._repository = repository
        self._followed = _followed(previous)
        self._number = 0
        self._files: list[BackupFile] = []
        self._bytes = 0

    def add(self, file: BackupFile) -> None:
        """One more that is there, whole."""
        self._files.append(file)
        self._bytes += file.length
        if self._bytes >= NOTED_BYTES or len(self._files) >= NOTED_FILES:
            self._number += 1
            note = BackupNote(repository=self._repository, followed=self._followed, files=tuple(self._files))
            _put(self._place, self._number, note)
            self._files, self._bytes = [], 0


def _followed(previous: BackupManifest | None) -> str:
    """What tells a manifest from all others: no two have their snapshot at the same place."""
    return "" if previous is None else previous.snapshot.lies_at


def _notes(place: BackupPlace, held: Mapping[str, int], repository: str, followed: str) -> Iterator[BackupNote]:
    """What runs of this repository noted that followed the same manifest, whole."""
    for path in sorted(held):
        if path.startswith(f"{NOTES}/") and held[path]:
            note = decode_note(place.read(path, 0, held[path]))
            if note is not None and (note.repository, note.followed) == (repository, followed):
                yield note


def _put(place: BackupPlace, number: int, note: BackupNote) -> str:
    path = os.path.join(NOTES, f"{number}{place.suffix}")
    place.put(path, [encode_note(note)])
    return path

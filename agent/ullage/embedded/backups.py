"""Backups of an open repository, and looking at those that there are."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from ullage.beneath import LeadsOut
from ullage.embedded.backupplaces import name_of_place, place_of_backup, place_to_read
from ullage.embedded.backupruns import BackupRuns, Result
from ullage.engine.backupfiles import lies_in
from ullage.engine.backupgenerations import generations_at
from ullage.engine.backupplace import BackupPlace
from ullage.engine.backuptally import Progress, Tally
from ullage.engine.backupverify import verify
from ullage.engine.engine import Engine
from ullage.engine.oserrors import is_disk_full
from ullage.errors import DirectoryUnusable, DiskFull, InvalidArgument
from ullage.interface.buckets import Bucket
from ullage.interface.checks import checked_text
from ullage.interface.repository import Bytes
from ullage.wire.upkeep import (
    BackupGeneration,
    BackupProgress,
    BackupReport,
    BackupVerification,
    Keep,
    VerificationRequest,
)


class EmbeddedBackups:
    """For whoever asks. `within` is always a folder that others may write to: no link below it is followed."""

    def __init__(self, engine: Engine, runs: BackupRuns, owner: str) -> None:
        self._engine = engine
        self._runs = runs
        self._owner = owner

    def write(
        self, destination: str | Bucket, keep: Keep | None, on_progress: Bytes | None, within: str
    ) -> BackupReport:
        """Write one, in this thread."""
        work = self._writing(destination, keep, within)
        return self._runs.here("write", self._owner, name_of_place(destination), _telling(work, on_progress))

    def begin_writing(
        self, destination: str | Bucket, keep: Keep | None, within: str, key: str | None
    ) -> BackupProgress:
        """Begin to write one. RunUnderWay."""
        work = self._writing(destination, keep, within)
        return self._runs.begin("write", self._owner, name_of_place(destination), work, key).progress

    def generations(self, source: str | Bucket, within: str) -> list[BackupGeneration]:
        """Those of a backup."""
        with _at(name_of_place(source)):
            return generations_at(place_to_read(source, within))

    def verify(
        self, source: str | Bucket, asked: VerificationRequest, on_progress: Bytes | None, within: str
    ) -> BackupVerification:
        """Look at one, in this thread."""
        work = _verifying(source, asked, within)
        return self._runs.here("verify", self._owner, asked.source, _telling(work, on_progress))

    def begin_verifying(
        self, source: str | Bucket, asked: VerificationRequest, within: str, key: str | None
    ) -> BackupProgress:
        """Begin to look at one. RunUnderWay."""
        work = _verifying(source, asked, within)
        return self._runs.begin("verify", self._owner, asked.source, work, key).progress

    def all(self) -> list[BackupProgress]:
        """Those that go on, and the last ones, without what came of them."""
        return [msgspec.structs.replace(run.progress, report=None, found=None) for run in self._runs.all()]

    def find(self, id: str) -> BackupProgress:
        """How far one is. NotFound."""
        return self._runs.find(checked_text(id, "a run")).progress

    def stop(self, id: str) -> BackupProgress:
        """Stop one. NotFound."""
        run = self._runs.find(checked_text(id, "a run"))
        run.stop.set()
        return run.progress

    def _writing(self, destination: str | Bucket, keep: Keep | None, within: str) -> Callable[[Progress], BackupReport]:
        place = place_of_backup(destination)

        def work(on_progress: Progress) -> BackupReport:
            with _at(name_of_place(destination)):
                return self._engine.backup(place, on_progress, within, keep)

        return work


def verification_of(place: BackupPlace, asked: VerificationRequest, on_progress: Progress) -> BackupVerification:
    """What is found in a backup; without a seed it is one that nobody knows."""
    drawn = secrets.randbits(32) if asked.seed is None else asked.seed
    return verify(place, asked.generation, asked.sample, drawn, on_progress)


def told_of(on_progress: Bytes | None) -> Progress:
    """What tells of the bytes alone."""

    def told(tally: Tally) -> None:
        if on_progress is not None:
            on_progress(tally.bytes_done, tally.bytes)

    return told


def _verifying(
    source: str | Bucket, asked: VerificationRequest, within: str
) -> Callable[[Progress], BackupVerification]:
    place = place_to_read(source, within)

    def work(on_progress: Progress) -> BackupVerification:
        with _at(asked.source):
            return verification_of(place, asked, on_progress)

    return work


def _telling(work: Callable[[Progress], Result], on_progress: Bytes | None) -> Callable[[Progress], Result]:
    """The same work, of which somebody else is told too."""
    tell = told_of(on_progress)

    def told(reach: Progress) -> Result:
        def both(tally: Tally) -> None:
            reach(tally)
            tell(tally)

        return work(both)

    return told


@contextmanager
def _at(place: str) -> Iterator[None]:
    """What goes wrong at a place of somebody's choice, in words that help: DiskFull, DirectoryUnusable. InvalidArgument
    for a link: whoever can plant one where backups lie would have the repository's process read elsewhere.
    """
    try:
        yield
    except LeadsOut as error:
        raise InvalidArgument(f"a link lies on the way to {place}, and is not followed") from error
    except OSError as error:
        # What the repository's own files say stands in its log: the paths are nobody's who only has backups made.
        if not isinstance(error.filename, str) or not lies_in(error.filename, place):
            raise
        if is_disk_full(error):
            raise DiskFull(
                f"there is no room for the backup in {place}: {error.filename} can't grow. The generations that are "
                "there still count; make room, or keep fewer of them"
            ) from error
        raise DirectoryUnusable(
            f"{error.filename}: {error.strerror}. Say another place than {place}, or put right what lies there"
        ) from error

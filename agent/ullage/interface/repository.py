"""A repository: what `ullage.open` and `ullage.connect` return."""

from abc import abstractmethod
from collections.abc import Callable, Sequence

from ullage.interface.buckets import Bucket
from ullage.interface.handles import Handles
from ullage.interface.leases import Leases
from ullage.interface.provenance import Provenance
from ullage.interface.queues import Queues
from ullage.interface.reclamation import Reclamation
from ullage.interface.session import Session
from ullage.streams import Closable, ContentStream
from ullage.wire.holders import HolderStatus
from ullage.wire.service import ClockStatus, ServiceStatus
from ullage.wire.setaside import RecordSetAside
from ullage.wire.unavailable import UnavailableContent
from ullage.wire.upkeep import (
    BackupGeneration,
    BackupProgress,
    BackupReport,
    BackupVerification,
    CheckpointReport,
    CheckReport,
    Keep,
)
from ullage.wire.volumes import Volume

Bytes = Callable[[int, int], None]
"""Is told how many bytes, or other things, are done, and how many there are in all."""


class Repository(Closable):
    """An open repository. Thread-safe, but for its sessions.

    >>> with ullage.open("casks", create=True) as repository:
    ...     handle = repository.handles.put(b"content")
    ...     repository.handles.get(handle)
    b'content'

    Every method may raise RepositoryStopped after a failure that only a restart mends, and, of a remote repository,
    NotReachable if the service does not answer, Unauthenticated and Forbidden if it does not let the caller in.
    """

    handles: Handles
    """Content by id."""

    queues: Queues
    """Where FlowFiles wait."""

    provenance: Provenance
    """What happened."""

    reclamation: Reclamation
    """What the disk holds, and giving back what is dead."""

    leases: Leases
    """Promises to readers."""

    @abstractmethod
    def session(self, component: str = "", component_type: str = "", *, lease_seconds: float = 30.0) -> Session:
        """A new session, to be used as a context manager by one thread.

        `component` and `component_type` are who works in it, as provenance events name it: a processor's id and what
        kind it is. `lease_seconds` (up to an hour) is how long a remote session outlives its last sign of life; while
        it is used as a context manager those are given in the background.

        >>> with repository.session("fetcher", "HTTP source") as session:
        ...     session.transfer(session.create(), "inbox")
        ...     session.commit()
        >>> repository.provenance.event(1).component
        'fetcher'
        """

    @abstractmethod
    def content(self, id: str, start: int = 0, size: int | None = None) -> ContentStream:
        """The content of a handle, or of a FlowFile, which stays in its queue; or `size` bytes of it from `start` on.

        HandleNotFound and HandleDeleted as `Handles.stream`, FlowFileNotFound if there is nothing by this name at all.
        InvalidArgument for a range beyond the end.

        >>> with repository.content(repository.queues.put("inbox", b"content"), 3) as content:
        ...     content.read()
        b'tent'
        """

    @abstractmethod
    def state(self) -> ServiceStatus:
        """The repository at a glance: its id, its log, its containers, how much stands in it, what failed lately.

        >>> repository.state().is_ready
        True
        """

    @abstractmethod
    def holders(self) -> list[HolderStatus]:
        """Who holds what, and until when: leases, staged writes, streams, holds of events; of a service also sessions,
        snapshots and uploads of its clients. By kind, then by beginning.

        >>> repository.holders()
        []
        """

    @abstractmethod
    def check(self, *, deep: bool = False, on_progress: Bytes | None = None) -> CheckReport:
        """Verify everything against everything; with `deep`, every byte of live content too, and every file
        that the next start will read, though memory has what is in it. It never mends.

        What is found is told, not raised. Nothing may be committed meanwhile.

        >>> repository.check(deep=True).problems
        ()
        """

    @abstractmethod
    def unavailable(self, limit: int = 1_000) -> list[UnavailableContent]:
        """Up to so many FlowFiles and handles whose content is known to be damaged or missing: by a read, by a deep
        `check`, or by the proof that follows an unclean end. Consumers pass over them, and their time stands still. A
        swap file that a poll, or the reading of all of them after a start, found damaged or missing is one entry.

        >>> repository.unavailable()
        []
        """

    @abstractmethod
    def retry_unavailable(self) -> int:
        """Read again what could not be read, after its files were mended; how many FlowFiles returned to their places.

        >>> repository.retry_unavailable()
        0
        """

    @abstractmethod
    def drop_unavailable(self, ids: Sequence[str], *, accept_loss: bool = False) -> int:
        """Give up those of these FlowFiles and handles whose content can't be read; how many. Others are left alone.

        InvalidArgument without `accept_loss`: mending the file later would bring nothing back.

        >>> repository.drop_unavailable([], accept_loss=True)
        0
        """

    @abstractmethod
    def set_aside(self, limit: int = 1_000) -> list[RecordSetAside]:
        """Up to so many records of the log, the snapshot or swap files that can't be used, though their checksums hold:
        opening set them aside with their bytes, and with the FlowFiles that they name. What they may point at is kept.

        >>> repository.set_aside()
        []
        """

    @abstractmethod
    def drop_set_aside(self, ids: Sequence[str], *, accept_loss: bool = False) -> int:
        """Give up those of these records that there are, and the FlowFiles that were set aside with them; how many.

        InvalidArgument without `accept_loss`.

        >>> repository.drop_set_aside([], accept_loss=True)
        0
        """

    @abstractmethod
    def volumes(self) -> list[Volume]:
        """The volumes that containers lie on: what each can do now, and what would be lost with it. Works out which
        FlowFiles have content there, swap files included, and asks each volume anew.

        >>> [(volume.container, volume.state) for volume in repository.volumes()]
        [('c1', 'available')]
        """

    @abstractmethod
    def forget_volume(self, container: str, *, accept_loss: bool = False) -> Volume:
        """Give up a container whose volume is away, with all that lies on it: what that was (`volumes` says it before).
        Each FlowFile and handle gets a DROP event. The name is never used again, whatever is mounted there.

        InvalidArgument without `accept_loss`, for a volume that is there (have it evacuated), and for the only one.

        >>> repository.forget_volume("c1", accept_loss=True)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ullage.errors.InvalidArgument: the volume of c1 is there: ...
        """

    @abstractmethod
    def accept_clock(self) -> ClockStatus:
        """Believe the machine's clock, which `state().clock` says is implausible: it is more than 30 days from the last
        commit. Whatever is due by it is due. Survives a restart; where the clock is plausible anyway, nothing changes.

        InvalidArgument for a time that no calendar has.

        >>> repository.accept_clock().reason
        ''
        """

    @abstractmethod
    def checkpoint(self, *, on_progress: Callable[[int], None] | None = None) -> CheckpointReport:
        """Write a snapshot and drop the logs that it covers, so that the next start is quick.

        `on_progress` is told how many records are written. With maintenance this happens by itself, now and then.

        >>> repository.checkpoint().snapshot_bytes > 0
        True
        """

    @abstractmethod
    def backup(
        self, destination: str | Bucket, *, keep: Keep | None = None, on_progress: Bytes | None = None
    ) -> BackupReport:
        """Bring the backup in a directory or bucket up to date while sessions go on; what it has already is not copied
        again.

        A directory is one of the machine where the repository lies; a bucket may be said as `s3://BUCKET/PREFIX`. A
        service takes what its spec.service.backupDirectory and backupBuckets allow. `ullage.restore` makes a repository
        of either.

        Each backup is a generation. `keep` says which of them stay, this one included, and what none of them needs is
        removed; without it that is as it was said before, and the newest alone if it never was.

        Content that can't be read stops no backup: the report names what is in it without its content (`lost`), and
        what only the last backup had (`saved`). BucketRefused; BucketUnavailable; BackupOvertaken: somebody else wrote
        one to the same bucket and prefix meanwhile; RunUnderWay: a service writes another one at this moment.

        >>> repository.backup("copy").kept_files
        0
        """

    @abstractmethod
    def generations(self, source: str | Bucket) -> list[BackupGeneration]:
        """The moments that a backup, in a directory or a bucket, can be restored to, oldest first. Places are those of
        `backup`. NotABackup; BucketRefused; BucketUnavailable.

        >>> report = repository.backup("copy")
        >>> [each.sequence for each in repository.generations("copy")] == [report.generation]
        True
        """

    @abstractmethod
    def verify_backup(
        self,
        source: str | Bucket,
        *,
        generation: int | None = None,
        sample: float = 1.0,
        seed: int | None = None,
        on_progress: Bytes | None = None,
    ) -> BackupVerification:
        """Whether a backup can be restored, as `ullage.verify_backup` says it. A service reads it where it runs, and is
        asked how far it is now and then; Ctrl-C, or an error of `on_progress`, stops it there too.

        >>> report = repository.backup("copy")
        >>> repository.verify_backup("copy", sample=0.5, seed=1).damaged
        ()
        """

    @abstractmethod
    def backup_runs(self) -> list[BackupProgress]:
        """Backups and verifications of this repository's process: those that go on, with who asked for them, since when
        and how far they are, and how the last ones ended; oldest first. What came of one `backup_run` tells.

        >>> report = repository.backup("copy")
        >>> repository.backup_runs()[-1].files_done == report.copied_files
        True
        """

    @abstractmethod
    def backup_run(self, id: str) -> BackupProgress:
        """How far one of these is, and what came of it. NotFound.

        >>> report = repository.backup("copy")
        >>> repository.backup_run(repository.backup_runs()[-1].id).report == report
        True
        """

    @abstractmethod
    def stop_backup(self, id: str) -> BackupProgress:
        """Stop one of these after the file that is under way: whoever waits for it gets BackupStopped. NotFound.

        >>> repository.stop_backup("none")
        Traceback (most recent call last):
        ullage.errors.NotFound: there is no backup run none: only the last few are remembered, and none beyond a restart
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of everything. What was committed is on the disk anyway. Safe to call twice.

        Whatever is asked of it afterwards raises RepositoryClosed.

        >>> repository.close()
        """

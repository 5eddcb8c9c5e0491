"""What is done to a repository of this machine that nobody has open: it is made, mended, or brought back."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from ullage.contract import ContentRepository, time_of
from ullage.embedded.adopting import adopt_from
from ullage.embedded.backupplaces import name_of_place, place_to_read
from ullage.embedded.backups import told_of, verification_of
from ullage.embedded.erasure import erase_registered, register_at
from ullage.embedded.partialrestoring import (
    WantedRecords,
    partial_report,
    records_beside,
    restore_some as _restore_some,
)
from ullage.embedded.rejoining import rejoin_from
from ullage.embedded.repository import described, open_embedded
from ullage.embedded.restoreddocument import document_of
from ullage.embedded.shares import points_of, restore_replicated, restore_some_replicated, share_at
from ullage.engine.backupfiles import lies_in
from ullage.engine.backupgenerations import generations_at, reading
from ullage.engine.engine import Engine
from ullage.engine.erasure.eraser import ErasureSteps
from ullage.engine.files import OsFiles
from ullage.engine.opening import ERASING, IDENTITY, SALVAGING, read_identity
from ullage.engine.oserrors import is_disk_full
from ullage.engine.registers import (
    PendingErasure,
    RegisteredSubject,
    RestoredMoment,
    merged,
    note_pending,
    pending_erasure,
)
from ullage.engine.restoring import restore_manifest
from ullage.engine.salvaging import salvage as _salvage
from ullage.engine.shipping.sharerestoring import point_at
from ullage.engine.wal.format import FORMAT_VERSION
from ullage.engine.wal.serde import SerDe
from ullage.errors import DirectoryNotEmpty, DirectoryUnusable, DiskFull, InvalidArgument
from ullage.interface.buckets import Bucket
from ullage.interface.checks import verification_request
from ullage.interface.repository import Bytes, Repository
from ullage.wire.erasure import RestoredErasure
from ullage.wire.salvage import SalvageReport
from ullage.wire.upkeep import (
    AdoptionReport,
    BackupGeneration,
    BackupReport,
    BackupVerification,
    InitReport,
    Mended,
    PartialRestoration,
    RecoveryReport,
    RejoinReport,
    RepairReport,
    RestorationReport,
    SharePoint,
)


def initialize(
    root: str | os.PathLike[str] | None = None, *, config: str | os.PathLike[str] | ContentRepository | None = None
) -> InitReport:
    """Make an empty repository; one whose making was interrupted is finished. `root` and `config` as in `ullage.open`.

    RepositoryExists if there is one; DirectoryNotEmpty if something else lies there.

    >>> ullage.initialize("casks").containers
    {'c1': 'c1'}
    """
    identity = Engine.initialize(described(root, config).spec)
    return InitReport(repository=identity.repository, containers=identity.containers)


def repair(
    root: str | os.PathLike[str] | None = None,
    *,
    config: str | os.PathLike[str] | ContentRepository | None = None,
    deep: bool = False,
    dry_run: bool = False,
    on_progress: Bytes | None = None,
    on_recovery: Callable[[RecoveryReport], None] | None = None,
) -> RepairReport:
    """Mend what can be mended without losing anything, then check again; with `dry_run`, only say what would be done.

    It adopts orphans (for `Reclamation.clean` to take away), records the true length of a file whose dead tail is
    longer or shorter than it should be, forgets the record of a file that nobody uses and that is gone, and removes
    leftovers. Whatever else is found is left as it is, and told. Nobody may have the repository open, and one that does
    not open is not repaired: errors are those of `ullage.open`.

    >>> ullage.initialize("casks").containers
    {'c1': 'c1'}
    >>> report = ullage.repair("casks", deep=True)
    >>> report.mended, report.check.problems
    ([], ())
    """
    document = described(root, config)
    with open_embedded(None, document, create=False, maintain=False, on_recovery=on_recovery) as repository:
        plan = repository.engine.repair.plan(deep=deep, on_progress=on_progress)
        found = plan.report
        if plan.steps and not dry_run:
            repository.engine.repair.execute(plan)
            found = repository.check(deep=deep, on_progress=on_progress)
    mended = [
        Mended(mend=str(step.mend), path=step.path, resource=step.resource, length=step.length) for step in plan.steps
    ]
    return RepairReport(mended=mended, check=found)


def restore(
    source: str | os.PathLike[str] | Bucket,
    root: str | os.PathLike[str],
    *,
    containers: Mapping[str, str] | None = None,
    generation: int | None = None,
    registers: Collection[str | os.PathLike[str]] = (),
    on_progress: Bytes | None = None,
    on_phase: Callable[[str], None] = lambda _words: None,
) -> RestorationReport:
    """Make a repository of a backup, in a directory that is empty or not there, and check every byte of it.

    One that was cut short goes on with what is there, to the same point; what is kept of it the report says.

    `source` is a directory or a bucket, which may be said as `s3://BUCKET/PREFIX`: a backup, or a share that a service
    has shipped there (docs/shipping.md), of which `generation` is the number of one of `restore_points`.
    `containers` says where below `root` some containers go, by name; the others lie where they lay. `generation` is the
    number of one of `generations`, the newest if it is not said; no backup that is written meanwhile takes its files
    away. `registers` are files that `ullage erase --register` has written: whom they name, or the newest generation
    does, is erased from what is restored before anybody can open it, of which `on_phase` is told in words. NotABackup;
    DirectoryNotEmpty; InvalidArgument for a container that the backup does not have, and for what is no register;
    BucketRefused; BucketUnavailable.

    >>> report = repository.backup("copy")
    >>> restored = ullage.restore("copy", "again", containers={"c1": "disks/one"})
    >>> restored.backup.last_id == report.last_id, restored.check.problems
    (True, ())
    """
    root = os.path.abspath(root)
    to_erase = PendingErasure(
        format=FORMAT_VERSION, source=name_of_place(source), asked=generation, subjects=_registered(registers)
    )
    report = _erasing_since(root, to_erase)
    if report is None:
        report = _made_of_copy(source, root, dict(containers or {}), generation, on_progress, to_erase)
    document = document_of(read_identity(OsFiles(), root), root, {})
    pending, erased = pending_erasure(OsFiles(), root), tuple[RestoredErasure, ...]()
    if pending is not None:
        with _into(root):
            erased = erase_registered(document, pending, ErasureSteps(on_phase, lambda _count: None))
    with open_embedded(None, document, create=False, maintain=False, is_salvage=True) as repository:
        check = repository.check(deep=True, on_progress=on_progress)
    return RestorationReport(backup=report, check=check, erased=erased)


def _registered(registers: Collection[str | os.PathLike[str]]) -> tuple[RegisteredSubject, ...]:
    """Whom these registers name. InvalidArgument: one of them is not there, or is none."""
    if missing := next((path for path in registers if not os.path.exists(path)), None):
        raise InvalidArgument(
            f"{os.fspath(missing)} is not there: nothing was restored, or it would bring back whom it names"
        )
    return merged(*(register_at(os.fspath(path)) for path in registers))


def _erasing_since(root: str, to_erase: PendingErasure) -> BackupReport | None:
    """What a restoration has made from which something is to be erased still; None if there is none. DirectoryNotEmpty:
    it was another one.
    """
    files = OsFiles()
    pending = pending_erasure(files, root) if files.exists(os.path.join(root, IDENTITY)) else None
    if pending is None or pending.made is None:
        return None
    if pending.source != to_erase.source or to_erase.asked not in (pending.asked, pending.made.generation):
        how = "" if pending.asked is None else f" --generation {pending.asked}"
        raise DirectoryNotEmpty(
            f"{root} was restored from {pending.source}, and what a register names is not erased from it yet: say "
            f"that place{how}, or remove what is there"
        )
    if merged(pending.subjects, to_erase.subjects) != pending.subjects:
        note_pending(
            files, root, msgspec.structs.replace(pending, subjects=merged(pending.subjects, to_erase.subjects))
        )
    return pending.made


def _made_of_copy(
    source: str | os.PathLike[str] | Bucket,
    root: str,
    containers: dict[str, str],
    generation: int | None,
    on_progress: Bytes | None,
    to_erase: PendingErasure,
) -> BackupReport:
    """Make the repository of a backup or of a share; what is to be erased from it is noted, and not done."""
    share = share_at(source)
    if share is not None:
        with _into(root):
            return restore_replicated(share, root, containers, generation, on_progress, to_erase)
    place = place_to_read(source)
    with reading(place, generation) as manifest, _into(root):
        spec = document_of(manifest.identity, root, containers).spec
        told = on_progress or (lambda _done, _total: None)
        to_erase = msgspec.structs.replace(to_erase, subjects=merged(to_erase.subjects, manifest.erased))
        return restore_manifest(OsFiles(), place, manifest, spec, told, to_erase)


def restore_some(
    source: str | os.PathLike[str] | Bucket,
    root: str | os.PathLike[str],
    *,
    queues: Collection[str] = (),
    ids: Collection[str] = (),
    containers: Mapping[str, str] | None = None,
    generation: int | None = None,
    registers: Collection[str | os.PathLike[str]] = (),
    on_progress: Bytes | None = None,
) -> PartialRestoration:
    """Make a repository of some of a backup, or of some of what a service has shipped, in a directory that is empty or
    not there, and check every byte of it: of all FlowFiles of these queues, in their order, and of the FlowFiles and
    handles with these ids.

    All keep their ids and attributes. Of content no more is fetched than they have. The repository is a new one, and
    has no history. `source`, `containers`, `generation` and `registers` as in `restore`: whom one names is left out.
    NotFound, and nothing is made, where the backup lacks a queue or an id; DirectoryNotEmpty; NotABackup;
    BucketRefused; BucketUnavailable.

    >>> ids = repository.queues.put_many("orders", [b"one", b"two"])
    >>> report = repository.backup("copy")
    >>> ullage.restore_some("copy", "orders-alone", queues=["orders"]).queues
    {'orders': 2}
    """
    if not queues and not ids:
        raise InvalidArgument("say what is to be restored: names of queues, or ids of FlowFiles and handles")
    root, named = os.path.abspath(root), _registered(registers)
    wanted = WantedRecords(frozenset(queues), frozenset(ids), named)
    share = share_at(source)
    if share is not None:
        with _into(root):
            return restore_some_replicated(share, root, wanted, generation, on_progress, dict(containers or {}))
    place = place_to_read(source)
    with reading(place, generation) as manifest, _into(root):
        document = document_of(manifest.identity, root, dict(containers or {}))
        with records_beside(root) as scratch:
            told = on_progress or (lambda _done, _total: None)
            moment = RestoredMoment(manifest.identity.repository, manifest.last_id, manifest.created_millis)
            wanted = wanted.as_of(moment, manifest.erased)
            made = _restore_some(place, manifest, document.spec, wanted, scratch, told)
    return partial_report(document, manifest.sequence, made, on_progress)


def is_whole(root: str | os.PathLike[str]) -> bool:
    """Whether a repository is there, and not what a restoration or a salvage has left that was cut short."""
    is_partial = any(os.path.exists(os.path.join(root, name)) for name in (SALVAGING, ERASING))
    return os.path.exists(os.path.join(root, IDENTITY)) and not is_partial


def salvage(
    source: str | os.PathLike[str],
    root: str | os.PathLike[str] | None = None,
    *,
    config: str | os.PathLike[str] | ContentRepository | None = None,
    on_progress: Bytes | None = None,
) -> SalvageReport:
    """Make a repository of everything that a damaged one still proves, and say what can't be had.

    `root` and `config` say where, as in `ullage.open`: it is empty or not there. `source` is only read, and nobody may
    have it open. FlowFiles and handles of which a lost record may say more wait in queue `salvaged`. InvalidArgument
    where one lies in the other; DirectoryNotEmpty; NotARepository where nothing proves anything; RepositoryLocked.

    >>> ullage.initialize("damaged").containers
    {'c1': 'c1'}
    >>> made = ullage.salvage("damaged", "salvaged")
    >>> made.is_whole, made.lost
    (True, ())
    """
    spec = described(root, config).spec
    return _salvage(os.path.abspath(source), spec, on_progress=on_progress or (lambda _done, _total: None))


def generations(source: str | os.PathLike[str] | Bucket) -> list[BackupGeneration]:
    """The moments that a backup, in a directory or a bucket, can be restored to, oldest first. NotABackup.

    >>> for _ in range(3):
    ...     report = repository.backup("copy", keep=ullage.Keep(last=2))
    >>> [each.sequence for each in ullage.generations("copy")]
    [2, 3]
    """
    return generations_at(place_to_read(source))


def generation_at(source: str | os.PathLike[str] | Bucket, millis: int) -> int:
    """The newest generation of a backup, or point of a share, that is not later than a moment, in milliseconds since
    1970: `restore` and `restore_some` take it. Of a share no more is read than one base's log. InvalidArgument where
    all that there is is later; NotABackup; BucketRefused; BucketUnavailable.

    >>> report = repository.backup("copy")
    >>> ullage.generation_at("copy", 4_102_444_800_000) == report.generation
    True
    """
    share = share_at(source)
    if share is not None:
        return point_at(share.place, share.share, millis, SerDe())
    found = generations_at(place_to_read(source))
    serving = [each.sequence for each in found if each.created_millis <= millis]
    if not serving:
        raise InvalidArgument(
            f"{name_of_place(source)} goes back to {time_of(found[0].created_millis)}, not to {time_of(millis)}"
        )
    return serving[-1]


def restore_points(source: str | os.PathLike[str] | Bucket) -> list[SharePoint]:
    """The points that a share (docs/shipping.md) can be restored to, oldest first; reads its log. NotABackup where
    there is no share; InvalidArgument where there are several; BucketRefused; BucketUnavailable.

    >>> ullage.restore_points("s3://flows/replicas")  # doctest: +SKIP
    [SharePoint(number=1, last_id=0, millis=1764201600000)]
    """
    return points_of(source)


def adopt(
    source: str | os.PathLike[str] | Bucket,
    root: str | os.PathLike[str],
    *,
    node_is_off: bool = False,
    node: str = "",
    containers: Mapping[str, str] | None = None,
    check: bool = False,
    on_progress: Bytes | None = None,
) -> AdoptionReport:
    """Have a repository whose node is gone go on in `root`, from its share (docs/shipping.md). Every byte that is
    fetched is checked, and read once more, in the background, when it is served; `check`: before this returns.

    First the share is taken: the node that wrote it puts nothing there any more, also if it comes back and is started.
    Then what was put is restored, up to the newest point. `root` is empty or not there, and `containers` are as for
    `restore`; `node` is who adopts it, as people are told. What the other node acknowledged and had not shipped is not
    here. So, where it serves by a lease (`spec.replication.adoptAfter`), this waits until that can hold no more, and
    else `node_is_off` has to be said; said, nobody waits. Cut short, it leaves a share that nobody writes: said again,
    it goes on. NotABackup; DirectoryNotEmpty; InvalidArgument, also where the other node renews its lease; ShareFenced:
    somebody else adopted it at the same moment; BucketRefused; BucketUnavailable.

    >>> ullage.adopt("s3://flows/replicas", "again", node_is_off=True).owner  # doctest: +SKIP
    'node-1'
    """
    with _into(root):
        return adopt_from(source, root, dict(containers or {}), node, on_progress, node_is_off=node_is_off, check=check)


def rejoin(
    root: str | os.PathLike[str],
    source: str | os.PathLike[str] | Bucket,
    to: Repository | None = None,
) -> RejoinReport:
    """What the repository in `root` has alone since another took its share, and, where `to` is the
    repository that goes on there, bring it over: as new FlowFiles at the end of their queues, and new handles.

    Nobody has `root` open; no record in it is changed, though with `to` it is opened as at each start, which finishes
    what a crash cut short. It may be said again: nothing is brought twice for as long as `to` remembers what it was
    asked. InvalidArgument: nobody has taken the share since, or a copy of an earlier state of `root` has, or nothing
    proves what `root` had shipped, or it does not go back to that any more; NotABackup; RepositoryLocked;
    RepositoryDamaged; BucketRefused; BucketUnavailable.

    >>> ullage.rejoin("casks", "s3://flows/replicas").queues  # doctest: +SKIP
    {'orders': 17}
    """
    return rejoin_from(root, source, to)


def verify_backup(
    source: str | os.PathLike[str] | Bucket,
    *,
    generation: int | None = None,
    sample: float = 1.0,
    seed: int | None = None,
    on_progress: Bytes | None = None,
) -> BackupVerification:
    """Whether a backup, in a directory or a bucket, can be restored: all that its generations need is looked for, and
    read and compared, or a `sample` of it: a share of the files that `seed` draws, another one each time if it is None.

    What is damaged is told; nothing is written. `generation` is the number of one, else all are looked at. NotABackup;
    RepositoryDamaged where the manifest itself can't be read; BucketRefused; BucketUnavailable.

    >>> report = repository.backup("copy")
    >>> found = ullage.verify_backup("copy")
    >>> found.read_files == found.files, found.damaged
    (True, ())
    """
    asked = verification_request(name_of_place(source), generation, sample, seed)
    return verification_of(place_to_read(source), asked, told_of(on_progress))


@contextmanager
def _into(root: str | os.PathLike[str]) -> Iterator[None]:
    """What goes wrong where a repository is being made, as it is told of a backup: DiskFull, DirectoryUnusable."""
    place = os.path.abspath(root)
    try:
        yield
    except OSError as error:
        where = error.filename
        if not isinstance(where, str) or not (lies_in(where, place) or lies_in(place, where)):  # on the way to it
            raise
        if is_disk_full(error):
            raise DiskFull(f"there is no room in {place}: make some, and say the same again, which goes on") from error
        raise DirectoryUnusable(f"{where}: {error.strerror}. Say another place than {place}") from error

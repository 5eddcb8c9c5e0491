"""Shipping of an open repository, by a thread of its own: what fails is told, tried again, and stops nothing else."""

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Final

from ullage.contract import ReplicationMode, ReplicationSettings
from ullage.embedded.backupplaces import place_of_share
from ullage.embedded.leasekeeping import LeaseKeeper
from ullage.embedded.toldonce import ToldOnce
from ullage.engine.engine import Engine
from ullage.engine.files import OsFiles
from ullage.engine.opening import lock_repository
from ullage.engine.provenance.store import ProvenanceStore
from ullage.engine.shipping.adopting import owner_of
from ullage.engine.shipping.lease import OwnedLease
from ullage.engine.shipping.ownwriters import (
    DAMAGED,
    NOTE,
    UNKNOWN_WRITER,
    WriterNote,
    forget_writers,
    note_fence,
    noted_fence,
)
from ullage.engine.shipping.shareplace import SharePlace
from ullage.engine.shipping.shipper import Shipper
from ullage.engine.shipping.shippingparts import ShippingLimits, ShippingParts
from ullage.engine.wal.serde import SerDe
from ullage.errors import InvalidArgument, ShareFenced, UllageError
from ullage.interface.buckets import Bucket, authorities_beside, checked_bucket
from ullage.wire.service import ReplicationState, ReplicationStatus

PATIENCE_SECONDS: Final = 5.0
"""How long one request is tried; then what waits is looked at, and it is begun again."""

PAUSES: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds between tries that fail one after the other."""

CLOSING_SECONDS: Final = 30.0
"""How long a close waits for what is under way."""

TASK: Final = "replication"


class Replication:
    """One share of one repository. `status` may be called from any thread."""

    def __init__(
        self,
        engine: Engine,
        place: SharePlace,
        url: str,
        owner: str,
        settings: ReplicationSettings,
        on_failure: Callable[[str, Exception], None],
        reopen: Callable[[], None] = lambda: None,
        keeper: LeaseKeeper | None = None,
    ) -> None:
        """`reopen` has the place reached anew with the next try. `keeper`: of the lease that is served by."""
        self._keeper = keeper
        self._reopen = reopen
        self._max_lag_millis = int(settings.max_lag)
        self._engine = engine
        self._url = url
        self._interval = settings.interval.seconds
        self._told = ToldOnce(TASK, on_failure)
        self._place = place
        self._owner = owner
        self._unnoted: tuple[str, ShareFenced] | None = None
        """Who has the share, where this root does not say so yet, and what was said of it."""
        self._shipper = Shipper(parts_of(engine), place, owner, limits_of(settings))
        self._shipper.lease = None if keeper is None else keeper.held
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ullage-replication", daemon=True)
        self._failures = 0
        self._is_fenced = False

    def start(self) -> None:
        """Begin, behind whoever starts it."""
        self._thread.start()
        if self._keeper is not None:
            self._keeper.start()

    def stop(self) -> None:
        """Ship what is left, if the bucket answers, once nobody commits any more."""
        self._engine.committer.right.end()  # what the close has to commit is admitted, whoever has the share
        self._stop.set()
        if self._keeper is not None:
            self._keeper.stop()
        self._thread.join(CLOSING_SECONDS)
        if self._thread.is_alive():
            return
        if self._is_fenced:
            self._note_fence()
            return
        if not self._failures and self._try():
            self._shipper.close()

    def step(self) -> bool:
        """One round; whether all went well."""
        return self._try()

    def status(self) -> ReplicationStatus:
        """How far it is."""
        figures, log = self._shipper.figures, self._engine.log
        now = self._engine.clock.now_millis()
        through = figures.through
        since = figures.since_millis or self._engine.tap.since_millis
        return ReplicationStatus(
            url=self._url,
            state=self._state(),
            epoch=figures.epoch,
            shipped_transaction=through,
            lag_transactions=max(0, log.durable - through),
            lag_bytes=figures.waiting_bytes,
            lag_millis=0 if since is None else max(0, now - since),
            log_objects=figures.log_objects,
            packs=figures.packs,
            bases=figures.bases,
            shipped_bytes=figures.shipped_bytes,
            unreadable_contents=figures.unreadable,
            problem=self._told.problem,
            max_lag_millis=self._max_lag_millis,
            awaits_base=figures.awaits_base,
            adopt_after_millis=0 if self._keeper is None else self._keeper.held.term_millis,
            has_lapsed=self._keeper is not None and not self._keeper.held.lease.is_held,
        )

    def _state(self) -> ReplicationState:
        if not self._engine.committer.right.may_change:  # also as an earlier process noted, before the bucket is asked
            return "fenced"
        if self._failures:
            return "failing"
        figures = self._shipper.figures
        return "shipping" if self._shipper.has_begun and (figures.bases or figures.through) else "starting"

    def _run(self) -> None:
        self._absorb()
        while not self._stop.is_set() and not self._is_fenced:
            went_well = self._try()
            pause = self._interval if went_well else PAUSES[min(self._failures, len(PAUSES)) - 1]
            self._stop.wait(pause)
        while self._unnoted and not self._stop.wait(PAUSES[-1]):
            self._note_fence()

    def _try(self) -> bool:
        try:
            self._require_lease()
            if not self._shipper.has_begun:
                self._shipper.begin()
            self._shipper.step()
        except ShareFenced as error:
            self._end(error)
            return False
        except Exception as error:  # noqa: BLE001 - whatever it is, the repository serves on, and status tells
            self._failures += 1
            self._told.tell(error)
            self._reopen()  # credentials and authorities may have come, or been rotated
            self._absorb()
            return False
        self._failures = 0
        self._told.forget()
        return True

    def _end(self, error: ShareFenced) -> None:
        """Somebody else has the share: nothing is shipped any more, and nothing is changed that nobody would ship."""
        right, known = self._engine.committer.right, self._known_fence()
        # Before the bucket is asked whose it is, which may take its time.
        if known is DAMAGED:
            right.fence(_damaged_words(self._url))
        else:
            place, writer = (self._url, UNKNOWN_WRITER) if known is None else (known.place, known.fenced_by)
            right.fence(_fence_words(place, writer))
        if self._keeper is not None:
            self._keeper.held.lease.lose()
            right.notice()
        self._is_fenced = True
        self._told.forget()
        self._engine.tap.close()
        self._engine.ledger.shipping_since = 0  # nobody comes for it any more
        if known is DAMAGED:  # and stays so: who would be noted now may be this root itself
            right.fence(_damaged_words(self._url, f"{self._writer()} wrote it last"))
        elif known is None or known.place == self._place.name:  # that of another place stays what it is
            writer = self._writer()
            self._unnoted = writer, error
            right.fence(_fence_words(self._url, writer))
        problem = self._note_fence()
        self._told.tell(ShareFenced(f"{error}. {problem}") if problem else error)

    def _known_fence(self) -> WriterNote | None:
        try:
            return noted_fence(self._engine.files, self._engine.root)
        except OSError:  # it is read again before it is written, until that succeeds: no fence may be lost by this
            return None

    def _writer(self) -> str:
        """Whose the share is by now, as `epoch` says."""
        try:
            owner = owner_of(self._place, self._engine.identity.repository).owner
        except UllageError:  # then it is not told who has it
            return UNKNOWN_WRITER
        if owner != self._owner:
            return f"node {owner}"
        return f"node {owner}, by its name this one (as a copy of this root, or as this one before it was put back),"

    def _note_fence(self) -> str:
        """So that the next start knows it before the bucket has answered; "", or why that is not on the disk."""
        if self._unnoted is None:
            return ""
        (writer, said), engine = self._unnoted, self._engine
        try:
            note_fence(engine.files, engine.root, self._place.name, writer, self._shipper.wrote)
        except (OSError, UllageError) as error:
            return f"{NOTE} can't be written, so the next start learns that from the bucket alone: {error}"
        self._unnoted = None
        if self._told.problem:
            self._told.amend(said)
        return ""

    def _require_lease(self) -> None:
        """ShareFenced: whoever renews it has found that somebody else has the share; an idle shipper would not."""
        if self._keeper is not None and self._keeper.held.lease.is_lost:
            raise ShareFenced(f"{self._url} has another writer now")

    def _absorb(self) -> None:
        """What waits is counted and bounded while nothing is shipped."""
        try:
            self._shipper.absorb()
        except Exception as error:  # noqa: BLE001 - it would end the thread, and with it shipping until the next start
            self._told.tell(error)


def fence_as_noted(engine: Engine) -> None:
    """Nothing is changed in a root that was fenced, by whichever program it is opened, and whatever it ships to now."""
    note = noted_fence(engine.files, engine.root)
    if note is DAMAGED:
        engine.committer.right.fence(_damaged_words("SHARE"))
    elif note is not None:
        engine.committer.right.fence(_fence_words(note.place, note.fenced_by))


def _fence_words(share: str, writer: str) -> str:
    """What is answered to who would change something: whose the repository is, and what to do."""
    return (
        f"{writer} writes the share {share} of this repository by now: write there. Nothing is changed here any more, "
        f"and what is here can be read. If that node goes on with the repository, `ullage rejoin ROOT {share} --to "
        "URL` brings over what only this one has, once nobody serves it here; if nobody goes on with it, `ullage serve "
        "--take-share` makes this root its writer again"
    )


def _damaged_words(share: str, last: str = "`epoch` there says which node wrote it last") -> str:
    """What is answered where nobody knows whose it is: which commands there are, and what is risked with the wrong."""
    return (
        f"{NOTE} in the root of this repository is damaged, so nobody knows here whether another node goes on with its "
        f"share {share} ({last}): nothing is changed here, and what is here can be read. Look whether another node "
        "serves this repository. If none does, `ullage serve --take-share` makes this root the writer again, as "
        f"removing {NOTE} and starting it does. Where one does after all, that takes the share from it: it becomes "
        "read-only, and what it wrote counts no more but as points to restore to. So if one does, leave this one as it "
        f"is: `ullage rejoin ROOT {share} --to URL` brings over what only this one has"
    )


def take_share(root: str) -> None:
    """The next start of this root is not fenced, and takes its share from whoever writes it, but from who has adopted
    it: somebody knows that nobody else goes on with it. RepositoryLocked; NotARepository.
    """
    files = OsFiles()
    with closing(lock_repository(files, root)):
        forget_writers(files, root)


def replication_of(
    engine: Engine, settings: ReplicationSettings, node: str, on_failure: Callable[[str, Exception], None]
) -> Replication | None:
    """What spec.replication asks for. UnknownPlugin; InvalidArgument."""
    if settings.mode == ReplicationMode.NONE:
        return None
    if others := engine.identity.implementations:
        raise InvalidArgument(f"spec.replication ships what is of our own kind, and this has others: {others}")

    def found() -> Bucket:
        return bucket_of(settings, engine.identity.repository)

    bucket = found()
    place = place_of_share(bucket, found)
    keeper = None
    if settings.adopt_after is not None:
        held = OwnedLease(engine.clock.boottime, settings.adopt_after.seconds)
        beside = place_of_share(bucket, found)  # its own connections: of those for what is shipped all may be taken
        share, right = engine.identity.repository, engine.committer.right
        keeper = LeaseKeeper(held, right, beside, share, on_failure, beside.close)
    return Replication(engine, place, bucket.url, node, settings, on_failure, place.close, keeper)


def bucket_of(settings: ReplicationSettings, share: str) -> Bucket:
    """Where a share lies. InvalidArgument."""
    return checked_bucket(
        Bucket(
            url=f"{settings.url.rstrip('/')}/{share}",
            endpoint=settings.endpoint,
            region=settings.region,
            ca_file=settings.ca_file or authorities_beside(settings.credentials_file),
            credentials_file=settings.credentials_file,
            patience_seconds=PATIENCE_SECONDS,
        )
    )


def limits_of(settings: ReplicationSettings) -> ShippingLimits:
    """How much may wait, and how long points to restore to stay."""
    return ShippingLimits(held_bytes=int(settings.max_held), retention_millis=int(settings.retention))


def parts_of(engine: Engine) -> ShippingParts:
    """What shipping needs of an open repository."""
    provenance = engine.provenance
    return ShippingParts(
        files=engine.files,
        root=engine.root,
        identity=lambda: engine.identity,
        serde=SerDe(),
        clock=engine.clock,
        ledger=engine.ledger,
        log=engine.log,
        committer=engine.committer,
        provenance=provenance if isinstance(provenance, ProvenanceStore) else None,
        swap_files=engine.swap_files,
        spaces=engine.spaces,
        reader=engine.reader,
        tap=engine.tap,
    )

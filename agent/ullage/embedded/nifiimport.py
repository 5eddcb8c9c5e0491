"""What a stopped NiFi holds, brought into a repository of this machine.

FlowFiles come in batches, each a transaction with a receipt: a handle whose id is worked out from what is brought over
and from the batch's number. Whoever is interrupted, anywhere, calls again: batches that have a receipt are passed over.
So the same import is never done twice, whatever has become of its FlowFiles meanwhile, as long as its receipts stay.
"""

import hashlib
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import groupby
from operator import attrgetter
from typing import Final

import msgspec
from crc32c import crc32c

from ullage.contract import FEED_PREFIX, QueuePriority
from ullage.embedded.repository import EmbeddedRepository
from ullage.engine.arriving import ArrivingFlowFile, ArrivingSession, KnownUuids, find_all, receipt
from ullage.engine.batches import packed_attributes
from ullage.engine.model import NO_CONTENT, Content, ContentClaim, FlowFileRecord, unpack_attributes
from ullage.enums import EventType
from ullage.errors import DiskFull, TransactionTooLarge
from ullage.nifi.claimreader import ClaimReader
from ullage.nifi.flowfiles import NiFiFlowFile
from ullage.nifi.home import NiFiHome
from ullage.nifi.importplan import (
    BY_ATTRIBUTE,
    FIRST_IN,
    NEWEST,
    OLDEST,
    PRIORITY,
    ImportQueue,
    LeftOut,
    NiFiImportPlan,
    SharedContent,
    plan_import,
)
from ullage.nifi.running import RepositoryState, refuse_in_use, state_of
from ullage.nifi.trouble import NiFiContentLost, NiFiDamage, NiFiInUse
from ullage.uuids import parse_uuid

COMPONENT: Final = "ullage nifi import"
ALREADY_THERE: Final = "the repository has a FlowFile of its uuid already"

SMALL_BYTES: Final = 256 << 10
GATHER_BYTES: Final = 4 << 20
"""Contents up to the first length are held in memory up to the second, and written together."""

RECORD_BYTES: Final = 400
"""What a FlowFile takes on the disk beside its attributes and content, until a checkpoint, in the log and in events."""

PRIORITIES: Final = {
    FIRST_IN: QueuePriority.FIRST_IN_FIRST_OUT,
    OLDEST: QueuePriority.OLDEST_FIRST,
    NEWEST: QueuePriority.NEWEST_FIRST,
    BY_ATTRIBUTE: QueuePriority.PRIORITY_ATTRIBUTE,
}

NOT_BROUGHT: Final = (
    "provenance events: a repository takes no history from elsewhere; each FlowFile begins with a RECEIVE event",
    "penalties: NiFi keeps them in memory, and has forgotten them itself when it starts",
)

Progress = Callable[[int, int], None]
"""Is told how many FlowFiles are done, of how many."""


class ImportedQueue(msgspec.Struct, frozen=True):
    """Where a queue of NiFi's went. `is_new`: it was made for this, with NiFi's limits and expiration."""

    identifier: str
    original: str
    name: str
    flow_files: int
    size: int
    priority: str
    count_max: int
    bytes_max: int
    expiration_millis: int
    is_new: bool


class ImportReport(msgspec.Struct, frozen=True):
    """What came of an import. `flow_files`: in NiFi; of these `imported` now, `before` by earlier calls, and the rest
    left out. `size`: of their contents; `stored`: of these on the disk, each once.
    """

    id: str
    transaction: int
    flow_files: int
    imported: int
    before: int
    size: int
    stored: int
    queues: list[ImportedQueue]
    left_out: list[LeftOut]
    notes: list[str]
    not_brought: list[str]
    damages: list[NiFiDamage]

    @property
    def is_complete(self) -> bool:
        """All that NiFi has is here."""
        return not self.left_out and not any(damage.is_serious for damage in self.damages)


GONE: Final = NiFiFlowFile("", "", 0, 0, 0)
"""In the place of a row that is in the repository: there are millions, and nobody needs them any more."""


class NiFiSource:
    """A NiFi that has stopped, as it is now: for one import. NiFiInUse; NotSurveyable."""

    def __init__(self, home: NiFiHome, *, is_assured: bool = False) -> None:
        """`is_assured`: someone said that no NiFi runs, where only that can be known."""
        refuse_in_use(home, is_assured=is_assured)
        self._home = home
        self._state: RepositoryState = state_of(home.flowfiles)
        self.plan: NiFiImportPlan = plan_import(home, refusal, FEED_PREFIX)
        self.is_spent = False

    @property
    def name(self) -> str:
        """What events call it."""
        path = os.path.abspath(self._home.flowfiles)
        return "nifi:" + path.encode("utf-8", "replace").decode()

    def require_unchanged(self) -> None:
        """NiFiInUse once NiFi was started: what it moves on would be in both."""
        if state_of(self._home.flowfiles) != self._state:
            raise NiFiInUse(
                f"{self._home.flowfiles} has changed since it was read: NiFi was started. What is brought over up to "
                "now stays; once NiFi has stopped again, the same command brings over what is not here yet"
            )


def refusal(attributes: dict[str, str]) -> str:
    """Why no repository takes a FlowFile with these attributes; empty: it does."""
    try:
        packed_attributes(_without_uuid(attributes), 1)
    except TransactionTooLarge as error:
        return (
            str(error).partition(": ")[0].replace("of a FlowFile or handle ", "").replace("a FlowFile or handle", "it")
        )
    return ""


class NiFiImporter:
    """One import into a repository that nobody else has open. It spends its source: another one reads NiFi anew."""

    def __init__(self, repository: EmbeddedRepository, source: NiFiSource) -> None:
        if source.is_spent:
            raise ValueError("this source was brought over, at least in part")
        self._repository = repository
        self._engine = repository.engine
        self._source = source
        self._plan = source.plan
        self._batches = list(self._plan.batches())
        self._claims: dict[int, ContentClaim] = {}
        self._left_out: list[LeftOut] = []
        self._dropped = 0
        self._before = 0
        self._is_new: dict[str, bool] = {}
        rows = self._plan.rows
        self._sizes = [sum(row.size for row in rows[queue.first : queue.end]) for queue in self._plan.queues]
        self._done = self._passed_over()

    @property
    def rows_left(self) -> int:
        """FlowFiles that are still to come."""
        return len(self._plan.rows) - self._first_row

    def needed(self) -> int:
        """Bytes on the disk that the rest takes at the most."""
        plan, seen, total = self._plan, set[int](), 0
        for number in range(self._first_row, len(plan.rows)):
            row, shared = plan.rows[number], plan.shared.get(number)
            assert row.details is not None
            total += RECORD_BYTES + 2 * len(row.details.packed or b"")
            if shared is None:
                total += row.size
            elif id(shared) not in seen:
                seen.add(id(shared))
                total += shared.end - shared.start
        return total

    def require_room(self) -> None:
        """DiskFull if the repository's volumes have too little left for it."""
        paths = {os.stat(path).st_dev: path for path in self._repository.paths().values()}
        free = sum(status.f_bavail * status.f_frsize for status in map(os.statvfs, paths.values()))
        if free < self.needed():
            raise DiskFull(
                f"the import needs {self.needed():,} bytes, and {', '.join(paths.values())} have {free:,} left"
            )

    def run(self, on_progress: Progress) -> ImportReport:
        """Bring over what is not here yet. Whatever it raises, another import goes on behind the last batch."""
        plan, total = self._plan, len(self._plan.rows)
        on_progress(self._first_row, total)
        if self._done < len(self._batches):
            self._define_queues()
            known = KnownUuids(self._engine)
            with closing(ClaimReader(plan.places)) as reader:
                self._find_shared(reader)
                self._source.is_spent = True
                for number in range(self._done, len(self._batches)):
                    self._source.require_unchanged()
                    self._bring(number, reader, known)
                    on_progress(self._batches[number][1], total)
            self._repository.checkpoint()
        return self._report()

    @property
    def _first_row(self) -> int:
        return self._batches[self._done - 1][1] if self._done else 0

    def _receipt(self, batch: int) -> bytes:
        return hashlib.blake2b(self._plan.id + b"%d" % batch, digest_size=16).digest()

    def _passed_over(self) -> int:
        """How many batches are here already."""
        for number, (first, end) in enumerate(self._batches):
            found = receipt(self._engine, self._receipt(number))
            if found is None:
                return number
            left_out = self._told_by(found)
            self._left_out += left_out
            self._dropped += len(left_out)
            self._before += end - first - len(left_out)
        return len(self._batches)

    def _told_by(self, found: FlowFileRecord) -> list[LeftOut]:
        told = unpack_attributes(found.attributes).get("nifi.left.out", "{}")
        reasons = msgspec.json.decode(told, type=dict[str, list[int]])
        return [self._named(number, why) for why, numbers in reasons.items() for number in numbers]

    def _named(self, number: int, why: str) -> LeftOut:
        row = self._plan.rows[number]
        assert row.details is not None
        attributes = row.details.attributes()
        return LeftOut(attributes["uuid"], attributes.get("filename", ""), self._queue_of(number).name, why)

    def _queue_of(self, number: int) -> ImportQueue:
        # The last one that begins there or before: of those that begin there, all others are empty.
        return self._plan.queues[bisect_right(self._plan.queues, number, key=attrgetter("first")) - 1]

    def _define_queues(self) -> None:
        """Those that are not there yet, as NiFi has them; one that is there stays as it is."""
        for queue in self._plan.queues:
            is_new = self._engine.queues.known(queue.name) is None
            self._is_new[queue.name] = is_new
            if is_new:
                settings = queue.connection
                self._repository.queues.define(
                    queue.name,
                    priority=_priority(queue),
                    priority_attribute=PRIORITY,
                    count_max=settings.count_max if settings else 0,
                    bytes_max=settings.bytes_max if settings else 0,
                    expiration_millis=settings.expiration_millis if settings else 0,
                )

    def _find_shared(self, reader: ClaimReader) -> None:
        """Contents of earlier batches that later ones share: those FlowFiles are looked for that have them, and the
        content is believed if it reads as NiFi's: somebody may have changed one since.
        """
        shared, rows = self._plan.shared, self._plan.rows
        wanted: dict[bytes, tuple[SharedContent, NiFiFlowFile]] = {}
        for number in range(self._first_row):
            content = shared.get(number)
            if content is not None:
                content.left -= 1
                wanted[_uuid(rows[number])] = content, rows[number]
        wanted = {uuid: found for uuid, found in wanted.items() if found[0].left}
        for record in find_all(self._engine, wanted):
            content, row = wanted[record.uuid]
            claim = record.claim
            if claim is None or id(content) in self._claims:
                continue
            meant = content.end - content.start, row.start - content.start, row.size
            if (claim.length, record.start, record.size) == meant and claim.crc == _crc(reader, content):
                self._claims[id(content)] = claim

    def _bring(self, batch: int, reader: ClaimReader, known: KnownUuids) -> None:
        """One transaction: contents, FlowFiles, and the receipt."""
        first, end = self._batches[batch]
        reasons: dict[str, list[int]] = {}
        with self._engine.session(COMPONENT, kind=ArrivingSession) as session:
            assert isinstance(session, ArrivingSession)
            arriving = []
            for number in range(first, end):
                if _uuid(self._plan.rows[number]) in known:
                    reasons.setdefault(ALREADY_THERE, []).append(number)
                else:
                    arriving.append(number)
            claims, unreadable = self._store(session, arriving, reader)
            for number, why in unreadable.items():
                reasons.setdefault(why, []).append(number)
            brought = [number for number in arriving if number not in unreadable]
            for queue, own in groupby(brought, self._queue_of):
                records = session.arrive(queue.name, [self._arrival(number, claims) for number in own])
                session.provenance.report(
                    EventType.RECEIVE,
                    records,
                    transit_uri=self._source.name,
                    details=f"from NiFi's queue {queue.identifier}, at transaction {self._plan.transaction}",
                )
            session.acknowledge(self._receipt(batch), self._acknowledgement(batch, len(brought), reasons))
            session.commit()
        self._settle(first, end, claims)
        self._left_out += [self._named(number, why) for why, numbers in reasons.items() for number in numbers]
        self._plan.rows[first:end] = [GONE] * (end - first)
        self._dropped += sum(map(len, reasons.values()))

    def _acknowledgement(self, batch: int, count: int, reasons: dict[str, list[int]]) -> dict[str, str]:
        return {
            "filename": f"nifi-import-{self._plan.id.hex()[:8]}-{batch + 1}-of-{len(self._batches)}",
            "nifi.import": self._plan.id.hex(),
            "nifi.transaction": str(self._plan.transaction),
            "nifi.flowfiles": str(count),
            "nifi.left.out": msgspec.json.encode(reasons).decode(),
        }

    def _store(
        self, session: ArrivingSession, numbers: Sequence[int], reader: ClaimReader
    ) -> tuple[dict[int, ContentClaim], dict[int, str]]:
        """Write the contents of these rows that are not here yet. Claims by row, or by shared content; and rows whose
        content can't be read, and why.
        """
        wanted: dict[int, tuple[str, int, int]] = {}
        for number in numbers:
            row, shared = self._plan.rows[number], self._plan.shared.get(number)
            if shared is not None and row.size:
                if id(shared) not in self._claims:
                    wanted[id(shared)] = shared.file, shared.start, shared.end - shared.start
            elif row.size:
                wanted[_key(number)] = row.file, row.start, row.size
        writer = _Gathering(session)
        failed: dict[int, str] = {}
        for key, (file, start, size) in wanted.items():
            try:
                writer.write(key, reader, file, start, size)
            except NiFiContentLost as error:
                failed[key] = str(error)
        writer.flush()
        unreadable = {number: failed[key] for number in numbers if (key := self._key_of(number)) in failed}
        return writer.claims, unreadable

    def _key_of(self, number: int) -> int:
        shared = self._plan.shared.get(number)
        return _key(number) if shared is None else id(shared)

    def _arrival(self, number: int, claims: dict[int, ContentClaim]) -> ArrivingFlowFile:
        row, shared = self._plan.rows[number], self._plan.shared.get(number)
        details = row.details
        assert details is not None
        content = NO_CONTENT
        if row.size:
            key = self._key_of(number)
            claim = claims[key] if key in claims else self._claims[key]
            content = Content(claim, row.start - shared.start if shared else 0, row.size)
        attributes = details.attributes()
        uuid = parse_uuid(attributes.pop("uuid"))
        return ArrivingFlowFile(uuid, details.entry_millis, details.lineage_millis, attributes, content)

    def _settle(self, first: int, end: int, claims: dict[int, ContentClaim]) -> None:
        """Contents that later rows share are remembered, others forgotten."""
        for number in range(first, end):
            shared = self._plan.shared.get(number)
            if shared is not None:
                shared.left -= 1
                if id(shared) in claims and shared.left:
                    self._claims[id(shared)] = claims[id(shared)]
                elif not shared.left:
                    self._claims.pop(id(shared), None)

    def _report(self) -> ImportReport:
        plan = self._plan
        return ImportReport(
            id=plan.id.hex(),
            transaction=plan.transaction,
            flow_files=len(plan.rows) + len(plan.left_out),
            imported=len(plan.rows) - self._before - self._dropped,
            before=self._before,
            size=plan.size,
            stored=plan.stored,
            queues=[self._queue(queue, size) for queue, size in zip(plan.queues, self._sizes, strict=True)],
            left_out=[*plan.left_out, *self._left_out],
            notes=plan.notes,
            not_brought=list(NOT_BROUGHT),
            damages=plan.damages,
        )

    def _queue(self, queue: ImportQueue, size: int) -> ImportedQueue:
        settings = self._engine.queues.known(queue.name)
        definition = settings.definition if settings else None
        return ImportedQueue(
            queue.identifier,
            queue.original,
            queue.name,
            queue.end - queue.first,
            size,
            definition.priority if definition else "",
            definition.count_max if definition else 0,
            definition.bytes_max if definition else 0,
            definition.expiration_millis if definition else 0,
            self._is_new.get(queue.name, False),
        )


class _Gathering:
    """Writes contents into a session: small ones together, large ones piece by piece."""

    def __init__(self, session: ArrivingSession) -> None:
        self.claims: dict[int, ContentClaim] = {}
        self._session = session
        self._keys: list[int] = []
        self._contents: list[bytes] = []
        self._bytes = 0

    def write(self, key: int, reader: ClaimReader, file: str, start: int, size: int) -> None:
        """NiFiContentLost: nothing of it is kept."""
        if size <= SMALL_BYTES:
            self._contents.append(reader.read(file, start, size))
            self._keys.append(key)
            self._bytes += size
            if self._bytes >= GATHER_BYTES:
                self.flush()
            return
        with self._session.storing() as stream:
            for piece in reader.pieces(file, start, size):
                stream.write(piece)
        claim = stream.content.claim
        assert claim is not None
        self.claims[key] = claim

    def flush(self) -> None:
        for key, claim in zip(self._keys, self._session.store(self._contents), strict=True):
            assert claim is not None
            self.claims[key] = claim
        self._keys, self._contents, self._bytes = [], [], 0


def _key(number: int) -> int:
    """What stands for the content of a row that nobody shares, where others stand for theirs by `id`."""
    return -1 - number


def _priority(queue: ImportQueue) -> QueuePriority:
    known = [each for each in (queue.connection.prioritizers if queue.connection else ()) if each in PRIORITIES]
    return PRIORITIES[known[0]] if known else QueuePriority.FIRST_IN_FIRST_OUT


def _without_uuid(attributes: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in attributes.items() if name != "uuid"}


def _uuid(row: NiFiFlowFile) -> bytes:
    assert row.details is not None
    return parse_uuid(row.details.attributes()["uuid"])


def _crc(reader: ClaimReader, content: SharedContent) -> int | None:
    crc = 0
    try:
        for piece in reader.pieces(content.file, content.start, content.end - content.start):
            crc = crc32c(piece, crc)
    except NiFiContentLost:  # then it is none that could be believed
        return None
    return crc

"""Making a repository of what a damaged one still proves. The damaged one is only read.

survey, decide | marker | init | contents and records, batch by batch | answers, events | checkpoint | marker removed
                                                                                                     ^ commit point
A crash before it leaves what `open` refuses: whoever removes it and begins again has lost nothing.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing

import msgspec

from ullage.clock import Clock
from ullage.contract import ContentRepositorySpec
from ullage.engine.careful import CEILING_JUMP
from ullage.engine.check.salvage import SurveyedSource, survey
from ullage.engine.check.salvagecontent import FoundFiles, SalvagedContent
from ullage.engine.check.salvageevents import SalvagedEvents
from ullage.engine.check.salvageruns import answer_records, handle_records, note_missing_runs
from ullage.engine.check.salvagestate import SalvagedState
from ullage.engine.content.containers import LOST_AND_FOUND
from ullage.engine.content.writer import ContentWriter, WriterAdmission
from ullage.engine.engine import Engine
from ullage.engine.files import Files, OsFiles, make_directories
from ullage.engine.handles import GivenUpOnError
from ullage.engine.model import (
    HANDLE_QUEUE,
    STAGED_QUEUE,
    Answer,
    ContentClaim,
    FlowFileRecord,
    RunFile,
    Undrained,
    pack_attributes,
    unpack_attributes,
)
from ullage.engine.opening import NONE_BEFORE, SALVAGING, Predecessor, lock_directory
from ullage.engine.provenance.store import ProvenanceStore
from ullage.engine.wal.failingdisk import FailingDisk
from ullage.engine.wal.lenient import LostRange, payloads
from ullage.engine.wal.serde import SerDe, Undecodable
from ullage.engine.working import with_blocks_of
from ullage.errors import ContentCorrupt, DirectoryNotEmpty, InvalidArgument, NotARepository
from ullage.wire.salvage import HELD_IN, HELD_QUEUE, HELD_REASON, HELD_UUID, DamagedRange, SalvageReport
from ullage.wire.unavailable import LISTED_MAX, UnavailableContent

BATCH_RECORDS = 1_000
BATCH_BYTES = 32 << 20
BATCH_ATTRIBUTE_BYTES = 8 << 20
BATCH_ANSWER_BYTES = 64 << 10

Progress = Callable[[int, int], None]


def salvage(
    source: str,
    spec: ContentRepositorySpec,
    files: Files | None = None,
    clock: Clock | None = None,
    on_progress: Progress = lambda _done, _total: None,
) -> SalvageReport:
    """Make a repository where the spec says, of all that the one at `source` proves; what it lacks is in the report.

    InvalidArgument: one lies in the other. DirectoryNotEmpty; NotARepository: nothing at `source` proves anything.
    RepositoryLocked: somebody has it open. FormatTooNew. An error that leaves something there says so in a note.
    """
    # A link would have it read, as content, what whoever made the source can't read.
    files, clock = (files or OsFiles()).without_links_below(source), clock or Clock()
    root = spec.storage.host_path.path
    _require_apart(source, root)
    require_empty(files, spec)
    if not files.exists(source):
        raise NotARepository(f"{source} does not exist")
    with closing(lock_directory(files, source)):
        disk = FailingDisk(files)
        found = survey(files, source, disk)
        if found.repository is None:
            raise NotARepository(f"{source} holds no log, snapshot or swap file whose header can be read")
        there = FoundFiles(files, source)
        events = SalvagedEvents(files, disk, source, found.repository, there.events)
        state = decided(disk, found, events, SerDe())
        content = SalvagedContent(disk, there.content, state.moves)
        after = _predecessor(found, state, events, there)
        salvager = filled_repository(files, clock, spec, state, content, on_progress, after, events)
    return _report(salvager.repository, found, state, events, there, disk, salvager)


def filled_repository(
    files: Files,
    clock: Clock,
    spec: ContentRepositorySpec,
    state: SalvagedState,
    content: SalvagedContent,
    on_progress: Progress,
    after: Predecessor = NONE_BEFORE,
    events: SalvagedEvents | None = None,
) -> "Salvager":
    """Make a repository of what was decided, and say what came of it. `after`: what it numbers on from."""
    root = spec.storage.host_path.path
    make_directories(files, root)
    marker = os.path.join(root, SALVAGING)
    # Durable before there is an identity: the init syncs the root's names before its own commit point.
    files.create(marker).close()
    try:
        Engine.initialize(spec, files, clock, after)
        with Engine.open(spec, files, clock, is_salvage=True) as engine:
            salvager = Salvager(engine, state, content, on_progress)
            salvager.fill()
            salvager.remember()
            if events is not None:
                salvager.tell(events)
            engine.checkpoint()
        files.unlink(marker)
        files.sync_directory(root)
    except Exception as error:
        error.add_note(f"what is in {root} by now is no repository: remove it before you try again")
        raise
    return salvager


def _predecessor(found: SurveyedSource, state: SalvagedState, events: SalvagedEvents, there: FoundFiles) -> Predecessor:
    """What the new repository numbers on from: events name transactions and content of the old one."""
    ceiling = max([state.index_ceiling, *there.content, *state.moves])
    if not found.is_whole:
        # The record that says how far indexes went may be lost.
        ceiling += CEILING_JUMP
    return Predecessor(max(found.last_id, events.last_id), ceiling)


def decided(disk: FailingDisk, found: SurveyedSource, events: SalvagedEvents, serde: SerDe) -> SalvagedState:
    """What the proved records come to; `events` gets what they tell. Of files it reads the frames that were found."""
    swapped = {
        name: [each for _, data in blocks.payloads for each in serde.decode_block_each(data, header.serde_version)]
        for name, (header, blocks) in found.swaps.items()
    }
    state = SalvagedState(
        {name: [each for each in every if isinstance(each, FlowFileRecord)] for name, every in swapped.items()}, serde
    )
    for name, every in swapped.items():
        state.take([each for each in every if isinstance(each, Undecodable)], f"swap file {name}")
    for answers in answer_records(disk, found, serde):
        state.take(*answers)
    listed: dict[int, RunFile] = {}
    if found.snapshot is not None:
        for offset, data in found.snapshot.payloads:
            block = serde.taken_apart(serde.decode_block_each(data, serde.version))
            listed |= note_missing_runs(found, block)
            state.take(block, f"the snapshot's block at offset {offset}")
            for each in block:
                if isinstance(each, Undrained):
                    events.take(each.transaction, each.millis, each.operations)
    is_whole = found.snapshot is not None and found.snapshot.is_whole
    for handles in handle_records(disk, found, listed, serde, is_whole=is_whole):
        state.take_once(*handles)
    gaps = found.chain.gaps
    for frame, payload in payloads(disk, (*found.chain.proved, *found.chain.behind)):
        id, doubt = frame.header.id, ""
        if gaps and id > gaps[0][0]:
            before = max(gap for gap in gaps if gap[0] < id)
            doubt = f"behind {_lost_ids(before)}, which may say more of it, came transaction {id}"
        millis, transaction = serde.decode_each(payload, serde.version)
        state.take(transaction, f"transaction {id}", doubt, id)
        events.take(id, millis, transaction)
    doubts = [_lost_ids(gap) for gap in gaps if found.chain.is_loss] or found.doubts
    doubt = f"{doubts[0]}: it may have been changed or deleted since" if doubts else ""
    state.finish(doubt, is_snapshot_whole=is_whole)
    return state


def _lost_ids(gap: tuple[int, int]) -> str:
    return f"lost transaction {gap[0]}" if gap[0] == gap[1] else f"lost transactions {gap[0]} to {gap[1]}"


class Salvager:
    """Writes what was decided into a repository that nobody else has open yet."""

    def __init__(self, engine: Engine, state: SalvagedState, content: SalvagedContent, on_progress: Progress) -> None:
        self.lost: list[UnavailableContent] = []
        self.lost_count = self.handles = self.held = self.events = 0
        self.erased = state.erased
        self.queues: Counter[str] = Counter()
        self.repository = engine.identity.repository
        self._engine = engine
        self._state = state
        self._content = content
        self._on_progress = on_progress
        self._admission = WriterAdmission(engine.content, engine.clock, engine.compactor.relieve)
        self.bytes = 0
        known = [queue.number for queue in state.queues.values() if queue.name == HELD_QUEUE]
        self._held_queue = known[0] if known else max((HANDLE_QUEUE, *state.queues)) + 1
        if state.held and not known:
            state.queues[self._held_queue] = state.made_queue(self._held_queue, HELD_QUEUE)

    def fill(self) -> None:
        """All of it, durable."""
        if queues := self._state.queues:
            self._engine.committer.commit([queues[number] for number in sorted(queues)], creates=True)
        total = sum(record.size for record in self._state.records.values())
        for batch in self._batches():
            writer = self._admission.new_writer()
            with GivenUpOnError(writer):
                records = list(self._moved(writer, batch))
                if records or writer.has_content:
                    claims = {record.claim for record in records}
                    written = with_blocks_of(claims, writer.sync(), (), self._engine.reader)
                    self._engine.committer.commit([*written, *records], creates=True)
            writer.release(committed=True)
            self.bytes += sum(record.size for record in batch)
            self._on_progress(self.bytes, total)

    def remember(self) -> None:
        """The answers to idempotency keys that are good still, durable."""
        self._state.answers.forget(self._engine.clock.now_millis())
        batch: list[Answer] = []
        for answer in self._state.answers.all():
            if batch and sum(len(each.answer) for each in batch) + len(answer.answer) > BATCH_ANSWER_BYTES:
                self._engine.committer.commit(batch, creates=True)
                batch = []
            batch.append(answer)
        if batch:
            self._engine.committer.commit(batch, creates=True)

    def tell(self, events: SalvagedEvents) -> None:
        """The history, durable, where the new repository keeps one in files as the old one did."""
        provenance = self._engine.provenance
        if isinstance(provenance, ProvenanceStore) and self._engine.spec.provenance.enabled:
            self.events = provenance.inherit(events.inherited())

    def _batches(self) -> Iterator[list[FlowFileRecord]]:
        """In the order of the files, which is that of the disk. Those that share a claim stay together."""
        batch: list[FlowFileRecord] = []
        size = attributes = 0
        for record in sorted(self._state.records.values(), key=_place):
            is_full = len(batch) >= BATCH_RECORDS or size >= BATCH_BYTES
            is_shared = batch and record.claim is not None and _place(record) == _place(batch[-1])
            if (is_full and not is_shared) or attributes >= BATCH_ATTRIBUTE_BYTES or len(batch) >= 8 * BATCH_RECORDS:
                yield batch
                batch, size, attributes = [], 0, 0
            batch.append(record)
            size, attributes = size + record.size, attributes + len(record.attributes)
        if batch:
            yield batch

    def _moved(self, writer: ContentWriter, batch: list[FlowFileRecord]) -> Iterator[FlowFileRecord]:
        """The records as they are to be, with their content written; without those whose content nobody has."""
        copied: dict[ContentClaim, ContentClaim | str] = {}
        for record in batch:
            claim: ContentClaim | str | None = None
            if record.claim is not None:
                if record.claim not in copied:
                    copied[record.claim] = self._copy(writer, record.claim)
                claim = copied[record.claim]
            if isinstance(claim, str):
                self._lose(record, claim)
            else:
                yield self._placed(msgspec.structs.replace(record, claim=claim))

    def _copy(self, writer: ContentWriter, claim: ContentClaim) -> ContentClaim | str:
        """The same bytes in the new repository, or why there are none."""
        try:
            path, offset = self._content.find(claim)
        except ContentCorrupt as error:
            return str(error)
        with writer.stream() as stream:
            for piece in self._content.pieces(path, offset, claim.length):
                stream.write(piece)
        made = stream.content.claim
        if made is None or (made.length, made.crc) != (claim.length, claim.crc):
            return f"{path} at offset {offset}: two reads of it differ"
        return made

    def _placed(self, record: FlowFileRecord) -> FlowFileRecord:
        reason = self._state.held.get(record.uuid)
        if reason is None:
            if record.queue == HANDLE_QUEUE:
                self.handles += 1
            else:
                self.queues[self._state.queues[record.queue].name] += 1
            return record
        self.held += 1
        attributes = unpack_attributes(record.attributes)
        if record.queue != self._held_queue:
            what = "it was a deleted handle; " if record.deleted_millis else ""
            attributes |= {
                HELD_IN: self._queue_name(record),
                HELD_REASON: what + reason,
                HELD_UUID: record.id,
            }
        # A time limit must not end it before somebody has decided.
        return msgspec.structs.replace(
            record,
            queue=self._held_queue,
            attributes=pack_attributes(attributes),
            expires_millis=0,
            deleted_millis=0,
        )

    def _lose(self, record: FlowFileRecord, reason: str) -> None:
        self.lost_count += 1
        if len(self.lost) < LISTED_MAX:
            assert record.claim is not None, "only content is lost"
            self.lost.append(
                UnavailableContent(
                    id=record.id,
                    filename=record.attribute_map()["filename"],
                    queue=self._queue_name(record),
                    size=record.size,
                    path=self._content.path_of(record.claim),
                    resource=record.claim.resource,
                    reason=reason,
                )
            )

    def _queue_name(self, record: FlowFileRecord) -> str:
        """Empty for a handle, and for what was staged."""
        return "" if record.queue in (HANDLE_QUEUE, STAGED_QUEUE) else self._state.queues[record.queue].name


def _place(record: FlowFileRecord) -> tuple[int, int]:
    return (-1, 0) if record.claim is None else (record.claim.resource, record.claim.offset)


def _require_apart(source: str, root: str) -> None:
    places = os.path.realpath(root), os.path.realpath(source)
    if os.path.commonpath(places) in places:
        raise InvalidArgument(
            f"{source} is only read, and {root} is the same directory, or lies in it, or around it: choose another one"
        )


def require_empty(files: Files, spec: ContentRepositorySpec, beside: str = "") -> None:
    """DirectoryNotEmpty unless a repository can be made where the spec says. `beside`: what a caller put there."""
    root = spec.storage.host_path.path
    mounts = {container.sub_path.split("/")[0] for container in spec.storage.containers}
    mounts |= {path.split("/")[0] for path in spec.storage.provenance_directories} | {"flowfile", beside}
    for directory in (root, *(os.path.join(root, container.sub_path) for container in spec.storage.containers)):
        names = files.list_directory(directory) if files.exists(directory) else []
        allowed = mounts if directory == root else set[str]()
        if foreign := [name for name in names if name not in allowed and name != LOST_AND_FOUND]:
            what = "a salvage was cut short there: remove it" if SALVAGING in names else "choose an empty directory"
            raise DirectoryNotEmpty(f"{directory} is not empty ({foreign[0]}): {what}")


def _report(
    repository: str,
    found: SurveyedSource,
    state: SalvagedState,
    events: SalvagedEvents,
    there: FoundFiles,
    disk: FailingDisk,
    salvager: Salvager,
) -> SalvageReport:
    damaged = [*found.lost, *events.lost]
    damaged += [LostRange(path, 0, 0, f"it can't be listed: {error}") for path, error in there.unlisted.items()]
    damaged += [
        LostRange(path, offset, 0, f"the disk does not give it: {error}")
        for path, pages in disk.unreadable.items()
        for offset, error in pages.items()
    ]
    return SalvageReport(
        repository=repository,
        queues=dict(sorted(salvager.queues.items())),
        handles=salvager.handles,
        held=salvager.held,
        lost=tuple(salvager.lost),
        lost_count=salvager.lost_count,
        events=salvager.events,
        lost_events=events.lost_count,
        lost_transactions=tuple(found.chain.gaps) if found.chain.is_loss else (),
        doubts=tuple(found.doubts),
        damaged=tuple(
            DamagedRange(path=each.path, offset=each.offset, length=each.length, reason=each.reason) for each in damaged
        ),
        set_aside=tuple(f"{each.place}: {each.reason}" for each in state.unusable),
    )

"""The records of a subject go, wherever they stand: each step is a transaction, and may be done again.

FlowFiles, handles, tombstones and staged ones are deleted; a swap file is written anew without them; records that were
set aside are given up; remembered answers are forgotten. A record that stays may have values in its packed bytes that
an update has replaced since (engine/updates.py): it is packed anew. The queues of the open repository are told nothing:
it is to be closed afterwards.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, TypeVar

import msgspec

from ullage.engine.engine import Engine
from ullage.engine.erasure.answers import names_any
from ullage.engine.erasure.events import REDACTED
from ullage.engine.erasure.subject import Subject
from ullage.engine.ledger.answerruns import AnswerRuns
from ullage.engine.ledger.resident import KeptRecords
from ullage.engine.ledger.swap import summarize
from ullage.engine.model import (
    NO_ATTRIBUTES,
    STAGED_QUEUE,
    Answer,
    Delete,
    EventType,
    FlowFileRecord,
    Operation,
    RunFile,
    SetAsideEnd,
    StagedWrite,
    SwapDrop,
    Update,
    WriteState,
    pack_attributes,
    split_uuids,
    unpack_attributes,
)
from ullage.engine.provenance.eventruns import of_existing
from ullage.engine.runs.rows import BlockDamaged
from ullage.errors import RepositoryDamaged, TransactionTooLarge

T = TypeVar("T")

SLICE: Final = 1_000
"""Records that one transaction removes: milliseconds, and far from what one may hold."""

ANSWER_BYTES: Final = 1 << 20
"""Answers that one transaction brings back from a run that is to go."""

_FORGOTTEN_MILLIS: Final = 1
"""When an answer was given that is good no more."""


class RecordWiper:
    """Used by one thread, on a repository that nobody else uses. `on_step` is told now and then how many are done."""

    def __init__(self, engine: Engine, subject: Subject, on_step: Callable[[int], None]) -> None:
        self._engine = engine
        self._ledger = engine.ledger
        self._subject = subject
        self._on_step = on_step

    def wipe(self) -> None:
        """Everything but answers. What can't be read is passed over: whoever looks again is told of it."""
        for name in sorted(self._ledger.swaps):
            self._wipe_swap_file(name)
        for write in self._ledger.writes.operations():
            if isinstance(write, StagedWrite):
                self._wipe_staged(write)
        self._wipe_resident()
        for aside in self._ledger.set_aside.all():
            # One that went with somebody else's FlowFiles stays: only it has them still.
            if self._subject.has_aside(aside) and all(map(self._subject.has, aside.flow_files)):
                self._commit([SetAsideEnd(aside.id), *self._told(aside.flow_files)])

    def _wipe_resident(self) -> None:
        with self._ledger.lock:
            kept = self._ledger.kept()  # as of now: what changes below changes nothing of it
        readable = (
            record
            for part in kept.parts
            for record in KeptRecords([part]).readable(self._ledger.cold.pass_over)
            if record.queue != STAGED_QUEUE and (self._subject.has(record) or self._subject.lingers_in(record))
        )
        for some in _slices(readable):
            gone = [record for record in some if self._subject.has(record)]
            if gone:
                uuids = [record.uuid for record in gone]
                with self._ledger.staying(uuids):
                    self._commit([Delete(b"".join(uuids)), *self._told(gone)])
            stale = [record for record in some if not self._subject.has(record)]
            if stale:
                with self._ledger.staying([record.uuid for record in stale]):
                    self._commit(list(map(_packed_anew, stale)))
            self._on_step(len(some))

    def _wipe_staged(self, write: StagedWrite) -> None:
        """What attempts have staged goes from their lists with it: a write that lacks some of it would be damaged."""
        with self._ledger.lock:
            progress = self._ledger.writes.pending.get(write.id)
            lists = [staged for found in progress.attempts.values() for staged in found] if progress else []
            records = filter(None, (self._ledger.find(uuid) for each in lists for uuid in split_uuids(each.uuids)))
            gone = [record.uuid for record in records if self._subject.has(record)]
        if not gone:
            return
        operations: list[Operation] = [
            # A write that begins anew after it was aborted has nothing staged: so its lists can be said again.
            msgspec.structs.replace(write, state=WriteState.ABORTED),
            msgspec.structs.replace(write, state=WriteState.OPEN),
            *(msgspec.structs.replace(each, uuids=_without(each.uuids, set(gone))) for each in lists),
            write,
            Delete(b"".join(gone)),
        ]
        with suppress(TransactionTooLarge):  # one that is too large for that stays, and the second look tells it
            self._commit(operations)
        self._on_step(len(gone))

    def _wipe_swap_file(self, name: str) -> None:
        """Write it anew without them; one of which nothing is left is dropped.

        new file written, synced | SwapDrop of the old one, SwapOut of the new one in one frame | old one retired
                                   ^ commit point: a crash before it leaves a file that no transaction names
        """
        try:
            content = self._engine.swap_files.read(name)
        except RepositoryDamaged:
            return
        gone = [record for record in content.records if self._subject.has(record)]
        kept = [self._clean(record) for record in content.records if not self._subject.has(record)]
        asides = [aside for aside in content.set_aside if not self._subject.has_aside(aside)]
        if kept == content.records and len(asides) == len(content.set_aside):
            return
        operations: list[Operation] = [SwapDrop(name)]
        if kept:
            definition = self._ledger.queues[self._ledger.swaps[name].queue]
            new = summarize(kept, definition, self._engine.clock.now_millis())
            self._engine.swap_files.write(new, kept)
            operations.append(new)
        self._commit([*operations, *asides, *self._told(gone)])
        self._on_step(len(content.records))

    def _clean(self, record: FlowFileRecord) -> FlowFileRecord:
        if not self._subject.lingers_in(record):
            return record
        return msgspec.structs.replace(record, attributes=pack_attributes(unpack_attributes(record.attributes)))

    def _told(self, records: Sequence[FlowFileRecord]) -> list[Operation]:
        """That these went, in the lineage: without attributes, which the log would have once more."""
        if not self._engine.spec.provenance.enabled:
            return []
        seen = [record for record in records if not record.deleted_millis]
        bare = [msgspec.structs.replace(record, attributes=NO_ATTRIBUTES) for record in seen]
        return of_existing(EventType.DROP, bare, REDACTED)

    def _commit(self, operations: Sequence[Operation]) -> None:
        self._engine.committer.commit(operations, creates=False)


def _without(uuids: bytes, gone: set[bytes]) -> bytes:
    return b"".join(uuid for uuid in split_uuids(uuids) if uuid not in gone)


def _packed_anew(record: FlowFileRecord) -> Update:
    """What makes the ledger unpack a record's attributes and pack them again: the end of one that it does not have."""
    name, there = "", unpack_attributes(record.attributes)
    while name in there:
        name += "-"
    return Update(record.uuid, remove_attributes=(name,))


def wipe_answers(engine: Engine, uuids: Collection[bytes]) -> None:
    """Forget the answers that name one of these. A request that is repeated with its key is a new one then."""
    answers = engine.spaces.answers
    for run in engine.ledger.runs_of(answers.files.space):
        others = _others_of(answers, run, uuids)
        for some in _portions(others or ()):
            engine.committer.commit(some, creates=False)
            if engine.ledger.answers.is_large:  # or those that came first would be driven out
                engine.checkpoint()
        if others is not None:
            # Last: until it counts no more, what it has is there twice, and says the same.
            engine.committer.commit([msgspec.structs.replace(run, rows=0)], creates=False)
    with engine.ledger.lock:
        fresh = engine.ledger.answers.all()
    # There is no operation that forgets one; one that is over, and says nothing, takes its place.
    over: list[Operation] = [
        Answer(each.key, b"", b"", _FORGOTTEN_MILLIS) for each in fresh if names_any(each.answer, uuids)
    ]
    for slice in _slices(over):
        engine.committer.commit(slice, creates=False)


def _others_of(answers: AnswerRuns, run: RunFile, uuids: Collection[bytes]) -> list[Answer] | None:
    """The answers of a run that is to go, but for those that name one of these. None: it stays, as it names none, or
    as what of it can't be read may be an answer that somebody relies on.
    """
    try:
        found = list(answers.of_run(run))
    except BlockDamaged:
        return None
    others = [answer for answer in found if not names_any(answer.answer, uuids)]
    return others if len(others) < len(found) else None


def _slices(found: Iterable[T]) -> Iterator[list[T]]:
    found = iter(found)
    while some := list(islice(found, SLICE)):
        yield some


def _portions(answers: Sequence[Answer]) -> Iterator[list[Answer]]:
    some: list[Answer] = []
    size = 0
    for answer in answers:
        if some and (len(some) >= SLICE or size + len(answer.answer) > ANSWER_BYTES):
            yield some
            some, size = [], 0
        some.append(answer)
        size += len(answer.answer)
    if some:
        yield some


def wipe_runs(engine: Engine) -> bool:
    """Write each run of handles anew of which a handle has left; whether that was possible of all."""
    handles = engine.spaces.handles
    before = None
    while True:
        engine.checkpoint()  # lists what was merged, and no more what nothing is left of
        hollow = handles.hollow()
        if not hollow:
            return True
        if hollow == before or not handles.rewrite(hollow):
            return False  # damaged, or no room
        before = hollow

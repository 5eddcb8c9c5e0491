"""Small repositories in memory with every format in them, and what each of their transactions left behind.

The truth is kept apart from the engine's own reading: contents are taken from the files by claim when their
transaction is applied, and FlowFiles by the operations themselves.
"""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple
from unittest import mock

from tests.support import ManualClock, collect_now_and_then, committing, spec_at
from ullage.contract import ContainerSettings, ContentRepositorySpec, PunchSettings, Quantity
from ullage.engine.engine import Engine
from ullage.engine.ledger.coldhandles import ColdRun
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.model import (
    Action,
    Answer,
    ContentClaim,
    Delete,
    FlowFileRecord,
    Lifetime,
    Operation,
    SwapDrop,
    SwapOut,
    Update,
    parse_uuid,
    split_uuids,
)
from ullage.engine.runs import rows
from ullage.engine.runs.rows import packed_key
from ullage.engine.updates import updated
from ullage.errors import UllageError
from ullage.testing.crashing import CrashFiles, Image

ROOT = "/r"
RESTING = 21
SMALL_BLOCK = 500
"""So that few handles make several blocks."""

Shown = tuple[int, int, bytes, bytes]
"""Queue, place, attributes and content of a FlowFile."""


@dataclass(slots=True)
class Truth:
    """What every transaction left: FlowFiles by uuid, after each id."""

    after: dict[int, dict[bytes, Shown]] = field(default_factory=lambda: {0: {}})
    contents: dict[tuple[int, int], bytes] = field(default_factory=dict)
    records: dict[bytes, FlowFileRecord] = field(default_factory=dict)
    swapped: dict[str, list[bytes]] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    answers: list[tuple[int, Answer]] = field(default_factory=list)
    """With the transaction that each stands in."""

    def apply(self, id: int, operations: Sequence[Operation]) -> None:
        """Follow one transaction."""
        for operation in operations:
            self._apply(operation)
            if isinstance(operation, Answer):
                self.answers.append((id, operation))
        self.after[id] = {uuid: self.show(record) for uuid, record in self.records.items()}

    def show(self, record: FlowFileRecord) -> Shown:
        claim = record.claim
        data = b"" if claim is None else self.contents[claim.resource, claim.offset]
        return (record.queue, record.queued, record.attributes, data[record.start : record.start + record.size])

    def claims_of(self, operations: Sequence[Operation]) -> Iterator[ContentClaim]:
        for operation in operations:
            if isinstance(operation, FlowFileRecord) and operation.claim is not None:
                yield operation.claim
            elif isinstance(operation, Update) and operation.content and operation.content.claim:
                yield operation.content.claim

    def _apply(self, operation: Operation) -> None:
        if isinstance(operation, FlowFileRecord):
            self.records[operation.uuid] = operation
        elif isinstance(operation, Update):
            self.records[operation.uuid] = updated(self.records[operation.uuid], operation)
        elif isinstance(operation, Delete):
            for uuid in split_uuids(operation.uuids):
                del self.records[uuid]
        elif isinstance(operation, SwapOut):
            self.swapped[operation.name] = list(split_uuids(operation.uuids))
        elif isinstance(operation, SwapDrop):
            self.dropped.add(operation.name)
            for uuid in self.swapped[operation.name]:
                del self.records[uuid]


class Specimen(NamedTuple):
    """One repository's files, the spec that opens it, and what is true of it."""

    name: str
    image: Image
    spec: ContentRepositorySpec
    truth: Truth
    last_id: int
    snapshot_id: int
    is_closed: bool
    orphans: frozenset[str]
    """Files that nothing names though nothing is damaged: what was made ahead of need."""

    resting: dict[str, frozenset[bytes]]
    """Uuids of the handles in each run of them, by its path, of those too that have left it since."""

    def files_like(self, part: str) -> list[str]:
        return sorted(path for path in self.image.files if part in path)

    def with_file(self, path: str, data: bytes) -> Image:
        """The image with one file changed."""
        return self.image._replace(files={**self.image.files, path: data})


def specimen(*, closed: bool, partitions: int, seed: int = 4) -> Specimen:
    """Write a repository: identities, log, snapshot, swap files, small, large, dead and archived content, handles."""
    spec = _spec(partitions)
    files, clock, truth = CrashFiles(), ManualClock(), Truth()
    small_blocks = mock.patch.object(rows, "BLOCK_BYTES_WANTED", SMALL_BLOCK)
    with small_blocks, mock.patch("os.urandom", random.Random(seed).randbytes):
        Engine.initialize(spec, files, clock)
        with _watched(files, truth):
            repository = Engine.open(spec, files, clock)
            _fill(repository, clock, random.Random(seed), large=True)
            repository.reclamation.execute(repository.reclamation.plan_truncation(eager=True))
            repository.reclamation.clean()
            compactor = repository.compactor
            compactor.execute(compactor.plan(actions=frozenset({Action.PUNCH})))
            compactor.execute(compactor.plan(policy="CompactAll"))
            repository.leases.acquire("a reader", 3_600_000)
            resting = _rest(repository)
            repository.ledger.records.pack(0)
            repository.checkpoint()
            snapshot_id = repository.log.last_id
            clock.advance(60)
            _fill(repository, clock, random.Random(seed + 1), large=False)
            _disturb(repository, resting)
            compactor.execute(compactor.plan(policy="CompactAll"))
            last_id = repository.log.last_id
            if closed:
                repository.close()
                last_id = max(truth.after)
            else:
                repository.log.abandon()
                repository.close()
    name = f"{'closed' if closed else 'killed'}-{partitions}"
    image = files.image()
    return Specimen(name, image, spec, truth, last_id, snapshot_id, closed, *_beside_truth(image, spec))


def _beside_truth(image: Image, spec: ContentRepositorySpec) -> tuple[frozenset[str], dict[str, frozenset[bytes]]]:
    repository = reopen(image, spec)
    try:
        orphans = frozenset(repository.check().orphans)
        runs = repository.ledger.cold.runs
        return orphans, {repository.spaces.path(run.listed): frozenset(_uuids_in(run)) for run in runs}
    finally:
        abandon(repository)


def _uuids_in(run: ColdRun) -> Iterator[bytes]:
    return (packed_key(key) for number in run.blocks() for key in run.block(number).keys)


def reopen(repository_image: Image, spec: ContentRepositorySpec) -> Engine:
    """Open an image; the image itself stays as it is."""
    collect_now_and_then()
    return Engine.open(spec, CrashFiles(repository_image), ManualClock(1_700_000_100_000))


def abandon(repository: Engine) -> None:
    """End without writing: the image is thrown away."""
    repository.log.abandon()
    repository.close()


def shown(repository: Engine) -> tuple[dict[bytes, Shown], list[str]]:
    """All FlowFiles as readers see them, swapped ones included, and the message of each refusal to read one."""
    found: dict[bytes, Shown] = {}
    refused: list[str] = []
    records = list(repository.ledger.everything())
    for name in sorted(repository.ledger.swaps):
        try:
            records += repository.swap_files.read(name).records
        except UllageError as error:
            refused.append(str(error))
    for record in records:
        try:
            claim = record.claim
            data = b"" if claim is None else repository.reader.read(claim, record.start, record.size)
        except UllageError as error:
            refused.append(str(error))
            continue
        found[record.uuid] = (record.queue, record.queued, record.attributes, data)
    return found, refused


def _spec(partitions: int) -> ContentRepositorySpec:
    quota = Quantity(1 << 30)
    containers = (
        ContainerSettings(name="c1", sub_path="c1", capacity=quota),
        ContainerSettings(name="c2", sub_path="volumes/c2", capacity=quota),
    )
    return spec_at(
        ROOT,
        storage={"containers": containers, "sections": 2},
        claims={"max_flow_files": 8, "large_claim": Quantity(500_000)},
        compaction={"bytes_per_second": Quantity(0), "punch": PunchSettings(min_run=Quantity(4096))},
        flow_file={"partitions": partitions, "swap_threshold": 4, "swap_batch": 3},
    )


@contextmanager
def _watched(files: CrashFiles, truth: Truth) -> Iterator[None]:
    """Tell the truth of each transaction that is applied, with its contents straight from the files."""
    apply = Ledger.apply

    def watched(ledger: Ledger, transaction: int, millis: int, operations: Sequence[Operation]) -> None:
        apply(ledger, transaction, millis, operations)
        if transaction:
            names = {path.rsplit("-", 1)[-1]: path for path in files.image().files if "/c" in path and "-" in path}
            for claim in truth.claims_of(operations):
                if (claim.resource, claim.offset) not in truth.contents:
                    data = files.image().files[names[str(claim.resource)]]
                    truth.contents[claim.resource, claim.offset] = data[claim.offset : claim.end]
            truth.apply(transaction, operations)

    with mock.patch.object(Ledger, "apply", watched):
        yield


def _fill(repository: Engine, clock: ManualClock, chooser: random.Random, *, large: bool) -> None:
    """A little of everything, a transaction at a time; `large` adds contents of several blocks."""
    sizes = (0, 1, 700, 270_000, 530_000) if large else (0, 3, 900)
    with committing(repository) as session:
        for size in sizes:
            record = session.create(attributes={"n": str(size)})
            session.write(record, chooser.randbytes(size), Lifetime.LONG if size == 1 else Lifetime.DEFAULT)
            session.transfer(record, "files")
    with committing(repository) as session:
        first, second, third, *others = session.get_many("files", len(sizes))
        session.remove(second)
        session.put_attribute(first, "route", "kept")
        session.transfer_many([first, third, *session.split(third, [100, 400]), *others], "work")
    for queue in ("long", "back", "dropped"):
        clock.advance(1)
        with committing(repository) as session:
            session.ingest(queue, [chooser.randbytes(size) for size in range(100, 108)], {"batch": queue})
    with committing(repository) as session:
        session.remove_many(session.get_many("back", 5))
    repository.queues.drop(repository.queue("dropped"))
    repository.handles.put(chooser.randbytes(600), {"kind": "kept"})
    repository.handles.delete(repository.handles.put(chooser.randbytes(50), {"kind": "deleted"}))
    answers = [Answer(chooser.randbytes(32), b"put", chooser.randbytes(60), clock.now_millis()) for _ in range(20)]
    repository.committer.commit(answers, creates=True)


def _rest(repository: Engine) -> list[str]:
    """Handles that leave memory for a run with the next snapshot: their contents are in files that are sealed."""
    contents = [b"%d rests" % number if number % 3 else b"" for number in range(RESTING)]
    ids = repository.handles.put_many(contents, {"kind": "rests"})
    repository.content.retire_idle()
    repository.committer.commit(repository.content.take_seals(), creates=False)
    repository.spaces.handles.rows_min = 1
    return sorted(ids)


def _disturb(repository: Engine, ids: list[str]) -> None:
    """Some are deleted, brought back, given an end and given up."""
    repository.handles.delete(ids[0])
    repository.handles.delete(ids[7])
    repository.handles.undelete(ids[7])
    repository.handles.set_ttl(ids[13], 1 << 40)
    repository.handles.forget([parse_uuid(id) for id in ids[-2:]], "not needed")


def describe(found: Specimen) -> str:
    """The sizes of its files, for the run's log."""
    return json.dumps({path: len(data) for path, data in sorted(found.image.files.items())}, indent=1)

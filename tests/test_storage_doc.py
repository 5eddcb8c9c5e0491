"""docs/storage.md against the engine: a reader written from the page alone sees what the engine sees."""

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from crc32c import crc32c

from tests.engine.provenance.history import history
from tests.storage_reader import Damaged, ReadFlowFile, StorageReader, lay_out
from tests.support import ManualClock, committing, spec_at
from ullage.contract import ContainerSettings, ContentRepositorySpec, Quantity
from ullage.engine import model
from ullage.engine.content import checksum, writer
from ullage.engine.engine import Engine
from ullage.engine.model import FlowFileRecord, format_uuid, new_uuids
from ullage.engine.wal import records
from ullage.engine.wal.format import HEADER_BYTES_MAX, OPERATIONS_MAX, PAYLOAD_BYTES_MAX

DOC = (Path(__file__).parents[1] / "docs" / "storage.md").read_text(encoding="utf-8")
SIZES = (0, 1, 1_000, 50 << 10, 256 << 10, (256 << 10) + 1, 1 << 20, (3 << 20) + 5)
KINDS = {
    1: model.FlowFileRecord,
    2: model.Update,
    3: model.Delete,
    4: model.QueueDefinition,
    5: model.ResourceClaim,
    6: model.ResourceClaimGone,
    7: model.ClaimBlocks,
    8: model.IndexCeiling,
    9: model.SwapOut,
    10: model.SwapIn,
    11: model.SwapDrop,
    20: model.TransactionEvents,
    21: model.Undrained,
    22: model.Relocation,
    23: model.LeaseRecord,
    24: model.LeaseEnd,
    25: model.Answer,
    26: model.StagedWrite,
    27: model.Staged,
}
PARTS = (model.ContentClaim, model.Content, model.SwapShare, model.EventRun)
LIMITS = {
    "transaction payload": PAYLOAD_BYTES_MAX,
    "operations in a transaction": OPERATIONS_MAX,
    "file header body": HEADER_BYTES_MAX,
    "records in a block": records.BLOCK_RECORDS,
    "block payload": records.BLOCK_BYTES_MAX,
    "content block with a CRC of its own": checksum.BLOCK_BYTES,
    "alignment of a large claim": writer.ALIGNMENT,
}


def spec(path: Path, partitions: int) -> ContentRepositorySpec:
    """Small thresholds, so that a few FlowFiles go through every path that leaves something on disk."""
    quota = Quantity(1 << 30)  # whatever the machine's disk holds, the archive is not cleared for want of room
    containers = (
        ContainerSettings(name="c1", sub_path="c1", capacity=quota),
        ContainerSettings(name="c2", sub_path="volumes/c2", capacity=quota),
    )
    return spec_at(
        path,
        storage={"containers": containers, "sections": 4},
        flow_file={"partitions": partitions, "swap_threshold": 6, "swap_batch": 3},
        archive={"enabled": True},
    )


def fill(repository: Engine, random_bytes: Callable[[int], bytes]) -> None:
    """FlowFiles of all sizes, updated, cloned, split, merged and removed."""
    with committing(repository) as session:
        for size in SIZES:
            record = session.create(attributes={"size": str(size), "ä": "ü☃"})
            session.write(record, random_bytes(size))
            session.transfer(record, "in")
    with committing(repository) as session:
        held = session.get_many("in", len(SIZES))
        first, *others = held
        session.remove(first)
        for record in others:
            session.put_attributes(record, {"filename": f"{record.size}.bin", "route": "a"})
            session.remove_attributes(record, ["size"])
        clone = session.clone(others[-1])
        fragments = session.split(others[-2], [100, 0, 300_000])
        merged = session.merge([others[0], others[1]], b"<", b"|", b">")
        session.transfer_many([*others, clone, *fragments, merged], "work")


def swap(repository: Engine, random_bytes: Callable[[int], bytes]) -> None:
    """Queues longer than memory holds: some swap files stay, one comes back, one is dropped."""
    for queue in ("long", "returning", "dropped"):
        with committing(repository) as session:
            session.ingest(queue, [random_bytes(size) for size in (300_000, *range(10, 21))], {"queue": queue})
    with committing(repository) as session:
        session.remove_many(session.get_many("returning", 7))
    repository.queues.drop(repository.queue("dropped"))


def put_handles(repository: Engine, random_bytes: Callable[[int], bytes]) -> None:
    """Handles: a live one, one that will expire, and a tombstone."""
    repository.handles.put(random_bytes(70_000), {"kind": "kept"})
    repository.handles.put(random_bytes(10), {"kind": "expiring"}, ttl_millis=3_600_000)
    repository.handles.delete(repository.handles.put(random_bytes(10), {"kind": "deleted"}))


def stage(repository: Engine, random_bytes: Callable[[int], bytes]) -> None:
    """Staged writes: one that appeared, one that is gone, and one that is open."""
    for end in ("commit", "abort", "stay"):
        write, attempt = new_uuids(2)
        repository.staging.begin(write, "test", queue="work")
        repository.staging.stage(write, attempt, 0, [random_bytes(size) for size in (20, 300_000)], {"end": end})
        if end == "abort":
            repository.staging.abort(write)
        elif end == "commit":
            repository.staging.prepare(write, {attempt: 1})
            repository.staging.commit(write, {attempt: 1})


def reclaim(repository: Engine) -> None:
    """Cut off dead tails, move what is wholly dead to the archive, and rewrite the rest, which writes outputs anew."""
    reclamation = repository.reclamation
    reclamation.execute(reclamation.plan_truncation(eager=True))
    reclamation.clean()
    repository.compactor.execute(repository.compactor.plan(policy="CompactAll"))


def as_read(repository: Engine, record: FlowFileRecord) -> ReadFlowFile:
    """One record as the engine itself reads it."""
    names = {definition.number: definition.name for definition in repository.ledger.queues.values()}
    content = b""
    if record.claim is not None and record.size:
        content = b"".join(repository.reader.stream(record.claim, record.start, record.size))
    return ReadFlowFile(
        record.id,
        names.get(record.queue),
        record.attribute_map(),
        content,
        record.entry_millis,
        record.lineage_millis,
        record.queued,
        record.parent_ids,
        record.expires_millis,
        record.deleted_millis,
    )


def seen_by_the_engine(repository: Engine) -> list[ReadFlowFile]:
    """All FlowFiles, handles and swapped ones. Swapped ones are brought back first: only then can all be read."""
    records = [record for record in repository.ledger.flow_files() if record.queue != model.STAGED_QUEUE]
    for name in list(repository.ledger.swaps):
        content = repository.swap_files.read(name)
        for blocks in content.blocks:
            with repository.ledger.lock:
                repository.ledger.blocks[blocks.resource % 256][blocks.resource, blocks.offset] = blocks
        records.extend(content.records)
    return sorted(as_read(repository, record) for record in records)


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_reader_written_from_the_page_sees_what_the_engine_sees(tmp_path: Path, partitions: int) -> None:
    """FlowFiles, attributes, queues and contents of a closed repository are byte for byte what docs/storage.md says."""
    wanted = spec(tmp_path / "repository", partitions)
    random_bytes = random.Random(partitions).randbytes
    clock = ManualClock()
    Engine.initialize(wanted, clock=clock)
    with Engine.open(wanted, clock=clock) as repository:
        fill(repository, random_bytes)
        swap(repository, random_bytes)
        put_handles(repository, random_bytes)
        stage(repository, random_bytes)
        reclaim(repository)
        repository.provenance.drain()
        repository.provenance.index_step()
        put_handles(repository, random_bytes)
        repository.checkpoint(drains=False)  # so that the snapshot carries events
        fill(repository, random_bytes)
        swap(repository, random_bytes)
        stage(repository, random_bytes)
        reclaim(repository)
        put_handles(repository, random_bytes)
    # A clean open rotates the log but takes no checkpoint, so the chains have several files from here on.
    with Engine.open(wanted, clock=clock) as repository:
        put_handles(repository, random_bytes)
        last_id = repository.log.last_id
    read = StorageReader(tmp_path / "repository")
    read_now = sorted(read.flow_files())

    with Engine.open(wanted, clock=clock) as repository:
        seen = seen_by_the_engine(repository)
        events = [(event.sequence, event.type.name, event.flow_file) for event in history(repository)]
        archived = [entry.claim for entry in repository.ledger.entries() if entry.claim.archived_millis]
        moved = [entry for entry in repository.ledger.entries() if entry.relocation is not None]

    assert read_now == seen
    assert read.events() == events
    drained = [(sequence, type) for sequence, type, _ in events if sequence < read.manifest["next_sequence"]]
    assert sorted(read.indexed("type")) == sorted((crc32c(type.encode()), sequence) for sequence, type in drained)
    assert any(sequence > read.manifest["next_sequence"] for sequence, *_ in events)
    assert last_id <= read.last_id
    assert {flow_file.queue for flow_file in seen} == {"work", "long", "returning", None}
    assert len(read.swaps) > 2
    assert archived
    assert moved


def test_a_page_reader_finds_content_in_a_repository_that_was_moved(tmp_path: Path) -> None:
    """No file names an absolute path, so a repository can be copied or mounted elsewhere."""
    wanted = spec(tmp_path / "here", 1)
    Engine.initialize(wanted, clock=ManualClock())
    with Engine.open(wanted, clock=ManualClock()) as repository:
        fill(repository, random.Random(7).randbytes)
    before = sorted(StorageReader(tmp_path / "here").flow_files())

    shutil.move(tmp_path / "here", tmp_path / "there")

    assert sorted(StorageReader(tmp_path / "there").flow_files()) == before
    with Engine.open(spec(tmp_path / "there", 1), clock=ManualClock()) as repository:
        assert seen_by_the_engine(repository) == before


def test_a_page_reader_makes_the_repository_of_a_backup(tmp_path: Path) -> None:
    """What the page says of a backup suffices to lay it out again: the reader and the engine find all of it there."""
    wanted = spec(tmp_path / "repository", 2)
    random_bytes, clock = random.Random(5).randbytes, ManualClock()
    Engine.initialize(wanted, clock=clock)
    with Engine.open(wanted, clock=clock) as repository:
        for _ in range(2):
            fill(repository, random_bytes)
            swap(repository, random_bytes)
            put_handles(repository, random_bytes)
            reclaim(repository)
            repository.backup(str(tmp_path / "backup"))
        archived = [entry.claim for entry in repository.ledger.entries() if entry.claim.archived_millis]
        moved = [entry for entry in repository.ledger.entries() if entry.relocation is not None]

    lay_out(tmp_path / "backup", tmp_path / "again")

    before, read = StorageReader(tmp_path / "repository"), StorageReader(tmp_path / "again")
    found, events = sorted(read.flow_files()), read.events()
    assert found == sorted(before.flow_files())
    assert events == before.events()
    with Engine.open(spec(tmp_path / "again", 2), clock=clock) as repository:
        assert repository.check(deep=True).problems == ()
        assert seen_by_the_engine(repository) == found
    assert len(read.swaps) > 2
    assert archived
    assert moved


def test_checksums_cover_every_byte_of_a_snapshot(tmp_path: Path) -> None:
    """A snapshot with any one byte changed is refused by what the page says of its checksums."""
    wanted = spec(tmp_path / "repository", 1)
    Engine.initialize(wanted, clock=ManualClock())
    with Engine.open(wanted, clock=ManualClock()) as repository:
        put_handles(repository, random.Random(3).randbytes)
        repository.checkpoint()
    snapshot = tmp_path / "repository" / "flowfile" / "snapshot"
    whole = snapshot.read_bytes()

    undetected = []
    for at in range(len(whole)):
        snapshot.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            StorageReader(tmp_path / "repository")
        except Damaged:
            continue  # as it should be
        undetected.append(at)

    assert undetected == []


@pytest.mark.parametrize(("tag", "kind"), KINDS.items(), ids=lambda value: getattr(value, "__name__", str(value)))
def test_the_page_lists_each_operation_with_its_fields_in_order(tag: int, kind: type[msgspec.Struct]) -> None:
    """The table of operations has exactly the fields, in the order, that the engine writes."""
    assert documented_fields(f"{tag} `{kind.__name__}`") == [field.name for field in msgspec.structs.fields(kind)]
    assert kind.__struct_config__.tag == tag


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_the_page_lists_each_nested_array_with_its_fields_in_order(part: type[msgspec.Struct]) -> None:
    """Arrays inside operations have exactly the fields, in the order, that the engine writes."""
    assert documented_fields(f"`{part.__name__}`") == [field.name for field in msgspec.structs.fields(part)]


def test_no_operation_is_missing_on_the_page() -> None:
    """Every member of the union that the engine encodes has its row."""
    assert set(KINDS.values()) == set(get_args(model.Operation))


@pytest.mark.parametrize(("what", "value"), LIMITS.items())
def test_the_page_states_the_limits_that_the_engine_keeps(what: str, value: int) -> None:
    """The table of limits gives the numbers in the code."""
    row = next(line for line in DOC.splitlines() if line.startswith(f"| {what} |"))

    assert int(row.split("|")[2].replace(",", "").split()[0]) == value


def test_uuids_are_written_as_the_page_says() -> None:
    """16 bytes in their usual order."""
    assert format_uuid(bytes(range(16))) == "00010203-0405-0607-0809-0a0b0c0d0e0f"


def documented_fields(first_cell: str) -> list[str]:
    """The names in the second column of the row that begins with `first_cell`."""
    row = next(line for line in DOC.splitlines() if line.startswith(f"| {first_cell} |"))
    return re.findall(r"`(\w+)`", row.split("|")[2])

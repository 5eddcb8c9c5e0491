"""docs/storage.md against the engine: a reader written from the page alone sees what the engine sees."""

import random
import re
import shutil
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from crc32c import crc32c

from tests.backup_reader import lay_out
from tests.engine.provenance.history import history
from tests.golden import make as golden
from tests.golden.make import GOLDEN_ANSWERS, golden_spec
from tests.storage_claims import Damaged
from tests.storage_reader import ReadFlowFile, StorageReader
from tests.support import ManualClock, committing
from ullage.engine import model
from ullage.engine.content import writer
from ullage.engine.engine import Engine
from ullage.engine.model import FlowFileRecord, new_uuids
from ullage.engine.wal import records
from ullage.engine.wal.format import HEADER_BYTES_MAX, OPERATIONS_MAX, PAYLOAD_BYTES_MAX

DOC = (Path(__file__).parents[1] / "docs" / "storage.md").read_text(encoding="utf-8")
PARTS = (model.ContentClaim, model.Content, model.SwapShare, model.EventRun)
LIMITS = {
    "transaction payload": PAYLOAD_BYTES_MAX,
    "operations in a transaction": OPERATIONS_MAX,
    "file header body": HEADER_BYTES_MAX,
    "records in a block": records.BLOCK_RECORDS,
    "block payload": records.BLOCK_BYTES_MAX,
    "content block with a CRC of its own": model.BLOCK_BYTES,
    "alignment of a large claim": writer.ALIGNMENT,
}


def fill(repository: Engine, clock: ManualClock) -> None:
    """All that the golden repository has, claims at the edge of a block, a merge, an attribute less, staged writes."""
    golden.fill(repository, clock)
    with committing(repository) as session:
        block = model.BLOCK_BYTES
        sizes = (1, block, block + 1, 12 * block + 5)
        parts = [session.write(session.create(), random.Random(2).randbytes(size)) for size in sizes]
        session.transfer_many([*parts, session.merge(parts, b"<", b"|", b">")], "edges")
    with committing(repository) as session:
        (record,) = session.get_many("long", 1)
        session.transfer(session.remove_attributes(record, ["batch"]), "long")
    for end in ("commit", "abort", "stay"):
        write, attempt = new_uuids(2)
        repository.staging.begin(write, "test", queue="work")
        repository.staging.stage(write, attempt, 0, [b"s" * 20, b"t" * 300_000], {"end": end})
        if end == "abort":
            repository.staging.abort(write)
        elif end == "commit":
            repository.staging.prepare(write, {attempt: 1})
            repository.staging.commit(write, {attempt: 1})


def rest(repository: Engine) -> None:
    """Some handles stand in a run, and one of them has left it again."""
    ids = repository.handles.put_many([b"rests %d" % number for number in range(200)])
    repository.content.retire_idle()
    repository.committer.commit(repository.content.take_seals(), creates=False)
    repository.spaces.handles.rows_min = 1
    repository.ledger.records.pack(0)
    repository.checkpoint(drains=False)
    repository.handles.delete(ids[7])


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
    """All FlowFiles, handles and swapped ones."""
    records = [record for record in repository.ledger.everything() if record.queue != model.STAGED_QUEUE]
    for name in list(repository.ledger.swaps):
        records.extend(repository.swap_files.read(name).records)
    return sorted(as_read(repository, record) for record in records)


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_reader_written_from_the_page_sees_what_the_engine_sees(tmp_path: Path, partitions: int) -> None:
    """FlowFiles, attributes, queues and contents of a closed repository are byte for byte what docs/storage.md says."""
    wanted, clock = golden_spec(tmp_path / "repository", partitions), ManualClock()
    Engine.initialize(wanted, clock=clock)
    with Engine.open(wanted, clock=clock) as repository:
        fill(repository, clock)
        reclaim(repository)
        repository.provenance.drain()
        repository.provenance.index_step()
        repository.handles.put(b"content")
        rest(repository)
        repository.checkpoint(drains=False)  # so that the snapshot carries events
        fill(repository, clock)
        reclaim(repository)
    # A clean open rotates the log but takes no checkpoint, so the chains have several files from here on.
    with Engine.open(wanted, clock=clock) as repository:
        repository.handles.put(b"content")
        last_id = repository.log.last_id
    read = StorageReader(tmp_path / "repository")
    read_now, answers_now = sorted(read.flow_files()), read.answers()

    with Engine.open(wanted, clock=clock) as repository:
        seen = seen_by_the_engine(repository)
        events = [(event.sequence, event.type.name, event.flow_file) for event in history(repository)]
        archived = [entry.claim for entry in repository.ledger.entries() if entry.claim.archived_millis]
        moved = [entry for entry in repository.ledger.entries() if entry.relocation is not None]
        answers = {answer.key: answer.answer for answer in repository.spaces.answers.all()}
        assert repository.ledger.answers.runs()
        assert repository.ledger.blocks.runs()
        assert any(any(run.listed.gone) for run in repository.ledger.cold.runs)
        assert repository.ledger.answers.all()

    assert read_now == seen
    assert answers_now == answers
    assert len(answers) == 2 * GOLDEN_ANSWERS
    assert read.events() == events
    drained = [(sequence, type) for sequence, type, _ in events if sequence < read.manifest["next_sequence"]]
    assert sorted(read.indexed("type")) == sorted((crc32c(type.encode()), sequence) for sequence, type in drained)
    assert any(sequence > read.manifest["next_sequence"] for sequence, *_ in events)
    assert last_id <= read.last_id
    assert {flow_file.queue for flow_file in seen} == {"work", "long", "returned", "edges", None}
    assert len(read.swaps) > 2
    assert archived
    assert moved


def test_a_page_reader_finds_content_in_a_repository_that_was_moved(tmp_path: Path) -> None:
    """No file names an absolute path, so a repository can be copied or mounted elsewhere."""
    wanted, clock = golden_spec(tmp_path / "here"), ManualClock()
    Engine.initialize(wanted, clock=clock)
    with Engine.open(wanted, clock=clock) as repository:
        fill(repository, clock)
    before = sorted(StorageReader(tmp_path / "here").flow_files())

    shutil.move(tmp_path / "here", tmp_path / "there")

    assert sorted(StorageReader(tmp_path / "there").flow_files()) == before
    with Engine.open(golden_spec(tmp_path / "there"), clock=ManualClock()) as repository:
        assert seen_by_the_engine(repository) == before


def test_a_page_reader_makes_the_repository_of_a_backup(tmp_path: Path) -> None:
    """What the page says of a backup suffices to lay it out again: the reader and the engine find all of it there."""
    wanted, clock = golden_spec(tmp_path / "repository"), ManualClock()
    Engine.initialize(wanted, clock=clock)
    with Engine.open(wanted, clock=clock) as repository:
        for _ in range(2):
            fill(repository, clock)
            reclaim(repository)
            repository.backup(str(tmp_path / "backup"))
        archived = [entry.claim for entry in repository.ledger.entries() if entry.claim.archived_millis]
        moved = [entry for entry in repository.ledger.entries() if entry.relocation is not None]

    lay_out(tmp_path / "backup", tmp_path / "again")

    before, read = StorageReader(tmp_path / "repository"), StorageReader(tmp_path / "again")
    found, events = sorted(read.flow_files()), read.events()
    assert found == sorted(before.flow_files())
    assert events == before.events()
    assert len(read.answers()) == 2 * GOLDEN_ANSWERS
    assert read.answers() == before.answers()
    with Engine.open(golden_spec(tmp_path / "again"), clock=clock) as repository:
        assert repository.check(deep=True).problems == ()
        assert seen_by_the_engine(repository) == found
    assert len(read.swaps) > 2
    assert archived
    assert moved


def test_checksums_cover_every_byte_of_a_snapshot(tmp_path: Path) -> None:
    """A snapshot with any one byte changed is refused by what the page says of its checksums."""
    wanted = golden_spec(tmp_path / "repository")
    Engine.initialize(wanted, clock=ManualClock())
    with Engine.open(wanted, clock=ManualClock()) as repository:
        repository.handles.put(b"x" * 300_000, {"kind": "kept"})
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


@pytest.mark.parametrize("kind", get_args(model.Operation), ids=lambda kind: kind.__name__)
def test_the_page_lists_each_operation_with_its_fields_in_order(kind: type[msgspec.Struct]) -> None:
    """The table has every operation that the engine encodes, with exactly the fields, in the order, that it writes."""
    documented = documented_fields(f"{kind.__struct_config__.tag} `{kind.__name__}`")

    assert documented == [field.name for field in msgspec.structs.fields(kind)]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_the_page_lists_each_nested_array_with_its_fields_in_order(part: type[msgspec.Struct]) -> None:
    """Arrays inside operations have exactly the fields, in the order, that the engine writes."""
    assert documented_fields(f"`{part.__name__}`") == [field.name for field in msgspec.structs.fields(part)]


@pytest.mark.parametrize(("what", "value"), LIMITS.items())
def test_the_page_states_the_limits_that_the_engine_keeps(what: str, value: int) -> None:
    """The table of limits gives the numbers in the code."""
    row = next(line for line in DOC.splitlines() if line.startswith(f"| {what} |"))

    assert int(row.split("|")[2].replace(",", "").split()[0]) == value


def documented_fields(first_cell: str) -> list[str]:
    """The names in the second column of the row that begins with `first_cell`."""
    row = next(line for line in DOC.splitlines() if line.startswith(f"| {first_cell} |"))
    return re.findall(r"`(\w+)`", row.split("|")[2])

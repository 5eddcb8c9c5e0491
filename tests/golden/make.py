"""Make the golden repository of the present format: `python -m tests.golden.make [directory]`.

Two archives of the same repository and what must be found in either: `closed.tar.gz` after a clean close, and
`killed.tar.gz` as a killed process leaves it, with the log open. `backup.tar.gz` is a backup of the closed one. The
clock and the randomness are fixed, so that two runs give the same bytes. A folder of a released format is never made
again: it stands for the files that are out there.
"""

import gzip
import hashlib
import io
import json
import random
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from tests.support import ManualClock, spec_at
from tests.tars import unpack_all
from ullage.contract import ContainerSettings, ContentRepositorySpec, Quantity
from ullage.engine.backupfiles import BACKUP_FORMAT
from ullage.engine.engine import Engine
from ullage.engine.model import Action, Answer, FlowFileRecord, Lifetime, parse_uuid
from ullage.engine.wal.format import FORMAT_VERSION
from ullage.engine.wal.serde import SerDe

HERE = Path(__file__).parent
PRESENT = f"format-{FORMAT_VERSION}-serde-{SerDe.version}"
BACKUP = f"backup-{BACKUP_FORMAT}"
GOLDEN_ANSWERS = 70
"""Requests of each filling that were answered: more than a block of a run holds."""

GOLDEN_RESTING = 100
"""Handles in a run."""

MADE_AT_OPEN = ("ballast",)
"""Files that every open makes anew: left out, for they hold nothing."""


def golden_spec(root: Path, partitions: int = 2) -> ContentRepositorySpec:
    """Two containers, few sections, and swapping at a handful of FlowFiles."""
    quota = Quantity(1 << 30)
    containers = (
        ContainerSettings(name="c1", sub_path="c1", capacity=quota),
        ContainerSettings(name="c2", sub_path="volumes/c2", capacity=quota),
    )
    return spec_at(
        root,
        storage={"containers": containers, "sections": 4},
        flow_file={"partitions": partitions, "swap_threshold": 4, "swap_batch": 3},
        compaction={"bytes_per_second": Quantity(0)},
    )


def describe(repository: Engine) -> dict[str, Any]:
    """Everything a repository holds: what must be the same in the eyes of any later version."""
    flow_files = list(repository.ledger.everything())
    queues = {definition.number: definition.name for definition in repository.ledger.queues.values()}
    found = {record.id: _flow_file(repository, record, queues) for record in flow_files}
    resources = (entry.claim for entry in repository.ledger.entries())
    moved = {
        entry.claim.name: entry.relocation.output
        for entry in sorted(repository.ledger.entries(), key=lambda entry: entry.claim.index)
        if entry.relocation is not None
    }
    leases = [lease.holder for lease in repository.leases.all()]
    later = {"moved": moved, "leases": leases} if moved or leases else {}
    return later | {
        "flow_files": dict(sorted(found.items())),
        "queues": {
            queue.name: [queue.figures().flow_files, queue.figures().size_bytes, queue.figures().swap_files]
            for queue in repository.queues.all()
        },
        "priorities": {queue.name: queue.definition.priority for queue in repository.queues.all()},
        "resource_claims": {
            claim.name: [claim.container, claim.lifetime, claim.length, claim.sealed, claim.archived_millis]
            for claim in sorted(resources, key=lambda claim: claim.index)
        },
        "index_ceiling": repository.ledger.index_ceiling,
        "answers": {answer.key.hex(): answer.answer.decode() for answer in repository.spaces.answers.all()},
    }


def drain(repository: Engine) -> dict[str, list[list[str]]]:
    """Poll every queue empty, swap files included: uuid and SHA-256 of each FlowFile in its order. Nothing is kept."""
    found: dict[str, list[list[str]]] = {}
    with repository.session() as session:
        for queue in repository.queues.all():
            polled = []
            while record := session.get(queue.name):
                with session.read(record) as content:
                    polled.append([record.id, hashlib.sha256(content.read()).hexdigest()])
            found[queue.name] = polled
    return found


def fill(repository: Engine, clock: ManualClock) -> None:
    """A little of everything: sizes, slices, attributes, handles, swapping, dead tails and an archive."""
    text = random.Random(1).randbytes(4_093) * 300  # packs well, and still differs wherever one starts to read
    with repository.session() as session:
        for size in (0, 1, 3_000, 70_000, 300_000, len(text)):
            record = session.create(attributes={"filename": f"{size}.txt", "ä": "ü☃"})
            session.write(record, text[:size], Lifetime.LONG if size == 1 else Lifetime.DEFAULT)
            session.transfer(record, "files")
        session.commit()
    clock.advance(1)
    with repository.session() as session:
        first, second, *others = session.get_many("files", 6)
        session.remove(second)
        session.put_attribute(first, "route", "kept")
        fragments = session.split(others[1], [10_000, 60_000])
        session.transfer_many([first, *others, *fragments, session.clone(others[-1], 5, 1_100_000)], "work")
        session.commit()
    for turn in range(3):
        with repository.session() as session:
            (record,) = session.get_many("work", 1)
            session.transfer(session.put_attribute(record, "turn", str(turn)), "work")
            session.commit()
    for queue in ("long", "returned", "dropped"):
        clock.advance(1)
        with repository.session() as session:
            session.ingest(queue, [text[:size] for size in (270_000, *range(100, 111))], {"batch": queue})
            session.commit()
    with repository.session() as session:
        session.remove_many(session.get_many("returned", 5))
        session.commit()
    repository.queues.drop(repository.queue("dropped"))
    repository.handles.put(text[:5_000], {"kind": "kept"})
    repository.handles.put(text[:500], {"kind": "expires"}, ttl_millis=1 << 40)
    repository.handles.delete(repository.handles.put(text[:50], {"kind": "deleted"}))
    now, chooser = clock.now_millis(), random.Random(clock.now_millis())
    answers = [Answer(chooser.randbytes(32), b"put", b"done", now) for _ in range(GOLDEN_ANSWERS)]
    repository.committer.commit(answers, creates=True)


def rest(repository: Engine) -> list[str]:
    """Handles that leave memory for a run with the next snapshot: more than a block of one holds."""
    ids = repository.handles.put_many([b"%d rests" % number for number in range(GOLDEN_RESTING)], {"kind": "rests"})
    repository.content.retire_idle()
    repository.committer.commit(repository.content.take_seals(), creates=False)
    repository.spaces.handles.rows_min = 1
    return sorted(ids)


def disturb(repository: Engine, ids: list[str]) -> None:
    """Some of them leave the run: deleted, brought back, with an end, given up."""
    repository.handles.delete(ids[0])
    repository.handles.delete(ids[30])
    repository.handles.undelete(ids[30])
    repository.handles.set_ttl(ids[60], 1 << 40)
    repository.handles.forget([parse_uuid(ids[-1])], "not needed")


def make(target: Path) -> None:
    """Write `closed.tar.gz`, `killed.tar.gz` and `expected.json` into `target`."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, mock.patch("os.urandom", random.Random(20_261_121).randbytes):
        root = Path(scratch) / "repository"
        spec, clock = golden_spec(root), ManualClock()
        Engine.initialize(spec, clock=clock)
        with Engine.open(spec, clock=clock) as repository:
            fill(repository, clock)
            repository.reclamation.execute(repository.reclamation.plan_truncation(eager=True))
            repository.reclamation.clean()
            compactor = repository.compactor
            compactor.execute(compactor.plan(policy="CompactAll", actions=frozenset({Action.PUNCH})))
            compactor.execute(compactor.plan(policy="CompactAll"))
            repository.leases.acquire("a reader", 3_600_000)
            resting = rest(repository)
            repository.ledger.records.pack(0)
            repository.checkpoint()
            clock.advance(60)
            fill(repository, clock)
            disturb(repository, resting)
            repository.queues.drop(repository.queue("returned"))
            compactor.execute(compactor.plan(policy="CompactAll"))
            (target / "killed.tar.gz").write_bytes(_packed(root))
        (target / "closed.tar.gz").write_bytes(_packed(root))
        with Engine.open(spec, clock=clock) as repository:
            expected = describe(repository)
            expected["drained"] = drain(repository)
    text = json.dumps(expected, indent=1, ensure_ascii=False, sort_keys=True)
    (target / "expected.json").write_text(text + "\n", encoding="utf-8")


def make_backup(target: Path) -> None:
    """Write `backup.tar.gz` into `target`: a backup of the closed repository of the present format."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, mock.patch("os.urandom", random.Random(20_261_122).randbytes):
        root, backup = Path(scratch) / "repository", Path(scratch) / "backup"
        with tarfile.open(HERE / PRESENT / "closed.tar.gz") as tar:
            unpack_all(tar, root)
        with Engine.open(golden_spec(root), clock=ManualClock()) as repository:
            repository.backup(str(backup))
        (target / "backup.tar.gz").write_bytes(_packed(backup))


def _flow_file(repository: Engine, record: FlowFileRecord, queues: dict[int, str]) -> dict[str, Any]:
    hasher = hashlib.sha256()
    if record.claim is not None:
        for piece in repository.reader.stream(record.claim, record.start, record.size):
            hasher.update(piece)
    return {
        "queue": queues.get(record.queue),
        "size": record.size,
        "sha256": hasher.hexdigest(),
        "attributes": record.attribute_map(),
        "parents": record.parent_ids,
        "millis": [record.entry_millis, record.lineage_millis, record.expires_millis, record.deleted_millis],
        "queued": record.queued,
    }


def _packed(root: Path) -> bytes:
    """The directory as a tar.gz without a trace of when and by whom it was made."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(root.rglob("*")):
            if path.name in MADE_AT_OPEN:
                continue
            member = tarfile.TarInfo(str(path.relative_to(root)))
            if path.is_dir():
                member.type, member.mode = tarfile.DIRTYPE, 0o750
                tar.addfile(member)
            else:
                data = path.read_bytes()
                member.size, member.mode = len(data), 0o640
                tar.addfile(member, io.BytesIO(data))
    return gzip.compress(packed.getvalue(), mtime=0)


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / PRESENT)
    make_backup(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / BACKUP)

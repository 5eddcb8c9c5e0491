"""FlowFiles that no start can use. Their process serves them as long as it lives; the next start sets them aside.

Either way they are the same here, uuid and content, so that a crash state can be held against what was before it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from tests.support import careless
from ullage.engine.engine import Engine
from ullage.engine.ledger.swap import summarize
from ullage.engine.model import ContentClaim, FlowFileRecord, Operation, SetAside, new_uuids

AILING = b"ailing "
"""Before their uuids among the keys of a state."""

FLOW_FILE_TAG = FlowFileRecord.__struct_config__.tag


class Ailing(NamedTuple):
    """What is left of one."""

    uuid: bytes
    claim: ContentClaim | None
    start: int
    size: int


def is_ailing(record: FlowFileRecord) -> bool:
    """Whether it has one of the values that no record can have."""
    return record.queued < 0 or record.lineage_millis < 0


def commit_carelessly(repository: Engine, operations: Sequence[Operation]) -> None:
    """As an entrance that did not look once let it in: what the log could not read again is written all the same."""
    with careless():
        repository.committer.commit(list(operations), creates=True)


def ailing_of(repository: Engine) -> set[Ailing]:
    """Each once, wherever it is: served still, in a swap file, or set aside, from several places too."""
    live = {_left_of(record) for record in repository.ledger.flow_files() if is_ailing(record)}
    with repository.ledger.lock:
        aside = repository.ledger.set_aside.all()
    for name in repository.ledger.swaps:
        aside += repository.swap_files.read(name).set_aside
    found = {each for record in aside for each in meant_by(record)}
    assert live.isdisjoint(found), "a FlowFile was set aside, and is there all the same"
    return live | found


def meant_by(aside: SetAside) -> Iterator[Ailing]:
    """The FlowFiles of a record that was set aside."""
    yield from map(_left_of, aside.flow_files)
    tag, *fields = msgspec.msgpack.decode(aside.data)
    if tag == FLOW_FILE_TAG:
        uuid, _, claim, start, size = fields[:5]
        yield Ailing(uuid, None if claim is None else msgspec.convert(claim, ContentClaim), start, size)


def read_ailing(repository: Engine, found: Ailing) -> bytes:
    """What a record that was set aside may mean is there, and reads like anything else."""
    return b"" if found.claim is None else repository.reader.read(found.claim, found.start, found.size)


def swap_out_ailing(repository: Engine, queue: str) -> None:
    """A swap file with a FlowFile that is well, and one that is not, over the first contents of a queue."""
    standing = well_in(repository, queue)[:2]
    if len(standing) == 2:  # else an error took what was to be put there
        first, second = (msgspec.structs.replace(each, uuid=new_uuids(1)[0]) for each in standing)
        batch = [first, msgspec.structs.replace(second, lineage_millis=-1)]
        target = repository.queue(queue)
        summary = summarize(batch, target.definition, batch[0].entry_millis)
        swap_out = msgspec.structs.replace(summary, uuids=b"".join(each.uuid for each in batch))
        with careless():
            repository.queues._write_file(summary, batch, [*batch, swap_out])
        target._count += len(batch)
        target._bytes += summary.size_bytes
        target.swapped_out(summary)


def well_in(repository: Engine, queue: str) -> list[FlowFileRecord]:
    """Those of a queue, in their order, that no start would set aside."""
    number = repository.queue(queue).definition.number
    standing = [each for each in repository.ledger.flow_files() if each.queue == number and not is_ailing(each)]
    return sorted(standing, key=lambda record: record.queued)


def _left_of(record: FlowFileRecord) -> Ailing:
    return Ailing(record.uuid, record.claim, record.start, record.size)

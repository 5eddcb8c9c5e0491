"""What a repository holds, and what a transaction makes of it, by rules of their own."""

from collections.abc import Sequence

from tests.crash.ailing import AILING, ailing_of, is_ailing, meant_by
from tests.crash.steps import TENANT
from ullage.engine.engine import Engine
from ullage.engine.ledger.placement import locate
from ullage.engine.model import (
    STAGED_QUEUE,
    Delete,
    FlowFileRecord,
    Operation,
    SetAsideEnd,
    StagedWrite,
    SwapDrop,
    SwapOut,
    Update,
    WriteState,
    split_uuids,
)
from ullage.engine.updates import updated

State = dict[bytes, FlowFileRecord | None]
"""By uuid. Of those that no start can use nothing but that they are there."""

CLOSED = (WriteState.COMMITTED, WriteState.ABORTED)


def left_of_closed_writes(repository: Engine) -> set[bytes]:
    """What a staged write has not shown yet though it has its verdict: it goes, or comes, with the next open at the
    latest, and nobody sees it until then.
    """
    with repository.ledger.lock:
        writes = list(repository.ledger.writes.pending.values())
    return {uuid for write in writes if write.is_closed for uuid in (*write.chosen(), *write.others())}


def records_of(repository: Engine) -> State:
    """All FlowFiles and handles, swapped ones included; their content is named by CRC, and `check` reads it."""
    left = left_of_closed_writes(repository)
    records = [each for each in repository.ledger.everything() if each.queue != STAGED_QUEUE or each.uuid not in left]
    for name in sorted(repository.ledger.swaps):
        records.extend(repository.swap_files.read(name).records)
    well = [record for record in records if not is_ailing(record)]
    found: State = {record.uuid: record for record in well}
    assert len(found) == len(well), "a FlowFile exists twice"
    found.update({AILING + each.uuid: None for each in ailing_of(repository)})
    return found


def mixed(repository: Engine) -> list[str]:
    """Contents of a tenant's that lie in a file which is not this tenant's alone."""
    records = list(repository.ledger.everything())
    for name in sorted(repository.ledger.swaps):
        records.extend(repository.swap_files.read(name).records)
    found = []
    for record in records:
        tenant = record.attribute_map().get(TENANT)
        if record.claim is not None and tenant is not None:
            file = locate(repository.ledger, record.claim).file
            if file.tenant != tenant:
                found.append(f"FlowFile {record.id} of {tenant} lies in a file of {file.tenant or 'all'}: {file.index}")
    return found


def state_after(before: State, operations: Sequence[Operation], repository: Engine) -> State:
    """What a transaction makes of a state."""
    after = dict(before)
    for operation in operations:
        if isinstance(operation, FlowFileRecord):
            _put(after, operation)
        elif isinstance(operation, Update):
            record = after.pop(operation.uuid)
            assert record is not None, "what no start can use was changed"
            _put(after, updated(record, operation))
        else:
            for record in _brought(operation, repository):
                after[record.uuid] = record
            for uuid in _taken(operation, repository):
                after.pop(uuid, None)
    left = _left_by_verdicts(operations, repository)
    return {
        uuid: each for uuid, each in after.items() if each is None or each.queue != STAGED_QUEUE or uuid not in left
    }


def _put(state: State, record: FlowFileRecord) -> None:
    if is_ailing(record):
        state[AILING + record.uuid] = None
    else:
        state[record.uuid] = record


def _brought(operation: Operation, repository: Engine) -> Sequence[FlowFileRecord]:
    return repository.swap_files.read(operation.name).records if isinstance(operation, SwapOut) else ()


def _taken(operation: Operation, repository: Engine) -> list[bytes]:
    if isinstance(operation, Delete):
        return list(split_uuids(operation.uuids))
    if isinstance(operation, SwapDrop):
        return [record.uuid for record in repository.swap_files.read(operation.name).records]
    if isinstance(operation, SetAsideEnd):
        named: dict[bool, set[bytes]] = {True: set(), False: set()}  # by it, and by others that keep theirs
        for aside in repository.ledger.set_aside.all():
            named[aside.id == operation.id].update(each.uuid for each in meant_by(aside))
        return [AILING + uuid for uuid in named[True] - named[False]]
    return []


def _left_by_verdicts(operations: Sequence[Operation], repository: Engine) -> set[bytes]:
    """What was staged in writes that get their verdict here."""
    left: set[bytes] = set()
    for operation in operations:
        if isinstance(operation, StagedWrite) and operation.state in CLOSED:
            write = repository.ledger.writes.find(operation.id)
            assert write is not None, "a verdict on a write that never began"
            left.update(write.chosen(), write.others())
    return left

"""A handle is shown as it will be after a crash: who looks while its transaction is being synced waits for the sync."""

import errno
from collections.abc import Callable

import pytest

from tests.failing_files import FailingFiles, Gate
from tests.support import Workshop, committing
from tests.threads import begin
from ullage.engine.engine import Engine
from ullage.engine.model import FlowFileRecord, parse_uuid
from ullage.errors import CommitOutcomeUnknown, DiskFull, HandleDeleted, HandleNotFound, RepositoryStopped, UllageError

DAY = 24 * 3600

LOOKS: dict[str, Callable[[Engine, str], object]] = {
    "head": lambda repository, handle: repository.handles.head(handle).id,
    "get": lambda repository, handle: repository.handles.get(handle).read(),
    "get_deleted": lambda repository, handle: repository.handles.get(handle, includes_deleted=True).read(),
    "record": lambda repository, handle: repository.handles.record(parse_uuid(handle)).id,
    "records": lambda repository, handle: found(repository.handles.records([parse_uuid(handle)])[0]).id,
    "page": lambda repository, handle: {record.id for record in repository.handles.page(b"", 10)} & {handle},
}


def found(one: FlowFileRecord | UllageError) -> FlowFileRecord:
    if isinstance(one, UllageError):
        raise one
    return one


@pytest.fixture
def files() -> FailingFiles:
    return FailingFiles()


@pytest.fixture
def repository(workshop: Workshop) -> Engine:
    """One in which the next put is one transaction, with a handle that is durable."""
    made = workshop.make()
    made.handles.put(b"other")
    return made


def let_go_when_awaited(repository: Engine, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for what is under way opens the gate; who does not wait finds it closed."""
    settle = repository.committer.settle

    def settled() -> None:
        gate.open()
        settle()

    monkeypatch.setattr(repository.committer, "settle", settled)


def undurable(repository: Engine) -> str:
    """The one that is applied, and not synced."""
    assert repository.log.durable < repository.log.last_id
    *_, newest = (record for record in repository.ledger.flow_files() if record.size == 3)
    return newest.id


@pytest.mark.parametrize("look", list(LOOKS))
def test_a_handle_is_shown_once_it_is_durable(
    repository: Engine, files: FailingFiles, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    """Not before: a power failure would take back what somebody has seen."""
    gate = files.hold("sync", "*.wal")
    putting = begin(lambda: repository.handles.put(b"new"))
    gate.wait_until_reached()
    id = undurable(repository)
    let_go_when_awaited(repository, gate, monkeypatch)

    assert LOOKS[look](repository, id) in (id, b"new", {id})

    assert repository.log.durable == repository.log.last_id
    assert putting.result(60) == id


def test_other_handles_wait_for_nobody(repository: Engine, files: FailingFiles) -> None:
    """A read beside a slow disk's writes is as fast as ever."""
    other = next(repository.ledger.flow_files()).id
    gate = files.hold("sync", "*.wal")
    putting = begin(lambda: repository.handles.put(b"new"))
    gate.wait_until_reached()

    assert repository.handles.get(other).read() == b"other"
    assert repository.handles.head(other).size == 5
    with pytest.raises(HandleNotFound):
        repository.handles.head("00000000-0000-4000-8000-000000000000")
    assert not putting.done()

    gate.open()
    putting.result(60)


@pytest.mark.parametrize("change", ["delete", "undelete", "set_ttl", "purge"])
def test_a_change_of_a_handle_is_shown_once_it_is_durable(
    workshop: Workshop, repository: Engine, files: FailingFiles, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """A deletion that a crash takes back was never seen; neither was the end of a handle."""
    id = repository.handles.put(b"old")
    if change in ("undelete", "purge"):
        repository.handles.delete(id)
    if change == "purge":
        workshop.clock.advance(8 * DAY)
    changes: dict[str, Callable[[], object]] = {
        "delete": lambda: repository.handles.delete(id),
        "undelete": lambda: repository.handles.undelete(id),
        "set_ttl": lambda: repository.handles.set_ttl(id, 1_000),
        "purge": repository.handles.purge,
    }
    gate = files.hold("sync", "*.wal")
    changing = begin(changes[change])
    gate.wait_until_reached()
    let_go_when_awaited(repository, gate, monkeypatch)

    if change == "purge":
        with pytest.raises(HandleNotFound):
            repository.handles.head(id)
    elif change == "delete":
        with pytest.raises(HandleDeleted):
            repository.handles.get(id)
    else:
        assert bool(repository.handles.head(id).expires_millis) == (change == "set_ttl")

    assert repository.log.durable == repository.log.last_id
    changing.result(60)


def test_a_staged_handle_appears_once_it_is_durable(
    repository: Engine, files: FailingFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the verdict of its write, in the same transaction."""
    write, attempt = bytes(16), bytes(15) + b"1"
    repository.staging.begin(write, "test")
    (uuid,) = repository.staging.stage(write, attempt, 0, [b"new"])
    repository.staging.prepare(write, {attempt: 1})
    gate = files.hold("sync", "*.wal")
    closing = begin(lambda: repository.staging.commit(write, [attempt]))
    gate.wait_until_reached()
    let_go_when_awaited(repository, gate, monkeypatch)

    assert repository.handles.record(uuid).size == 3

    assert repository.log.durable == repository.log.last_id
    closing.result(60)


def test_a_session_imports_what_is_durable(
    repository: Engine, files: FailingFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its rolled-back work would have been for a handle that never was."""
    gate = files.hold("sync", "*.wal")
    putting = begin(lambda: repository.handles.put(b"new"))
    gate.wait_until_reached()
    id = undurable(repository)
    let_go_when_awaited(repository, gate, monkeypatch)

    with committing(repository) as session:
        flow_file = session.import_handle(parse_uuid(id))
        assert repository.log.durable == repository.log.last_id
        session.transfer(flow_file, "q")

    putting.result(60)


def test_what_became_of_it_is_not_guessed(repository: Engine, files: FailingFiles) -> None:
    """Its sync failed: whoever stored it was told that the outcome is unknown, and so is who looks at it."""
    other = next(repository.ledger.flow_files()).id
    fault = files.fail("sync", "*.wal", error=errno.EIO)
    with pytest.raises(CommitOutcomeUnknown):
        repository.handles.put(b"new")
    assert fault.seen
    id = undurable(repository)

    for look in LOOKS.values():
        with pytest.raises(RepositoryStopped, match="is not known"):
            look(repository, id)
    assert repository.handles.get(other).read() == b"other"


def test_a_refused_put_leaves_nobody_waiting(
    repository: Engine, files: FailingFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What definitely failed is nowhere."""
    id = repository.handles.put(b"old")

    def full(*_: object) -> int:
        raise DiskFull("full")

    with monkeypatch.context() as patch:
        patch.setattr(repository.log, "append", full)
        with pytest.raises(DiskFull):
            repository.handles.put(b"new")
        with pytest.raises(DiskFull):
            repository.handles.delete(id)

    assert not repository.handles.undecided.touches([parse_uuid(id)])
    assert repository.handles.get(id).read() == b"old"

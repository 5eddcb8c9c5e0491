"""What a FlowFile repository promises, whoever made it: all that entry points name are tried."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.support import ManualClock, RoomyFiles, spec_at
from tests.threads import together
from ullage.engine.flowfile_repository import FLOWFILE
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.model import Delete, FlowFileRecord, Operation, Update, new_uuids, pack_attributes
from ullage.engine.parts import RepositoryParts
from ullage.engine.repositories import FLOWFILE_REPOSITORIES
from ullage.engine.wal.format import OPERATIONS_MAX
from ullage.engine.wal.restore import RestoreReport
from ullage.engine.wal.serde import SerDe
from ullage.engine.wal.snapshot import write_first_snapshot
from ullage.engine.wal.state import RecordDirectory
from ullage.errors import (
    CommitOutcomeUnknown,
    FlowFileNotFound,
    NotRestored,
    RepositoryStopped,
    TransactionTooLarge,
)


class PoisonedLedger(Ledger):
    """The ledger, in which `poison` cannot be applied."""

    poison: Operation | None = None

    def apply(self, transaction: int, millis: int, operations: Sequence[Operation]) -> None:
        if self.poison in operations:
            raise OSError("poisoned")
        super().apply(transaction, millis, operations)

    is_careful = False
    replay = apply

    def end_load(self) -> None:
        """It has no runs."""

    def end_replay(self, last_id: int) -> bool:
        return False

    def replay_each(self, transaction: int, millis: int, found: Sequence[object], place: str) -> None:
        raise NotImplementedError

    def published(self) -> None:
        """Nothing lies beside the snapshot."""


class Logged:
    """One FlowFile repository over a ledger, which a restart brings back."""

    def __init__(self, name: str, path: Path) -> None:
        (path / FLOWFILE).mkdir(parents=True)
        self._name = name
        self.clock = ManualClock()
        self._parts = RepositoryParts(RoomyFiles(), self.clock, spec_at(path), SerDe(), "r")
        place = RecordDirectory(self._parts.files, str(path / FLOWFILE), "r", self._parts.serde)
        write_first_snapshot(place, 0)  # ours asks for it
        self.replayed: list[Sequence[Operation]] = []
        self.restart()

    def restart(self) -> RestoreReport:
        """Another one over a fresh ledger."""
        self.ledger = PoisonedLedger(lambda name: pytest.fail(f"nobody wrote swap file {name}"))
        self.log = FLOWFILE_REPOSITORIES.load(self._name)(self._parts, self.ledger, bool)
        return self.log.restore(on_replayed=self.replayed.append)

    def commit(self, *operations: Operation) -> int:
        id = self.log.append(operations, 1)
        self.log.wait_durable(id)
        return id

    def names(self) -> list[str]:
        return sorted(record.attribute_map()["name"] for record in self.ledger.flow_files())


def flow_file(name: str) -> FlowFileRecord:
    return FlowFileRecord(new_uuids(1)[0], 1, None, 0, 0, 1, 1, 1, pack_attributes({"name": name}))


@pytest.fixture(params=FLOWFILE_REPOSITORIES.names(), ids=lambda name: name or "files")
def logged(request: pytest.FixtureRequest, tmp_path: Path) -> Iterable[Logged]:
    """One of each kind that there is."""
    made = Logged(request.param, tmp_path)
    yield made
    made.log.close()


def test_transactions_are_applied_in_the_order_of_their_ids(logged: Logged) -> None:
    """An append shows at once, counts once it is durable, and ids have no gap, however many threads commit."""
    record = flow_file("old")
    first = logged.commit(record)
    changed = Update(record.uuid, set_attributes=pack_attributes({"name": "new"}))

    assert (first, logged.commit(changed)) == (1, 2)
    assert logged.names() == ["new"]
    ids: list[int] = []

    def commit(name: str) -> None:
        ids.append(logged.commit(flow_file(name)))

    together(*(partial(commit, name) for name in "abcdefgh"))

    assert sorted(ids) == list(range(3, 11))
    assert (logged.log.last_id, logged.log.durable, logged.log.is_running) == (10, 10, True)
    assert logged.names() == [*"abcdefgh", "new"]


def test_what_is_refused_leaves_nothing_behind(logged: Logged) -> None:
    """Neither an id nor a trace in the state: a contradiction, an objection at the last moment, too much at once."""

    def object_() -> None:
        raise ZeroDivisionError

    with pytest.raises(FlowFileNotFound):
        logged.commit(flow_file("a"), Delete(new_uuids(1)[0]))
    with pytest.raises(ZeroDivisionError):
        logged.log.append([flow_file("b")], 1, object_)
    with pytest.raises(TransactionTooLarge):
        logged.commit(*map(flow_file, map(str, range(OPERATIONS_MAX + 1))))

    assert (logged.log.last_id, logged.names()) == (0, [])
    assert logged.commit(flow_file("c")) == 1


def test_a_transaction_that_fails_halfway_stops_everything(logged: Logged) -> None:
    """From its id on it may stand or not: nothing may follow it, until a restart tells."""
    logged.ledger.poison = flow_file("half")

    with pytest.raises(CommitOutcomeUnknown):
        logged.commit(logged.ledger.poison)

    assert not logged.log.is_running
    with pytest.raises(RepositoryStopped):
        logged.commit(flow_file("after"))


def test_a_moment_can_be_kept_while_commits_go_on(logged: Logged) -> None:
    """What is frozen holds everything up to an id that is durable, and nothing beyond it; checkpoints come after."""
    logged.commit(flow_file("before"))

    with logged.log.still(logged.ledger.freeze) as (id, view):
        logged.commit(flow_file("meanwhile"))
        kept = [record.attribute_map()["name"] for block in view for record in block if type(record) is FlowFileRecord]
        logged.ledger.release()

    assert (id, kept) == (1, ["before"])
    logged.clock.advance(7)
    assert logged.log.checkpoint() == logged.log.snapshot_id == 2
    assert logged.log.snapshot_millis == logged.clock.now_millis()
    assert logged.names() == ["before", "meanwhile"]


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_restart_brings_everything_durable_back_or_nothing(logged: Logged, is_killed: bool) -> None:
    """Covered by a checkpoint or not, after a close or a kill; a volatile one begins with transaction 1 again."""
    gone = flow_file("gone")
    logged.commit(flow_file("a"), gone)
    logged.log.checkpoint()
    checkpointed = logged.log.snapshot_millis
    logged.clock.advance(7)
    last = logged.commit(flow_file("b"), Delete(gone.uuid))
    (logged.log.abandon if is_killed else logged.log.close)()
    with pytest.raises(NotRestored):
        logged.commit(flow_file("late"))

    report = logged.restart()

    is_volatile = logged.log.is_volatile
    assert logged.names() == ([] if is_volatile else ["a", "b"])
    assert logged.log.snapshot_millis == checkpointed or is_killed or is_volatile
    assert report.last_id == logged.log.last_id == logged.log.durable == (0 if is_volatile else last)
    if is_killed and not is_volatile:
        assert [len(operations) for operations in logged.replayed] == [2]
    assert logged.commit(flow_file("c")) == report.last_id + 1

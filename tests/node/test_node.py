from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.operator.support import ticket
from tests.service.running import UNGUARDED, document_at, half_dead, rest
from tests.support import TWO, ManualClock, RoomyFiles, careless_log as careless_log
from ullage.contract import (
    HEARTBEAT_SECONDS,
    CompactionTrigger,
    Duration,
    MaintenanceOperation,
    NodeSpec,
    NodeStatus,
    Ticket,
    TicketReport,
    Window,
    time_of,
)
from ullage.embedded.runs import OVERRIDE, ReclamationRuns
from ullage.engine.model import FlowFileRecord
from ullage.engine.reclaim.report import ReclamationReport
from ullage.errors import NodeDraining, WindowClosed
from ullage.wire.space import RunRequest
from ullage_agent.node.node import LOOK_SECONDS, NodeAgent
from ullage_agent.node.objects import NodeObjectClient, ObservedNode
from ullage_agent.node.tickets import TicketHolder
from ullage_agent.service.host import Host
from ullage_agent.service.kubernetes import ApiServer

MIB = 1 << 20


class Written(NodeObjectClient):
    """Keeps what would be written."""

    def __init__(self) -> None:
        super().__init__(ApiServer("https://localhost:1", "", ""), "data", "flows", "here")
        self.statuses: list[NodeStatus] = []

    def write(self, status: NodeStatus) -> ObservedNode:
        self.statuses.append(status)
        spec = NodeSpec(repository="flows", node_name="here")
        return ObservedNode(uid="u", generation=1, version="1", spec=spec, status=status)


class Node:
    """An agent over a repository that is open, and what it has written."""

    def __init__(self, root: Path, generation: int, **document: Any) -> None:
        self.clock, self.api, self.tickets = ManualClock(), Written(), TicketHolder()
        permission = self.tickets.permission_of
        self.host = Host(document_at(root, **document), clock=self.clock, files=RoomyFiles(), permission=permission)
        self.agent = NodeAgent(self.host, self.api, self.tickets, lambda: generation)

    def report(self) -> TicketReport:
        """What was written of the ticket last."""
        found = self.api.statuses[-1].ticket
        assert found is not None
        return found


@contextmanager
def serving(root: Path, generation: int = 1, **document: Any) -> Iterator[Node]:
    """`generation`: of the settings that are in force."""
    node = Node(root, generation, **document)
    node.host.start(makes=True)
    rest(node.host.repository)
    try:
        yield node
    finally:
        node.host.stop()


def test_a_ticket_is_run_once_and_reported(tmp_path: Path) -> None:
    """Running and then Completed are written; the same ticket is not run again, and nothing changed writes nothing."""
    with serving(tmp_path / "r") as node:
        node.agent.take_over(seen(given(node.clock)))
        node.agent.obey()
        node.agent.tell()
        states = [str(status.ticket.state) for status in node.api.statuses if status.ticket is not None]
        count = len(node.api.statuses)
        node.agent.obey()
        node.agent.tell()

    assert (states[0], states[-1]) == ("Running", "Completed")
    assert len(node.api.statuses) == count
    assert node.api.statuses[-1].repository_uuid == host_uuid(tmp_path / "r")


def test_a_long_run_does_not_silence_the_heartbeat(tmp_path: Path) -> None:
    """While a ticket is being carried out, the time for a heartbeat comes: it is written, and says Running."""
    heard: list[NodeStatus] = []
    with serving(tmp_path / "r") as node:

        def amid_the_run(name: str, report: ReclamationReport) -> None:
            node.clock.advance(HEARTBEAT_SECONDS + 1)
            node.agent.tell()
            heard.append(node.api.statuses[-1])

        node.host.repository.engine.report_listeners.append(amid_the_run)
        node.agent.take_over(seen(given(node.clock)))
        began = time_of(node.clock.now_millis())
        node.agent.obey()

    assert heard[0].ticket is not None
    assert heard[0].ticket.state == "Running"
    assert str(heard[0].heartbeat) > began


def test_what_cannot_be_read_or_used_is_told(tmp_path: Path, careless_log: None) -> None:
    """A lost content file, a record that is set aside, and then a volume that is away: figures, and one condition."""
    root = tmp_path / "r"
    with serving(root, storage=TWO, claims={"max_flow_files": 1}) as node:
        repository = node.host.repository
        for number in range(4):
            repository.queues.put("q", b"%d" % number)
        wild = FlowFileRecord(b"u" * 16, 1, None, 0, 0, 1 << 63, 1, 1, b"\x80")
        repository.engine.committer.commit([wild], creates=False)
        node.agent.tell()
        assert condition(node) == ("False", "AllThere", "")
    next(each for each in root.glob("c1/**/*-*") if each.stat().st_size).unlink()

    with serving(root, storage=TWO, claims={"max_flow_files": 1}) as node:
        node.host.repository.check()
        node.agent.tell()
        first = node.api.statuses[-1]
        assert (first.unavailable_contents, first.records_set_aside, first.containers_away) == (1, 1, ())
        told = "contents that can't be read: 1; records that can't be used: 1"
        assert condition(node) == ("True", "ContentUnavailable", told)
        (root / "c2").rename(root / "aside")
        node.clock.advance(LOOK_SECONDS + 1)
        node.agent.tell()  # before anybody has seen it
        node.host.repository.engine.volumes.look()
        node.clock.advance(LOOK_SECONDS + 1)
        node.agent.tell()
        assert node.api.statuses[-1].containers_away == ("c2",)
        assert condition(node)[1] == "VolumeAway"
    with serving(root, storage=TWO, claims={"max_flow_files": 1}) as node:
        node.agent.tell()
        assert node.api.statuses[-1].containers_away == ("c2",)
        assert node.api.statuses[-1].volumes == (str(root.stat().st_dev),)
        (root / "aside").rename(root / "c2")


def condition(node: Node, type: str = "DataUnavailable") -> tuple[str, str, str]:
    """What this condition says in the last status."""
    (found,) = [each for each in node.api.statuses[-1].conditions if each.type == type]
    return str(found.status), found.reason, found.message


def test_a_clock_that_is_not_believed_is_a_condition(tmp_path: Path) -> None:
    """It says in which direction, and ends by itself."""
    with serving(tmp_path / "r") as node:
        for wrong_by, told in (
            (1 << 40, ("True", "Ahead")),
            (-(1 << 40), ("True", "Behind")),
            (0, ("False", "Plausible")),
        ):
            node.clock.wrong_by = wrong_by
            node.clock.advance(LOOK_SECONDS + 1)
            node.agent.tell()
            assert condition(node, "ClockImplausible")[:2] == told


def test_what_the_schedule_frees_under_a_ticket_is_in_its_report(tmp_path: Path) -> None:
    """The node's own schedule came first: the ticket's run finds nothing, and tells what came back under the ticket."""
    with serving(tmp_path / "r", compaction=UNGUARDED) as node:
        half_dead(node.host.repository.engine, MIB // 4, 32)
        node.agent.attach()
        node.agent.tell()
        node.agent.take_over(seen(given(node.clock)))
        scheduled = node.host.repository.engine.compactor.run(CompactionTrigger.PERIODIC)
        node.agent.obey()
        node.agent.tell()

    assert (node.report().freed_bytes, node.report().copied_bytes) == (4 * MIB, 4 * MIB)
    assert scheduled.freed_bytes == node.report().freed_bytes
    assert node.api.statuses[-1].reclaimed_bytes == 4 * MIB


def test_a_run_gives_back_whole_dead_files(tmp_path: Path) -> None:
    """Outside of the window that they wait for too, if it passes over windows: whoever asks for space gets that too."""
    night = Window(
        name="night", schedule="0 1 * * *", duration=Duration(60_000), operations=(MaintenanceOperation.DELETE,)
    )
    with serving(
        tmp_path / "r", archive={"enabled": False}, compaction=UNGUARDED, maintenance={"windows": (night,)}
    ) as node:
        engine = node.host.repository.engine
        node.agent.attach()
        for _ in range(2):  # each content has a file of its own
            for id in half_dead(engine, 2 * MIB, 2):
                engine.handles.delete(id)
        engine.handles.purge()
        engine.reclamation.clean()
        before = engine.reclamation.survey().containers[0].dead_bytes
        asked_for = msgspec.structs.replace(given(node.clock), run="by-hand", operations=(MaintenanceOperation.DELETE,))
        node.agent.take_over(seen(asked_for))
        node.agent.obey()
        node.agent.tell()

    assert before == 8 * MIB
    assert (node.report().state, node.report().freed_bytes, node.report().message) == ("Completed", before, "")


@pytest.mark.parametrize("generation", [2, 3])
def test_a_ticket_of_older_settings_is_refused(tmp_path: Path, generation: int) -> None:
    """It is fenced: what changed since may forbid what it permits."""
    with serving(tmp_path / "r", generation) as node:
        node.agent.take_over(seen(given(node.clock)))
        node.agent.obey()
        node.agent.tell()

    assert node.report().state == "Refused"
    assert "generation" in node.report().message


def test_a_run_that_somebody_asks_the_node_for_needs_its_ticket_too(tmp_path: Path) -> None:
    """Without one the operator does not let the node reclaim, for a pod of Spark perhaps; overriding is a choice."""
    rewriting = RunRequest(operations=[MaintenanceOperation.REWRITE])
    with serving(tmp_path / "r") as node:
        node.tickets.settings_are(1)
        runs = ReclamationRuns(node.host.repository.engine)
        with pytest.raises(WindowClosed, match="this node has no ticket"):
            runs.begin("somebody", rewriting)
        overridden = runs.begin("somebody", msgspec.structs.replace(rewriting, override=True))
        runs.close()
        node.tickets.take_over(given(node.clock), is_cordoned=False)
        permitted = runs.begin("somebody", rewriting)
        runs.close()

    assert overridden.progress.report is not None
    assert overridden.progress.reason == OVERRIDE
    assert permitted.progress.report is not None
    assert permitted.progress.reason == given(node.clock).reason


def test_a_run_of_the_operator_obeys_the_trigger_admin(tmp_path: Path) -> None:
    """Its ticket ends with the setting's name and gives nothing back; that of a window is the schedule's, and does."""
    with serving(tmp_path / "r", compaction=UNGUARDED | {"triggers": ["Periodic"]}) as node:
        half_dead(node.host.repository.engine, MIB // 4, 32)
        node.agent.attach()
        asked_for = msgspec.structs.replace(given(node.clock), id="asked", run="by-hand")
        node.agent.take_over(seen(asked_for))
        node.agent.obey()
        node.agent.tell()
        refused = node.report()
        node.agent.take_over(seen(given(node.clock)))
        node.agent.obey()
        node.agent.tell()

    assert (refused.id, refused.state, refused.freed_bytes) == ("asked", "Refused", 0)
    assert "spec.compaction.triggers is [Periodic], without Admin" in refused.message
    assert (node.report().state, node.report().freed_bytes) == ("Completed", 4 * MIB)


def given(clock: ManualClock) -> Ticket:
    now = clock.now_millis()
    return ticket(
        operations=(MaintenanceOperation.REWRITE,), not_before=time_of(now), not_after=time_of(now + 3_600_000)
    )


def seen(one: Ticket) -> ObservedNode:
    spec = NodeSpec(repository="flows", node_name="here", ticket=one)
    return ObservedNode(uid="u", generation=1, version="1", spec=spec, status=NodeStatus())


def host_uuid(root: Path) -> str:
    return str(msgspec.json.decode((root / "ullage.json").read_bytes())["repository"])


def test_a_node_that_is_drained_takes_nothing_new_and_says_how_far_it_is(tmp_path: Path) -> None:
    """Before anything is looked at, so that what is told is of a node into which nothing comes; and no longer than
    somebody wants it to.
    """
    spec = NodeSpec(repository="flows", node_name="here", draining=True)
    with serving(tmp_path / "r") as node:
        wanted = seen(given(node.clock))
        node.agent.take_over(msgspec.structs.replace(wanted, spec=spec))
        node.agent.tell()
        with pytest.raises(NodeDraining):
            node.host.repository.handles.put(b"new")
        assert _drained(node) == "SoleCopy"

        node.agent.take_over(wanted)
        node.agent.tell()
        node.host.repository.handles.put(b"new")
        assert _drained(node) == "NotAsked"


def _drained(node: Node) -> str:
    return next(each.reason for each in node.api.statuses[-1].conditions if each.type == "Drained")

"""Every cell of a node's conditions, said by an agent over a real repository, and taken by a real API server."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.fleet import Fleet
from tests.cluster.operator_process import Operator, token_of_pod
from tests.failing_files import FailingFiles
from tests.operator.support import ticket
from tests.places import LOOPBACK, Place
from tests.service.running import document_at
from tests.support import TWO, ManualClock, careless_log as careless_log
from ullage.contract import (
    TABLE,
    Duration,
    GoalSettings,
    MaintenanceOperation,
    NodeSpec,
    NodeStatus,
    PunchSettings,
    ReplicationMode,
    cell_of,
    time_of,
)
from ullage.embedded.replication import take_share
from ullage.embedded.shares import share_at
from ullage.engine.files import DiskUsage
from ullage.engine.model import FlowFileRecord
from ullage.engine.shipping.logwriter import LogWriter
from ullage.engine.wal.serde import SerDe
from ullage.errors import UllageError
from ullage_agent.node.node import LOOK_SECONDS, NodeAgent
from ullage_agent.node.objects import NodeObjectClient, ObservedNode
from ullage_agent.node.tickets import TicketHolder
from ullage_agent.service.host import Host
from ullage_agent.service.kubernetes import ApiServer

KIND = "ContentRepositoryNode"
NODE = "worker-0"
SPEC: dict[str, Any] = {"storage": TWO, "claims": {"max_flow_files": 1}}


class Files(FailingFiles):
    """A disk that is as full as is said."""

    is_full = False

    def usage(self, path: str) -> DiskUsage:
        found = super().usage(path)
        return DiskUsage(found.total_bytes, found.total_bytes // 50, found.is_read_only) if self.is_full else found


class Answered(NodeObjectClient):
    """Keeps what the API server says that it has stored."""

    def __init__(self, fleet: Fleet, place: str, home: Path) -> None:
        token = home / "token"
        token.write_text(token_of_pod(fleet, place, NODE))
        super().__init__(ApiServer(fleet.url, str(token), str(fleet.ca)), place, "flows", NODE)
        self.cells: set[tuple[str, str]] = set()
        self.last: set[tuple[str, str]] = set()

    def write(self, status: NodeStatus) -> ObservedNode:
        answer = super().write(status)
        for each in answer.status.conditions:
            assert each.status == cell_of(KIND, each.type, each.reason).status
        self.last = {(each.type, each.reason) for each in answer.status.conditions}
        self.cells |= self.last
        return answer


class Agent:
    """An agent whose time, disk and settings are ours."""

    def __init__(self, fleet: Fleet, operator: Operator, place: str, home: Path) -> None:
        self.root, self.operator = home / "r", operator
        self.clock, self.files, self.tickets = ManualClock(), Files(), TicketHolder()
        self.api = Answered(fleet, place, home)
        self.more: dict[str, Any] = {}
        self.begin()

    def begin(self) -> None:
        document = document_at(self.root, **SPEC, **self.more)
        permission = self.tickets.permission_of
        self.host = Host(document, clock=self.clock, files=self.files, permission=permission)
        self.host.start(makes=True)
        self.agent = NodeAgent(self.host, self.api, self.tickets, lambda: 1)

    def again(self) -> None:
        self.host.stop()
        self.begin()

    def drain(self, *, drains: bool = True) -> None:
        """As the object says it; a start forgets it, until the object was read."""
        spec = NodeSpec(repository="flows", node_name=NODE, draining=drains)
        self.agent.take_over(ObservedNode(uid="u", generation=1, version="1", spec=spec, status=NodeStatus()))

    def says(self, type: str, reason: str, do: Callable[[], object] = lambda: None) -> None:
        """After that, the API server has this of it."""
        do()

        def is_said() -> bool:
            self.clock.advance(LOOK_SECONDS + 1)
            self.agent.tell()
            return (type, reason) in self.api.last

        self.operator.until(f"{type} is {reason}", is_said)


def test_every_word_of_an_agent_is_taken(
    fleet: Fleet, operator: Operator, place: str, bucket: Place, tmp_path: Path, careless_log: None
) -> None:
    """From well to stopped by a failing disk; at the end no cell of the table is left."""
    operator.runs(place)
    node = Agent(fleet, operator, place, tmp_path)
    try:
        _ships(node, bucket)
        _tell(node)
    finally:
        node.host.stop()

    table = {(row.type, cell.reason) for row in TABLE[KIND] for cell in row.cells}
    assert table - node.api.cells == set()


def _tell(node: Agent) -> None:
    for type, reason in (("Ready", "Serves"), ("Degraded", "Well"), ("Reclaiming", "Idle")):
        node.says(type, reason)
    node.files.is_full = True
    node.says("DiskPressure", "AboveBackpressure")
    node.files.is_full = False
    node.says("DiskPressure", "RoomLeft")
    for wrong_by, reason in ((1 << 40, "Ahead"), (-(1 << 40), "Behind"), (0, "Plausible")):
        node.clock.wrong_by = wrong_by
        node.says("ClockImplausible", reason)
    node.host.settings_problem = "spec.storge: unknown field"
    node.says("Degraded", "SettingsRefused")
    node.host.settings_problem = ""
    _reclaims(node)
    _aims(node)
    _loses(node)
    node.files.fail("create", "*snapshot*", times=1000)
    node.host.repository.queues.put("q", b"more")
    node.clock.advance(600)
    node.says("Degraded", "MaintenanceFailed")
    node.files.heal()
    node.files.fail("sync", "*.wal", times=1000)
    with pytest.raises(UllageError):
        node.host.repository.queues.put("q", b"last")
    node.says("Ready", "Stopped")
    node.files.heal()


def _reclaims(node: Agent) -> None:
    """A ticket is run: what is said meanwhile is in the API server before the run begins."""
    now = node.clock.now_millis()
    times = {"not_before": time_of(now - 1000), "not_after": time_of(now + 3_600_000)}
    given = ticket(operations=(MaintenanceOperation.REWRITE,), **times)
    node.tickets.take_over(given, is_cordoned=False)
    node.agent.obey()
    node.tickets.take_over(None, is_cordoned=False)


def _aims(node: Agent) -> None:
    """A goal that nothing is in the way of, one that a threshold keeps from being held, one that takes its time."""
    node.says("GoalMissed", "NoGoal")
    limits = {
        "max_live_fraction": 0.01,
        "min_used_percentage": 0,
        "min_reclaim": 0,
        "punch": PunchSettings(enabled=False),
    }
    for goal, reason in (
        (GoalSettings(max_dead_age=Duration(3_600_000)), "Held"),
        (GoalSettings(max_dead_age=Duration(3_600_000)), "WillBeMissed"),
        (GoalSettings(disk_to_live=1.01), "Missed"),
        (GoalSettings(disk_to_live=1.01), "Backlog"),
    ):
        limits["max_live_fraction"] = 0.99 if reason == "Backlog" else 0.01
        node.more = {"compaction": limits | {"goal": goal}}
        node.again()
        repository = node.host.repository
        if reason == "WillBeMissed":
            with repository.session() as session:
                for number in range(20):
                    session.transfer(session.write(session.create(), bytes(100_000)), f"goal{number % 2}")
                session.commit()
            repository.queues.drop("goal0")
            repository.engine.content.retire_idle()
            repository.engine.reclamation.plan_truncation()  # which seals what was closed
        repository.reclamation.plan(respects_guards=True)
        node.says("GoalMissed", reason)
    node.more = {}
    node.again()


def _ships(node: Agent, bucket: Place) -> None:
    """To a server that takes connections and says nothing, to one that is not there, to a real one, and until somebody
    else takes the share over, from whom it is taken back.
    """
    node.says("Replicated", "NotAsked")
    node.says("Drained", "NotAsked")
    node.drain()
    node.says("Drained", "SoleCopy")
    assert bucket.bucket is not None
    reached = {"mode": ReplicationMode.ASYNC, "url": bucket.bucket.url}
    with socket.create_server((LOOPBACK, 0)) as silent:
        endpoint = f"http://{LOOPBACK}:{silent.getsockname()[1]}"
        node.more = {"replication": reached | {"endpoint": endpoint}}
        node.again()
        node.says("Replicated", "Starting")
        node.drain()
        node.says("Drained", "Shipping")
    node.says("Replicated", "Failing")
    node.more = {"replication": reached | {"endpoint": endpoint, "adopt_after": Duration(10_000)}}
    node.again()
    node.says("Replicated", "Lapsed")
    node.more = {"replication": reached | {"endpoint": bucket.bucket.endpoint, "interval": Duration(60_000)}}
    node.again()
    node.says("Replicated", "Shipping")
    node.drain()
    node.says("Drained", "Shipped")
    node.drain(drains=False)
    node.host.repository.queues.put("q", b"waits")
    node.says("Replicated", "Behind")

    node.more["replication"]["interval"] = Duration(10)
    node.again()
    node.says("Replicated", "Shipping")
    share = share_at(bucket.bucket)
    assert share is not None
    LogWriter.begin(share.place, share.share, "elsewhere", SerDe())
    node.says("Replicated", "Fenced")
    node.says("Ready", "Stopped")
    node.host.stop()
    take_share(str(node.root))
    node.more = {}
    node.begin()
    node.host.repository.queues.drop("q")


def _loses(node: Agent) -> None:
    """A record that is set aside, a file that is lost, a volume that is away: each is the gravest when it comes."""
    for number in range(4):
        node.host.repository.queues.put("q", b"%d" % number)
    node.says("DataUnavailable", "AllThere")
    wild = FlowFileRecord(b"u" * 16, 1, None, 0, 0, 1 << 63, 1, 1, b"\x80")
    node.host.repository.engine.committer.commit([wild], creates=False)
    node.again()
    node.says("DataUnavailable", "RecordsSetAside", node.host.repository.check)
    next(each for each in node.root.glob("c1/**/*-*") if each.stat().st_size).unlink()
    node.again()
    node.says("DataUnavailable", "ContentUnavailable", node.host.repository.check)
    (node.root / "c2").rename(node.root / "aside")
    node.says("DataUnavailable", "VolumeAway", node.host.repository.engine.volumes.look)
    (node.root / "aside").rename(node.root / "c2")

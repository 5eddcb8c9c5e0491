from pathlib import Path

import msgspec
import pytest

from tests.operator.support import ticket
from tests.service.running import UNGUARDED, document_at, half_dead
from tests.support import ManualClock, RoomyFiles
from ullage_agent.contract import CompactionTrigger, MaintenanceOperation
from ullage_agent.engine.reclaim.report import Report
from ullage_agent.fleet import HEARTBEAT_SECONDS, NodeSpec, NodeStatus, Ticket
from ullage_agent.metrics import Metrics
from ullage_agent.node import NodeAgent
from ullage_agent.node_object import NodeObject, Seen, Unreachable
from ullage_agent.service.errors import WindowClosed
from ullage_agent.service.host import Host
from ullage_agent.service.limits import DEFAULTS
from ullage_agent.service.runs import OVERRIDE, Runs, Wish
from ullage_agent.tickets import TicketOffice
from ullage_operator.times import text_of

MIB = 1 << 20


class Written(NodeObject):
    """Keeps what would be written; `is_away`: there is no answer."""

    def __init__(self) -> None:
        super().__init__("https://localhost:1", "", "", "data", "flows", "here")
        self.statuses: list[NodeStatus] = []
        self.is_away = False

    def write(self, status: NodeStatus) -> Seen:
        if self.is_away:
            raise Unreachable("away")
        self.statuses.append(status)
        return Seen(generation=1, version="1", spec=NodeSpec(repository="flows", node_name="here"), status=status)


def test_a_ticket_is_run_once_and_reported(tmp_path: Path) -> None:
    """Running and then Completed are written; the same ticket is not run again, and nothing changed writes nothing."""
    clock, api, office = ManualClock(), Written(), TicketOffice()
    host = Host(document_at(tmp_path / "r"), clock=clock, permission=office.permission_of)
    host.start(makes=True)
    try:
        agent = NodeAgent(host, api, office, lambda: 1, ("8:1",))
        agent.take_over(seen(given(clock)))
        agent.obey()
        agent.tell()
        states = [str(status.ticket.state) for status in api.statuses if status.ticket is not None]
        count = len(api.statuses)
        agent.obey()
        agent.tell()
    finally:
        host.stop()

    assert states[0] == "Running"
    assert states[-1] == "Completed"
    assert len(api.statuses) == count
    assert api.statuses[-1].repository_uuid == host_uuid(tmp_path / "r")


def test_a_long_run_does_not_silence_the_heartbeat(tmp_path: Path) -> None:
    """While a ticket is being carried out, the time for a heartbeat comes: it is written, and says Running."""
    clock, api, office = ManualClock(), Written(), TicketOffice()
    host = Host(document_at(tmp_path / "r"), clock=clock, permission=office.permission_of)
    host.start(makes=True)
    try:
        agent = NodeAgent(host, api, office, lambda: 1, ("8:1",))
        heard: list[NodeStatus] = []

        def amid_the_run(name: str, report: Report) -> None:
            clock.advance(HEARTBEAT_SECONDS + 1)
            agent.tell()
            heard.append(api.statuses[-1])

        host.repository.reclamation.on_report = amid_the_run
        agent.take_over(seen(given(clock)))
        began = text_of(clock.now_millis())
        agent.obey()
    finally:
        host.stop()

    assert heard[0].ticket is not None
    assert heard[0].ticket.state == "Running"
    assert str(heard[0].heartbeat) > began


def test_what_the_schedule_frees_under_a_ticket_is_in_its_report(tmp_path: Path) -> None:
    """The node's own schedule came first: the ticket's run finds nothing, and tells what came back under the ticket."""
    clock, api, office = ManualClock(), Written(), TicketOffice()
    document = document_at(tmp_path / "r", compaction=UNGUARDED)
    host = Host(document, clock=clock, files=RoomyFiles(), permission=office.permission_of)
    host.start(makes=True)
    try:
        half_dead(host.repository, MIB // 4, 32)
        agent = NodeAgent(host, api, office, lambda: 1, ("8:1",))
        agent.attach()
        agent.tell()
        agent.take_over(seen(given(clock)))
        scheduled = host.repository.reclamation.compactor.run(CompactionTrigger.PERIODIC)
        agent.obey()
        agent.tell()
    finally:
        host.stop()

    report = api.statuses[-1].ticket
    assert report is not None
    assert (report.freed_bytes, report.copied_bytes) == (4 * MIB, 4 * MIB)
    assert scheduled.freed_bytes == report.freed_bytes
    assert api.statuses[-1].reclaimed_bytes == 4 * MIB


@pytest.mark.parametrize("generation", [2, 3])
def test_a_ticket_of_older_settings_is_refused(tmp_path: Path, generation: int) -> None:
    """It is fenced: what changed since may forbid what it permits."""
    clock, api, office = ManualClock(), Written(), TicketOffice()
    host = Host(document_at(tmp_path / "r"), clock=clock, permission=office.permission_of)
    host.start(makes=True)
    try:
        agent = NodeAgent(host, api, office, lambda: generation, ())
        agent.take_over(seen(given(clock)))
        agent.obey()
        agent.tell()
    finally:
        host.stop()

    report = api.statuses[-1].ticket
    assert report is not None
    assert report.state == "Refused"
    assert "generation" in report.message


def test_a_run_that_somebody_asks_the_node_for_needs_its_ticket_too(tmp_path: Path) -> None:
    """Without one the operator does not let the node reclaim, for a pod of Spark perhaps; overriding is a choice."""
    clock, office = ManualClock(), TicketOffice()
    office.settings_are(1)
    host = Host(document_at(tmp_path / "r"), clock=clock, permission=office.permission_of)
    host.start(makes=True)
    runs = Runs(host, DEFAULTS, Metrics())
    rewriting = Wish(operations=(MaintenanceOperation.REWRITE,))
    try:
        with pytest.raises(WindowClosed, match="this node has no ticket"):
            runs.begin("somebody", rewriting)
        overridden = runs.begin("somebody", msgspec.structs.replace(rewriting, overrides_windows=True))
        runs.close()
        office.take_over(given(clock), is_cordoned=False)
        permitted = runs.begin("somebody", rewriting)
        runs.close()
    finally:
        host.stop()

    assert overridden.report is not None
    assert overridden.reason == OVERRIDE
    assert permitted.report is not None
    assert permitted.reason == given(clock).reason


def given(clock: ManualClock) -> Ticket:
    now = clock.now_millis()
    return ticket(
        operations=(MaintenanceOperation.REWRITE,), not_before=text_of(now), not_after=text_of(now + 3_600_000)
    )


def seen(one: Ticket) -> Seen:
    spec = NodeSpec(repository="flows", node_name="here", ticket=one)
    return Seen(generation=1, version="1", spec=spec, status=NodeStatus())


def host_uuid(root: Path) -> str:
    return str(msgspec.json.decode((root / "ullage.json").read_bytes())["repository"])

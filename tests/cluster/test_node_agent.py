"""An agent's part in a cluster: a real repository in this process, a real API server, and the operator beside them.

To the API server the agent is the pod that is played on its node: it has that pod's token, and the rights of it.
"""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.fleet import Fleet
from tests.cluster.operator_process import Operator, condition, objects, repository, token_of_pod
from tests.cluster.workloads import run
from tests.service.running import UNGUARDED, document_at, half_dead
from tests.support import RoomyFiles
from ullage.contract import CompactionTrigger, Duration, MaintenanceSettings, NodeStatus, Window
from ullage_agent.node.node import NodeAgent
from ullage_agent.node.objects import NodeObjectClient, ObservedNode
from ullage_agent.node.tickets import TicketHolder
from ullage_agent.service.host import Host
from ullage_agent.service.kubernetes import ApiServer

NODE = "worker-0"
MIB = 1 << 20
SIZE = MIB // 4
"""Of one content: larger ones would end their file."""
CLOSED = {"name": "newyear", "schedule": "0 0 1 1 *", "duration": "1m"}
"""Open in the first minute of a year."""


class Counting(NodeObjectClient):
    """Counts what it writes."""

    count = 0

    def write(self, status: NodeStatus) -> ObservedNode:
        self.count += 1
        return super().write(status)


class AgentHere:
    """An agent in this process: `generation` is that of the settings it was given last."""

    def __init__(self, fleet: Fleet, place: str, home: Path) -> None:
        self.fleet, self.place = fleet, place
        token = home / "token"
        token.write_text(token_of_pod(fleet, place, NODE))
        self.api = Counting(ApiServer(fleet.url, str(token), str(fleet.ca)), place, "flows", NODE)
        self.office = TicketHolder()
        self._home = home
        self.host = Host(
            document_at(home / "r", compaction=UNGUARDED), files=RoomyFiles(), permission=self.office.permission_of
        )
        self.host.start(makes=True)
        self.generation = 1
        self.agent = NodeAgent(self.host, self.api, self.office, lambda: self.generation)

    def take(self, *windows: Window) -> None:
        """Settings with these windows, as the operator's latest."""
        document = document_at(
            self._home / "r",
            compaction=UNGUARDED,
            maintenance={"windows": MaintenanceSettings(windows=windows).windows},
        )
        self.host.reload(document)
        found = self.fleet.get("contentrepository", "flows", "--namespace", self.place)
        self.generation = found["metadata"]["generation"]

    def half_dead(self) -> list[str]:
        """Contents of 8 MiB in one file, of which every second is deleted; the ids of the others."""
        return half_dead(self.host.repository.engine, SIZE, 8 * MIB // SIZE)

    def dead(self) -> int:
        return sum(each.dead_bytes for each in self.host.repository.engine.reclamation.survey().containers)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = objects(self.fleet, self.place)[NODE].get("status") or {}
        return found

    def end(self) -> None:
        self.agent.stop()
        self.host.stop()


@pytest.fixture
def here(fleet: Fleet, operator: Operator, place: str, tmp_path: Path) -> Iterator[AgentHere]:
    """An agent on worker-0 of a repository whose window never opens; not started yet."""
    operator.runs(place, {"maintenance": {"windows": [CLOSED]}})
    made = AgentHere(fleet, place, tmp_path)
    made.take(Window(name="newyear", schedule=CLOSED["schedule"], duration=Duration(60_000)))
    yield made
    made.end()


def test_an_opened_window_gives_the_space_back(fleet: Fleet, operator: Operator, place: str, here: AgentHere) -> None:
    """Wanted in the status, no ticket while it is closed; opened: a ticket, the disk is emptied, the sums say so."""
    kept = here.half_dead()
    here.agent.start()
    operator.until("it says what it wants", lambda: here.status().get("wanted") == ["Rewrite"])
    assert "ticket" not in objects(fleet, place)[NODE]["spec"]
    assert here.dead() == 4 * MIB

    fleet.apply(repository(place, {"maintenance": {"windows": []}}))
    here.take()

    operator.until("nothing dead is left", lambda: here.dead() == 0)
    operator.until("it is reported", lambda: here.status().get("ticket", {}).get("state") == "Completed")
    assert here.status()["ticket"]["freedBytes"] == 4 * MIB
    operator.until("the ticket is gone", lambda: "ticket" not in objects(fleet, place)[NODE]["spec"])
    told = ("{.status.reclaimed} {.status.nextWindow}", "contentrepository/flows", place)
    operator.until("the sum is told", lambda: fleet.field(*told) == "4Mi Open")
    assert all(here.host.repository.engine.handles.head(id).size == SIZE for id in kept)


def test_a_quiet_agent_writes_nothing(fleet: Fleet, operator: Operator, place: str, here: AgentHere) -> None:
    """After its first words, until the heartbeat of five minutes."""
    here.agent.start()
    operator.until("it has spoken", lambda: condition(fleet, place, "Ready") != "" and here.api.count > 0)
    counts = [here.api.count]

    def is_quiet() -> bool:
        counts.append(here.api.count)
        return len(counts) > 30 and counts[-1] == counts[-30]

    operator.until("nothing was written in thirty looks", is_quiet)
    assert counts[-1] <= 3


def test_without_an_api_server_it_serves_and_reclaims_nothing(
    fleet: Fleet, operator: Operator, place: str, here: AgentHere
) -> None:
    """Contents come and go, runs are refused for want of a ticket; when the API server is back all goes on."""
    here.agent.start()
    operator.until("it is known", lambda: here.status().get("repositoryUuid", "") != "")
    with outage(fleet):
        kept = here.half_dead()
        report = here.host.repository.engine.compactor.run(CompactionTrigger.PERIODIC)
        assert "no ticket" in report.refusal
        assert here.dead() == 4 * MIB
        assert all(len(here.host.repository.engine.handles.get(id).read()) == SIZE for id in kept)

    fleet.apply(repository(place, {"maintenance": {"windows": []}}))
    here.take()

    operator.until("nothing dead is left", lambda: here.dead() == 0)


def test_a_valid_ticket_is_used_while_nobody_answers_and_told_later(
    fleet: Fleet, operator: Operator, place: str, here: AgentHere
) -> None:
    """The permission was given: an outage does not take it back, and the report waits for the end of the outage."""
    fleet.apply(repository(place, {"maintenance": {"windows": []}}))
    here.take()
    here.half_dead()
    here.agent.tell()
    operator.until("it has a ticket", lambda: read(here).spec.ticket is not None)
    here.agent.take_over(read(here))
    with outage(fleet):
        here.agent.obey()
        assert here.dead() == 0

    here.agent.start()

    operator.until("it is told", lambda: here.status().get("ticket", {}).get("state") == "Completed")
    operator.until("the ticket is gone", lambda: "ticket" not in objects(fleet, place)[NODE]["spec"])


def test_a_cordoned_node_is_left_alone(fleet: Fleet, operator: Operator, place: str, here: AgentHere) -> None:
    """Its ticket is taken back, the agent refuses every run; uncordoned it goes on."""
    here.agent.start()
    operator.until("it is known", lambda: here.status().get("repositoryUuid", "") != "")
    fleet.kubectl("cordon", NODE)
    try:
        operator.until("the agent knows", lambda: here.office.is_cordoned)
        here.half_dead()
        fleet.apply(repository(place, {"maintenance": {"windows": []}}))
        here.take()
        operator.until("it says what it wants", lambda: here.status().get("wanted") == ["Rewrite"])
        refusal = here.host.repository.engine.compactor.run(CompactionTrigger.PERIODIC).refusal
        assert "cordoned" in refusal
        assert "ticket" not in objects(fleet, place)[NODE]["spec"]
    finally:
        fleet.kubectl("uncordon", NODE)

    operator.until("nothing dead is left", lambda: here.dead() == 0)


def test_a_ticket_holds_while_the_operator_is_dead(
    fleet: Fleet, operator: Operator, place: str, here: AgentHere
) -> None:
    """A run by an administrator finds its operator again: killed after the request, it reports all the same."""
    here.half_dead()
    here.agent.start()
    operator.until("it says what it wants", lambda: here.status().get("wanted") == ["Rewrite"])
    operator.end(signal.SIGKILL)
    fleet.apply(run(place, NODE, overrideWindows=True))
    operator.start()

    operator.until("nothing dead is left", lambda: here.dead() == 0)
    told = ("{.status.phase}", "reclamationrun/now", place)
    operator.until("the run is over", lambda: fleet.field(*told) == "Completed")


def read(here: AgentHere) -> ObservedNode:
    seen = here.api.read()
    assert seen is not None
    return seen


@contextlib.contextmanager
def outage(fleet: Fleet) -> Iterator[None]:
    """No API server; it answers again afterwards."""
    fleet.instance.end("kube-apiserver")
    try:
        yield
    finally:
        fleet.start_api_server()
        fleet.wait_until("the API server is back", fleet.is_ready)

"""Tables of a node on the same machine come over its Unix socket, and else over Arrow Flight."""

import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.spark.fleet import fleet_at
from ullage.client.flight import FlightClient
from ullage.client.socket import SocketClient
from ullage.errors import NotFound
from ullage.wire.tickets import TableTicket
from ullage_agent.service.limits import Limits
from ullage_spark import fleet as asked
from ullage_spark.addresses import FleetNode
from ullage_spark.fleet import discover, table_of
from ullage_spark.settings import SourceOptions, as_options

Trouble = Callable[[str, ExitStack], None]
"""What happens to the socket at a path, until it is left."""

WANTED = TableTicket(name="flowfiles", columns=["uuid", "queue", "size", "swapped"], runs=True)


def refuses(settings: SourceOptions, node: FleetNode) -> FlightClient:
    raise AssertionError(f"{node.name} is asked over Flight")


def test_a_task_on_the_nodes_machine_asks_its_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And gets what Flight would have given; errors come from Flight, which names the node's address."""
    with fleet_at(tmp_path, "a") as fleet:
        fleet.fill(seed=1)
        settings = SourceOptions.of(as_options({"endpoint": fleet.endpoint}))
        (node,) = discover(settings)
        over_flight = asked.flight_of(settings, node).table(WANTED).read_all()
        with pytest.raises(NotFound):
            table_of(settings, node, TableTicket(name="flowfiles", snapshot="none"))
        monkeypatch.setattr(asked, "flight_of", refuses)

        found = table_of(settings, node, WANTED).read_all()

        assert found.num_rows > 100
        assert found == over_flight


def is_away(path: str, stack: ExitStack) -> None:
    os.rename(path, path + "-away")


def is_another_nodes(path: str, stack: ExitStack) -> None:
    os.rename(path, path + "-away")
    Path(path).touch()


def is_silent(path: str, stack: ExitStack) -> None:
    """Somebody takes connections there, and says nothing, as an agent does that is stopped."""
    os.rename(path, path + "-away")
    listener = stack.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(path)
    listener.listen()


def is_full(path: str, stack: ExitStack) -> None:
    stack.enter_context(SocketClient(path)).resolve([bytes(16)])


@pytest.mark.parametrize("trouble", [is_away, is_another_nodes, is_silent, is_full])
def test_where_the_socket_gives_no_table_flight_does(
    tmp_path: Path, trouble: Callable[[str, ExitStack], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not there, or is not the node's, or says nothing, or takes no further connection."""
    monkeypatch.setattr(asked, "SILENCE_SECONDS", 0.5)
    with fleet_at(tmp_path, "a", limits=Limits(socket_connections=1)) as fleet, ExitStack() as stack:
        fleet.fill(seed=1)
        settings = SourceOptions.of(as_options({"endpoint": fleet.endpoint}))
        (node,) = discover(settings)
        trouble(node.socket, stack)
        if trouble is is_silent:
            (node,) = discover(settings)  # by the inode of who listens there now
        assert table_of(settings, node, WANTED).read_all().num_rows > 100

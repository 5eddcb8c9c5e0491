"""What the memory of a node does while somebody whom it does not know sends it all that it takes."""

import os
from contextlib import ExitStack
from pathlib import Path

from bench.hostile import CONNECTION_KIBIBYTES, FLIGHT_BASE_MEBIBYTES, grown
from bench.serving import node
from ullage.client.flight import FlightClient

CONNECTIONS = 30


def test_connections_without_a_token_cost_a_node_next_to_nothing(tmp_path: Path) -> None:
    """Each has 64 calls of a method that takes one message, and of each message sends what fits: a server that reads a
    message before it knows the token grows by all of it.
    """
    (tmp_path / "tokens").touch(mode=0o600)
    auth: dict[str, int | bool | str] = {"mode": "TokenFile", "token_file": str(tmp_path / "tokens")}
    with node(tmp_path / "repository", auth=auth) as (there, pid):
        assert there.flight is not None
        mebibytes, sent = grown(there.flight, pid, CONNECTIONS, 8 << 20)

    assert sent > CONNECTIONS * (64 << 10)  # it did push
    assert mebibytes < FLIGHT_BASE_MEBIBYTES + CONNECTIONS * CONNECTION_KIBIBYTES / 1_024


def test_contents_that_are_read_again_and_again_cost_no_new_memory(tmp_path: Path) -> None:
    """Of each message of a MiB the system would take the memory back: then the next read faults in all of its pages."""
    reads, contents = 20, [os.urandom(1_000) for _ in range(1_000)]
    with node(tmp_path / "repository") as (there, pid), ExitStack() as stack:
        assert there.flight is not None
        flight = stack.enter_context(FlightClient(there.flight))
        ids = [uuid.hex() for uuids in flight.put_many([contents]) for uuid in uuids]
        assert flight.get_many(ids) == contents
        for _ in range(5):  # as much as it ever holds at a time
            flight.get_many(ids)
        before = faults(pid)
        for _ in range(reads):
            flight.get_many(ids)

        assert faults(pid) - before < reads * 100


def faults(pid: int) -> int:
    """Pages that the system has given a process so far."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    return int(stat.rpartition(")")[2].split()[7])

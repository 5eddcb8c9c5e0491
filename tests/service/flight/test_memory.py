"""What the memory of a node does while somebody whom it does not know sends it all that it takes."""

from pathlib import Path

from bench.hostile import BASE_MEBIBYTES, CONNECTION_KIBIBYTES, grown
from bench.serving import node

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
    assert mebibytes < BASE_MEBIBYTES + CONNECTIONS * CONNECTION_KIBIBYTES / 1_024

"""Where a node is reached."""

from collections.abc import Callable, Mapping

import msgspec


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of a node's service, and who asks.

    `socket` counts only on the machine where it is; `flight` is a URL like `grpc://host:port`. `ca_file` has the
    authorities to trust, for certificates that the system does not know.

    >>> there = ullage.Node(url="https://node-2:8480", flight="grpc+tls://node-2:8481", token="secret")
    >>> repository = ullage.connect("https://node-1:8480", resolver={"node-2": there})
    """

    url: str
    flight: str | None = None
    socket: str | None = None
    token: str | None = None
    ca_file: str | None = None


Resolver = Mapping[str, Node] | Callable[[str], Node]
"""Where the nodes of handles are, by their names."""

"""The client of Ullage's nodes: one class over HTTP, Arrow Flight and the Unix socket. It imports no engine.

with Client("http://127.0.0.1:8480") as client:
    handle = client.put(b"content", {"filename": "a.txt"})
    assert client.get(handle) == b"content"
"""

from ullage_agent.client.client import Client as Client, Node as Node
from ullage_agent.client.errors import (
    ClientError as ClientError,
    ContentDamaged as ContentDamaged,
    LeaseLost as LeaseLost,
    Misuse as Misuse,
    NotReachable as NotReachable,
    Refused as Refused,
)
from ullage_agent.client.retries import Retries as Retries

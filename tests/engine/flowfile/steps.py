"""What tests of queues and swapping do again and again."""

from typing import Any

from ullage.engine.engine import Engine
from ullage.engine.flowfile.queues import FlowFileQueue

SMALL: dict[str, Any] = {"swap_threshold": 6, "swap_batch": 3}
"""Flow file settings under which a dozen FlowFiles swap."""


def numbers(count: int, first: int = 0) -> list[bytes]:
    """Contents that say their place."""
    return [str(number).encode() for number in range(first, first + count)]


def peek(repository: Engine, queue: str, count: int = 1_000) -> list[bytes]:
    """Contents in the queue's order; everything goes back to its place."""
    with repository.session() as session:
        return [session.read(record).read() for record in session.get_many(queue, count)]


def resident(queue: FlowFileQueue) -> int:
    """FlowFiles of a queue that are in memory."""
    return len(queue.records())


def define(repository: Engine, name: str = "q", **settings: Any) -> FlowFileQueue:
    """A queue without limits, but for what is said."""
    unlimited: dict[str, Any] = {"priority": "FirstInFirstOut", "count_max": 0, "bytes_max": 0, "expiration_millis": 0}
    return repository.queues.define(name, **(unlimited | settings))

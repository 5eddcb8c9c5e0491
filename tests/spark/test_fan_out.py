"""What a driver asks of every node it asks of all at once: a fleet of a thousand takes no thousand times as long."""

import threading
from collections import defaultdict
from contextlib import AbstractContextManager
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_ullage import DefaultSource
from tests.spark.played import played_nodes
from tests.spark.test_sink import COLUMNS
from ullage_spark import FleetSnapshot, snapshot
from ullage_spark.fingerprint import Fingerprint
from ullage_spark.writer import StagedAttempt

NODES = 12
WAIT_SECONDS = 120
"""How long one node waits for the others to be asked as well, before it gives up: nobody waits where they are."""


class Meeting:
    """Nodes answer an action only once all of them have been asked for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._barriers: dict[str, threading.Barrier] = {}
        self.met: defaultdict[str, int] = defaultdict(int)
        self.of_all_but_one = {"write-commit"}
        self._first = True

    def asked(self, action: str) -> None:
        with self._lock:
            if action in self.of_all_but_one and self._first:
                self._first = False  # the first decides
                return
            count = NODES - (action in self.of_all_but_one)
            barrier = self._barriers.setdefault(action, threading.Barrier(count))
        barrier.wait(WAIT_SECONDS)
        with self._lock:
            self.met[action] += 1


@pytest.fixture
def meeting() -> Meeting:
    return Meeting()


def taken(addresses: list[str]) -> AbstractContextManager[FleetSnapshot]:
    """A snapshot that no session of Spark's is there for."""
    nobody: Any = None
    return snapshot(nobody, endpoint=",".join(addresses), pushdown="false")


def test_a_snapshot_is_taken_and_released_on_all_nodes_at_once(meeting: Meeting) -> None:
    """After all of them have said who they are."""
    with played_nodes(NODES, meeting.asked) as addresses, taken(addresses) as moment:
        assert [node.flight for node in moment.nodes] == sorted(addresses)
    assert meeting.met == dict.fromkeys(("about", "snapshot", "release"), NODES)


def test_a_write_begins_and_ends_on_all_nodes_at_once(meeting: Meeting) -> None:
    """One node decides, and the others follow together."""
    with played_nodes(NODES, meeting.asked) as addresses:
        source = DefaultSource({"endpoint": ",".join(addresses), "queue": "in"})
        writer = source.writer(COLUMNS, overwrite=False)
        messages: list[Any] = [
            StagedAttempt(address, str(number), 1, Fingerprint()) for number, address in enumerate(addresses)
        ]
        writer.commit(messages)
    # Nothing is asked that nobody needs: of a write without a name there was no earlier run.
    steps = {"about": NODES, "write-begin": NODES, "write-prepare": NODES}
    assert meeting.met == {**steps, "write-commit": NODES - 1}


def test_a_stream_asks_all_nodes_at_once_what_waits(meeting: Meeting) -> None:
    """To look, to take and to remove."""
    with played_nodes(NODES, meeting.asked) as addresses:
        source = DefaultSource({"endpoint": ",".join(addresses), "queue": "in", "application": "test"})
        stream = source.streamReader(source.schema())
        start = stream.initialOffset()
        assert stream.latestOffset(start, ReadAllAvailable()) == start
        stream.stop()
    assert meeting.met == {"about": 2 * NODES, "feed-done": NODES, "feed-take": 2 * NODES}

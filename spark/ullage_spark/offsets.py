"""How far a stream has read each node, how much of what waits a batch takes, and signs of life to the nodes."""

import threading
from collections.abc import Callable, Mapping
from typing import Final, NotRequired, TypedDict

from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

from ullage_agent.client.flight import About
from ullage_spark.errors import EventsLost
from ullage_spark.settings import Settings

BEAT_SECONDS: Final = 60.0
"""How often nodes are told that a stream is there: well within the time that they grant after a restart."""


class Place(TypedDict):
    """How far a node is read: of this repository through this sequence. `count`: so many FlowFiles in all."""

    repository: str
    sequence: int
    count: NotRequired[int]


Offset = dict[str, Place]


def place_of(about: About, sequence: int) -> Place:
    """A sequence of a node's present repository: those of another one mean something else."""
    return {"repository": about.repository, "sequence": sequence}


def rows_of(limit: ReadLimit, waiting: Mapping[str, int]) -> int:
    """How many rows a batch may have: without a limit all that wait."""
    return limit.max_rows if isinstance(limit, ReadMaxRows) else sum(waiting.values())


def shares(waiting: Mapping[str, int], most: int) -> dict[str, int]:
    """How many of what waits at each node: alike for all, and what some do not use goes to the others."""
    taken = dict.fromkeys(waiting, 0)
    left = {name for name, count in waiting.items() if count > 0}
    while left and most > 0:
        each = max(1, most // len(left))
        for name in sorted(left):
            count = min(each, waiting[name] - taken[name], most)
            taken[name] += count
            most -= count
            if taken[name] == waiting[name]:
                left.discard(name)
    return taken


def lose(settings: Settings, what: str) -> None:
    """EventsLost, unless the stream may go on without them."""
    if settings.fails_on_data_loss:
        raise EventsLost(f"{what}; option failOnDataLoss=false goes on without them")


class Heart:
    """Calls `beat` every minute until `stop`: while Spark works on a batch nobody else would."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat = beat
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ullage-stream", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Waits for a beat under way."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            self._beat()

"""The streaming source over a queue: its FlowFiles, each once, taken out of the queue batch by batch.

    latestOffset   each node lets the stream have some FlowFiles: they move to a queue of the stream's own
    read           as often as Spark has to try; their content stays where it is
    latestOffset   of the next batch: the one before it is carried out, so what it had is removed

What a batch has taken and nobody has written down yet, since the driver died in between, the next one finds again: an
offset says for each node the last place that is read. `count`, how many FlowFiles were taken up to there, tells readers
whether all of them are there still: those of a stream that was away for too long (option `hold`) went back.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from pyspark.sql.types import StructType

from ullage.client.retries import PASSING
from ullage.errors import UllageError
from ullage.wire.tickets import FEED_DONE, FEED_TAKE, FeedRequest, FeedStatus, TableTicket
from ullage_spark.addresses import FleetNode
from ullage_spark.errors import SparkSourceError
from ullage_spark.fleet import ANSWER_SECONDS, ask, flight_of, side_by_side
from ullage_spark.offsets import FleetStreamReader, NodeOffset, Offset, StreamPart, beginning, rows_of, shares
from ullage_spark.versions import HAS_LIMITS, ReadLimit, lacks

HOLD_MILLIS_MIN: Final = 10 * 60_000
"""Some signs of life may get lost before nodes give up a stream that is there."""


class QueueReader(FleetStreamReader):
    """`spark.readStream.format("ullage")` with the options `queue` and `application`. See the module's text."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        if not HAS_LIMITS:
            raise lacks("a stream that consumes a queue", "4.2", "read a stream of events: table=provenance")
        self._ends_with_what_waits = False
        self._left: dict[str, int] | None = None
        self._read: dict[str, int] = {}
        if self._settings.table != "flowfiles" or not self._settings.queue or not self._settings.application:
            raise SparkSourceError(
                "a stream of FlowFiles is of a queue, and has a name: options queue and application; one of events: "
                "table=provenance"
            )

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names
        return {node.name: beginning(node.repository) for node in self._discover().nodes}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """At most so many FlowFiles further, every node in its turn."""
        nodes = self._discover().nodes
        began: Offset = {node.name: start.get(node.name) or beginning(node.repository) for node in nodes}
        same = {name: place for name, place in began.items() if place["repository"] == self._nodes[name].repository}
        self.commit(start)
        waiting = self._waiting(same)
        taken = shares(waiting, rows_of(limit, waiting))
        answers = self._answers(taken, lambda node: self._take(node, same[node.name]["sequence"], taken[node.name]))
        found: Offset = {}
        for name, got in answers.items():
            place = same[name]
            found[name] = {**place, "sequence": got.through, "count": place.get("count", 0) + got.count}
            if self._left is not None:
                self._left[name] -= got.count
        # Of another repository nothing is taken here: reading it says what has happened.
        changed = {name: beginning(self._nodes[name].repository) for name in began.keys() - same.keys()}
        self._read_through(start)
        self._planned = {**start, **found, **changed}
        return dict(self._planned)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._ends_with_what_waits = True

    def commit(self, end: dict[str, Any]) -> None:
        """What is read is removed; at a node that does not answer, with one of the next.

        Spark says so only when there is a next batch, but it plans none before the last one is carried out and written
        down: so planning says it too.
        """
        settings = self._settings

        def remove(name: str) -> None:
            done = FeedRequest(stream=settings.application, queue=settings.queue, through=end[name]["sequence"])
            with suppress(*PASSING):  # what it has is removed with the next batch
                ask(settings, self._nodes[name], FEED_DONE, done)

        side_by_side(remove, [n for n in end if n in self._nodes and self._nodes[n].repository == end[n]["repository"]])

    def _parts(self, node: FleetNode, after: NodeOffset, place: NodeOffset) -> list[StreamPart]:
        count = place.get("count", 0) - after.get("count", 0)
        return [StreamPart(node, after["sequence"], place["sequence"], count)]

    def _wanted(self, part: StreamPart) -> TableTicket:
        stream, queue = self._settings.application, self._settings.queue
        return TableTicket(name="flowfiles", after=part.after, through=part.through, stream=stream, queue=queue)

    def _lag(self, node: FleetNode, after: int) -> tuple[int, int | None]:
        found = self._take(node, after, 0)
        return found.waiting, found.since_millis

    def _waiting(self, places: Mapping[str, NodeOffset]) -> dict[str, int]:
        """How many FlowFiles each node has for the stream; with a trigger that ends, of those there were at first."""
        answers = self._answers(places, lambda node: self._take(node, places[node.name]["sequence"], 0))
        waiting = {name: got.waiting for name, got in answers.items()}
        if self._ends_with_what_waits and self._left is None:
            self._left = dict(waiting)
        if self._left is None:
            return waiting
        return {name: min(count, self._left.setdefault(name, 0)) for name, count in waiting.items()}

    def _take(self, node: FleetNode, after: int, count: int) -> FeedStatus:
        return ask(self._settings, node, FEED_TAKE, self._request(after, count))

    def _request(self, after: int, count: int) -> FeedRequest:
        settings = self._settings
        return FeedRequest(
            stream=settings.application,
            queue=settings.queue,
            after=after,
            count=count,
            lasts_millis=max(HOLD_MILLIS_MIN, settings.hold_millis),
        )

    def _read_through(self, offset: Mapping[str, NodeOffset]) -> None:
        """What the checkpoint may need waits for as long as the option `hold` says."""
        self._read = {name: place["sequence"] for name, place in offset.items() if name in self._nodes}
        self._live()

    def _beat(self) -> None:
        read, nodes = dict(self._read), dict(self._nodes)

        def beat(name: str) -> None:
            with suppress(UllageError):  # the next beat asks again; a claim that ran out is told by the next read
                client = flight_of(self._settings, nodes[name])
                client.act(FEED_TAKE, self._request(read[name], 0), timeout_seconds=ANSWER_SECONDS)

        side_by_side(beat, [name for name in read if name in nodes])

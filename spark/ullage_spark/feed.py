"""The streaming source over a queue: its FlowFiles, each once, taken out of the queue batch by batch.

    latestOffset   each node lets the stream have some FlowFiles: they move to a queue of the stream's own
    read           as often as Spark has to try; their content stays where it is
    latestOffset   of the next batch: the one before it is carried out, so what it had is removed

What a batch has taken and nobody has written down yet, since the driver died in between, the next one finds again: an
offset says for each node the last place that is read. `count`, how many FlowFiles were taken up to there, tells readers
whether all of them are there still: those of a stream that was away for too long (option `hold`) went back.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ullage_agent.client import ClientError, NotReachable
from ullage_agent.client.flight import Taken
from ullage_spark.carried import Carried
from ullage_spark.errors import EventsLost, SparkSourceError
from ullage_spark.fleet import RETRIES, Node, discover, flight_of
from ullage_spark.offsets import Heart, Offset, Place, lose, rows_of, shares
from ullage_spark.predicates import Where
from ullage_spark.reader import bounded, shaped
from ullage_spark.settings import Settings
from ullage_spark.tables import NODE, columns_of

HOLD_MILLIS_MIN: Final = 10 * 60_000
"""Some signs of life may get lost before nodes give up a stream that is there."""


class FeedPart(Carried, InputPartition):
    """So many FlowFiles of a node, the first place excluded and the last included."""

    def __init__(self, node: Node, after: int, through: int, count: int) -> None:
        self.node = node
        self.after = after
        self.through = through
        self.count = count


class QueueReader(Carried, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("ullage")` with the options `queue` and `application`. See the module's text."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._settings = Settings.of(options)
        self._schema = schema
        self._ends_with_what_waits = False
        self._left: dict[str, int] | None = None
        self._nodes: dict[str, Node] = {}
        self._read: dict[str, int] = {}
        self._heart: Heart | None = None
        if self._settings.table != "flowfiles" or not self._settings.queue or not self._settings.application:
            raise SparkSourceError(
                "a stream of FlowFiles is of a queue, and has a name: options queue and application; one of events: "
                "table=provenance"
            )
        if self._settings.snapshot:
            raise SparkSourceError("a stream goes on, and a snapshot does not: leave out option snapshot")

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names
        return {node.name: _fresh(node) for node in self._discover()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._settings.events_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """At most so many FlowFiles further, every node in its turn."""
        began: Offset = {node.name: start.get(node.name) or _fresh(node) for node in self._discover()}
        same = {name: place for name, place in began.items() if place["repository"] == self._nodes[name].repository}
        self.commit(start)
        waiting = self._waiting(same)
        taken = shares(waiting, rows_of(limit, waiting))
        found: Offset = {}
        for name, place in same.items():
            got = self._take(name, place["sequence"], taken[name])
            found[name] = {**place, "sequence": got.through, "count": place.get("count", 0) + got.count}
            if self._left is not None:
                self._left[name] -= got.count
        # Of another repository nothing is taken here: reading it says what has happened.
        changed = {name: _fresh(self._nodes[name]) for name in began.keys() - same.keys()}
        self._live(start)
        return {**start, **found, **changed}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._ends_with_what_waits = True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._discover()
        parts: list[InputPartition] = []
        for name, place in end.items():
            after = start.get(name) or Place(repository=place["repository"], sequence=0, count=0)
            if after == place:
                continue
            if name not in self._nodes:
                raise EventsLost(
                    f"node {name} is not in the fleet any more, and what the stream took of it is not read"
                )
            if after["repository"] != place["repository"] or self._nodes[name].repository != place["repository"]:
                lose(self._settings, f"node {name} has another repository than before: what the stream took is gone")
                continue
            count = place.get("count", 0) - after.get("count", 0)
            parts.append(FeedPart(self._nodes[name], after["sequence"], place["sequence"], count))
        self._live(start)
        return parts

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._batches(partition) if isinstance(partition, FeedPart) else iter(())

    def commit(self, end: dict[str, Any]) -> None:
        """What is read is removed; at a node that does not answer, with one of the next.

        Spark says so only when there is a next batch, but it plans none before the last one is carried out and written
        down: so planning says it too.
        """
        settings = self._settings
        for name, place in end.items():
            node = self._nodes.get(name)
            if node is None or node.repository != place["repository"]:
                continue
            client = flight_of(settings, node)
            try:
                RETRIES.run(lambda: client.done(settings.application, settings.queue, place["sequence"]))  # noqa: B023
            except NotReachable:
                continue

    def stop(self) -> None:
        """What the checkpoint may need still waits for as long as the option `hold` says."""
        if self._heart is not None:
            self._heart.stop()

    def _batches(self, part: FeedPart) -> Iterator[pa.RecordBatch]:
        settings = self._settings
        where = Where(settings.where)
        target = to_arrow_schema(self._schema)
        wanted = [name for name in columns_of("flowfiles") if name in {*target.names, *where.columns} - {NODE}]
        client = flight_of(settings, part.node)
        feed = (settings.application, settings.queue)
        columns = wanted or ["uuid"]
        stream = RETRIES.run(
            lambda: client.table("flowfiles", None, columns, after=part.after, through=part.through, feed=feed)
        )
        count = 0
        for batch in stream:
            count += batch.num_rows
            named = batch.append_column(NODE, pa.repeat(part.node.name, batch.num_rows))
            for chosen in where.chosen(named):
                yield from bounded(shaped(chosen, target), settings.batch_bytes)
        if count != part.count:
            lose(
                settings,
                f"node {part.node.name}: {part.count - count} of {part.count} FlowFiles that stream "
                f"{settings.application} took of queue {settings.queue} do not wait for it any more: it was away for "
                "longer than its option hold says, and they went back to the queue",
            )

    def _waiting(self, places: Mapping[str, Place]) -> dict[str, int]:
        """How many FlowFiles each node has for the stream; with a trigger that ends, of those there were at first."""
        waiting = {name: self._take(name, place["sequence"], 0).waiting for name, place in places.items()}
        if self._ends_with_what_waits and self._left is None:
            self._left = dict(waiting)
        if self._left is None:
            return waiting
        return {name: min(count, self._left.setdefault(name, 0)) for name, count in waiting.items()}

    def _take(self, name: str, after: int, count: int) -> Taken:
        settings = self._settings
        client = flight_of(settings, self._nodes[name])
        lasts_millis = max(HOLD_MILLIS_MIN, settings.hold_millis)
        return RETRIES.run(lambda: client.take(settings.application, settings.queue, after, count, lasts_millis))

    def _live(self, offset: Mapping[str, Place]) -> None:
        """Up to here the stream has read; from here on it gives signs of life."""
        self._read = {name: place["sequence"] for name, place in offset.items() if name in self._nodes}
        if self._heart is None:
            self._heart = Heart(self._beat)

    def _beat(self) -> None:
        for name, after in list(self._read.items()):
            try:
                self._take(name, after, 0)
            except ClientError:
                continue

    def _discover(self) -> list[Node]:
        nodes = discover(self._settings)
        self._nodes = {node.name: node for node in nodes}
        return list(nodes)


def _fresh(node: Node) -> Place:
    return {"repository": node.repository, "sequence": 0, "count": 0}

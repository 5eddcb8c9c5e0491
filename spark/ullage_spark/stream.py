"""The streaming source: provenance events of all nodes, each once, in the order of their node.

An offset says for each node the last sequence that is read, and of which repository: sequences of another one mean
other events. Nodes hold what the stream has not read yet, up to a bound, as long as it is there; if retention takes
some of it all the same, the stream stops and says so rather than go on without them.
"""

import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ullage_agent.client import ClientError
from ullage_agent.client.flight import About
from ullage_spark.carried import Carried
from ullage_spark.errors import EventsLost, SparkSourceError
from ullage_spark.fleet import RETRIES, Node, discover, flight_of
from ullage_spark.offsets import Heart, Offset, Place, lose, place_of, rows_of, shares
from ullage_spark.predicates import Where
from ullage_spark.reader import bounded, shaped
from ullage_spark.settings import Settings
from ullage_spark.tables import NODE, columns_of

PART_EVENTS: Final = 100_000
"""Events of one task: seconds of an agent's time."""

EARLIEST, LATEST = "earliest", "latest"


class EventsPart(Carried, InputPartition):
    """Events of a node, the first excluded and the last included."""

    def __init__(self, node: Node, repository: str, after: int, through: int) -> None:
        self.node = node
        self.repository = repository
        self.after = after
        self.through = through


class EventReader(Carried, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("ullage").option("table", "provenance")`. See the module's text."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._settings = Settings.of(options)
        self._schema = schema
        self._target: Offset | None = None
        self._holder = str(uuid.uuid4())
        self._nodes: dict[str, Node] = {}
        self._held: dict[str, int] = {}
        self._heart: Heart | None = None
        if self._settings.starting_position not in (EARLIEST, LATEST):
            raise SparkSourceError(f"option startingPosition is {EARLIEST} or {LATEST}")
        if self._settings.snapshot:
            raise SparkSourceError("a stream goes on, and a snapshot does not: leave out option snapshot")

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names
        is_latest = self._settings.starting_position == LATEST
        return {
            node.name: place_of(about, about.last_sequence if is_latest else about.first_sequence - 1)
            for node, about in self._asked()
        }

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._settings.events_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """At most so many events further, every node in its turn: one that lags does not keep the others back."""
        newest = self._newest()
        self._hold(start)
        if self._target is not None:
            newest = {name: _earlier(place, self._target.get(name)) for name, place in newest.items()}
        began: Offset = {
            name: start.get(name) or Place(repository=place["repository"], sequence=0) for name, place in newest.items()
        }
        waiting = {
            name: place["sequence"] - began[name]["sequence"]
            for name, place in newest.items()
            if place["repository"] == began[name]["repository"]
        }
        taken = shares(waiting, rows_of(limit, waiting))
        # Of another repository nothing is taken here: reading it says what has happened.
        found = {name: {**began[name], "sequence": began[name]["sequence"] + taken.get(name, 0)} for name in newest}
        changed = {name: place for name, place in newest.items() if name not in waiting}
        return {**start, **found, **changed}

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        return dict(self._newest())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._newest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        parts: list[InputPartition] = []
        self._nodes = nodes = {node.name: node for node in discover(self._settings)}
        self._hold(start)
        for name, place in end.items():
            after = start.get(name, {"sequence": 0, "repository": place["repository"]})
            if after == place:
                continue
            if name not in nodes:
                raise EventsLost(f"node {name} is not in the fleet any more, and its events are not all read")
            if after["repository"] != place["repository"]:
                lose(
                    self._settings,
                    f"node {name} has another repository than before: its former events are not all read",
                )
                after = {**place, "sequence": 0}
            for first in range(after["sequence"], place["sequence"], PART_EVENTS):
                through = min(first + PART_EVENTS, place["sequence"])
                parts.append(EventsPart(nodes[name], place["repository"], first, through))
        return parts

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, EventsPart):
            return iter(())
        return self._batches(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._hold(end)

    def stop(self) -> None:
        if self._heart is not None:
            self._heart.stop()
            self._hold_for(0)

    def _batches(self, part: EventsPart) -> Iterator[pa.RecordBatch]:
        where = Where(self._settings.where)
        target = to_arrow_schema(self._schema)
        wanted = [name for name in columns_of("provenance") if name in {*target.names, *where.columns} - {NODE}] or [
            "sequence"
        ]
        client = flight_of(self._settings, part.node)
        stream = RETRIES.run(
            lambda: client.table("provenance", None, [*wanted], after=part.after, through=part.through)
        )
        count = 0
        for batch in stream:
            count += batch.num_rows
            named = batch.append_column(NODE, pa.repeat(part.node.name, batch.num_rows))
            for chosen in where.chosen(named):
                yield from bounded(shaped(chosen, target), self._settings.batch_bytes)
        if count != part.through - part.after:
            lose(
                self._settings,
                f"node {part.node.name}: {part.through - part.after - count} of the events after {part.after} through "
                f"{part.through} are not there any more (spec.provenance says how long they are kept)",
            )

    def _hold(self, offset: Mapping[str, Place]) -> None:
        """What follows these places is not read yet."""
        if not self._settings.hold_millis:
            return
        held = {name: place["sequence"] for name, place in offset.items()}
        if held != self._held:
            self._held = held
            self._hold_again()
        if self._heart is None:
            self._heart = Heart(self._hold_again)

    def _hold_again(self) -> None:
        self._hold_for(self._settings.hold_millis)

    def _hold_for(self, lasts_millis: int) -> None:
        for name, after in self._held.items():
            if name not in self._nodes:
                continue
            try:
                flight_of(self._settings, self._nodes[name]).hold_events(self._holder, after, lasts_millis)
            except ClientError:
                continue  # the next beat tells it again; whether events are missing is seen when they are read

    def _newest(self) -> Offset:
        return {node.name: place_of(about, about.last_sequence) for node, about in self._asked()}

    def _asked(self) -> list[tuple[Node, About]]:
        nodes = discover(self._settings)
        self._nodes = {node.name: node for node in nodes}
        return [(node, RETRIES.run(flight_of(self._settings, node).about)) for node in nodes]


def _earlier(place: Place, bound: Place | None) -> Place:
    if bound is None or bound["repository"] != place["repository"]:
        return place
    return {**place, "sequence": min(place["sequence"], bound["sequence"])}

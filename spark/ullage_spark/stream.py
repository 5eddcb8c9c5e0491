"""The streaming source: provenance events of all nodes, each once, in the order of their node.

An offset says for each node the last sequence that is read, and of which repository: sequences of another one mean
other events. Nothing is held at the nodes, since every event has its number for good; if retention takes events that
the stream has not read, it stops and says so rather than go on without them.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypedDict

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ullage_agent.client.flight import About
from ullage_spark.carried import Carried
from ullage_spark.errors import EventsLost, SparkSourceError
from ullage_spark.fleet import RETRIES, Node, discover, flight_of
from ullage_spark.predicates import Where
from ullage_spark.reader import bounded, shaped
from ullage_spark.settings import Settings
from ullage_spark.tables import NODE, columns_of

PART_EVENTS: Final = 100_000
"""Events of one task: seconds of an agent's time."""

EARLIEST, LATEST = "earliest", "latest"


class Place(TypedDict):
    """How far a node's events are read: of this repository through this sequence."""

    repository: str
    sequence: int


Offset = dict[str, Place]


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
        if self._settings.table != "provenance":
            raise SparkSourceError("a stream is of events: option table=provenance")
        if self._settings.starting_position not in (EARLIEST, LATEST):
            raise SparkSourceError(f"option startingPosition is {EARLIEST} or {LATEST}")
        if self._settings.snapshot:
            raise SparkSourceError("a stream goes on, and a snapshot does not: leave out option snapshot")

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names
        is_latest = self._settings.starting_position == LATEST
        return {
            node.name: _place(about, about.last_sequence if is_latest else about.first_sequence - 1)
            for node, about in self._asked()
        }

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._settings.events_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """At most so many events further, every node in its turn: one that lags does not keep the others back."""
        newest = self._newest()
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
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else sum(waiting.values())
        taken = shares(waiting, most)
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
        nodes = {node.name: node for node in discover(self._settings)}
        for name, place in end.items():
            after = start.get(name, {"sequence": 0, "repository": place["repository"]})
            if after == place:
                continue
            if name not in nodes:
                raise EventsLost(f"node {name} is not in the fleet any more, and its events are not all read")
            if after["repository"] != place["repository"]:
                self._lose(f"node {name} has another repository than before: its former events are not all read")
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
        """Nothing is held at the nodes."""

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
            self._lose(
                f"node {part.node.name}: {part.through - part.after - count} of the events after {part.after} through "
                f"{part.through} are not there any more (spec.provenance says how long they are kept)"
            )

    def _lose(self, what: str) -> None:
        if self._settings.fails_on_data_loss:
            raise EventsLost(f"{what}; option failOnDataLoss=false goes on without them")

    def _newest(self) -> Offset:
        return {node.name: _place(about, about.last_sequence) for node, about in self._asked()}

    def _asked(self) -> list[tuple[Node, About]]:
        nodes = discover(self._settings)
        return [(node, RETRIES.run(flight_of(self._settings, node).about)) for node in nodes]


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


def _place(about: About, sequence: int) -> Place:
    return {"repository": about.repository, "sequence": sequence}


def _earlier(place: Place, bound: Place | None) -> Place:
    if bound is None or bound["repository"] != place["repository"]:
        return place
    return {**place, "sequence": min(place["sequence"], bound["sequence"])}

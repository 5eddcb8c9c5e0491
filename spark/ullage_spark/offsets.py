"""What streams have in common: how far they have read each node, how much of what waits a batch takes, how its parts
are read, and signs of life to the nodes.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NotRequired, TypedDict, TypeVar

import msgspec
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from ullage.errors import EventNotFound, FlowFileNotFound, UllageError
from ullage.wire.tickets import TableTicket
from ullage_spark.addresses import FleetNode
from ullage_spark.carried import Carried
from ullage_spark.errors import EventsLost
from ullage_spark.fleet import MissingNode, Roll, called, missing_error, on_each, side_by_side
from ullage_spark.lineage_events import ToldRun, queue_dataset
from ullage_spark.predicates import Where
from ullage_spark.reader import table_rows
from ullage_spark.settings import FollowOptions
from ullage_spark.tables import schema_asked
from ullage_spark.versions import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from ullage_spark.workers import begin_task

T = TypeVar("T")

BEAT_SECONDS: Final = 60.0
"""How often nodes are told that a stream is there: well within the time that they grant after a restart."""


class NodeOffset(TypedDict):
    """How far a node is read: of this repository through this sequence. `count`: so many FlowFiles in all."""

    repository: str
    sequence: int
    count: NotRequired[int]


Offset = dict[str, NodeOffset]


class NodeLag(TypedDict):
    """What of a node the stream has not planned to read yet, and since when the first of it waits; or why nobody can
    say.
    """

    backlog: NotRequired[int]
    oldest_unread_millis: NotRequired[int | None]
    missing: NotRequired[str]


def beginning(repository: str) -> NodeOffset:
    """Nothing of the repository is read: sequences of another one mean something else."""
    return {"repository": repository, "sequence": 0, "count": 0}


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


class Heartbeat:
    """Calls `beat` again and again until `stop`: while Spark works on a batch nobody else would."""

    def __init__(self, beat: Callable[[], None], seconds: float = BEAT_SECONDS) -> None:
        self._beat = beat
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ullage-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Waits for a beat under way."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            self._beat()


class StreamPart(Carried, InputPartition):
    """What one task reads of a node: `count` rows, the first place excluded and the last included."""

    def __init__(self, node: FleetNode, after: int, through: int, count: int) -> None:
        self.node = node
        self.after = after
        self.through = through
        self.count = count


class FleetStreamReader(Carried, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What streams of events and of FlowFiles have in common."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._settings = FollowOptions.of(options)
        self._schema = schema_asked(schema, self._settings.table)
        Where(self._settings.table, self._settings.where)  # wrong ones are refused before anything is read
        self._nodes: dict[str, FleetNode] = {}
        self._missing: Sequence[MissingNode] = ()
        self._planned: Offset = {}
        self._heart: Heartbeat | None = None

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names
        """What `StreamingQueryProgress` shows as `latestOffset` of the source: the lag of each node. Nothing is planned
        by it, so a node that does not answer is told of, and stops nobody.
        """

        def lag(name: str) -> tuple[str, NodeLag]:
            try:
                backlog, since = self._lag(self._nodes[name], self._planned[name]["sequence"])
            except UllageError as error:  # a refusal too: whoever plans the next batch is told of it
                return name, NodeLag(missing=str(error))
            return name, NodeLag(backlog=backlog, oldest_unread_millis=since)

        lags = dict(side_by_side(lag, [name for name in self._planned if name in self._nodes]))
        return {**lags, **{each.name: NodeLag(missing=each.reason) for each in self._missing}}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._settings.events_max)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        settings = self._settings
        source = queue_dataset(settings.queue) if settings.queue else settings.table
        job = f"ullage.stream.{settings.application or settings.table}"
        with ToldRun.of(job, settings, inputs=[source]).told():
            return self._planned_parts(start, end)

    def _planned_parts(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        missing = self._discover().missing
        parts: list[InputPartition] = []
        for name, place in end.items():
            after = start.get(name) or beginning(place["repository"])
            if after == place:
                continue
            if name not in self._nodes and missing:
                # Spark has written down what this batch takes of it: to leave that out would be to lose it.
                raise missing_error(missing, len(self._nodes) + len(missing), f"a batch takes some of node {name}")
            if name not in self._nodes:
                raise EventsLost(f"node {name} is not in the fleet any more, and not all of it is read")
            is_there = self._nodes[name].repository == place["repository"]
            if not is_there or after["repository"] != place["repository"]:
                self._lose(f"node {name} has another repository than before: not all of the former one is read")
                after = beginning(place["repository"])
            if is_there:
                parts += self._parts(self._nodes[name], after, place)
        self._read_through(start)
        return parts

    def read(self, partition: InputPartition) -> Iterator[Any]:
        begin_task()
        if isinstance(partition, StreamPart):  # else Spark runs one task even where there is nothing
            count = partition.count if self._settings.fails_on_data_loss else None
            wanted = msgspec.structs.replace(self._wanted(partition), count=count)
            try:
                yield from table_rows(self._settings, partition.node, self._schema, wanted)
            except (EventNotFound, FlowFileNotFound) as error:
                self._lose(f"node {partition.node.name}: {error}")

    def stop(self) -> None:
        """Nodes hear nothing of this stream any more."""
        if self._heart is not None:
            self._heart.stop()

    def _live(self) -> None:
        """From here on the stream gives signs of life."""
        if self._heart is None:
            self._heart = Heartbeat(self._beat)

    def _discover(self) -> Roll:
        roll = called(self._settings)
        self._nodes, self._missing = {node.name: node for node in roll.nodes}, roll.missing
        return roll

    def _answers(self, names: Iterable[str], work: Callable[[FleetNode], T]) -> dict[str, T]:
        """What becomes of it on each of these nodes, side by side; without those that may be missing, and are."""
        found: dict[str, T] = {}

        def keep(node: FleetNode) -> None:
            found[node.name] = work(node)

        on_each(self._settings, [self._nodes[name] for name in names], keep)
        return found

    def _lose(self, what: str) -> None:
        """EventsLost, unless the stream may go on without them."""
        if self._settings.fails_on_data_loss:
            raise EventsLost(f"{what}; option failOnDataLoss=false goes on without them")

    def _read_through(self, offset: Mapping[str, NodeOffset]) -> None:
        """Up to here the stream has read."""
        raise NotImplementedError

    def _parts(self, node: FleetNode, after: NodeOffset, place: NodeOffset) -> list[StreamPart]:
        """Tasks that read between two places of one repository."""
        raise NotImplementedError

    def _wanted(self, part: StreamPart) -> TableTicket:
        raise NotImplementedError

    def _lag(self, node: FleetNode, after: int) -> tuple[int, int | None]:
        """How much of a node waits after this place, and since when the first of it does."""
        raise NotImplementedError

    def _beat(self) -> None:
        raise NotImplementedError

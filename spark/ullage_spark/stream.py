"""The streaming source: provenance events of all nodes, each once, in the order of their node.

An offset says for each node the last sequence that is read, and of which repository: sequences of another one mean
other events. Nodes hold what the stream has not read yet, up to a bound, as long as it is there; if retention takes
some of it all the same, the stream stops and says so rather than go on without them.
"""

import uuid
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from ullage.errors import UllageError
from ullage.wire.tickets import ABOUT, HOLD_EVENTS, EventHoldRequest, NodeIdentity, Nothing, TableTicket
from ullage_spark.addresses import FleetNode
from ullage_spark.fleet import ANSWER_SECONDS, ask, flight_of, missing_error, side_by_side
from ullage_spark.offsets import FleetStreamReader, NodeOffset, Offset, StreamPart, beginning, rows_of, shares
from ullage_spark.versions import ReadLimit, lacks

PART_EVENTS: Final = 100_000
"""Events of one task: seconds of an agent's time."""


class EventReader(FleetStreamReader):
    """`spark.readStream.format("ullage").option("table", "provenance")`. See the module's text."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        self._target: Offset | None = None
        self._holder = self._settings.application or str(uuid.uuid4())
        self._held: dict[str, int] = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names
        is_latest = self._settings.starting_position == "latest"
        if is_latest and (missing := (roll := self._discover()).missing):
            why = "where a stream begins there with startingPosition=latest nobody could say later"
            raise missing_error(missing, len(roll.nodes) + len(missing), why)
        return {
            name: NodeOffset(
                repository=about.repository, sequence=about.last_sequence if is_latest else about.first_sequence - 1
            )
            for name, about in self._asked().items()
        }

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """At most so many events further, every node in its turn: one that lags does not keep the others back."""
        newest = self._newest()
        self._read_through(start)
        if self._target is not None:
            newest = {name: _earlier(place, self._target.get(name)) for name, place in newest.items()}
        began: Offset = {name: start.get(name) or beginning(place["repository"]) for name, place in newest.items()}
        waiting = {
            name: place["sequence"] - began[name]["sequence"]
            for name, place in newest.items()
            if place["repository"] == began[name]["repository"]
        }
        taken = shares(waiting, rows_of(limit, waiting))
        # Of another repository nothing is taken here: reading it says what has happened.
        found: Offset = {
            name: {**began[name], "sequence": began[name]["sequence"] + taken.get(name, 0)} for name in newest
        }
        changed = {name: place for name, place in newest.items() if name not in waiting}
        self._planned = {**start, **found, **changed}
        return dict(self._planned)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._newest()

    def commit(self, end: dict[str, Any]) -> None:
        self._read_through(end)

    def stop(self) -> None:
        """Nodes need not hold events for this stream any more."""
        super().stop()
        if self._heart is not None:
            self._hold_for(0)

    def _parts(self, node: FleetNode, after: NodeOffset, place: NodeOffset) -> list[StreamPart]:
        bounds = [*range(after["sequence"], place["sequence"], PART_EVENTS), place["sequence"]]
        return [StreamPart(node, first, through, through - first) for first, through in pairwise(bounds)]

    def _wanted(self, part: StreamPart) -> TableTicket:
        return TableTicket(name="provenance", after=part.after, through=part.through)

    def _lag(self, node: FleetNode, after: int) -> tuple[int, int | None]:
        waiting = max(0, ask(self._settings, node, ABOUT, Nothing()).last_sequence - after)
        first = TableTicket(name="provenance", columns=["millis"], after=after, through=after + 1)
        rows = flight_of(self._settings, node).table(first).read_all() if waiting else None
        return waiting, rows.column("millis")[0].as_py() if rows is not None and rows.num_rows else None

    def _read_through(self, offset: Mapping[str, NodeOffset]) -> None:
        """What follows these places is held."""
        if not self._settings.hold_millis:
            return
        held = {name: place["sequence"] for name, place in offset.items()}
        if held != self._held:
            self._held = held
            self._beat()
        self._live()

    def _beat(self) -> None:
        self._hold_for(self._settings.hold_millis)

    def _hold_for(self, lasts_millis: int) -> None:
        held, nodes = dict(self._held), dict(self._nodes)

        def tell(name: str) -> None:
            hold = EventHoldRequest(holder=self._holder, after=held[name], lasts_millis=lasts_millis)
            with suppress(UllageError):  # the next beat tells it again; missing events are seen when they are read
                flight_of(self._settings, nodes[name]).act(HOLD_EVENTS, hold, timeout_seconds=ANSWER_SECONDS)

        side_by_side(tell, [name for name in held if name in nodes])

    def _newest(self) -> Offset:
        return {
            name: NodeOffset(repository=about.repository, sequence=about.last_sequence)
            for name, about in self._asked().items()
        }

    def _asked(self) -> dict[str, NodeIdentity]:
        names = [node.name for node in self._discover().nodes]
        return self._answers(names, lambda node: ask(self._settings, node, ABOUT, Nothing()))


class WholeEventReader(EventReader):
    """The same where Spark says neither how far a stream has read nor how much a batch may have: it has all that waits.

    What this process has planned it keeps, so that a node that leaves and comes back goes on where it was.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        if "maxevents" in map(str.lower, options):
            raise lacks("option maxEvents", "4.2", "leave it out: a batch has all that waits then")
        if self._settings.missing_nodes == "skip":
            # Its place in the checkpoint would be forgotten, and all its events read again once it is back.
            raise lacks("option missingNodes=skip of a stream", "4.2", "leave it out: all nodes are waited for then")

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        self._planned = super().initialOffset()
        return dict(self._planned)

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        newest = self._newest()
        if self._planned:
            self._read_through(self._planned)
        # Spark compares offsets as texts: in any other order the same one would be a batch.
        self._planned = dict(sorted({**self._planned, **newest}.items()))
        return dict(self._planned)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._planned = {**end, **self._planned}  # of a batch that an earlier process planned
        return super().partitions(start, end)


def _earlier(place: NodeOffset, bound: NodeOffset | None) -> NodeOffset:
    if bound is None or bound["repository"] != place["repository"]:
        return place
    return {**place, "sequence": min(place["sequence"], bound["sequence"])}

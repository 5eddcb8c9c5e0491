"""`ullage spark history`: provenance events, figures of space and runs of a fleet, for longer than nodes keep them.

A program over Arrow, without Spark: it moves rows that nodes send as Arrow into Parquet, so that a JVM in between would
only cost. A run reads what there is when it begins, node by node, some of each at a time, and ends; cron starts it.

    state of `events`   of each node the repository and the last sequence that is in the table: each event is there once
    state of `runs`     of each node when the last run that the table has ended: each is there once
    `space`             what each node holds when the run looks

A node that does not answer is left as it is: what it has is read once it is there again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from ullage.client.retries import PASSING
from ullage.clock import Clock, moment_of
from ullage.errors import UllageError
from ullage.wire.tickets import (
    ABOUT,
    HOLD_EVENTS,
    RELEASE,
    SNAPSHOT,
    EventHoldRequest,
    Nothing,
    SnapshotRelease,
    SnapshotRequest,
    TableTicket,
)
from ullage_spark.addresses import FleetNode
from ullage_spark.dayfiles import DAY, DayFiles, compacted, or_nothing
from ullage_spark.errors import EventsLost, SparkSourceError
from ullage_spark.fleet import ANSWER_SECONDS, MissingNode, ask, flight_of, missing_error, roll_call, side_by_side
from ullage_spark.histories import HistoryFile, HistoryTable, State, folder_tables
from ullage_spark.lineage_events import ToldRun
from ullage_spark.offsets import NodeOffset, shares
from ullage_spark.reader import table_rows
from ullage_spark.rollup import ROLLUP
from ullage_spark.settings import FollowOptions
from ullage_spark.space import FIGURES, figures
from ullage_spark.tables import arrow_schema, schema_of

ICEBERG: Final = "iceberg:"
"""Before the catalog and the namespace of a history in Iceberg."""

READ_AT_ONCE: Final = 8
"""Nodes that are read at a time: each takes some MiB."""

PART_EVENTS: Final = 100_000
"""Events of a node in one commit at most: a file of some MiB."""

_Files = dict[str, list[HistoryFile]]


def _rows(table: str) -> pa.Schema:
    fields = arrow_schema(schema_of(FollowOptions(endpoint="any", table=table)))
    return pa.schema([field.remove_metadata() for field in fields])


SCHEMAS: Final[dict[str, pa.Schema]] = {
    name: pa.schema([pa.field(DAY, pa.date32()), *fields])
    for name, fields in {
        "events": _rows("provenance"),
        "space": FIGURES,
        "runs": _rows("runs"),
        "rollup": ROLLUP,
    }.items()
}
"""The tables of a history; all have a column `day`."""

TIMES: Final = {"events": "time", "space": "time", "runs": "ended_time"}
"""What is fed, and what the day is of."""


@contextmanager
def written(where: str, clock: Clock) -> Iterator[dict[str, HistoryTable]]:
    """The tables of a history, by name, for its one writer; made if there are none.

    `where` is a folder, or `iceberg:CATALOG/NAMESPACE` with a catalog as pyiceberg's settings name it. SparkSourceError
    if another process writes to the folder.
    """
    if where.startswith(ICEBERG):
        from ullage_spark.iceberg import iceberg_tables  # noqa: PLC0415 - an extra of its own

        yield dict(iceberg_tables(where.removeprefix(ICEBERG), SCHEMAS))
        return
    with folder_tables(where, SCHEMAS, clock) as tables:
        yield tables


class HistoryRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has added to each table, and which nodes it went without."""

    rows: dict[str, int]
    missing: tuple[MissingNode, ...]
    lost: tuple[str, ...]
    """What was gone before it could be read."""

    merged_files: int


def fed(tables: Mapping[str, HistoryTable], options: Mapping[str, Any], clock: Clock) -> HistoryRun:
    """Bring a history up to date with the nodes that the options name, which are those of a stream of events.

    SparkSourceError, NodesMissing and EventsLost come at the end, as the options `missingNodes` and `failOnDataLoss`
    say, when all that could be read is in the history. Of a node that has lost events nothing more is read then.
    """
    settings = FollowOptions.of({**options, "table": "provenance"})
    read = ["provenance", "resource_claims", "flowfiles", "runs"]
    files = [tables[name].location for name in TIMES]
    with ToldRun.of("ullage.history", settings, inputs=read, files=files).told():
        return _Feeding(tables, settings, clock).carried_out()


def _not_in(ended: pa.RecordBatch, known: dict[str, Any]) -> tuple[pa.RecordBatch, dict[str, Any]]:
    """Runs that have ended since those that are known, and what is known with them. Several may end in a millisecond,
    of which only some were there to be seen.
    """
    millis = ended.column("ended_time").cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
    runs = ended.column("run").to_pylist()
    last = max(millis, default=known["millis"])
    ended_by = known["millis"]
    is_new = [
        at > ended_by or (at == ended_by and run not in known["runs"]) for at, run in zip(millis, runs, strict=True)
    ]
    if not any(is_new):
        return ended.slice(0, 0), known
    latest = [run for at, run in zip(millis, runs, strict=True) if at == last]
    return ended.filter(pa.array(is_new, pa.bool_())), {"millis": last, "runs": latest}


class _Feeding:
    """One run."""

    def __init__(self, tables: Mapping[str, HistoryTable], settings: FollowOptions, clock: Clock) -> None:
        self._tables = tables
        self._settings = settings
        self._clock = clock
        self._nodes: dict[str, FleetNode] = {}
        self._missing: dict[str, MissingNode] = {}
        self._failed: dict[str, Exception] = {}
        self._lost: list[str] = []
        self._added = dict.fromkeys(TIMES, 0)

    def carried_out(self) -> HistoryRun:
        roll = roll_call(self._settings)
        if not roll.nodes:
            raise missing_error(roll.missing, len(roll.missing))
        self._missing = {each.name: each for each in roll.missing}
        self._nodes = {node.name: node for node in roll.nodes}
        self._feed_events()
        self._look_at_space()
        today = moment_of(self._clock.now_millis()).date().isoformat()
        merged = sum(compacted(self._tables[name], SCHEMAS[name], today) for name in TIMES)
        if self._failed:
            raise next(iter(self._failed.values()))
        missing = tuple(self._missing.values())
        if missing and self._settings.missing_nodes != "skip":
            raise missing_error(missing, len(self._nodes) + len(missing))
        return HistoryRun(rows=self._added, missing=missing, lost=tuple(self._lost), merged_files=merged)

    def _on_each(self, work: Callable[[FleetNode], None], names: Iterable[str]) -> None:
        """Have it done. A node that does not answer, or fails, is left out from here on."""

        def done(node: FleetNode) -> None:
            try:
                work(node)
            except PASSING as error:
                self._missing[node.name] = MissingNode(name=node.name, reason=str(error), live_bytes=node.live_bytes)
            except SparkSourceError as error:
                self._failed[node.name] = error
            except UllageError as error:
                self._failed[node.name] = SparkSourceError(f"node {node.name}: {error}")

        side_by_side(done, [self._nodes[name] for name in names if name in self._nodes], READ_AT_ONCE)
        for name in (*self._missing, *self._failed):
            self._nodes.pop(name, None)

    def _commit(self, name: str, state: State, files: Sequence[HistoryFile]) -> None:
        if files:
            self._tables[name].commit(state, files)
            self._added[name] += sum(file.rows for file in files)

    def _feed_events(self) -> None:
        """Round by round, each a commit, until all is read that was there at first."""
        table = self._tables["events"]
        places, ends = self._places(table.state)
        while taken := self._next(places, ends):
            found: dict[str, list[HistoryFile]] = {}

            def read(node: FleetNode, taken: Mapping[str, int] = taken, found: _Files = found) -> None:
                found[node.name] = self._read_events(node, places[node.name]["sequence"], taken[node.name])

            self._on_each(read, taken)
            for name in found:
                places[name] = {**places[name], "sequence": places[name]["sequence"] + taken[name]}
            state = {**table.state, **{name: places[name] for name in found}}
            self._commit("events", state, [file for files in found.values() for file in files])
        self._hold(table.id, places)

    def _places(self, state: State) -> tuple[dict[str, NodeOffset], dict[str, int]]:
        """How far each node is read, and how far it goes now."""
        places: dict[str, NodeOffset] = {}
        ends: dict[str, int] = {}

        def look(node: FleetNode) -> None:
            about = ask(self._settings, node, ABOUT, Nothing())
            begins = NodeOffset(repository=about.repository, sequence=about.first_sequence - 1)
            place: NodeOffset = state.get(node.name, begins)
            if place["repository"] != about.repository:
                self._lose(f"node {node.name} has another repository than before: not all of the former one is read")
                place = begins
            places[node.name], ends[node.name] = place, about.last_sequence

        self._on_each(look, list(self._nodes))
        return places, ends

    def _next(self, places: Mapping[str, NodeOffset], ends: Mapping[str, int]) -> dict[str, int]:
        """How many events of which nodes are read next."""
        waiting = {
            name: min(PART_EVENTS, ends[name] - place["sequence"])
            for name, place in places.items()
            if name in self._nodes
        }
        return {name: count for name, count in shares(waiting, self._settings.events_max).items() if count > 0}

    def _read_events(self, node: FleetNode, after: int, count: int) -> list[HistoryFile]:
        through = after + count
        wanted = TableTicket(name="provenance", after=after, through=through)
        with self._files("events") as files:
            there = 0
            for batch in table_rows(self._settings, node, schema_of(self._settings), wanted):
                there += batch.num_rows
                files.write(batch)
            if there < count:
                self._lose(
                    f"node {node.name}: {count - there} of the events after {after} through {through} were gone before "
                    "they were read (spec.provenance says how long they are kept)"
                )
            return files.close()

    def _lose(self, what: str) -> None:
        if self._settings.fails_on_data_loss:
            raise EventsLost(f"{what}; option failOnDataLoss=false goes on without them")
        self._lost.append(what)

    def _hold(self, holder: str, places: Mapping[str, NodeOffset]) -> None:
        """Nodes keep what follows until the next run has read it, as long as the option `hold` says."""

        def hold(node: FleetNode) -> None:
            lasts_millis = self._settings.hold_millis
            wanted = EventHoldRequest(
                holder=f"history-{holder}", after=places[node.name]["sequence"], lasts_millis=lasts_millis
            )
            ask(self._settings, node, HOLD_EVENTS, wanted)

        if self._settings.hold_millis:
            self._on_each(hold, places)

    def _look_at_space(self) -> None:
        """One look at each node, and its runs that have ended since the last one."""
        found: dict[str, tuple[pa.RecordBatch, pa.RecordBatch]] = {}

        def look(node: FleetNode) -> None:
            flight = flight_of(self._settings, node)
            taken = ask(self._settings, node, SNAPSHOT, SnapshotRequest())

            def read(name: str, columns: list[str]) -> pa.RecordBatchReader:
                return flight.table(TableTicket(name=name, snapshot=taken.id, columns=columns))

            try:
                space = figures(node.name, taken.millis, read)
            finally:
                with suppress(UllageError):  # a node that is not there drops it by itself
                    flight.act(RELEASE, SnapshotRelease(id=taken.id), timeout_seconds=ANSWER_SECONDS)
            found[node.name] = space, self._runs_of(node)

        self._on_each(look, list(self._nodes))
        state = dict(self._tables["runs"].state)
        with self._files("space") as space, self._files("runs") as runs:
            for name, (parts, ended) in sorted(found.items()):
                space.write(parts)
                new, state[name] = _not_in(ended, state.get(name, {"millis": 0, "runs": []}))
                runs.write(new)
            # Each table is a commit of its own. A run that is killed in between looks again.
            self._commit("space", {}, space.close())
            self._commit("runs", state, runs.close())

    def _runs_of(self, node: FleetNode) -> pa.RecordBatch:
        """Those that it remembers and that have ended."""
        settings = structs.replace(self._settings, table="runs")
        batches = list(table_rows(settings, node, schema_of(settings), TableTicket(name="runs")))
        rows = pa.Table.from_batches(batches, _rows("runs"))
        rows = rows.filter(pc.is_valid(rows["ended_time"]))
        return rows.combine_chunks().to_batches()[0] if rows.num_rows else pa.RecordBatch.from_pylist([], _rows("runs"))

    def _files(self, name: str) -> AbstractContextManager[DayFiles]:
        return or_nothing(DayFiles(self._tables[name], SCHEMAS[name], TIMES[name]))

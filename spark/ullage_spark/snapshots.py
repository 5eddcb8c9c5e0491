"""One moment of the whole fleet, for several tables that must agree: taken and held by the driver.

A heartbeat keeps it while the driver lives; if the driver dies, each node drops its part when its time is over. Nodes
are asked side by side: each part is a moment of its node, all within the time that the asking takes.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.types import StructType

from ullage.errors import UllageError
from ullage.wire.predicates import Predicate
from ullage.wire.tickets import RELEASE, RENEW, SNAPSHOT, SnapshotRelease, SnapshotRenewal, SnapshotRequest
from ullage_spark.addresses import FleetNode
from ullage_spark.errors import SparkSourceError
from ullage_spark.fleet import ANSWER_SECONDS, MissingNode, ask, called, flight_of, on_each, side_by_side
from ullage_spark.fleetrows import FleetRows
from ullage_spark.lineage_events import ToldRun
from ullage_spark.offsets import Heartbeat
from ullage_spark.opener import FOUND_BY, GROUP_BYTES, SEAL, Use, use_of
from ullage_spark.opening import opening_source
from ullage_spark.pushdown import pushes_filters
from ullage_spark.settings import NodeSnapshot, ReadOptions, as_options
from ullage_spark.tables import COMPLETENESS

TTL_SECONDS: Final = 300.0
"""How long nodes keep a snapshot of a driver that has died."""

TTL_SECONDS_MIN, TTL_SECONDS_MAX = 1.0, 3_600.0


class FleetSnapshot:
    """A snapshot that is held. `id` is the option `snapshot` of any read; `missing`: the nodes that it goes without;
    `failures`: refused heartbeats.
    """

    def __init__(
        self,
        spark: SparkSession,
        options: dict[str, str],
        parts: Mapping[FleetNode, NodeSnapshot],
        missing: Sequence[MissingNode],
        told: ToldRun,
    ) -> None:
        """Use `snapshot`."""
        self.id = msgspec.json.encode({node.name: part for node, part in parts.items()}).decode()
        self.nodes = tuple(parts)
        self.missing = tuple(missing)
        self.failures: list[Exception] = []
        self.told = told
        self._spark = spark
        self._options = options

    def table(self, name: str, **options: Any) -> DataFrame:
        """A table at this moment. Options as anywhere: columns, where, parts, payload."""
        return self._reader(options | {"table": name}).load()

    def completeness(self) -> DataFrame:
        """The table `completeness` now: which nodes of the fleet are read at this moment, and what is missing of the
        others.
        """
        return self.table(COMPLETENESS)

    def rows(self, table: str, columns: Sequence[str], predicate: Predicate) -> list[pa.RecordBatch]:
        """Rows of a table at this moment in the driver itself, without a job of Spark's; see `FleetRows`."""
        settings = ReadOptions.of({**self._options, "snapshot": self.id})
        return FleetRows(settings, self.nodes).rows(table, columns, predicate)

    def with_content(
        self,
        use: Use,
        schema: StructType | str,
        *,
        columns: Sequence[str] = ("uuid", "queue"),
        skips_missing: bool = False,
        group_bytes: int = GROUP_BYTES,
        as_files: bool = False,
        **options: Any,
    ) -> DataFrame:
        """`with_content` of FlowFiles as they are read: `use(rows, contents)` gets these columns, the node and where
        the content lies. One task does both, so that rows do not pass the JVM: for small contents twice as fast.
        Options as of `table`: where, parts.
        """
        chosen = dict.fromkeys((*columns, *FOUND_BY, SEAL))
        how = use_of(use, skips_missing=skips_missing, group_bytes=group_bytes, as_files=as_files)
        source = opening_source(how)
        self._spark.dataSource.register(source)
        return self._reader(options | {"columns": list(chosen)}, source.name()).schema(schema).load()

    def _reader(self, options: dict[str, Any], source: str = "ullage") -> DataFrameReader:
        given = {name.lower(): value for name, value in as_options(options).items()}
        if taken := sorted(given.keys() & {"snapshot", "endpoint", "nodes"}):
            raise SparkSourceError(f"option {taken[0]}: it is the snapshot that says what is read; take another one")
        self.told.reads(given.get("table", "flowfiles"))
        return self._spark.read.format(source).options(**self._options).options(**given).option("snapshot", self.id)


@contextmanager
def snapshot(
    spark: SparkSession, *, holds: bool = True, ttl_seconds: float = TTL_SECONDS, **options: Any
) -> Iterator[FleetSnapshot]:
    """Take a snapshot of the fleet that the options name, hold it, and release it in any case.

    With `holds` content stays readable too, up to spec.leases.maxDuration. SparkSourceError at the end if a node has
    dropped its part meanwhile: what was read afterwards failed, and was not wrong. NodesMissing if nodes do not answer,
    unless the option `missingNodes` says to go on without them: they are its `missing` then.
    """
    if not TTL_SECONDS_MIN <= ttl_seconds <= TTL_SECONDS_MAX:
        raise SparkSourceError(
            f"ttl_seconds is from {TTL_SECONDS_MIN:g} to {TTL_SECONDS_MAX:g}, not {ttl_seconds!r}: heartbeats renew it"
        )
    given = as_options(options)
    if "pushdown" not in {name.lower() for name in given} and pushes_filters(spark):
        given["pushdown"] = "true"
    settings = ReadOptions.of(given)
    told = ToldRun.of("ullage.read", settings)
    with told.told(), _taken(spark, given, told, holds=holds, ttl_seconds=ttl_seconds) as held:
        yield held


@contextmanager
def _taken(
    spark: SparkSession, given: dict[str, str], told: ToldRun, *, holds: bool, ttl_seconds: float
) -> Iterator[FleetSnapshot]:
    settings = ReadOptions.of(given)
    taken: dict[FleetNode, NodeSnapshot] = {}
    ttl_millis = int(ttl_seconds * 1000)
    roll = called(settings)

    def take(node: FleetNode) -> None:
        answer = ask(settings, node, SNAPSHOT, SnapshotRequest(ttl_millis=ttl_millis, holds=holds))
        taken[node] = NodeSnapshot(id=answer.id, flight=node.flight, live_bytes=answer.live_bytes)

    try:
        missing = (*roll.missing, *on_each(settings, roll.nodes, take))
        parts = dict(sorted(taken.items(), key=lambda item: item[0].name))
        held = FleetSnapshot(spark, given, parts, missing, told)

        def renew_one(node: FleetNode) -> None:
            try:
                renewal = SnapshotRenewal(id=parts[node].id, ttl_millis=ttl_millis)
                flight_of(settings, node).act(RENEW, renewal, timeout_seconds=ttl_seconds / 4)
            except UllageError as error:
                # What may pass does not count: the next one may arrive in time; if not, the node says that it is over.
                if error.retry_after_seconds is None:
                    held.failures.append(error)

        def renew() -> None:
            side_by_side(renew_one, parts)

        heart = Heartbeat(renew, ttl_seconds / 4)
        try:
            yield held
        finally:
            heart.stop()
        if held.failures:
            raise SparkSourceError(f"the snapshot did not last: {held.failures[0]}") from held.failures[0]
    finally:

        def release(node: FleetNode) -> None:
            with suppress(UllageError):  # a node that is not there drops it by itself
                wanted = SnapshotRelease(id=taken[node].id)
                flight_of(settings, node).act(RELEASE, wanted, timeout_seconds=ANSWER_SECONDS)

        side_by_side(release, taken)

"""One moment of the whole fleet, for several tables that must agree: taken and held by the driver.

A heartbeat keeps it while the driver lives; if the driver dies, each node drops its part when its time is over. Parts
are taken one node after the other: each is a moment of its node, all within the time that the asking takes.
"""

import threading
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.types import StructType

from ullage_agent.client import ClientError, NotReachable, Refused
from ullage_spark.errors import SparkSourceError
from ullage_spark.fleet import RETRIES, Node, discover, flight_of
from ullage_spark.opener import FOUND_BY, Use, pickled
from ullage_spark.settings import GROUP_BYTES, Settings, as_options

TTL_SECONDS: Final = 300.0
"""How long nodes keep a snapshot of a driver that has died."""


class Snapshot:
    """A snapshot that is held. `id` is the option `snapshot` of any read; `failures`: refused heartbeats."""

    def __init__(self, spark: SparkSession, options: dict[str, str], parts: dict[Node, str]) -> None:
        """Use `snapshot`."""
        self.id = msgspec.json.encode({node.name: id for node, id in parts.items()}).decode()
        self.nodes = tuple(parts)
        self.failures: list[Exception] = []
        self._spark = spark
        self._options = options

    def table(self, name: str, **options: Any) -> DataFrame:
        """A table at this moment. Options as anywhere: columns, where, parts, payload."""
        return self._reader(options | {"table": name}).load()

    def with_content(
        self,
        use: Use,
        schema: StructType | str,
        *,
        columns: Sequence[str] = ("uuid", "queue"),
        skips_missing: bool = False,
        group_bytes: int = GROUP_BYTES,
        **options: Any,
    ) -> DataFrame:
        """`with_content` of FlowFiles as they are read: `use(rows, contents)` gets these columns, the node and where
        the content lies. One task does both, so that rows do not pass the JVM: for small contents twice as fast.
        Options as of `table`: where, parts.
        """
        chosen = dict.fromkeys((*columns, *FOUND_BY))
        more = {
            "columns": list(chosen),
            "use": b64encode(pickled(use)).decode(),
            "skipsMissing": skips_missing,
            "groupBytes": group_bytes,
        }
        return self._reader(options | more).schema(schema).load()

    def _reader(self, options: dict[str, Any]) -> DataFrameReader:
        reader = self._spark.read.format("ullage")
        return reader.options(**self._options, **as_options(options), snapshot=self.id)


@contextmanager
def snapshot(
    spark: SparkSession, *, holds: bool = True, ttl_seconds: float = TTL_SECONDS, **options: Any
) -> Iterator[Snapshot]:
    """Take a snapshot of the fleet that the options name, hold it, and release it in any case.

    With `holds` content stays readable too, up to spec.leases.maxDuration. SparkSourceError at the end if a node has
    dropped its part meanwhile: what was read afterwards failed, and was not wrong.
    """
    given = as_options(options)
    settings = Settings.of(given)
    parts: dict[Node, str] = {}
    stop = threading.Event()
    ttl_millis = int(ttl_seconds * 1000)
    try:
        for node in discover(settings):
            taken = RETRIES.run(
                lambda node=node: flight_of(settings, node).snapshot(ttl_millis, holds=holds)  # type: ignore[misc]
            )
            parts[node] = taken.id
        held = Snapshot(spark, given, parts)
        beat = threading.Thread(
            target=_beat, args=(settings, parts, held, ttl_seconds, stop), name="ullage-heartbeat", daemon=True
        )
        beat.start()
        try:
            yield held
        finally:
            stop.set()
            beat.join()
        if held.failures:
            raise SparkSourceError(f"the snapshot did not last: {held.failures[0]}") from held.failures[0]
    finally:
        for node, id in parts.items():
            _release(settings, node, id)


def _beat(
    settings: Settings, parts: dict[Node, str], held: Snapshot, ttl_seconds: float, stop: threading.Event
) -> None:
    while not stop.wait(ttl_seconds / 4):
        for node, id in parts.items():
            try:
                flight_of(settings, node).renew(id, int(ttl_seconds * 1000))
            except NotReachable:
                continue  # the next one may arrive in time; if not, the node says that it is over
            except ClientError as error:
                if not (isinstance(error, Refused) and error.is_transient):
                    held.failures.append(error)


def _release(settings: Settings, node: Node, id: str) -> None:
    """A node that is not there drops it by itself."""
    try:
        flight_of(settings, node).release(id)
    except ClientError:
        return

"""A history in figures: events by time, kind and place, small enough to keep when the events are not kept."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ullage_spark.dayfiles import DAY, DayFile, or_nothing, rows_of
from ullage_spark.histories import HistoryFile, HistoryTable

KEYS: Final = ["node", "begins_time", "type", "component_type", "component", "queue"]

ROLLUP: Final = pa.schema(
    [
        *((name, pa.timestamp("us", "UTC") if name == "begins_time" else pa.string()) for name in KEYS),
        *((name, pa.int64()) for name in ("events", "bytes")),
        ("lineage_seconds", pa.float64()),
        *((name, pa.int64()) for name in ("first_sequence", "last_sequence")),
    ]
)

SUMS: Final = [("events", "sum"), ("bytes", "sum"), ("lineage", "sum"), ("lineages", "sum")]
BOUNDS: Final = [("first_sequence", "min"), ("last_sequence", "max")]
PARTS_MAX: Final = 64
"""Batches whose figures are kept apart, before they are added up."""


def rolled_up(tables: Mapping[str, HistoryTable], seconds: int = 3_600) -> list[str]:
    """Bring the table `rollup` of a history up to date: for each stretch of time, node, type, component and queue the
    `events`, their `bytes`, and the mean time since the data came in (`lineage_seconds`). The days that have changed.

    A day that has events that it had not, or stretches of another length, is counted anew and replaced as a whole, in
    one commit: so nothing is counted twice, however often this runs. `first_sequence` and `last_sequence` say what a
    figure is of.
    """
    events, figures = tables["events"], tables["rollup"]
    counted: Counter[str] = Counter()
    for file in events.files():
        counted[file.day] += file.rows
    done: dict[str, Any] = figures.state if figures.state.get("seconds") == seconds else {}
    changed = [day for day, rows in sorted(counted.items()) if done.get("days", {}).get(day) != rows]
    for day in changed:
        before = [file for file in figures.files() if file.day == day]
        days = {**done.get("days", {}), day: counted[day]}
        done = {"seconds": seconds, "days": days}
        figures.commit(done, [_counted(tables, day, seconds)], before)
    return changed


def _counted(tables: Mapping[str, HistoryTable], day: str, seconds: int) -> HistoryFile:
    events = tables["events"]
    columns = [*(key for key in KEYS if key != "begins_time"), "time", "lineage_time", "size", "sequence"]
    batches = rows_of(events, [file for file in events.files() if file.day == day], columns)
    found = _added_up(_figures(batch, seconds * 1_000_000) for batch in batches)
    mean = pc.if_else(pc.greater(found["lineages"], 0), pc.divide(found["lineage"], found["lineages"]), None)
    found = found.append_column("lineage_seconds", pc.divide(mean, 1e6)).select(ROLLUP.names).sort_by(_ascending(KEYS))
    schema = pa.schema([pa.field(DAY, pa.date32()), *ROLLUP])
    with or_nothing(DayFile(tables["rollup"], schema, day)) as file:
        for batch in found.to_batches():
            dates = pa.array([day] * batch.num_rows).cast(pa.date32())
            file.write(pa.RecordBatch.from_arrays([dates, *batch.columns], schema=schema))
        return file.close()


def _ascending(keys: Sequence[str]) -> list[tuple[str, str]]:
    return [(key, "ascending") for key in keys]


def _figures(batch: pa.RecordBatch, span_micros: int) -> pa.Table:
    """What each row adds."""
    micros = batch.column("time").cast(pa.int64())
    begins = pc.multiply(pc.divide(micros, span_micros), span_micros).cast(pa.timestamp("us", "UTC"))
    lineage = pc.subtract(micros, batch.column("lineage_time").cast(pa.int64()))
    columns = {name: batch.column(name) for name in KEYS if name != "begins_time"} | {"begins_time": begins}
    figures = {
        "events": pa.array([1] * batch.num_rows, pa.int64()),
        "bytes": batch.column("size"),
        "lineage": pc.fill_null(lineage, 0).cast(pa.float64()),
        "lineages": pc.is_valid(lineage).cast(pa.int64()),
        "first_sequence": batch.column("sequence"),
        "last_sequence": batch.column("sequence"),
    }
    return pa.table(columns | figures)


def _added_up(parts: Iterator[pa.Table]) -> pa.Table:
    """The sums of all, in memory that grows with their number and not with that of the rows."""
    kept: list[pa.Table] = []
    for part in parts:
        kept.append(_sums([part]))
        if len(kept) >= PARTS_MAX:
            kept = [_sums(kept)]
    return _sums(kept)


def _sums(parts: Sequence[pa.Table]) -> pa.Table:
    found = pa.concat_tables(parts).group_by(KEYS).aggregate([*SUMS, *BOUNDS])
    return found.rename_columns([*KEYS, *(name for name, _ in (*SUMS, *BOUNDS))])

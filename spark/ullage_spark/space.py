"""Figures of one node's space: what is dead on its disks, and what lives beside it that keeps it there.

The same as `report.fragmentation` says of a fleet, worked out without Spark for one node at a time, in memory that has
a bound: the FlowFiles of a node are gone through once for every million of them.
"""

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

PASS_ROWS: Final = 1_000_000
"""FlowFiles whose contents are told apart at a time: some 100 MiB."""

FIGURES: Final = pa.schema(
    [
        pa.field("node", pa.string()),
        pa.field("time", pa.timestamp("us", "UTC")),
        *(pa.field(name, pa.string()) for name in ("container", "queue", "age", "size")),
        *(pa.field(name, pa.int64()) for name in ("flowfiles", "live_bytes", "pinned_bytes", "files")),
    ]
)

DAY_MILLIS: Final = 86_400_000
AGES: Final = (("under an hour", 3_600_000), ("under a day", DAY_MILLIS), ("under a week", 7 * DAY_MILLIS))
OLDEST: Final = "a week or more"
SIZES: Final = (("under 64 KiB", 64 << 10), ("under 1 MiB", 1 << 20), ("under 64 MiB", 64 << 20))
LARGEST: Final = "64 MiB or more"
HANDLES: Final = "(handles)"
NOBODY: Final = "(nothing lives in it)"

KEYS: Final = ["file", "queue", "age", "size"]

Tables = Callable[[str, list[str]], pa.RecordBatchReader]
"""Columns of a table of a node, at one snapshot."""


def figures(node: str, now_millis: int, tables: Tables, pass_rows: int = PASS_ROWS) -> pa.RecordBatch:
    """Of a node at a snapshot, as `FIGURES`: of each container, queue, age and size the `flowfiles`, their
    `live_bytes`, the `pinned_bytes` that are dead beside them, and the `files` that they keep.
    """
    columns = ["resource_claim", "container", "length", "claimants", "punched_bytes", "file", "archived_millis"]
    received = tables("resource_claims", columns).read_all()
    # A copy: Arrow joins what lies at any address, as in a message, with a warning on stderr for each batch.
    disk = received.take(pa.array(range(received.num_rows), pa.int64()))
    files = disk.filter((pc.field("resource_claim") == pc.field("file")) & (pc.field("archived_millis") == 0))
    passes = 1 + (pc.sum(disk["claimants"]).as_py() or 0) // pass_rows
    placed = pa.concat_tables([_placed(now_millis, tables, disk, at, passes) for at in range(passes)])
    shares = placed.group_by(KEYS).aggregate([("share", "sum"), ("flowfiles", "sum")])
    lives = shares.group_by("file").aggregate([("share_sum", "sum")])
    found = (
        files.select(["file", "container", "length", "punched_bytes"])
        .join(lives, "file", join_type="left outer")
        .join(shares, "file", join_type="left outer")
    )
    return _summed(node, now_millis, found)


def _placed(now_millis: int, tables: Tables, disk: pa.Table, at: int, passes: int) -> pa.Table:
    """What lives in each file, of the resource claims that are `at` modulo `passes`: `share`, of a content's bytes as
    many as its FlowFiles have each.
    """
    columns = ["queue", "size", "entry_millis", "resource_claim", "claim_offset", "claim_length"]
    schema = pa.schema([*((name, pa.int64()) for name in columns[3:]), *((name, pa.string()) for name in KEYS[1:])])
    kept = [_chosen(batch, now_millis, at, passes, schema) for batch in tables("flowfiles", columns)]
    owned = pa.Table.from_batches(kept, schema)
    claim = ["resource_claim", "claim_offset"]
    claimants = owned.group_by(claim).aggregate([([], "count_all")])
    owned = owned.join(claimants, claim).join(disk.select(["resource_claim", "file"]), "resource_claim")
    share = pc.divide(owned["claim_length"].cast(pa.float64()), owned["count_all"])
    counted = owned.append_column("share", share).group_by(KEYS).aggregate([("share", "sum"), ([], "count_all")])
    return counted.rename_columns([*KEYS, "share", "flowfiles"])


def _chosen(batch: pa.RecordBatch, now_millis: int, at: int, passes: int, schema: pa.Schema) -> pa.RecordBatch:
    index = batch.column("resource_claim")
    rest = pc.subtract(index, pc.multiply(pc.divide(index, passes), passes))
    rows = batch.filter(pc.fill_null(pc.equal(rest, at), fill_value=False))
    age = pc.subtract(pa.scalar(now_millis, pa.int64()), rows.column("entry_millis"))
    named = [
        *(rows.column(name) for name in schema.names[:3]),
        pc.fill_null(rows.column("queue"), HANDLES),
        _bucket(age, AGES, OLDEST),
        _bucket(rows.column("size"), SIZES, LARGEST),
    ]
    return pa.RecordBatch.from_arrays(named, schema=schema)


def _bucket(values: pa.Array, bounds: tuple[tuple[str, int], ...], last: str) -> pa.Array:
    conditions = pa.StructArray.from_arrays([pc.less(values, most) for _, most in bounds], [name for name, _ in bounds])
    return pc.case_when(conditions, *(pa.scalar(name) for name, _ in bounds), pa.scalar(last))


def _summed(node: str, millis: int, found: pa.Table) -> pa.RecordBatch:
    """Of each file what lives in it and what is dead, shared out, as totals of the node."""
    live = pc.fill_null(found["share_sum_sum"], 0.0)
    dead = pc.max_element_wise(
        pc.round(pc.subtract(pc.subtract(found["length"], found["punched_bytes"]).cast(pa.float64()), live)), 0.0
    )
    part = pc.fill_null(pc.divide(found["share_sum"], found["share_sum_sum"]), 1.0)
    table = pa.table(
        {
            "container": found["container"],
            **{name: pc.fill_null(found[name], NOBODY if name == "queue" else "") for name in KEYS[1:]},
            "flowfiles": pc.fill_null(found["flowfiles_sum"], 0),
            "share": pc.fill_null(found["share_sum"], 0.0),
            "pinned": pc.multiply(dead, part),
            "file": found["file"],
            "counts": pc.or_(pc.is_valid(found["share_sum"]), pc.greater(dead, 0)),
        }
    ).filter(pc.field("counts"))
    keys = ["container", *KEYS[1:]]
    totals = table.group_by(keys).aggregate(
        [("flowfiles", "sum"), ("share", "sum"), ("pinned", "sum"), ("file", "count_distinct")]
    )
    totals = totals.sort_by([("pinned_sum", "descending"), *((key, "ascending") for key in keys)])
    count = totals.num_rows
    columns = [
        pa.array([node] * count, pa.string()),
        pa.array([millis * 1000] * count, pa.int64()).cast(pa.timestamp("us", "UTC")),
        *(_whole(totals[key]) for key in keys),
        _whole(totals["flowfiles_sum"]),
        *(_whole(pc.round(totals[name])).cast(pa.int64()) for name in ("share_sum", "pinned_sum")),
        _whole(totals["file_count_distinct"]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=FIGURES)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found if isinstance(found, pa.Array) else pa.concat_arrays(found.chunks)

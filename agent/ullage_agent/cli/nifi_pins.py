"""Who pins what in a NiFi, as it is told: tables for people, JSON and Parquet for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

import msgspec

from ullage_agent.cli.output import many, moment, print_rows, size, tell

if TYPE_CHECKING:
    from ullage.nifi.flowfiles import NiFiFlowFile
    from ullage.nifi.pins import FileLeaving, FreeingSet, PinnedFile
    from ullage.nifi.surveying import NiFiPins

PIECE_FLOWFILES = 20_000
"""That go into a Parquet file at once."""

FLOWFILE_COLUMNS = ("uuid", "filename", "queue", ">waiting", ">at byte", ">bytes")
QUEUE_COLUMNS = ("queue", ">FlowFiles", ">in files", ">comes back", ">files", ">tails")


def headlines(found: NiFiPins) -> list[str]:
    """What was looked at, and when."""
    pins = found.plan.pins
    bytes_, live = sum(pin.size for pin in pins), sum(pin.live for pin in pins)
    use = "in use" if found.is_in_use else "at rest"
    flowfiles, files = many(len(found.plan.flowfiles), "FlowFile"), many(len(pins), "file")
    return [
        f"{flowfiles} pin {files} at transaction {found.transaction}, {moment(found.millis)}, {use}",
        f"{size(bytes_)} in these files for {size(live)} of live content",
    ]


def queue_rows(found: NiFiPins) -> list[tuple[str, ...]]:
    """What comes back if one queue is emptied."""
    return [
        (
            *(queue.name, f"{queue.flowfiles:,}", f"{queue.files:,}"),
            *(size(queue.whole), f"{queue.whole_files:,}", size(queue.tails)),
        )
        for queue in found.plan.queues(found.names)
    ]


def file_title(pin: PinnedFile) -> str:
    """One file: how much is dead, and how many FlowFiles hold it."""
    unsettled = ", written to in the last 10 minutes" if pin.is_unsettled else ""
    held = f"held by {many(pin.flowfiles, 'FlowFile')}{unsettled}"
    return f"{pin.file}: {size(pin.size)}, of which {size(pin.dead)} are dead, {held}"


def leaving_title(leaving: FileLeaving) -> str:
    """One file, and what has to leave for how much of it."""
    what = "the whole file" if leaving.is_whole else "its tail, if NiFi cuts it off"
    return f"{leaving.pin.file}: {size(leaving.freed)}, {what}, once {_left(leaving.flowfiles)}"


def flowfile_rows(found: NiFiPins, flowfiles: Iterable[NiFiFlowFile], count: int, told: int) -> list[tuple[str, ...]]:
    """The first `told` of `count`, and how many more there are."""
    rows: list[tuple[str, ...]] = []
    for each in islice(flowfiles, told):
        named = each.attributes or {}
        waiting = age(found.millis - each.queued_millis)
        queue = found.names.get(each.queue, each.queue)
        rows.append(
            (named.get("uuid", "?"), named.get("filename", ""), queue, waiting, f"{each.start:,}", size(each.size))
        )
    if told and count > told:
        rows.append((f"and {count - told:,} more", "", "", "", "", ""))
    return rows


def freeing_lines(freeing: FreeingSet, *, tails: bool) -> list[str]:
    """How many FlowFiles free how much, and whether fewer could."""
    kinds = "files and tails" if tails else "whole files"
    if not freeing.is_enough:
        settled = "files that were not written to in the last 10 minutes"
        pinned = f"in {settled}, {many(freeing.flowfiles, 'FlowFile')} pin {size(freeing.freed)}, and that is all"
        return [f"{size(freeing.goal)} can't be freed in {kinds}: {pinned}."]
    goal, freed, files = size(freeing.goal), size(freeing.freed), many(len(freeing.files), "file")
    lines = [f"To free {goal} in {kinds}: {freed} in {files} come back once {_left(freeing.flowfiles)}."]
    if freeing.is_smallest:
        return [*lines, "No set of fewer FlowFiles does it."]
    return [*lines, f"That is close to the fewest: no set of fewer than {freeing.at_least:,} does it."]


def remarks(found: NiFiPins, freeing: FreeingSet | None) -> list[str]:
    """What has to be known before anybody acts on it."""
    lines = []
    if found.is_archiving:
        lines.append("NiFi moves what is let go to its archive first: the room comes back as the archive's limits say.")
    unsettled = [pin for pin in found.plan.pins if pin.is_unsettled]
    if freeing is not None and unsettled:
        held = size(sum(pin.size for pin in unsettled))
        lines.append(f"Left out: {many(len(unsettled), 'file')} with {held}, written to in the last 10 minutes.")
    return lines


def print_pins(found: NiFiPins, freeing: FreeingSet | None, *, files: int, flowfiles: int, tails: bool) -> None:
    """Tables for people: the worst files, or those that have to leave if that was asked for."""
    for line in headlines(found):
        tell(line)
    tell("")
    tell("What comes back if one queue is emptied:")
    print_rows(QUEUE_COLUMNS, queue_rows(found))
    for pin in found.plan.worst(files) if freeing is None else ():
        tell("")
        tell(file_title(pin))
        print_rows(FLOWFILE_COLUMNS, flowfile_rows(found, found.plan.holders(pin), pin.flowfiles, flowfiles))
    if freeing is not None:
        tell("")
        for line in freeing_lines(freeing, tails=tails):
            tell(line)
        for leaving in freeing.files[:files]:
            tell("")
            tell(leaving_title(leaving))
            rows = flowfile_rows(found, found.plan.leaving(leaving), leaving.flowfiles, flowfiles)
            print_rows(FLOWFILE_COLUMNS, rows)
        if len(freeing.files) > files:
            tell(f"and {many(len(freeing.files) - files, 'file')} more: --json, or --files, tells them all")
    tell("")
    for line in remarks(found, freeing):
        tell(line)


def json_pieces(
    found: NiFiPins, freeing: FreeingSet | None, *, files: int, flowfiles: int, tails: bool
) -> Iterator[str]:
    """One JSON document, in ASCII, a file after the other: the set that frees may be all FlowFiles that there are."""
    head = {
        "millis": found.millis,
        "transaction": found.transaction,
        "is_complete": found.is_complete,
        "is_in_use": found.is_in_use,
        "is_archiving": found.is_archiving,
        "flowfiles": len(found.plan.flowfiles),
        "pinned_files": len(found.plan.pins),
        "queues": msgspec.to_builtins(found.plan.queues(found.names)),
        "damages": msgspec.to_builtins(found.damages),
    }
    yield f'{json.dumps(head)[:-1]}, "files": ['
    yield from _joined(
        {
            **_facts(pin),
            "held_by": [_named(found, each) for each in islice(found.plan.holders(pin), flowfiles)],
        }
        for pin in found.plan.worst(files)
    )
    yield "]"
    if freeing is not None:
        facts = {
            "goal": freeing.goal,
            "freed": freeing.freed,
            "flowfiles": freeing.flowfiles,
            "at_least": freeing.at_least,
            "is_enough": freeing.is_enough,
            "is_smallest": freeing.is_smallest,
            "counts_tails": tails,
        }
        yield f', "freeing": {json.dumps(facts)[:-1]}, "files": ['
        yield from _joined(
            {
                "file": leaving.pin.file,
                "is_whole": leaving.is_whole,
                "freed": leaving.freed,
                "flowfiles": [_named(found, each) for each in found.plan.leaving(leaving)],
            }
            for leaving in freeing.files
        )
        yield "]}"
    yield "}\n"


def write_parquet(found: NiFiPins, freeing: FreeingSet | None, file: IO[bytes]) -> None:
    """A row for each FlowFile with a file on disk; `leaves`: it is one of those that have to leave."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            *((name, pa.string()) for name in ("uuid", "filename", "queue", "queue_identifier")),
            ("queued", pa.timestamp("ms", "UTC")),
            ("waiting_millis", pa.int64()),
            ("file", pa.string()),
            *((name, pa.int64()) for name in ("position", "size", "file_size", "file_live", "file_dead")),
            ("file_flowfiles", pa.int64()),
            ("file_is_unsettled", pa.bool_()),
            ("leaves", pa.bool_()),
        ]
    )
    leaving = {} if freeing is None else {each.pin.begin: each.flowfiles for each in freeing.files}
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        rows = _parquet_rows(found, leaving)
        while piece := list(islice(rows, PIECE_FLOWFILES)):
            columns = zip(*piece, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def age(millis: int) -> str:
    """How long a FlowFile has waited, in its two largest units."""
    minutes = max(0, millis) // 60_000
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // (24 * 60):,} d {minutes // 60 % 24} h"


def _left(flowfiles: int) -> str:
    return f"{many(flowfiles, 'FlowFile')} {'has' if flowfiles == 1 else 'have'} left"


def _joined(documents: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for number, document in enumerate(documents):
        yield (", " if number else "") + json.dumps(document)


def _facts(pin: PinnedFile) -> dict[str, Any]:
    return {
        "file": pin.file,
        "size": pin.size,
        "live": pin.live,
        "dead_middles": pin.dead_middles,
        "dead_tails": pin.dead_tails,
        "is_unsettled": pin.is_unsettled,
        "flowfiles": pin.flowfiles,
        "tail": pin.tail,
        "tail_flowfiles": pin.tail_flowfiles,
    }


def _named(found: NiFiPins, flowfile: NiFiFlowFile) -> dict[str, Any]:
    named = flowfile.attributes or {}
    return {
        "uuid": named.get("uuid", ""),
        "filename": named.get("filename", ""),
        "queue": found.names.get(flowfile.queue, flowfile.queue),
        "queue_identifier": flowfile.queue,
        "queued_millis": flowfile.queued_millis,
        "position": flowfile.start,
        "size": flowfile.size,
    }


def _parquet_rows(found: NiFiPins, leaving: Mapping[int, int]) -> Iterator[tuple[object, ...]]:
    for pin in found.plan.pins:
        facts = (pin.size, pin.live, pin.dead, pin.flowfiles, pin.is_unsettled)
        stays = pin.flowfiles - leaving.get(pin.begin, 0)
        for number, each in enumerate(found.plan.holders(pin)):
            named = each.attributes or {}
            yield (
                *(named.get("uuid", ""), named.get("filename", "")),
                *(found.names.get(each.queue, each.queue), each.queue),
                *(each.queued_millis, found.millis - each.queued_millis),
                *(pin.file, each.start, each.size, *facts, number >= stays),
            )

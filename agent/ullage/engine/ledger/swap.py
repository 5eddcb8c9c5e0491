"""Swap files: FlowFiles of one queue that left memory.

A record file (wal/records.py) whose header is a `SwapHeader`. What recovery needs, the summary with its shares, stands
in the log and the snapshot, so that a start reads no swap file that stays swapped. The blocks hold the FlowFiles.

    <root>/swap/<millis>-<queue number>-<uuid>.swap
"""

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager, suppress

import msgspec

from ullage.contract import QueuePriority
from ullage.engine.batches import with_readable_attributes
from ullage.engine.files import make_directories
from ullage.engine.ledger.aside import set_aside
from ullage.engine.ledger.state import SwapContent
from ullage.engine.ledger.swappeduuids import SwappedUuids
from ullage.engine.model import (
    NO_ATTRIBUTES,
    ContentClaim,
    FlowFileRecord,
    Operation,
    QueueDefinition,
    SetAside,
    SwapFirst,
    SwapOut,
    SwapShare,
    format_uuid,
    new_uuids,
    pack_attributes,
    unpack_attributes,
)
from ullage.engine.oserrors import unreadable
from ullage.engine.wal.records import BLOCK_RECORDS, RecordHeader, RecordReader, write_records
from ullage.engine.wal.serde import Undecodable
from ullage.engine.wal.state import RecordDirectory
from ullage.errors import FormatTooNew, RepositoryDamaged

SWAP_MAGIC = b"ULLAGESF"
SUFFIX = ".swap"


class SwapHeader(RecordHeader, frozen=True, kw_only=True):
    """`summary` is the `SwapOut` that brought the file into the log, without uuids and shares: those may be many."""

    summary: SwapOut


class SwapFiles:
    """The swap directory of one repository."""

    def __init__(self, place: RecordDirectory) -> None:
        self.directory = place.path
        self._place = place
        self._files = place.files
        self.uuids = SwappedUuids()

    def write(self, summary: SwapOut, records: list[FlowFileRecord]) -> None:
        """Write a swap file and make it and its name durable: only then may a transaction name it."""
        header = self._place.header(SwapHeader, summary=msgspec.structs.replace(summary, shares=()))
        operations: list[Operation] = [*records]
        if not self._files.exists(self.directory):  # somebody took it away
            make_directories(self._files, self.directory)
        runs = (operations[at : at + BLOCK_RECORDS] for at in range(0, len(operations), BLOCK_RECORDS))
        write_records(self._files, self.path(summary.name), SWAP_MAGIC, header, runs, self._place.serde)
        # | file synced | SwapOut durable, records gone from memory | power | no name: FlowFiles lost |
        self._files.sync_directory(self.directory)

    def read(self, name: str) -> SwapContent:
        """All of a swap file, verified. RepositoryDamaged names the file and offset."""
        with self._reading(name) as reader:
            content = self._content(reader)
            if len(content.records) + len(content.set_aside) != reader.header.summary.count:
                raise RepositoryDamaged(
                    f"{reader.path} holds {len(content.records)} FlowFiles, its summary says "
                    f"{reader.header.summary.count}"
                )
            return content

    def prove(self, name: str) -> int:
        """Read all of a swap file against its checksums, and decode nothing; how many bytes. RepositoryDamaged."""
        with self._reading(name) as reader:
            reader.verify()
            return reader.length

    @contextmanager
    def _reading(self, name: str) -> Iterator[RecordReader[SwapHeader]]:
        if not is_swap_name(name):
            raise RepositoryDamaged(f"{name!r} is no name of a swap file")
        path = self.path(name)
        try:
            with closing(RecordReader(self._files, path, SWAP_MAGIC, SwapHeader, self._place.serde)) as reader:
                # A file of another repository, or a copy under another name, has checksums as good as ours.
                if reader.header.repository != self._place.repository or reader.header.summary.name != name:
                    raise RepositoryDamaged(f"{path} is swap file {reader.header.summary.name} of another place")
                yield reader
        except FormatTooNew as error:  # one file that came from elsewhere: no reason for anybody to refuse the rest
            raise RepositoryDamaged(str(error)) from error
        except OSError as error:
            raise RepositoryDamaged(f"swap file {path} {unreadable(error)}: restore it from a backup") from error

    def _content(self, reader: RecordReader[SwapHeader]) -> SwapContent:
        records: list[FlowFileRecord] = []
        aside: list[SetAside] = []
        millis = reader.header.summary.queued_max // 1_000
        for found, place in reader.blocks_each():
            if {FlowFileRecord}.issuperset(map(type, found)):  # a loop takes as long as a third of reading
                records += found  # type: ignore[arg-type]
                continue
            for operation in found:
                if isinstance(operation, FlowFileRecord):
                    records.append(operation)
                elif isinstance(operation, Undecodable):
                    aside.append(set_aside(*operation, place, millis, 0))
        readable = with_readable_attributes(records)
        for record in records if len(readable) < len(records) else ():
            if not with_readable_attributes([record]):
                data = self._place.serde.encode_operation(record)
                aside.append(set_aside(data, "its attributes do not decode", reader.header.summary.name, millis, 0))
        return SwapContent(readable, aside)

    def names(self) -> list[str]:
        """All swap files on disk; none where their directory is gone, or something else lies in its place."""
        try:
            names = self._files.list_directory(self.directory)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [name for name in names if name.endswith(SUFFIX)]

    def remove(self, names: Iterable[str]) -> None:
        """Unlink files that nothing refers to. No sync: what a crash brings back, the next start removes again."""
        for name in names:
            self.uuids.forget(name)
            with suppress(IsADirectoryError):  # somebody's: no transaction ever named it
                self._files.unlink(self.path(name))

    def discard(self, name: str) -> None:
        """Give up a file that nothing will name, whatever of it was written."""
        try:
            if self._files.exists(self.path(name)):
                self._files.unlink(self.path(name))
        except OSError:
            return  # the next start removes what no transaction names

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)


def is_swap_name(name: str) -> bool:
    """Whether a file of this name can lie in the swap directory, and nowhere else."""
    return os.path.basename(name) == name and name.endswith(SUFFIX) and "\0" not in name and len(name.encode()) <= 255


def points_into(summary: SwapOut, resources: Collection[int]) -> bool:
    """Whether FlowFiles of a swap file have content in any of these resource claims."""
    return any(share.resource in resources for share in summary.shares)


def summarize(records: list[FlowFileRecord], queue: QueueDefinition, millis: int) -> SwapOut:
    """The summary of a swap file to be: counts, and for each resource claim what these records hold of it. They are in
    the queue's order.
    """
    return SwapOut(
        name=f"{millis}-{queue.number}-{format_uuid(new_uuids(1)[0])}{SUFFIX}",
        queue=queue.number,
        count=len(records),
        size_bytes=sum(record.size for record in records),
        entry_millis_min=min(record.entry_millis for record in records),
        queued_min=min(record.queued for record in records),
        queued_max=max(record.queued for record in records),
        shares=shares_of(records),
        first=_first_of(records[0], queue),
    )


def _first_of(record: FlowFileRecord, queue: QueueDefinition) -> SwapFirst:
    packed = NO_ATTRIBUTES
    if queue.priority == QueuePriority.PRIORITY_ATTRIBUTE:
        value = unpack_attributes(record.attributes).get(queue.priority_attribute)
        packed = NO_ATTRIBUTES if value is None else pack_attributes({queue.priority_attribute: value})
    return SwapFirst(record.size, record.lineage_millis, record.queued, packed)


def shares_of(records: list[FlowFileRecord]) -> tuple[SwapShare, ...]:
    """What these records hold of each resource claim."""
    claimants: dict[int, int] = {}
    claims: dict[int, dict[int, ContentClaim]] = {}
    for record in records:
        if record.claim is not None:
            resource = record.claim.resource
            claimants[resource] = claimants.get(resource, 0) + 1
            claims.setdefault(resource, {})[record.claim.offset] = record.claim
    return tuple(
        SwapShare(
            resource,
            claimants[resource],
            sum(claim.length for claim in held.values()),
            max(claim.end for claim in held.values()),
        )
        for resource, held in claims.items()
    )

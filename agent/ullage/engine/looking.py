"""Looking at FlowFiles where they stand, in memory and in swap files, without taking them."""

from contextlib import suppress
from functools import partial

from ullage.engine.content.reader import ContentReader
from ullage.engine.flowfile.queues import FlowFileQueue
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.placement import pin_bytes
from ullage.engine.ledger.swap import SwapFiles
from ullage.engine.model import HANDLE_QUEUE, FlowFileRecord, parse_uuid
from ullage.errors import ClaimGone, FlowFileNotFound, RepositoryDamaged
from ullage.streams import ContentStream


class FlowFileViewer:
    """Thread-safe."""

    def __init__(self, ledger: Ledger, reader: ContentReader, swap_files: SwapFiles) -> None:
        self._ledger = ledger
        self._reader = reader
        self._swap_files = swap_files

    def listed(self, queue: FlowFileQueue, skip: int, limit: int) -> list[FlowFileRecord]:
        """Up to `limit` FlowFiles that nobody holds, in the queue's order, from behind the first `skip` on.

        Others come and go meanwhile, so one may be passed over. So are those of a swap file that can't be read, which
        is told of where unavailable contents are listed.
        """
        before, swapped, behind = queue.standing()
        found = before[skip : skip + limit]
        skip = max(0, skip - len(before))
        for summary in swapped:
            if len(found) < limit and skip < summary.count:
                with suppress(RepositoryDamaged):  # `passed_over` names it; the others are there to be looked at
                    found += self._swap_files.read(summary.name).records[skip : skip + limit - len(found)]
            skip = max(0, skip - summary.count)
        return found + behind[skip : skip + limit - len(found)]

    def content(self, id: str, start: int, size: int | None) -> ContentStream:
        """The content of a FlowFile, or a range of it, pinned until the stream is closed.

        FlowFileNotFound if there is none, or if it ceases to exist right now; RangeNotSatisfiable for a range beyond
        its end.
        """
        record = self.find(id)
        try:
            return self._reader.opened(record, start, size, partial(pin_bytes, self._ledger))
        except ClaimGone as error:
            raise FlowFileNotFound(f"FlowFile {id} has just ceased to exist") from error

    def find(self, id: str) -> FlowFileRecord:
        """The FlowFile, in memory or in a swap file. FlowFileNotFound."""
        try:
            uuid = parse_uuid(id)
        except ValueError as error:
            raise FlowFileNotFound(f"{id!r} is no uuid: {error}") from error
        record = self._ledger.find(uuid)
        if record is None:
            found = self._find_swapped(uuid)
            if found is not None:
                return found
            record = self._ledger.find(uuid)  # it may have come back to memory while the files were read
        if record is None or record.queue == HANDLE_QUEUE:
            raise FlowFileNotFound(f"there is no FlowFile and no handle {id}")
        return record

    def _find_swapped(self, uuid: bytes) -> FlowFileRecord | None:
        failure: RepositoryDamaged | None = None
        for name in list(self._ledger.swaps):
            if not self._swap_files.uuids.may_hold(name, (uuid,)):
                continue
            try:
                swapped = self._swap_files.read(name)
            except RepositoryDamaged as error:
                # Else its FlowFiles have come back to memory, and the file is gone.
                if name in self._ledger.swaps:
                    failure = failure or error
                continue
            self._swap_files.uuids.keep(name, swapped.records)
            for record in swapped.records:
                if record.uuid == uuid:
                    return record
        if failure is not None:
            raise failure  # it may be in that file
        return None

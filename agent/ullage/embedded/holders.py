"""Who holds what in a repository: what the engine knows of, and what a service keeps for its clients beside it."""

from collections.abc import Callable, Iterator
from typing import Final

from ullage.contract import QueueUse
from ullage.embedded.acting import Acting
from ullage.engine.engine import Engine
from ullage.engine.model import HANDLE_QUEUE, LeaseRecord, format_uuid
from ullage.enums import HolderKind, WriteState
from ullage.wire.holders import HolderStatus

Listed = Callable[[], list[HolderStatus]]

FILES_COUNTED: Final = 100_000
"""FlowFiles of staged writes whose bytes are added up, for some 0.1 s. Of those beyond only the count is told."""


class Holders:
    """Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._beside: list[Listed] = []

    def also(self, listed: Listed) -> None:
        """From now on what this lists is held, too."""
        self._beside.append(listed)

    def all(self, acting: Acting) -> list[HolderStatus]:
        """Everything, by its kind and its beginning, with the names of those queues that `acting` may read."""
        found = [*self._leases(), *self._writes(acting), *self._streams(acting), *self._events()]
        for listed in self._beside:
            found += listed()
        return sorted(found, key=lambda each: (each.kind, each.since_millis or 0, each.id))

    def _leases(self) -> Iterator[HolderStatus]:
        for lease in self._engine.leases.all():
            purpose = lease.holder.removeprefix(lease.owner).strip()
            yield HolderStatus(
                kind=HolderKind.LEASE,
                principal=lease.owner,
                id=format_uuid(lease.id),
                about=purpose,
                flow_files=None,
                bytes=self._leased(lease),
                since_millis=lease.created_millis,
                until_millis=lease.expires_millis,
            )

    def _leased(self, lease: LeaseRecord) -> int | None:
        """Bytes of the resource claims that it names, dead ones included."""
        if not lease.resources:
            return None
        ledger, total = self._engine.ledger, 0
        with ledger.lock:
            for index in lease.resources:
                if (entry := ledger.entry(index)) is not None:
                    total += entry.claim.length if entry.claim.sealed else entry.bytes_live
        return total

    def _writes(self, acting: Acting) -> Iterator[HolderStatus]:
        room, staging = FILES_COUNTED, self._engine.staging
        for write in staging.pending():
            record = write.record
            staged = staging.staged(write, room)
            room = max(0, room - staged.flow_files)
            if record.queue == HANDLE_QUEUE:
                target = "handles"
            else:
                target = _queue(self._engine.ledger.queue_name(record.queue), acting)
            yield HolderStatus(
                kind=HolderKind.STAGED_WRITE,
                principal=record.owner,
                id=format_uuid(record.id),
                about=f"{WriteState(record.state).name.lower()}, for {target}",
                flow_files=staged.flow_files,
                bytes=staged.bytes,
                since_millis=staged.began_millis,
                until_millis=record.expires_millis,
            )

    def _streams(self, acting: Acting) -> Iterator[HolderStatus]:
        for feed in self._engine.feeds.standing():
            yield HolderStatus(
                kind=HolderKind.STREAM,
                principal=feed.owner,
                id=feed.stream,
                about=f"taken of {_queue(feed.queue, acting)}",
                flow_files=feed.flow_files,
                bytes=feed.bytes,
                since_millis=feed.since_millis,
                until_millis=feed.until_millis,
            )

    def _events(self) -> Iterator[HolderStatus]:
        for holder, hold in self._engine.provenance.holds.all(self._engine.clock.now_millis()).items():
            owner, is_somebodys, reader = holder.partition("\0")
            if not is_somebodys:
                continue  # the service's own, for a few minutes after its start
            yield HolderStatus(
                kind=HolderKind.EVENTS,
                principal=owner,
                id=reader,
                about=f"events after {hold.after}",
                flow_files=None,
                bytes=None,
                since_millis=hold.began_millis,
                until_millis=hold.expires_millis,
            )


def _queue(name: str, acting: Acting) -> str:
    return f"queue {name}" if acting.queues.allows(QueueUse.READ, name) else "a queue"

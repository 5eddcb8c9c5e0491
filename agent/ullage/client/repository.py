"""The repository of a node's service, behind the interface."""

from collections.abc import Callable, Sequence

from ullage.client.backups import ended, named_place
from ullage.client.handles import RemoteHandles
from ullage.client.heartbeats import Heartbeats
from ullage.client.leases import RemoteLeases
from ullage.client.link import NodeLink
from ullage.client.node import Node, Resolver
from ullage.client.provenance import RemoteProvenance
from ullage.client.queues import RemoteQueues
from ullage.client.reclamation import RemoteReclamation
from ullage.client.retries import Retries
from ullage.client.session import RemoteSession
from ullage.interface.buckets import Bucket
from ullage.interface.checks import (
    accepted_loss,
    checked_number,
    checked_part,
    checked_text,
    session_request,
    verification_request,
    volume_forgotten,
)
from ullage.interface.repository import Bytes, Repository
from ullage.streams import ContentStream
from ullage.wire import operations
from ullage.wire.holders import HolderStatus
from ullage.wire.service import ClockStatus, ServiceStatus
from ullage.wire.setaside import RecordSetAside, SetAsideDrop
from ullage.wire.unavailable import LISTED_MAX, UnavailableContent
from ullage.wire.upkeep import (
    BackupGeneration,
    BackupProgress,
    BackupReport,
    BackupRequest,
    BackupVerification,
    CheckpointReport,
    CheckReport,
    Keep,
)
from ullage.wire.volumes import Volume


class RemoteRepository(Repository):
    """Thread-safe, but for its sessions."""

    def __init__(self, node: Node, *, resolver: Resolver | None = None, retries: Retries | None = None) -> None:
        """Nothing is sent until something is asked."""
        self.link = NodeLink(node, retries or Retries())
        self._heartbeats = Heartbeats()
        self.handles: RemoteHandles = RemoteHandles(self.link, resolver)
        self.queues = RemoteQueues(self.link)
        self.provenance = RemoteProvenance(self.link)
        self.reclamation = RemoteReclamation(self.link)
        self.leases = RemoteLeases(self.link)

    def session(self, component: str = "", component_type: str = "", *, lease_seconds: float = 30.0) -> RemoteSession:
        return RemoteSession(self.link, self._heartbeats, session_request(component, component_type, lease_seconds))

    def content(self, id: str, start: int = 0, size: int | None = None) -> ContentStream:
        start, size = checked_part(start, size)
        return self.link.stream(operations.GET_CONTENT, start, size, id=checked_text(id, "an id"))

    def state(self) -> ServiceStatus:
        return self.link.ask(operations.GET_STATE)

    def holders(self) -> list[HolderStatus]:
        return self.link.ask(operations.LIST_HOLDERS)

    def check(self, *, deep: bool = False, on_progress: Bytes | None = None) -> CheckReport:
        return self.link.ask(operations.CHECK, query={"deep": deep})

    def unavailable(self, limit: int = 1_000) -> list[UnavailableContent]:
        return self.link.ask(
            operations.LIST_UNAVAILABLE, query={"limit": checked_number(limit, "limit", 1, LISTED_MAX)}
        )

    def retry_unavailable(self) -> int:
        return self.link.ask(operations.RETRY_UNAVAILABLE).flow_files

    def drop_unavailable(self, ids: Sequence[str], *, accept_loss: bool = False) -> int:
        return self.link.ask(operations.DROP_UNAVAILABLE, accepted_loss(ids, accept_loss)).flow_files

    def set_aside(self, limit: int = 1_000) -> list[RecordSetAside]:
        query = {"limit": checked_number(limit, "limit", 1, LISTED_MAX)}
        return self.link.ask(operations.LIST_SET_ASIDE, query=query)

    def drop_set_aside(self, ids: Sequence[str], *, accept_loss: bool = False) -> int:
        asked = accepted_loss(ids, accept_loss)
        return self.link.ask(operations.DROP_SET_ASIDE, SetAsideDrop(ids=asked.ids, accept_loss=True)).records

    def volumes(self) -> list[Volume]:
        return self.link.ask(operations.LIST_VOLUMES)

    def forget_volume(self, container: str, *, accept_loss: bool = False) -> Volume:
        return self.link.ask(operations.FORGET_VOLUME, volume_forgotten(container, accept_loss))

    def accept_clock(self) -> ClockStatus:
        return self.link.ask(operations.ACCEPT_CLOCK)

    def checkpoint(self, *, on_progress: Callable[[int], None] | None = None) -> CheckpointReport:
        return self.link.ask(operations.CHECKPOINT)

    def backup(
        self, destination: str | Bucket, *, keep: Keep | None = None, on_progress: Bytes | None = None
    ) -> BackupReport:
        asked = BackupRequest(destination=named_place(destination), keep=keep)
        run = ended(self.link, self.link.ask(operations.BACK_UP, asked), on_progress)
        assert run.report is not None  # else it has a problem
        return run.report

    def generations(self, source: str | Bucket) -> list[BackupGeneration]:
        return self.link.ask(operations.LIST_GENERATIONS, query={"source": named_place(source)})

    def verify_backup(
        self,
        source: str | Bucket,
        *,
        generation: int | None = None,
        sample: float = 1.0,
        seed: int | None = None,
        on_progress: Bytes | None = None,
    ) -> BackupVerification:
        asked = verification_request(named_place(source), generation, sample, seed)
        run = ended(self.link, self.link.ask(operations.VERIFY_BACKUP, asked), on_progress)
        assert run.found is not None  # else it has a problem
        return run.found

    def backup_runs(self) -> list[BackupProgress]:
        return self.link.ask(operations.LIST_BACKUPS)

    def backup_run(self, id: str) -> BackupProgress:
        return self.link.ask(operations.GET_BACKUP, run=checked_text(id, "a run"))

    def stop_backup(self, id: str) -> BackupProgress:
        return self.link.ask(operations.STOP_BACKUP, run=checked_text(id, "a run"))

    def close(self) -> None:
        self._heartbeats.close()
        self.handles.close()
        self.link.close()

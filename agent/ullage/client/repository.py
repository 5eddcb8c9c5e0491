"""The repository of a node's service, behind the interface."""

from collections.abc import Callable

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
from ullage.interface.checks import checked_text
from ullage.interface.repository import Bytes, Repository
from ullage.streams import ContentStream
from ullage.wire import operations
from ullage.wire.service import ServiceStatus
from ullage.wire.sessions import SessionRequest
from ullage.wire.upkeep import BackupReport, BackupRequest, CheckpointReport, CheckReport


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
        request = SessionRequest(
            visibility_seconds=lease_seconds,
            component=checked_text(component, "component"),
            component_type=checked_text(component_type, "component_type"),
        )
        return RemoteSession(self.link, self._heartbeats, request)

    def content(self, id: str, start: int = 0, size: int | None = None) -> ContentStream:
        return self.link.stream(operations.GET_CONTENT, start, size, id=id)

    def state(self) -> ServiceStatus:
        return self.link.ask(operations.GET_STATE)

    def check(self, *, deep: bool = False, on_progress: Bytes | None = None) -> CheckReport:
        return self.link.ask(operations.CHECK, query={"deep": deep})

    def checkpoint(self, *, on_progress: Callable[[int], None] | None = None) -> CheckpointReport:
        return self.link.ask(operations.CHECKPOINT)

    def backup(self, destination: str, *, on_progress: Bytes | None = None) -> BackupReport:
        return self.link.ask(operations.BACK_UP, BackupRequest(destination=destination))

    def close(self) -> None:
        self._heartbeats.close()
        self.handles.close()
        self.link.close()

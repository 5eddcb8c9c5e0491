"""A repository behind a socket, in the test's own process."""

from pathlib import Path
from typing import Any

from tests.service.running import terms_of
from tests.support import Workshop
from ullage.contract import Duration, PunchSettings, Quantity
from ullage.embedded.repository import EmbeddedRepository
from ullage.engine.engine import Engine
from ullage.engine.model import parse_uuid
from ullage_agent.service.access import Authenticator
from ullage_agent.service.limits import Limits
from ullage_agent.service.listening import TlsFiles
from ullage_agent.service.socket.server import SocketServer

KB = 1024
MB = 1 << 20
LOOSE: dict[str, Any] = {
    "claims": {"max_appendable_size": Quantity(MB), "max_flow_files": 40},
    "archive": {"enabled": False},
    "compaction": {
        "deleted_retention": Duration(1),
        "bytes_per_second": Quantity(0),
        "punch": PunchSettings(min_run=Quantity(64 * KB)),
    },
}


class Node:
    """A repository behind a socket, in this process."""

    def __init__(
        self,
        workshop: Workshop,
        folder: Path,
        limits: Limits | None = None,
        authenticator: Authenticator | None = None,
        tls: TlsFiles | None = None,
        repository: Engine | None = None,
        **sections: Any,
    ) -> None:
        """`sections` are of a repository that is made."""
        self.workshop = workshop
        self.authenticator = authenticator
        self.tls = tls
        self.path = str(folder / "u.sock")
        self.limits = limits or Limits(stall_seconds=5)
        self.failures: list[tuple[str, Exception]] = []
        self.serve(repository or workshop.make(**{**LOOSE, **sections}))

    def serve(self, repository: Engine) -> None:
        self.repository = repository
        served = EmbeddedRepository(repository)
        self.terms = terms_of(served, self.failures, self.authenticator, self.limits, self.path, self.tls)
        self.server = SocketServer(self.terms)

    def put(self, *contents: bytes) -> list[bytes]:
        return [parse_uuid(id) for id in self.repository.handles.put_many(list(contents))]

    def reclaim(self) -> int:
        """Everything that can be done; bytes freed."""
        reclamation, compactor = self.repository.reclamation, self.repository.compactor
        freed = reclamation.clean().freed_bytes
        freed += reclamation.execute(reclamation.plan_truncation(eager=True)).freed_bytes
        return freed + compactor.execute(compactor.plan(policy="CompactAll")).freed_bytes

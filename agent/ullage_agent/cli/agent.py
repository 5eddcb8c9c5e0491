"""`ullage agent`: what `ullage serve` does, as one node of a cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ullage_agent.cli.options import command, from_environment

if TYPE_CHECKING:
    from ullage.contract import ContentRepository


class _Settings:
    """The mounted file; remembers of which generation each document was."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last: tuple[ContentRepository, int] | None = None

    def read(self) -> ContentRepository:
        import yaml

        from ullage.contract import ContractError, parse

        try:
            raw: Any = yaml.safe_load(self._path.read_text(encoding="utf-8"))
            document = parse(raw)
        except (ContractError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ContractError(f"{self._path}: {error}") from error
        self._last = document, int(raw["metadata"].get("generation", 0))
        return document

    def now(self) -> tuple[ContentRepository, int]:
        """As the file is at this moment, and of which generation."""
        self.read()
        assert self._last is not None
        return self._last

    def generation(self, in_force: ContentRepository, before: int) -> int:
        """That of the file, if the host took it over."""
        last = self._last
        return last[1] if last is not None and last[0] == in_force else before


@command()
@from_environment(
    "FILE", "--config", required=True, help="The file of the ContentRepository, which the operator mounts."
)
@from_environment("NAME", "--node", required=True, help="The name of this node in the cluster.")
def agent(config: Path, node: str) -> None:
    """Serve a repository as one node of a cluster. It reclaims with tickets only, and reports to the operator."""
    from ullage_agent.node.certificate import NodeCertificate
    from ullage_agent.node.node import NodeAgent
    from ullage_agent.node.objects import NodeObjectClient
    from ullage_agent.node.restoring import NodeRestore
    from ullage_agent.node.tickets import TicketHolder
    from ullage_agent.service.errors import CannotListen
    from ullage_agent.service.kubernetes import ApiServer
    from ullage_agent.service.log import configure
    from ullage_agent.service.server import Server

    configure()
    settings = _Settings(config)
    document = settings.read()
    where = document.metadata
    try:
        api = NodeObjectClient(ApiServer.of_this_pod(os.environ), where.namespace, where.name, node)
    except CannotListen as error:
        raise click.UsageError("this process runs in no cluster: `ullage serve` is for a machine alone") from error
    certificate = None
    if document.spec.tls.mode.agent_makes_key:
        certificate = NodeCertificate(api, node, document.spec.tls.directory)
        certificate.obtain()
    tickets = TicketHolder()
    agents: list[NodeAgent] = []

    def join(_: dict[str, str]) -> None:
        joined = NodeAgent(
            server.host,
            api,
            tickets,
            lambda: settings.generation(server.host.document, tickets.generation),
            heed=(lambda _: None) if certificate is None else certificate.heed,
            restored=restoring.report,
        )
        agents.append(joined)
        joined.start()

    def leave() -> None:
        for joined in agents:
            joined.stop()

    restoring = NodeRestore(api, settings.now)
    makes = restoring.may_make(document.spec.storage.host_path.path)
    server = Server(
        settings.read, node=node, makes=makes, on_ready=join, on_stop=leave, permission=tickets.permission_of
    )
    server.run()

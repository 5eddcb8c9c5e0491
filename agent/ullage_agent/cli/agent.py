"""`ullage agent`: what `ullage serve` does, as one node of a cluster."""

import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from ullage_agent.contract import ContentRepository, ContractError, parse
from ullage_agent.node import NodeAgent, volumes_of
from ullage_agent.node_object import NodeObject, Unreachable
from ullage_agent.service.log import configure, logger
from ullage_agent.service.server import Server
from ullage_agent.tickets import TicketOffice

WAIT_SECONDS = 2.0


class _Settings:
    """The mounted file; remembers of which generation each document was."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last: tuple[ContentRepository, int] | None = None

    def read(self) -> ContentRepository:
        try:
            raw: Any = yaml.safe_load(self._path.read_text(encoding="utf-8"))
            document = parse(raw)
        except (ContractError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ContractError(f"{self._path}: {error}") from error
        self._last = document, int(raw["metadata"].get("generation", 0))
        return document

    def generation(self, in_force: ContentRepository, before: int) -> int:
        """That of the file, if the host took it over."""
        last = self._last
        return last[1] if last is not None and last[0] == in_force else before


def agent(
    config: Annotated[
        Path, typer.Option(envvar="ULLAGE_CONFIG", help="The ContentRepository, mounted by the operator.")
    ],
    node: Annotated[str, typer.Option(envvar="ULLAGE_NODE", help="This node's name.")],
) -> None:
    """Serve a repository as one node of a cluster: reclaim with tickets only, and report to the operator."""
    configure()
    settings = _Settings(config)
    document = settings.read()
    where = document.metadata
    try:
        api = NodeObject.of_this_pod(os.environ, where.namespace, where.name, node)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    office = TicketOffice()
    agents: list[NodeAgent] = []

    def join(_: dict[str, str]) -> None:
        repository = server.host.repository
        volumes = volumes_of(repository, lambda path: os.stat(path).st_dev)
        joined = NodeAgent(
            server.host, api, office, lambda: settings.generation(server.host.document, office.generation), volumes
        )
        agents.append(joined)
        joined.start()

    def leave() -> None:
        for joined in agents:
            joined.stop()

    makes = _may_make(document.spec.storage.host_path.path, api)
    server = Server(
        settings.read, node=node, makes=makes, on_ready=join, on_stop=leave, permission=office.permission_of
    )
    server.run()


def _may_make(root: str, api: NodeObject) -> bool:
    """Only where the cluster knows of no repository on this node: an empty directory may be a volume that is missing.

    A repository that is there is opened without asking anybody; the API server may be away.
    """
    log = logger("node")
    while not os.path.exists(os.path.join(root, "ullage.json")):
        try:
            seen = api.read()
        except Unreachable as error:
            log.warning("nothing here, and the cluster cannot be asked whether there should be", problem=str(error))
        else:
            if seen is not None:
                return not seen.status.repository_uuid
            log.info("waiting for the operator", object=api.name)
        time.sleep(WAIT_SECONDS)
    return False

"""What the chapters of the story share: a repository on two real nodes, and what it must hold to the end."""

import hashlib
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cluster.node import Cluster
from tests.cluster.release import CHART, Flows, installed_on
from ullage_agent.client import Client
from ullage_agent.client.http import HttpClient

POLLED = 500
HELD_SECONDS = 300.0


@dataclass
class Story:
    """What the chapters tell each other."""

    flows: Flows
    digests: dict[str, str] = field(default_factory=dict)
    """Of the contents that must be there to the end, by FlowFile."""

    handles: dict[str, bytes] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    """Of those that were dropped."""

    def http(self) -> HttpClient:
        """For what the client has no method for."""
        node = self.flows.client.node
        return HttpClient(node.url, node.token, ca_file=node.ca_file)

    def is_all_there(self) -> bool:
        """Whether everything that was kept can be read, and is what it was."""
        client = self.flows.client
        is_found = all(client.get(handle) == content for handle, content in self.handles.items())
        return is_found and (not self.digests or digests(client, "kept") == self.digests)

    def keep(self, count: int, size: int) -> None:
        """Put so many contents of `size` bytes that must be there to the end."""
        contents = [secrets.token_bytes(size) for _ in range(count)]
        self.handles |= dict(zip(self.flows.client.put_many(contents), contents, strict=True))


@pytest.fixture(scope="session")
def story(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """An older chart is installed, and a repository is Ready whose window is closed."""
    folder = tmp_path_factory.mktemp("story")
    with (
        installed_on(cluster, _older_chart(folder)),
        cluster.namespace(f"story-{secrets.token_hex(4)}") as place,
    ):
        flows = Flows(cluster, place, folder)
        flows.begin()
        yield Story(flows)
        flows.close()


def _older_chart(folder: Path) -> Path:
    """The chart when repositories were listed without their age."""
    chart = folder / "chart"
    shutil.copytree(CHART, chart)
    kind = chart / "files" / "crds" / "contentrepositories.yaml"
    column = "    - name: Age\n      type: date\n      jsonPath: .metadata.creationTimestamp\n"
    text = kind.read_text()
    assert text.count(column) == 1
    kind.write_text(text.replace(column, ""))
    return chart


def digests(client: Client, queue: str) -> dict[str, str]:
    """Of the contents that stand in a queue, by FlowFile; the queue stays as it is."""
    found: dict[str, str] = {}
    sessions = []
    while True:
        held = client.queues.poll(queue, POLLED, HELD_SECONDS)
        sessions.append(held.session)
        if not held.flow_files:
            break
        for each in held.flow_files:
            found[each.id] = digest_of(b"".join(client.queues.content(held.session, each.id)))
    for session in sessions:
        client.queues.rollback(session)
    return found


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

"""What the chapters of the story share: a repository on two real nodes, and what it must hold to the end."""

import hashlib
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cluster.node import Cluster
from tests.cluster.release import CHART, SPEC, Flows, installed_on
from tests.e2e.buckets import BucketServer
from ullage import FlowFile, Repository, Session

POLLED = 500
HELD_SECONDS = 300.0


@dataclass
class Story:
    """What the chapters tell each other."""

    flows: Flows
    server: BucketServer
    """Into which it may be backed up."""

    digests: dict[str, str] = field(default_factory=dict)
    """Of the contents that must be there to the end, by FlowFile."""

    handles: dict[str, bytes] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    """Of those that were dropped."""

    def is_all_there(self) -> bool:
        """Whether everything that was kept can be read, and is what it was."""
        repository = self.flows.repository
        is_found = all(repository.handles.get(handle) == content for handle, content in self.handles.items())
        return is_found and (not self.digests or digests(repository, "kept") == self.digests)

    def keep(self, count: int, size: int) -> None:
        """Put so many contents of `size` bytes that must be there to the end."""
        contents = [secrets.token_bytes(size) for _ in range(count)]
        self.handles |= dict(zip(self.flows.repository.handles.put_many(contents), contents, strict=True))


@pytest.fixture(scope="session")
def story(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """An older chart is installed, and a repository is Ready whose window is closed."""
    folder = tmp_path_factory.mktemp("story")
    with installed_on(cluster, _older_chart(folder)), cluster.namespace(f"story-{secrets.token_hex(4)}") as place:
        server = BucketServer(cluster)
        cluster.apply(server.secret(place))
        flows = Flows(cluster, place, folder, SPEC | server.section)
        flows.begin()
        yield Story(flows, server)
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


def digests(repository: Repository, queue: str) -> dict[str, str]:
    """Of the contents that stand in a queue, by FlowFile; the queue stays as it is."""
    found: dict[str, str] = {}
    with repository.session(lease_seconds=HELD_SECONDS) as session:
        while held := session.get_many(queue, POLLED):
            found |= {each.id: digest_of(session, each) for each in held}
    return found


def digest_of(session: Session, flow_file: FlowFile) -> str:
    """Of the content of a FlowFile that a session holds."""
    with session.read(flow_file) as content:
        return hashlib.sha256(content.read()).hexdigest()

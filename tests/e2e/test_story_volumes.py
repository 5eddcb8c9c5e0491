"""A second repository beside that of the story, on local PersistentVolumes: small filesystems of the nodes' own."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.cluster.errors import ClusterError
from tests.cluster.machines import Machine
from tests.cluster.node import DATA, Cluster
from tests.cluster.release import SPEC, Flows
from tests.cluster.test_operator_volumes import CLASS, volume
from tests.e2e.story import Story
from ullage import Retries
from ullage.errors import UllageError
from ullage.wire.problems import problem_of

MIB = 1 << 20
VOLUME_BYTES = 256 * MIB
"""A quarter of it is the repository's reserve."""

COUNT = 16
SIZE = 1 << 18
"""Of one content: larger ones would end their file."""

DRAIN = ("--ignore-daemonsets", "--delete-emptydir-data", "--force")
"""The socket of an agent on a volume is in an emptyDir, and nobody looks after the pods of flows."""

NO_ROOM = {"back-pressure", "disk-full"}
ON_VOLUMES = SPEC | {
    "storage": {"localPersistentVolume": {"storageClassName": CLASS["metadata"]["name"], "size": "200Mi"}}
}


@dataclass
class Volumes:
    """The repository on volumes, and what it must hold."""

    flows: Flows
    story: Story
    kept: dict[str, bytes] = field(default_factory=dict)

    def put(self) -> None:
        """Some contents more, at once or not at all."""
        contents = [secrets.token_bytes(SIZE) for _ in range(COUNT)]
        with self.flows.connected(Retries(attempts=1)) as repository:
            self.kept |= dict(zip(repository.handles.put_many(contents), contents, strict=True))

    def is_all_there(self) -> bool:
        """Whether both repositories have what they should have."""
        return self.story.is_all_there() and all(
            self.flows.repository.handles.get(handle) == content for handle, content in self.kept.items()
        )

    @property
    def top(self) -> str:
        """Where nodes have their volume."""
        return f"{DATA}/{self.flows.namespace}/volume"

    @property
    def machine(self) -> Machine:
        """The node that is spoken to."""
        return self.flows.cluster.nodes[self.flows.repository.state().node]


@pytest.fixture(scope="module")
def volumes(story: Story, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Volumes]:
    """Each node has a volume that a repository in a namespace of its own claims."""
    with cluster.namespace(f"volumes-{secrets.token_hex(4)}") as place:
        path = f"{DATA}/{place}"
        for machine in cluster.nodes.values():
            _mount(machine, path)
        cluster.apply(CLASS, *(volume(place, node, f"{path}/volume") for node in cluster.nodes))
        flows = Flows(cluster, place, tmp_path_factory.mktemp("volumes"), ON_VOLUMES)
        flows.begin()
        yield Volumes(flows, story)
        flows.close()
    cluster.kubectl("delete", "persistentvolumes", f"--selector=place={place}", "--timeout=60s")
    for machine in cluster.nodes.values():
        machine.shell(f"umount {path}/volume && rm {path}/image")


def _mount(machine: Machine, path: str) -> None:
    machine.shell(
        f"mkdir -p {path}/volume && truncate --size={VOLUME_BYTES} {path}/image && "
        f"mkfs.ext4 -q -F -m 0 {path}/image && mount -o loop {path}/image {path}/volume"
    )


def test_agents_on_local_volumes_stand_beside_those_on_directories(volumes: Volumes) -> None:
    """Both repositories serve from the same nodes; each node has claimed its own volume, and content lies on it."""
    flows = volumes.flows
    volumes.story.keep(COUNT, SIZE)
    volumes.put()

    claims = flows.cluster.get("persistentvolumeclaims", flows.here)["items"]
    assert {each["spec"]["volumeName"] for each in claims} == {f"{flows.namespace}-{node}" for node in flows.pods()}
    assert {each["status"]["phase"] for each in claims} == {"Bound"}
    assert flows.pods().keys() == volumes.story.flows.pods().keys() == flows.cluster.nodes.keys()
    used = volumes.machine.run("du", "--summarize", "--block-size=1", f"{volumes.top}/c1")
    assert int(used.split()[0]) >= COUNT * SIZE
    assert volumes.is_all_there()


def test_a_drain_takes_one_agent_and_gives_it_back(volumes: Volumes) -> None:
    """The agent on a volume leaves and waits for its node, that on a directory serves on. No second node can be drained
    meanwhile; when the first is back, so is what it held.
    """
    flows, cluster = volumes.flows, volumes.flows.cluster
    volumes.story.keep(COUNT, SIZE)
    volumes.put()
    node = volumes.machine.name
    (other,) = cluster.nodes.keys() - {node}

    cluster.kubectl("drain", node, *DRAIN, "--timeout=180s")

    assert flows.pods().keys() == {other}
    cluster.wait_until("the status says so", lambda: not flows.is_("Ready"))
    assert volumes.story.is_all_there()
    with pytest.raises(ClusterError, match="disruption budget"):
        cluster.kubectl("drain", other, *DRAIN, "--timeout=15s")
    for each in cluster.nodes:
        cluster.kubectl("uncordon", each)
    cluster.wait_until("each node has its agent", lambda: flows.pods().keys() == cluster.nodes.keys())
    flows.wait_until_ready()
    flows.connect()
    assert volumes.machine.name == node
    assert volumes.is_all_there()


def test_a_volume_that_fills_up_is_read_emptied_and_written_again(volumes: Volumes) -> None:
    """Writers are asked to wait; then somebody else takes the last block. Everything can be read and deleted, and what
    was deleted makes room for more although no window is open.
    """
    flows = volumes.flows
    machine, top = volumes.machine, volumes.top
    refused = ""
    while not refused:
        refused = _refusal(volumes)
    assert refused in NO_ROOM
    machine.shell(f"dd if=/dev/zero of={top}/others bs=64K conv=fsync 2>/dev/null || true")
    assert _free_bytes(machine, top) < MIB
    assert _refusal(volumes) in NO_ROOM
    assert volumes.is_all_there()
    assert flows.is_("Ready")

    for handle in list(volumes.kept)[: len(volumes.kept) * 3 // 4]:
        flows.repository.handles.delete(handle)
        del volumes.kept[handle]

    flows.cluster.wait_until("there is room again", lambda: _free_bytes(machine, top) > 32 * MIB)
    flows.cluster.wait_until("it is written to again", lambda: _refusal(volumes) == "")
    machine.shell(f"rm {top}/others")
    assert volumes.is_all_there()


def _refusal(volumes: Volumes) -> str:
    """Why some contents more are refused; empty if they are stored."""
    try:
        volumes.put()
    except UllageError as error:
        return problem_of(error).slug
    return ""


def _free_bytes(machine: Machine, path: str) -> int:
    blocks, size = machine.run("stat", "--file-system", "--format=%a %S", path).split()
    return int(blocks) * int(size)

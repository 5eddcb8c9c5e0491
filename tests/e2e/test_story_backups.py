"""Both nodes of the story are backed up into the bucket of a real S3 server, by operator and agents together."""

from pathlib import Path
from typing import Any

import ullage
from tests.cluster.node import DATA
from tests.cluster.workloads import backup, restore
from tests.e2e.story import Story, digests


def test_both_nodes_are_backed_up_verified_and_one_is_restored(story: Story, tmp_path: Path) -> None:
    """One object: every node writes, and reads all of it again; the status says so. What is restored of the node that
    is spoken to has every FlowFile and handle that must be there to the end, byte for byte.
    """
    flows, cluster = story.flows, story.flows.cluster
    story.keep(16, 1 << 16)
    cluster.apply(backup(flows.namespace, verify={"samplePercentage": 100}))
    for condition in ("Ready", "BackupCurrent", "BackupVerified"):
        cluster.kubectl("wait", f"--for=condition={condition}", "contentbackup/nightly", flows.here, "--timeout=60s")

    status = cluster.get("contentbackup/nightly", flows.here)["status"]
    verification = status["verification"]
    assert (status["nodesFailed"], verification["nodesDamaged"], status["bytes"] > 16 << 16) == (0, 0, True)
    assert {each["node"] for each in status["results"]} == cluster.nodes.keys()
    read = {each["node"]: each["report"]["filesDone"] for each in verification["results"]}
    assert read == {each["node"]: each["report"]["needed"] for each in verification["results"]}
    assert read.keys() == cluster.nodes.keys()

    place = story.server.from_here(flows.namespace, flows.repository.state().node, tmp_path)
    report = ullage.restore(place, tmp_path / "restored")
    assert (report.check.problems, report.backup.lost) == ((), ())
    with ullage.open(tmp_path / "restored") as restored:
        assert all(restored.handles.get(handle) == content for handle, content in story.handles.items())
        assert digests(restored, "kept") == story.digests


def test_a_node_that_lost_its_disk_begins_with_its_backup(story: Story) -> None:
    """The namespace's objects are gone, and so is what one node held: asked for before its repository is there again,
    the backup is brought back by that node's agent, while the other one opens what it has.
    """
    flows, cluster = story.flows, story.flows.cluster
    identity, node = flows.repository.state().repository, flows.repository.state().node
    flows.disconnect()
    flows.delete()
    home = f"{DATA}/{flows.namespace}/flows"
    cluster.nodes[node].shell(f"test -e {home}/ullage.json && find {home} -mindepth 1 -delete")
    cluster.apply(restore(flows.namespace, "back", node, backup="nightly"))

    flows.begin()

    cluster.kubectl("wait", "--for=condition=Ready", "contentrestore/back", flows.here, "--timeout=60s")
    assert flows.repository.state().node == node
    assert flows.repository.state().repository == identity
    assert story.is_all_there()
    others = [each["status"]["restoration"] for each in _objects(story) if "restoration" in each["status"]]
    assert [each["state"] for each in others] == ["Completed"]
    cluster.kubectl("delete", "contentbackups,contentrestores", "--all", flows.here)


def _objects(story: Story) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = story.flows.cluster.get("contentrepositorynodes", story.flows.here)["items"]
    return found

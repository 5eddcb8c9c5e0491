"""Both nodes of the story are backed up into the bucket of a real S3 server, by operator and agents together."""

from pathlib import Path

import ullage
from tests.cluster.workloads import backup
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
    cluster.kubectl("delete", "contentbackup", "nightly", flows.here)

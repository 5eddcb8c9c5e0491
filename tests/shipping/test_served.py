"""`ullage serve --replicate-to`: a service whose node is lost, and what is there again."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ullage
from tests.certificates import Authority
from tests.cli.test_commands import ullage as run
from tests.places import ACCESS_KEY, LOOPBACK, Place, gateway_running
from tests.service.running import Running, document_at, process, until
from tests.support import careless_log as careless_log
from ullage.contract import ReplicationMode, ReplicationSettings
from ullage.embedded.replication import take_share
from ullage.embedded.shares import share_at
from ullage.engine.files import OsFiles
from ullage.engine.shipping.logwriter import LogWriter
from ullage.engine.shipping.ownwriters import noted
from ullage.engine.wal.serde import SerDe
from ullage.errors import NodeFenced
from ullage.wire.service import ReplicationStatus
from ullage_agent.cli.serve import with_replication

KB = 1024


def replicating(bucket: Place, **settings: object) -> dict[str, Any]:
    """The section of a document."""
    assert bucket.bucket is not None
    where = {"url": f"s3://{bucket.bucket.name}/replicas", "endpoint": bucket.bucket.endpoint}
    return {"replication": {"mode": ReplicationMode.ASYNC, **where, **settings}}


def replication(repository: ullage.Repository) -> ReplicationStatus:
    found = repository.state().replication
    assert found is not None
    return found


def has_shipped(repository: ullage.Repository) -> bool:
    """Whether all that was committed is in the bucket, as the service says."""
    state = repository.state()
    found = state.replication
    return found is not None and found.shipped_transaction >= state.log.durable_transaction > 0


@pytest.fixture
def lost(bucket: Place, tmp_path: Path) -> tuple[dict[str, bytes], str]:
    """A service of which nothing is left but the bucket: its handles, and where its share lies."""
    with process(tmp_path, **replicating(bucket)) as node, ullage.connect(node.start()) as repository:
        until(lambda: replication(repository).bases == 1, "the share is begun")
        contents = [os.urandom(size) for size in (10, 100 * KB, 12 << 20)]
        handles = {repository.handles.put(data): data for data in contents}
        repository.handles.delete(repository.handles.put(b"deleted"))
        until(lambda: has_shipped(repository), "all is shipped")
        share = replication(repository).url
        node.kill()
    return handles, share


def test_what_was_shipped_is_there_when_the_node_is_not(
    lost: tuple[dict[str, bytes], str], bucket: Place, tmp_path: Path
) -> None:
    """Handles with their ids, restored by the command line; at the first point none was there."""
    handles, share = lost
    assert bucket.bucket is not None
    at = ("--endpoint", bucket.bucket.endpoint)
    points = json.loads(run("backup", "points", share, *at, "--json").stdout)["points"]
    shown = run("backup", "points", share, *at, "--last", "1").stdout.splitlines()
    said = run("restore", share.rpartition("/")[0], tmp_path / "again", *at)  # the only one below

    assert "0 problems" in said.stdout + said.stderr
    assert shown[-1].split()[0] == str(points[-1]["number"])
    with ullage.open(tmp_path / "again") as again:
        for id, data in handles.items():
            assert again.handles.get(id) == data
    run("restore", share, tmp_path / "first", *at, "--generation", points[0]["number"])
    with ullage.open(tmp_path / "first") as first, pytest.raises(ullage.errors.HandleNotFound):
        first.handles.head(next(iter(handles)))


def test_a_bucket_that_is_gone_is_told_and_stops_nothing(
    bucket: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits go on; status, metrics and the command line say what is not shipped, and why."""
    monkeypatch.setattr("ullage.embedded.replication.PATIENCE_SECONDS", 0.5)
    settings = replicating(bucket, endpoint="http://127.0.0.1:9")
    with Running(document_at(tmp_path / "r", **settings)) as running, ullage.connect(running.url) as repository:
        id = repository.handles.put(b"kept")
        until(lambda: replication(repository).state == "failing", "it is told")
        found = replication(repository)
        metrics = running.server.metrics.text().decode()
        shown = run("status", "--url", running.url).stdout
        assert repository.handles.get(id) == b"kept"

    assert "did not serve" in found.problem
    assert found.lag_transactions > 0
    assert "ullage_replication_failing 1.0" in metrics
    assert f"replication to {found.url}: fails" in shown


def test_the_bucket_can_be_an_option(tmp_path: Path) -> None:
    """What the option says counts, and the rest as the document has it."""
    document = document_at(tmp_path, replication={"region": "eu-north-1"})
    made = with_replication(document, "s3://flows/replicas").spec.replication
    assert made == ReplicationSettings(mode=ReplicationMode.ASYNC, url="s3://flows/replicas", region="eu-north-1")
    assert with_replication(document, None) is document


def test_a_secret_may_come_late_and_be_rotated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, careless_log: None
) -> None:
    """As the kubelet mounts it: the credentials, and beside them the authorities of the bucket's server. The repository
    serves whatever is there, nobody restarts it, and no secret is told.
    """
    monkeypatch.setattr("ullage.embedded.replication.PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr("ullage.embedded.replication.PAUSES", (0.05,))
    authority, mounted = Authority(tmp_path / "ca"), tmp_path / "bucket"
    made = authority.server("s3", [LOOPBACK], [])
    options = ("--cert", str(made.certificate), "--key", str(made.key))
    mounted.mkdir()
    with gateway_running(tmp_path / "gateway", options, "https") as own:
        own.make("flows")
        settings: dict[str, Any] = {"url": "s3://flows/replicas", "endpoint": own.url, "mode": ReplicationMode.ASYNC}
        settings["credentials_file"] = str(mounted / "credentials")
        document = document_at(tmp_path / "r", replication=settings)
        with Running(document) as running, ullage.connect(running.url) as repository:
            repository.handles.put(b"kept")

            def says(words: str) -> None:
                until(lambda: words in replication(repository).problem, f"it is told: {words}")

            def write(secret: str) -> None:
                text = f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {secret}\n"
                (mounted / "credentials").write_text(text)

            says(str(mounted / "credentials"))
            write("what-it-was-before")
            says("certificate")
            shutil.copy(authority.certificate, mounted / "ca.crt")
            says("SignatureDoesNotMatch")
            assert "before" not in replication(repository).problem
            write(own.secret)
            until(lambda: has_shipped(repository), "all is shipped")
            write("what-it-is-now")
            repository.handles.put(b"more")
            says("SignatureDoesNotMatch")
            write(own.secret)
            until(lambda: has_shipped(repository), "all is shipped again")


def test_a_node_whose_share_has_another_writer_says_so(bucket: Place, tmp_path: Path) -> None:
    """In its status and its metrics, with nothing to ship. It is read, and who would change something is told why not:
    over HTTP, as for a program, and by the command line.
    """
    with Running(document_at(tmp_path / "r", **replicating(bucket))) as running:
        with ullage.connect(running.url) as repository:
            id = repository.handles.put(b"kept")
            until(lambda: has_shipped(repository), "all is shipped")
            assert bucket.bucket is not None
            taken = share_at(msgspec.structs.replace(bucket.bucket, url=replication(repository).url))
            assert taken is not None
            LogWriter.begin(taken.place, taken.share, "elsewhere", SerDe())
            until(lambda: replication(repository).state == "fenced", "it is fenced")
            assert repository.handles.get(id) == b"kept"
            for refused in (repository.handles.delete, lambda _: repository.queues.put("q", b"more")):
                with pytest.raises(NodeFenced, match="node elsewhere writes the share"):
                    refused(id)
            said = run("drop", "--yes", "--handle", id, "--url", running.url, expect=3).stderr
            assert not repository.state().is_ready
            assert not running.server.host.is_ready
        assert "elsewhere" in said
        metrics = running.server.metrics.text().decode()

    root = str(tmp_path / "r")
    note = noted(OsFiles(), root, taken.place.name)
    assert note is not None
    assert note.fenced_by == "node elsewhere"
    take_share(root)
    assert noted(OsFiles(), root, taken.place.name) is None
    assert "ullage_replication_fenced 1.0" in metrics
    assert "ullage_replication_failing 1.0" in metrics
    assert "ullage_replication_max_lag_seconds 60.0" in metrics

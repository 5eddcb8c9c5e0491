"""`POST /v1/backup`: a client chooses where, but only within the folder and the buckets that the settings name."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

import ullage
from tests.places import ACCESS_KEY, Gateway, Place
from tests.service.running import Running, document_at
from ullage.contract import BackupBucket
from ullage.errors import BucketRefused, InvalidArgument
from ullage.wire.upkeep import Keep
from ullage_agent.cli.app import app


def refusal(running: Running, destination: Path) -> str:
    """What the service says to a backup that it does not write."""
    answer = running.client.post("/v1/backup", json={"destination": str(destination)})
    assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (400, "invalid-argument"), answer.text
    return str(answer.json()["detail"])


def test_without_a_folder_no_backup_is_written(running: Running, tmp_path: Path) -> None:
    """The default: a client made directories and files wherever the service's process could."""
    assert "spec.service.backupDirectory names no folder" in refusal(running, tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("where", ["elsewhere", "backups/../elsewhere", "backups-of-others", "backups/link/b"])
def test_a_backup_goes_nowhere_else(where: str, tmp_path: Path) -> None:
    """Neither beside the folder, nor up from it, nor through a link that lies in it."""
    backups = tmp_path / "backups"
    (tmp_path / "elsewhere").mkdir()
    backups.mkdir()
    (backups / "link").symlink_to(tmp_path / "elsewhere")
    with Running(document_at(tmp_path / "r", service={"backup_directory": str(backups)})) as running:
        said = refusal(running, tmp_path / where)
        written = running.client.post("/v1/backup", json={"destination": f"{backups}/a/b"})

    assert str(backups) in said
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert written.status_code == 200
    assert (backups / "a" / "b" / "backup.json").is_file()


def written(file: Path, secret: str) -> Path:
    """A file with credentials, as a mounted Secret has it."""
    file.write_text(f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {secret}\n")
    return file


@contextmanager
def allowing(root: Path, *buckets: BackupBucket) -> Iterator[Running]:
    """A service that may write there, with a FlowFile, whose log goes elsewhere."""
    with Running(document_at(root, service={"backup_buckets": buckets})) as running:
        with ullage.connect(running.url) as repository, repository.session() as session:
            session.transfer(session.write(session.create(), b"x" * 60_000), "q")
            session.commit()
        yield running


@pytest.fixture
def allowed(gateway: Gateway, bucket: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BackupBucket:
    """The bucket, by a file alone: the service's environment has no credentials."""
    for name in gateway.credentials:
        monkeypatch.delenv(name)
    assert bucket.bucket is not None
    file = written(tmp_path / "credentials", gateway.secret)
    return BackupBucket(url=bucket.bucket.url, endpoint=gateway.url, credentials_file=str(file))


def test_a_service_backs_up_into_a_bucket_that_is_allowed(allowed: BackupBucket, bucket: Place, tmp_path: Path) -> None:
    """While it serves, with generations, and what lies below it; the client has neither credentials nor endpoint."""
    with allowing(tmp_path / "r", allowed) as running, ullage.connect(running.url) as repository:
        for generation in (1, 2):
            report = repository.backup(f"{allowed.url}/node-1", keep=Keep(last=2))
            assert (report.generation, report.generations, report.lost) == (generation, generation, ())
        repository.backup(ullage.Bucket(url=allowed.url + "/node-2/"))

    for node in ("node-1", "node-2"):
        place = ullage.Bucket(
            url=f"{allowed.url}/{node}", endpoint=allowed.endpoint, credentials_file=allowed.credentials_file
        )
        restored = ullage.restore(place, tmp_path / node)
        assert (restored.check.problems, restored.check.flow_files) == ((), 1)
    assert sorted(path.name for path in bucket.folder.iterdir()) == ["node-1", "node-2"]


def test_a_backup_goes_into_no_other_bucket(allowed: BackupBucket, bucket: Place, tmp_path: Path) -> None:
    """Neither beside what is allowed, nor up from it; and not at all where nothing is."""
    url, up = allowed.url, allowed.url.rpartition("/")[0]
    with allowing(tmp_path / "r", allowed) as running:
        for elsewhere in (f"{url}-of-others", f"{url}/../elsewhere", "s3://other/b", f"{url}//b", "s3://", up):
            answer = running.client.post("/v1/backup", json={"destination": elsewhere})
            assert answer.status_code == 400, answer.text
    with allowing(tmp_path / "s") as running:
        nowhere = running.client.post("/v1/backup", json={"destination": url})

    assert (nowhere.status_code, "backupBuckets allows" in nowhere.json()["detail"]) == (400, True)
    assert not bucket.folder.parent.exists()


def test_a_client_does_not_choose_how_a_bucket_is_reached(allowed: BackupBucket, tmp_path: Path) -> None:
    """The endpoint of a request would be sent the content, and one that it names with it."""
    with allowing(tmp_path / "r", allowed) as running, ullage.connect(running.url) as repository:
        with pytest.raises(InvalidArgument, match="by its URL alone"):
            repository.backup(ullage.Bucket(url=allowed.url, endpoint="http://elsewhere"))
        answer = running.client.post(
            "/v1/backup", json={"destination": allowed.url, "endpoint": "http://elsewhere.example"}
        )
    assert answer.status_code == 400, answer.text


def test_credentials_are_rotated_and_told_to_nobody(
    allowed: BackupBucket, gateway: Gateway, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A bucket that refuses is told as such; neither answer, log nor audit has what was in the file, then or later."""
    file = written(Path(allowed.credentials_file), "what-it-was-before")
    with capture_logs() as logs, allowing(tmp_path / "r", allowed) as running:
        refused = running.client.post("/v1/backup", json={"destination": allowed.url})
        with ullage.connect(running.url) as repository, pytest.raises(BucketRefused, match="SignatureDoesNotMatch"):
            repository.backup(allowed.url)
        written(file, gateway.secret)
        done = running.client.post("/v1/backup", json={"destination": allowed.url})

    assert (refused.status_code, done.status_code) == (502, 200)
    told = [refused.text, done.text, json.dumps(logs, default=str), *capfd.readouterr()]
    told += [path.read_text() for path in (tmp_path / "r" / "audit").glob("*") if path.is_file()]
    assert allowed.url in "".join(told)
    for secret in (gateway.secret, "what-it-was-before", ACCESS_KEY):
        assert not any(secret in each for each in told)


def test_the_command_has_a_service_back_up_into_a_bucket(allowed: BackupBucket, tmp_path: Path) -> None:
    """What this shell says of buckets is not the service's matter, and an option that it does not take is refused."""
    with capture_logs(), allowing(tmp_path / "r", allowed) as running:
        written = ["backup", allowed.url, "--url", running.url, "--keep-last", "3", "--json"]
        done = CliRunner().invoke(app, written, env={"AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
        told = CliRunner().invoke(app, [*written, "--endpoint", "http://elsewhere"])
        nowhere = CliRunner().invoke(app, ["backup", "s3://elsewhere/b", "--url", running.url])

    assert [each.exit_code for each in (done, told, nowhere)] == [0, 2, 2], done.output
    assert "backupBuckets" in told.stderr
    assert json.loads(done.stdout)["generation"] == 1

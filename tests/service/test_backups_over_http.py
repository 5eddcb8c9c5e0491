"""`POST /v1/backup`: a client chooses where, but only within the folder and the buckets that the settings name."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

import ullage
from tests.places import ACCESS_KEY, Gateway, Place
from tests.service.running import Running, document_at, until
from tests.support import flip
from ullage.contract import BackupBucket
from ullage.errors import BackupStopped, BucketRefused, InvalidArgument, UllageError
from ullage.wire.upkeep import BackupProgress, Keep
from ullage_agent.cli.app import app


def refusal(running: Running, destination: Path) -> str:
    """What the service says to a backup that it does not write."""
    answer = running.client.post("/v1/backup", json={"destination": str(destination)})
    if answer.status_code == 202:  # what lies there is only found out when it is written
        run = run_of(running, answer)
        assert run.slug == "invalid-argument"
        return str(run.problem)
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
        run_of(running, running.client.post("/v1/backup", json={"destination": f"{backups}/a/b"}))

    assert str(backups) in said
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert (backups / "a" / "b" / "backup.json").is_file()


def run_of(running: Running, answer: httpx.Response) -> BackupProgress:
    """What came of one that was begun."""
    assert answer.status_code == 202, answer.text

    def found() -> BackupProgress:
        told = running.client.get(f"/v1/backup/runs/{answer.json()['id']}")
        return msgspec.json.decode(told.content, type=BackupProgress)

    until(lambda: found().ended_millis is not None, "it has ended")
    return found()


@pytest.mark.parametrize("where", ["elsewhere", "backups/../elsewhere", "backups-of-others", "backups/link"])
def test_no_backup_is_looked_at_elsewhere(where: str, tmp_path: Path) -> None:
    """Neither its generations nor its files, though there is one: who may ask learns nothing of other directories."""
    backups = tmp_path / "backups"
    (backups / "mine").mkdir(parents=True)
    with Running(document_at(tmp_path / "r", service={"backup_directory": str(backups)})) as running:
        run_of(running, running.client.post("/v1/backup", json={"destination": f"{backups}/mine"}))
        for other in ("elsewhere", "backups-of-others"):
            shutil.copytree(backups / "mine", tmp_path / other)
        (backups / "link").symlink_to(tmp_path / "elsewhere")
        listed = running.client.get("/v1/backup/generations", params={"source": str(tmp_path / where)})
        verified = running.client.post("/v1/backup/verify", json={"source": str(tmp_path / where)})
        if verified.status_code == 202:  # what lies there is only found out when it is looked at
            found = run_of(running, verified)
            assert (found.found, found.slug) == (None, "invalid-argument")
        else:
            assert verified.status_code == 400, verified.text
        assert listed.status_code == 400, listed.text
        mine = running.client.get("/v1/backup/generations", params={"source": f"{backups}/mine"})

    assert [each["sequence"] for each in mine.json()] == [1]


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[Running, threading.Lock]]:
    """A service with a FlowFile, and the lock that holds its backups up before their first file."""
    backups = tmp_path / "backups"
    backups.mkdir()
    with Running(document_at(tmp_path / "r", service={"backup_directory": str(backups)})) as running:
        with ullage.connect(running.url) as repository:
            repository.queues.put("q", b"x" * 60_000)
        yield running, running.server.host.repository.engine._backup._lock


def test_who_looks_sees_what_goes_on(held: tuple[Running, threading.Lock], tmp_path: Path) -> None:
    """Who asked, for what, since when; another one is refused with its name, and a repeat of the first is the same."""
    running, lock = held

    def asked(path: str = "/v1/backup", field: str = "destination") -> httpx.Response:
        there = {field: f"{tmp_path}/backups/a"}
        return running.client.post(path, json=there, headers={"Idempotency-Key": "k"})

    with lock:
        begun = asked().json()
        again = asked().json()
        other = running.client.post("/v1/backup", json={"destination": f"{tmp_path}/backups/b"})
        [goes_on] = running.client.get("/v1/backup/runs").json()
    ended = run_of(running, asked())
    reused = asked("/v1/backup/verify", "source")

    assert (reused.status_code, reused.json()["slug"]) == (422, "key-reused")
    assert begun["id"] == again["id"] == goes_on["id"] == ended.id
    assert (goes_on["action"], goes_on["place"]) == ("write", f"{tmp_path}/backups/a")
    assert goes_on["owner"]
    assert (goes_on["ended_millis"], goes_on["files_done"], ended.began_millis) == (None, 0, begun["began_millis"])
    assert (other.status_code, other.json()["slug"]) == (409, "run-under-way")
    assert begun["id"] in other.json()["detail"]
    assert ended.report is not None
    assert (ended.files_done, ended.bytes_done) == (ended.files, ended.bytes)
    assert (ended.files, ended.bytes) == (ended.report.copied_files, ended.report.copied_bytes)
    assert not (tmp_path / "backups" / "b").exists()


def test_a_backup_that_nobody_waits_for_any_more_is_stopped(
    held: tuple[Running, threading.Lock], tmp_path: Path
) -> None:
    """By an error of whoever is told how far it is, or by a person; the next one is not held up by that."""
    running, lock = held
    place = f"{tmp_path}/backups/a"

    def gives_up(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with ullage.connect(running.url) as repository:
        with lock, pytest.raises(KeyboardInterrupt):
            repository.backup(place, on_progress=gives_up)
        until(lambda: repository.backup_runs()[-1].ended_millis is not None, "it has stopped")
        with lock:
            waiting = threading.Thread(target=lambda: stopped.append(refused(lambda: repository.backup(place))))
            stopped: list[Exception] = []
            waiting.start()
            until(lambda: len(repository.backup_runs()) == 2, "it has begun")
            repository.stop_backup(repository.backup_runs()[-1].id)
        waiting.join()
        assert [each.slug for each in repository.backup_runs()] == ["backup-stopped"] * 2
        assert [type(each) for each in stopped] == [BackupStopped]
        assert repository.backup(place).generation == 1


def refused(call: Callable[[], object]) -> Exception:
    """What it raises."""
    with pytest.raises(UllageError) as told:
        call()
    return told.value


def test_the_end_of_a_service_stops_its_backup(tmp_path: Path) -> None:
    """It waits for no more than the file that is under way."""
    backups = tmp_path / "backups"
    backups.mkdir()
    with Running(document_at(tmp_path / "r", service={"backup_directory": str(backups)})) as running:
        repository = running.server.host.repository
        lock = repository.engine._backup._lock
        lock.acquire()
        running.client.post("/v1/backup", json={"destination": f"{backups}/a"})
        [run] = repository.backups_here.all()

        def release() -> None:
            run.stop.wait(30)
            lock.release()

        threading.Thread(target=release).start()

    assert (run.over.is_set(), run.outcome) == (True, "stopped")
    assert not (backups / "a" / "backup.json").exists()


def test_the_commands_tell_the_same_of_a_service_as_of_files(tmp_path: Path) -> None:
    """Generations and verification, to the character; runs are a service's alone."""
    place = f"{tmp_path}/backups/a"
    (tmp_path / "backups").mkdir()
    service = {"backup_directory": f"{tmp_path}/backups"}
    with capture_logs(), Running(document_at(tmp_path / "r", service=service)) as running:
        with ullage.connect(running.url) as repository:
            for content in (b"x" * 60_000, b"y" * 70_000):
                repository.queues.put("q", content)
                repository.backup(place, keep=Keep(last=2))
        served = ["--url", running.url]
        looks = [["list"], ["list", "--json"], ["verify", "--seed", "1"], ["verify", "--sample", "40%", "--seed", "7"]]
        for name, *options in (*looks, ["verify", "--generation", "9"], ["verify", "--seed", "1", "--json"]):
            told = [
                CliRunner().invoke(app, ["backup", name, place, *options, *more], env={"ULLAGE_URL": ""})
                for more in ([], served)
            ]
            assert told[0].stdout == told[1].stdout
            assert told[0].exit_code == told[1].exit_code
        flipped = next((tmp_path / "backups" / "a" / "content" / "c1").iterdir())
        flip(flipped, 5)
        damaged = CliRunner().invoke(app, ["backup", "verify", place, *served])
        runs = CliRunner().invoke(app, ["backup", "runs", *served])
        as_json = CliRunner().invoke(app, ["backup", "runs", *served, "--json"])
        nowhere = CliRunner().invoke(app, ["backup", "runs"])

    assert (damaged.exit_code, flipped.name in damaged.stderr) == (1, True)
    assert (runs.exit_code, runs.stdout.count(place)) == (0, 2 + 5 + 1)  # once in a problem
    assert [each["action"] for each in json.loads(as_json.stdout)["runs"]] == ["write"] * 2 + ["verify"] * 5
    assert nowhere.exit_code == 2


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
        assert [each.sequence for each in repository.generations(f"{allowed.url}/node-1")] == [1, 2]
        found = repository.verify_backup(ullage.Bucket(url=allowed.url + "/node-1"))
        assert (found.generations, found.damaged, found.read_files) == (2, (), found.files)

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
            answers = (
                running.client.post("/v1/backup", json={"destination": elsewhere}),
                running.client.post("/v1/backup/verify", json={"source": elsewhere}),
                running.client.get("/v1/backup/generations", params={"source": elsewhere}),
            )
            assert [answer.status_code for answer in answers] == [400] * 3, answers
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
        rejected = run_of(running, running.client.post("/v1/backup", json={"destination": allowed.url}))
        with ullage.connect(running.url) as repository, pytest.raises(BucketRefused, match="SignatureDoesNotMatch"):
            repository.backup(allowed.url)
        written(file, gateway.secret)
        done = run_of(running, running.client.post("/v1/backup", json={"destination": allowed.url}))

    assert (rejected.slug, done.slug) == ("bucket-refused", None)
    told = [repr(rejected), repr(done), json.dumps(logs, default=str), *capfd.readouterr()]
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

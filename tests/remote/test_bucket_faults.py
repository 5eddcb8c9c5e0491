"""What goes wrong between a backup and its bucket: it is tried again within bounds, and never costs a backup."""

import json
import shutil
import sys
from collections.abc import Callable
from http.client import HTTPResponse
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from tests.certificates import Authority
from tests.engine.test_backup import restored_queue
from tests.places import ACCESS_KEY, LOOPBACK, Gateway, Place, gateway_running
from tests.remote.flaky import flaky_running
from tests.support import Workshop, put_all, put_each, spec_at
from tests.threads import begin
from ullage.embedded.backupplaces import place_of_backup
from ullage.engine.backupplace import new_suffix
from ullage.engine.backuptally import Tally
from ullage.engine.engine import Engine
from ullage.errors import BackupOvertaken, BucketRefused, BucketUnavailable, InvalidArgument, UnknownPlugin
from ullage.interface.buckets import Bucket
from ullage.remote.bucket import BucketPlace
from ullage.remote.parts import PART_BYTES
from ullage_agent.cli.app import app

KB = 1024
IMPATIENT = 0.5
ENCRYPTION = "x-amz-server-side-encryption"


def changed(place: Place, **settings: object) -> Place:
    """The same place by another way."""
    assert place.bucket is not None
    return Place(place.folder, msgspec.structs.replace(place.bucket, **settings))


def names(place: Place) -> set[str]:
    """The objects that lie there."""
    return {str(path.relative_to(place.folder)) for path in place.folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ["503", "lost", "unanswered", "cut"])
def test_requests_that_go_wrong_are_made_again(
    workshop: Workshop, gateway: Gateway, bucket: Place, tmp_path: Path, kind: str
) -> None:
    """Every third one, of two backups and a restoration with contents of many parts: all is there in the end."""
    repository = workshop.make(provenance={"enabled": False})
    contents = [b"a" * (2 * PART_BYTES + KB), b"b" * 70 * KB, b"c"]
    put_all(repository, "q", contents[:2])
    with flaky_running(gateway) as (flaky, url):
        flaky.fault = lambda _method, _path, number: kind if number % 3 == 0 else ""
        place = changed(bucket, endpoint=url, patience_seconds=60)

        repository.backup(place.to)
        put_all(repository, "q", contents[2:])
        repository.backup(place.to)

        assert restored_queue(place, tmp_path / "r", "q") == contents
        assert len(flaky.done) > 10


@pytest.mark.parametrize(
    "faults",
    [
        # 409, as Amazon's has it for two that put at once: nobody has won yet, and the condition is asked for again.
        ["conflict"] * 2,
        # The put that is made again fails its condition: by what lies there it was carried out.
        ["unanswered"],
    ],
    ids=["the server could not look at its condition", "its answer was lost"],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_the_manifest_counts_whatever_was_said_of_its_put(
    repository: Engine, gateway: Gateway, bucket: Place, tmp_path: Path, is_first: bool, faults: list[str]
) -> None:
    """Once, and for the backup that put it."""
    if not is_first:
        repository.backup(bucket.to)
    put_all(repository, "q", [b"x"])
    with flaky_running(gateway) as (flaky, url):
        flaky.fault = lambda method, path, _number: (
            faults[0] if method == "PUT" and path.endswith("backup.json") and len(flaky.done) < len(faults) else ""
        )
        repository.backup(changed(bucket, endpoint=url).to)

        assert flaky.done == faults
    assert restored_queue(bucket, tmp_path / "r", "q") == [b"x"]


def test_a_server_that_is_killed_and_comes_back_costs_nothing(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the patience the backup goes on; beyond it the last one still counts, and the next takes up from there."""
    repository = workshop.make(claims={"max_flow_files": 1})
    contents = [bytes([n]) * 60 * KB for n in range(4)]
    with gateway_running(tmp_path / "gateway") as own:
        for name, value in own.credentials.items():
            monkeypatch.setenv(name, value)
        place = Place(own.make("flows") / "b", Bucket(url="s3://flows/b", endpoint=own.url, patience_seconds=30))
        put_each(repository, "q", contents[:2])
        kills = [own.kill]

        def killed_once(_: Tally) -> None:
            if kills:
                kills.pop()()
                begin(own.start)

        repository.backup(place.to, killed_once)
        assert not kills
        put_each(repository, "q", contents[2:])
        with pytest.raises(BucketUnavailable, match=r"bucket 'flows' did not serve s3://flows/b/\S+ in 0\.5 s"):
            repository.backup(changed(place, patience_seconds=IMPATIENT).to, lambda _: own.kill())
        own.start()

        assert restored_queue(place, tmp_path / "first", "q") == contents[:2]
        repository.backup(place.to)
        assert restored_queue(place, tmp_path / "second", "q") == contents
        assert len([name for name in names(place) if name.startswith("flowfile")]) == 1


class RacedPlace(BucketPlace):
    """One to which somebody else writes a backup before the first file is put, or once some are."""

    race: Callable[[], object]

    def prepare(self) -> None:
        super().prepare()
        self.race()


@pytest.mark.parametrize("is_before_all", [True, False])
@pytest.mark.parametrize("is_first", [True, False])
def test_of_two_backups_that_race_one_loses_and_the_other_is_whole(
    workshop: Workshop, bucket: Place, tmp_path: Path, is_first: bool, is_before_all: bool
) -> None:
    """The same repository on two disks: whoever began with a manifest that is gone removes nothing, and tries again."""
    assert bucket.bucket is not None
    put_all(workshop.make(), "q", [b"1" * 60 * KB])
    if not is_first:
        workshop.repository.backup(bucket.to)
    workshop.close()
    shutil.copytree(workshop.path, tmp_path / "twin")
    repository = workshop.open()
    with Engine.open(spec_at(tmp_path / "twin")) as twin:
        put_all(twin, "q", [b"2" * 60 * KB])
        put_all(repository, "q", [b"3" * 60 * KB])
        races = [twin.backup]

        def raced_once(_: Tally | None = None) -> None:
            if races:
                races.pop()(bucket.to)

        to = RacedPlace(bucket.bucket)
        to.race = raced_once if is_before_all else lambda: None
        with pytest.raises(BackupOvertaken, match=r"s3://\S+/flows/b/backup\.json is not what it was"):
            repository.backup(to, raced_once)

        assert not races
        assert restored_queue(bucket, tmp_path / "won", "q") == [b"1" * 60 * KB, b"2" * 60 * KB]
    repository.backup(bucket.to)
    assert restored_queue(bucket, tmp_path / "next", "q") == [b"1" * 60 * KB, b"3" * 60 * KB]


def test_what_was_put_after_a_backup_began_is_not_removed_by_it(workshop: Workshop, bucket: Place) -> None:
    """However late it removes: another one may be about to publish that. What was cut short before goes."""
    repository = workshop.make()
    put_all(repository, "q", [b"x"])
    repository.backup(bucket.to)
    content = bucket.folder / "content" / "c1"
    before, after = content / f"1-1-1-1{new_suffix()}", content / f"2-2-2-2{new_suffix()}"
    before.write_bytes(b"x")
    beside = bucket.folder.with_name("beside")
    beside.write_bytes(b"x")

    def put_beside(_: Tally) -> None:
        after.write_text("x")

    repository.backup(bucket.to, put_beside)

    assert (before.exists(), after.exists(), beside.exists()) == (False, True, True)


def test_a_server_that_takes_no_notice_of_conditions_is_refused(
    repository: Engine, gateway: Gateway, bucket: Place
) -> None:
    """Before anything is copied: two backups would both believe that they had won."""
    with flaky_running(gateway) as (flaky, url):
        flaky.fault = lambda method, path, number: "ignored"
        with pytest.raises(BucketRefused, match="takes no notice of If-None-Match"):
            repository.backup(changed(bucket, endpoint=url).to)

    assert names(bucket) == set()


def test_credentials_are_read_from_a_file_that_may_be_rotated(
    repository: Engine, gateway: Gateway, bucket: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long backup goes on with those that came meanwhile. What is refused names neither of them."""
    for name in gateway.credentials:
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"

    def write(secret: str) -> None:
        file.write_text(f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {secret}\n")

    write("what-it-was-before")
    to = changed(bucket, credentials_file=str(file)).to
    with pytest.raises(BucketRefused, match=r"SignatureDoesNotMatch.*look at the credentials") as refused:
        repository.backup(to)
    write(gateway.secret)
    repository.backup(to)

    assert "before" not in str(refused.value)
    assert ACCESS_KEY not in str(refused.value)


def test_where_there_are_no_credentials_it_is_told_which_are_missing(
    repository: Engine, gateway: Gateway, bucket: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also that the machine was asked for its own, which takes some seconds."""
    for name in gateway.credentials:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://{LOOPBACK}:9")

    with pytest.raises(BucketRefused, match="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        repository.backup(changed(bucket, patience_seconds=IMPATIENT).to)


def test_a_server_is_believed_whose_certificate_an_own_authority_signed(
    repository: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no other: not even for a first look."""
    authority = Authority(tmp_path / "ca")
    made = authority.server("s3", [LOOPBACK], [])
    options = ("--cert", str(made.certificate), "--key", str(made.key))
    with gateway_running(tmp_path / "gateway", options, "https") as own:
        for name, value in own.credentials.items():
            monkeypatch.setenv(name, value)
        place = Place(own.make("flows") / "b", Bucket(url="s3://flows/b", endpoint=own.url, patience_seconds=2))
        put_all(repository, "q", [b"x"])

        with pytest.raises(BucketUnavailable, match=r"did not serve .*certificate"):
            repository.backup(place.to)
        repository.backup(changed(place, ca_file=str(authority.certificate)).to)

        assert restored_queue(changed(place, ca_file=str(authority.certificate)), tmp_path / "r", "q") == [b"x"]


@pytest.mark.parametrize(("kind", "key"), [("AES256", ""), ("aws:kms", "key-1")])
def test_what_is_put_is_encrypted_by_the_server_as_it_is_asked(
    repository: Engine, gateway: Gateway, bucket: Place, monkeypatch: pytest.MonkeyPatch, kind: str, key: str
) -> None:
    """Each object, small ones and those of parts; what is read, and a wrong wish, asks for nothing."""
    seen: list[tuple[str, str, str, str]] = []
    put_all(repository, "q", [b"x" * (2 * PART_BYTES), b"y"])
    with flaky_running(gateway) as (flaky, url):
        passed_on = flaky.asked

        def noting(method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> HTTPResponse:
            said = {name.lower(): value for name, value in headers}
            asks = (said.get(ENCRYPTION, ""), said.get(f"{ENCRYPTION}-aws-kms-key-id", ""))
            seen.append((method, path, *asks))
            return passed_on(method, path, headers, body)

        monkeypatch.setattr(flaky, "asked", noting)
        repository.backup(changed(bucket, endpoint=url, encryption=kind, encryption_key=key).to)

    begun = [each for each in seen if (each[0] == "PUT" and "uploadId" not in each[1]) or "?uploads" in each[1]]
    assert len(begun) > 3
    assert any(each[0] == "POST" for each in begun)
    assert {each[2:] for each in begun} == {(kind, key)}
    assert {each[2:] for each in seen if each[0] in ("GET", "HEAD")} == {("", "")}
    for wrong in ({"encryption": "rot13"}, {"encryption": "AES256", "encryption_key": "k"}):
        with pytest.raises(InvalidArgument, match="encryption"):
            place_of_backup(msgspec.structs.replace(Bucket(url="s3://flows/b"), **wrong))


def test_the_commands_back_up_to_a_bucket_and_restore_from_it(
    workshop: Workshop, gateway: Gateway, bucket: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit codes tell a bucket that refuses from one that does not answer; no message has a secret."""
    put_all(workshop.make(), "q", [b"x" * 60 * KB])
    workshop.close()
    assert bucket.bucket is not None
    url, root = bucket.bucket.url, ["--root", str(workshop.path)]
    run = CliRunner().invoke

    first = run(app, ["backup", url, *root, "--endpoint", gateway.url, "--json"])
    again = run(app, ["restore", url, str(tmp_path / "r"), "--endpoint", gateway.url, "--json"])
    missing = run(app, ["backup", "s3://no-such-bucket/b", *root, "--endpoint", gateway.url])
    no_source = run(app, ["restore", "s3://no-such-bucket/b", str(tmp_path / "s"), "--endpoint", gateway.url])
    none = run(app, ["restore", f"{url}/none", str(tmp_path / "s"), "--endpoint", gateway.url])
    nonsense = run(app, ["backup", "s3://../b", *root])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    wrong = run(app, ["backup", url, *root, "--endpoint", gateway.url])

    assert [each.exit_code for each in (first, again, none, nonsense)] == [0, 0, 2, 2]
    assert [each.exit_code for each in (missing, no_source, wrong)] == [10, 10, 10]
    assert json.loads(first.stdout)["copied_bytes"] >= 60 * KB
    assert json.loads(again.stdout)["problems"] == []
    assert "there is no bucket 'no-such-bucket'" in missing.stderr
    assert "holds no backup" in none.stderr
    assert "s3://BUCKET/PREFIX" in nonsense.stderr
    assert "wrong-secret" not in wrong.stderr


def test_without_the_package_for_buckets_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes to directories needs none."""
    monkeypatch.setitem(sys.modules, "obstore.store", None)

    with pytest.raises(UnknownPlugin, match="with its extra bucket"):
        place_of_backup("s3://flows/b")
    assert place_of_backup("b") == "b"


def test_what_no_bucket_can_be_is_refused_before_anything_is_sent() -> None:
    """An endpoint with a password in it would stand in every message."""
    for url in ("s3://", "s3://b", "s3://UPPER/b", "s3://flows//b", "s3://flows/../b", "s3://flows/a\nb"):
        with pytest.raises(Exception, match="BUCKET/PREFIX"):
            place_of_backup(url)
    for endpoint in ("s3.example.com", "ftp://s3", "https://user:secret@s3", "https://s3?x=1"):
        with pytest.raises(Exception, match="https://HOST:PORT") as refused:
            place_of_backup(Bucket(url="s3://flows/b", endpoint=endpoint))
        assert "secret" not in str(refused.value)

"""What a backup asks of a server, of each of two."""

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.places import ACCESS_KEY, LOOPBACK, Gateway
from tests.support import Workshop, drain, put_each, spec_at
from ullage.engine.backupgenerations import generations_at
from ullage.engine.backupverify import verify
from ullage.engine.engine import Engine
from ullage.engine.shipping.probing import probe
from ullage.interface.buckets import Bucket
from ullage.remote.bucket import BucketPlace
from ullage.remote.objects import Conflict, Objects
from ullage.remote.parts import PART_BYTES
from ullage.remote.share import BucketShare
from ullage.wire.upkeep import Keep

KB = 1024
RACERS = 16
WEED = Path(sys.executable).parent / "weed"  # SeaweedFS, which the development's lock installs
ROUNDS = 5


def seaweedfs_ports() -> list[int]:
    """Free ones for its four servers, each of which wants the one that is 10,000 above its own as well: all of them
    below those that the kernel gives to connections of other tests.
    """
    while True:
        first = 10_000 + secrets.randbelow(12_000)
        ports = [first + n for n in range(4)]
        with ExitStack() as stack:
            try:
                for port in (*ports, *(port + 10_000 for port in ports)):
                    stack.enter_context(socket.create_server((LOOPBACK, port)))
            except OSError:  # somebody has one of them
                continue
        return ports


@contextmanager
def seaweedfs_running(folder: Path, secret: str) -> Iterator[Bucket]:
    """A bucket of one, until the end of the block."""
    from tests.service.running import until

    keys = {"credentials": [{"accessKey": ACCESS_KEY, "secretKey": secret}], "actions": ["Admin"], "name": "tester"}
    (folder / "s3.json").write_text(json.dumps({"identities": [keys]}))
    (folder / "data").mkdir()
    master, volume, filer, s3 = seaweedfs_ports()
    ports = (f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}", f"-s3.port={s3}")
    here = (f"-ip={LOOPBACK}", f"-ip.bind={LOOPBACK}", f"-dir={folder}/data", f"-s3.config={folder}/s3.json", "-s3")
    process = subprocess.Popen(
        [WEED, "server", *here, *ports, "-volume.max=20", "-master.volumeSizeLimitMB=64"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def has_bucket() -> bool:
        assert process.poll() is None, "SeaweedFS has ended"
        try:
            made = subprocess.run(
                [WEED, "shell", f"-master={LOOPBACK}:{master}", f"-filer={LOOPBACK}:{filer}"],
                input="s3.bucket.create -name flows\ns3.bucket.list\n",
                capture_output=True,
                text=True,
                timeout=20,
                check=False,
            )
        except subprocess.TimeoutExpired:  # begun before the servers were, it waits for them for ever
            return False
        with socket.socket() as tried:
            return "flows" in made.stdout and tried.connect_ex((LOOPBACK, s3)) == 0

    try:
        until(has_bucket, "SeaweedFS has a bucket", 180)
        yield Bucket(url="s3://flows/b", endpoint=f"http://{LOOPBACK}:{s3}", patience_seconds=30)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module", params=["versitygw", "SeaweedFS"])
def server(
    request: pytest.FixtureRequest, gateway: Gateway, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bucket]:
    """A bucket of each."""
    secret = gateway.secret
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        if request.param == "versitygw":
            name = f"s{secrets.token_hex(6)}"
            gateway.make(name)
            yield Bucket(url=f"s3://{name}/b", endpoint=gateway.url, patience_seconds=30)
        else:
            with seaweedfs_running(tmp_path_factory.mktemp("seaweedfs"), secret) as bucket:
                yield bucket


@pytest.mark.parametrize("is_first", [True, False])
def test_of_puts_on_one_condition_that_race_one_wins(server: Bucket, is_first: bool) -> None:
    """And what lies there is the winner's: else two backups would both believe that they count."""
    objects = Objects(msgspec.structs.replace(server, url=f"{server.url}-race"))
    for number in range(ROUNDS):
        key = f"{is_first}-{number}"
        found = None
        if not is_first:
            objects.put(key, b"before")
            found = objects.get(key)
        tag = None if found is None else found.tag
        together = threading.Barrier(RACERS)

        def put(racer: int, key: str = key, tag: str | None = tag, together: threading.Barrier = together) -> bool:
            together.wait(30)
            try:
                objects.put_if(key, b"racer %d" % racer, tag)
            except Conflict:
                return False
            return True

        with ThreadPoolExecutor(RACERS) as pool:
            (winner,) = [racer for racer, has_won in enumerate(pool.map(put, range(RACERS))) if has_won]
        left = objects.get(key)
        assert left is not None
        assert left.data == b"racer %d" % winner


def test_a_share_may_lie_there(server: Bucket) -> None:
    """The server keeps the conditions on which its log stands, in races of 32."""
    probe(BucketShare(msgspec.structs.replace(server, url=f"{server.url}-share")))


def test_generations_are_written_verified_and_restored(server: Bucket, workshop: Workshop, tmp_path: Path) -> None:
    """Small files side by side, and one of many parts; what no generation needs is gone."""
    contents = [os.urandom(2 * PART_BYTES + KB), *(bytes([n]) * 60 * KB for n in range(20))]
    repository = workshop.make(archive={"enabled": False}, provenance={"enabled": False})
    put_each(repository, "q", contents)
    for _ in range(3):
        repository.backup(BucketPlace(server), keep=Keep(last=2))
        put_each(repository, "q", [b"later"])

    found = verify(BucketPlace(server), None, 1.0, 1)
    Engine.restore_backup(BucketPlace(server), spec_at(tmp_path / "r"), generation=2)

    assert [each.sequence for each in generations_at(BucketPlace(server))] == [2, 3]
    assert (found.damaged, found.generations, found.files) == ((), 2, found.read_files)
    held = BucketPlace(server).held()
    assert len(held) == found.files + 1  # and the manifest of the older one
    with Engine.open(spec_at(tmp_path / "r")) as again:
        assert again.check(deep=True).problems == ()
        assert drain(again, "q") == [*contents, b"later"]

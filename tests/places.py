"""Where backups go: a directory, and a bucket of a real S3 server, versitygw over a folder."""

import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from tests.cluster.tools import tool
from ullage.engine.backupplace import BackupPlace
from ullage.interface.buckets import Bucket
from ullage.remote.bucket import BucketPlace

LOOPBACK = "127.0.0.1"
ACCESS_KEY = "tester"


class Gateway:
    """The server; its buckets are the folders in `folder`."""

    def __init__(self, folder: Path, options: tuple[str, ...] = (), scheme: str = "http") -> None:
        self.folder = folder / "buckets"
        self._beside = folder / "beside"
        self.secret = secrets.token_hex(16)
        with socket.create_server((LOOPBACK, 0)) as taken:
            self.port = taken.getsockname()[1]
        self.url = f"{scheme}://{LOOPBACK}:{self.port}"
        self._options = options
        for each in (self.folder, self._beside):
            each.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Returns when it takes connections."""
        from tests.service.running import until  # for those alone who need a server

        program = [str(tool("versitygw")), "--quiet", "--port", f"{LOOPBACK}:{self.port}", *self._options, "posix"]
        # Metadata beside the objects: not every filesystem of a test has extended attributes.
        self._process = subprocess.Popen(
            [*program, "--sidecar", self._beside, self.folder],
            env={**os.environ, "ROOT_ACCESS_KEY_ID": ACCESS_KEY, "ROOT_SECRET_ACCESS_KEY": self.secret},
            stdout=subprocess.DEVNULL,
        )
        until(self._answers, "the gateway takes connections")

    def kill(self) -> None:
        """At once, whatever it does."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def make(self, name: str) -> Path:
        """A new bucket; its folder."""
        (self.folder / name).mkdir()
        return self.folder / name

    @property
    def credentials(self) -> Mapping[str, str]:
        """As variables of the environment."""
        return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": self.secret}

    def _answers(self) -> bool:
        try:
            socket.create_connection((LOOPBACK, self.port), 1).close()
        except OSError:
            return False
        return True


class Place(NamedTuple):
    """One place for the backups of a test, and the folder in which its files lie."""

    folder: Path
    bucket: Bucket | None = None

    @property
    def to(self) -> str | BackupPlace:
        """What an engine takes; a bucket's is made for one backup or restoration."""
        return str(self.folder) if self.bucket is None else BucketPlace(self.bucket)

    def beside(self, name: str) -> "Place":
        """Another one."""
        if self.bucket is None:
            return Place(self.folder.with_name(name))
        url = self.bucket.url.rpartition("/")[0] + f"/{name}"
        return Place(self.folder.with_name(name), msgspec.structs.replace(self.bucket, url=url))


@contextmanager
def gateway_running(folder: Path, options: tuple[str, ...] = (), scheme: str = "http") -> Iterator[Gateway]:
    """A server, until the end of the block."""
    gateway = Gateway(folder, options, scheme)
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.kill()


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One server for all tests of a process, each of which has a bucket of its own."""
    with gateway_running(tmp_path_factory.mktemp("gateway")) as gateway:
        yield gateway


@pytest.fixture
def bucket(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A prefix of a new bucket; the credentials for it are in the environment."""
    for name, value in gateway.credentials.items():
        monkeypatch.setenv(name, value)
    name = f"b{secrets.token_hex(6)}"
    folder = gateway.make(name)
    return Place(folder / "flows" / "b", Bucket(url=f"s3://{name}/flows/b", endpoint=gateway.url, patience_seconds=5))


@pytest.fixture(params=["directory", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Each of the two."""
    if request.param == "directory":
        return Place(tmp_path / "b")
    found: Place = request.getfixturevalue("bucket")
    return found

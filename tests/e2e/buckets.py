"""A real S3 server beside the control plane of the story: versitygw, where pods reach it."""

import secrets
from pathlib import Path
from typing import Any

from tests.cluster.machines import HUB
from tests.cluster.node import Cluster
from tests.cluster.tools import tool
from tests.cluster.workloads import made
from ullage import Bucket

KEY = "story"
URL = "s3://flows/backups"


class BucketServer:
    """Its buckets are folders of the instance, and it ends with that."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._secret = secrets.token_hex(16)
        self._port = cluster.instance.free_port()
        folder, beside = cluster.instance.home / "buckets", cluster.instance.home / "beside-buckets"
        for each in (folder / "flows", beside):
            each.mkdir(parents=True)
        program: list[str | Path] = [tool("versitygw"), "--quiet", "--port", f"{HUB}:{self._port}"]
        program += ["posix", "--sidecar", beside, folder]
        keys = {"ROOT_ACCESS_KEY_ID": KEY, "ROOT_SECRET_ACCESS_KEY": self._secret}
        cluster.instance.start("versitygw", [*cluster.hub.enter, *program], keys)

    @property
    def credentials(self) -> str:
        """As a file of Amazon's tools."""
        return f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {self._secret}\n"

    def secret(self, place: str) -> dict[str, Any]:
        """With which the agents of the repository `flows` reach it."""
        words = {"credentials": self.credentials}
        return made("v1", "Secret", "flows-ullage-bucket-s3", place, stringData=words)

    @property
    def section(self) -> dict[str, Any]:
        """Of a repository's spec."""
        place = {"url": URL, "endpoint": f"http://{HUB}:{self._port}", "credentialsSecret": "s3"}
        return {"service": {"backupBuckets": [place]}}

    def from_here(self, place: str, node: str, folder: Path) -> Bucket:
        """The backup of a node, as this machine reaches it; `folder` gets a file with the credentials."""
        credentials = folder / "credentials"
        credentials.write_text(self.credentials)
        return Bucket(
            url=f"{URL}/{place}/flows/{node}",
            endpoint=f"http://127.0.0.1:{self._cluster.forward(HUB, self._port)}",
            credentials_file=str(credentials),
        )

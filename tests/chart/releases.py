"""A release without what takes minutes: its images are small, but whole."""

import hashlib
import json
from pathlib import Path

from tests.tars import tar_of
from tools import oci, release

OS_RELEASE = b'ID=debian\nVERSION_ID="12"\n'
STATUS = b"Package: base\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1:2.0+b1\n"


def small_release(folder: Path) -> Path:
    """In this folder, of the chart as it is and an image for each target."""
    archives = {target: _image(folder / f"{target}.tar", target) for target in release.TARGETS}
    out = folder / "dist"
    out.mkdir()
    release.add_images(out, archives)
    release.add_chart(out, release.image_digests(out))
    release.write_digests(out)
    return out


def _image(path: Path, target: str) -> Path:
    """As buildah writes one: an OCI archive whose layer is a plain tar."""
    packed = f"opt/site-packages/{target}-1.0.dist-info/METADATA"
    metadata = f"Name: {target}\nVersion: 1.0\n".encode()
    layer = tar_of({"usr/lib/os-release": OS_RELEASE, "var/lib/dpkg/status": STATUS, packed: metadata})
    config = {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]}}
    blobs: dict[str, bytes] = {}

    def kept(content: bytes, media_type: str) -> dict[str, object]:
        blobs[f"blobs/{_digest(content).replace(':', '/')}"] = content
        return {"mediaType": media_type, "digest": _digest(content), "size": len(content)}

    manifest = {
        "schemaVersion": 2,
        "config": kept(oci.canonical(config), "application/vnd.oci.image.config.v1+json"),
        "layers": [kept(layer, oci.PLAIN_LAYER)],
    }
    index = {"schemaVersion": 2, "manifests": [kept(oci.canonical(manifest), oci.IMAGE_MANIFEST)]}
    path.write_bytes(tar_of({"index.json": json.dumps(index).encode(), **blobs}))
    return path


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"

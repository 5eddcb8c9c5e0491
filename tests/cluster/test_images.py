"""What is in an image: labels, the list of its packages, and the same bytes whenever it is built."""

import importlib.util
import io
import json
import re
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ullage_agent
from tests.cluster import images
from tests.cluster.images import ROOT

TARGETS = ("agent", "operator", "spark")
LABELS = ("title", "description", "licenses", "version", "revision", "source")
RELEASE = b'ID=debian\nVERSION_ID="12"\n'
STATUS = b"""Package: kept
Status: install ok installed
Architecture: amd64
Version: 1:2.0+b1

Package: purged
Status: deinstall ok config-files
Architecture: amd64
Version: 1.0
"""


@pytest.fixture(scope="module")
def sbom() -> ModuleType:
    """tools/sbom.py, which is a program and no package."""
    found = importlib.util.spec_from_file_location("sbom", ROOT / "tools/sbom.py")
    assert found is not None
    assert found.loader is not None
    made = importlib.util.module_from_spec(found)
    found.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def built_twice(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The agent's image, every step of it done twice."""
    folder = tmp_path_factory.mktemp("images")
    made = [folder / "first.tar", folder / "second.tar"]
    for archive in made:
        images.build_anew("agent", archive)
    return made


def test_the_version_on_the_label_is_that_of_the_code() -> None:
    """The Dockerfile cannot read it from there."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")

    assert re.findall(r"^ARG VERSION=(.*)$", text, re.MULTILINE) == [ullage_agent.__version__]


def test_every_target_has_every_label() -> None:
    """As the image specification of OCI names them."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    stages = {part.split()[2]: part for part in re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]}

    for target in TARGETS:
        assert re.findall(r'org\.opencontainers\.image\.(\w+)="[^"]+"', stages[target]) == list(LABELS)


def _tar(files: dict[str, bytes]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return written.getvalue()


def _image(path: Path, layers: list[dict[str, bytes]], config: dict[str, Any]) -> Path:
    """An OCI archive; its digests are names only."""
    blobs = {f"blobs/sha256/{number}": _tar(layer) for number, layer in enumerate(layers)}
    manifest = {"config": {"digest": "sha256:c"}, "layers": [{"digest": f"sha256:{n}"} for n in range(len(layers))]}
    blobs["blobs/sha256/c"] = json.dumps({"config": config}).encode()
    blobs["blobs/sha256/m"] = json.dumps(manifest).encode()
    path.write_bytes(_tar({"index.json": json.dumps({"manifests": [{"digest": "sha256:m"}]}).encode(), **blobs}))
    return path


def test_a_list_of_packages_follows_the_layers(sbom: ModuleType, tmp_path: Path) -> None:
    """What a higher layer replaced or took away is told as it is now; what dpkg has removed is not told."""
    packages = "opt/lib/python3.11/site-packages"
    lower = {
        "./usr/lib/os-release": RELEASE,
        "./var/lib/dpkg/status": STATUS,
        f"{packages}/gone-1.0.dist-info/METADATA": b"Name: gone\nVersion: 1.0\n",
        f"{packages}/Changed_it-1.0.dist-info/METADATA": b"Name: Changed_it\nVersion: 1.0\n",
    }
    upper = {
        f"{packages}/.wh.gone-1.0.dist-info": b"",
        f"{packages}/.wh.Changed_it-1.0.dist-info": b"",
        f"{packages}/changed_it-2.0.dist-info/METADATA": b"Name: Changed_it\nVersion: 2.0\nLicense-Expression: MIT\n",
    }
    config = {"Env": ["PYTHON_VERSION=3.11.9"], "Labels": {"org.opencontainers.image.version": "7"}}
    archive = _image(tmp_path / "image.tar", [lower, upper], config)

    told = sbom.document(archive, "some")

    assert [each["purl"] for each in told["components"]] == [
        "pkg:deb/debian/kept@1%3A2.0%2Bb1?arch=amd64&distro=debian-12",
        "pkg:generic/python@3.11.9",
        "pkg:pypi/changed-it@2.0",
    ]
    assert told["components"][-1]["licenses"] == [{"expression": "MIT"}]
    assert told["metadata"]["component"]["version"] == "7"
    assert sbom.document(archive, "some") == told


def test_an_image_without_packages_has_no_list(sbom: ModuleType, tmp_path: Path) -> None:
    """An empty list would be believed."""
    with pytest.raises(ValueError, match="no package"):
        sbom.document(_image(tmp_path / "image.tar", [{}], {}), "some")


def test_two_builds_are_the_same_image(built_twice: list[Path]) -> None:
    """The manifest's digest stands for configuration and layers, and so for every byte, time and owner in them."""
    first, second = (json.loads(_file(path, "index.json"))["manifests"][0]["digest"] for path in built_twice)

    assert first == second


def test_the_agents_packages_are_those_of_its_lock(built_twice: list[Path], sbom: ModuleType) -> None:
    """At their versions; but for what other systems need. Debian's are told too."""
    told = sbom.document(built_twice[0], "ullage-agent")

    found = {each["name"]: each["version"] for each in told["components"] if each["purl"].startswith("pkg:pypi/")}
    text = (ROOT / "deploy/requirements-agent.lock").read_text(encoding="utf-8")
    pinned = dict(re.findall(r"^(\S+)==(\S+) \\$", text, re.MULTILINE))
    assert found == pinned | {"ullage": ullage_agent.__version__}
    assert any(each["purl"].startswith("pkg:deb/debian/libc6@") for each in told["components"])
    assert told["metadata"]["component"]["version"] == ullage_agent.__version__


def _file(archive: Path, name: str) -> bytes:
    with tarfile.open(archive) as opened:
        file = opened.extractfile(name)
        assert file is not None
        return file.read()

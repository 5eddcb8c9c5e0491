"""What is in an image: labels, the list of its packages, and the same bytes whenever it is built."""

import hashlib
import importlib.util
import json
import re
import struct
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.markers import Marker

import ullage
from tests.cluster import images
from tests.cluster.images import ROOT
from tests.tars import tar_of

TARGETS = ("agent", "operator", "spark")
LABELS = ("title", "description", "licenses", "version", "revision", "source")
IN_IMAGES = {"python_version": "3.11", "python_full_version": "3.11.2", "sys_platform": "linux"}
"""What of the locks' conditions another machine may see otherwise."""

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


def _program(path: str) -> ModuleType:
    """A program that is in no package."""
    found = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert found is not None
    assert found.loader is not None
    made = importlib.util.module_from_spec(found)
    found.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def sbom() -> ModuleType:
    """tools/sbom.py."""
    return _program("tools/sbom.py")


@pytest.fixture(scope="module", params=TARGETS)
def built_twice(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Path]]:
    """The name of an image, and every step of it done twice."""
    folder = tmp_path_factory.mktemp("images")
    made = [folder / "first.tar", folder / "second.tar"]
    for archive in made:
        images.build_anew(request.param, archive)
    return request.param, made


def test_the_version_on_the_label_is_that_of_the_code() -> None:
    """The Dockerfile cannot read it from there."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")

    assert re.findall(r"^ARG VERSION=(.*)$", text, re.MULTILINE) == [ullage.__version__]


def test_every_target_has_every_label() -> None:
    """As the image specification of OCI names them."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    stages = {part.split()[2]: part for part in re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]}

    for target in TARGETS:
        assert re.findall(r'org\.opencontainers\.image\.(\w+)="[^"]+"', stages[target]) == list(LABELS)


def _image(path: Path, layers: list[dict[str, bytes]], config: dict[str, Any]) -> Path:
    """An OCI archive; its digests are names only."""
    blobs = {f"blobs/sha256/{number}": tar_of(layer) for number, layer in enumerate(layers)}
    manifest = {"config": {"digest": "sha256:c"}, "layers": [{"digest": f"sha256:{n}"} for n in range(len(layers))]}
    blobs["blobs/sha256/c"] = json.dumps({"config": config}).encode()
    blobs["blobs/sha256/m"] = json.dumps(manifest).encode()
    path.write_bytes(tar_of({"index.json": json.dumps({"manifests": [{"digest": "sha256:m"}]}).encode(), **blobs}))
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


@pytest.mark.timeout(2400)  # seconds; Spark's image takes minutes to build, on a busy machine many
def test_two_builds_are_the_same_image(built_twice: tuple[str, list[Path]]) -> None:
    """The manifest's digest stands for configuration and layers, and so for every byte, time and owner in them."""
    first, second = (json.loads(_file(path, "index.json"))["manifests"][0]["digest"] for path in built_twice[1])

    assert first == second


def test_the_packages_are_those_of_the_lock(built_twice: tuple[str, list[Path]], sbom: ModuleType) -> None:
    """At their versions; but for what other systems need. Debian's are told too."""
    target, (archive, _) = built_twice
    told = sbom.document(archive, f"ullage-{target}")

    found = {each["name"]: each["version"] for each in told["components"] if each["purl"].startswith("pkg:pypi/")}
    text = (ROOT / f"deploy/requirements-{target}.lock").read_text(encoding="utf-8")
    lines = re.findall(r"^(\S+)==(\S+)(?: ; (.*))? \\$", text, re.MULTILINE)
    pinned = {name: version for name, version, marker in lines if not marker or Marker(marker).evaluate(IN_IMAGES)}
    assert found == pinned | {"ullage": ullage.__version__}
    assert any(each["purl"].startswith("pkg:deb/debian/libc6@") for each in told["components"])
    assert told["metadata"]["component"]["version"] == ullage.__version__


def _keystore(millis: int) -> bytes:
    """As Java writes it, with one certificate of that date."""
    body = struct.pack(">IIII", 0xFEEDFEED, 2, 1, 2) + _counted(">H", b"ca") + struct.pack(">q", millis)
    body += _counted(">H", b"X.509") + _counted(">I", b"certificate")
    return body + hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()


def _counted(length: str, text: bytes) -> bytes:
    return struct.pack(length, len(text)) + text


def test_a_keystore_has_one_date_whenever_it_was_made() -> None:
    """What Java reads in it stays the same; anything else than such a store is refused."""
    steadied = _program("deploy/steady_keystore.py").steadied

    assert steadied(_keystore(1), 7) == steadied(_keystore(2), 7) == _keystore(7)
    with pytest.raises(ValueError, match="no Java keystore"):
        steadied(_keystore(1)[:-1] + b"?", 7)


def _file(archive: Path, name: str) -> bytes:
    with tarfile.open(archive) as opened:
        file = opened.extractfile(name)
        assert file is not None
        return file.read()

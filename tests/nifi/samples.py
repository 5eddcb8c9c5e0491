"""Repositories that NiFi's own, unmodified classes wrote, and what they held.

Those of golden/ are checked in: each is a directory, packed, with truth.tsv beside the repositories. The program that
wrote them is bench/nifi/harness/Sample.java. `python -m tests.nifi.samples` writes them anew, with the classes of the
release that Maven Central has, and with those of the checkout that `NIFI_SRC` names; it needs a JDK and Maven.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.harness import build, java_home
from ullage.nifi.flowfiles import NiFiFlowFile
from ullage.nifi.home import NiFiHome

GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz"))
SEEDS = {"killed": 7, "stopped": 9}


class Told(NamedTuple):
    """What the program that wrote the repositories says of one FlowFile."""

    queue: str
    where: str
    id: int
    uuid: str
    file: str
    start: int
    size: int
    attributes: int
    queued_millis: int


def unpacked(name: str, directory: Path) -> Path:
    """A golden sample, which the test may change."""
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as packed:
        packed.extractall(directory, filter="data")
    return directory / name


def home_of_sample(place: Path) -> NiFiHome:
    return NiFiHome(
        flowfiles=str(place / "flowfile_repository"),
        containers={"default": str(place / "content_repository"), "second": str(place / "content_second")},
    )


def truth(place: Path) -> list[Told]:
    lines = (place / "truth.tsv").read_text(encoding="utf-8").splitlines()
    return [
        Told(queue, where, int(id), uuid, "" if file == "-" else file, *map(int, numbers))
        for queue, where, id, uuid, file, *numbers in (line.split("\t") for line in lines)
    ]


def told_of(flowfiles: Sequence[NiFiFlowFile]) -> list[tuple[str, str, str, int, int, int, int]]:
    """What was read, comparable with `told`, whatever the order."""
    found = []
    for each in flowfiles:
        assert each.attributes is not None
        attributes = each.attributes
        found.append(
            (attributes["uuid"], each.queue, each.file, each.start, each.size, len(attributes), each.queued_millis)
        )
    return sorted(found)


def told(place: Path) -> list[tuple[str, str, str, int, int, int, int]]:
    return sorted(
        (each.uuid, each.queue, each.file, each.start, each.size, each.attributes, each.queued_millis)
        for each in truth(place)
    )


def command(source: str | None) -> tuple[str, list[str]]:
    """NiFi's version, and what runs Sample with its classes: built first where they are not yet."""
    home = java_home()
    version, classpath = build(home, Path(source).resolve() if source else None)
    return version, [str(home / "bin" / "java"), "-cp", classpath, "harness.Sample"]


def write_sample(java: Sequence[str], place: Path, seed: int, ending: str) -> None:
    """Let NiFi write a sample; see Sample.java."""
    place.mkdir()
    subprocess.run([*java, str(place), str(seed), ending], check=True, timeout=120, stderr=subprocess.DEVNULL)


def main() -> None:
    """Write golden/ anew."""
    for source in {None, os.environ.get("NIFI_SRC")}:
        version, java = command(source)
        for ending, seed in SEEDS.items():
            with tempfile.TemporaryDirectory() as scratch:
                name = f"{version}-{ending}"
                write_sample(java, Path(scratch) / name, seed, ending)
                _drop_empty(Path(scratch) / name)
                with tarfile.open(GOLDEN / f"{name}.tar.xz", "w:xz", preset=9) as packed:
                    packed.add(Path(scratch) / name, name, filter=_anonymous)
            sys.stdout.write(f"{name}\n")


def _drop_empty(place: Path) -> None:
    """NiFi makes 4,096 folders of sections at once: those that hold nothing make no difference to a reader."""
    for path in sorted(place.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


if __name__ == "__main__":
    main()

"""Repositories that NiFi's own, unmodified classes wrote, and what they held.

Those of golden/ and golden_events/ are checked in: each is a directory, packed, with truth.tsv, or names.json, beside
what NiFi wrote. The programs that wrote them are bench/nifi/harness/Sample.java and Events.java. `python -m
tests.nifi.samples` writes them anew, with the classes of the release that Maven Central has, and with those of the
checkout that `NIFI_SRC` names, which events need; it needs a JDK and Maven.
"""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.harness import build, java_home
from tests.tars import unpack_all
from ullage.nifi.flowfiles import NiFiFlowFile
from ullage.nifi.home import NiFiHome

GOLDEN = Path(__file__).parent / "golden"
GOLDEN_EVENTS = Path(__file__).parent / "golden_events"
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz"))
SEEDS = {"killed": 7, "stopped": 9}
RELEASES = ("1.16.3", "1.28.1")
"""Of NiFi 1, in Maven Central, beside the one of NiFi 2 that bench/nifi/pom.xml names."""


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
        unpack_all(packed, directory)
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


def command(source: str | None, release: str = "") -> tuple[str, list[str]]:
    """NiFi's version, and what runs Sample with its classes: built first where they are not yet."""
    home = java_home()
    version, classpath = build(home, Path(source).resolve() if source else None, release)
    return version, [str(home / "bin" / "java"), "-cp", classpath, "harness.Sample"]


def write_sample(java: Sequence[str], place: Path, seed: int, ending: str) -> None:
    """Let NiFi write a sample; see Sample.java."""
    place.mkdir()
    subprocess.run([*java, str(place), str(seed), ending], check=True, timeout=120, stderr=subprocess.DEVNULL)


def write_events(java: Sequence[str], place: Path, count: int = 100) -> None:
    """Let NiFi write provenance events that name contents, with names.json beside them; see Events.java."""
    names = [
        (f"default/{number % 7}/1700000000000-{number % 7}", number * 1_000, 10 + number) for number in range(count)
    ]
    command = [*java[:-1], "harness.Events", str(place), *(f"{file}/{begin}/{size}" for file, begin, size in names)]
    place.mkdir(exist_ok=True)
    subprocess.run(command, check=True, timeout=120, stderr=subprocess.DEVNULL)
    (place / "names.json").write_text(json.dumps(names))


def write_golden_events(java: Sequence[str], version: str) -> None:
    """Without their index, which nobody reads here."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / version
        write_events(java, place)
        GOLDEN_EVENTS.mkdir(exist_ok=True)
        with tarfile.open(GOLDEN_EVENTS / f"{version}.tar.xz", "w:xz", preset=9) as packed:
            for path in (*sorted(place.glob("*.prov*")), place / "names.json"):
                packed.add(path, f"{version}/{path.name}", filter=_anonymous)


def main() -> None:
    """Write golden/ anew, and golden_events/ where NIFI_SRC has NiFi's provenance repository."""
    for source in {None, os.environ.get("NIFI_SRC")}:
        version, java = command(source)
        if source:
            write_golden_events(java, version)
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

"""A NiFi whose disk is held by a few FlowFiles, as docs/nifi.md shows it: small, and written here."""

import gzip
import json
import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.nifi.written import Written, checkpoint_pieces

NOW_MILLIS = 1_795_718_000_000
HOUR, DAY = 3_600_000, 24 * 3_600_000
LONG_AGO = NOW_MILLIS - 269 * DAY
MIB = 1 << 20
TRANSACTION = 88_123

FAILURES, TO_KAFKA, TO_FILES = (str(uuid.UUID(int=number << 64)) for number in (0xA1, 0xB2, 0xC3))
QUEUES = {
    FAILURES: ("Ingest", "PutS3", "funnel"),
    TO_KAFKA: ("", "ConvertRecord", "PublishKafka"),
    TO_FILES: ("", "MergeContent", "PutFile"),
}


def write_nifi(place: Path, flowfiles: Iterable[Written], count: int) -> None:
    """A NiFi as it is unpacked, at rest, with these FlowFiles in its checkpoint, and no contents yet."""
    for name in ("conf", "flowfile_repository/journals", "content_repository"):
        (place / name).mkdir(parents=True)
    (place / "conf" / "nifi.properties").write_text(
        "nifi.flow.configuration.file=./conf/flow.json.gz\n"
        "nifi.flowfile.repository.directory=./flowfile_repository\n"
        "nifi.content.repository.directory.default=./content_repository\n"
    )
    with (place / "flowfile_repository" / "checkpoint").open("wb") as file:
        file.writelines(checkpoint_pieces(TRANSACTION, flowfiles, count))


def write_flow(place: Path) -> None:
    groups: dict[str, list[object]] = {}
    for identifier, (group, source, destination) in QUEUES.items():
        groups.setdefault(group, []).append(
            {"identifier": identifier, "source": {"name": source}, "destination": {"name": destination}}
        )
    below = [{"name": name, "connections": made} for name, made in groups.items() if name]
    flow = {"rootGroup": {"connections": groups[""], "processGroups": below}}
    (place / "conf" / "flow.json.gz").write_bytes(gzip.compress(json.dumps(flow).encode()))


def write_content(place: Path, file: str, size: int, *, written_millis: int = LONG_AGO) -> None:
    """Bytes that the file system has given, whatever is in them."""
    path = place / "content_repository" / file.partition("/")[2]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as content:
        os.posix_fallocate(content.fileno(), 0, size)
    os.utime(path, ns=(written_millis * 1_000_000,) * 2)


def example(place: Path) -> None:
    """Eight files of many contents, of which one FlowFile each is left, and some that are in use."""
    files: dict[str, int] = {}
    flowfiles = list(_flowfiles(files))
    write_nifi(place, flowfiles, len(flowfiles))
    write_flow(place)
    for file, size in files.items():
        write_content(place, file, size)
    write_content(place, f"default/9/{LONG_AGO}-9", 3 * MIB)
    write_content(place, f"default/9/archive/{LONG_AGO}-1033", 2 * MIB)


def _flowfiles(files: dict[str, int]) -> Iterator[Written]:
    number = 0

    def made(queue: str, file: int, start: int, size: int, waited: int, name: str) -> Written:
        nonlocal number
        number += 1
        identifier = f"default/{file}/{LONG_AGO}-{file}"
        files[identifier] = max(files.get(identifier, 0), start + size)
        named = {"uuid": str(uuid.UUID(int=0x1E << 96 | number)), "filename": name, "path": "./"}
        return Written(number, queue, identifier, start, size, NOW_MILLIS - waited, named)

    for file in range(1, 7):
        yield made(FAILURES, file, file * MIB // 8, 0, 269 * DAY - file * HOUR, f"order-{file:04}.done")
        files[f"default/{file}/{LONG_AGO}-{file}"] = (9 + file) * MIB
    for file in (7, 8):
        for each in range(40):
            yield made(TO_KAFKA, file, each * 60_000, 50_000, 20 * 60_000 + each * 1_000, f"part-{each:03}.avro")
        yield made(TO_FILES, file, 4 * MIB, 6 * MIB, 2 * DAY, f"merged-{file}.tar")

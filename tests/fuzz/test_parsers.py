"""Hostile bytes in every format: a parser reads them or refuses them, in bounded time and memory."""

import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, seed, settings, strategies as st

from tests.fuzz.corpus import (
    EXAMPLES,
    SEED,
    Edit,
    edited,
    edits,
    files_of,
    has_frames,
    killed,
    resealed_block,
    resealed_frame,
    resealed_header,
)
from tests.proof.figures import note
from tests.rot.specimen import abandon, reopen, shown
from ullage.engine.backupdirectory import DirectoryPlace
from ullage.engine.backupfiles import newest_manifest
from ullage.engine.content.containers import ContainerIdentity
from ullage.engine.files import Files, OsFiles
from ullage.engine.ledger.swap import SWAP_MAGIC, SwapHeader
from ullage.engine.opening import read_identity
from ullage.engine.provenance.eventfiles import EventFiles
from ullage.engine.provenance.manifest import EventFile, ManifestFile
from ullage.engine.wal.format import LogHeader, decode_header
from ullage.engine.wal.records import RecordReader
from ullage.engine.wal.restore import replay, resolve, scan_partition
from ullage.engine.wal.serde import SerDe
from ullage.engine.wal.snapshot import SNAPSHOT_MAGIC, SnapshotHeader
from ullage.engine.wal.state import RecordDirectory
from ullage.errors import UllageError
from ullage.testing.crashing import CrashFiles, Image

MEMORY_BYTES_MAX = 24 << 20
"""Two windows of a log, which hold a transaction of the largest size each, and what else a parser needs."""

fuzz = settings(
    max_examples=EXAMPLES,
    deadline=2_000,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def parse_snapshot(files: Files, path: str) -> None:
    reader = RecordReader(files, path, SNAPSHOT_MAGIC, SnapshotHeader, SerDe())
    try:
        for _ in reader.blocks():
            continue
    finally:
        reader.close()


def parse_swap(files: Files, path: str) -> None:
    reader = RecordReader(files, path, SWAP_MAGIC, SwapHeader, SerDe())
    try:
        for _ in reader.blocks():
            continue
    finally:
        reader.close()


def parse_log(files: Files, path: str) -> None:
    """A partition that has this file only."""
    (known,) = killed().files_like(".wal")
    header = msgspec.msgpack.decode(killed().image.files[known][16:400].split(b"ULLt")[0], type=LogHeader)
    place = RecordDirectory(files, path.rsplit("/", 2)[0], header.repository, SerDe())
    chain = scan_partition(place, 0, header.sequence, bytes(16))
    for _ in replay(files, [chain], resolve([chain], killed().snapshot_id)):
        continue


def parse_identity(files: Files, path: str) -> None:
    read_identity(files, path.rsplit("/", 1)[0])
    decode_header(files.open(path).read(1 << 20, 0), ContainerIdentity, path)


def parse_manifest(files: Files, path: str) -> None:
    repository = reopened_identity()
    ManifestFile(files, path, repository).read()


def parse_event_file(files: Files, path: str) -> None:
    """All rows of it, as a search reads them."""
    file = msgspec.structs.replace(_listed(), directory="", name=path.rsplit("/", 1)[1])
    event_files = EventFiles(files, path.rsplit("/", 1)[0], ("",))
    try:
        for _, table in event_files.scan(file):
            event_files.events(file, table)
    finally:
        event_files.close()


def parse_backup(files: Files, path: str) -> None:
    """The manifest of a backup whose other files are not there."""
    newest_manifest(DirectoryPlace(files, path.rsplit("/", 1)[0]))


def _listed() -> EventFile:
    """What the manifest says of the specimen's event file."""
    files = CrashFiles(killed().image)
    manifest = ManifestFile(files, "/r/provenance/manifest", reopened_identity()).read()
    assert manifest is not None
    return manifest.files[0]


def reopened_identity() -> str:
    """The specimen's repository."""
    return read_identity(CrashFiles(killed().image), "/r").repository


PARSERS: dict[str, tuple[str, str, Callable[[Files, str], None]]] = {
    "snapshot": ("/snapshot", "snapshot", parse_snapshot),
    "swap": (".swap", "1.swap", parse_swap),
    "log": (".wal", "partition-0/00000000000000000001.wal", parse_log),
    "identity": ("ullage.json", "ullage.json", parse_identity),
    "manifest": ("/manifest", "manifest", parse_manifest),
    "event file": (".parquet", "1.parquet", parse_event_file),
    "backup": ("backup.json", "backup.json", parse_backup),
}


def parse(kind: str, data: bytes) -> None:
    """In memory; whatever is no UllageError passes through."""
    _, name, parser = PARSERS[kind]
    files = CrashFiles(Image({f"/d/{name}": data}, frozenset({"/", "/d", "/d/partition-0"})))
    try:
        parser(files, f"/d/{name}")
    except UllageError as error:
        message = str(error)
    else:
        return
    assert "/d" in message or ".wal" in message or "transaction" in message, f"no place: {message}"


@pytest.mark.parametrize("kind", PARSERS)
def test_mutated_files_are_read_or_refused(kind: str) -> None:
    """Whatever is flipped, cut, repeated or blown up in a file of any format, its parser does not crash or hang."""
    corpus = files_of(PARSERS[kind][0])
    print(f"seed {SEED}")

    @seed(SEED)
    @fuzz
    @given(st.sampled_from(corpus), edits())
    def run(data: bytes, changes: list[Edit]) -> None:
        parse(kind, edited(data, changes))

    run()
    note(examples=EXAMPLES)


@pytest.mark.parametrize("kind", ["snapshot", "swap", "log", "manifest"])
def test_hostile_bytes_under_valid_checksums_are_read_or_refused(kind: str) -> None:
    """A checksum proves nothing about who wrote it: headers, records and transactions are refused all the same."""
    corpus = files_of(PARSERS[kind][0])
    if kind == "log":
        corpus = list(filter(has_frames, corpus))
    print(f"seed {SEED}")

    @seed(SEED)
    @fuzz
    @given(st.sampled_from(corpus), edits(), st.integers(0, 100))
    def run(data: bytes, changes: list[Edit], choice: int) -> None:
        parse(kind, resealed_header(data, changes))
        if kind != "manifest":  # which is a header and nothing else
            parse(kind, resealed_frame(data, changes, choice) if kind == "log" else resealed_block(data, changes))

    run()
    note(examples=EXAMPLES)


@pytest.mark.parametrize("part", ["/snapshot", ".swap", ".wal"])
def test_a_repository_with_a_hostile_file_opens_or_says_why_not(part: str) -> None:
    """With forged checksums throughout, opening, checking and reading end in data or an UllageError."""
    whole = killed()
    paths = [path for path in whole.files_like(part) if path.rsplit("/", 1)[1] not in whole.truth.dropped]
    print(f"seed {SEED}")

    @seed(SEED)
    @fuzz
    @given(st.sampled_from(paths), edits(), st.integers(0, 100))
    def run(path: str, changes: list[Edit], choice: int) -> None:
        data = whole.image.files[path]
        forged = resealed_frame(data, changes, choice) if part == ".wal" else resealed_block(data, changes)
        try:
            repository = reopen(whole.with_file(path, forged), whole.spec)
        except UllageError:
            return
        try:
            repository.check(deep=True)
            shown(repository)
        finally:
            abandon(repository)

    run()
    note(examples=EXAMPLES)


@pytest.mark.parametrize("kind", PARSERS)
def test_no_length_field_makes_a_parser_allocate_without_bound(tmp_path: Path, kind: str) -> None:
    """Any four bytes of a file may claim to be a huge length: memory stays within what the largest frame needs."""
    part, name, parser = PARSERS[kind]
    data = files_of(part)[0]
    path = tmp_path / name
    places = range(0, min(len(data), 4_000), 1 if len(data) < 600 else 13)
    tracemalloc.start()
    try:
        for at in places:
            for value in (0x7FFF_FFFF, 0xFFFF_FFFF, (64 << 20) - 1):
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(data[:at] + struct.pack("<I", value) + data[at + 4 :])
                tracemalloc.reset_peak()
                # Refusing is right; what counts here is the memory it took.
                with suppress(UllageError):
                    parser(OsFiles(), str(path))
                assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES_MAX, f"{value} at {at}"
    finally:
        tracemalloc.stop()

"""Repositories of every version so far: newer code opens them, and code that is older than a file says so."""

import json
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from crc32c import crc32c

from tests.backup_reader import lay_out
from tests.golden.make import BACKUP, PRESENT, describe, drain, golden_spec
from tests.storage_reader import StorageReader
from tests.support import ManualClock
from tests.tars import unpack_all
from ullage.engine.engine import Engine
from ullage.engine.wal.format import FORMAT_VERSION
from ullage.engine.wal.serde import SerDe
from ullage.errors import FormatTooNew, RepositoryDamaged

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = sorted(path.name for path in GOLDEN.glob("format-*"))
BACKUPS = sorted(path.name for path in GOLDEN.glob("backup-*"))


def unpack(version: str, archive: str, root: Path) -> None:
    """A golden repository at a place where it was not made."""
    with tarfile.open(GOLDEN / version / f"{archive}.tar.gz") as tar:
        unpack_all(tar, root)


def open_at(root: Path, partitions: int = 2) -> Engine:
    return Engine.open(golden_spec(root, partitions), clock=ManualClock())


def test_there_is_a_golden_repository_of_this_version() -> None:
    """Whoever raises the format version leaves the old golden repository and adds one."""
    assert PRESENT in VERSIONS
    assert BACKUP in BACKUPS


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("archive", ["closed", "killed"])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_golden_repository_opens_with_all_it_held(
    tmp_path: Path, version: str, archive: str, partitions: int
) -> None:
    """FlowFiles, attributes, contents, queues in order, handles and files are found exactly as they were left."""
    root = tmp_path / "elsewhere"
    unpack(version, archive, root)
    expected = json.loads((GOLDEN / version / "expected.json").read_text(encoding="utf-8"))

    with open_at(root, partitions) as repository:
        assert repository.restored.clean is (archive == "closed" and partitions == 2)
        found = describe(repository)
        assert repository.check(deep=True).problems == ()
        found["drained"] = drain(repository)

    assert found == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_a_golden_repository_stays_whole_over_a_checkpoint(tmp_path: Path, version: str) -> None:
    """What newer code writes over old files holds the same."""
    unpack(version, "closed", tmp_path / "elsewhere")
    expected = json.loads((GOLDEN / version / "expected.json").read_text(encoding="utf-8"))

    with open_at(tmp_path / "elsewhere") as repository:
        repository.checkpoint()
    with open_at(tmp_path / "elsewhere") as repository:
        found = describe(repository) | {"drained": drain(repository)}

    assert found == expected


def test_the_page_reader_reads_the_golden_repository(tmp_path: Path) -> None:
    """docs/storage.md describes the golden files too, not only what the present code writes."""
    unpack(PRESENT, "closed", tmp_path / "elsewhere")
    expected = json.loads((GOLDEN / PRESENT / "expected.json").read_text(encoding="utf-8"))

    found = list(StorageReader(tmp_path / "elsewhere").flow_files())

    resident = {flow_file.uuid: flow_file.attributes for flow_file in found if flow_file.uuid in expected["flow_files"]}
    assert resident == {uuid: record["attributes"] for uuid, record in expected["flow_files"].items()}
    polled = {uuid for queue in expected["drained"].values() for uuid, _ in queue}
    assert {flow_file.uuid for flow_file in found if flow_file.queue is not None} == polled


@pytest.mark.parametrize("backup", BACKUPS)
def test_a_golden_backup_is_restored_with_all_it_held(tmp_path: Path, backup: str) -> None:
    """It holds what the golden repository held; newer code restores it, and the page says how."""
    unpack(backup, "backup", tmp_path / "backup")
    expected = json.loads((GOLDEN / PRESENT / "expected.json").read_text(encoding="utf-8"))

    Engine.restore_backup(str(tmp_path / "backup"), golden_spec(tmp_path / "restored"))
    lay_out(tmp_path / "backup", tmp_path / "laid-out")

    for root in (tmp_path / "restored", tmp_path / "laid-out"):
        with open_at(root) as repository:
            assert repository.check(deep=True).problems == ()
            found = describe(repository) | {"drained": drain(repository)}
        assert found == expected


def test_a_newer_backup_is_refused_by_naming_it(tmp_path: Path) -> None:
    """A backup that a newer version wrote is not restored by guessing."""
    unpack(BACKUP, "backup", tmp_path / "backup")
    path = tmp_path / "backup" / "backup.json"
    manifest = json.loads(path.read_bytes().rpartition(b"\n")[0])
    body = json.dumps({"format": manifest["format"] + 1, "files": []}).encode()
    path.write_bytes(body + b"\n%08x" % crc32c(body))

    with pytest.raises(FormatTooNew, match="newer version"):
        Engine.restore_backup(str(tmp_path / "backup"), golden_spec(tmp_path / "restored"))


def raise_in_json(path: Path) -> None:
    """Make an identity file say that it is of the next format."""
    identity = json.loads(path.read_bytes())
    path.write_bytes(json.dumps(identity | {"format": FORMAT_VERSION + 1}).encode())


def change_header(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Give a log, snapshot or swap file another header, checksum and all."""
    data = path.read_bytes()
    magic, length, _ = struct.unpack_from("<8sII", data)
    body = msgspec.msgpack.encode(change(msgspec.msgpack.decode(data[16 : 16 + length], strict=False)))
    path.write_bytes(struct.pack("<8sII", magic, len(body), crc32c(body)) + body + data[16 + length :])


def raise_in_header(field: str) -> Callable[[Path], None]:
    """What makes a file's header name the next version."""
    return lambda path: change_header(path, lambda header: header | {field: header[field] + 1})


def other_identity(path: Path) -> None:
    """An identity file of the next format, with other fields."""
    path.write_bytes(json.dumps({"format": FORMAT_VERSION + 1, "volumes": ["c1"]}).encode())


def other_header(path: Path) -> None:
    """A header of the next format, with other fields."""
    change_header(path, lambda header: {"format": FORMAT_VERSION + 1, "records": header["serde"]})


NEXT_FORMAT, NEXT_SERDE = raise_in_header("format"), raise_in_header("serde_version")


@pytest.mark.parametrize(
    ("files", "change", "version"),
    [
        ("ullage.json", raise_in_json, FORMAT_VERSION),
        ("ullage.json", other_identity, FORMAT_VERSION),
        ("c1/ullage.json", raise_in_json, FORMAT_VERSION),
        *(
            (files, change, SerDe.version if change is NEXT_SERDE else FORMAT_VERSION)
            for files in ("flowfile/partition-1/*.wal", "flowfile/snapshot", "swap/*.swap")
            for change in (NEXT_FORMAT, NEXT_SERDE, other_header)
        ),
    ],
)
def test_what_a_newer_version_wrote_is_refused_by_naming_both_versions(
    tmp_path: Path, files: str, change: Callable[[Path], None], version: int
) -> None:
    """Older code does not guess: it says what it found and what it can read, and changes nothing.

    A swap file is opened when a poll, or the replay of a swap-in, wants its FlowFiles; it is one file that cannot be
    read then, for a newer version never leaves such a file alone behind.
    """
    unpack(PRESENT, "closed", tmp_path / "elsewhere")
    for path in (tmp_path / "elsewhere").glob(files):
        change(path)
    before = {path: path.read_bytes() for path in (tmp_path / "elsewhere").rglob("*") if path.is_file()}

    refusal = RepositoryDamaged if files.startswith("swap") else FormatTooNew
    with (
        pytest.raises(refusal, match=rf"version {version + 1}\b.* up to {version}\b"),
        open_at(tmp_path / "elsewhere") as repository,
    ):
        drain(repository)

    kept = {path: path.read_bytes() for path in before if path.exists()}
    assert files.startswith("swap") or kept == before


def test_the_golden_repositories_are_small() -> None:
    """They are kept for ever, so each is a fraction of a megabyte."""
    sizes = {path: path.stat().st_size for path in GOLDEN.rglob("*.tar.gz")}

    assert all(size < 200_000 for size in sizes.values()), sizes

"""Contents of any size: read as files, written in pieces, exported in parts, of which a bad one spoils nothing."""

import hashlib
import io
import random
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import ullage
from tests.service.running import process
from tests.service.test_kill import free_port
from tests.spark.fleet import Fleet
from tests.support import flip
from ullage.contentfile import FIRST_BYTES, WINDOW_BYTES, ContentFile
from ullage.wire.schemas import ATTRIBUTES
from ullage.wire.tickets import TableTicket
from ullage_spark import contents_from, snapshot
from ullage_spark.archive import PART_BYTES, RESTORED_FROM, exported, failures, restorable
from ullage_spark.errors import SparkSourceError
from ullage_spark.fingerprint import Fingerprint
from ullage_spark.fleet import discover, flight_of, socket_of
from ullage_spark.opener import ContentUse, Opener, pickled, use_of
from ullage_spark.settings import SourceOptions
from ullage_spark.sources import BATCH_ROWS, _batches
from ullage_spark.whereabouts import Whereabouts
from ullage_spark.writer import Packed

MB = 1 << 20
FILES = "uuid string, size bigint, digest string, tail binary, middle binary"


class Source:
    """A content, and what was asked of it."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.asked: list[tuple[int, int]] = []

    def fetch(self, at: int, count: int) -> bytes:
        assert at + count <= len(self.content)
        self.asked.append((at, count))
        return self.content[at : at + count]


def test_a_content_is_read_like_any_file(seed: int) -> None:
    """Any calls in any order say what a file of the standard library says."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    content = chance.randbytes(3 * FIRST_BYTES + 12_345)
    ours, theirs = ContentFile(len(content), Source(content).fetch), io.BytesIO(content)
    for _ in range(300):
        match chance.randrange(5):
            case 0:
                place = chance.choice([0, chance.randrange(len(content)), len(content), len(content) + 9])
                assert ours.seek(place) == theirs.seek(place)
            case 1:
                back = -chance.randrange(len(content))
                assert ours.seek(back, io.SEEK_END) == theirs.seek(back, io.SEEK_END)
            case 2:
                count = chance.choice([0, 1, 100, 70_000, 2 * FIRST_BYTES])
                assert ours.read(count) == theirs.read(count)
            case 3:
                buffers = bytearray(5_000), bytearray(5_000)
                assert ours.readinto(buffers[0]) == theirs.readinto(buffers[1])
                assert buffers[0] == buffers[1]
            case _:
                start, size = chance.randrange(len(content) + 5), chance.randrange(2 * FIRST_BYTES)
                assert ours.range(start, size) == content[start : start + size]
        assert ours.tell() == theirs.tell()
    with pytest.raises(ValueError, match="neither is negative"):
        ours.range(-1, 5)
    ours.close()
    with pytest.raises(ValueError, match="closed"):
        ours.range(0, 1)


def test_a_file_holds_a_window_and_reads_little_for_who_looks_at_little() -> None:
    """Windows double while they are read on, up to a bound, and begin small after a jump; nothing is read twice."""
    source = Source(bytes(60 * MB))
    with ContentFile(len(source.content), source.fetch) as file:
        while file.read(300_000):
            continue
        windows = [count for _, count in source.asked]
        assert sum(windows) == len(source.content)
        assert max(windows) == WINDOW_BYTES
        assert len(windows) < 12
        source.asked.clear()
        file.seek(-22, io.SEEK_END)
        file.read()
        file.seek(5 * MB)
        file.read(10)
    assert source.asked == [(5 * MB, FIRST_BYTES)]  # the end was there


def looked_at(rows: pa.RecordBatch, files: list[ContentFile]) -> Iterator[pa.RecordBatch]:
    """What programs do with files: on and on, from the end, and in the middle. A batch each."""
    for uuid, file in zip(rows.column("uuid").to_pylist(), files, strict=True):
        digest = hashlib.sha256()
        while piece := file.read(100_000):
            digest.update(piece)
        file.seek(-min(7, file.size), io.SEEK_END)
        row = (uuid, file.size, digest.hexdigest(), file.read(), file.range(file.size // 2, 1_000))
        types = [pa.string(), pa.int64(), pa.string(), pa.binary(), pa.binary()]
        names = ["uuid", "size", "digest", "tail", "middle"]
        yield pa.RecordBatch.from_arrays([pa.array([each], kind) for each, kind in zip(row, types, strict=True)], names)


def test_a_function_that_returns_something_else_is_told(spark: SparkSession, fleet: Fleet) -> None:
    """A forgotten return is what people do most."""
    fleet.fill(3, 2)
    with snapshot(spark, endpoint=fleet.endpoint) as held, pytest.raises(PySparkException, match="returned NoneType"):
        held.with_content(lambda rows, contents: None, "uuid string").collect()


@pytest.mark.parametrize("group_bytes", [-1, 1 << 40, "8m", None])
def test_a_group_is_of_a_size_that_a_task_can_hold(group_bytes: Any) -> None:
    """Told to whoever asks, and not by each task."""
    with pytest.raises(SparkSourceError, match="group_bytes is a number from 0 to"):
        use_of(looked_at, skips_missing=False, group_bytes=group_bytes, as_files=False)


def test_an_agent_that_restarts_is_waited_for_amid_a_file(tmp_path: Path) -> None:
    """On its own machine too, where the connection of its socket is gone with it: Flight waits, and goes on."""
    content = random.Random(5).randbytes(6 * MB)
    service = {"flight_port": free_port(), "socket_path": str(tmp_path / "agent.sock")}
    with process(tmp_path, service=service) as agent:
        agent.start()
        with ullage.connect(agent.url) as remote:
            remote.handles.put(content)
        settings = SourceOptions.of({"endpoint": f"grpc://127.0.0.1:{service['flight_port']}"})
        (node,) = discover(settings)
        rows = flight_of(settings, node).table(TableTicket(name="flowfiles")).read_all().combine_chunks().to_batches()
        opener = Opener(settings, {node.name: node}, ContentUse(b"", as_files=True))
        assert socket_of(settings, node) is not None
        (address,) = Whereabouts.of(rows[0]).addresses()
        file = opener._large(node, address, {})
        assert isinstance(file, ContentFile)
        assert file.read(MB) == content[:MB]
        agent.kill()
        again = threading.Thread(target=agent.start)
        again.start()
        assert file.read() == content[MB:]
        again.join()


@pytest.mark.parametrize("path", ["descriptors", "flight"])
def test_contents_come_as_files(spark: SparkSession, fleet: Fleet, path: str) -> None:
    """Of all sizes: those beyond a group are read as they are asked for; FlowFiles that are slices of a content too."""
    contents = {key[1]: content for key, content in fleet.fill(3, 10).items()}
    repository = fleet.repository("a")
    big = random.Random(4).randbytes(7 * MB + 13)
    with repository.session() as session:
        whole = session.write(session.create(), big)
        slice_ = session.clone(whole, MB + 1, 4 * MB)
        session.transfer_many([whole, slice_], "in")
        session.commit()
    contents |= {whole.id: big, slice_.id: big[MB + 1 : 5 * MB + 1]}
    options: dict[str, Any] = {"endpoint": fleet.endpoint, **({} if path == "descriptors" else {"socket": "/nowhere"})}

    group_bytes = MB if path == "descriptors" else 1_000  # below what the first window has
    with snapshot(spark, **options) as held:
        rows = held.with_content(looked_at, FILES, as_files=True, group_bytes=group_bytes).collect()

    assert {row.uuid: (row.size, row.digest, bytes(row.tail), bytes(row.middle)) for row in rows} == {
        uuid: (
            len(content),
            hashlib.sha256(content).hexdigest(),
            content[-7:],
            content[len(content) // 2 : len(content) // 2 + 1_000],
        )
        for uuid, content in contents.items()
    }


def test_a_content_that_cannot_be_read_spoils_nothing_of_an_export(
    spark: SparkSession, fleet: Fleet, tmp_path: Path
) -> None:
    """It is named with its problem; the others come back, those of several parts too."""
    chance = random.Random(6)
    contents = {b"small": b"small", b"empty": b"", b"large": chance.randbytes(2 * PART_BYTES + 5)}
    damaged = {b"harmed": chance.randbytes(300_000), b"harmed large": chance.randbytes(PART_BYTES + MB)}
    repository = fleet.repository("a")
    ids = {}
    for name, content in (contents | damaged).items():
        with repository.session() as session:
            record = session.write(session.create(), content)
            session.transfer(record, "in")
            session.commit()
        ids[record.id] = name
        if name in damaged:
            flip(*place_near_the_end(fleet, record.id))

    with snapshot(spark, endpoint=fleet.endpoint) as held:
        exported(held.table("flowfiles"), endpoint=fleet.endpoint).write.parquet(str(tmp_path / "out"))
    found = spark.read.parquet(str(tmp_path / "out"))
    failed = {ids[row.uuid]: row.problem for row in failures(found).collect()}
    writer = restorable(found).write.format("ullage").mode("append")
    writer.options(endpoint=fleet.endpoint, queue="restored").save()

    assert failed == dict.fromkeys(damaged, "content-corrupt")
    assert fleet.drained("restored") == sorted(contents.values())
    for id, name in ids.items():
        if name in damaged:
            flip(*place_near_the_end(fleet, id))


def place_near_the_end(fleet: Fleet, id: str) -> tuple[Path, int]:
    """Of a content: its file, and a byte in it."""
    record = fleet.records()["a", id]
    assert record.claim is not None
    repository = fleet.repository("a")
    entry = repository.ledger.entry(record.claim.resource)
    assert entry is not None
    return Path(repository.content.path_of(entry.claim)), record.claim.end - 10


def opened(row: Mapping[str, Any]) -> Any:
    """A file, or what a program makes up."""
    return open(row["path"], "rb") if row["path"] else iter([b"made", b"up"])


def test_files_and_iterators_are_written_in_pieces(spark: SparkSession, fleet: Fleet, tmp_path: Path) -> None:
    """Of any size, many in a partition; repeated under its name it is done once, whatever its pieces are."""
    sizes = [0, 5, 9 * MB, 100, 20 * MB + 1, 0, 7]
    contents = [random.Random(at).randbytes(size) for at, size in enumerate(sizes)]
    for at, content in enumerate(contents):
        (tmp_path / f"{at}").write_bytes(content)
    rows = [(str(tmp_path / f"{at}"), {"number": str(at)}) for at in range(len(sizes))]
    df = spark.createDataFrame([*rows, ("", {"number": "made"})], "path string, attributes map<string,string>")

    for partitions in (1, 3):
        writer = contents_from(df.coalesce(partitions), opened).write.format("ullage").mode("append")
        writer.options(endpoint=fleet.endpoint, queue="in", write="files", stageBytes=32 * MB).save()

    numbers = {
        record.attribute_map()["number"]: (
            b"" if record.claim is None else fleet.repository(node).reader.read(record.claim, 0, record.size, None)
        )
        for (node, _), record in fleet.records().items()
    }
    assert numbers == {str(at): content for at, content in enumerate(contents)} | {"made": b"madeup"}
    assert len(fleet.records()) == len(sizes) + 1


def test_pieces_of_any_size_become_rows_of_a_mib() -> None:
    """Lines, gigabytes at once, and contents without a byte: neither a message a line, nor a task's memory."""
    cases: dict[str, Any] = {
        "lines": [b"a line\n"] * 400_000,
        "at once": bytes(5 * MB + 3),
        "empty pieces": [b""] * 50_000,
        "none": [],
    }
    df = pa.record_batch({"name": list(cases), "attributes": pa.array([[("k", n)] for n in cases], ATTRIBUTES)})
    found: dict[str, list[int]] = {name: [] for name in cases}
    opened_ = pickled(lambda row: cases[row["attributes"]["k"]])
    for batch in _batches(opened_, iter([df])):
        for row in batch.to_pylist(maps_as_pydicts="strict"):
            found[row["attributes"]["k"]].append(len(row["content"]))
    assert {name: (len(sizes), sum(sizes), max(sizes) <= MB) for name, sizes in found.items()} == {
        "lines": (3, 2_800_000, True),
        "at once": (6, 5 * MB + 3, True),
        "empty pieces": (1, 0, True),
        "none": (1, 0, True),
    }
    empty = pa.record_batch({"name": ["none"] * 30_000, "attributes": pa.nulls(30_000, ATTRIBUTES)})
    none = pickled(lambda _: b"")
    assert [batch.num_rows for batch in _batches(none, iter([empty]))] == [BATCH_ROWS] * 3


def test_a_content_ends_in_its_partition(spark: SparkSession, fleet: Fleet) -> None:
    """What goes on in no row is refused, and leaves nothing."""
    df = spark.createDataFrame([(bytearray(b"begun"), True)], "content binary, continues boolean")
    with pytest.raises(PySparkException, match="ends in the middle of a content"):
        df.write.format("ullage").mode("append").options(endpoint=fleet.endpoint, queue="in").save()
    assert (fleet.hidden(), fleet.records()) == (0, {})


@pytest.mark.parametrize("bytes_max", [1, MB, 9 * MB, 32 * MB])
def test_no_row_is_left_behind_by_a_larger_one(bytes_max: int) -> None:
    """Small ones before and after pieces, whatever a transaction may take."""
    sizes = [1, 2, 9 * MB, 3, 8 * MB, 8 * MB + 1, 4]
    batch = pa.record_batch({"content": pa.array([b"x" * size for size in sizes], pa.binary())})
    whole: list[int] = []
    open_ = b""
    for each in Packed(iter([batch]), bytes_max).batches():
        for row in each.to_pylist():
            open_ += row["content"]
            if not row["continues"]:
                whole.append(len(open_))
                open_ = b""
    assert whole == sizes


def test_a_fingerprint_is_of_contents_however_they_are_split() -> None:
    """And differs where only the pieces' order does."""

    def of(*pieces: tuple[bytes, bool]) -> tuple[int, str]:
        contents, continues = zip(*pieces, strict=True)
        batch = pa.record_batch({"content": pa.array(contents, pa.binary()), "continues": pa.array(continues)})
        found = Fingerprint()
        list(found.seeing(iter([batch.slice(at, 1) for at in range(len(pieces))])))
        return found.count, found.text

    assert of((b"abcd", False), (b"x", False)) == of((b"x", False), (b"ab", True), (b"cd", False))
    assert of((b"ab", True), (b"cd", False)) != of((b"cd", True), (b"ab", False))
    assert of((b"ab", False), (b"cd", False)) != of((b"ab", True), (b"cd", False))


def test_who_restored_is_told_where_it_came_from(spark: SparkSession) -> None:
    """Of a content in parts each row says it: the first one counts."""
    rows = [("a", "u", 0, 2, bytearray(b"1"), None, {"k": "v"}), ("a", "u", 1, 2, bytearray(b"2"), None, {"k": "v"})]
    columns = "node string, uuid string, part int, parts int, content binary, problem string"
    df = spark.createDataFrame(rows, f"{columns}, attributes map<string,string>").repartition(2)
    sized = df.selectExpr("*", "'in' AS queue", "2L AS size")
    found = [(bytes(row.content), row.continues, row.attributes) for row in restorable(sized).collect()]
    said = {"k": "v", RESTORED_FROM: "u@a"}
    assert found == [(b"1", True, said), (b"2", False, said)]

"""Content opened in the task: the right bytes over every path, whatever happens to the files meanwhile."""

import gc
import hashlib
import os
import random
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tests.spark.fleet import Fleet, fleet_at
from tests.support import drain
from ullage.client.socket import SocketClient
from ullage.contentfile import ContentFile
from ullage.contract import AuthMode, QueueRule
from ullage.wire.frames import ClaimKey, Place
from ullage.wire.tickets import TableTicket
from ullage_agent.service.tokens import line_of, new_token
from ullage_spark import SparkSourceError, snapshot, with_content
from ullage_spark.carried import opened
from ullage_spark.errors import ContentUnreadable
from ullage_spark.fleet import discover, flight_of, socket_of
from ullage_spark.opener import AHEAD, ContentUse, Opener, pickled
from ullage_spark.reader import TableReader
from ullage_spark.settings import SourceOptions
from ullage_spark.whereabouts import ADDRESS
from ullage_spark.workers import begin_task

Key = TypeVar("Key")

SCHEMA = "node string, uuid string, digest string"


def digests(rows: pa.RecordBatch, contents: list[bytes | None]) -> pa.RecordBatch:
    """What a test, like any program, makes of contents."""
    found = [None if content is None else hashlib.sha256(content).hexdigest() for content in contents]
    columns = [rows.column("node"), rows.column("uuid"), pa.array(found, pa.string())]
    return pa.RecordBatch.from_arrays(columns, names=["node", "uuid", "digest"])


def file_digests(rows: pa.RecordBatch, files: list[ContentFile]) -> pa.RecordBatch:
    """The same of files."""
    return digests(rows, [file.read() for file in files])


def piece_digests(rows: pa.RecordBatch, files: list[ContentFile]) -> pa.RecordBatch:
    """The same of files that are read piece by piece."""
    return digests(rows, [b"".join(iter(partial(file.read, 10_000), b"")) for file in files])


def collected(df: DataFrame) -> dict[tuple[str, str], str | None]:
    return {(row.node, row.uuid): row.digest for row in df.collect()}


def expected(contents: Mapping[Key, bytes]) -> dict[Key, str | None]:
    return {key: hashlib.sha256(content).hexdigest() for key, content in contents.items()}


@pytest.mark.parametrize("path", ["descriptors", "flight"])
def test_contents_are_those_of_a_single_node(spark: SparkSession, fleet: Fleet, path: str) -> None:
    """Of queues and handles, of all sizes; through descriptors where the socket is, over Flight where it is not."""
    contents = fleet.fill(5, 40)
    options: dict[str, Any] = {"endpoint": fleet.endpoint, **({} if path == "descriptors" else {"socket": "/nowhere"})}
    local = [socket_of(SourceOptions.of(options), node) is not None for node in discover(SourceOptions.of(options))]
    assert local == [path == "descriptors"] * 2

    with snapshot(spark, **options) as held:
        found = collected(with_content(held.table("flowfiles"), digests, SCHEMA, group_bytes=500_000, **options))
        at_source = collected(held.with_content(digests, SCHEMA, group_bytes=500_000))
        leases = [lease for agent in fleet.agents.values() for lease in agent.repository.leases.all()]

    assert [lease.resources for lease in leases] == [(), ()]  # the snapshot's: no worker holds a file beyond its task
    assert found == at_source == expected(contents)


def asked_for(fleet: Fleet) -> tuple[Callable[[ContentUse], Opener], pa.RecordBatch]:
    """What a task has that opens all contents of node `a`: its opener, of a use, and rows as swap files have them."""
    settings = SourceOptions.of({"endpoint": fleet.endpoint})
    node = next(node for node in discover(settings) if node.name == "a")
    columns = TableTicket(name="flowfiles", columns=["uuid", *ADDRESS])
    table = flight_of(settings, node).table(columns).read_all().sort_by([(name, "ascending") for name in ADDRESS[:2]])
    rows = table.combine_chunks().to_batches()[0]
    rows = rows.append_column("node", pa.array(["a"] * rows.num_rows))
    return lambda how: Opener(settings, {"a": node}, how), rows


def test_small_neighbours_are_cut_out_of_what_is_read_at_once_and_verified(
    fleet: Fleet, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No address of one is looked at by itself, as long as all read back; then it is said which does not."""
    random_bytes = random.Random(seed).randbytes
    contents = [random_bytes(1_000 + number % 7) for number in range(600)]
    repository = fleet.repository("a")
    with repository.session() as session:
        (record, *_) = session.ingest("in", contents)
        session.commit()
    opener_of, rows = asked_for(fleet)

    def use(_: pa.RecordBatch, found: list[bytes]) -> pa.RecordBatch:
        return pa.record_batch([pa.array(found, pa.binary())], names=["content"])

    def opened() -> list[bytes]:
        made = opener_of(ContentUse(pickled(use), group_bytes=100_000)).run(iter([rows]))
        return [content for batch in made for content in batch.column("content").to_pylist()]

    with monkeypatch.context() as patched:
        patched.delattr(SocketClient, "read_born")
        assert opened() == contents
    assert record.claim is not None
    entry = repository.ledger.entry(record.claim.resource)
    assert entry is not None
    path = Path(repository.content.path_of(entry.claim))
    before = path.read_bytes()
    path.write_bytes(before.replace(contents[300], bytes(len(contents[300]))))
    with pytest.raises(ContentUnreadable, match="corrupt"):
        opened()
    path.write_bytes(before)
    assert opened() == contents


def with_uuid(rows: pa.RecordBatch, found: list[bytes | str]) -> pa.RecordBatch:
    """Contents, or in their place what is wrong with them."""
    contents = [each.encode() if isinstance(each, str) else each for each in found]
    return pa.record_batch([rows.column("uuid"), pa.array(contents, pa.binary())], names=["uuid", "content"])


def test_each_row_gets_its_own_content_whatever_the_order_of_rows(
    fleet: Fleet, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small ones with gaps between them, slices, a row twice, large and empty ones in one group; a damaged one is the
    only one that is not read.
    """
    chance = random.Random(seed)
    contents = [chance.randbytes(chance.choice([1, 900, 1_000, 16 << 10])) for _ in range(300)]
    large = [chance.randbytes(300_000), b"", chance.randbytes((16 << 10) + 1)]
    repository = fleet.repository("a")
    with repository.session() as session:
        made = session.ingest("in", contents)
        small = {record.id: content for record, content in zip(made, contents, strict=True)}
        whole = session.write(session.create(), b"first" + b"second")
        parts = session.split(whole, [5, 6])
        small |= {parts[0].id: b"first", parts[1].id: b"second"}
        session.remove(whole)
        session.transfer_many(parts, "in")
        others = session.ingest("in", large)
        session.commit()
    everything = small | {record.id: content for record, content in zip(others, large, strict=True)}
    opener_of, rows = asked_for(fleet)
    uuids = rows.column("uuid").to_pylist()

    def opened(chosen: list[int], **how: bool) -> list[tuple[str, bytes]]:
        opener = opener_of(ContentUse(pickled(with_uuid), **how))
        batches = list(opener.run(iter([rows.take(pa.array(chosen))])))
        return [(row["uuid"], row["content"]) for batch in batches for row in batch.to_pylist()]

    shuffled = chance.choices(range(rows.num_rows), k=2 * rows.num_rows)
    assert opened(shuffled) == [(uuids[at], everything[uuids[at]]) for at in shuffled]
    only_small = [at for at in shuffled if uuids[at] in small]
    harmed = made[150]
    assert harmed.claim is not None
    with monkeypatch.context() as patched:
        patched.delattr(SocketClient, "read_born")
        assert opened(only_small) == [(uuids[at], small[uuids[at]]) for at in only_small]
    entry = repository.ledger.entry(harmed.claim.resource)
    assert entry is not None
    path = Path(repository.content.path_of(entry.claim))
    before = path.read_bytes()
    rotten = bytearray(before)
    rotten[harmed.claim.offset] ^= 1
    path.write_bytes(rotten)

    expected = everything | {harmed.id: b"content-corrupt"}
    chosen = [*shuffled, uuids.index(harmed.id)]
    assert opened(chosen, tells_problems=True) == [(uuids[at], expected[uuids[at]]) for at in chosen]
    path.write_bytes(before)


def test_a_task_holds_the_contents_of_one_group_at_a_time(fleet: Fleet) -> None:
    """Also while it reads the next: twice as many would not be where the processor's cache and warm memory are."""
    group_bytes, size = 2_000_000, 100_000
    repository = fleet.repository("a")
    for _ in range(5):
        with repository.session() as session:
            session.ingest("in", [bytes(size)] * 20)
            session.commit()
    opener_of, rows = asked_for(fleet)

    def use(_: pa.RecordBatch, contents: list[bytes]) -> pa.RecordBatch:
        return pa.record_batch([pa.array([len(contents)], pa.int64())], names=["count"])

    opener = opener_of(ContentUse(pickled(use), group_bytes=group_bytes))
    tracemalloc.start()
    try:
        counts = [made.column("count")[0].as_py() for made in opener.run(iter([rows]))]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert counts == [20] * 5
    assert most < 1.5 * group_bytes


def test_a_workers_second_task_is_not_looked_through_with_all_modules(spark: SparkSession, fleet: Fleet) -> None:
    """PySpark looks for garbage after each task, which with them takes longer than a small task."""
    fleet.fill(3, 5)

    def told(_rows: pa.RecordBatch, _contents: list[bytes]) -> pa.RecordBatch:
        seconds = [-time.perf_counter()]
        spared = gc.get_freeze_count()  # walks through all of them
        seconds += [time.perf_counter(), -time.perf_counter()]
        begin_task()
        seconds.append(time.perf_counter())
        columns = [os.getpid(), spared, sum(seconds[2:]) / sum(seconds[:2])]
        return pa.record_batch([pa.array([each]) for each in columns], names=["process", "spared", "share"])

    with snapshot(spark, endpoint=fleet.endpoint) as held:
        df = held.with_content(told, "process bigint, spared bigint, share double", parts=2)
        first, second = df.collect(), df.collect()

    again = [row for row in second if row.process in {row.process for row in first}]
    assert again
    assert min(row.spared for row in again) > 10_000
    assert min(row.share for row in again) < 0.1  # to begin a task does not walk through them


def test_who_plans_queries_is_not_looked_through_with_all_modules_either(spark: SparkSession, fleet: Fleet) -> None:
    """Each query is planned in processes of its own, and its first tasks would run beside their look for garbage."""

    class TellingReader(TableReader):
        def __reduce__(self) -> tuple[Any, ...]:
            return opened, (cloudpickle.dumps((type(self), self.__dict__)),)  # type: ignore[no-untyped-call]

        def partitions(self) -> list[InputPartition]:
            super().partitions()
            return [InputPartition(gc.get_freeze_count())]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            return iter([(partition.value,)])

    class TellingSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ullage_telling"

        def reader(self, schema: StructType) -> DataSourceReader:
            return TellingReader(self.options, StructType())

    spark.dataSource.register(TellingSource)
    df = spark.read.format("ullage_telling").schema("spared bigint").option("endpoint", fleet.endpoint)
    found = [df.load().collect()[0].spared for _ in range(8)]

    assert max(found) > 10_000


def test_content_opened_at_the_source_is_chosen_as_rows_are(spark: SparkSession, fleet: Fleet) -> None:
    """Conditions, columns and parts are those of the table; the function may return more rows than it got, or none."""
    contents = fleet.fill(8, 30)

    def twice(rows: pa.RecordBatch, found: list[bytes | None]) -> pa.RecordBatch:
        assert set(rows.schema.names) == {"node", "attributes", "seal", *ADDRESS}
        names = [dict(pairs)["from"] for pairs in rows.column("attributes").to_pylist()]
        pairs = [(len(each), name) for each, name in zip(found, names, strict=True) if each and len(each) > 250]
        lengths, names = map(list, zip(*pairs, strict=True)) if pairs else ([], [])
        columns = [pa.array(lengths * 2, pa.int32()), pa.array(names * 2, pa.string())]
        return pa.RecordBatch.from_arrays(columns, names=["length", "name"])

    with snapshot(spark, endpoint=fleet.endpoint) as held:
        df = held.with_content(
            twice, "name string, length bigint", columns=["attributes"], where="queue = 'in' AND size > 200", parts=3
        )
        found = sorted((row.name, row.length) for row in df.collect())
        with pytest.raises(PySparkException, match="no column colour"):
            held.with_content(twice, "name string", columns=["colour"]).collect()

    queued = [(record.queue, key[0], record.size) for key, record in fleet.records().items() if record.size > 250]
    inside = {name: fleet.repository(name).queue("in").number for name in fleet.agents}
    wanted = sorted((name, size) for queue, name, size in queued if queue == inside[name])
    assert len(contents) > len(wanted) > 10
    assert found == sorted(wanted * 2)


def test_files_are_asked_for_ahead_in_few_transactions(
    spark: SparkSession, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small the groups: each question with a new file is a sync of the node's. Empty contents have no file. Of
    large contents no more is asked afterwards, not by the piece either.
    """
    asked: list[int] = []
    resolve = SocketClient.resolve_claims

    def counted(client: SocketClient, claims: Sequence[ClaimKey]) -> list[Place]:
        asked.extend([len(claims)] if claims else [])
        return resolve(client, claims)

    monkeypatch.setattr(SocketClient, "resolve_claims", counted)
    repository = fleet.repository("a")
    contents = [b"", *(number.to_bytes(4) * (75 << 10) for number in range(AHEAD + 6)), b""]
    for content in contents:
        with repository.session() as session:
            session.ingest("in", [content, bytes(1 << 20)])  # what follows ends the file
            session.commit()
    settings = SourceOptions.of({"endpoint": fleet.endpoint})
    nodes = {node.name: node for node in discover(settings)}
    with snapshot(spark, endpoint=fleet.endpoint) as held:
        rows = held.table("flowfiles", where=f"size < {1 << 20}").toArrow().combine_chunks().to_batches()
        before = repository.log.durable
        opener = Opener(settings, nodes, ContentUse(pickled(digests), group_bytes=1 << 20))
        found, spent = [], 0
        for batch in opener.run(iter(rows)):
            found.append(batch.column("digest").to_pylist())
            spent = repository.log.durable - before
        whole = asked[:]
        opener = Opener(settings, nodes, ContentUse(pickled(piece_digests), group_bytes=100_000, as_files=True))
        again = [digest for batch in opener.run(iter(rows)) for digest in batch.column("digest").to_pylist()]

    assert [digest for each in found for digest in each] == again
    assert sorted(again) == sorted(map(str, expected(dict(enumerate(contents))).values()))
    assert len(found) > 20
    assert (spent, whole, asked[len(whole) :]) == (2, [AHEAD, 6], [AHEAD, 6])


def test_slices_are_read_as_slices(spark: SparkSession, fleet: Fleet) -> None:
    """A split shares its parent's claim: each part is its own bytes."""
    whole = bytes(range(256)) * 4_000
    with fleet.repository("a").session() as session:
        parent = session.write(session.create(), whole)
        parts = session.split(parent, [1, 700_000, 1_000, 322_999])
        session.remove(parent)
        session.transfer_many(parts, "parts")
        session.commit()

    with snapshot(spark, endpoint=fleet.endpoint) as held:
        found = collected(with_content(held.table("flowfiles"), digests, SCHEMA, endpoint=fleet.endpoint))

    bounds = [0, 1, 700_001, 701_001, 1_024_000]
    wanted = {
        ("a", part.id): hashlib.sha256(whole[start:end]).hexdigest()
        for part, start, end in zip(parts, bounds, bounds[1:], strict=False)
    }
    assert found == wanted


def drop_and_reclaim(fleet: Fleet) -> None:
    for agent in fleet.agents.values():
        for queue in ("in", "out"):
            agent.repository.queues.drop(agent.repository.queue(queue))
        agent.repository.reclamation.execute(agent.repository.reclamation.plan_truncation(eager=True))
        agent.repository.reclamation.clean()
        agent.repository.compactor.execute(agent.repository.compactor.plan(policy="CompactAll"))


def rewrite(fleet: Fleet) -> None:
    for agent in fleet.agents.values():
        agent.repository.queues.drop(agent.repository.queue("out"))
        agent.repository.compactor.execute(agent.repository.compactor.plan(policy="CompactAll"))


def revoke(fleet: Fleet) -> None:
    for agent in fleet.agents.values():
        for lease in agent.repository.leases.all():
            if lease.resources:  # those of connections, not the snapshot's own
                agent.repository.leases.revoke(lease.id)


@pytest.mark.parametrize("disturb", [drop_and_reclaim, rewrite, revoke])
def test_what_happens_to_the_files_meanwhile_changes_no_byte(
    spark: SparkSession, fleet: Fleet, disturb: Callable[[Fleet], None]
) -> None:
    """Deleted, truncated, rewritten, its leases revoked again and again: a snapshot's content is read as it was."""
    contents = fleet.fill(6, 40)
    over = threading.Event()

    def go_on() -> None:
        while not over.is_set():
            disturb(fleet)
            over.wait(0.05)

    with snapshot(spark, endpoint=fleet.endpoint) as held:
        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            df = held.table("flowfiles", parts=4)
            found = collected(with_content(df, digests, SCHEMA, group_bytes=300_000, endpoint=fleet.endpoint))
            at_source = collected(held.with_content(digests, SCHEMA, group_bytes=300_000, parts=4))
        finally:
            over.set()
            thread.join()

    assert found == at_source == expected(contents)


def test_content_that_is_gone_is_told_and_never_guessed(spark: SparkSession, fleet: Fleet, tmp_path: Path) -> None:
    """Without a snapshot rows may outlive their content: the task fails, or says None."""
    contents = fleet.fill(7, 5)
    rows = spark.read.format("ullage").option("endpoint", fleet.endpoint).load().collect()
    saved = str(tmp_path / "rows")
    spark.read.format("ullage").option("endpoint", fleet.endpoint).load().filter("queue is not null").write.parquet(
        saved
    )
    drop_and_reclaim(fleet)

    with pytest.raises(PySparkException, match="its content is gone"):
        collected(with_content(spark.read.parquet(saved), digests, SCHEMA, endpoint=fleet.endpoint))
    lenient = with_content(spark.read.parquet(saved), digests, SCHEMA, skips_missing=True, endpoint=fleet.endpoint)

    found = collected(lenient)
    assert len(found) == len([row for row in rows if row.queue is not None])
    right = expected(contents)
    assert all(digest in (None, right[key]) for key, digest in found.items())
    assert list(found.values()).count(None) > len(found) / 2


@pytest.mark.parametrize("path", ["socket", "flight"])
def test_a_tenant_reads_the_contents_of_its_own_queues_only(spark: SparkSession, tmp_path: Path, path: str) -> None:
    """By where they lie, at a snapshot and without one; what others wrote into the same files is not for it."""
    token, digest = new_token()
    (tmp_path / "tokens").write_text(line_of("tenant", ("writer",), None, digest))
    auth = {
        "mode": AuthMode.TOKEN_FILE,
        "token_file": str(tmp_path / "tokens"),
        "queues": (QueueRule(prefix=""), QueueRule(prefix="in", read=("tenant",), delete=("tenant",))),
    }
    with fleet_at(tmp_path, "a", "b", auth=auth) as fleet:
        contents = fleet.fill(4, 20)
        options: dict[str, Any] = {"endpoint": fleet.endpoint, "token": token}
        if path == "flight":
            options["socket"] = "/nowhere"
        queues = {name: fleet.repository(name).queue("in").number for name in fleet.agents}
        mine = {key for key, record in fleet.records().items() if record.queue == queues[key[0]]}
        with snapshot(spark, **options) as held:
            rows = held.table("flowfiles")
            found = collected(with_content(rows, digests, SCHEMA, **options))
            for agent in fleet.agents.values():
                drain(agent.repository, "in", 5)
            at_source = collected(held.with_content(file_digests, SCHEMA, as_files=True, group_bytes=1 << 20))
            bare = rows.drop("seal")
            with pytest.raises(PySparkException, match="column seal"):
                with_content(bare, digests, SCHEMA, **options).collect()
        left = collected(
            with_content(spark.read.format("ullage").options(**options).load(), digests, SCHEMA, **options)
        )

    assert found == at_source == expected({key: contents[key] for key in mine})
    assert 0 < len(left) < len(found)
    assert left.items() <= found.items()


def test_rows_without_an_address_are_refused(spark: SparkSession, fleet: Fleet) -> None:
    """Before a task runs."""
    with pytest.raises(SparkSourceError, match="claim_crc32c"):
        with_content(spark.range(1), digests, SCHEMA, endpoint=fleet.endpoint)


def test_another_nodes_socket_is_not_taken_for_its_own(fleet: Fleet) -> None:
    """Every node has a socket of the same path: the one that is seen must be the node's."""
    a, b = discover(SourceOptions.of({"endpoint": fleet.endpoint}))
    wrong = SourceOptions.of({"endpoint": fleet.endpoint, "socket": b.socket})

    assert socket_of(wrong, a) is None
    assert socket_of(wrong, b) is not None

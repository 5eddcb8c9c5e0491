"""The sink: contents become handles, or FlowFiles of a queue, once, whatever becomes of tasks and the driver.

    driver   write id | begin on each node          | prepare on all | commit on all | told
    task     attempt id -> stage on one node        |                ^ nothing can fail any more
                                                                     ^ the first commit decides for all nodes

Each attempt stages under an id of its own (engine/staging.py): a retry, a speculative copy or a worker that died
unheard leaves nothing, because the commit names the attempts that count. An abort is compare-and-set; what begins or
ends after the verdict is refused. A driver that dies leaves open writes, which the nodes abort when their time is over,
or a decided one, which whoever repeats the write under its name (option `write`; a stream does so by itself) finishes.
"""

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ullage.errors import KeyReused, NotReachable, UllageError, WriteClosed
from ullage.wire.schemas import ATTRIBUTES, PUT_ATTRIBUTES, PUT_CONTENT, PUT_CONTINUES, PUT_SCHEMA
from ullage.wire.tickets import (
    DECISION_MAX,
    WRITE_ABORT,
    WRITE_BEGIN,
    WRITE_COMMIT,
    WRITE_FIND,
    WRITE_PREPARE,
    StagedWriteRequest,
)
from ullage_spark.addresses import FleetNode
from ullage_spark.carried import Carried
from ullage_spark.errors import SparkSourceError, WriteNotFinished
from ullage_spark.fingerprint import Fingerprint, continuing
from ullage_spark.fleet import (
    BUSY_SECONDS,
    HERE,
    ask,
    asked_again,
    called,
    flight_of,
    missing_error,
    naming,
    on_each,
    side_by_side,
)
from ullage_spark.lineage_events import ToldRun, queue_dataset
from ullage_spark.settings import SinkOptions, StoreOptions, WriteOptions
from ullage_spark.versions import DataSourceStreamArrowWriter
from ullage_spark.workers import begin_task

NAMESPACE: Final = uuid.UUID("6d1a2f6e-7f0c-4c53-9d0b-0c9a4f6d1e11")
"""Of write ids that are made of names: the same name gives the same write on every node, and in every run."""

PIECE_BYTES: Final = 8 << 20
"""Of a large content, a row of the stream: it goes on in the next."""

ROWS_MAX: Final = 10_000

OTHER_NAME: Final = "give each write a name of its own"

TEXTS: Final = "map<string,string>"

BATCH_PROPERTY: Final = "streaming.sql.batchId"
"""Spark's own name, a local property of each task of a stream."""


class StagedAttempt(Carried, WriterCommitMessage):
    """What one attempt staged: where, under which id, in how many transactions."""

    def __init__(self, node: str, attempt: str, transactions: int, rows: Fingerprint) -> None:
        self.node = node
        self.attempt = attempt
        self.transactions = transactions
        self.rows = rows


class WriteDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What nodes keep with a commit: for each node the attempts that count, and how many transactions each staged; and
    of a write with a name what it wrote where, so that nothing else is taken for it.
    """

    nodes: dict[str, dict[str, int]]
    queue: str = ""
    ttl_millis: int = 0
    has_attributes: bool = False
    rows: int = 0
    digest: str = ""

    def told(self) -> str:
        """As nodes get it. SparkSourceError if none would take it."""
        text = msgspec.json.encode(self, order="deterministic").decode()
        if len(text) > DECISION_MAX:
            count = sum(map(len, self.nodes.values()))
            raise SparkSourceError(
                f"{count:,} tasks have written rows, and what they staged cannot be told to a node in {DECISION_MAX:,} "
                "letters: coalesce the DataFrame to 50,000 partitions or fewer; nothing is written"
            )
        return text


DECIDERS_MAX: Final = 3
"""Nodes that are asked in turn to decide, before the write counts as failed: each may take its time to be silent."""


class StagingWriter(Carried):
    """What both sinks do, in tasks and on the driver."""

    def __init__(self, settings: StoreOptions, schema: StructType, *, name: str = "", application: str = "") -> None:
        _require_columns(schema)
        self._settings = settings
        self._name = name
        self._application = application
        self._has_attributes = PUT_ATTRIBUTES in map(str.lower, schema.names)
        roll = called(self._settings)
        self._nodes = roll.nodes
        if not self._nodes:
            raise SparkSourceError("there is no node to write to")
        name = name or application
        if roll.missing and name:
            # It may be there that an earlier run has decided, and been carried out: rows would be written twice.
            raise missing_error(roll.missing, len(self._nodes) + len(roll.missing), f"the write has a name, {name}")

    def _stage(self, write: str, rows: Iterator[pa.RecordBatch], *, begins: bool) -> StagedAttempt:
        """All rows of a task, as one attempt; it is staged anew, from its beginning, by whoever retries the task."""
        context = TaskContext.get()
        node = self._node_for(*((0, 0) if context is None else (context.partitionId(), context.attemptNumber())))
        if begins and self._begin(node, write) == "committed":
            return StagedAttempt(node.name, "", 0, Fingerprint())  # an earlier run of the same batch did it
        fingerprint = Fingerprint()
        rows = named(rows)
        seen = fingerprint.seeing(rows) if self._name else rows
        counted = Packed(seen, self._settings.stage_bytes)
        sent = Repeated(counted.batches())

        def staged() -> str:
            attempt = str(uuid.uuid4())
            try:
                flight_of(self._settings, node).stage(write, attempt, sent.again(), PUT_SCHEMA, sent.settle)
            except UllageError as error:
                if sent.is_settled:
                    raise SparkSourceError(f"node {node.name}: {error}") from error  # only Spark has the rows still
                raise
            return attempt

        with naming(node):
            attempt = asked_again(self._settings, staged, busy_seconds=BUSY_SECONDS)
        return StagedAttempt(node.name, attempt, counted.transactions, fingerprint)

    def _node_for(self, partition: int, retry: int) -> FleetNode:
        """The node where the executor stands, if its pod says so; else one after the other, so that all get alike. A
        retry goes to another one: what failed may be the node.
        """
        here = os.environ.get(HERE)
        local = [node for node in self._nodes if node.name == here]
        return local[0] if local and not retry else self._nodes[(partition + retry) % len(self._nodes)]

    def _begin(self, node: FleetNode, write: str) -> str:
        """Open the write on a node, or find it as it is; its state."""
        settings = self._settings
        request = StagedWriteRequest(
            write=write, queue=settings.queue, ttl_millis=settings.ttl_millis, lasts_millis=settings.lasts_millis
        )
        try:
            return ask(settings, node, WRITE_BEGIN, request).state
        except KeyReused as refusal:
            found = ask(settings, node, WRITE_FIND, StagedWriteRequest(write=write)).state
            if self._application and found == "committed":
                return found  # a batch from before the stream was told of another queue
            raise SparkSourceError(
                f"node {node.name}: a write of this name began for another queue or ttl, and is {found}: {OTHER_NAME}"
            ) from refusal

    def _commit(self, write: str, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Prepare all nodes, then commit all. WriteNotFinished if one cannot be told what others have carried out."""
        decision = self._decision(messages)
        decision.told()  # refused before a node has prepared, not when the first one decides
        nodes = [node for node in self._nodes if node.name in decision.nodes]
        # Without a name there was no earlier run. Each question goes to every node of a fleet.
        is_named = bool(self._name or self._application)
        if is_named and (decided := self._finish(write, nodes)) is not None:
            self._require_same(decided, decision)
            return

        def prepare(node: FleetNode) -> None:
            request = StagedWriteRequest(write=write, attempts=decision.nodes[node.name])
            try:
                ask(self._settings, node, WRITE_PREPARE, request)
            except WriteClosed:
                self._begin(node, write)  # a stream's began only where a task was
                ask(self._settings, node, WRITE_PREPARE, request)

        try:
            side_by_side(prepare, nodes)
        except WriteClosed:
            if self._finish(write, nodes) is None:  # else this very commit has been carried out before
                raise
        else:
            self._carry_out(write, decision)

    def _decision(self, messages: Sequence[WriterCommitMessage | None]) -> WriteDecision:
        """What these messages come to."""
        nodes: dict[str, dict[str, int]] = {node.name: {} for node in self._nodes}
        rows = Fingerprint()
        for message in messages:
            if isinstance(message, StagedAttempt):
                rows.add(message.rows)
                if message.transactions:
                    nodes[message.node][message.attempt] = message.transactions
        if self._settings.missing_nodes == "skip":
            # Where nothing of it is a node may be missing: what it has begun ends by itself.
            nodes = {name: attempts for name, attempts in nodes.items() if attempts}
        settings = self._settings
        return WriteDecision(
            nodes=nodes,
            queue=settings.queue,
            ttl_millis=settings.ttl_millis,
            has_attributes=self._has_attributes,
            rows=rows.count,
            digest=rows.text,
        )

    def _require_same(self, decided: WriteDecision, wanted: WriteDecision) -> None:
        """SparkSourceError if the write with this name was carried out with something else."""
        name = self._name
        differences = [
            f"{what} {there!r} instead of {here!r}"
            for what, there, here in (
                ("queue", decided.queue, wanted.queue),
                ("ttl", decided.ttl_millis, wanted.ttl_millis),
                ("a column of attributes", decided.has_attributes, wanted.has_attributes),
                ("a number of contents", decided.rows, wanted.rows),
                ("rows with the fingerprint", decided.digest, wanted.digest),
            )
            if there != here
        ]
        if name and differences:
            raise SparkSourceError(
                f"write {name} has been carried out already, with {' and '.join(differences)}; nothing is written now: "
                f"{OTHER_NAME}"
            )

    def _finish(self, write: str, nodes: Sequence[FleetNode]) -> WriteDecision | None:
        """What is decided of the write, by an earlier run perhaps; what is left of it is carried out then."""
        request = StagedWriteRequest(write=write)
        found = side_by_side(lambda node: ask(self._settings, node, WRITE_FIND, request), nodes)
        decided = [each.decision for each in found if each.state == "committed"]
        if not decided:
            return None
        decision = msgspec.json.decode(decided[0], type=WriteDecision)
        self._carry_out(write, decision)
        return decision

    def _abort(self, write: str) -> bool:
        """Nothing of it appears, unless some node has committed: then it is carried out, since nothing undoes that,
        and this is False.

        Spark calls this also when `commit` failed. While a node cannot be asked nothing is done: what is open ends
        alone.
        """
        try:
            if self._finish(write, self._nodes) is not None:
                return False
        except NotReachable:
            return True
        request = StagedWriteRequest(write=write)
        side_by_side(lambda node: ask(self._settings, node, WRITE_ABORT, request), self._nodes)
        return True

    def _carry_out(self, write: str, decision: WriteDecision) -> None:
        """Commit on one node, which has decided then, and on all others side by side."""
        known = {node.name: node for node in self._nodes}
        text = decision.told()

        def commit(name: str) -> tuple[str, Exception] | None:
            if name not in known:
                return name, SparkSourceError("it is not in the fleet any more")
            request = StagedWriteRequest(write=write, attempts=decision.nodes[name], decision=text)
            try:
                ask(self._settings, known[name], WRITE_COMMIT, request)
            except UllageError as error:
                return name, error
            return None

        names = sorted(decision.nodes)
        failed: list[tuple[str, Exception]] = []
        while names[len(failed) :] and (failure := commit(names[len(failed)])) is not None:
            failed.append(failure)
            if len(failed) == min(DECIDERS_MAX, len(names)):
                raise failure[1]  # nobody has decided, as far as they say: an abort may still undo it all
        rest = side_by_side(commit, [*names[len(failed) + 1 :], *(name for name, _ in failed)])
        left = [each for each in rest if each is not None]
        if left:
            name, reason = left[0]
            raise WriteNotFinished(
                f"write {write} is decided, and {len(left)} of its nodes could not be told, {name} first: repeat the "
                "write under its name"
            ) from reason


class Repeated:
    """Batches that can be sent once more, until the node has told of the first: one that has no room for another stream
    says so when some of them are on their way.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._rest = batches
        self._taken: list[pa.RecordBatch] = []
        self.is_settled = False

    def again(self) -> Iterator[pa.RecordBatch]:
        """All of them, from the first on."""
        yield from self._taken[:]
        for batch in self._rest:
            if not self.is_settled:
                self._taken.append(batch)
            yield batch

    def settle(self) -> None:
        """They are not sent again, and forgotten."""
        self.is_settled = True
        self._taken = []


class Packed:
    """Rows on their way into transactions of about so many bytes. `transactions` counts as the node does."""

    def __init__(self, rows: Iterator[pa.RecordBatch], bytes_max: int) -> None:
        self._rows = rows
        self._bytes_max = bytes_max
        self._goes_on = False
        self.transactions = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """What the stream is made of."""
        for batch in self._rows:
            yield from self._packed(batch)
        if self._goes_on:
            raise SparkSourceError(
                f"a partition ends in the middle of a content: its last row has {PUT_CONTINUES}, and no row follows. "
                "All rows of a content stand in one partition, one after the other"
            )

    def _packed(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        contents = batch.column(PUT_CONTENT)
        if contents.null_count:
            raise SparkSourceError(f"column {PUT_CONTENT} holds nulls: an empty content is no null")
        has_attributes = PUT_ATTRIBUTES in batch.schema.names
        attributes = batch.column(PUT_ATTRIBUTES) if has_attributes else pa.nulls(batch.num_rows, ATTRIBUTES)
        continues = continuing(batch)
        sizes = pc.binary_length(contents).to_pylist()
        first, total = 0, 0
        for at, size in enumerate([*sizes, None]):
            in_pieces = size is not None and (size > PIECE_BYTES or self._goes_on or continues[at])
            is_over = size is None or in_pieces or total + size > self._bytes_max or at - first >= ROWS_MAX
            if at > first and is_over:
                self.transactions += 1
                count = at - first
                yield _batch(contents.slice(first, count), attributes.slice(first, count), continues=False)
                first, total = at, 0
            if in_pieces:
                self.transactions += not self._goes_on
                self._goes_on = continues[at]
                yield from _pieces(contents[at].as_buffer(), attributes.slice(at, 1), goes_on=self._goes_on)
                first, total = at + 1, 0
            elif size is not None:
                total += size


class ContentBatchWriter(StagingWriter, DataSourceArrowWriter):
    """`df.write.format("ullage")`. See the module's text."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise SparkSourceError(
                "contents are never overwritten: what stands in a queue may be in a consumer's hands, and is its "
                "consumers' to remove. Write with mode('append'), to another queue if the old contents are to stay out"
            )
        settings = WriteOptions.of(options)
        name = settings.write
        super().__init__(settings, schema, name=name)
        self._write = str(uuid.uuid5(NAMESPACE, name) if name else uuid.uuid4())
        self._decided = self._finish(self._write, self._nodes) if name else None
        if self._decided is not None:  # before the rows are worked out
            rows = {"rows": self._decided.rows, "digest": self._decided.digest}
            self._require_same(self._decided, msgspec.structs.replace(self._decision(()), **rows))
        else:
            missing = {each.name for each in on_each(self._settings, self._nodes, self._begun)}
            self._nodes = tuple(node for node in self._nodes if node.name not in missing)
        self._told = ToldRun.of("ullage.write", settings, output=queue_dataset(settings.queue))
        self._told.tell("START")

    def _begun(self, node: FleetNode) -> None:
        self._begin(node, self._write)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage them; of what is written already only look whether it is the same."""
        begin_task()
        if self._decided is None:
            return self._stage(self._write, iterator, begins=False)
        rows = Fingerprint()
        for _ in rows.seeing(named(iterator)):
            pass
        return StagedAttempt("", "", 0, rows)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._decided is None:
            self._commit(self._write, messages)
        else:
            self._require_same(self._decided, self._decision(messages))
        self._told.tell("COMPLETE")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._decided is None and not self._abort(self._write):
            self._told.tell("COMPLETE")
        else:
            self._told.tell("FAIL", "Spark aborted the write, and says itself why")


class ContentStreamWriter(StagingWriter, DataSourceStreamArrowWriter):
    """`df.writeStream.format("ullage")`: each batch once, by the application's name and the batch's number."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        settings = SinkOptions.of(options)
        if not settings.application:
            raise SparkSourceError("option application names the stream: with its checkpoint it makes batches unique")
        super().__init__(settings, schema, application=settings.application)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        begin_task()
        context = TaskContext.get()
        batch = None if context is None else context.getLocalProperty(BATCH_PROPERTY)
        if batch is None:
            raise SparkSourceError(f"Spark did not say which batch this is ({BATCH_PROPERTY})")
        return self._stage(self._write_of(int(batch)), iterator, begins=True)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        job = f"ullage.stream.{self._application}"
        with ToldRun.of(job, self._settings, output=queue_dataset(self._settings.queue)).told():
            self._commit(self._write_of(batchId), messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._abort(self._write_of(batchId))

    def _write_of(self, batch: int) -> str:
        return str(uuid.uuid5(NAMESPACE, f"{self._application}\0{batch}"))


def named(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same with the columns' names as they are here: small and capital letters are alike in SQL."""
    return (batch.rename_columns([name.lower() for name in batch.schema.names]) for batch in batches)


def _require_columns(schema: StructType) -> None:
    """SparkSourceError for columns that cannot be stored: none is left out in silence."""
    fields = {field.name.lower(): field.dataType.simpleString() for field in schema}
    if len(fields) < len(schema.fields):
        raise SparkSourceError(f"columns {', '.join(schema.names)}: small and capital letters are alike")
    if fields.get(PUT_CONTENT) != "binary":
        raise SparkSourceError(
            f"a write has a column {PUT_CONTENT} of binary, and may have {PUT_ATTRIBUTES}; a table for INSERT INTO is "
            "made with option table 'put'"
        )
    given = fields.get(PUT_ATTRIBUTES, TEXTS)
    if given != TEXTS:
        raise SparkSourceError(f"column {PUT_ATTRIBUTES} is a map of string to string, not {given}")
    if fields.get(PUT_CONTINUES, "boolean") != "boolean":
        raise SparkSourceError(f"column {PUT_CONTINUES} is a boolean, not {fields[PUT_CONTINUES]}")
    if unknown := fields.keys() - set(PUT_SCHEMA.names):
        raise SparkSourceError(f"columns {', '.join(sorted(unknown))} cannot be stored: put them into {PUT_ATTRIBUTES}")


def _pieces(content: pa.Buffer, attributes: Any, *, goes_on: bool) -> Iterator[pa.RecordBatch]:
    for start in range(0, max(1, content.size), PIECE_BYTES):
        piece = pa.array([content.slice(start, min(PIECE_BYTES, content.size - start)).to_pybytes()], pa.binary())
        yield _batch(piece, attributes, continues=goes_on or start + PIECE_BYTES < content.size)


def _batch(contents: Any, attributes: Any, *, continues: bool) -> pa.RecordBatch:
    columns = [contents.cast(pa.binary()), attributes.cast(ATTRIBUTES), pa.repeat(continues, len(contents))]
    return pa.RecordBatch.from_arrays(columns, schema=PUT_SCHEMA)

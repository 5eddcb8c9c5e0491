"""Sessions of a remote repository.

What only changes what the session knows (attributes, where FlowFiles go, reports, counters) is gathered here and sent
with the next verb that needs the node, at the latest with the commit; each such batch has a number of its own, so that
one that is sent again after a break is carried out once. Content goes to the node at once, and is never fetched from
there to clone, split, merge or append.

    first verb | POST /v1/sessions     | a heartbeat every third of the lease, from a thread of the repository
    commit     | POST .../commit       | again under the session's own key until it is answered: it happens once
    break      | the node keeps the session for its lease; what was not answered is sent again
"""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, Final, Self

import msgspec

from ullage.client.heartbeats import Heartbeats
from ullage.client.http import Query, items_of, json_batches, of_each
from ullage.client.link import NodeLink, name_of, new_key
from ullage.client.retries import NEVER
from ullage.enums import EventType, Lifetime
from ullage.errors import (
    BackPressure,
    FlowFileNotFound,
    NotReachable,
    QueueNotFound,
    RepositoryClosed,
    SessionGone,
    SessionMisuse,
    TransactionTooLarge,
    UllageError,
)
from ullage.interface.checks import (
    checked_attributes,
    checked_batch,
    checked_conditions,
    checked_name,
    checked_note,
    checked_number,
    checked_numbers,
    checked_part,
    checked_queue,
    checked_removals,
    checked_text,
    id_of,
    ids_of,
)
from ullage.interface.reporter import REPORTED_MAX, Reporter, checked_report
from ullage.interface.session import BATCH_MAX, PENALTY_MILLIS, Session
from ullage.interface.values import AnyContent, AnyFlowFile, Attributes, Subjects
from ullage.streams import ContentStream
from ullage.wire import operations
from ullage.wire.documents import COUNTERS_MAX
from ullage.wire.operation import A, Operation
from ullage.wire.queues import FlowFile, FlowFileBatch
from ullage.wire.sessions import (
    ChangesRequest,
    CloneRequest,
    CommitRequest,
    CreateRequest,
    ExtendRequest,
    FlowFileChange,
    ImportRequest,
    MergeRequest,
    ProvenanceReport,
    RollbackRequest,
    SessionPollRequest,
    SessionRequest,
    SplitRequest,
)

INGEST_BYTES: Final = 4 << 20
"""Content of one request: what has to be sent again after a break. A larger one goes by itself, as it is."""

GATHERED_MAX: Final = 5_000
"""Changes that are gathered before they are sent."""

VALUES_MAX: Final = 100_000
"""Or names and values in them: a node takes three times as many in one request, and a change has a tenth of that."""

CHANGE_VALUES: Final = 30
"""What a change has of them at most, beside FlowFiles and attributes: its fields, and those of a report."""


class RemoteSession(Session):
    """Knows the FlowFiles that it holds, as they are with all that is gathered."""

    def __init__(self, link: NodeLink, heartbeats: Heartbeats, request: SessionRequest) -> None:
        self._link = link
        self._heartbeats = heartbeats
        self._request = request
        self.provenance = RemoteReporter(self)
        self._is_closed = False
        self._begin_anew()

    def __enter__(self) -> Self:
        self._heartbeats.add(self.beat, self._request.visibility_seconds / 3)
        return self

    def close(self) -> None:
        self._heartbeats.remove(self.beat)
        with contextlib.suppress(NotReachable, RepositoryClosed):  # the node rolls it back when its lease is over
            self.rollback()
        self._is_closed = True

    def beat(self) -> None:
        """A sign of life. What it meets the next verb will meet, and tell."""
        session = self._id
        if session is not None:
            # Not again: while it waited, all other sessions would be without a sign of life.
            self._link.ask(operations.EXTEND_SESSION, ExtendRequest(), retries=NEVER, session=session)

    def get_many(self, queue: str, count: int = BATCH_MAX, *, attributes: Attributes | None = None) -> list[FlowFile]:
        wanted = checked_conditions(attributes)
        body = SessionPollRequest(
            queue=checked_queue(queue), count=checked_number(count, "count", 1, BATCH_MAX), attributes=wanted
        )
        return [self._kept(each) for each in self._ask(operations.POLL_SESSION, body)]

    def create(self, parents: Sequence[AnyFlowFile] = (), attributes: Attributes | None = None) -> FlowFile:
        body = CreateRequest(parents=self._ids(parents), attributes=checked_attributes(attributes))
        return self._made(operations.CREATE_FLOW_FILE, body)

    def ingest(
        self,
        queue: str,
        contents: Sequence[bytes],
        attributes: Attributes | Sequence[Attributes] | None = None,
        lifetime: Lifetime = Lifetime.DEFAULT,
    ) -> list[str]:
        queue = checked_queue(queue)
        contents, found = checked_batch(contents, attributes)
        mappings = of_each(contents, found)
        ids: list[str] = []
        for start, end in json_batches(contents, found, INGEST_BYTES):
            if len(contents[start]) > INGEST_BYTES:
                large = self._send(operations.STORE_FLOW_FILE, contents[start], lifetime, mappings[start])
                self._gather([large.id], to=queue)
                ids.append(large.id)
                continue
            body = FlowFileBatch(items=items_of(contents[start:end], mappings[start:end]))
            query = {"queue": queue, "lifetime": name_of(lifetime)}
            ids += self._ask(operations.INGEST_FLOW_FILES, body, query=query).ids
        self._ingested.update(ids)
        return ids

    def import_handle(self, handle: str, attributes: Attributes | None = None) -> FlowFile:
        body = ImportRequest(handle=checked_text(handle, "a handle"), attributes=checked_attributes(attributes))
        return self._made(operations.IMPORT_HANDLE, body)

    def read(self, flow_file: AnyFlowFile, start: int = 0, size: int | None = None) -> ContentStream:
        start, size = checked_part(start, size)
        id = self._held(flow_file).id
        return self._link.stream(operations.GET_FLOW_FILE, start, size, session=self._begun(), id=id)

    def write(self, flow_file: AnyFlowFile, content: AnyContent, lifetime: Lifetime = Lifetime.DEFAULT) -> FlowFile:
        return self._kept(self._send(operations.WRITE_FLOW_FILE, content, lifetime, id=self._held(flow_file).id))

    def append(self, flow_file: AnyFlowFile, content: AnyContent) -> FlowFile:
        return self._kept(self._send(operations.APPEND_FLOW_FILE, content, id=self._held(flow_file).id))

    def clone(self, flow_file: AnyFlowFile, start: int = 0, size: int | None = None) -> FlowFile:
        start, size = checked_part(start, size)
        body = CloneRequest(start=start, size=size)
        return self._made(operations.CLONE_FLOW_FILE, body, id=self._held(flow_file).id)

    def split(self, flow_file: AnyFlowFile, sizes: Sequence[int]) -> list[FlowFile]:
        body, id = SplitRequest(sizes=checked_numbers(sizes, "a size")), self._held(flow_file).id
        return [self._kept(each) for each in self._ask(operations.SPLIT_FLOW_FILE, body, id=id)]

    def _merge(self, flow_files: Sequence[AnyFlowFile], header: bytes, demarcator: bytes, footer: bytes) -> FlowFile:
        body = MergeRequest(ids=self._ids(flow_files), header=header, demarcator=demarcator, footer=footer)
        return self._made(operations.MERGE_FLOW_FILES, body)

    def put_attributes(self, flow_file: AnyFlowFile, attributes: Attributes) -> FlowFile:
        held, found = self._held(flow_file), checked_attributes(attributes)
        if found:
            self._gather([held.id], set_attributes=found)
        return self._kept(msgspec.structs.replace(held, attributes=held.attributes | found))

    def remove_attributes(self, flow_file: AnyFlowFile, names: Iterable[str]) -> FlowFile:
        held, names = self._held(flow_file), checked_removals(names)
        if names:
            self._gather([held.id], remove_attributes=names)
        left = {name: value for name, value in held.attributes.items() if name not in names}
        core = {"uuid": held.id, "filename": held.id, "path": "./"}
        return self._kept(msgspec.structs.replace(held, attributes=core | left))

    def transfer(self, flow_files: Subjects, queue: str, relationship: str = "") -> None:
        ids = self._ids(flow_files)
        self._gather(ids, to=checked_queue(queue), relationship=checked_note(relationship, "a relationship"))
        self._settled.update(ids)

    def remove(self, flow_files: Subjects) -> None:
        ids = self._ids(flow_files)
        self._gather(ids, removed=True)
        self._removed.update(ids)

    def penalize(self, flow_files: Subjects, millis: int = PENALTY_MILLIS) -> None:
        self._gather(self._ids(flow_files), penalty_millis=checked_number(millis, "millis", 0))

    def adjust_counter(self, name: str, delta: int) -> None:
        name = checked_name(name, "a counter's name")
        delta = checked_number(delta, "delta")
        if name not in self._counters and len(self._counters) >= COUNTERS_MAX:
            raise TransactionTooLarge(f"more than {COUNTERS_MAX} counters in one session: commit in parts")
        self._counters[name] = self._counters.get(name, 0) + delta

    def require_room(self, queue: str) -> None:
        try:
            found = self._link.ask(operations.GET_QUEUE, queue=checked_queue(queue))
        except QueueNotFound:
            return  # it is made with the first FlowFile
        if found.is_full:
            raise BackPressure(
                f"queue {queue} is full: {found.flow_files} FlowFiles, {found.size_bytes} bytes (limits "
                f"{found.count_max} and {found.bytes_max})"
            )

    def commit(self) -> None:
        unsettled = self._flow_files.keys() - self._settled - self._removed
        if unsettled:
            some = next(iter(unsettled))
            raise SessionMisuse(f"FlowFile {some} and {len(unsettled) - 1} others were not transferred or removed")
        if self._id is None and not self._counters:
            return
        body = CommitRequest(changes=self._changes, counters=self._counters)
        session = self._begun()
        try:
            self._send_pending()
            self._link.ask(operations.COMMIT_SESSION, body, key=session, session=session)
        except (NotReachable, SessionMisuse):
            raise  # the first may be tried again: it is known by its session
        except UllageError:
            with contextlib.suppress(UllageError):  # a refused commit has changed nothing: what it holds goes back
                self.rollback()
            raise
        self._begin_anew()

    def rollback(self, *, penalize: bool = False) -> None:
        session = self._id
        self._begin_anew()
        if session is None:
            return
        with contextlib.suppress(SessionGone):  # its lease is over, or it is rolled back, and only the answer was lost
            self._link.ask(operations.ROLLBACK_SESSION, RollbackRequest(penalize=penalize), session=session)

    def report(self, flow_files: Subjects, report: ProvenanceReport) -> None:
        """Gather what a component says of FlowFiles, ingested ones too."""
        ids = [id if id in self._ingested else self._held(id).id for id in ids_of(flow_files)]
        if self._reported + len(ids) > REPORTED_MAX:
            raise TransactionTooLarge(f"more than {REPORTED_MAX} provenance events in one session: commit in parts")
        self._reported += len(ids)
        self._gather(ids, report=report)

    def _begin_anew(self) -> None:
        self._id: str | None = None
        self._key = new_key()
        self._flow_files: dict[str, FlowFile] = {}
        self._ingested: set[str] = set()
        self._settled: set[str] = set()
        self._removed: set[str] = set()
        self._changes: list[FlowFileChange] = []
        self._values = 0
        self._pending: tuple[str, ChangesRequest] | None = None
        self._counters: dict[str, int] = {}
        self._reported = 0

    def _held(self, flow_file: AnyFlowFile) -> FlowFile:
        id = id_of(flow_file)
        if id in self._removed:
            raise SessionMisuse(f"FlowFile {id} was removed in this session")
        found = self._flow_files.get(id)
        if found is None:
            raise FlowFileNotFound(f"FlowFile {id} is not held by this session: get or create it first")
        return found

    def _ids(self, flow_files: Subjects) -> list[str]:
        """Looked up before anything is done to the first of them."""
        return [self._held(id).id for id in ids_of(flow_files)]

    def _kept(self, flow_file: FlowFile) -> FlowFile:
        self._flow_files[flow_file.id] = flow_file
        return flow_file

    def _gather(self, ids: Sequence[str], **change: object) -> None:
        for start in range(0, len(ids), BATCH_MAX):
            part = FlowFileChange(ids=list(ids[start : start + BATCH_MAX]), **change)  # type: ignore[arg-type]
            self._changes.append(part)
            lists = (part.ids, part.remove_attributes, 2 * list(part.set_attributes))
            self._values += CHANGE_VALUES + sum(map(len, lists))
            if len(self._changes) >= GATHERED_MAX or self._values >= VALUES_MAX:
                self._flush()

    def _flush(self) -> None:
        """Send what is gathered, for what comes next to find it done."""
        self._send_pending()
        if self._changes:
            self._pending = new_key(), ChangesRequest(changes=self._changes)
            self._changes, self._values = [], 0
            self._send_pending()

    def _send_pending(self) -> None:
        """What was sent without an answer goes again, and first."""
        if self._pending is not None:
            key, body = self._pending
            self._link.ask(operations.CHANGE_FLOW_FILES, body, key=key, session=self._begun())
            self._pending = None

    def _begun(self) -> str:
        """Its id; begins it if it is not there yet."""
        if self._is_closed:
            raise SessionMisuse("the session is closed: begin another one")
        if self._id is None:
            self._id = self._link.ask(operations.BEGIN_SESSION, self._request, key=self._key).session
        return self._id

    def _ask(self, operation: Operation[A], body: object, query: Query | None = None, **names: Any) -> A:
        self._flush()
        return self._link.ask(operation, body, query=query, session=self._begun(), **names)

    def _made(self, operation: Operation[FlowFile], body: object, **names: Any) -> FlowFile:
        return self._kept(self._ask(operation, body, **names))

    def _send(
        self,
        operation: Operation[FlowFile],
        content: AnyContent,
        lifetime: Lifetime = Lifetime.DEFAULT,
        attributes: dict[str, str] | None = None,
        **names: Any,
    ) -> FlowFile:
        self._flush()
        query = {"lifetime": name_of(lifetime)}
        return self._link.send(operation, content, attributes=attributes, query=query, session=self._begun(), **names)


class RemoteReporter(Reporter[Subjects]):
    """Gathers reports with all else that the commit brings."""

    def __init__(self, session: RemoteSession) -> None:
        self._session = session

    def report(self, type: EventType, flow_files: Subjects, **said: Any) -> None:
        found = checked_report(type, **said)
        self._session.report(flow_files, ProvenanceReport(type=type.name, **found))

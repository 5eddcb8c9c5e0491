"""Sessions over the engine's own."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import ref

from ullage.contract import QueueUse
from ullage.embedded.acting import Acting
from ullage.embedded.content import ReadableContent, readable
from ullage.embedded.once import Operations
from ullage.embedded.queues import require_puts
from ullage.embedded.rows import LazyRows, flow_file_rows
from ullage.engine import documents
from ullage.engine.engine import Engine
from ullage.engine.model import CORE, FlowFileRecord
from ullage.engine.session import ProcessSession
from ullage.enums import EventType, Lifetime
from ullage.errors import FlowFileNotFound, InvalidArgument, SessionMisuse
from ullage.interface.checks import (
    checked_attributes,
    checked_batch,
    checked_conditions,
    checked_lifetime,
    checked_name,
    checked_note,
    checked_number,
    checked_numbers,
    checked_part,
    checked_queue,
    checked_removals,
    id_of,
    ids_of,
    own_id,
)
from ullage.interface.reporter import Reporter
from ullage.interface.session import BATCH_MAX, PENALTY_MILLIS, Session
from ullage.interface.values import AnyContent, AnyFlowFile, Attributes, Subjects
from ullage.streams import ContentStream
from ullage.uuids import parse_handle
from ullage.wire.queues import FlowFile


class EmbeddedSession(Session):
    """Knows the engine's record of each FlowFile that it holds, by id."""

    def __init__(self, session: ProcessSession, node: str, acting: Acting, engine: Engine) -> None:
        self._open: ProcessSession | None = session
        self._queues, self._counters = engine.queues, engine.counters
        self._node = node
        self._acting = acting
        self._records: dict[str, FlowFileRecord] = {}
        self._ingested: dict[str, FlowFileRecord] = {}
        self.provenance = EmbeddedReporter(ref(self))

    @property
    def _session(self) -> ProcessSession:
        if self._open is None:
            raise SessionMisuse("the session is closed: begin another one")
        return self._open

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._forget()
            self._open = None

    def get_many(self, queue: str, count: int = BATCH_MAX, *, attributes: Attributes | None = None) -> list[FlowFile]:
        return [self.kept(record) for record in self._polled(queue, count, attributes)]

    def polled(self, queue: str, count: int = BATCH_MAX, attributes: Attributes | None = None) -> list[str]:
        """`get_many` without the documents, which `rows` has: the ids."""
        return self._all_kept(self._polled(queue, count, attributes))

    def _polled(self, queue: str, count: int, attributes: Attributes | None) -> list[FlowFileRecord]:
        queue, wanted = checked_queue(queue), checked_conditions(attributes)
        checked_number(count, "count", 1, BATCH_MAX)
        for use in (QueueUse.READ, QueueUse.DELETE):
            self._acting.require(use, queue)
        if wanted is None:
            return self._session.get_many(queue, count)
        return self._session.get_by(queue, _having(wanted), count)

    def create(self, parents: Sequence[AnyFlowFile] = (), attributes: Attributes | None = None) -> FlowFile:
        return self.kept(self._session.create(self._each_once(parents, "a parent"), checked_attributes(attributes)))

    def ingest(
        self,
        queue: str,
        contents: Sequence[bytes],
        attributes: Attributes | Sequence[Attributes] | None = None,
        lifetime: Lifetime = Lifetime.DEFAULT,
    ) -> list[str]:
        queue = checked_queue(queue)
        require_puts(self._queues, self._acting, queue)
        contents, mappings = checked_batch(contents, attributes)
        found = self._session.ingest(queue, contents, mappings, checked_lifetime(lifetime))
        ids = [record.id for record in found]
        self._ingested.update(zip(ids, found, strict=True))
        return ids

    def import_handle(self, handle: str, attributes: Attributes | None = None) -> FlowFile:
        self._acting.require(QueueUse.READ)
        uuid = parse_handle(own_id(handle, self._node))
        return self.kept(self._session.import_handle(uuid, checked_attributes(attributes)))

    def read(self, flow_file: AnyFlowFile, start: int = 0, size: int | None = None) -> ContentStream:
        self._acting.right.require()
        return self._session.read(self._record(flow_file), *checked_part(start, size))

    def write(self, flow_file: AnyFlowFile, content: AnyContent, lifetime: Lifetime = Lifetime.DEFAULT) -> FlowFile:
        return self.kept(self._session.write(self._record(flow_file), content, checked_lifetime(lifetime)))

    def append(self, flow_file: AnyFlowFile, content: AnyContent) -> FlowFile:
        return self.kept(self._session.append(self._record(flow_file), content))

    def clone(self, flow_file: AnyFlowFile, start: int = 0, size: int | None = None) -> FlowFile:
        return self.kept(self._session.clone(self._record(flow_file), *checked_part(start, size)))

    def split(self, flow_file: AnyFlowFile, sizes: Sequence[int]) -> list[FlowFile]:
        return [self.kept(record) for record in self._fragments(flow_file, sizes)]

    def fragments(self, flow_file: AnyFlowFile, sizes: Sequence[int]) -> list[str]:
        """`split` without the documents: the ids."""
        return self._all_kept(self._fragments(flow_file, sizes))

    def _fragments(self, flow_file: AnyFlowFile, sizes: Sequence[int]) -> list[FlowFileRecord]:
        return self._session.split(self._record(flow_file), checked_numbers(sizes, "a size"))

    def _merge(self, flow_files: Sequence[AnyFlowFile], header: bytes, demarcator: bytes, footer: bytes) -> FlowFile:
        return self.kept(self._session.merge(self._each_once(flow_files, "merged"), header, demarcator, footer))

    def put_attributes(self, flow_file: AnyFlowFile, attributes: Attributes) -> FlowFile:
        return self.kept(self._session.put_attributes(self._record(flow_file), checked_attributes(attributes)))

    def remove_attributes(self, flow_file: AnyFlowFile, names: Iterable[str]) -> FlowFile:
        return self.kept(self._session.remove_attributes(self._record(flow_file), checked_removals(names)))

    def change_attributes(self, ids: Iterable[str], attributes: Attributes, removals: Iterable[str]) -> Iterator[None]:
        """Set and remove attributes of each, one step after the other. What they are is checked once."""
        attributes, names = checked_attributes(attributes), checked_removals(removals)
        for id in dict.fromkeys(ids):
            record = self._record(id)
            if attributes:
                record = self._session.put_attributes(record, attributes)
            if names:
                record = self._session.remove_attributes(record, names)
            self._records[id] = record
            yield

    def transfer(self, flow_files: Subjects, queue: str, relationship: str = "") -> None:
        queue = checked_queue(queue)
        require_puts(self._queues, self._acting, queue)
        self._session.transfer_many(self._all(flow_files), queue, checked_note(relationship, "a relationship"))

    def remove(self, flow_files: Subjects) -> None:
        self._session.remove_many(self._all(flow_files))

    def penalize(self, flow_files: Subjects, millis: int = PENALTY_MILLIS) -> None:
        checked_number(millis, "millis", 0)
        for record in self._all(flow_files):
            self._session.penalize(record, millis)

    def adjust_counter(self, name: str, delta: int) -> None:
        name, delta = checked_name(name, "a counter's name"), checked_number(delta, "delta")
        if self._acting.counters_max is not None:
            self._counters.reserve(name, self._acting.owner, self._acting.counters_max)
        self._session.adjust_counter(name, delta)

    def require_room(self, queue: str) -> None:
        queue = checked_queue(queue)
        require_puts(self._queues, self._acting, queue)
        self._session.require_room(queue)

    def unsettled(self) -> list[str]:
        """The ids of those that were neither transferred nor removed yet."""
        return [record.id for record in self._session.unsettled()]

    def rows(self, ids: Iterable[str] | None = None) -> LazyRows[FlowFile]:
        """What the session holds, as it is now, or these; what it has removed too, until the commit. Any thread may
        ask.
        """
        known = self._records
        return flow_file_rows(list(known.values()) if ids is None else [known[id] for id in ids if id in known])

    def sizes(self) -> list[int]:
        """Of the contents of what it holds. Any thread may ask."""
        return [record.size for record in list(self._records.values())]

    def readable(self, flow_file: AnyFlowFile) -> ReadableContent:
        """A FlowFile's content, before it is opened."""
        record = self._record(flow_file)
        return readable(record, lambda start, size, _blocks: self._session.read(record, start, size))

    def begin(
        self, flow_file: AnyFlowFile, lifetime: Lifetime = Lifetime.DEFAULT, *, appends: bool = False
    ) -> "FlowFileContent":
        """Content for a FlowFile that comes piece by piece, in place of what it has, or behind it."""
        record = self._record(flow_file)
        made = FlowFileContent(self, self._session, record, lifetime)
        if appends:
            for piece in self._session.read(record):
                made.write(piece)
        return made

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit, as after a rollback, and a commit whatever came of it."""
        return self._session.is_empty

    @contextmanager
    def as_a_whole(self) -> Iterator[None]:
        """What is changed meanwhile stands if this ends well. If not, all is as it was before, unless a commit
        has ended it: the same can be asked again, with nothing lost or done twice.
        """
        before = dict(self._records)
        try:
            with self._session.as_a_whole():
                yield
        except BaseException:
            if self.is_empty:
                self._forget()
            else:
                self._records = before
            raise

    def commit(self, also: Operations = ()) -> None:
        self._session.commit(also)
        self._forget()

    def rollback(self, *, penalize: bool = False) -> None:
        self._session.rollback(penalize=penalize)
        self._forget()

    def kept(self, record: FlowFileRecord) -> FlowFile:
        """Note what a FlowFile has become."""
        document = documents.flow_file(record)
        self._records[document.id] = record
        return document

    def _all_kept(self, records: list[FlowFileRecord]) -> list[str]:
        """The same of many, by their ids."""
        found = {record.id: record for record in records}
        self._records.update(found)
        return list(found)

    def _record(self, flow_file: AnyFlowFile) -> FlowFileRecord:
        id = id_of(flow_file)
        found = self._records.get(id)
        if found is None:
            raise FlowFileNotFound(f"FlowFile {id} is not held by this session: get or create it first")
        return found

    def report(self, type: EventType, flow_files: Subjects, **said: Any) -> None:
        """See `Reporter.report`; on ingested ones too."""
        reporter = self._session.provenance
        reporter.report(type, [self._ingested.get(id) or self._record(id) for id in ids_of(flow_files)], **said)

    def _all(self, flow_files: Subjects) -> list[FlowFileRecord]:
        """Looked up before anything is done to the first of them."""
        return [self._record(id) for id in ids_of(flow_files)]

    def _each_once(self, flow_files: Sequence[AnyFlowFile], what: str) -> list[FlowFileRecord]:
        """The same of those whose attributes are compared. InvalidArgument for one that is named twice: it adds nothing
        to what they have in common, and ten thousand times the same one took 28 seconds.
        """
        found = self._all(flow_files)
        if len({record.uuid for record in found}) < len(found):
            raise InvalidArgument(f"a FlowFile is {what} twice: name each once")
        return found

    def _forget(self) -> None:
        self._records.clear()
        self._ingested.clear()


class EmbeddedReporter(Reporter[Subjects]):
    """Passes reports on to its session, which it does not keep: one that is dropped is collected at once."""

    def __init__(self, session: ref[EmbeddedSession]) -> None:
        self._session = session

    def report(self, type: EventType, flow_files: Subjects, **said: Any) -> None:
        session = self._session()
        if session is None:
            raise SessionMisuse("the session of this reporter is gone")
        session.report(type, flow_files, **said)


class FlowFileContent:
    """A FlowFile's new content on its way in: `write` as often as it takes, then `commit` or `abandon`."""

    def __init__(
        self, session: EmbeddedSession, engine: ProcessSession, record: FlowFileRecord, lifetime: Lifetime
    ) -> None:
        self._session = session
        self._engine = engine
        self._record = record
        self._writing = engine.writing(record, lifetime)
        self._stream = self._writing.__enter__()

    def write(self, data: bytes) -> None:
        """Append. After an error only `abandon` is left."""
        self._stream.write(data)

    def abandon(self) -> None:
        """The FlowFile's content stays what it was."""
        self._stream.abandon()

    def commit(self) -> FlowFile:
        """The FlowFile with this content."""
        self._writing.__exit__(None, None, None)
        return self._session.kept(self._engine.put_attributes(self._record, {}))


def _having(attributes: Attributes) -> Callable[[FlowFileRecord], bool]:
    """Whether a record has these. Most that have not are told by their bytes: to decode ten thousand attributes takes
    3 ms, to look 10 us.
    """
    texts = [text.encode() for pair in attributes.items() if pair[0] not in CORE for text in pair]

    def has(record: FlowFileRecord) -> bool:
        packed = record.attributes
        return all(text in packed for text in texts) and attributes.items() <= record.attribute_map().items()

    return has

"""Sessions: FlowFiles taken, made, changed and settled in one durable transaction."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Final

from ullage.enums import Lifetime
from ullage.errors import InvalidArgument
from ullage.interface.reporter import Reporter
from ullage.interface.values import AnyContent, AnyFlowFile, Attributes, Subjects
from ullage.streams import Closable, ContentStream
from ullage.wire.documents import DEMARCATOR_BYTES_MAX, TEXT_BYTES_MAX
from ullage.wire.queues import FlowFile

BATCH_MAX: Final = 10_000
"""FlowFiles that one transaction may take, make and change."""

PENALTY_MILLIS: Final = 30_000
"""How long a penalized FlowFile stays out of sight, as in NiFi."""


class Session(Closable):
    """A transaction over FlowFiles, their attributes, their content and their queues.

    What a session takes nobody else sees, until `commit` has made its whole work durable as one transaction, or
    `rollback` has put everything back as it was. Each FlowFile that it holds must be transferred or removed before the
    commit. FlowFiles are values: a verb that changes one returns what it has become, and every verb takes any earlier
    value of it, or its id.

    >>> with repository.session(component="readme") as session:
    ...     report = session.create(attributes={"filename": "report.csv"})
    ...     report = session.write(report, b"a,b")
    ...     session.transfer(report, "inbox")
    ...     session.commit()
    >>> repository.queues.find("inbox").flow_files
    1

    Leaving the `with` block rolls back what was not committed. After either the session is empty and can be used
    again. One thread uses a session at a time. Of a remote repository a session lasts as long as the client is in
    touch, and `lease_seconds` more (`Repository.session`); then every verb raises SessionGone, and what the session
    held is in its queue again.

    All verbs raise FlowFileNotFound for a FlowFile that the session does not hold, and SessionMisuse for one that it
    has removed.
    """

    provenance: Reporter[Subjects]
    """Tells what only the program knows: where content came from and where it went; see `Reporter`."""

    @abstractmethod
    def close(self) -> None:
        """Roll back what was not committed, and let go of the session. Safe to call twice.

        >>> session.close()
        """

    def get(self, queue: str) -> FlowFile | None:
        """Take the first FlowFile of a queue; None if nothing stands there that nobody holds.

        Nothing stands in a queue that is not there, and looking for it does not make it: what is put there does.

        >>> session.get("nothing here") is None
        True
        >>> repository.queues.all()
        []
        """
        found = self.get_many(queue, 1)
        return found[0] if found else None

    @abstractmethod
    def get_many(self, queue: str, count: int = BATCH_MAX, *, attributes: Attributes | None = None) -> list[FlowFile]:
        """Take up to `count` FlowFiles in the queue's order; fewer, or none, if no more stand there.

        With `attributes`, only those that have all of these values, among the ones that are in memory (swapped ones
        come to memory as the queue drains).

        >>> ids = session.ingest("work", [b"one", b"two"], [{"kind": "a"}, {"kind": "b"}])
        >>> session.commit()
        >>> [one.attributes["kind"] for one in session.get_many("work", attributes={"kind": "b"})]
        ['b']
        >>> session.rollback()
        """

    @abstractmethod
    def create(self, parents: Sequence[AnyFlowFile] = (), attributes: Attributes | None = None) -> FlowFile:
        """A new, empty FlowFile, with the attributes `uuid`, `filename` and `path` unless they are given.

        With parents it records them, its lineage begins where the oldest one's did, and it inherits attributes: all of
        a single parent's, of several those on which they agree. The parents stay in the session.

        >>> letter = session.create(attributes={"filename": "letter.txt"})
        >>> session.create([letter]).attributes["filename"]
        'letter.txt'
        """

    @abstractmethod
    def ingest(
        self,
        queue: str,
        contents: Sequence[bytes],
        attributes: Attributes | Sequence[Attributes] | None = None,
        lifetime: Lifetime = Lifetime.DEFAULT,
    ) -> list[str]:
        """Create a FlowFile for each content and transfer it to a queue; their ids, in order.

        The batch form of `create`, `write` and `transfer`, and many times as fast. `attributes` are for all of them, or
        one mapping each. A later session may change what was ingested; this one may only report its provenance.
        InvalidArgument if contents and attributes do not come in equal numbers.

        >>> len(session.ingest("inbox", [b"one", b"two"], {"source": "example"}))
        2
        """

    @abstractmethod
    def import_handle(self, handle: str, attributes: Attributes | None = None) -> FlowFile:
        """A new FlowFile over the content of a handle, which is not copied, with the handle's attributes and these.

        It keeps its content when the handle is deleted. HandleNotFound, HandleDeleted.

        >>> handle = repository.handles.put(b"kept once")
        >>> session.import_handle(handle).size
        9
        """

    @abstractmethod
    def read(self, flow_file: AnyFlowFile, start: int = 0, size: int | None = None) -> ContentStream:
        """The content, or `size` bytes of it from `start` on, as it is in this session. Close it before the commit.

        RangeNotSatisfiable for a range beyond the end; ContentMissing, ContentCorrupt where the disk has lost it: never
        fewer bytes, and never wrong ones.

        >>> letter = session.write(session.create(), b"dear reader")
        >>> with session.read(letter, 5) as content:
        ...     content.read()
        b'reader'
        """

    @abstractmethod
    def write(self, flow_file: AnyFlowFile, content: AnyContent, lifetime: Lifetime = Lifetime.DEFAULT) -> FlowFile:
        """Replace the content. What was there before stays for everybody who shares it.

        Files and pieces are stored as they come, in bounded memory. `lifetime` says how long the content is expected
        to live: what dies together should lie together. DiskFull and BackPressure if there is no room.

        >>> session.write(session.create(), iter([b"in ", b"pieces"])).size
        9
        """

    @abstractmethod
    def append(self, flow_file: AnyFlowFile, content: AnyContent) -> FlowFile:
        """Content with more behind it. The old bytes are copied, because what is stored never changes.

        >>> line = session.write(session.create(), b"one line")
        >>> session.append(line, b", and more").size
        18
        """

    @abstractmethod
    def clone(self, flow_file: AnyFlowFile, start: int = 0, size: int | None = None) -> FlowFile:
        """Another FlowFile over the same bytes, or over `size` of them from `start` on. Nothing is copied or sent.

        RangeNotSatisfiable for a range beyond the end.

        >>> page = session.write(session.create(), b"title: text")
        >>> session.clone(page, 0, 5).size
        5
        """

    @abstractmethod
    def split(self, flow_file: AnyFlowFile, sizes: Sequence[int]) -> list[FlowFile]:
        """Consecutive slices of these sizes as FlowFiles of their own; nothing is copied or sent.

        They carry the attributes `fragment.identifier`, `fragment.index`, `fragment.count` and
        `segment.original.filename`, as NiFi's do. InvalidArgument if the sizes come to more than there is.

        >>> pair = session.write(session.create(), b"ab")
        >>> [part.attributes["fragment.index"] for part in session.split(pair, [1, 1])]
        ['0', '1']
        """

    def merge(
        self,
        flow_files: Sequence[AnyFlowFile],
        *,
        header: bytes = b"",
        demarcator: bytes = b"",
        footer: bytes = b"",
    ) -> FlowFile:
        """A FlowFile whose content is theirs in order, with bytes before, between and behind. They stay in the session.

        The node copies them; nothing of them is sent.

        >>> parts = [session.write(session.create(), text) for text in (b"1", b"2")]
        >>> with session.read(session.merge(parts, header=b"[", demarcator=b",", footer=b"]")) as merged:
        ...     merged.read()
        b'[1,2]'
        """
        parts = (
            ("header", header, TEXT_BYTES_MAX),
            ("demarcator", demarcator, DEMARCATOR_BYTES_MAX),
            ("footer", footer, TEXT_BYTES_MAX),
        )
        for name, content, bytes_max in parts:
            if not isinstance(content, bytes):  # a text would go over HTTP as base64
                raise TypeError(f"{name} is bytes, not {type(content).__name__}")
            if len(content) > bytes_max:
                raise InvalidArgument(f"a {name} of {len(content)} bytes, at most {bytes_max} are allowed")
        return self._merge(flow_files, header, demarcator, footer)

    @abstractmethod
    def put_attributes(self, flow_file: AnyFlowFile, attributes: Attributes) -> FlowFile:
        """Set these attributes and leave the others; only these are logged. InvalidArgument for `uuid`.

        >>> session.put_attributes(session.create(), {"kind": "note"}).attributes["kind"]
        'note'
        """

    @abstractmethod
    def remove_attributes(self, flow_file: AnyFlowFile, names: Iterable[str]) -> FlowFile:
        """Remove attributes. `filename` and `path` fall back to what they are without being set.

        >>> note = session.create(attributes={"kind": "note"})
        >>> "kind" in session.remove_attributes(note, ["kind"]).attributes
        False
        """

    @abstractmethod
    def transfer(self, flow_files: Subjects, queue: str, relationship: str = "") -> None:
        """Say where one FlowFile, or each of several, goes at the commit. The last word counts.

        Along a named relationship a FlowFile leaves a ROUTE event. A queue that is not there yet is made.

        >>> session.transfer(session.create(), "inbox")
        """

    @abstractmethod
    def remove(self, flow_files: Subjects) -> None:
        """Say that one FlowFile, or each of several, ceases to exist at the commit.

        >>> session.remove(session.create())
        """

    @abstractmethod
    def penalize(self, flow_files: Subjects, millis: int = PENALTY_MILLIS) -> None:
        """Keep FlowFiles out of everybody's sight for a while after the commit. A restart forgets it, as NiFi's does.

        >>> session.penalize(session.create(), millis=1_000)
        """

    @abstractmethod
    def adjust_counter(self, name: str, delta: int) -> None:
        """Add to one of the repository's counters at the commit; `Repository.state` tells them.

        >>> session.adjust_counter("reports", 1)
        >>> session.commit()
        >>> repository.state().counters
        {'reports': 1}
        """

    @abstractmethod
    def require_room(self, queue: str) -> None:
        """BackPressure if the queue has reached its count or bytes: what a source asks before it creates.

        A queue that is not there has room.

        >>> session.require_room("inbox")
        """

    @abstractmethod
    def commit(self) -> None:
        """Make everything durable as one transaction, and then show it.

        SessionMisuse, and nothing has happened, while a FlowFile is neither transferred nor removed. Any other error
        has rolled the session back; but after CommitOutcomeUnknown it may have been committed, and what it held is
        out of the queues until the repository was opened anew. A remote commit whose answer was lost is sent again,
        and happens once.

        >>> session.transfer(session.create(), "inbox")
        >>> session.commit()
        """

    @abstractmethod
    def rollback(self, *, penalize: bool = False) -> None:
        """Put everything back as it was and leave nothing behind; with `penalize`, out of sight for a while.

        >>> session.rollback()
        """

    @abstractmethod
    def _merge(
        self, flow_files: Sequence[AnyFlowFile], header: bytes, demarcator: bytes, footer: bytes
    ) -> FlowFile: ...

"""The past: what happened to FlowFiles, what came of what, and how to bring it back."""

from abc import ABC, abstractmethod

from ullage.streams import ContentStream
from ullage.wire.provenance import Event, EventPage, EventQuery, Lineage, Replayability, ReplayResult


class Provenance(ABC):
    """The events of a repository. Thread-safe.

    An event is named by its sequence number, or by its id, like `17.0`. All methods that name one raise EventNotFound
    if there is none, or none any more (`spec.provenance` says how long events are kept).

    >>> id = repository.queues.put("inbox", b"content")
    >>> event = repository.provenance.event(1)
    >>> event.type, event.flow_file == id, event.size
    ('CREATE', True, 7)
    """

    @abstractmethod
    def search(self, query: EventQuery | None = None) -> EventPage:
        """A page of the events for which everything that the query says is true; of all events without one.

        What cannot be read of them is passed over, and told as `unreadable`. There are fewer than `limit`, with a
        `next`, where they are large. InvalidArgument for an impossible query.

        >>> ids = repository.queues.put_many("inbox", [b"one", b"two"])
        >>> page = repository.provenance.search(EventQuery(types=["CREATE"], limit=1))
        >>> repository.provenance.search(EventQuery(types=["CREATE"], after=page.next)).next is None
        True
        """

    @abstractmethod
    def event(self, event: str | int) -> Event:
        """Everything that one event says.

        >>> id = repository.queues.put("inbox", b"content")
        >>> repository.provenance.event(repository.provenance.event(1).id).sequence
        1
        """

    @abstractmethod
    def content(
        self, event: str | int, start: int = 0, size: int | None = None, *, previous: bool = False
    ) -> ContentStream:
        """The content at the event, or before it (`previous`), or a range of it, as long as its bytes are there.

        ClaimGone if they were given back; RangeNotSatisfiable for a range beyond the end.

        >>> id = repository.queues.put("inbox", b"content")
        >>> with repository.provenance.content(1) as content:
        ...     content.read()
        b'content'
        """

    @abstractmethod
    def lineage(self, flow_file: str, *, way: str = "both", depth: int = 100, limit: int = 1_000) -> Lineage:
        """What a FlowFile was made from (`way`: parents), what became of it (children), or both.

        Up to `depth` generations, and up to `limit` events, fewer where they are large. A FlowFile of which nothing is
        known has no events.

        >>> id = repository.queues.put("inbox", b"content")
        >>> [event.type for event in repository.provenance.lineage(id).events]
        ['CREATE']
        """

    @abstractmethod
    def replayability(self, event: str | int, queue: str = "") -> Replayability:
        """Whether the event can be replayed now, into this queue or the one it came from; if not, why.

        Its whole content is read to know.

        >>> id = repository.queues.put("inbox", b"content")
        >>> repository.provenance.replayability(1, "inbox").is_possible
        True
        """

    @abstractmethod
    def replay(self, event: str | int, queue: str = "") -> ReplayResult:
        """Put what the event was about back into the queue it came from, or into another, as a new FlowFile.

        ReplayRefused, with the reason, if it cannot be; FlowFileNotFound for a queue that there is not.

        >>> id = repository.queues.put("inbox", b"content")
        >>> repository.provenance.replay(1, "inbox").size
        7
        """

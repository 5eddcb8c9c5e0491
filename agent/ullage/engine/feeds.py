"""Feeds: what streams have taken out of queues to read it, each FlowFile once.

    in  ->  take     moved to the queue `stream:orders:in`, durably: nobody else polls it, nothing there expires
            records  read by places, as often as the reader needs to try
            done     removed
            ... ->   its time is over: moved back to `in`

A stream that repeats a read after a crash, its own or the node's, finds the same FlowFiles at the same places, because
where they wait is a queue like any other. A place once given is never given again; so a reader has to remember only the
last place that it has read. The stream is the only one that adds to its queue, one `take` at a time: unlike those of a
queue that many commit to, its places become visible in order.

How long FlowFiles wait for a stream that is not heard of is not logged: after a restart their time begins anew. Whose
a stream is stands in its queue's definition, and counts as long as something stands in the queue.
"""

import re
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ullage.contract import FEED_PREFIX, QueuePriority
from ullage.engine.flowfile.queues import FlowFileQueue
from ullage.engine.ledger.swap import SwapFiles
from ullage.engine.model import FlowFileRecord
from ullage.engine.session import ProcessSession
from ullage.engine.working import SessionParts
from ullage.errors import Forbidden, InvalidArgument, QuotaReached

STREAM: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")

SLICE: Final = 2_000
"""FlowFiles that one transaction moves or removes: milliseconds of everybody's time."""

LASTS_MILLIS: Final = 24 * 3_600_000
"""How long FlowFiles wait after a restart for a stream that has not said otherwise yet."""


class FeedBatch(NamedTuple):
    """`taken` FlowFiles stand after the place that was asked, up to `through`; `waiting` more could be taken. Of a
    question that takes none, `since_millis` is since when the first of those that wait does, as far as they are in
    memory; None for none.
    """

    through: int
    taken: int
    waiting: int
    since_millis: int | None = None


class StandingFeed(NamedTuple):
    """What waits for one stream, since when the first of it does, and when it goes back if nothing is heard of it."""

    stream: str
    queue: str
    owner: str
    flow_files: int
    bytes: int
    since_millis: int | None
    until_millis: int


class FeedLag(NamedTuple):
    """What a stream has not read of a queue yet: so many FlowFiles, and since when the first of them waits, as far as
    they are in memory; None for none.
    """

    stream: str
    queue: str
    backlog: int
    since_millis: int | None


class Reader(NamedTuple):
    """Who reads a stream: `owner` has what it takes, of no name nobody; `by` is whom events name; `each_max` bounds the
    streams for which something of this owner's waits.
    """

    owner: str = ""
    by: str = ""
    each_max: int | None = None


NOBODY: Final = Reader()


class _Heard(NamedTuple):
    """Of a feed: until when its reader is to be waited for, and whose it is."""

    end: int
    owner: str


class Feeds:
    """All feeds of a repository. Thread-safe."""

    def __init__(self, parts: SessionParts, swap_files: SwapFiles, standing_max: int) -> None:
        """At most `standing_max` FlowFiles stand in a feed: as many as a queue keeps in memory."""
        self._parts = parts
        self._queues = parts.queues
        self._swap_files = swap_files
        self._clock = parts.clock
        self._standing_max = standing_max
        self._lock = threading.Lock()
        self._heard: dict[str, _Heard] = {}

    def owner(self, stream: str, queue: str) -> str:
        """Whose the FlowFiles are that wait for a stream; empty if none do, or they are nobody's."""
        return self._owner(name_of(stream, queue))

    def take(
        self,
        stream: str,
        queue: str,
        after: int,
        count: int,
        lasts_millis: int = LASTS_MILLIS,
        reader: Reader = NOBODY,
    ) -> FeedBatch:
        """Have up to `count` FlowFiles stand after this place, for `lasts_millis` from now on: those that stand there
        already, then more of the queue, in its order. At most as many in all as a queue keeps in memory.

        InvalidArgument for a name that a stream cannot have; Forbidden while it is somebody else's; QuotaReached.
        """
        name = name_of(stream, queue)
        with self._lock:
            self._require_own(name, reader.owner)
            self._hear(name, lasts_millis, reader)
            standing = self._places(name, after)
            room = min(count - len(standing), self._standing_max - self._count(name))
            if room > 0 and self._count(queue):
                self._define(name, reader)
                self._move(queue, name, room, reader.by)
                standing = self._places(name, after)
            chosen = standing[:count]
            waiting = len(standing) - len(chosen) + self._count(queue)
            since = self._since_millis(standing, queue) if waiting and not count else None
        return FeedBatch(chosen[-1] if chosen else after, len(chosen), waiting, since)

    def records(self, stream: str, queue: str, after: int, through: int) -> list[FlowFileRecord]:
        """The FlowFiles at these places, the first excluded and the last included, in order."""
        return [record for record in self._standing(name_of(stream, queue)) if after < record.queued <= through]

    def done(self, stream: str, queue: str, through: int, reader: Reader = NOBODY) -> int:
        """Remove what stands up to this place: it is read. Returns how many. Forbidden for somebody else's."""
        name = name_of(stream, queue)
        with self._lock:
            self._require_own(name, reader.owner)
            return self._each(
                name,
                lambda record: record.queued <= through,
                lambda session, records: session.remove_many(records),
                reader.by,
            )

    def give_back(self, stream: str, queue: str, after: int, reader: Reader = NOBODY, *, ends: bool = False) -> int:
        """Let go of what stands after this place: it goes back to its queue, behind what is there. Returns how many.
        Forbidden for somebody else's, but for who `ends` what others hold.
        """
        name = name_of(stream, queue)
        with self._lock:
            if not ends:
                self._require_own(name, reader.owner)
            return self._give_back(name, after, reader.by)

    def standing(self) -> list[StandingFeed]:
        """Everything that waits for streams, by their names."""
        return sorted(filter(None, map(self._standing_of, self._queues.all())))

    def lags(self) -> list[FeedLag]:
        """Of each stream that takes of a queue, and was heard of within the time that it asked for."""
        now = self._clock.now_millis()
        heard = {name for name, heard in list(self._heard.items()) if heard.end > now}
        names = heard | {queue.name for queue in self._queues.all() if _is_feed(queue.name) and self._count(queue.name)}
        return [self._lag(*name.split(":", 2)[1:]) for name in sorted(names)]

    def _lag(self, stream: str, queue: str) -> FeedLag:
        name = name_of(stream, queue)
        backlog = self._count(name) + self._count(queue)
        return FeedLag(stream, queue, backlog, self._since_millis(self._places(name, 0), queue) if backlog else None)

    def expire(self) -> int:
        """Give back what has waited for too long; returns how many."""
        now = self._clock.now_millis()
        count = 0
        with self._lock:
            for queue in self._queues.all():
                if not _is_feed(queue.name) or not queue.figures().flow_files:
                    continue
                # What was taken before a restart has its time from the first look on.
                first = _Heard(now + LASTS_MILLIS, queue.definition.owner)
                if self._heard.setdefault(queue.name, first).end <= now:
                    count += self._give_back(queue.name, 0)
            self._heard = {name: heard for name, heard in self._heard.items() if heard.end > now or self._count(name)}
        return count

    def _hear(self, name: str, lasts_millis: int, reader: Reader) -> None:
        """Also where nothing is taken: a stream that waits has a lag. QuotaReached for one more than may be."""
        if reader.each_max is not None and name not in self._heard:
            own = sum(heard.owner == reader.owner for heard in self._heard.values())
            if own >= reader.each_max:
                raise QuotaReached.of(reader.owner, f"{own} streams that take", "streams_each", "let some end")
        self._heard[name] = _Heard(self._clock.now_millis() + lasts_millis, reader.owner)

    def _standing_of(self, queue: FlowFileQueue) -> StandingFeed | None:
        figures = queue.figures()
        if not _is_feed(queue.name) or not figures.flow_files:
            return None
        _, stream, source = queue.name.split(":", 2)
        places = [record.queued for record in queue.records()]
        return StandingFeed(
            stream,
            source,
            queue.definition.owner,
            figures.flow_files,
            figures.size_bytes,
            min(places) // 1000 if places else None,  # what was taken first may be in a swap file by now
            heard.end if (heard := self._heard.get(queue.name)) else self._clock.now_millis() + LASTS_MILLIS,
        )

    def _owner(self, name: str) -> str:
        queue = self._queues.known(name)
        return queue.definition.owner if queue is not None and queue.figures().flow_files else ""

    def _require_own(self, name: str, owner: str) -> None:
        """What is nobody's may be anybody's; who is nobody stands for the process itself."""
        if owner and self._owner(name) not in ("", owner):
            _, stream, queue = name.split(":", 2)
            raise Forbidden(f"what stream {stream} has taken of queue {queue} is somebody else's")

    def _give_back(self, name: str, after: int, by: str = "") -> int:
        queue = name.split(":", 2)[2]
        return self._each(
            name,
            lambda record: record.queued > after,
            lambda session, records: session.transfer_many(records, queue),
            by,
        )

    def _each(
        self,
        name: str,
        wanted: Callable[[FlowFileRecord], bool],
        act: Callable[[ProcessSession, Sequence[FlowFileRecord]], None],
        by: str,
    ) -> int:
        """Do it to all that stand in a feed, a transaction for some of them."""
        count = 0
        while self._count(name):
            with ProcessSession(self._parts, name, by) as session:
                records = session.get_by(name, wanted, SLICE)
                if not records:
                    break
                act(session, records)
                session.commit()
            count += len(records)
        return count

    def _move(self, queue: str, name: str, count: int, by: str) -> None:
        while count > 0:
            with ProcessSession(self._parts, name, by) as session:
                records = session.get_many(queue, min(count, SLICE))
                if not records:
                    return
                session.transfer_many(records, name)
                session.commit()
            count -= len(records)

    def _define(self, name: str, reader: Reader) -> None:
        """First in first out, without limits: what stands there has been let in once already."""
        known = self._queues.known(name)
        if self._owner(name) != reader.owner:
            self._require_room(name, reader)
        if known is None or known.definition.owner != reader.owner:
            priority = str(QueuePriority.FIRST_IN_FIRST_OUT)
            self._queues.define(
                name, priority=priority, owner=reader.owner, count_max=0, bytes_max=0, expiration_millis=0
            )

    def _require_room(self, name: str, reader: Reader) -> None:
        """Among the reader's feeds, of which one that is empty goes where there are as many as may be: names of streams
        are for ever new, and whoever takes with one and gives back would leave a queue each.
        """
        if reader.each_max is None:
            return
        own = [queue for queue in self._queues.all() if _is_feed(queue.name) and queue.definition.owner == reader.owner]
        empty = [queue for queue in own if queue.is_empty and queue.name != name]
        standing = sum(queue.figures().flow_files > 0 for queue in own)
        if standing >= reader.each_max:
            held = f"FlowFiles waiting for {standing} streams"
            raise QuotaReached.of(reader.owner, held, "streams_each", "read some")
        if empty and len(own) >= reader.each_max:
            self._queues.remove(empty[0].name)

    def _count(self, name: str) -> int:
        """How many there are to be had."""
        queue = self._queues.known(name)
        if queue is None:
            return 0
        figures = queue.figures()
        return figures.flow_files - figures.held

    def _places(self, name: str, after: int) -> list[int]:
        return [record.queued for record in self._standing(name) if record.queued > after]

    def _since_millis(self, standing: list[int], queue: str) -> int | None:
        known = self._queues.known(queue)
        places = [*standing[:1], *(record.queued for record in (known.records() if known is not None else ()))]
        return min(places) // 1000 if places else None

    def _standing(self, name: str) -> list[FlowFileRecord]:
        """All that stand in a feed, in order, those in swap files included: a smaller swapThreshold makes some."""
        queue = self._queues.known(name)
        if queue is None:
            return []
        with queue.swap_lock:
            found = queue.records()
            for summary in queue.swap_summaries():
                found += self._swap_files.read(summary.name).records
        return sorted(found, key=lambda record: record.queued)


def name_of(stream: str, queue: str) -> str:
    """The queue in which FlowFiles of another one wait for a stream. InvalidArgument if there cannot be one."""
    if not STREAM.fullmatch(stream):
        raise InvalidArgument(f"stream {stream!r}: its name is 1 to 100 of letters, digits, dot, dash and underscore")
    if _is_feed(queue):
        raise InvalidArgument(f"queue {queue!r} is one that a stream reads already")
    return f"{FEED_PREFIX}{stream}:{queue}"


def _is_feed(name: str) -> bool:
    """Whether a queue is one in which FlowFiles wait for a stream: it says from where they are."""
    return name.startswith(FEED_PREFIX) and name.count(":") > 1

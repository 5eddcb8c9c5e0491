"""What programs that read and write in bulk ask for beyond the interface: staged writes, feeds, holds on events.

These are the actions of `ullage.wire.tickets`, on a repository that acts for whoever asks.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count
from typing import Any, Final, Protocol

from ullage.contract import QueueUse, Right
from ullage.embedded.queues import require_puts
from ullage.embedded.repository import EmbeddedRepository
from ullage.engine.feeds import FeedLag as FeedLag, Reader
from ullage.engine.model import HANDLE_QUEUE, StagedWrite
from ullage.engine.provenance.holds import HOLDS_MAX, Hold
from ullage.enums import Lifetime, WriteState
from ullage.errors import Forbidden, InvalidArgument, KeyReused, QuotaReached, ServiceBusy
from ullage.interface.values import CheckedAttributes
from ullage.uuids import format_uuid, parse_uuid
from ullage.wire import tickets
from ullage.wire.provenance import EventQuery
from ullage.wire.tickets import (
    EventHoldRequest,
    FeedRequest,
    FeedStatus,
    FlightAction,
    NodeIdentity,
    PutCommand,
    SocketIdentity,
    StagedWriteRequest,
    StagedWriteStatus,
)

RESTART_MILLIS: Final = 5 * 60_000
"""How long all events are held after a start: whoever follows them renews its own hold within a minute."""


class HandleSink:
    """Each transaction makes handles. With a key each has one of its own, the same when the stream is sent again."""

    def __init__(self, repository: EmbeddedRepository, command: PutCommand) -> None:
        self._handles = repository.handles
        self._terms: dict[str, Any] = {"ttl_millis": command.ttl_millis, "lifetime": Lifetime(command.lifetime)}
        self._key = command.key
        self._numbers = count()

    def batch(self, contents: list[bytes], attributes: CheckedAttributes) -> list[bytes]:
        return self._handles.store(contents, attributes, **self._terms, key=self._next_key())

    def stream(self, pieces: Iterable[bytes], attributes: dict[str, str]) -> bytes:
        handle = self._handles.put(pieces, attributes, **self._terms, key=self._next_key())
        return parse_uuid(handle.partition("@")[0])

    def _next_key(self) -> str | None:
        return None if self._key is None else f"{self._key}/{next(self._numbers)}"


class StagedSink:
    """Each transaction is one of an attempt, by its number: a stream that is sent again stores nothing twice."""

    def __init__(self, repository: EmbeddedRepository, command: PutCommand) -> None:
        if command.key is not None or command.write is None or command.attempt is None:
            raise InvalidArgument("a staged put has a write and an attempt, and no key: its attempt is its key")
        self._staging = repository.engine.staging
        self._by = repository.acting.by
        self._write, self._attempt = _own_write(repository, command.write), _uuid(command.attempt, "attempt")
        self._lifetime = Lifetime(command.lifetime)
        self._numbers = count()

    def batch(self, contents: list[bytes], attributes: CheckedAttributes) -> list[bytes]:
        number, terms = next(self._numbers), (attributes, self._lifetime, self._by)
        return self._staging.stage(self._write, self._attempt, number, contents, *terms)

    def stream(self, pieces: Iterable[bytes], attributes: dict[str, str]) -> bytes:
        number, terms = next(self._numbers), (attributes, self._lifetime, self._by)
        return self._staging.stage_stream(self._write, self._attempt, number, pieces, *terms)[0]


class ContentSink(Protocol):
    """Takes the contents of one stream, a transaction after the other; answers their uuids."""

    def batch(self, contents: list[bytes], attributes: CheckedAttributes) -> list[bytes]:
        """Contents that came together."""
        ...

    def stream(self, pieces: Iterable[bytes], attributes: dict[str, str]) -> bytes:
        """One content that comes piece by piece."""
        ...


def sink_of(repository: EmbeddedRepository, command: PutCommand) -> ContentSink:
    """Where the contents of a put go: they become handles at once, or are staged until their write is committed."""
    is_staged = command.write is not None or command.attempt is not None
    return (StagedSink if is_staged else HandleSink)(repository, command)


def node_identity(repository: EmbeddedRepository, socket_path: str) -> NodeIdentity:
    """Cheap: it may be asked before every read."""
    engine = repository.engine
    first, last = engine.provenance.span()
    return NodeIdentity(
        node=repository.node,
        repository=engine.identity.repository,
        millis=engine.clock.now_millis(),
        first_sequence=first,
        last_sequence=last,
        socket=_socket(socket_path),
    )


def _socket(path: str) -> SocketIdentity | None:
    """A program may see a socket of this path that is another node's: inode and birth tell them apart."""
    try:
        found = os.stat(path)
    except OSError:  # not listened on, or not yet
        return None
    return SocketIdentity(path=path, inode=found.st_ino, changed_nanos=found.st_ctime_ns)


def hold_all_events(repository: EmbeddedRepository) -> None:
    """For a while after a start, since holds are not logged."""
    engine = repository.engine
    now = engine.clock.now_millis()
    engine.provenance.holds.set("restart", Hold(0, now + RESTART_MILLIS), now)


def _hold_events(repository: EmbeddedRepository, asked: EventHoldRequest) -> None:
    """Keep events that a reader wants still, or with no time let them go. ServiceBusy if too many are kept."""
    # What no name of a principal holds, so that nobody's holder is somebody else's.
    holder = f"{repository.owner}\0{asked.holder}"
    holds, now = repository.engine.provenance.holds, repository.engine.clock.now_millis()
    if not asked.lasts_millis:
        holds.end(holder)
        return
    each_max = repository.acting.holds_max
    if each_max is not None and holds.count(f"{repository.owner}\0", but=holder) >= each_max:
        raise QuotaReached.of(repository.owner, f"events held for {each_max} readers", "holds_each", "end some")
    if not holds.set(holder, Hold(asked.after, now + asked.lasts_millis), now):
        raise ServiceBusy(f"{HOLDS_MAX} readers hold events already")


EVENTS: Final = "(events)"
"""What stands for the queue of a stream of events."""


def stream_lags(repository: EmbeddedRepository) -> Iterator[FeedLag]:
    """Of each stream that was heard of; of one that follows events the queue is `EVENTS`."""
    engine = repository.engine
    yield from engine.feeds.lags()
    _, newest = engine.provenance.span()
    for holder, hold in engine.provenance.holds.all(engine.clock.now_millis()).items():
        _, is_somebodys, reader = holder.partition("\0")
        if is_somebodys:
            backlog = max(0, newest - hold.after)
            first = engine.history.query(EventQuery(after=hold.after, limit=1)).events if backlog else ()
            yield FeedLag(reader, EVENTS, backlog, first[0].millis if first else None)


def _feed(
    action: FlightAction[FeedRequest, FeedStatus], repository: EmbeddedRepository, asked: FeedRequest
) -> FeedStatus:
    """Take FlowFiles for a stream, remove what it has read, or give back what it does not want."""
    feeds, stream, queue, acting = repository.engine.feeds, asked.stream, asked.queue, repository.acting
    for use in (QueueUse.READ, QueueUse.DELETE):
        acting.require(use, queue)
    reader = Reader(repository.owner, acting.by, acting.streams_max)
    if action is tickets.FEED_DONE:
        return FeedStatus(through=asked.through, count=feeds.done(stream, queue, asked.through, reader), waiting=0)
    if action is tickets.FEED_BACK:
        is_own = feeds.owner(stream, queue) in ("", repository.owner)
        count = feeds.give_back(stream, queue, asked.after, reader, ends=not is_own and acting.may(Right.REVOKE))
        return FeedStatus(through=asked.after, count=count, waiting=0)
    taken = feeds.take(stream, queue, asked.after, asked.count, asked.lasts_millis, reader)
    return FeedStatus(through=taken.through, count=taken.taken, waiting=taken.waiting, since_millis=taken.since_millis)


def _write(
    action: FlightAction[StagedWriteRequest, StagedWriteStatus],
    repository: EmbeddedRepository,
    asked: StagedWriteRequest,
) -> StagedWriteStatus:
    """A step of a staged write, and how it stands afterwards."""
    staging, id = repository.engine.staging, _own_write(repository, asked.write, ends=action is tickets.WRITE_ABORT)
    # One that has staged nothing would be remembered for nothing.
    attempts = {_uuid(attempt, "attempt"): count for attempt, count in asked.attempts.items() if count}
    if action is tickets.WRITE_BEGIN:
        require_puts(repository.engine.queues, repository.acting, asked.queue)
        lasts = asked.lasts_millis
        begun = staging.begin(
            id,
            repository.owner,
            queue=asked.queue,
            ttl_millis=asked.ttl_millis,
            lasts_millis=lasts,
            each_max=repository.acting.writes_max,
            by=repository.acting.by,
        )
        _require_same(repository, begun, asked)
    elif action is tickets.WRITE_PREPARE:
        staging.prepare(id, attempts)
    elif action is tickets.WRITE_COMMIT:
        staging.commit(id, attempts, asked.decision.encode())
    elif action is tickets.WRITE_ABORT:
        staging.abort(id)
    found = staging.find(id)
    if found is None:
        return StagedWriteStatus(write=format_uuid(id), state="unknown")
    return StagedWriteStatus(
        write=format_uuid(id),
        state=WriteState(found.state).name.lower(),
        expires_millis=found.expires_millis,
        decision=found.decision.decode(),
    )


def _require_same(repository: EmbeddedRepository, begun: StagedWrite, asked: StagedWriteRequest) -> None:
    """KeyReused if the write began for another queue or time to live: its contents would appear where nobody looks."""
    queue = repository.engine.queues.known(asked.queue) if asked.queue else None
    number = HANDLE_QUEUE if queue is None else queue.number
    if (begun.queue, begun.ttl_millis) != (number, asked.ttl_millis):
        where = f"queue {asked.queue}" if asked.queue else "handles"
        raise KeyReused(
            f"staged write {format_uuid(begun.id)} is not for {where} with a TTL of {asked.ttl_millis} ms: it began "
            "with another queue or TTL"
        )


ACTS: Final[dict[str, Callable[[EmbeddedRepository, Any], object]]] = {
    tickets.HOLD_EVENTS.name: _hold_events,
    **{each.name: partial(_feed, each) for each in tickets.FEEDS},
    **{each.name: partial(_write, each) for each in tickets.WRITES},
}
"""By its name what carries an action out: its request, and the document that answers it, None for none."""


def _own_write(repository: EmbeddedRepository, text: str, *, ends: bool = False) -> bytes:
    """The id of a staged write, if it is nobody else's, or to be ended by who may end what others hold."""
    id = _uuid(text, "write")
    found = repository.engine.staging.find(id)
    is_own = found is None or found.owner == repository.owner
    if not is_own and not (ends and repository.acting.may(Right.REVOKE)):
        raise Forbidden(f"staged write {format_uuid(id)} is somebody else's")
    return id


def _uuid(text: str, what: str) -> bytes:
    try:
        return parse_uuid(text)
    except ValueError as error:
        raise InvalidArgument(f"{what}: {error}") from error

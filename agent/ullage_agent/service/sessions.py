"""Remote sessions: ProcessSessions of clients that are somewhere else, and may vanish.

    poll    FlowFiles leave their queue for this session, until it ends or its time (the visibility time) is over
    extend  the client is alive: the time begins anew
    commit  what became of each FlowFile, in one transaction
    expiry  as if the client had rolled back: everything stands in its queue again

A session is used by one request at a time. All of this is memory: after a restart no session is left, and what one held
is back in its queue.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from ullage.clock import Clock
from ullage.embedded.repository import EmbeddedRepository
from ullage.embedded.session import EmbeddedSession
from ullage.enums import HolderKind
from ullage.errors import InvalidArgument, QuotaReached, ServiceBusy, SessionBusy, SessionGone
from ullage.sessionroom import SessionRoom
from ullage.uuids import format_uuid, new_uuids
from ullage.wire.holders import HolderStatus
from ullage.wire.sessions import SessionRequest
from ullage_agent.service.access import Principal
from ullage_agent.service.limits import Limits

T = TypeVar("T", bound="RememberedAnswer")

ANSWERS_KEPT: Final = 16
"""A client does one thing at a time in a session, so only its last requests can be repeats."""

ANSWERS_BYTES: Final = 1 << 20
"""What these take, but for the last one, which is remembered whatever it takes."""


class RememberedAnswer(Protocol):
    """As it is sent."""

    @property
    def kept_bytes(self) -> int: ...


@dataclass(eq=False)
class Lent:
    """One remote session."""

    id: str
    owner: str
    component: str
    session: EmbeddedSession
    seconds: float
    ends: float
    began_millis: int
    key: str | None
    room: SessionRoom
    is_over: bool = False
    answers: OrderedDict[str | None, Any] = field(default_factory=OrderedDict)
    """To the last requests with an idempotency key: the session is memory, and so are they."""

    _busy: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def using(self) -> Iterator[EmbeddedSession]:
        """One request works in the session; SessionBusy for a second, SessionGone once it is over.

        May be entered in one thread and left in another.
        """
        if not self._busy.acquire(blocking=False):
            raise SessionBusy(f"session {self.id} is in use by another request")
        try:
            if self.is_over:
                raise gone(self.id)
            yield self.session
        finally:
            self._busy.release()

    def once(self, key: str | None, work: Callable[[], T]) -> T:
        """The first answer to a request with this key, or what `work` gives; called while it is used."""
        if key is None:
            return work()
        if key not in self.answers:
            made = work()
            if not self.is_over:
                self.answers[key] = made
                self.room.count(made.kept_bytes)  # what was done was done: it must not be done again by a repeat
                while len(self.answers) > 1 and not self._has_room_for_answers():
                    self.room.count(-self.answers.popitem(last=False)[1].kept_bytes)
            return made
        found: T = self.answers[key]
        return found

    def forget_answers(self) -> None:
        """Whoever repeats a request has it done again; called while it is used."""
        self.room.count(-sum(each.kept_bytes for each in self.answers.values()))
        self.answers.clear()

    def _has_room_for_answers(self) -> bool:
        size = sum(each.kept_bytes for each in self.answers.values())
        return len(self.answers) <= ANSWERS_KEPT and size <= ANSWERS_BYTES

    def try_expire(self, now: float) -> bool:
        """Roll back if its time is over and nobody is at work in it; whether it ended."""
        if self.ends > now or not self._busy.acquire(blocking=False):
            return False
        try:
            if not self.is_over:
                self.is_over = True
                self.session.rollback()
        finally:
            self._busy.release()
        return True


class Sessions:
    """All remote sessions of a service. Thread-safe."""

    def __init__(self, clock: Clock, limits: Limits) -> None:
        self._clock = clock
        self._limits = limits
        self._lock = threading.Lock()
        self._lent: dict[str, Lent] = {}

    def __len__(self) -> int:
        return len(self._lent)

    def begin(
        self, principal: Principal, repository: EmbeddedRepository, wish: SessionRequest, key: str | None = None
    ) -> Lent:
        """A new session of a principal, for whom the repository acts; while it lasts, the same one for the same key."""
        owner = principal.name
        seconds = wish.visibility_seconds
        self._require_seconds(seconds)
        self.expire()
        with self._lock:
            for lent in self._lent.values() if key is not None else ():
                if (lent.owner, lent.key) == (owner, key) and not lent.is_over:
                    return lent
            if len(self._lent) >= self._limits.sessions:
                raise ServiceBusy(f"{self._limits.sessions} sessions are open already: end some, or wait")
            share = principal.share(self._limits.sessions_each)
            if share is not None and sum(lent.owner == owner for lent in self._lent.values()) >= share:
                raise QuotaReached.of(owner, f"{share} sessions open", "sessions_each", "end some, or wait")
            id = format_uuid(new_uuids(1)[0])
            room = SessionRoom(lambda size: self._require_room(principal, size))
            session = repository.session(wish.component, wish.component_type, room=room)
            ends = self._clock.monotonic() + seconds
            lent = Lent(id, owner, wish.component, session, seconds, ends, self._clock.now_millis(), key, room)
            self._lent[id] = lent
            return lent

    @contextmanager
    def beginning(
        self, principal: Principal, repository: EmbeddedRepository, wish: SessionRequest, key: str | None = None
    ) -> Iterator[tuple[Lent, EmbeddedSession]]:
        """The same for a request that works in it at once: if that is refused, no empty session is left. It would keep
        its place until its time is over, and refused requests would use up everybody's.
        """
        lent = self.begin(principal, repository, wish, key)
        with lent.using() as held:
            try:
                yield lent, held
            except BaseException:
                if not held.sizes():
                    held.rollback()
                    self.end(lent)
                raise

    def find(self, id: str, owner: str) -> Lent:
        """The session; SessionGone for one that ended, never was, or is somebody else's."""
        self.expire()
        with self._lock:
            lent = self._lent.get(id)
        if lent is None or lent.owner != owner:
            raise gone(id)
        return lent

    def extend(self, lent: Lent, seconds: float | None = None) -> None:
        """Its time begins anew."""
        if seconds is not None:
            self._require_seconds(seconds)
            lent.seconds = seconds
        lent.ends = self._clock.monotonic() + lent.seconds

    def end(self, lent: Lent) -> None:
        """Nothing more happens in it; called while it is used."""
        lent.is_over = True
        with self._lock:
            self._lent.pop(lent.id, None)

    def expire(self) -> int:
        """Roll back what has run out; returns how many."""
        now = self._clock.monotonic()
        with self._lock:
            due = [lent for lent in self._lent.values() if lent.ends <= now]
        over = [lent for lent in due if lent.try_expire(now)]
        for lent in over:
            self.end(lent)
        return len(over)

    def held(self) -> list[HolderStatus]:
        """Whose they are, and what they hold; without those whose time is over."""
        now, mono = self._clock.now_millis(), self._clock.monotonic()
        with self._lock:
            found = [lent for lent in self._lent.values() if lent.ends > mono]
        return [_held(lent, now + round((lent.ends - mono) * 1000)) for lent in found]

    def close(self) -> None:
        """Roll back everything, before the repository closes."""
        with self._lock:
            lent_now = list(self._lent.values())
            self._lent.clear()
        for lent in lent_now:
            lent.try_expire(float("inf"))

    def _require_room(self, principal: Principal, size: int) -> None:
        """ServiceBusy, QuotaReached: if sessions hold so much already that there are not so many bytes more."""
        with self._lock:
            held = [(lent.owner, lent.room.granted) for lent in self._lent.values()]
        in_all, most = sum(each for _, each in held), self._limits.session_bytes
        if in_all + size > most:
            raise ServiceBusy(f"open sessions hold {in_all} bytes of memory, of {most}: end some, or wait")
        own = sum(each for owner, each in held if owner == principal.name)
        share = principal.share(self._limits.session_bytes_each)
        if share is not None and own + size > share:
            held_now = f"{own} bytes of FlowFiles and attributes in open sessions"
            raise QuotaReached.of(principal.name, held_now, "session_bytes_each", "commit some, or roll them back")

    def _require_seconds(self, seconds: float) -> None:
        if not 0 < seconds <= self._limits.session_seconds_max:
            raise InvalidArgument(f"a session of {seconds} s: more than 0, at most {self._limits.session_seconds_max}")


def _held(lent: Lent, until_millis: int) -> HolderStatus:
    sizes = lent.session.sizes()
    return HolderStatus(
        kind=HolderKind.SESSION,
        principal=lent.owner,
        id=lent.id,
        about=lent.component,
        flow_files=len(sizes),
        bytes=sum(sizes),
        since_millis=lent.began_millis,
        until_millis=until_millis,
    )


def gone(id: str) -> SessionGone:
    """The refusal, in one wording."""
    return SessionGone(f"session {id} has ended: it was committed or rolled back, its time was over, or it never was")

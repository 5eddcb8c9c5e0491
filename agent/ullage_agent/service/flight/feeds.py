"""What streams ask over Arrow Flight: FlowFiles taken out of a queue for them, and events that they want still."""

from typing import Final

import msgspec

from ullage_agent.engine.provenance.holds import HOLDS_MAX, Hold
from ullage_agent.engine.repository import Repository
from ullage_agent.service.access import Principal
from ullage_agent.service.errors import BadRequest, TooManyRequests
from ullage_agent.service.flight.forms import FeedWish, HoldWish, Table

TAKE, DONE, BACK = "feed-take", "feed-done", "feed-back"
FEEDS = {
    TAKE: "let a stream have FlowFiles of a queue, body: JSON with stream, queue, after, count, lasts_millis",
    DONE: "remove what a stream has read, up to a place; body: JSON with stream, queue, through",
    BACK: "give back what a stream has taken after a place; body: JSON with stream, queue, after",
}
HOLD = "hold-events"

RESTART_MILLIS: Final = 5 * 60_000
"""How long all events are held after a start: whoever follows them renews its own hold within a minute."""


class FeedShown(msgspec.Struct, frozen=True, kw_only=True):
    """`count` FlowFiles stand after the place that was asked, up to `through`; `waiting` more could be taken."""

    through: int
    count: int
    waiting: int


def act_on_feed(repository: Repository, name: str, wish: FeedWish) -> FeedShown:
    """One of `FEEDS`; of the last two `count` is how many it was about."""
    feeds = repository.feeds
    if name == DONE:
        return FeedShown(through=wish.through, count=feeds.done(wish.stream, wish.queue, wish.through), waiting=0)
    if name == BACK:
        return FeedShown(through=wish.after, count=feeds.give_back(wish.stream, wish.queue, wish.after), waiting=0)
    taken = feeds.take(wish.stream, wish.queue, wish.after, wish.count, wish.lasts_millis)
    return FeedShown(through=taken.through, count=taken.taken, waiting=taken.waiting)


def hold_events(repository: Repository, principal: Principal, wish: HoldWish) -> None:
    """Keep events that a reader wants still, or with no time let them go. TooManyRequests if too many are kept."""
    holder = f"{principal.name}/{wish.holder}"
    holds, now = repository.provenance.holds, repository.clock.now_millis()
    if not wish.lasts_millis:
        holds.end(holder)
    elif not holds.set(holder, Hold(wish.after, now + wish.lasts_millis), now):
        raise TooManyRequests(f"{HOLDS_MAX} readers hold events already")


def hold_all_events(repository: Repository) -> None:
    """For a while after a start, since holds are not logged."""
    now = repository.clock.now_millis()
    repository.provenance.holds.set("restart", Hold(0, now + RESTART_MILLIS), now)


def require_feed(wanted: Table) -> None:
    """BadRequest if a table of a feed is not one that there is."""
    if wanted.name != "flowfiles" or wanted.snapshot is not None or wanted.queue is None or wanted.part != (0, 1):
        raise BadRequest("with stream a table is flowfiles, of a queue, after and through a place, in one part")

"""Which of several operators works, when one is killed, frozen, ended, cut off, or when clocks run apart."""

import asyncio
import copy
import heapq
import itertools
from collections.abc import Callable
from typing import Any, cast

import pytest

from ullage_operator.cluster.api import ApiClient
from ullage_operator.election import (
    LEASE_SECONDS,
    POLL_SECONDS,
    RENEW_SECONDS,
    RENEW_SECONDS_MAX,
    Election,
)
from ullage_operator.errors import ApiError, ApiUnreachable, NotHolding
from ullage_operator.objects import Object

STEPS = 30
"""Turns of the event loop in which everybody comes to the next sleep."""


class World:
    """Time, which passes only when everybody sleeps, and the API server's one Lease, as it treats versions."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lease: Object | None = None
        self.writers: list[tuple[float, str]] = []
        """Who wrote it when, or tried to."""

        self.is_away = False
        self.loses_answers = False
        self.replicas: list[Replica] = []
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count(1)

    async def sleep_until(self, then: float) -> None:
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (then, next(self._numbers), future))
        await future

    async def passes(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """At no moment of it may two write."""
        end = self.now + seconds
        while True:
            for _ in range(STEPS):
                await asyncio.sleep(0)
            holders = [replica.name for replica in self.replicas if replica.election.holds]
            assert len(holders) <= 1, f"at {self.now:g} s {holders} hold it"
            if until() or self.now >= end:
                return
            self.now = min(self._sleepers[0][0], end) if self._sleepers else end
            while self._sleepers and self._sleepers[0][0] <= self.now:
                future = heapq.heappop(self._sleepers)[2]
                if not future.done():
                    future.set_result(None)

    async def get(self, *_: Any) -> Object | None:
        if self.is_away:
            raise ApiUnreachable("away")
        return copy.deepcopy(self.lease)

    async def request(self, method: str, path: str, *, body: Object) -> Object:
        if self.is_away:
            raise ApiUnreachable("away")
        self.writers.append((self.now, body["spec"]["holderIdentity"] or ""))
        version = "" if self.lease is None else self.lease["metadata"]["resourceVersion"]
        if (method == "POST") != (self.lease is None) or body["metadata"].get("resourceVersion", "") != version:
            raise ApiError(409, "it has been modified")
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(next(self._numbers))
        if self.loses_answers:
            self.loses_answers = False
            raise ApiUnreachable("the answer was lost")
        return copy.deepcopy(self.lease)


class Replica:
    """One of the processes. `rate` and `offset`: of its clock, beside the world's."""

    def __init__(self, world: World, name: str, rate: float = 1.0, offset: float = 0.0) -> None:
        self.world, self.name = world, name
        self._rate, self._frozen_until = rate, 0.0
        clock = lambda: world.now * rate + offset  # noqa: E731
        self.election = Election(cast("ApiClient", world), "system", "operator", name, clock, self._sleep)
        self.lost_to = ""
        self._task = asyncio.create_task(self._live())
        world.replicas.append(self)

    async def _live(self) -> None:
        await self.election.won()
        self.lost_to = await self.election.lost()

    async def _sleep(self, seconds: float) -> None:
        await self.world.sleep_until(self.world.now + seconds / self._rate)
        if self.world.now < self._frozen_until:
            await self.world.sleep_until(self._frozen_until)

    def freeze(self, seconds: float) -> None:
        """It does nothing; its clock goes on."""
        self._frozen_until = self.world.now + seconds

    async def die(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def end(self) -> None:
        """As at SIGTERM."""
        await self.die()
        await self.election.release()


def played(story: Callable[[World], Any]) -> World:
    world = World()

    async def run() -> None:
        await story(world)
        for replica in world.replicas:
            await replica.die()

    asyncio.run(run())
    return world


async def two(world: World, **clock: float) -> tuple[Replica, Replica]:
    """One that holds, and one that stands by, whose clock may be another."""
    first = Replica(world, "first")
    await world.passes(2.5)
    second = Replica(world, "second", **clock)
    await world.passes(10.3)
    assert first.election.holds
    assert not second.election.holds
    return first, second


def test_one_that_renews_keeps_it() -> None:
    """For ten minutes, in which nobody else writes."""

    async def story(world: World) -> None:
        first, _ = await two(world)
        await world.passes(600.0)
        assert first.election.holds
        assert {name for _, name in world.writers} == {"first"}
        assert world.lease is not None
        assert world.lease["spec"]["leaseTransitions"] == 1

    played(story)


def test_of_two_that_begin_together_one_gets_it() -> None:
    """The API server refuses the other."""

    async def story(world: World) -> None:
        one, other = Replica(world, "one"), Replica(world, "other")
        await world.passes(20.0)
        assert one.election.holds != other.election.holds

    played(story)


def test_another_takes_over_from_one_that_is_killed_and_no_sooner_than_it_may() -> None:
    """Between the last renewal and then nobody writes."""

    async def story(world: World) -> None:
        first, second = await two(world)
        renewed = world.writers[-1][0]
        await first.die()
        await world.passes(60.0, lambda: second.election.holds)
        waited = world.now - renewed
        assert LEASE_SECONDS < waited <= LEASE_SECONDS + 2 * POLL_SECONDS
        assert not first.election.holds

    played(story)


def test_one_that_ends_hands_over_at_once() -> None:
    """At SIGTERM, so that an upgrade costs a second."""

    async def story(world: World) -> None:
        first, second = await two(world)
        await first.end()
        await world.passes(POLL_SECONDS, lambda: second.election.holds)
        assert second.election.holds
        with pytest.raises(NotHolding):
            first.election.require()

    played(story)


def test_one_that_wakes_after_another_took_over_writes_nothing() -> None:
    """Not even the Lease: it looks first, and ends."""

    async def story(world: World) -> None:
        first, second = await two(world)
        first.freeze(60.0)
        await world.passes(59.0)
        with pytest.raises(NotHolding):
            first.election.require()
        await world.passes(5.0)
        assert first.lost_to == "second"
        assert [name for when, name in world.writers if when > 30.0 and name != "second"] == []
        assert second.election.holds

    played(story)


def test_one_that_is_alone_goes_on_after_an_outage() -> None:
    """Meanwhile it writes nothing: another may have had it, for all it knows."""

    async def story(world: World) -> None:
        alone = Replica(world, "alone")
        await world.passes(5.0)
        world.is_away = True
        await world.passes(RENEW_SECONDS_MAX + 0.1)
        with pytest.raises(NotHolding):
            alone.election.require()
        await world.passes(600.0)
        world.is_away = False
        await world.passes(RENEW_SECONDS)
        assert alone.election.holds
        assert alone.lost_to == ""

    played(story)


def test_after_an_outage_one_of_two_works() -> None:
    """Whoever comes first; the other gives up, or stands by."""

    async def story(world: World) -> None:
        first, second = await two(world)
        world.is_away = True
        await world.passes(60.0)
        world.is_away = False
        await world.passes(5.0)
        assert first.election.holds != second.election.holds
        assert first.lost_to == ("" if first.election.holds else "second")

    played(story)


@pytest.mark.parametrize("rate", [0.7, 1.0, 1.5])
@pytest.mark.parametrize("offset", [-1e9, 1e9])
def test_clocks_that_are_apart_never_have_two_work(rate: float, offset: float) -> None:
    """By decades, which nobody compares; and running half as fast again, which the pause between the two bears."""

    async def story(world: World) -> None:
        first, second = await two(world, rate=rate, offset=offset)
        first.freeze(LEASE_SECONDS / 2)  # late, but not too late, again and again
        await world.passes(30.0)
        world.is_away = True
        await world.passes(4.0)
        world.is_away = False
        await world.passes(30.0)
        await first.die()
        await world.passes(60.0, lambda: second.election.holds)
        assert second.election.holds

    played(story)


def test_an_answer_that_was_lost_is_no_loss_of_the_lease() -> None:
    """What it says by now is asked for: it is ours."""

    async def story(world: World) -> None:
        first, _ = await two(world)
        world.loses_answers = True
        await world.passes(30.0)
        assert first.election.holds
        assert first.lost_to == ""

    played(story)


@pytest.mark.parametrize("after", [0.0, 0.2, 0.5, 0.7, 0.9, 1.2])
def test_a_lease_that_somebody_deletes_is_made_anew_by_the_one_that_holds(after: float) -> None:
    """Whoever looks first: for one that stands by, what it has seen counts for as long as if it were there."""

    async def story(world: World) -> None:
        first, second = await two(world)
        await world.passes(after)
        world.lease = None
        await world.passes(RENEW_SECONDS)
        assert first.election.holds
        world.lease = None
        await first.die()
        await world.passes(60.0, lambda: second.election.holds)
        assert second.election.holds

    played(story)

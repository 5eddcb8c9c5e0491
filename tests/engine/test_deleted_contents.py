"""What deleted handles hide of a file, for who may not undelete: as a look at every record would say."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from tests.service.running import until
from tests.support import Workshop
from ullage.contract import Right
from ullage.embedded.acting import Acting
from ullage.embedded.deleted import Deleted
from ullage.engine.engine import Engine
from ullage.engine.model import HANDLE_QUEUE, ContentClaim, FlowFileRecord, parse_uuid
from ullage.errors import HandleDeleted, HandleNotDeleted, HandleNotFound

DAY = 86_400
SOMEBODY = Acting("somebody", may=lambda right: right != Right.UNDELETE)


def hides(engine: Engine, claim: ContentClaim) -> bool:
    return Deleted(engine, SOMEBODY).hides(claim)


def stored(engine: Engine, count: int, ttl_millis: int = 0) -> list[tuple[str, ContentClaim]]:
    ids = engine.handles.put_many([b"x" * 10] * count, ttl_millis=ttl_millis)
    found = [(id, engine.handles.head(id).claim) for id in ids]
    return [(id, claim) for id, claim in found if claim is not None]


def is_readable(record: FlowFileRecord, now: int) -> bool:
    is_over = record.deleted_millis or 0 < record.expires_millis <= now
    return record.queue != HANDLE_QUEUE or not is_over


class History:
    """Steps at random, and the claims of all handles that ever were."""

    def __init__(self, workshop: Workshop, repository: Engine, seed: int) -> None:
        self.repository = repository
        self.known: list[tuple[str, ContentClaim]] = []
        self._workshop = workshop
        self._chance = random.Random(seed)

    def step(self) -> str:
        """Do something; what it was."""
        named: dict[str, Callable[[str], None]] = {
            "delete": self.repository.handles.delete,
            "undelete": self.repository.handles.undelete,
            "forget": self._forget,
            "clone": self._clone,
        }
        what = self._chance.choice(["put", "put", "delete", "drop", "wait", "reopen", *named])
        if what in named and self.known:
            with suppress(HandleDeleted, HandleNotDeleted, HandleNotFound):  # chance does not ask what is possible
                named[what](self._chance.choice(self.known)[0])
        elif what == "put":
            ttl_millis = self._chance.choice([0, 0, 3 * DAY * 1000])
            self.known += stored(self.repository, self._chance.randint(1, 4), ttl_millis)
        elif what == "drop":
            with self.repository.session() as session:
                session.remove_many(session.get_many("q", 1))
                session.commit()
        elif what == "wait":
            self._workshop.clock.advance(self._chance.choice([1, 4, 8]) * DAY)
            self.repository.handles.purge()
        elif what == "reopen":
            self.repository = self._workshop.reopen()
        return what

    def readable(self) -> set[ContentClaim | None]:
        """What some record lets be read."""
        now = self.repository.clock.now_millis()
        return {record.claim for record in self.repository.ledger.flow_files() if is_readable(record, now)}

    def _forget(self, id: str) -> None:
        self.repository.handles.forget([parse_uuid(id)], "a test")

    def _clone(self, id: str) -> None:
        with self.repository.session() as session:
            session.transfer(session.import_handle(parse_uuid(id)), "q")
            session.commit()


@pytest.mark.parametrize("seed", range(6))
def test_hidden_is_what_no_record_lets_anybody_read(workshop: Workshop, repository: Engine, seed: int) -> None:
    """After any history of puts, deletions, undeletions, purges, clones into queues and restarts."""
    history = History(workshop, repository, seed)
    for _ in range(60):
        what = history.step()
        readable = history.readable()
        for _, claim in history.known:
            if history.repository.ledger.entry(claim.resource) is not None:
                assert hides(history.repository, claim) == (claim not in readable), what
    assert len(history.known) > 5


def test_a_purge_shows_nothing_while_it_goes_on(workshop: Workshop, repository: Engine) -> None:
    """The handle has left the schedule, and the ledger has it still: it counts as a claimant, and is deleted."""
    ((id, claim),) = stored(repository, 1)
    repository.handles.delete(id)
    workshop.clock.advance(8 * DAY)
    with ThreadPoolExecutor(1) as pool:
        with repository.handles._changing([parse_uuid(id)]):  # as another change of the handle would
            purging = pool.submit(repository.handles.purge)
            until(lambda: not len(repository.handles._purges), "the purge to have taken the handle")
            assert repository.ledger.find(parse_uuid(id)) is not None
            assert hides(repository, claim)
        assert purging.result() == 1

    assert repository.ledger.find(parse_uuid(id)) is None
    assert hides(repository, claim)


def test_a_look_costs_the_tombstones_of_its_own_file(repository: Engine) -> None:
    """Those of others are not looked at, and those of one file once for all addresses that are asked for."""
    here = stored(repository, 50)
    repository.content.retire_idle()
    other = stored(repository, 500)
    for id, _ in here[:20] + other:
        repository.handles.delete(id)
    assert here[0][1].resource != other[0][1].resource
    seen: list[int] = []
    ending_in = repository.handles.unreadable_in

    def counted(resource: int) -> list[FlowFileRecord]:
        found = ending_in(resource)
        seen.append(len(found))
        return found

    repository.handles.unreadable_in = counted  # type: ignore[method-assign]
    deleted = Deleted(repository, SOMEBODY)

    assert [deleted.hides(claim) for _, claim in here] == [True] * 20 + [False] * 30
    assert seen == [20]


def test_what_is_over_is_not_remembered(workshop: Workshop, repository: Engine) -> None:
    """Purged, forgotten and undeleted handles leave nothing in memory once their time has come."""
    ids = [id for id, _ in stored(repository, 30, 5 * DAY * 1000) + stored(repository, 30)]
    for id in ids:
        repository.handles.delete(id)
    repository.handles.forget([parse_uuid(id) for id in ids[:5]], "a test")
    for id in ids[30:40]:
        repository.handles.undelete(id)
    workshop.clock.advance(9 * DAY)
    repository.handles.purge()

    purges = repository.handles._purges
    assert len(purges) == 0
    assert purges._by_birth == purges._tombstones == {}
    assert purges._minutes_of == {}

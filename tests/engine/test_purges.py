"""Handles are purged when their time is over, however far that was, and whatever was said of it meanwhile."""

import random
import tracemalloc
from contextlib import suppress

import msgspec
import pytest

from tests.support import ManualClock, Workshop
from ullage.engine import purges
from ullage.engine.content.availability import Availability
from ullage.engine.engine import Engine
from ullage.engine.model import NO_ATTRIBUTES, ContentClaim, FlowFileRecord, new_uuids
from ullage.engine.purges import LOOKED_AT_ONCE, MINUTE_BITS, PurgeSchedule
from ullage.errors import HandleDeleted, HandleNotDeleted, HandleNotFound

MINUTE_MILLIS = 1 << MINUTE_BITS
RETENTION_MILLIS = 30 * MINUTE_MILLIS


class Ends:
    """What a repository's handles are to end at, by rules of their own: 0 is never."""

    def __init__(self, repository: Engine, clock: ManualClock, seed: int) -> None:
        self.repository = repository
        self._clock = clock
        self._choose = random.Random(seed)
        self.ends: dict[str, tuple[int, int]] = {}
        """When each expires, and when it was deleted."""

    def ttl(self) -> int:
        return self._choose.choice([0, 1, self._choose.randrange(20 * MINUTE_MILLIS), 100 * MINUTE_MILLIS])

    def put(self) -> None:
        ttl = self.ttl()
        for id in self.repository.handles.put_many([b"x"] * self._choose.randint(1, 5), ttl_millis=ttl):
            self.ends[id] = (self._clock.now_millis() + ttl if ttl else 0, 0)

    def change(self) -> None:
        id = self._choose.choice(sorted(self.ends))
        now, (expires, deleted) = self._clock.now_millis(), self.ends[id]
        with suppress(HandleDeleted, HandleNotDeleted, HandleNotFound):  # its time is over, or it is deleted already
            deed = self._choose.choice(["delete", "undelete", "ttl"])
            if deed == "delete":
                self.repository.handles.delete(id)
                self.ends[id] = (expires, now)
            elif deed == "undelete":
                self.repository.handles.undelete(id)
                self.ends[id] = (expires, 0)
            else:
                ttl = self.ttl()
                self.repository.handles.set_ttl(id, ttl)
                self.ends[id] = (now + ttl if ttl else 0, deleted)

    def purge(self) -> None:
        """Who is over goes, and nobody else."""
        self._clock.advance(self._choose.choice([0.001, 30, 200, 2_000]))
        now = self._clock.now_millis()
        over = {id for id, ends in self.ends.items() if 0 < self._end(*ends) <= now}
        assert self.repository.handles.purge() == len(over)
        for id in over:
            del self.ends[id]
        assert {record.id for record in self.repository.handles.page(b"", 10_000)} == set(self.ends)

    def _end(self, expires: int, deleted: int) -> int:
        ends = [expires] if expires else []
        return min([*ends, deleted + RETENTION_MILLIS] if deleted else ends, default=0)


@pytest.mark.parametrize("looked_at_once", [1, 2, LOOKED_AT_ONCE])
def test_who_is_over_is_purged_and_nobody_else(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, seed: int, looked_at_once: int
) -> None:
    """Puts, deletions, other times to live, purges and starts in any order."""
    monkeypatch.setattr(purges, "LOOKED_AT_ONCE", looked_at_once)
    repository = workshop.make(compaction={"deleted_retention": RETENTION_MILLIS})
    story = Ends(repository, workshop.clock, seed)
    choose = random.Random(seed)
    for _ in range(400):
        deed = choose.random()
        if deed < 0.3 or not story.ends:
            story.put()
        elif deed < 0.85:
            story.change()
        elif deed < 0.95:
            story.purge()
        elif deed < 0.98:
            repository.ledger.records.pack(0)
        else:
            story.repository = repository = workshop.restart(choose.choice(["clean", "crash"]))
    workshop.clock.advance(1_000 * MINUTE_MILLIS / 1_000)
    story.purge()

    assert not any(expires or deleted for expires, deleted in story.ends.values())
    assert len(repository.handles._purges) == 0


def test_an_end_that_is_put_off_again_and_again_is_remembered_once_a_minute(workshop: Workshop) -> None:
    """What was said before is forgotten when its minute comes."""
    repository = workshop.make()
    id = repository.handles.put(b"x", ttl_millis=5 * MINUTE_MILLIS)
    for _ in range(20):
        workshop.clock.advance(MINUTE_MILLIS / 1_000)
        repository.handles.set_ttl(id, 5 * MINUTE_MILLIS)
        assert repository.handles.purge() == 0

    assert len(repository.handles._purges) <= 6


def test_what_ends_later_takes_little_until_its_time_comes(workshop: Workshop) -> None:
    """Its uuid, and no object: most of those that wait wait long."""
    repository, clock = workshop.make(), workshop.clock
    schedule = PurgeSchedule(
        repository.ledger, clock, RETENTION_MILLIS, Availability(repository.ledger, repository.content)
    )
    expires = clock.now_millis() + 5 * MINUTE_MILLIS
    claim = ContentClaim(1, 0, 1, 1)
    record = FlowFileRecord(bytes(16), 0, claim, 0, 1, 1, 1, 1, NO_ATTRIBUTES, b"", expires)
    records = [msgspec.structs.replace(record, uuid=uuid) for uuid in new_uuids(5_000)]
    tracemalloc.start()
    for each in records:
        schedule.add(each)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert taken < 24 * len(records)
    assert len(schedule) == len(records)

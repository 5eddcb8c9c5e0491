"""The survey by differences: it is what working everything out anew gives, and costs what changed."""

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.support import Workshop, committing, drain, put_all
from ullage.engine.engine import Engine
from ullage.engine.ledger import state
from ullage.engine.model import HANDLE_QUEUE, ContentClaim, FlowFileRecord, Operation, ResourceClaim, new_uuids
from ullage.engine.reclaim.survey import SpaceSurvey
from ullage.engine.reclaim.surveyor import Surveyor

KB = 1024
DAY = 24 * 3600


def tombstones(repository: Engine) -> list[FlowFileRecord]:
    return [record for record in repository.ledger.flow_files() if record.deleted_millis]


def anew(repository: Engine) -> SpaceSurvey:
    """The survey of somebody who looks at everything."""
    content = repository.content
    deleted = tombstones(repository)
    return Surveyor(
        repository.ledger,
        lambda birth: [each for each in deleted if each.claim is not None and each.claim.resource == birth],
    ).survey(
        list(content.containers.values()),
        repository.clock.now_millis(),
        content.open_lengths(),
        repository.reclamation.orphans.figures,
    )


def kept_by_tombstones(repository: Engine) -> dict[int, int]:
    """Bytes of content that only deleted handles point at, by the file in which they lie."""
    kept: dict[int, int] = {}
    for claim in {record.claim for record in tombstones(repository) if record.claim is not None}:
        others = [each for each in repository.ledger.flow_files() if each.claim == claim and not each.deleted_millis]
        if not others:
            entry = repository.ledger.entry(claim.resource)
            assert entry is not None
            file = claim.resource if entry.relocation is None else entry.relocation.output
            kept[file] = kept.get(file, 0) + claim.length
    return kept


def require_right(repository: Engine) -> None:
    """What is kept first: whoever looks takes the notes of what changed."""
    kept, found = repository.reclamation.survey(), anew(repository)
    for one, other in zip(kept.containers, found.containers, strict=True):
        assert one == other._replace(usage=one.usage)  # others use the disk too
    assert kept.tombstoned == found.tombstoned
    assert {index: count for index, (count, *_) in kept.tombstoned.items()} == kept_by_tombstones(repository)
    assert {one.resource: one for one in kept.resources} == {one.resource: one for one in found.resources}


class Deeds:
    """Whatever changes what a survey sees, drawn at random."""

    def __init__(self, workshop: Workshop, chooser: random.Random) -> None:
        self.workshop = workshop
        self.chooser = chooser
        self.handles: list[str] = []
        self.reading = ExitStack()

    @property
    def repository(self) -> Engine:
        return self.workshop.repository

    def contents(self) -> list[bytes]:
        return [
            self.chooser.randbytes(self.chooser.choice((0, 1, 700, 70 * KB))) for _ in range(self.chooser.randint(1, 9))
        ]

    def put(self) -> None:
        self.handles += self.repository.handles.put_many(self.contents(), ttl_millis=self.chooser.choice((0, DAY)))

    def delete(self) -> None:
        if self.handles:
            handle = self.handles.pop(self.chooser.randrange(len(self.handles)))
            if not self.repository.handles.head(handle).expires_millis:
                self.repository.handles.delete(handle)
                if self.chooser.random() < 0.3:
                    self.repository.handles.undelete(handle)

    def read(self) -> None:
        """A stream pins its content for as long as it is open."""
        if self.handles and self.chooser.random() < 0.7:
            handle = self.chooser.choice(self.handles)
            if not self.repository.handles.head(handle).expires_millis:
                self.reading.enter_context(self.repository.handles.get(handle))
        else:
            self.reading.close()

    def ingest(self) -> None:
        put_all(self.repository, self.chooser.choice("ab"), self.contents())

    def change(self) -> None:
        """Clones, slices and new content of what stands in a queue."""
        with committing(self.repository) as session:
            for record in session.get_many("a", self.chooser.randint(1, 5)):
                session.transfer(session.clone(record), "b")
                changed = session.write(record, b"new") if self.chooser.random() < 0.5 else record
                session.transfer(changed, self.chooser.choice("ab"))

    def drain(self) -> None:
        drain(self.repository, self.chooser.choice("ab"), self.chooser.randint(1, 20))

    def drop(self) -> None:
        self.repository.queues.drop(self.repository.queue("b"))

    def reclaim(self) -> None:
        """To the archive, out of it, cut, and rewritten."""
        self.repository.reclamation.clean()
        self.repository.reclamation.execute(self.repository.reclamation.plan_truncation(eager=True))
        self.repository.compactor.execute(self.repository.compactor.plan(policy="CompactAll"))

    def wait(self) -> None:
        self.workshop.clock.advance(self.chooser.choice((60, 3 * DAY)))
        self.repository.handles.purge()
        self.handles = [each for each in self.handles if each in self.known()]

    def known(self) -> set[str]:
        return {record.id for record in self.repository.ledger.flow_files()}

    def restart(self) -> None:
        self.reading.close()
        self.workshop.restart(self.chooser.choice(("clean", "crash", "checkpoint")))


@pytest.mark.parametrize("number", range(3))
def test_a_survey_is_what_looking_at_everything_gives(workshop: Workshop, number: int, seed: int) -> None:
    """After every change, and after several between two surveys; with swap files, archives, outputs and pins."""
    chooser = random.Random(seed + number)
    print(f"seed {seed}")
    workshop.make(flow_file={"swap_threshold": 10, "swap_batch": 5}, claims={"max_flow_files": 4})
    deeds = Deeds(workshop, chooser)
    each: list[Callable[[], None]] = [
        *(deeds.put, deeds.put, deeds.delete, deeds.read, deeds.ingest, deeds.ingest, deeds.change),
        *(deeds.drain, deeds.drop, deeds.reclaim, deeds.wait, deeds.restart),
    ]
    with deeds.reading:
        for _ in range(70):
            for deed in chooser.choices(each, k=chooser.choice((1, 1, 3))):
                deed()
            require_right(workshop.repository)
            assert workshop.repository.check().problems == ()


def test_a_survey_between_a_deletion_and_its_acknowledgement_hides_no_tombstone(repository: Engine) -> None:
    """The transaction is applied, and the schedule of purges does not know of it yet: the next survey looks again."""
    handle = repository.handles.put(b"h" * 60 * KB)  # in a file of its own: one that is written is looked at each time
    repository.content.retire_idle()
    repository.reclamation.survey()

    def surveying(_: float) -> None:
        repository.reclamation.survey()

    repository.committer.listeners.append(surveying)
    repository.handles.delete(handle)

    require_right(repository)
    assert sum(kept_by_tombstones(repository).values()) == 60 * KB


def test_check_finds_a_survey_that_is_out_of_date_and_mends_it(workshop: Workshop, repository: Engine) -> None:
    """Whatever was forgotten: totals choose what is looked at, so a wrong one would keep dead bytes for ever."""
    put_all(repository, "q", [b"a" * 5 * KB, b"b"])
    drain(repository, "q", 1)
    repository = workshop.reopen()  # a file that is being written is looked at each time
    assert repository.check().problems == ()
    (entry,) = repository.ledger.entries()
    right, entry.last_death_millis = entry.last_death_millis, 5  # as no transaction does

    first, second, third = (repository.check().problems for _ in range(3))

    assert len(first) == 1
    assert f"resource claim {entry.claim.index} the survey knows" in first[0]
    assert (second, third) == ((), ())
    entry.last_death_millis = right
    repository.ledger.forget_changed()


def test_nothing_is_out_of_date_while_everything_goes_on(workshop: Workshop, seed: int) -> None:
    """Whoever looks in the middle of puts, deletions, reads and runs finds what changes noted, or changed."""
    print(f"seed {seed}")
    repository = workshop.make()

    def change(number: int) -> None:
        chooser = random.Random(seed + number)
        mine: list[str] = []
        for _ in range(25):
            mine += repository.handles.put_many([chooser.randbytes(chooser.choice((10, 60 * KB))) for _ in range(3)])
            deleted = mine.pop(chooser.randrange(len(mine)))
            repository.handles.delete(deleted)
            if chooser.random() < 0.3:
                repository.handles.undelete(deleted)
            with repository.handles.get(chooser.choice(mine)) as stream:
                stream.read()
            if number == 0:
                repository.reclamation.clean()

    problems: list[str] = []
    with ThreadPoolExecutor(3) as pool:
        changing = [pool.submit(change, number) for number in range(3)]
        while not all(each.done() for each in changing):
            problems += repository.reclamation.survey_problems()
        for each in changing:
            each.result()
    assert problems == []
    require_right(repository)


def test_more_changes_than_are_noted_are_all_seen(
    repository: Engine, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then a survey looks at everything once."""
    monkeypatch.setattr(state, "CHANGED_MAX", 3)
    require_right(repository)
    for _ in range(9):
        put_all(repository, "q", [b"a" * 60 * KB])
    assert repository.ledger.take_changed() is None
    repository.ledger.forget_changed()
    require_right(repository)
    drain(repository, "q", 2)
    require_right(repository)


def many(repository: Engine, count: int) -> list[bytes]:
    """So many full files of one handle each, as a snapshot would bring them; the handles."""
    (container,) = repository.content.containers
    first = repository.ledger.index_ceiling + 1
    uuids = new_uuids(count)
    for at in range(count):
        index = first + at
        record = FlowFileRecord(uuids[at], HANDLE_QUEUE, ContentClaim(index, 0, KB, 0), 0, KB, 1, 1, 0, b"\x80")
        loaded: list[Operation] = [ResourceClaim(index, container, 1, 2, KB, sealed=True), record]
        repository.ledger.load(loaded)
    return uuids


def test_a_survey_costs_what_changed(workshop: Workshop) -> None:
    """Not what there is: of ten thousand files a few have changed, and the others are not looked at."""
    repository = workshop.make()
    workshop.expects_problems = True  # these files are not on the disk
    uuids = many(repository, 10_000)

    def seconds() -> float:
        began = time.perf_counter()
        assert len(repository.compactor.plan().steps) <= 10
        return time.perf_counter() - began

    everything = seconds()
    repository.handles.delete(repository.handles.page(b"", 1)[0].id)
    few = min(seconds() for _ in range(5))

    assert len(uuids) == 10_000
    assert few < everything / 10, (few, everything)

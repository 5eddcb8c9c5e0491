"""Runs of compaction: which files, in what order, how fast, until when, and what is left."""

import random
import threading
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from tests.failing_files import FailingFiles
from tests.support import TWO, ManualClock, RoomyFiles, Workshop, committing, content_sizes, put_all, spec_at
from tests.threads import in_thread
from ullage.contract import CompactionSettings, Permission, PunchSettings, Quantity
from ullage.engine import plugins
from ullage.engine.content.containers import Usage
from ullage.engine.engine import Engine
from ullage.engine.files import DiskUsage, FileMark, OsFiles
from ullage.engine.model import Action
from ullage.engine.reclaim import policies
from ullage.engine.reclaim.compaction import CompactionRequest, plan_compaction
from ullage.engine.reclaim.pacing import OPERATIONS, RunTicket, TokenBucket
from ullage.engine.reclaim.policies import Candidate, CompactAll, StatsBased, load_policy
from ullage.engine.reclaim.survey import ContainerFigures, ResourceFigures, SpaceSurvey
from ullage.errors import UnknownPlugin

KB = 1024
MB = 1 << 20
LOOSE: dict[str, Any] = {
    "claims": {"max_appendable_size": Quantity(MB), "max_flow_files": 20},
    "archive": {"enabled": False},
    "compaction": {
        "output_size": Quantity(100 * KB),
        "punch": PunchSettings(enabled=False),
        "bytes_per_second": Quantity(0),
    },
}


def fill(repository: Engine, files: int = 4) -> None:
    """Files of twenty claims of 10 KB, of which every fourth lives."""
    chooser = random.Random(1)
    for _ in range(files):
        with committing(repository) as session:
            for number in range(20):
                session.ingest("drop" if number % 4 else "keep", [chooser.randbytes(10 * KB)])
    repository.queues.drop(repository.queue("drop"))


def candidate(resource: int, live: int, *, disk: int = MB, created_millis: int = 0) -> Candidate:
    figures = ResourceFigures(
        resource,
        "c1",
        disk,
        live,
        disk,
        1,
        1,
        True,
        False,
        False,
        0,
        0,
        allocated_bytes=disk,
        created_millis=created_millis,
    )
    return Candidate(figures, disk)


def chosen(policy: policies.Policy, *candidates: Candidate) -> list[int]:
    found = policy.choose(candidates, CompactionSettings(), 1_000_000)
    return [candidate.figures.resource for candidate in found]


def test_stats_based_takes_most_freed_for_each_byte_copied_and_the_old_first() -> None:
    """Among files of one age the emptiest, among equally empty ones the oldest; full ones never."""
    assert chosen(StatsBased(), candidate(1, MB // 2), candidate(2, MB // 10), candidate(3, MB // 3)) == [2, 3, 1]
    assert chosen(StatsBased(), candidate(1, MB // 2, created_millis=900_000), candidate(2, MB // 2)) == [2, 1]
    assert chosen(StatsBased(), candidate(1, MB * 8 // 10), candidate(2, MB * 6 // 10)) == [2]


def test_a_run_for_little_rewrites_what_its_policy_judges_best() -> None:
    """Outputs come in the policy's order, and so do files within one: not the emptiest first, but by age as well."""
    old = [candidate(number, MB // 2, created_millis=number).figures for number in range(1, 7)]
    young = [candidate(number, MB // 3, created_millis=590_000).figures for number in range(7, 13)]
    container = ContainerFigures("c1", "/c1", 12, 12 * MB, 5 * MB, 0, 0, 0, 0, 0, Usage(100, 40))
    survey = SpaceSurvey(600_000, (*young, *reversed(old)), (container,))
    spec = spec_at("/r", compaction={"punch": PunchSettings(enabled=False), "output_size": Quantity(MB)})
    wish = CompactionRequest(StatsBased(), keeps_guards=False, actions=frozenset({Action.REWRITE}))

    everything = plan_compaction(survey, spec, wish).steps
    little = plan_compaction(survey, spec, wish._replace(frees_wanted=1)).steps

    assert [step.resource for step in everything[:6]] == [1, 2, 3, 4, 5, 6]
    assert {step.resource for step in everything} == set(range(1, 13))
    assert [step.resource for step in little] == [1, 2]


def test_compact_all_takes_what_gives_something_back() -> None:
    """Most bytes first, also of nearly full files; of a full one there is nothing to win."""
    assert chosen(CompactAll(), candidate(1, MB * 9 // 10), candidate(2, MB // 2), candidate(3, MB)) == [2, 1]


def test_policies_load_by_name_and_from_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the package, those of the group `ullage.policies`, and an error that lists them."""
    mine = EntryPoint("Mine", "ullage.engine.reclaim.policies:CompactAll", "ullage.policies")
    monkeypatch.setattr(plugins, "entry_points", lambda group: [mine] if group == "ullage.policies" else [])

    assert isinstance(load_policy("StatsBased"), StatsBased)
    assert isinstance(load_policy("Mine"), CompactAll)
    with pytest.raises(UnknownPlugin, match="'StatsBased', 'CompactAll', 'Mine'"):
        load_policy("Theirs")


def test_a_policy_that_there_is_not_is_told_at_the_open(workshop: Workshop) -> None:
    """A misspelt name would otherwise show when the first run is due."""
    with pytest.raises(UnknownPlugin, match="no compaction policy 'StatBased'"):
        workshop.make(compaction={"policy": "StatBased"})


@pytest.mark.parametrize("piece", [1_000, 64 * KB, 3 * MB])
def test_the_average_keeps_to_the_rate_whatever_the_pieces(piece: int) -> None:
    """A hundred megabytes at ten a second take ten seconds, less the first burst."""
    clock = ManualClock()
    bucket = TokenBucket(10 * MB, clock)
    begin = clock.monotonic()

    for _ in range(100 * MB // piece):
        bucket.take(piece)

    assert clock.monotonic() - begin == pytest.approx(10, rel=0.1)


def test_a_paced_run_takes_its_time(workshop: Workshop) -> None:
    """200 KB at 20 KB a second: ten seconds by the injected clock, and the report says so."""
    repository = workshop.make(**LOOSE)
    fill(repository)
    compactor = repository.compactor

    report = compactor.execute(compactor.plan(), bytes_per_second=20 * KB)

    assert report.copied_bytes == 200 * KB
    assert report.seconds == pytest.approx(10, rel=0.1)


def test_a_run_stops_between_actions_when_its_ticket_ends(workshop: Workshop) -> None:
    """What is left keeps its reason, nothing is half done, and the next run takes it up."""
    repository = workshop.make(**LOOSE)
    fill(repository)
    compactor = repository.compactor
    until = workshop.clock.monotonic() + 1

    first = compactor.execute(compactor.plan(), RunTicket(until_monotonic=until), bytes_per_second=20 * KB)
    second = compactor.execute(compactor.plan())

    assert first.is_stopped
    assert 0 < first.done[Action.REWRITE] < 4
    assert {left.reason for left in first.left} == {"the ticket ended"}
    assert first.done[Action.REWRITE] + len(first.left) == 4
    assert second.done == {Action.REWRITE: len(first.left)}


def test_a_ticket_taken_back_gives_up_the_output_that_is_copied(workshop: Workshop) -> None:
    """The copy leaves no file and no claim; the sources are what they were."""
    repository = workshop.make(**LOOSE)
    fill(repository)
    compactor = repository.compactor
    before = content_sizes(workshop.path)
    asked = iter([False, False, False])

    report = compactor.execute(compactor.plan(), RunTicket(is_revoked=lambda: next(asked, True)))

    assert report.done == {}
    assert len(report.left) == 4
    assert content_sizes(workshop.path) == before
    assert repository.check(deep=True).problems == ()


class NearlyFull(OsFiles):
    """A disk on which there is hardly anything left."""

    def usage(self, path: str) -> DiskUsage:
        return DiskUsage(1 << 30, 40 << 20)


@pytest.mark.parametrize(("disk", "emergency"), [(RoomyFiles, 0), (NearlyFull, 2)])
def test_without_a_ticket_only_an_emergency_frees_space(
    workshop: Workshop, disk: type[OsFiles], emergency: int
) -> None:
    """Below the floor whole files and dead tails go, and the report says so; nothing is rewritten in any case."""
    repository = workshop.make(disk(), **LOOSE)
    fill(repository, files=1)
    with committing(repository) as session:
        session.ingest("keep", [b"k"])
        session.ingest("tail", [bytes(2 * MB)])
    put_all(repository, "tail", [bytes(2 * MB)])
    repository.queues.drop(repository.queue("tail"))
    compactor = repository.compactor
    plan = compactor.plan()

    closed = Permission(is_granted=False, reason="no window is open")
    floor = closed._replace(emergency_free_percentage=5)
    permissions = {action: floor if action in (Action.DELETE, Action.TRUNCATE) else closed for action in OPERATIONS}

    report = compactor.execute(plan, RunTicket(permissions))

    assert {step.action for step in plan.steps} == {Action.DELETE, Action.TRUNCATE, Action.REWRITE}
    assert report.emergency == emergency
    assert sum(report.done.values()) == emergency
    assert {left.reason for left in report.left} == {"no window is open"}
    assert Action.REWRITE not in report.done


def test_no_room_for_an_output_is_said_and_changes_nothing(workshop: Workshop) -> None:
    """Free space is looked at before the first byte is copied."""

    class Full(RoomyFiles):
        is_full = False

        def usage(self, path: str) -> DiskUsage:
            return DiskUsage(1 << 30, 0) if self.is_full else super().usage(path)

    files = Full()
    repository = workshop.make(files, **LOOSE)
    fill(repository)
    before = content_sizes(workshop.path)
    files.is_full = True

    report = repository.compactor.execute(repository.compactor.plan())
    files.is_full = False

    assert report.copied_bytes == 0
    assert all("no room" in left.reason for left in report.left)
    assert content_sizes(workshop.path) == before


def test_disks_are_rewritten_side_by_side(workshop: Workshop) -> None:
    """Each disk has a thread of its own: one that waits does not hold the other up."""

    class TwoDisks(FailingFiles):
        def mark(self, path: str) -> FileMark:
            found = super().mark(path)
            return found._replace(device=found.device + 1) if "c2" in path else found

    files = TwoDisks()
    archive = {"enabled": False, "backpressure_percentage": 100}
    repository = workshop.make(files, **{**LOOSE, "archive": archive}, storage=TWO)
    fill(repository, files=8)
    compactor = repository.compactor
    plan = compactor.plan()
    gate = files.hold("create", "*/c1/*")
    done: list[Any] = []
    is_half_done = threading.Event()

    def follow(steps: int, freed_bytes: int) -> None:
        if steps == len(plan.steps) // 2:
            is_half_done.set()

    with in_thread(lambda: done.append(compactor.execute(plan, on_progress=follow))):
        gate.wait_until_reached()
        assert is_half_done.wait(60)
        untouched = [e for e in repository.ledger.entries() if e.claim.container == "c1" and e.relocation is not None]
        gate.open()

    assert {step.container for step in plan.steps} == {"c1", "c2"}
    assert untouched == []
    assert done[0].done == {Action.REWRITE: 8}


def test_short_runs_go_on_while_a_rewrite_is_under_way(workshop: Workshop, files: FailingFiles) -> None:
    """Cleaning does not wait for a rewrite, and leaves its sources alone."""
    repository = workshop.make(**LOOSE)
    fill(repository)
    compactor = repository.compactor
    plan = compactor.plan()
    gate = files.hold("sync", "*/c1/*")
    done: list[Any] = []
    with in_thread(lambda: done.append(compactor.execute(plan, bytes_per_second=1 << 40))):
        gate.wait_until_reached()
        repository.queues.drop(repository.queue("keep"))
        cleaned = repository.reclamation.clean()
        gate.open()
    later = repository.reclamation.clean()

    assert cleaned.done[Action.DELETE] == 2  # the sources of the other output
    assert done[0].skipped == 4
    assert later.done == {Action.DELETE: 2}
    assert content_sizes(workshop.path) == {}

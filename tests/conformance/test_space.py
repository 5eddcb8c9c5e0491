"""What is said of dead bytes, whichever way the repository is reached: why they are there, and when they come back."""

from pathlib import Path

import pytest

from tests.conformance.conftest import opened
from ullage import GivenBack, Repository, SpaceUse
from ullage.contract import Duration, GoalSettings, PunchSettings


def test_every_allocated_byte_is_explained(repository: Repository) -> None:
    """By container and use; what nobody points at says why it is still there."""
    repository.handles.put(bytes(200_000))
    repository.queues.put_many("gone", [bytes(300_000)])
    repository.queues.drop("gone")

    explanation = repository.reclamation.explain()

    assert explanation.millis > 0
    assert sum(share.bytes for share in explanation.shares) == explanation.allocated_bytes > 0
    content = {share.use: share.bytes for share in explanation.shares if share.container}
    assert content[SpaceUse.LIVE] == 200_000
    assert content[SpaceUse.DUE] >= 300_000


def test_every_dead_byte_says_when_it_comes_back(repository: Repository) -> None:
    """By what operation; what is held, by whom; and what is kept for an undelete until its date."""
    repository.handles.delete(repository.handles.put(bytes(200_000)))
    repository.queues.put_many("gone", [bytes(300_000)])
    repository.queues.drop("gone")

    forecast = repository.reclamation.forecast()

    assert sum(coming.bytes for coming in forecast.coming) == forecast.dead_bytes >= 500_000
    due = next(coming for coming in forecast.coming if coming.use == SpaceUse.DUE)
    assert (due.operation, due.bytes >= 300_000) == ("Delete", True)
    assert due.when in (GivenBack.NOW, GivenBack.NEXT_RUN)
    assert due.earliest_millis is not None
    kept = next(coming for coming in forecast.coming if coming.use == SpaceUse.TOMBSTONE)
    assert (kept.operation, kept.when) == ("Delete", GivenBack.RETENTION_ENDS)
    assert (kept.earliest_millis or 0) > forecast.millis
    assert kept.helps
    assert kept.latest_millis is None or kept.latest_millis >= (kept.earliest_millis or 0)


def test_a_goal_says_how_it_is_held(repository: Repository) -> None:
    """Where there is none, it says that."""
    goal = repository.reclamation.goal()

    assert (goal.disk_to_live, goal.max_dead_age_millis, goal.looked_millis) == (None, None, None)
    assert (goal.decided_by, goal.chosen_files, goal.will_miss) == ("Nobody", 0, None)


@pytest.mark.parametrize("way", ["embedded", "memory", "http"])
def test_a_goal_that_will_be_missed_says_so(way: str, tmp_path: Path, short_path: Path) -> None:
    """Which, from when on, why, and what would help; nothing that thresholds keep is copied."""
    goal = GoalSettings(disk_to_live=1.01, max_dead_age=Duration(3_600_000))
    limits = {"min_used_percentage": 0, "min_reclaim": 0, "max_live_fraction": 0.01, "goal": goal}
    limits["punch"] = PunchSettings(enabled=False)
    with opened(way, tmp_path / "repository", short_path, compaction=limits) as repository:
        with repository.session() as session:
            for number in range(20):
                session.transfer(session.write(session.create(), bytes(100_000)), f"q{number % 2}")
            session.commit()
        repository.queues.drop("q0")
        repository.reclamation.reclaim(operations=["Truncate"])  # which closes the file
        repository.reclamation.plan(respects_guards=True)

        told = repository.reclamation.goal()

    assert (told.disk_to_live, told.max_dead_age_millis) == (1.01, 3_600_000)
    assert told.looked_millis is not None
    assert (told.decided_by, told.will_miss, told.hindrance) == ("Thresholds", "diskToLive", "Limit")
    assert "maxLiveFraction" in told.reason
    assert "maxLiveFraction" in told.helps
    assert told.hindered_bytes == told.dead_bytes > 500_000


def test_the_archive_goes_when_somebody_says_so(archiving: Repository) -> None:
    """What a run leaves it names, with its date; asked for the archive too, it gives that back."""
    archiving.queues.put_many("gone", [bytes(300_000)])
    archiving.queues.drop("gone")

    first = archiving.reclamation.reclaim().report
    assert first is not None
    (kept,) = first.kept
    assert (first.freed_bytes, kept.use, kept.bytes >= 300_000) == (0, SpaceUse.ARCHIVE, True)
    assert kept.until_millis is not None
    assert archiving.reclamation.plan().steps == []
    assert [step.action for step in archiving.reclamation.plan(archive=True).steps] == ["delete"]
    second = archiving.reclamation.reclaim(archive=True).report
    assert second is not None
    assert (second.freed_bytes >= 300_000, second.kept) == (True, [])

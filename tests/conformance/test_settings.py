"""What the settings of a repository refuse, whichever way it is reached."""

from pathlib import Path
from typing import Any

import pytest

from tests.conformance.conftest import opened
from ullage import Repository
from ullage.contract import Duration, MaintenanceOperation
from ullage.errors import CompactionRefused
from ullage.wire.space import RunRequest

KB = 1_000


def fragmented(repository: Repository) -> None:
    """A file of thirty claims of 100 KB, of which every third lives."""
    handles = repository.handles.put_many([bytes([number]) * (100 * KB) for number in range(30)])
    for number, handle in enumerate(handles):
        if number % 3:
            repository.handles.delete(handle)


def run(repository: Repository, *operations: str) -> int:
    wanted = [MaintenanceOperation(operation) for operation in operations] or list(MaintenanceOperation)
    request = RunRequest(policy="CompactAll", operations=wanted)
    begun = repository.reclamation.begin(request)
    ended = repository.reclamation.run(begun.id, wait_seconds=30)
    assert ended.report is not None
    return ended.report.copied_bytes


@pytest.mark.parametrize("way", ["embedded", "memory", "http"])
@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"triggers": ("Periodic",)}, r"spec\.compaction\.triggers is \[Periodic\]"),
        ({"triggers": ()}, r"spec\.compaction\.triggers is \[\]"),
        ({"enabled": False}, r"spec\.compaction\.enabled is false"),
        ({"triggers": ("Periodic",), "enabled": False}, r"spec\.compaction\.enabled is false"),
        ({"triggers": ("Admin",)}, ""),
    ],
)
def test_only_the_trigger_admin_lets_people_compact(
    way: str, settings: dict[str, Any], named: str, tmp_path: Path, short_path: Path
) -> None:
    """Without it what would punch or rewrite is refused by the setting's name; deleting and truncating are not."""
    compaction = {"min_used_percentage": 0, "min_reclaim": 0, "deleted_retention": Duration(0)} | settings
    with opened(way, tmp_path / "repository", short_path, compaction=compaction) as repository:
        fragmented(repository)
        repository.reclamation.clean()
        if named:
            asked: list[tuple[str, ...]] = [(), ("Rewrite",), ("Punch", "Delete")]
            for operations in asked:
                with pytest.raises(CompactionRefused, match=named):
                    run(repository, *operations)
            assert repository.reclamation.runs() == []
            assert run(repository, "Delete", "Truncate") == 0
        else:
            assert run(repository, "Rewrite") > 0
        assert repository.check(deep=True).problems == ()

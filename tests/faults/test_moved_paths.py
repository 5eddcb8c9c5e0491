"""NiFi lost data when its directory was opened at another path; no path of ours is absolute.

Its other untested faults have their tests elsewhere: a missing log in tests/engine/wal/test_missing_files.py,
a lost FlowFile repository in tests/engine/test_opening.py, back-pressure with an empty archive in
tests/engine/content/test_pressure.py.
"""

import shutil
from pathlib import Path

import pytest

from tests.support import Workshop, abandon, drain, put_all


@pytest.mark.parametrize("clean", [True, False])
def test_a_repository_that_was_moved_opens(workshop: Workshop, tmp_path: Path, clean: bool) -> None:
    """After a close or a crash, with swapped, archived and handled content, everything is at the new place."""
    repository = workshop.make(flow_file={"swap_threshold": 20, "swap_batch": 10})
    contents = [bytes([number]) * 2_000 for number in range(60)]
    put_all(repository, "q", contents)
    put_all(repository, "gone", [b"g" * 100_000])
    handle = repository.handles.put(b"h" * 100_000)
    repository.checkpoint()
    drain(repository, "gone")
    repository.reclamation.clean()
    if clean:
        workshop.close()
    else:
        abandon(repository)
    shutil.move(workshop.path, tmp_path / "elsewhere")
    workshop.path = tmp_path / "elsewhere"

    moved = workshop.open(flow_file={"swap_threshold": 20, "swap_batch": 10})

    assert moved.handles.get(handle).read() == b"h" * 100_000
    assert drain(moved, "q") == contents

"""Our half of the comparisons of space and reclamation, with a process that answers for NiFi; what was recorded."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import peers_compaction, peers_space
from bench.arena import KILOBYTE, PEER_TINY, Arena
from bench.harness import Harness
from bench.peers_compaction import RECORDED, Compacted, comparison
from bench.table import Target
from bench.workbench import TINY, Workbench

PEER = """
import json, sys
ANSWERS = {
    "hello": {"java": "21.0.1"},
    "drop_larger": {"live": 1_000},
    "drop_all_but_one": {"live": 1_000},
    "replay": {"count": 2, "accessible": 2, "promised": 200, "found": 0},
}
for line in sys.stdin:
    print(json.dumps(ANSWERS.get(json.loads(line)["job"], {})), flush=True)
"""
"""A process that speaks the harness's protocol, and stores nothing."""


@pytest.fixture
def arena(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Arena]:
    """A place with that process, which also is what would be killed."""

    def harness(directory: Path) -> Harness:
        return Harness([sys.executable, "-c", PEER], directory, "1.2.3")

    monkeypatch.setattr(Harness, "start", harness)
    with harness(tmp_path) as peer:
        yield Arena(Workbench(tmp_path, TINY, lambda _: None), PEER_TINY, peer)


def test_dead_tails_are_given_back_in_every_state(arena: Arena) -> None:
    """Fresh, after a restart with swap files, swapped, after a SIGKILL, and past the archive's retention."""
    rows = list(peers_space.tails(arena))

    assert len(rows) == 5
    assert {row.what: row.median for row in rows if row.target is None or not row.target.is_met(row.median)} == {}


def test_mixed_claims_are_given_back_but_for_their_survivors(arena: Arena) -> None:
    """Whatever resource claims grow to: one content of each is left, and little more than its bytes."""
    rows = list(peers_space.mixed(arena))

    assert len(rows) == 3
    assert {row.what: row.median for row in rows if row.target is None or not row.target.is_met(row.median)} == {}


def test_truncated_contents_are_refused_to_replay(arena: Arena) -> None:
    """No replay succeeds with bytes missing, and the row says what the peer does."""
    (row,) = peers_space.replays(arena)

    assert row.values == (0.0,)
    assert "2 of 2 refused: truncated" in row.medians
    assert "0 of 200 bytes" in row.against


def test_holes_and_the_reserve_occupy_nothing(tmp_path: Path) -> None:
    """Bytes that are on the disk count, and no rounding to its blocks; what a reserve holds does not."""
    (tmp_path / "section").mkdir()
    (tmp_path / "section" / "content").write_bytes(b"x" * 5_000)
    (tmp_path / "ballast").write_bytes(b"x" * 5_000)
    with (tmp_path / "sparse").open("wb") as sparse:
        os.truncate(sparse.fileno(), 1 << 20)

    assert peers_space.occupied(tmp_path) == 5_000


def test_recorded_figures_prove_nothing() -> None:
    """Beside figures of another day a rate has no target to meet, and the row says where they are from."""
    ours = [Compacted(400e6, 1.0, 1.01)]
    shape = (10 * KILOBYTE, 50)

    rate, *others = comparison("10 KiB", ours, [], RECORDED[shape], Target(3))
    measured, *_ = comparison("10 KiB", ours, [Compacted(100e6, 2.0, 1.1)], RECORDED[shape], Target(3))

    assert rate.target is None
    assert all("recorded" in row.against for row in (rate, *others))
    assert measured.target == Target(3)
    assert measured.values == (4.0,)
    assert "recorded" not in measured.against


def test_our_compaction_is_measured(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve rows; what counts bytes rather than time holds at any size."""
    monkeypatch.delenv("AMBRY_SRC", raising=False)

    rows = list(peers_compaction.compaction(arena))

    assert len(rows) == 12
    assert all(row.target.is_met(row.median) for row in rows if row.target is not None)

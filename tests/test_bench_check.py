"""The comparison of two trees: what is slower is seen, and noise is not."""

import random
import shutil
from pathlib import Path

import pytest

from bench import check
from bench.check import MORE, ROUNDS, SLOWER, SUSPECT, suspects
from bench.table import OURSELVES

ROOT = Path(__file__).parents[1]
NOISE = 0.15
"""Of one quotient, as a share of it: what two runs of a small shared machine differ by."""

SLOWED = """

_commit = ProcessSession.commit


def _slow_commit(self: ProcessSession, *also: Sequence[Operation]) -> None:
    import time

    time.sleep(0.02)
    _commit(self, *also)


ProcessSession.commit = _slow_commit
"""


def is_called_slower(speed: float, chooser: random.Random) -> bool:
    key = ("case", "what", "disk")
    values = [speed * chooser.gauss(1.0, NOISE) for _ in range(ROUNDS)]
    if not suspects({key: values}, SUSPECT):
        return False
    values += [speed * chooser.gauss(1.0, NOISE) for _ in range(MORE * ROUNDS)]
    return bool(suspects({key: values}, SLOWER))


def test_a_fifth_less_speed_is_seen_and_noise_is_not() -> None:
    """Of a thousand rows each: nine of ten that got slower by a fifth are seen, one of a hundred that did not."""
    chooser = random.Random(20261121)

    assert sum(is_called_slower(0.8, chooser) for _ in range(1_000)) > 900
    assert sum(is_called_slower(1.0, chooser) for _ in range(1_000)) < 10


def test_rows_that_are_no_speeds_are_left_out() -> None:
    """Figures in units of their own, and ratios of which less is better."""
    row = {"case": "c", "what": "w", "against": "disk", "unit": "x", "target": None, "median": 0.5}
    ceiling = row | {"what": "bytes", "target": {"value": 1.1, "is_ceiling": True}}

    ours = row | {"what": "put", "against": OURSELVES}
    assert check.speeds([row, ceiling, ours, row | {"what": "memory", "unit": "MiB"}]) == {("c", "w", "disk"): 0.5}


def test_a_slower_engine_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The real bench on two real trees, one of which waits in each commit."""
    for folder in ("agent", "bench"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    session = tmp_path / "agent" / "ullage" / "engine" / "session.py"
    session.write_text(session.read_text(encoding="utf-8") + SLOWED, encoding="utf-8")

    code = check.main([str(ROOT), "content-batches", f"--head={tmp_path}", "--rounds=1", "--size=tiny"])

    assert code == 1
    assert "SLOWER" in capsys.readouterr().out


def test_what_is_no_tree_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is measured."""
    assert check.main(["no-such-revision"]) == 2
    assert "no-such-revision" in capsys.readouterr().err

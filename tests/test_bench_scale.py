"""The bench of ever more handles runs, and judges what it found."""

from pathlib import Path

import pytest

from bench.scale import PhaseFailed, main, phase, rows


def test_each_row_comes_from_processes_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A size far too small for figures; every phase really runs, the one that is killed too."""
    main(["--counts", "1000", "--calls", "10", "--memory-mib", "0", "--dir", str(tmp_path)])

    told = capsys.readouterr().out
    for what in ("memory of a handle", "open after SIGKILL", "cold handle", "beside checkpoints", "survey and plan"):
        assert what in told
    assert "nan" not in told
    assert list(tmp_path.iterdir()) == []


def test_a_phase_that_fails_is_named(tmp_path: Path) -> None:
    """Such as one that ran out of memory: the sizes before it are still told."""
    with pytest.raises(PhaseFailed, match=r"gets at .* ended with status 1"):
        phase("gets", tmp_path / "absent", None, 1, 1)


def test_growth_beyond_linear_is_not_met() -> None:
    """Ten times the handles at thirty times the time."""

    def found(factor: float) -> dict[str, dict[str, float]]:
        return {
            "fill": {"seconds": 1e-5, "written": 100.0, "peak": 1 << 20},
            "opened": {"seconds": factor, "resident": 16.0 * factor},
            "opened again": {"seconds": 1.0, "resident": 1.0},
            "puts": {"put": 1e-3, "quiet p99": 1e-3, "p99 beside checkpoints": 1e-3, "checkpoint": 100.0},
            "gets": {"get": 1e-3, "pread": 1e-3, "bytes read": 4096.0},
            "surveyed": {"seconds": 1e-3},
            "disk": {"bytes": 1.0},
        }

    judged = {row.what: row for row in rows({10: found(1), 100: found(30)})}

    opening = judged["opening: exponent of its growth"]
    assert opening.target is not None
    assert opening.median == pytest.approx(1.477, abs=0.001)
    assert not opening.target.is_met(opening.median)
    assert judged["opening after SIGKILL: exponent of its growth"].median == pytest.approx(0)
    assert judged["puts of 1 KB, at 100 handles"].median == 1

"""The soak: what grows is seen, and a short one runs as the long one does."""

from pathlib import Path

import pytest
from PIL import Image

from bench import soak
from bench.soak import INTERVALS, Sample, rows

MIB = 1 << 20


def judged(memory: list[int], space: float = 1.2) -> dict[str, bool]:
    """Whether the target of each row is met, by its first word."""
    found = [Sample(bytes_ * MIB, 40, space, 5.0, 1.0, 9.0, 10, 100, 5) for bytes_ in memory]
    return {row.what.split(",")[0]: row.target.is_met(row.median) for row in rows(found, 60.0) if row.target}


def test_what_grows_is_seen_and_a_warm_up_is_not() -> None:
    """Memory that doubles in the first half and stays is flat; what goes on growing is growth."""
    flat = [100] * 30 + [200] * 30
    leaking = [200 + 2 * number for number in range(60)]

    assert judged(flat) == {"memory": True, "descriptors": True, "disk / live": True}
    assert judged(leaking)["memory"] is False
    assert judged(flat, space=1.5)["disk / live"] is False


def test_a_short_soak_puts_gets_and_gives_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a real node: no content comes back wrong, a line an interval, and the table and picture of all of them."""
    monkeypatch.setattr(soak, "INTERVALS", 12)
    picture = tmp_path / "soak.png"

    soak.main(["--minutes=0.1", "--live-mib=2", f"--dir={tmp_path}", f"--picture={picture}"])

    shown = capsys.readouterr()
    lines = shown.err.splitlines()
    assert len(lines) == 12 < INTERVALS
    assert any(" 0 gets " not in line for line in lines)
    assert "| soak | memory, last 0.0167 of 0.10 minutes" in shown.out
    with Image.open(picture) as drawn:
        assert drawn.width == 1_000

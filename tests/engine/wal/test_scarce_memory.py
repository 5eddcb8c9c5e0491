"""Frames for which there is no memory twice."""

from ullage.engine.wal.partition import _together


def test_frames_that_no_memory_holds_together_are_written_as_they_are() -> None:
    """Their transactions have ids: a log that raised here would stop for all."""
    frames = [bytes(64 << 20)] * (1 << 20)  # 64 TiB, of one object

    assert _together(frames) is frames
    assert _together([b"head", b"body"]) == [b"headbody"]

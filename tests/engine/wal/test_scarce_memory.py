"""Frames for which there is no memory twice."""

from ullage.engine.wal.partition import _together


def test_frames_that_no_memory_holds_together_are_written_as_they_are() -> None:
    """Their transactions have ids: a log that raised here would stop for all."""
    # 256 TiB, of one object: no address space holds it. (64 TiB were found, page by page, where the kernel overcommits
    # memory, until the machine had none and killed the test's process.)
    frames = [bytes(256 << 20)] * (1 << 20)

    assert _together(frames) is frames
    assert _together([b"head", b"body"]) == [b"headbody"]

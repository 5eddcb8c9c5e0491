"""What the record that lists a run says beyond the run itself: what of it does not count."""

from collections.abc import Collection

import msgspec

from ullage.engine.model import RunFile


def given_up_blocks(listed: RunFile) -> Collection[int]:
    """The numbers of blocks that a person does without."""
    return frozenset(memoryview(listed.given_up).cast("I"))


def given_up(listed: RunFile, block: int | None) -> RunFile:
    """The same run without a block; None: nothing of it counts any more."""
    if block is None:
        return msgspec.structs.replace(listed, rows=0)
    return msgspec.structs.replace(listed, given_up=listed.given_up + block.to_bytes(4, "little"))


def with_gone(listed: RunFile, gone: bytes | bytearray) -> RunFile:
    """The same run, of which these rows are gone."""
    return msgspec.structs.replace(listed, gone=bytes(gone) if any(gone) else b"")

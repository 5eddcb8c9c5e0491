"""Block checksums in memory: what they take is counted, and a deletion is noted only where a run may have the row."""

from ullage.engine.ledger.blockrows import BYTES_LARGE, DELETED, OVERHEAD_BYTES, RECENT_BYTES_MAX, RECENT_MAX, BlockRows
from ullage.engine.model import RunFile
from ullage.engine.runs.rows import packed_key


def test_what_is_in_memory_is_counted_whatever_becomes_of_it() -> None:
    """Rows that change, are frozen, die in either state, or leave for a run."""
    rows = BlockRows()
    rows.take_run(RunFile(1, "blocks", 1, 9, 0, bytes(16), packed_key((1, 0)), 0, 1))
    rows.set((1, 0), b"1234")
    rows.set((1, 0), b"12345678")
    assert rows.bytes == 8 + OVERHEAD_BYTES
    rows.freeze()
    rows.set((2, 0), b"1234")
    rows.delete((1, 0))
    rows.delete((2, 0))
    assert (len(rows), rows.bytes) == (2, 8 + 2 * OVERHEAD_BYTES)
    rows.settle(None)
    assert (len(rows), rows.bytes) == (1, OVERHEAD_BYTES)


def test_without_runs_rows_stay_and_make_no_checkpoint_due() -> None:
    """None takes them out of memory: the next one would be due at once, for ever."""
    rows = BlockRows()
    for number in range(3):
        rows.set((number, 0), bytes(BYTES_LARGE // 2))
    assert rows.is_large

    assert [key for key, _ in rows.all(lambda resource: resource > 0)] == [(1, 0), (2, 0)]

    assert rows.bytes == 2 * (BYTES_LARGE // 2 + OVERHEAD_BYTES)
    rows.delete((1, 0))
    assert rows.bytes == BYTES_LARGE // 2 + OVERHEAD_BYTES
    rows.set((3, 0), bytes(BYTES_LARGE))
    assert not rows.is_large


def test_a_checkpoint_that_failed_is_counted_with_the_next() -> None:
    """What was frozen stays, and rows that have changed since count once."""
    rows = BlockRows()
    rows.set((1, 0), b"1234")
    rows.set((2, 0), b"1234")
    rows.freeze()
    rows.set((1, 0), b"12345678")
    frozen, _ = rows.freeze()
    assert frozen == {(1, 0): b"12345678", (2, 0): b"1234"}
    assert rows.bytes == 12 + 2 * OVERHEAD_BYTES
    rows.set((3, 0), b"1234")
    rows.settle(None)
    assert rows.bytes == 4 + OVERHEAD_BYTES


def test_what_was_read_from_runs_is_kept_in_bounds_and_gives_way_to_a_deletion() -> None:
    """Long values are not kept, and not more than so many."""
    rows = BlockRows()
    rows.take_run(RunFile(1, "blocks", 1, 9, 0, bytes(16), packed_key((9, 0)), 0, 1))
    rows.keep((1, 0), b"1234")
    rows.keep((2, 0), bytes(RECENT_BYTES_MAX + 4))
    assert (rows.find((1, 0)), rows.find((2, 0))) == (b"1234", None)

    rows.delete((1, 0))
    assert rows.find((1, 0)) == DELETED

    for number in range(RECENT_MAX + 1):
        rows.keep((3, number), b"1234")
    assert (rows.find((3, 0)), rows.find((3, RECENT_MAX))) == (None, b"1234")

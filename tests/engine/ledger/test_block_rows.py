"""Block checksums in memory: what they take is counted, and a deletion is noted only where a run may have the row."""

from ullage.engine.ledger.blockrows import DELETED, OVERHEAD_BYTES, RECENT_BYTES_MAX, RECENT_MAX, BlockRows
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

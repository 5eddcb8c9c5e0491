"""Merging runs of rows changes nothing that is found in them, whatever is merged and when; deletions go at the end."""

import random
from collections.abc import Iterator
from itertools import accumulate

from ullage.engine.runs.mergedrows import merged_rows
from ullage.engine.runs.rows import Key, RunRow
from ullage.engine.runs.tiers import mergeable

Run = list[RunRow]


def rows_in(runs: list[Run]) -> dict[Key, bytes]:
    """What is found in them, oldest first."""
    found = {row.key: row.value for run in runs for row in run}
    return {key: value for key, value in found.items() if value}


def merged(runs: list[Run], part: slice) -> list[Run]:
    one = list(merged_rows(runs[part], has_oldest=part.start == 0))
    return [*runs[: part.start], *([one] if one else []), *runs[part.stop :]]


def test_what_is_found_stays_the_same_through_any_merges(seed: int) -> None:
    """Random writes, deletions and merges of any neighbours, against a dictionary."""
    chooser = random.Random(seed)
    print(f"seed {seed}")
    for _ in range(300):
        expected: dict[Key, bytes] = {}
        runs: list[Run] = []
        for _ in range(chooser.randrange(1, 12)):
            changes = {
                (chooser.randrange(3), chooser.randrange(4)): chooser.choice((b"", chooser.randbytes(4)))
                for _ in range(chooser.randrange(1, 9))
            }
            runs.append([RunRow(*each) for each in sorted(changes.items())])
            expected |= changes
            if len(runs) > 1 and chooser.random() < 0.6:
                start = chooser.randrange(len(runs) - 1)
                runs = merged(runs, slice(start, chooser.randrange(start + 1, len(runs)) + 1))
            assert rows_in(runs) == {key: value for key, value in expected.items() if value}
        whole = merged(runs, slice(0, len(runs)))
        assert [row for run in whole for row in run] == [RunRow(*each) for each in sorted(rows_in(runs).items())]


def test_a_deletion_stays_until_the_oldest_run_is_merged() -> None:
    """Else the row that it hides would be found again."""
    old, deletion, other = [RunRow((1, 0), b"old")], [RunRow((1, 0), b"")], [RunRow((2, 0), b"two")]

    assert merged([old, deletion, other], slice(1, 3)) == [old, [*deletion, *other]]
    assert merged([old, deletion, other], slice(0, 2)) == [other]
    assert merged([deletion, other], slice(0, 2)) == [other]


def test_of_each_run_few_rows_are_held() -> None:
    """What is merged is handed out before more is read."""
    read = 0

    def rows(first: int) -> Iterator[RunRow]:
        nonlocal read
        for number in range(first, 3_000, 3):
            read += 1
            yield RunRow((0, number), b"v")

    for count, row in enumerate(merged_rows([rows(0), rows(1), rows(2)], has_oldest=True)):
        assert row.key == (0, count)
        assert read <= count + 4


def test_neighbours_are_merged_such_that_rows_are_written_seldom_and_runs_are_few() -> None:
    """Each run of one size as checkpoints make them: a row is written again at most once for each fourfold growth."""
    sizes: list[int] = []
    written = 0
    for _ in range(1_000):
        sizes.append(100)
        while (part := mergeable(sizes)) is not None:
            written += sum(sizes[part])
            sizes[part] = [sum(sizes[part])]
        assert len(sizes) < 20
    assert written < 6 * sum(sizes)
    assert list(accumulate(sizes))[-1] == 100_000
    assert mergeable([1_000, 10, 10]) is None
    assert mergeable([10, 10, 10, 10], lambda start, end: end - start < 4) is None

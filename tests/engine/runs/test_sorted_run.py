"""A sorted run: it gives back what was written, whatever was asked for before, or says that it is damaged."""

import random
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest

from ullage.engine.runs.blockcache import BlockCache
from ullage.engine.runs.merging import merged
from ullage.engine.runs.sorted_run import BLOCK_KEYS, SCANNED_BLOCKS, RunDamaged, SortedRun, write_run
from ullage.testing.crashing import CrashFiles, Image

MAGIC = b"ARUNHERE"
PATH = "/x/run"


def keys(values: Iterable[int]) -> pa.Array:
    return pa.array(values, pa.uint64())


def parts(values: list[int], size: int) -> Iterator[pa.Array]:
    """The values, some at a time."""
    return (keys(values[at : at + size]) for at in range(0, len(values), size))


def written(sections: dict[str, Iterable[pa.Array]]) -> CrashFiles:
    files = CrashFiles()
    files.make_directory("/x")
    write_run(files, PATH, MAGIC, "mine", sections.items())
    return files


def opened(files: CrashFiles, cache: BlockCache[memoryview] | None = None) -> SortedRun[str]:
    return SortedRun.open(files, PATH, MAGIC, str, cache or BlockCache(1 << 20))


def scanned(run: SortedRun[str], section: str) -> list[int]:
    return [key for some in run.scan(section) for key in some.to_pylist()]


@pytest.mark.parametrize("size", [1, 1_000, BLOCK_KEYS, 5_000, 1 << 20])
def test_a_run_holds_its_keys_however_they_came(size: int) -> None:
    """One at a time or all at once, from slices too: the file is the same."""
    values = list(range(7, 7 + 3 * (BLOCK_KEYS + 5), 3))
    whole = written({"a": [keys(values)], "b": [keys([]), keys([1, 2, 3]).slice(1)], "c": []})

    files = written({"a": parts(values, size), "b": [keys([2, 3])]})

    assert files.image() == whole.image()
    run = opened(files)
    assert run.about == "mine"
    assert {section.name: section.keys for section in run.sections} == {"a": len(values), "b": 2}
    assert scanned(run, "a") == values
    assert [list(run.block("a", number)) for number in range(2)] == [values[:BLOCK_KEYS], values[BLOCK_KEYS:]]
    assert scanned(run, "b") == [2, 3]
    assert scanned(run, "c") == []


def test_a_range_of_keys_names_the_blocks_that_may_hold_it() -> None:
    """Bounds included, and blocks that begin with the same key."""
    values = [*range(BLOCK_KEYS), *[5_000] * 2 * BLOCK_KEYS, 6_000]
    run = opened(written({"a": [keys(values)]}))
    assert run.blocks("a", 0, 0) == range(1)
    assert run.blocks("a", 10, 4_999) == range(1)
    assert {1, 2} <= set(run.blocks("a", 5_000, 5_000))
    assert run.blocks("a", 5_001, 9_000) == range(2, 4)
    assert run.blocks("b", 0, 1) == range(0)


def test_a_flipped_bit_is_damage_wherever_it_is() -> None:
    """Of a head or of a block: nothing else is ever given back than what was written."""
    values = list(range(2 * BLOCK_KEYS))
    data = written({"a": [keys(values)]}).image().files[PATH]
    chooser = random.Random(1)
    ends = [*range(30), *range(len(data) - 80, len(data))]
    for at in [*ends, *chooser.sample(range(len(data)), 60)]:
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        files = CrashFiles(Image({PATH: bytes(flipped)}, frozenset({"/x"})))
        with pytest.raises(RunDamaged, match=PATH):
            scanned(opened(files), "a")
        number = at // 8 // BLOCK_KEYS
        if number < 2:
            run = opened(files)
            with pytest.raises(RunDamaged, match=f"block {number}"):
                run.block("a", number)
            assert len(run.block("a", 1 - number)) == BLOCK_KEYS


def test_a_run_of_another_kind_or_none_is_refused() -> None:
    """By its magic, or because it is not there."""
    files = written({"a": [keys([1])]})
    with pytest.raises(RunDamaged, match="no such run"):
        SortedRun.open(files, PATH, b"ANOTHER!", str, BlockCache(0))
    with pytest.raises(RunDamaged, match="cannot be opened"):
        SortedRun.open(files, "/x/none", MAGIC, str, BlockCache(0))


def test_blocks_read_lately_are_read_once_and_their_memory_has_a_bound() -> None:
    """The least recently used make room."""
    block_bytes = 8 * BLOCK_KEYS
    cache: BlockCache[memoryview] = BlockCache(2 * block_bytes)
    files = written({"a": [keys(range(3 * BLOCK_KEYS))]})
    run = opened(files, cache)
    first = run.block("a", 0)
    assert run.block("a", 0).obj is first.obj

    run.block("a", 1)
    run.block("a", 0)
    run.block("a", 2)

    assert cache.bytes == 2 * block_bytes
    assert run.block("a", 0).obj is first.obj
    assert opened(files, cache).block("a", 0).obj is not first.obj  # another run, with the same names


@pytest.mark.parametrize("seed", range(5))
def test_merging_gives_the_keys_of_all_in_order(seed: int) -> None:
    """Runs of any lengths in parts of any sizes, empty ones and doubles included."""
    chooser = random.Random(seed)
    runs = [sorted(chooser.randrange(3_000) for _ in range(chooser.choice((0, 1, 10, 2_000)))) for _ in range(seed + 1)]
    found = [some.to_pylist() for some in merged([parts(run, chooser.choice((1, 7, 500))) for run in runs])]
    assert [key for some in found for key in some] == sorted(key for run in runs for key in run)


def test_merging_holds_one_part_of_each_run() -> None:
    """However long they are, and also where all of one comes before all of the other."""
    read = handed = 0

    def counted(first: int, step: int) -> Iterator[pa.Array]:
        nonlocal read
        for at in range(50):
            read += 100
            yield keys(range(first + at * 100 * step, first + (at + 1) * 100 * step, step))

    for some in merged([counted(0, 2), counted(1, 2), counted(20_000, 1)]):
        handed += len(some)
        assert read - handed <= 3 * 100
    assert handed == read == 3 * 50 * 100


def test_a_scan_is_read_in_bounded_parts() -> None:
    """What a merge holds of a run does not grow with it."""
    run = opened(written({"a": [keys(range(2 * SCANNED_BLOCKS * BLOCK_KEYS + 1))]}))
    assert [len(some) for some in run.scan("a")] == [SCANNED_BLOCKS * BLOCK_KEYS] * 2 + [1]

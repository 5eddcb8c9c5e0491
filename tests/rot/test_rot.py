"""Flip any bit, cut any file: the place is named, or nothing was lost. `make rot-full` flips and cuts everywhere."""

import os
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.proof.figures import note
from tests.rot.specimen import Specimen, specimen
from tests.rot.verdict import CHECKING, OPENING, UNTOLD, kind_of, table, verdict

SAMPLE = float(os.environ.get("ULLAGE_ROT_SAMPLE", "0.0015"))
"""The share of all bits and lengths that is tried. Of content, always a number of places."""

SEED = int(os.environ.get("ULLAGE_ROT_SEED", "20261121"))
CONTENT_PLACES = max(16, round(2_000 * SAMPLE))
KINDS = [(closed, partitions) for closed in (True, False) for partitions in (1, 2)]
NAMES = ["closed-1", "closed-2", "killed-1", "killed-2"]


@pytest.fixture(scope="module", params=KINDS, ids=NAMES)
def whole(request: pytest.FixtureRequest) -> Specimen:
    closed, partitions = request.param
    return specimen(closed=closed, partitions=partitions)


def places(chooser: random.Random, path: str, data: bytes, share: float) -> Iterator[int]:
    """Byte offsets to damage: of content a number of places, of zeros behind a log few, of all else the share."""
    if kind_of(path) in ("content", "archive"):
        yield from sorted(chooser.sample(range(len(data)), min(len(data), CONTENT_PLACES)))
        return
    used = len(data.rstrip(b"\0"))
    yield from (at for at in range(used) if chooser.random() < share)
    yield from chooser.sample(range(used, len(data)), min(4, len(data) - used))


def must_be_found(whole: Specimen, path: str) -> bool:
    """Every byte of a snapshot and of a run counts, and of a swap file whose FlowFiles did not cease to exist."""
    is_swap = kind_of(path) == "swap file" and path.rsplit("/", 1)[1] not in whole.truth.dropped
    return is_swap or kind_of(path) in ("snapshot", "run")


def flip(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes((data[at] ^ (1 << bit),)) + data[at + 1 :]


def _untold(counts: Counter[tuple[str, str]]) -> int:
    return sum(count for (_, found), count in counts.items() if found == UNTOLD)


def test_any_flipped_bit_is_named_or_harmless(whole: Specimen) -> None:
    """Opening, checking and reading name the file of every flipped bit, but for what is dead or cannot be told."""
    chooser = random.Random(SEED)
    counts: Counter[tuple[str, str]] = Counter()
    for path, data in sorted(whole.image.files.items()):
        for at in places(chooser, path, data, min(1.0, SAMPLE * 8)):
            for bit in range(8) if SAMPLE >= 1 and kind_of(path) != "content" else [chooser.randrange(8)]:
                try:
                    found = verdict(whole, path, flip(data, at, bit))
                except Exception as error:
                    error.add_note(f"{whole.name}, seed {SEED}: bit {bit} of byte {at} in {path}")
                    raise
                assert not must_be_found(whole, path) or found in (OPENING, CHECKING), path
                counts[kind_of(path), found] += 1
    print(f"\n{whole.name}, seed {SEED}: {counts.total():,} flips\n{table(counts)}")
    note(flips=counts.total(), untold=_untold(counts))

    assert counts["content", CHECKING] > 0
    assert not whole.is_closed or not any(found == UNTOLD for _, found in counts)


def parts_of_run(data: bytes) -> dict[str, int]:
    """A byte of each part of a run, as docs/storage.md has them."""
    rows = int.from_bytes(data[4:8], "little")
    length, head_crc = len(data) - 16, len(data) - 12
    head = length - int.from_bytes(data[length:head_crc], "little")
    block = {"block magic": 0, "rows of a block": 4, "length of a block": 8, "CRC of a block": 12}
    columns = {"high words": 16, "low words": 16 + 8 * rows, "ends": 16 + 16 * rows, "values": 16 + 20 * rows + 3}
    fields = (b"format", b"repository", b"number", b"space", b"counts", b"fences", b"ends", b"filter", b"columns_crc")
    heads = {name.decode(): data.index(name, head) + len(name) + 2 for name in fields}
    return block | columns | heads | {"head": head, "length": length, "CRC": head_crc, "magic": len(data) - 8}


def test_no_damage_of_a_run_of_handles_stops_a_start(whole: Specimen) -> None:
    """Whatever part of it, also all of it: check names it, and all other handles are as they were."""
    for path in whole.resting:
        data = whole.image.files[path]
        for part, at in parts_of_run(data).items():
            assert verdict(whole, path, flip(data, at, 1)) == CHECKING, (path, part)
        assert verdict(whole, path, b"") == CHECKING, path


def test_no_damage_of_a_run_of_claims_costs_anything(whole: Specimen) -> None:
    """Whatever part of it, also all of it: check names it, and every handle is as it was."""
    paths = [path for path in whole.image.files if "/runs/claims/" in path]
    assert len(paths) == len(whole.resting)
    for path in paths:
        data = whole.image.files[path]
        for part, at in parts_of_run(data).items():
            assert verdict(whole, path, flip(data, at, 1)) == CHECKING, (path, part)
        assert verdict(whole, path, b"") == CHECKING, path


def test_any_cut_file_is_named_or_harmless(whole: Specimen) -> None:
    """The same of files that end too early: only a log whose proof went with its end may come back shorter."""
    chooser = random.Random(SEED)
    counts: Counter[tuple[str, str]] = Counter()
    for path, data in sorted(whole.image.files.items()):
        for length in {0, len(data) - 1, *places(chooser, path, data, min(1.0, SAMPLE * 4))}:
            try:
                found = verdict(whole, path, data[:length])
            except Exception as error:
                error.add_note(f"{whole.name}, seed {SEED}: {path} cut to {length} bytes")
                raise
            assert not must_be_found(whole, path) or found in (OPENING, CHECKING), path
            counts[kind_of(path), found] += 1
    print(f"\n{whole.name}, seed {SEED}: {counts.total():,} cuts\n{table(counts)}")
    note(cuts=counts.total(), untold=_untold(counts))

    assert counts["content", CHECKING] > 0

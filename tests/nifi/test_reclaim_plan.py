"""What comes back, and what must not: plans against a count of each byte."""

import random
from itertools import pairwise

import pytest

from ullage.nifi.reclaimplan import NOTHING_HELD, FileStep, NiFiReclaimPlan, Replays, SeenFile, SeenNiFi, plan_reclaim
from ullage.nifi.spans import Span, between, common, merged, total, whole_blocks

BLOCK = 16
HELD = SeenFile("default/1/9-9", 4 * BLOCK, True, [(0, 4 * BLOCK)], [], 0, [(0, 4 * BLOCK)])
"""A file in which everything is alive: with it some FlowFile has content."""


def plan(*files: SeenFile, missing: int = 0, doubts: list[str] | None = None, **options: list[str]) -> NiFiReclaimPlan:
    seen = SeenNiFi(
        millis=1,
        transaction=2,
        replays=Replays.REFUSE,
        flowfiles=3,
        missing=missing,
        blocks={"default": BLOCK, "second": BLOCK},
        files=list(files),
        history=["/provenance"],
        doubts=doubts or [],
    )
    return plan_reclaim(seen, **options)


def seen_file(
    live: list[Span],
    named: list[Span],
    size: int,
    data: list[Span] | None = None,
    *,
    least: int = 0,
    is_held: bool | None = None,
) -> SeenFile:
    held = bool(live) if is_held is None else is_held
    return SeenFile("default/1/1-1", size, held, live, named, least, [(0, size)] if data is None else data)


def chance_spans(chance: random.Random, size: int) -> list[Span]:
    cuts = sorted(chance.sample(range(size), min(size, 2 * chance.randrange(4))))
    return list(pairwise(cuts))[::2]


@pytest.mark.parametrize("seeds", [range(first, first + 100) for first in range(0, 400, 100)], ids=str)
def test_what_goes_is_dead_in_whole_blocks_and_all_of_it(seeds: range) -> None:
    """Against a count of each byte: live and named ones stay, and each block that is dead and has data goes."""
    for seed in seeds:
        check_plan(seed)


def check_plan(seed: int) -> None:
    chance = random.Random(seed)
    size = chance.randrange(1, 12 * BLOCK)
    live, named = chance_spans(chance, size), chance_spans(chance, size)
    data = merged((b // BLOCK * BLOCK, min(size, -(-e // BLOCK) * BLOCK)) for b, e in chance_spans(chance, size))
    least = chance.choice([0, chance.randrange(size)])
    file = seen_file(live, named, size, data, least=least, is_held=bool(live) or chance.random() < 0.5)
    stays = {byte for begin, end in (*live, *named) for byte in range(begin, end)}

    found = plan(file, HELD)

    gone = {byte for step in found.steps for begin, end in step.gone for byte in range(begin, end)}
    assert not gone & stays
    has_data = {byte for begin, end in data for byte in range(begin, end)}
    needed = max([least, *(byte + 1 for byte in stays)]) if file.is_held or stays else 0
    dead_blocks = {
        at
        for at in range(0, size, BLOCK)
        if all(byte not in stays for byte in range(at, min(at + BLOCK, size)))
        and any(byte in has_data for byte in range(at, min(at + BLOCK, size)))
        and (at + BLOCK <= needed or at >= needed)
    }
    assert found.freed == sum(min(at + BLOCK, size) - at for at in dead_blocks)
    for step in found.steps:
        check(step, file, needed)


def check(step: FileStep, file: SeenFile, needed: int) -> None:
    """Only holes in whole blocks, and no byte cut off that a FlowFile's place needs."""
    assert all(begin % BLOCK == 0 == end % BLOCK and begin < end for begin, end in step.holes)
    assert step.cut is None or needed == step.cut < file.size
    assert step.is_deleted == (needed == 0 and not file.is_held)
    assert set(step.holes) <= set(step.gone) or step.is_deleted
    assert total(step.gone) == total(merged(step.gone))


def test_a_file_that_only_a_flowfile_without_bytes_holds_keeps_its_place() -> None:
    """NiFi skips to where it begins before it reads no byte: the file reaches that far, and is there."""
    (step,) = plan(seen_file([], [], 100, least=70, is_held=True), HELD).steps

    assert (step.holes, step.cut, step.is_deleted) == ([(0, 64)], 70, False)


def test_what_came_back_before_does_not_come_back_again() -> None:
    """Holes have no blocks: a second plan is empty."""
    first = seen_file([(40, 50)], [], 100)
    (step,) = plan(first, HELD).steps
    left = common([(0, 50)], between(step.holes, 100))
    again = SeenFile(first.file, 50, True, first.live, [], 0, left)

    assert (step.holes, step.cut) == ([(0, 32)], 50)
    assert plan(again, HELD).steps == []


def test_nothing_is_done_where_it_is_not_known_what_lives() -> None:
    """Not even to files of which all is known."""
    found = plan(seen_file([], [], 100), seen_file([(0, 1)], [], 100), HELD, doubts=["a journal is damaged"])

    assert (found.steps, found.freed, found.set_aside) == ([], 0, [])
    assert found.doubts == ["a journal is damaged"]


def test_a_file_in_doubt_is_left_and_told() -> None:
    """With its bytes, by reason; others are not held back."""
    odd = [
        SeenFile(f"default/1/{number}-1", 100, True, [(0, 1)], [], 0, [(0, 100)], "it has another name")
        for number in range(2)
    ]

    found = plan(*odd, seen_file([(0, 1)], [], 100))

    (left,) = found.left
    assert (left.why, left.files, left.size, left.first) == ("it has another name", 2, 2 * 84, "default/1/0-1")
    assert [step.file for step in found.steps] == ["default/1/1-1"]


def test_files_are_not_deleted_where_flowfiles_miss_theirs() -> None:
    """A container may have another one's directory: what looks like nobody's may be just what is missing."""
    dead, tail = seen_file([], [], 100), SeenFile("default/1/2-1", 100, True, [(0, 1)], [], 0, [(0, 100)])

    found = plan(dead, tail, HELD, missing=3)

    assert [step.file for step in found.steps] == ["default/1/2-1"]
    assert "3 FlowFiles have contents that are not where they should be" in found.left[0].why
    assert len(plan(dead, tail, HELD).steps) == 2


def test_nothing_is_deleted_where_no_flowfile_has_any_content() -> None:
    """As when the FlowFile repository is another NiFi's, or is lost: NiFi itself deletes everything then."""
    found = plan(seen_file([], [], 100))

    assert found.steps == []
    assert found.left[0].why == NOTHING_HELD


def test_a_filesystem_without_holes_gets_none() -> None:
    """Tails and whole files come back all the same."""
    found = plan(seen_file([(40, 50)], [], 100), HELD, unpunchable=["default"])

    (step,) = found.steps
    assert (step.holes, step.cut, found.containers[0].punched) == ([], 50, 0)


def test_what_comes_back_adds_up_by_container() -> None:
    """By how it comes back, and what stays only because events name it."""
    files = [
        seen_file([(40, 50)], [(16, 17)], 100),
        SeenFile("second/1/1-1", 100, False, [], [], 0, [(0, 100)]),
        SeenFile("second/1/2-1", 100, False, [], [(0, 100)], 0, [(0, 100)]),
        HELD,
    ]

    found = plan(*files)

    default, second = found.containers
    assert (default.files, default.punched, default.cut, default.deleted) == (1, 16, 36, 0)
    assert (second.files, second.punched, second.cut, second.deleted) == (1, 0, 0, 100)
    assert (found.freed, found.named) == (152, 101)
    assert found.set_aside == ["/provenance"]


def test_spans() -> None:
    """Against sets of bytes."""
    chance = random.Random(5)
    for _ in range(300):
        one, other = chance_spans(chance, 60), chance_spans(chance, 60)

        def bytes_of(spans: list[Span]) -> set[int]:
            return {byte for begin, end in spans for byte in range(begin, end)}

        assert bytes_of(merged([*one, *other])) == bytes_of(one) | bytes_of(other)
        assert bytes_of(common(one, other)) == bytes_of(one) & bytes_of(other)
        assert bytes_of(between(one, 50)) == set(range(50)) - bytes_of(one)
        assert all(begin % 4 == end % 4 == 0 for begin, end in whole_blocks(one, 4))
        assert total(one) == len(bytes_of(one))

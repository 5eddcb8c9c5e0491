"""What moves where in a rewrite, of files that are only told of."""

from collections.abc import Iterable

from ullage.nifi.reclaimplan import Replays, SeenFile, SeenNiFi
from ullage.nifi.relocating import ClaimPlace
from ullage.nifi.rewriteplan import RewritePlan, Rooms, figures_of, plan_rewrite

BLOCK = 4096
APPENDABLE = 50_000


def seen_file(
    name: str, contents: Iterable[tuple[int, int]], *, blocks: int = 0, stays: str = "", doubt: str = ""
) -> SeenFile:
    """`contents`: where each begins, and its bytes; each was written in one go."""
    spans = sorted((start, start + size) for start, size in contents)
    allocated = blocks * BLOCK or sum(-(-size // BLOCK) * BLOCK for _, size in contents)
    live = [span for span in spans if span[0] < span[1]]
    claims = [(begin, end, begin) for begin, end in spans]
    size = max(end for _, end in spans)
    return SeenFile(
        name, size, True, live, [], 0, [(0, size)], doubt, 1, 1, allocated=allocated, claims=claims, stays=stays
    )


def plan_of(*files: SeenFile, rooms: Rooms | None = None, taken: Iterable[str] = ()) -> RewritePlan:
    return plan_rewrite(nifi(*files), (), APPENDABLE, rooms, frozenset(taken).__contains__)


def nifi(*files: SeenFile) -> SeenNiFi:
    blocks = {file.file.partition("/")[0]: BLOCK for file in files}
    return SeenNiFi(1, 1, Replays.REFUSE, 1, 0, blocks, list(files), [], [])


def names(plan: RewritePlan) -> list[str]:
    return [new.file.rpartition("/")[2] for new in plan.new]


def test_survivors_of_many_files_share_one() -> None:
    """In their order, one behind the other, under a name that comes where theirs were."""
    plan = plan_of(*(seen_file(f"default/{n}/170-{n}", [(9_000, 100), (20_000, 50)]) for n in range(1, 5)))

    assert names(plan) == ["170-10000001"]
    assert [new.size for new in plan.new] == [600]
    assert plan.place("default/1/170-1", 9_000, 9_000, 100) == ClaimPlace(plan.new[0].file, 0, 100, 0)
    assert plan.place("default/2/170-2", 20_000, 20_000, 50) == ClaimPlace(plan.new[0].file, 250, 50, 0)
    assert plan.place("default/9/170-9", 0, 0, 1) is None
    assert plan.gained == 4 * 2 * BLOCK - BLOCK


def test_a_file_is_filled_as_nifi_fills_it() -> None:
    """Until it has as many bytes as NiFi appends to, and somewhat further if its last block is nearly empty."""
    plan = plan_of(*(seen_file(f"default/{n}/170-{100 + n}", [(0, 30_000)], blocks=20) for n in range(9)))

    assert [new.size for new in plan.new] == [60_000, 60_000, 60_000, 60_000, 30_000]
    many = plan_of(*(seen_file(f"default/{n}/170-{1000 + n}", [(0, 100)]) for n in range(800)))
    assert all(APPENDABLE <= new.size < 2 * APPENDABLE for new in many.new[:-1])


def test_what_a_clone_and_a_split_share_stays_shared() -> None:
    """The dead part between two pieces of what NiFi wrote in one go is left behind."""
    file = seen_file("default/1/170-1", [(0, 5)], blocks=30)
    file = SeenFile(
        *(file.file, 90_000, True, [(1_000, 1_500), (60_000, 60_010)], [], 0, [(0, 90_000)]),
        allocated=30 * BLOCK,
        claims=[(1_000, 1_500, 500), (1_000, 1_500, 500), (1_100, 1_200, 500), (60_000, 60_010, 500)],
    )
    plan = plan_of(file)
    new = plan.new[0].file

    assert plan.place(file.file, 500, 1_000, 500) == ClaimPlace(new, 0, 510, 0)
    assert plan.place(file.file, 500, 1_100, 100) == ClaimPlace(new, 0, 510, 100)
    assert plan.place(file.file, 500, 60_000, 10) == ClaimPlace(new, 0, 510, 500)


def test_flowfiles_without_bytes_keep_their_order() -> None:
    """Each has a byte of its own in the new file, so that no two begin where another one does."""
    plan = plan_of(
        seen_file("default/1/170-1", [(40_000, 0)], blocks=1), seen_file("default/2/170-2", [(0, 0), (7, 5)], blocks=1)
    )
    new = plan.new[0].file

    assert plan.place("default/1/170-1", 40_000, 40_000, 0) == ClaimPlace(new, 0, 0, 0)
    assert plan.place("default/2/170-2", 0, 0, 0) == ClaimPlace(new, 1, 0, 0)
    assert plan.place("default/2/170-2", 7, 7, 5) == ClaimPlace(new, 2, 5, 0)


def test_nothing_moves_past_what_stays() -> None:
    """NiFi's queues are in the order of these names: what is named by events, in doubt or full keeps its place."""
    sparse = [seen_file(f"default/{n}/170-{n}", [(9_000, 100)]) for n in (1, 2, 4, 5, 7, 8)]
    full = [(0, 500 * BLOCK)]
    for wall in (
        [seen_file("default/3/170-3", [(9, 1)], stays="events"), seen_file("default/6/170-6", [(0, 1)], doubt="?")],
        [seen_file("default/3/170-3", full), seen_file("default/6/170-6", full)],
    ):
        plan = plan_of(*sparse, *wall)

        assert names(plan) == ["170-10000001", "170-40000001", "170-70000001"]
        assert len(plan.steps) == 6
        first, second, third = names(plan)
        assert first < "170-3" < second < "170-6" < third


def test_a_full_file_among_those_worth_it_moves_with_them() -> None:
    """Else each of them would keep its block."""
    plan = plan_of(
        *(seen_file(f"default/{n}/170-{n}", [(9_000, 100)]) for n in (1, 3, 5, 7)),
        *(seen_file(f"second/{n}/170-{n}", [(0, 12 * BLOCK)]) for n in (2, 4, 6)),
    )

    assert len(plan.steps) == 7
    assert sum(new.size for new in plan.new) == 400 + 36 * BLOCK


def test_a_name_that_would_come_behind_the_next_file_is_not_taken() -> None:
    """A file's name is a text there: 170-10 comes before 170-2, and what begins with 170-1 may not lie behind it."""
    sparse = [seen_file("default/1/170-1", [(9, 1)]), seen_file("default/1/170-10", [(9, 1)])]
    wall = seen_file("default/1/170-100", [(0, 1)], stays="events")

    assert plan_of(*sparse, wall).steps == []
    assert names(plan_of(*sparse, taken=["170-10000001"])) == ["170-10000002"]


def test_what_brings_nothing_is_left() -> None:
    """One small file is as large alone as elsewhere, and after a rewrite nothing is worth another one."""
    assert plan_of(seen_file("default/1/170-1", [(0, 100)])).steps == []
    assert plan_of(*(seen_file(f"default/{n}/170-{n}", [(0, 60_000)], blocks=15) for n in range(9))).steps == []


def test_as_much_moves_as_there_is_room_for() -> None:
    """In order, and the rest is told."""
    files = [seen_file(f"default/{n}/170-{n}", [(9_000, 100)], blocks=3) for n in range(1, 9)]

    plan = plan_of(*files, rooms=Rooms({"default": 1}, {1: 3 * BLOCK}))

    assert [step.file for step in plan.steps] == [file.file for file in files[:3]]
    assert plan.left == 5
    none = plan_of(*files, rooms=Rooms({"default": 1}, {1: 10}))
    assert (none.steps, none.left) == ([], 8)


def test_the_figures_say_what_it_takes() -> None:
    """Beforehand: what moves, what comes back, and the room for it, at once and at the least."""
    files = [seen_file(f"default/{n}/170-{n}", [(9_000, 100)], blocks=3) for n in range(1, 9)]
    files.append(seen_file("default/9/170-9", [(0, 10)], blocks=9, stays="events"))

    found = figures_of(nifi(*files), (), plan_of(*files), 1_000)

    assert (found.files, found.new, found.copied, found.gained) == (8, 1, 800, 23 * BLOCK)
    assert (found.room, found.least) == (1_800, 1_100)
    assert (found.pinned, found.why) == (1, "events")
    assert found.ratio == 10 * BLOCK / 810


def test_files_that_are_nearly_worth_it_move_where_too_much_would_stay() -> None:
    """Of every second file nearly all comes back, but the one behind it is large against that."""
    large, small = 25 * BLOCK + 1, 1
    files = [seen_file(f"default/1/170-{1000 + n}", [(0, large if n % 2 else small)]) for n in range(100)]
    live = sum(size for file in files for size in [file.size])
    plan = plan_of(*files)

    assert sum(file.allocated for file in files) > 1.07 * live
    assert sum(file.allocated for file in files) - plan.gained <= 1.05 * live
    rest = [seen_file(new.file, [(0, new.size)]) for new in plan.new]
    assert plan_of(*rest).steps == []  # a second rewrite finds nothing to do
    assert plan_of(*files[:1], *(seen_file(f"default/1/180-{n}", [(0, 30 * BLOCK)]) for n in range(9))).steps == []

"""What moves where when the survivors of files are brought together: pure computation.

After holes are punched, a file still has the blocks in which its survivors lie, of which they may be a small part. Its
survivors then move to new files, as NiFi fills them: up to what it appends to. What NiFi wrote in one go stays
together, and what several FlowFiles share stays shared; dead parts of it stay behind.

NiFi's queues are in the order of their contents' places, where nobody has told them another one: by the names of files,
as texts, then by where a content begins. So files that move lie next to each other in that order, and the names of the
new ones come where theirs were.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from ullage.nifi.reclaimplan import FileStep, SeenFile, SeenNiFi
from ullage.nifi.relocating import ClaimPlace
from ullage.nifi.spans import Span, merged, total

SLACK: Final = 25
"""A file in which more than this part of its live bytes comes back is worth it: with 25, four in a hundred."""

LEAST_SLACK: Final = 100
"""The same, where with the other one more than this would be taken for each live byte:"""

ENOUGH: Final = 1.05

WORTH: Final = 50
"""Of what is copied, the part that has to come back at the least: a second rewrite finds nothing to do."""

SECTIONS: Final = 1024
SUFFIX_DIGITS: Final = 7
NAME_MAX: Final = 200
"""Characters of a name that gets longer with each rewrite; a filesystem takes 255."""


class MovedClaim(NamedTuple):
    """What NiFi wrote in one go, as far as it lives: `pieces` of a file, which lie one behind the other afterwards."""

    file: str
    start: int
    pieces: list[Span]

    @property
    def size(self) -> int:
        """In the new file: one without bytes has one there, so that no other begins where it does."""
        return total(self.pieces) or 1


class NewFile(msgspec.Struct, frozen=True):
    """A file that gets survivors. `like`: one of those that they come from, whose owner it has."""

    file: str
    size: int
    like: str


class RewriteFigures(msgspec.Struct, frozen=True):
    """What a rewrite would do, once holes are punched: `files` whose survivors, `copied` bytes, move to `new` ones, so
    that `gained` bytes come back. `ratio`: of disk to live bytes afterwards, without archive and foreign files. `room`:
    bytes that have to be free to do it at once, and `least` a part at a time. `pinned`: files that would be worth it
    and stay as they are, and the first one's reason.
    """

    files: int
    new: int
    copied: int
    gained: int
    ratio: float | None
    room: int
    least: int
    pinned: int
    why: str


class RewritePlan:
    """Files whose survivors move, `old`, and where to. `left`: those for which the room does not suffice now.
    `is_enough`: what can move takes no more disk afterwards than it should.
    """

    def __init__(self) -> None:
        self.steps: list[FileStep] = []
        self.new: list[NewFile] = []
        self.moves: dict[str, list[MovedClaim]] = {}
        self.left = 0
        self.gained = 0
        self.is_enough = True
        self.old: set[str] = set()
        self._places: dict[tuple[str, int], tuple[str, int, list[Span]]] = {}

    @property
    def copied(self) -> int:
        return sum(new.size for new in self.new)

    def place(self, file: str, claim_start: int, start: int, size: int) -> ClaimPlace | None:
        """Where the content goes that a FlowFile has there; see `relocating.Moved`."""
        if file not in self.old:
            return None
        new, claim_at, pieces = self._places[file, claim_start]
        offset = 0
        for begin, end in pieces:
            if start < end:
                offset += max(0, start - begin)
                break
            offset += end - begin
        if offset + size > total(pieces):
            raise KeyError(file, claim_start, start)
        return ClaimPlace(new, claim_at, total(pieces), offset)

    def add_old(self, step: FileStep) -> None:
        self.steps.append(step)
        self.old.add(step.file)

    def add_new(self, file: str, claims: list[MovedClaim]) -> None:
        at = 0
        for claim in claims:
            self._places[claim.file, claim.start] = (file, at, claim.pieces)
            at += claim.size
        self.new.append(NewFile(file, at, claims[0].file))
        self.moves[file] = claims


class Rooms(NamedTuple):
    """Bytes that may be taken. `disks`: of each container; `free`: of each disk."""

    disks: Mapping[str, int]
    free: Mapping[int, int]


class _Held(NamedTuple):
    """A file with FlowFiles. `left`: bytes that it takes once holes are punched. `slack`: what could come back of them;
    0: it is not worth it. `is_fixed`: it can't move.
    """

    file: SeenFile
    claims: list[MovedClaim]
    left: int
    slack: int
    is_fixed: bool

    @property
    def size(self) -> int:
        return sum(claim.size for claim in self.claims)


class _Run(NamedTuple):
    """Files next to each other that move. `behind`: the name of the next one, which does not; empty: there is none."""

    files: list[_Held]
    behind: str


def plan_rewrite(
    seen: SeenNiFi, punched: Iterable[FileStep], appendable: int, rooms: Rooms | None, is_taken: Callable[[str], bool]
) -> RewritePlan:
    """`punched`: what was or would be done before. `rooms`: None for as much as it takes. `is_taken`: of a name.

    Files that are worth it may lie between others that just are not, and could not move without these.
    """
    freed = {step.file: step.freed for step in punched}
    plan = _plan(seen, freed, _Frugality(appendable, SLACK), rooms, is_taken)
    if plan.left or plan.is_enough:
        return plan
    closer = _plan(seen, freed, _Frugality(appendable, LEAST_SLACK), rooms, is_taken)
    return closer if closer.gained > plan.gained else plan


class _Frugality(NamedTuple):
    """What new files are filled to, and which part of a file's live bytes is worth coming back."""

    appendable: int
    slack: int


def _plan(
    seen: SeenNiFi,
    freed: Mapping[str, int],
    frugality: _Frugality,
    rooms: Rooms | None,
    is_taken: Callable[[str], bool],
) -> RewritePlan:
    plan = RewritePlan()
    slack = frugality.slack
    files = [_held(file, freed.get(file.file, 0), slack) for file in seen.files if file.is_held and not seen.doubts]
    files.sort(key=lambda each: _order(each.file.file))
    block = max(seen.blocks.values(), default=1)
    free = dict(rooms.free) if rooms is not None else {}
    for run in _runs(files, slack):
        if not _base(run) or not _gain(run.files, block, frugality):
            continue
        chosen = run if rooms is None else _that_fit(run, block, free, rooms.disks)
        plan.left += len(run.files) - len(chosen.files)
        base, gain = _base(chosen), _gain(chosen.files, block, frugality)
        if not base or not gain:
            continue
        for each in chosen.files:
            plan.add_old(_step(each.file))
        names = _names(base, is_taken)
        for claims in _filled([claim for each in chosen.files for claim in each.claims], block, frugality):
            container = claims[0].file.partition("/")[0]
            plan.add_new(f"{container}/{len(plan.new) % SECTIONS}/{next(names)}", claims)
        plan.gained += gain
    movable = [each for each in files if not each.is_fixed]
    taken = sum(each.left for each in movable) - plan.gained
    plan.is_enough = taken <= ENOUGH * sum(total(each.file.live) for each in movable)
    return plan


def figures_of(seen: SeenNiFi, punched: Iterable[FileStep], plan: RewritePlan, repository: int) -> RewriteFigures:
    """`repository`: bytes that have to be free for the new files of the FlowFile repository."""
    freed = {step.file: step.freed for step in punched}
    sizes: dict[str, int] = {}
    for claims in plan.moves.values():
        for claim in claims:
            sizes[claim.file] = sizes.get(claim.file, 0) + claim.size
    pinned = [each for each in seen.files if each.stays and _held(each, freed.get(each.file, 0)).slack]
    live = sum(total(each.live) for each in seen.files)
    taken = sum(each.allocated for each in seen.files) - sum(freed.values()) - plan.gained
    return RewriteFigures(
        files=len(plan.steps),
        new=len(plan.new),
        copied=plan.copied,
        gained=plan.gained,
        ratio=taken / live if live else None,
        room=plan.copied + repository,
        least=max(sizes.values(), default=0) + repository,
        pinned=len(pinned),
        why=pinned[0].stays if pinned else "",
    )


def _held(file: SeenFile, freed: int, part: int = SLACK) -> _Held:
    left = max(0, file.allocated - freed)
    live = total(file.live)
    slack = left - live if left - live > live // part else 0
    by_start: dict[int, list[Span]] = {}
    for begin, end, start in file.claims:
        by_start.setdefault(start, []).append((begin, end))
    claims = [MovedClaim(file.file, start, merged(spans)) for start, spans in sorted(by_start.items())]
    return _Held(file, claims, left, slack, bool(file.doubt or file.stays or not claims))


def _runs(files: list[_Held], part: int) -> Iterator[_Run]:
    """Those worth it, with those between them that are small against what comes back."""
    run: list[_Held] = []
    between: list[_Held] = []
    for number, each in enumerate(files):
        if each.is_fixed:
            if run:
                yield _Run(run, _name((between or [each])[0]))
            run, between = [], []
        elif not each.slack:
            between.append(each)
        else:
            if run and sum(other.size for other in between) < part * _slack_from(files, number):
                run += between
            elif run:
                yield _Run(run, _name((between or [each])[0]))
                run = []
            run.append(each)
            between = []
    if run:
        yield _Run(run, _name(between[0]) if between else "")


def _slack_from(files: list[_Held], number: int) -> int:
    """Of all that are worth it one behind the other from here on; enough of them."""
    found = 0
    for each in files[number : number + 100]:
        if each.is_fixed or not each.slack:
            break
        found += each.slack
    return found


def _base(run: _Run) -> str:
    """The name of one of its files: whatever is put behind it comes after it, and before the next file. Empty: none."""
    for each in run.files:
        name = _name(each)
        if len(name) < NAME_MAX and not (run.behind and run.behind.startswith(name)):
            return name
    return ""


def _name(each: _Held) -> str:
    return each.file.file.rpartition("/")[2]


def _gain(files: list[_Held], block: int, frugality: _Frugality) -> int:
    """What comes back of them; 0: it is not worth it."""
    claims = [claim for each in files for claim in each.claims]
    taken = sum(_rounded(sum(claim.size for claim in each), block) for each in _filled(claims, block, frugality))
    gain = sum(each.left for each in files) - taken
    return gain if gain > 0 and gain * WORTH >= sum(each.size for each in files) else 0


def _that_fit(run: _Run, block: int, free: dict[int, int], disks: Mapping[str, int]) -> _Run:
    """The first ones; behind one that does not fit there may be more, but they would not lie next to these."""
    chosen: list[_Held] = []
    for each in run.files:
        disk, need = disks[each.file.file.partition("/")[0]], _rounded(each.size, block)
        if need <= free[disk]:
            free[disk] -= need
            chosen.append(each)
        elif chosen:
            return _Run(chosen, _name(each))
    return _Run(chosen, run.behind)


def _filled(claims: Iterable[MovedClaim], block: int, frugality: _Frugality) -> Iterator[list[MovedClaim]]:
    """In order. A file is closed as NiFi closes it, or behind that once its last block is full enough."""
    together: list[MovedClaim] = []
    size = 0
    for claim in claims:
        together.append(claim)
        size += claim.size
        if size >= frugality.appendable and (_rounded(size, block) - size) * frugality.slack <= size:
            yield together
            together, size = [], 0
    if together:
        yield together


def _order(file: str) -> tuple[str, str, str]:
    """As NiFi's resource claims are compared."""
    container, section, identifier = file.split("/")
    return identifier, container, section


def _names(base: str, is_taken: Callable[[str], bool]) -> Iterator[str]:
    number = 0
    while True:
        number += 1
        name = f"{base}{number:0{SUFFIX_DIGITS}}"
        if not is_taken(name):
            yield name


def _rounded(size: int, block: int) -> int:
    return -(-size // block) * block


def _step(file: SeenFile) -> FileStep:
    """It goes, once its survivors are elsewhere."""
    return FileStep(file.file, file.size, [], None, True, file.data, total(file.data), file.inode, file.modified_ns)

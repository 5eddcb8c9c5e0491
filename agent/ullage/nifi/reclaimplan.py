"""What comes back of a stopped NiFi's disk, and how: pure computation from what was seen of it.

Three things are done, none of which moves a byte or an address. A *hole* is punched over whole blocks of dead bytes
with something behind them that stays. A file is *cut* behind the last byte that stays, as NiFi 2.10 does it too. A file
of which nothing stays is *deleted*, as NiFi's next start would do. What is in doubt is left, with the reason.
"""

import enum
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from ullage.nifi.spans import Span, between, common, merged, total, whole_blocks

NOTHING_HELD: Final = (
    "no FlowFile refers to any content here: is this the FlowFile repository of this content? NiFi removes such files"
    " at its next start"
)


class Replays(enum.StrEnum):
    """What becomes of contents that no FlowFile has, but that provenance events name."""

    KEEP = "keep"
    REFUSE = "refuse"


class SeenFile(msgspec.Struct, frozen=True):
    """One file of the content repository, and what must stay of it.

    `live`: contents of FlowFiles; `named`: what provenance events name, where that is kept. `least`: bytes that it must
    have, because a FlowFile without bytes lies behind them. `data`: what the filesystem keeps blocks for. `doubt`: why
    nothing may be done to it; empty: nothing speaks against it. `inode` and `modified_ns` tell whether it is the same
    file later. For a rewrite: `allocated` bytes; `claims`: of each content its bytes, and where what NiFi wrote with it
    in one go begins; `stays`: why its contents can't move, or empty.
    """

    file: str
    size: int
    is_held: bool
    live: list[Span]
    named: list[Span]
    least: int
    data: list[Span]
    doubt: str = ""
    inode: int = 0
    modified_ns: int = 0
    allocated: int = 0
    claims: list[tuple[int, int, int]] = []
    stays: str = ""


class SeenNiFi(msgspec.Struct, frozen=True):
    """A NiFi, as far as a plan needs it. `doubts`: why nothing may be done at all. `blocks`: of each container's
    filesystem, in bytes. `missing`: FlowFiles whose content is not where it should be.
    """

    millis: int
    transaction: int
    replays: Replays
    flowfiles: int
    missing: int
    blocks: Mapping[str, int]
    files: list[SeenFile]
    history: list[str]
    doubts: list[str]


class FileStep(msgspec.Struct, frozen=True):
    """What is done to one file. `holes`: what is punched; `cut`: its new length; None: it keeps it.

    `gone`: all bytes that it loses, of those that have blocks; `freed`: what comes back of these, in whole blocks.
    """

    file: str
    size: int
    holes: list[Span]
    cut: int | None
    is_deleted: bool
    gone: list[Span]
    freed: int
    inode: int
    modified_ns: int


class ContainerShare(msgspec.Struct):
    """What comes back in one container, in bytes by how, and of how many files."""

    name: str
    files: int = 0
    punched: int = 0
    cut: int = 0
    deleted: int = 0

    @property
    def freed(self) -> int:
        return self.punched + self.cut + self.deleted


class LeftAlone(msgspec.Struct):
    """Dead bytes that stay, and why; `first` of the files."""

    why: str
    files: int
    size: int
    first: str


class NiFiReclaimPlan(msgspec.Struct):
    """What a reclaim would do. `set_aside`: provenance directories whose events go out of NiFi's sight before that.

    `named`: dead bytes that stay because events name them. `doubts`: why nothing is done at all.
    """

    millis: int
    transaction: int
    replays: Replays
    containers: list[ContainerShare]
    steps: list[FileStep]
    left: list[LeftAlone]
    set_aside: list[str]
    named: int
    doubts: list[str]

    @property
    def freed(self) -> int:
        return sum(share.freed for share in self.containers)


def plan_reclaim(seen: SeenNiFi, unpunchable: Iterable[str] = ()) -> NiFiReclaimPlan:
    """`unpunchable`: containers whose filesystem has no holes."""
    shares = {name: ContainerShare(name) for name in seen.blocks}
    left: dict[str, LeftAlone] = {}
    steps: list[FileStep] = []
    named = 0
    may_not_delete = _why_no_deletion(seen)
    without_holes = frozenset(unpunchable)
    for file in seen.files if not seen.doubts else ():
        container = file.file.partition("/")[0]
        named += total(common(between(merged(file.live), file.size), merged(file.named)))
        step = _step(file, seen.blocks[container], can_punch=container not in without_holes)
        if step is None:
            continue
        why = file.doubt or (may_not_delete if step.is_deleted else "")
        if why:
            _leave(left, why, file.file, step.freed)
            continue
        steps.append(step)
        _add(shares[container], step)
    return NiFiReclaimPlan(
        millis=seen.millis,
        transaction=seen.transaction,
        replays=seen.replays,
        containers=list(shares.values()),
        steps=steps,
        left=sorted(left.values(), key=lambda each: -each.size),
        set_aside=list(seen.history) if steps and seen.replays is Replays.REFUSE else [],
        named=named,
        doubts=seen.doubts,
    )


def _why_no_deletion(seen: SeenNiFi) -> str:
    """A file without FlowFiles is not deleted where FlowFiles may be looking for it."""
    if seen.missing:
        return f"{seen.missing:,} FlowFiles have contents that are not where they should be: it may be one of those"
    return "" if any(file.is_held for file in seen.files) else NOTHING_HELD


def _step(file: SeenFile, block: int, *, can_punch: bool) -> FileStep | None:
    """What could be done to it; None: nothing comes back."""
    stays = merged([*file.live, *file.named])
    if not file.is_held and not stays:
        return _made(file, [], None, file.data, total(file.data)) if file.data else None
    least = min(file.size, max([file.least, *(end for _, end in stays)]))
    dead = whole_blocks(between(stays, least), block)
    # What the filesystem has no blocks for any more does not come back once more.
    holes = whole_blocks(common(dead, file.data), block) if can_punch else []
    behind = -(-least // block) * block
    freed = total(common([(behind, file.size)], file.data)) if behind < file.size else 0
    if not freed:
        return _made(file, holes, None, holes, total(holes)) if holes else None
    return _made(file, holes, least, [*holes, *common([(least, file.size)], file.data)], total(holes) + freed)


def _made(file: SeenFile, holes: list[Span], cut: int | None, gone: list[Span], freed: int) -> FileStep:
    return FileStep(
        file.file,
        file.size,
        holes,
        cut,
        not holes and cut is None,
        gone,
        freed,
        file.inode,
        file.modified_ns,
    )


def _leave(left: dict[str, LeftAlone], why: str, file: str, size: int) -> None:
    known = left.setdefault(why, LeftAlone(why, 0, 0, file))
    known.files += 1
    known.size += size


def _add(share: ContainerShare, step: FileStep) -> None:
    share.files += 1
    if step.is_deleted:
        share.deleted += step.freed
        return
    punched = total(step.holes)
    share.punched += punched
    share.cut += step.freed - punched

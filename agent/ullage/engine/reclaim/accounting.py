"""Where every allocated byte of content is, and of what does not live why it is still there, and until when. Pure.

    file on disk = live + rounding + kept for somebody (tombstone, archive, lease, pin, writer) + waiting (window, run)
                   + not worth it (thresholds)

Each file's blocks are divided without a rest, so that the sum over all files is what the filesystem says.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ullage.contract import ContentRepositorySpec
from ullage.engine.byteranges import FS_BLOCK_BYTES, ByteRange, whole_blocks
from ullage.engine.model import Action
from ullage.engine.reclaim.plan import ReclamationStep, retention_is_over
from ullage.engine.reclaim.survey import ResourceFigures
from ullage.enums import SpaceUse


class Share(NamedTuple):
    """Bytes of the disk that are there for one reason. `container` is empty for what is no content. `until_millis` is
    when the last of them may go, `first_millis` when the first may; 0: no date says so. `action` is what would give
    them back, as far as a plan knows, and `sooner` another that may have some of it before; `unasked` says why it is
    not done before somebody asks for it, and is empty where it is.
    """

    container: str
    use: SpaceUse
    files: int
    bytes: int
    reason: str = ""
    until_millis: int = 0
    first_millis: int = 0
    action: Action = Action.NONE
    unasked: str = ""
    sooner: Action = Action.NONE


class Obstacle(NamedTuple):
    """What keeps dead bytes: why, and until when; 0: no date says so."""

    reason: str
    until_millis: int = 0


NOTHING = Obstacle("")
NOT_WORTH_IT = Obstacle("too little of each file is dead to be worth an action")

SET_ASIDE = Obstacle("a record that was set aside may point at it")


class Worth(NamedTuple):
    """What plans would give back of one file, and by which action; if that is two, `first_bytes` of them by the one
    that moves least.
    """

    action: Action
    bytes: int
    first: Action = Action.NONE
    first_bytes: int = 0


class DeletedBytes(NamedTuple):
    """What deleted handles keep of a file, and until when the first and the last of them do."""

    bytes: int
    first_millis: int
    last_millis: int


NOBODY = DeletedBytes(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Grounds:
    """What holds dead bytes back at one moment.

    `tombstones` are the bytes that deleted handles keep of each file, and until when. `leases` say which files are
    leased, `aside` at which a record that was set aside may point. `due` is what the settings would give back by
    themselves, `possible` what a person could have back now. `refusals` name the actions that no window permits now.
    `thresholds` say for each container why what is possible is not due, `uncut` the same of dead tails. `copies` is
    what the rewrites that are due have to copy, `pressed` names the containers whose archive goes before its time,
    `adoption_millis` is when orphans are taken up, `deadlines` when a goal wants files to have been rewritten; 0: it
    promises nothing. `evacuated` names the containers that are to be emptied, `after_archive` those whose dead tails
    are cut when their archive is empty. `is_busy`: a run is under way, and may give back anything at any moment;
    `keeper` says what keeps all runs from beginning, if anything does.
    """

    millis: int
    spec: ContentRepositorySpec
    tombstones: Mapping[int, DeletedBytes] = field(default_factory=dict)
    leases: Mapping[int, Obstacle] = field(default_factory=dict)
    aside: Collection[int] = ()
    due: Mapping[int, Worth] = field(default_factory=dict)
    possible: Mapping[int, Worth] = field(default_factory=dict)
    refusals: Mapping[Action, Obstacle] = field(default_factory=dict)
    thresholds: Mapping[str, str] = field(default_factory=dict)
    uncut: Mapping[str, str] = field(default_factory=dict)
    copies: int = 0
    pressed: Collection[str] = ()
    adoption_millis: int = 0
    deadlines: Mapping[int, int] = field(default_factory=dict)
    evacuated: Collection[str] = ()
    after_archive: Collection[str] = ()
    is_busy: bool = False
    keeper: str = ""

    def unasked(self, container: str, action: Action) -> str:
        """Why what is possible is not due."""
        return (self.uncut if action == Action.TRUNCATE else self.thresholds).get(container, "")


class Dead(NamedTuple):
    """A partly dead file, looked into: the bytes in use, each once; those of them that are dead and `pinned` by
    somebody who uses them all the same; and `blocks` that hold nothing in use.
    """

    used: int
    pinned: int
    blocks: int


def worth_of(steps: Iterable[ReclamationStep]) -> dict[int, Worth]:
    """What steps give back, by file; of several on one file the sum."""
    found: dict[int, Worth] = {}
    for step in steps:
        before = found.get(step.resource)
        if before is None or before.action == step.action:
            found[step.resource] = Worth(step.action, step.frees_bytes + (before.bytes if before else 0))
        else:
            both = before.bytes + step.frees_bytes
            found[step.resource] = Worth(step.action, both, before.action, before.bytes)
    return found


def blocks_of(dead_runs: Iterable[ByteRange]) -> int:
    """Bytes of whole blocks in dead runs: the rest shares its blocks with what lives."""
    return sum(whole_blocks(run).length for run in dead_runs)


def shares_of(figures: ResourceFigures, dead: Dead | None, grounds: Grounds) -> Iterator[Share]:
    """How one file's blocks are divided. `dead` is known for files that are partly dead."""
    if figures.output:
        return  # moved: its bytes are those of the output

    def share(
        use: SpaceUse,
        count: int,
        obstacle: Obstacle = NOTHING,
        action: Action = Action.NONE,
        unasked: str = "",
        sooner: Action = Action.NONE,
    ) -> Share:
        return Share(
            figures.container,
            use,
            1,
            count,
            *obstacle,
            first_millis=obstacle.until_millis,
            action=action,
            unasked=unasked,
            sooner=sooner,
        )

    if figures.archived_millis:
        until = figures.archived_millis + grounds.spec.archive.max_retention_period
        kept_until = Obstacle("spec.archive.maxRetentionPeriod", until)
        yield share(SpaceUse.ARCHIVE, figures.allocated_bytes, kept_until, Action.DELETE)
        return
    deleted = grounds.tombstones.get(figures.resource, NOBODY)
    # Totals count what resident and swapped FlowFiles share twice.
    live = min(figures.live_bytes, figures.allocated_bytes, figures.live_bytes if dead is None else dead.used)
    kept = min(deleted.bytes, live)
    rest = figures.allocated_bytes - live
    yield share(SpaceUse.LIVE, live - kept)
    goes_whole = kept == live and _is_let_go_whole(figures, deleted, rest, grounds)
    undelete = share(SpaceUse.TOMBSTONE, kept, Obstacle("spec.compaction.deletedRetention", deleted.last_millis))
    yield undelete._replace(first_millis=deleted.first_millis, action=Action.DELETE if goes_whole else Action.NONE)
    if not figures.is_sealed:
        yield share(SpaceUse.WRITING, rest)
        return
    _, pinned, blocks = Dead(0, 0, rest) if dead is None else dead
    pinned = min(pinned, rest)
    blocks = min(blocks, rest - pinned)
    if dead is None and live and rest < FS_BLOCK_BYTES:
        blocks = 0
    yield share(SpaceUse.PINNED, pinned)
    yield share(SpaceUse.ROUNDING, rest - pinned - blocks)
    for part in _dead(figures, blocks, grounds):
        yield share(*part)


def _is_let_go_whole(figures: ResourceFigures, deleted: DeletedBytes, rest: int, grounds: Grounds) -> bool:
    """Whether all that is left of a file dies at one moment, and nothing makes a run change it before or keeps it."""
    index = figures.resource
    is_kept = not figures.is_proved or index in grounds.leases or index in grounds.aside or figures.has_intent
    is_one = deleted.first_millis == deleted.last_millis and rest < FS_BLOCK_BYTES
    return is_one and figures.is_sealed and not is_kept


class _DeadPart(NamedTuple):
    """Some of a file's dead bytes; see `Share`."""

    use: SpaceUse
    bytes: int
    obstacle: Obstacle = NOTHING
    action: Action = Action.NONE
    unasked: str = ""
    sooner: Action = Action.NONE


def _dead(figures: ResourceFigures, count: int, grounds: Grounds) -> Iterator[_DeadPart]:
    """Why so many dead bytes of a sealed file are still there: the first reason that holds for all of them, else what
    the plans say of each part.
    """
    if figures.has_intent:
        yield _DeadPart(SpaceUse.INTENT, count, Obstacle("its change is promised; the next run finishes it"))
        return
    if not (figures.is_proved or figures.is_free):
        yield _DeadPart(SpaceUse.UNPROVED, count)
        return
    if figures.resource in grounds.aside:
        yield _DeadPart(SpaceUse.SET_ASIDE, count, SET_ASIDE)
        return
    if figures.resource in grounds.leases:
        yield _DeadPart(SpaceUse.LEASE, count, grounds.leases[figures.resource])
        return
    if not figures.is_free and not retention_is_over(figures, grounds.spec, grounds.millis):
        until = figures.last_death_millis + grounds.spec.archive.max_retention_period
        yield _DeadPart(SpaceUse.ARCHIVE, count, Obstacle("spec.archive.partial", until))
        return
    none = Worth(Action.DELETE if figures.is_free else Action.NONE, 0)
    due = grounds.due.get(figures.resource, none)
    possible = grounds.possible.get(figures.resource, due)
    if figures.is_free:  # archived or deleted it goes whole, though archiving frees nothing yet
        due = possible = Worth(possible.action, count)
    now = min(count, due.bytes)
    asked = max(0, min(count, possible.bytes) - now)
    first = min(now, due.first_bytes)
    for part in (
        _DeadPart(SpaceUse.DUE, first, action=due.first, sooner=due.action),
        _DeadPart(SpaceUse.DUE, now - first, action=due.action, sooner=due.first),
    ):
        if part.action in grounds.refusals:
            yield part._replace(use=SpaceUse.WINDOW, obstacle=grounds.refusals[part.action])
        else:
            yield part._replace(obstacle=_next(figures, part.action, grounds))
    unasked = grounds.unasked(figures.container, possible.action)
    if possible.action in grounds.refusals:
        yield _DeadPart(SpaceUse.WINDOW, asked, grounds.refusals[possible.action], possible.action, unasked)
    else:
        yield _DeadPart(SpaceUse.THRESHOLD, asked, Obstacle(unasked), possible.action, unasked)
    yield _DeadPart(SpaceUse.THRESHOLD, count - now - asked, NOT_WORTH_IT)


def _next(figures: ResourceFigures, action: Action, grounds: Grounds) -> Obstacle:
    """Who gives back what is due."""
    if action == Action.ARCHIVE:
        return Obstacle("the next cleaning archives it")
    if action in (Action.PUNCH, Action.REWRITE) and figures.resource in grounds.deadlines:
        return Obstacle("spec.compaction.goal", grounds.deadlines[figures.resource])
    return Obstacle("the next run")


def fitted(shares: Iterable[Share], allocated: int) -> Iterator[Share]:
    """One file's shares as the filesystem has it: what it takes beyond its length is a share of its own, and what it
    does not take (of a file that is short, or whose last bytes are not written yet) is taken off the last ones.
    """
    left = allocated
    last: Share | None = None
    for share in shares:
        last = share._replace(bytes=min(share.bytes, left))
        left -= last.bytes
        if last.bytes:
            yield last
    if left and last is not None:
        yield Share(last.container, SpaceUse.OVERHEAD, 1, left)


def summed(shares: Iterable[Share]) -> list[Share]:
    """Shares of one container, use and reason as one, largest first; `until_millis` is the latest."""
    return summed_apart(share._replace(action=Action.NONE, unasked="", sooner=Action.NONE) for share in shares)


def once(shares: Iterable[Share]) -> Iterator[Share]:
    """One file's shares, with those of one use and reason as one: dead at its end and in its middle it is one file."""
    return (share._replace(files=1) for share in summed(shares))


def summed_apart(shares: Iterable[Share]) -> list[Share]:
    """The same, with what different actions give back, or nobody gives back unasked, apart."""
    totals: dict[tuple[str, SpaceUse, str, Action, str, Action], Share] = {}
    for share in shares:
        if share.bytes:
            key = share.container, share.use, share.reason, share.action, share.unasked, share.sooner
            before = totals.get(key, share._replace(files=0, bytes=0))
            totals[key] = share._replace(
                files=before.files + share.files,
                bytes=before.bytes + share.bytes,
                until_millis=max(before.until_millis, share.until_millis),
                first_millis=min(before.first_millis, share.first_millis),
            )
    return sorted(totals.values(), key=lambda share: (share.container, -share.bytes, share.use))

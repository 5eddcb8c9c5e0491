"""When dead bytes come back: by what, not before when, and if that can be told until when at the latest. Pure.

Shares say why bytes are still there (`accounting.py`); here each gets its time, from the tasks that a repository runs
by itself and the windows that they run in:

    due, and permitted now       the next run of its task
    due, and out of hours        the first run of its task that a window permits
    kept until a date            the first run after it; what is archived now, a retention later
    held by somebody             nobody knows when they let go; no run before the next one
    not worth it by the settings never by itself: the reason names the threshold, `helps` what a person can do

"At the latest" is as things stand: nothing else dies, fills up, fails or is set anew meanwhile.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from ullage.contract import Calendar, PermissionFor
from ullage.engine.model import Action
from ullage.engine.reclaim.accounting import Grounds, Share
from ullage.engine.reclaim.pacing import OPERATIONS
from ullage.enums import GivenBack, SpaceUse

RUNS_TRIED: Final = 100
"""Runs of a task that are looked at, until one falls into a window: of hourly ones those of four days, and each that
does not is moved to the next opening first.
"""

TASKS: Final = {
    Action.ARCHIVE: "clean",
    Action.DELETE: "clean",
    Action.TRUNCATE: "truncate",
    Action.PUNCH: "compact",
    Action.REWRITE: "compact",
}
"""Which task of a repository takes each action by itself."""

UNSERVED: Final = "nothing runs by itself while nobody serves the repository: `ullage reclaim` does it now"


HELPS: Final = {
    SpaceUse.LEASE: "releasing or revoking the lease: `kubectl ullage pins` names it",
    SpaceUse.PINNED: "the end of the session or read: `kubectl ullage pins` names it",
    SpaceUse.WRITING: "nothing: files are closed at the limits of spec.claims, and at a start",
    SpaceUse.UNPROVED: "it is read in the background; `ullage check --deep` names what does not read back",
    SpaceUse.SET_ASIDE: "`ullage set-aside drop`, when nobody needs the record any more",
}
"""What would bring back what is held."""


class TaskTime(NamedTuple):
    """When a task is due next, and how often."""

    due_millis: int
    every_millis: int

    def since(self, millis: int) -> int:
        """Its first run at that moment or later."""
        late = millis - self.due_millis
        return self.due_millis if late <= 0 else self.due_millis + -(-late // self.every_millis) * self.every_millis


class ExpectedReturn(NamedTuple):
    """Bytes that come back together. Times are milliseconds since 1970; 0: not known, or never by itself."""

    container: str
    use: SpaceUse
    when: GivenBack
    action: Action
    files: int
    bytes: int
    earliest_millis: int
    latest_millis: int
    reason: str
    helps: str


class _Answer(NamedTuple):
    """The part that a share does not know."""

    when: GivenBack
    earliest_millis: int = 0
    latest_millis: int = 0
    helps: str = ""


class Forecast:
    """Of one moment. `times` says when each task of the repository is due, by its name; without a task nothing of it
    happens by itself. `permission` is what a run is going to ask: in a cluster a window alone is none.
    """

    def __init__(self, grounds: Grounds, permission: PermissionFor, times: Mapping[str, TaskTime]) -> None:
        self._grounds = grounds
        self._calendar = Calendar(grounds.spec.maintenance)
        self._permission = permission
        self._times = times
        self._now = grounds.millis
        self._answers: Mapping[SpaceUse, Callable[[Share], _Answer]] = {
            SpaceUse.DUE: self._due,
            SpaceUse.WINDOW: self._window,
            SpaceUse.ARCHIVE: self._archived,
            SpaceUse.TOMBSTONE: self._tombstone,
            SpaceUse.THRESHOLD: self._threshold,
            SpaceUse.ORPHAN: self._orphan,
            SpaceUse.INTENT: lambda _: _Answer(GivenBack.NEXT_RUN, self._run(Action.DELETE, self._now)),
            SpaceUse.UNPROVED: lambda _: _Answer(GivenBack.NEXT_RUN, helps=HELPS[SpaceUse.UNPROVED]),
            SpaceUse.SET_ASIDE: lambda _: _Answer(GivenBack.NOT_BY_ITSELF, helps=HELPS[SpaceUse.SET_ASIDE]),
        }

    def of(self, shares: Iterable[Share]) -> list[ExpectedReturn]:
        """What comes back when, of dead bytes whose reasons are known; soonest first, then most."""
        found = [self._of(share) for share in shares]
        order = list(GivenBack)
        return sorted(
            found, key=lambda each: (order.index(each.when), each.earliest_millis, -each.bytes, each.container)
        )

    def _of(self, share: Share) -> ExpectedReturn:
        answer = self._answers.get(share.use, self._held)(share)
        when, earliest = answer.when, answer.earliest_millis
        if when == GivenBack.NEXT_RUN and 0 < earliest <= self._now:
            when = GivenBack.NOW
        return ExpectedReturn(
            share.container,
            share.use,
            when,
            share.action,
            share.files,
            share.bytes,
            earliest,
            answer.latest_millis,
            share.unasked or share.reason,
            answer.helps,
        )

    def _run(self, action: Action, since: int) -> int:
        """The first run of an action's task from then on that a window permits; 0: none is in sight. Where nobody runs
        the task, the first moment at which it would be permitted.
        """
        time = self._times.get(TASKS[action])
        at = max(self._now, since if time is None else time.since(since))
        for _ in range(RUNS_TRIED):
            opens = self._opening(action, at)
            if opens <= at:
                return opens
            at = opens if time is None else time.since(opens)
        return 0

    def _opening(self, action: Action, at: int) -> int:
        """The first moment from then on at which windows let a run begin; 0: none is in sight."""
        operation = OPERATIONS[action]
        status = self._calendar.status(operation, at)
        if status.is_allowed and not status.may_start and status.closes_millis is not None:
            status = self._calendar.status(operation, status.closes_millis)
        return status.opens_millis or 0

    def _done(self, action: Action, at: int) -> int:
        """When what begins then has ended; 0: nobody can tell."""
        operation = OPERATIONS[action]
        if not at or TASKS[action] not in self._times or not self._permission(operation, at).is_granted:
            return 0
        if action != Action.REWRITE:
            return at
        rate = int(self._grounds.spec.compaction.bytes_per_second)
        if not rate:
            return 0
        end = at + self._grounds.copies * 1000 // rate
        closes = self._calendar.status(operation, at).closes_millis
        return end if closes is None or end <= closes else 0

    def _due(self, share: Share) -> _Answer:
        """What is done unasked: at the next run that is permitted."""
        run = self._run(share.action, self._now)
        if share.action == Action.ARCHIVE:
            return self._archived_later(share.container, run)
        if share.use == SpaceUse.WINDOW:
            helps = "`ullage reclaim --override` passes over the windows"
            if self._grounds.spec.maintenance.paused:
                helps = "spec.maintenance.paused: false lets runs begin again"
            opens = self._opening(share.action, self._now)
            return _Answer(GivenBack.WINDOW_OPENS, opens, self._done(share.action, run), helps)
        helps = "" if TASKS[share.action] in self._times else UNSERVED
        if share.action in (Action.PUNCH, Action.REWRITE) and self._grounds.spec.compaction.goal.is_set:
            latest = share.until_millis if helps == "" else 0  # the goal takes it when it has to
            return _Answer(GivenBack.NEXT_RUN, run, latest, helps)
        return _Answer(GivenBack.NEXT_RUN, run, self._done(share.action, run), helps)

    def _archived_later(self, container: str, at: int) -> _Answer:
        """What the next cleaning moves to the archive: it stays for the retention, unless the volume is too full."""
        helps = "`ullage reclaim --archive` gives it back now"
        if not at:
            return _Answer(GivenBack.WINDOW_OPENS, helps=helps)
        if container in self._grounds.pressed:
            return _Answer(GivenBack.NEXT_RUN, at, helps=helps)
        end = self._run(Action.DELETE, at + self._grounds.spec.archive.max_retention_period)
        return _Answer(GivenBack.RETENTION_ENDS, end, self._done(Action.DELETE, end), helps)

    def _window(self, share: Share) -> _Answer:
        if not share.unasked:
            return self._due(share)
        return _Answer(GivenBack.NOT_BY_ITSELF, helps="`ullage reclaim` in a window, or with --override now")

    def _archived(self, share: Share) -> _Answer:
        if share.action != Action.DELETE:  # parts of a file in use: what comes then is for the thresholds to say
            helps = "spec.archive.partial: false gives it back without waiting"
            return _Answer(GivenBack.RETENTION_ENDS, max(share.first_millis, self._now), helps=helps)
        helps = "`ullage reclaim --archive` gives it back now"
        if share.container in self._grounds.pressed:
            return _Answer(GivenBack.NEXT_RUN, self._run(Action.DELETE, self._now), helps=helps)
        first, last = (self._run(Action.DELETE, millis) for millis in (share.first_millis, share.until_millis))
        return _Answer(GivenBack.RETENTION_ENDS, first, self._done(Action.DELETE, last), helps)

    def _tombstone(self, share: Share) -> _Answer:
        purge = self._times.get("purge")
        first = share.first_millis if purge is None else purge.since(share.first_millis)
        return _Answer(GivenBack.RETENTION_ENDS, first, helps="a shorter spec.compaction.deletedRetention")

    def _threshold(self, share: Share) -> _Answer:
        if not share.unasked:
            helps = "nothing, until more of these files dies; `ullage reclaim --policy CompactAll` copies most of them"
        else:
            helps = "`ullage truncate`" if share.action == Action.TRUNCATE else "`ullage reclaim`"
        return _Answer(GivenBack.NOT_BY_ITSELF, helps=helps)

    def _held(self, share: Share) -> _Answer:
        soonest = self._run(Action.TRUNCATE, self._now)
        return _Answer(GivenBack.HOLDER_LETS_GO, soonest, helps=HELPS[share.use])

    def _orphan(self, _: Share) -> _Answer:
        helps = "`ullage clean --orphans` takes up now what is surely this repository's"
        if "orphans" not in self._times:
            return _Answer(GivenBack.NOT_BY_ITSELF, helps=helps)
        return _Answer(GivenBack.NEXT_RUN, max(self._now, self._grounds.adoption_millis), helps=helps)

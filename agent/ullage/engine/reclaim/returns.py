"""When dead bytes come back: by what, not before when, and if that can be told until when at the latest. Pure.

Shares say why bytes are still there (`accounting.py`); here each gets its time, from the tasks that a repository runs
by itself and the windows that they run in:

    due, and permitted now       the next run of its task, or one that is under way
    due, and out of hours        the first run of its task that a window permits
    kept until a date            the first run after it; what is archived now, a retention later
    deleted, to be undeleted     purged at its date, and from then on dead like other content: through the archive too
    held by somebody             nobody knows when they let go; not before the next run of any task
    not worth it by the settings never by itself: the reason names the threshold, `helps` what a person can do

Runs begin late, and the later ones later still: so each has a moment before which it cannot begin, and one until which
it will have, by how late the latest of them was. A run falls into a window if both lie in it. All is as things stand:
nobody asks for a run, and nothing else dies, fills up, fails, begins anew or is set otherwise meanwhile.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from ullage.contract import Calendar, CompactionTrigger, PermissionFor
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

HEAVY: Final = (Action.PUNCH, Action.REWRITE)
IN_PLACE: Final = (Action.TRUNCATE, *HEAVY)
"""What gives back parts of a file in which something lives."""

COMMANDS: Final = {
    Action.ARCHIVE: "clean",
    Action.DELETE: "clean",
    Action.TRUNCATE: "truncate",
    Action.PUNCH: "reclaim",
    Action.REWRITE: "reclaim",
}
"""What people say for each action."""

HELPS: Final = {
    SpaceUse.LEASE: "releasing or revoking the lease: `kubectl ullage pins` names it",
    SpaceUse.PINNED: "the end of the session or read: `kubectl ullage pins` names it",
    SpaceUse.WRITING: "nothing: files are closed at the limits of spec.claims, and at a start",
    SpaceUse.UNPROVED: "it is read in the background; `ullage check --deep` names what does not read back",
    SpaceUse.SET_ASIDE: "`ullage set-aside drop`, when nobody needs the record any more",
}
"""What would bring back what is held."""


class TaskTime(NamedTuple):
    """When a task is due next, and how often after it has begun; `behind_millis` is how much later the
    latest of its runs began, or ended if none takes long. A run that `is_running` gives back at any moment.
    """

    due_millis: int
    every_millis: int
    behind_millis: int = 0
    is_running: bool = False

    def soonest(self, at: int, now: int) -> int:
        """No run of it gives back anything between `at`, which is not before `now`, and then."""
        if self.is_running or self.due_millis <= now:  # one that is late begins at any moment
            return at
        runs = max(0, -(-(at - self.due_millis) // (self.every_millis + self.behind_millis)))
        return max(at, self.due_millis + runs * self.every_millis)

    def latest(self, at: int, now: int) -> int:
        """Until then a run of it has begun at `at` or later, and has ended if it is a short one."""
        due = max(self.due_millis, now)
        runs = max(0, -(-(at - due) // self.every_millis))
        drifted = due + runs * (self.every_millis + self.behind_millis) + self.behind_millis
        if not runs:
            return drifted
        return min(drifted, at + self.every_millis + self.behind_millis)


class _Span(NamedTuple):
    """Not before one moment, and at the latest at the other; 0: nobody can tell."""

    earliest: int
    latest: int = 0


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
            SpaceUse.INTENT: lambda _: _Answer(GivenBack.NEXT_RUN, self._soonest_of(TASKS, self._now)),
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
        when, earliest, reason = answer.when, answer.earliest_millis, share.unasked or share.reason
        keeper = self._grounds.keeper
        if keeper and when == GivenBack.NEXT_RUN:
            answer = answer._replace(helps="the end of what keeps it")
            when, reason = GivenBack.HOLDER_LETS_GO, keeper
        elif when == GivenBack.NEXT_RUN and 0 < earliest <= self._now:
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
            reason,
            answer.helps,
        )

    def _span(self, action: Action, since: _Span) -> _Span:
        """When a run takes what has been there for its taking since then."""
        return _Span(self._soonest(action, since.earliest), self._latest(action, since.latest))

    def _soonest(self, action: Action, since: int) -> int:
        """No run takes it before. Where nobody runs the task, and where somebody has yet to permit it, who may then
        begin it at once, the first moment at which windows do; 0: none is in sight.
        """
        time = None if self._grounds.is_busy else self._times.get(TASKS[action])
        opens = at = self._opening(action, max(self._now, since))
        if time is None or not at or not self._permission(OPERATIONS[action], at).is_granted:
            return opens
        for _ in range(RUNS_TRIED):
            run = time.soonest(at, self._now)
            at = self._opening(action, run)
            if at <= run:
                break
        return at or opens

    def _latest(self, action: Action, since: int) -> int:
        """Then a run that windows are sure to permit has taken it; 0: nobody can tell."""
        time = self._times.get(TASKS[action])
        is_long = action in HEAVY and self._grounds.is_busy  # until it ends no other begins
        if not since or time is None or is_long or self._grounds.keeper:
            return 0
        at = since
        for _ in range(RUNS_TRIED):
            begins, ends = time.soonest(max(self._now, at), self._now), time.latest(max(self._now, at), self._now)
            if self._is_open(action, begins, ends):
                return ends
            at = self._opening(action, ends)
            if not at:
                return 0
            at = max(at, ends + 1)
        return 0

    def _opening(self, action: Action, at: int) -> int:
        """The first moment from then on at which windows let a run begin; 0: none is in sight."""
        operation = OPERATIONS[action]
        status = self._calendar.status(operation, at)
        if status.is_allowed and not status.may_start and status.closes_millis is not None:
            status = self._calendar.status(operation, status.closes_millis)
        return status.opens_millis or 0

    def _is_open(self, action: Action, since: int, until: int) -> bool:
        """Whether a run may begin at any moment between these."""
        operation = OPERATIONS[action]
        first, last = (self._calendar.status(operation, at) for at in (since, until))
        is_one = first.closes_millis is None or first.closes_millis > until
        is_open = first.is_allowed and last.may_start and is_one
        return is_open and self._permission(operation, since).is_granted

    def _copied(self, at: int) -> int:
        """When rewrites that have begun then have copied all; 0: nobody can tell."""
        rate = int(self._grounds.spec.compaction.bytes_per_second)
        if not at or not rate:
            return 0
        end = at + self._grounds.copies * 1000 // rate
        closes = self._calendar.status(OPERATIONS[Action.REWRITE], at).closes_millis
        return end if closes is None or end <= closes else 0

    def _soonest_of(self, actions: Iterable[Action], since: int) -> int:
        """The first of them; 0: none is in sight."""
        return min(filter(None, (self._soonest(action, since) for action in actions)), default=0)

    def _freed(self, container: str, since: int) -> int:
        """Nothing of what dies then, or is let go, is back before: nobody knows what else its file holds by then."""
        return self._soonest_of(IN_PLACE if self._is_archiving(container) else (*IN_PLACE, Action.DELETE), since)

    def _whole(self, container: str, since: _Span) -> _Span:
        """When a file comes back in which nothing lives since then: through the archive, if there is one."""
        released = self._span(Action.DELETE, since)
        if not self._is_archiving(container):
            return released
        kept = self._grounds.spec.archive.max_retention_period
        return self._span(Action.DELETE, _Span(*(at + kept if at else 0 for at in released)))

    def _is_archiving(self, container: str) -> bool:
        return self._grounds.spec.archive.enabled and container not in self._grounds.evacuated

    def _by_hand(self, command: str, action: Action = Action.REWRITE) -> str:
        """A command in the form in which it is not refused."""
        settings, maintenance = self._grounds.spec.compaction, self._grounds.spec.maintenance
        asked = f"`ullage {command}`"
        if action in self._grounds.refusals and not maintenance.paused:
            asked = f"`ullage {command} --override`, which passes over the windows"
        before = []
        if maintenance.paused:
            before.append("spec.maintenance.paused: false")
        if command.startswith("reclaim") and not settings.enabled:
            before.append("spec.compaction.enabled: true")
        if command.startswith("reclaim") and CompactionTrigger.ADMIN not in settings.triggers:
            before.append("Admin among spec.compaction.triggers")
        return f"{' and '.join(before)}, then {asked}" if before else asked

    def _due(self, share: Share) -> _Answer:
        """What is done unasked: at the next run that is permitted."""
        now = _Span(self._now, self._now)
        if share.action == Action.ARCHIVE:
            return self._archived_later(share.container)
        span = self._span(share.action, now)
        if share.action == Action.REWRITE:
            span = span._replace(latest=self._copied(span.latest))
        if share.sooner != Action.NONE:
            span = self._shared(share, span)
        if share.use == SpaceUse.WINDOW:
            opens = self._opening(share.action, self._now)
            earliest = span.earliest if share.sooner != Action.NONE else opens
            return _Answer(GivenBack.WINDOW_OPENS, earliest, span.latest, self._out_of_hours(share.action))
        helps = "" if TASKS[share.action] in self._times else self._unserved(share.action)
        if share.action in HEAVY and self._grounds.spec.compaction.goal.is_set:
            latest = share.until_millis if helps == "" else 0  # the goal takes it when it has to
            return _Answer(GivenBack.NEXT_RUN, span.earliest, latest, helps)
        return _Answer(GivenBack.NEXT_RUN, *span, helps)

    def _shared(self, share: Share, alone: _Span) -> _Span:
        """Of a file that is cut and also punched or rewritten: whichever comes first. What a cut leaves may then not be
        worth the rest; while a rewrite goes on nobody cuts.
        """
        other = self._soonest(share.sooner, self._now)
        is_certain = share.action == Action.TRUNCATE and 0 < alone.latest <= (other or alone.latest)
        return _Span(min(filter(None, (alone.earliest, other)), default=0), alone.latest if is_certain else 0)

    def _out_of_hours(self, action: Action) -> str:
        if self._grounds.spec.maintenance.paused:
            return "spec.maintenance.paused: false lets runs begin again"
        return self._by_hand(COMMANDS[action], action)

    def _unserved(self, action: Action) -> str:
        return f"nothing runs by itself while nobody serves the repository: {self._by_hand(COMMANDS[action], action)}"

    def _archived_later(self, container: str) -> _Answer:
        """What the next cleaning moves to the archive: it stays for the retention, unless the volume is too full."""
        helps = self._by_hand("reclaim --archive", Action.DELETE)
        if container in self._grounds.pressed:
            return _Answer(GivenBack.NEXT_RUN, self._soonest(Action.DELETE, self._now), helps=helps)
        span = self._whole(container, _Span(self._now, self._now))
        when = GivenBack.RETENTION_ENDS if span.earliest else GivenBack.WINDOW_OPENS
        return _Answer(when, *span, helps)

    def _window(self, share: Share) -> _Answer:
        if not share.unasked:
            return self._due(share)
        return _Answer(GivenBack.NOT_BY_ITSELF, helps=self._by_hand(COMMANDS[share.action], share.action))

    def _archived(self, share: Share) -> _Answer:
        if share.action != Action.DELETE:  # parts of a file in use: what comes then is for the thresholds to say
            helps = "spec.archive.partial: false gives it back without waiting"
            return _Answer(GivenBack.RETENTION_ENDS, self._soonest_of(IN_PLACE, share.first_millis), helps=helps)
        helps = self._by_hand("reclaim --archive", Action.DELETE)
        if share.container in self._grounds.pressed:
            return _Answer(GivenBack.NEXT_RUN, self._soonest(Action.DELETE, self._now), helps=helps)
        span = self._span(Action.DELETE, _Span(share.first_millis, share.until_millis))
        return _Answer(GivenBack.RETENTION_ENDS, *span, helps)

    def _tombstone(self, share: Share) -> _Answer:
        """Purged when they need not be kept for an undelete: then it is dead like other content."""
        helps = "a shorter spec.compaction.deletedRetention"
        purge = self._times.get("purge")
        if purge is None:
            return _Answer(GivenBack.RETENTION_ENDS, max(self._now, share.first_millis), helps=helps)
        first, last = (max(self._now, millis) for millis in (share.first_millis, share.until_millis))
        purged = _Span(purge.soonest(first, self._now), purge.latest(last, self._now))
        if share.action != Action.DELETE:
            return _Answer(GivenBack.RETENTION_ENDS, self._freed(share.container, purged.earliest), helps=helps)
        span = self._whole(share.container, purged)
        if share.container in self._grounds.pressed:
            span = _Span(self._soonest(Action.DELETE, purged.earliest))
        return _Answer(GivenBack.RETENTION_ENDS, *span, helps)

    def _threshold(self, share: Share) -> _Answer:
        if share.action == Action.TRUNCATE and share.container in self._grounds.after_archive:
            cut = self._soonest_of((Action.TRUNCATE,), self._now)  # the archive may be gone by then
            return _Answer(GivenBack.RETENTION_ENDS, cut, helps=self._by_hand("truncate", Action.TRUNCATE))
        if not share.unasked:
            copied = self._by_hand("reclaim --policy CompactAll")
            helps = f"nothing, until more of these files dies; {copied} copies most of them"
        else:
            helps = self._by_hand(COMMANDS[share.action], share.action)
        return _Answer(GivenBack.NOT_BY_ITSELF, helps=helps)

    def _held(self, share: Share) -> _Answer:
        if share.action == Action.DELETE:  # it is gone but for them: no run is needed any more
            return _Answer(GivenBack.HOLDER_LETS_GO, self._now, helps=HELPS[share.use])
        return _Answer(GivenBack.HOLDER_LETS_GO, self._freed(share.container, self._now), helps=HELPS[share.use])

    def _orphan(self, share: Share) -> _Answer:
        helps = "`ullage clean --orphans` takes up now what is surely this repository's"
        task = self._times.get("orphans")
        if task is None:
            return _Answer(GivenBack.NOT_BY_ITSELF, helps=helps)
        adopted = task.soonest(max(self._now, self._grounds.adoption_millis), self._now)
        return _Answer(GivenBack.NEXT_RUN, self._whole(share.container, _Span(adopted)).earliest, helps=helps)

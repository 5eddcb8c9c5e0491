"""Windows: when reclamation may run. Pure: a moment goes in, an answer with its reason comes out.

A window opens at each time of its schedule (cron, in the zone of `spec.maintenance.timeZone`) and stays open for its
duration in elapsed time; openings that touch or overlap are one. For an operation:

    no window names it                 always allowed
    an open Deny window names it       closed, whatever else is open
    Allow windows name it              allowed while one of them is open
    something cannot be read           closed: an Allow window that never opens, a Deny window that never closes

Rules and names are those of Argo CD's sync windows; failing closed is not: a mistyped night must not become any time.

Clock changes as Debian's cron handles them: a fixed time that the change skips comes right after the gap, one that it
repeats comes the first time only; schedules whose minute or hour begins with `*` follow elapsed time. Not held: where
clocks change by half an hour (Lord Howe Island alone), cronsim lets the latter miss openings on the day of the change.
"""

import contextlib
import re
import zoneinfo
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from heapq import heappop, heappush
from typing import Final

import msgspec
from cronsim import CronSim, CronSimError

from ullage.clock import moment_of
from ullage.contract.permission import Permission, emergency_floor
from ullage.contract.units import Duration
from ullage.contract.window_settings import (
    WINDOW_MILLIS_MIN,
    MaintenanceOperation,
    MaintenanceSettings,
    Overrun,
    Window,
    WindowKind,
)

HORIZON_MILLIS: Final = 8 * 24 * 3_600_000
"""How far ahead a closing is looked for: more than the longest window. A run that is to stop gets no longer."""

FOLD_MILLIS: Final = 3 * 3_600_000
"""How much earlier a schedule is entered than asked: entered in an hour that comes twice, cron's order of wall times
is not that of real ones. No zone sets its clocks back by more."""

OPENINGS_MAX: Final = 100
"""Openings looked at, one inside Deny windows after the other, before the answer is that none is in sight: the nights
of three months. More would take seconds where every one of them is denied."""

REMEMBERED_MAX: Final = 4 * OPENINGS_MAX
"""Answers a schedule remembers. The moments that a search for an opening visits are the schedules' own, so that the
next search, for another operation or a minute later, asks for the same ones."""

SCHEDULES_MAX: Final = 256
"""Schedules whose answers are remembered, by window and zone: a calendar is made anew for every question that is asked
of it. What an operator of a hundred repositories has; a schedule more is only worked out again."""

CRON_FIELDS: Final = 5


class WindowStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one operation at one moment. Times are milliseconds since 1970.

    `closes_millis`: when an allowed operation stops being so, None if nothing in sight closes it; `overrun`: what
    becomes then of a run under way. `opens_millis`: from when on it is allowed, None if nothing in sight opens it.
    """

    operation: MaintenanceOperation
    is_allowed: bool
    may_start: bool
    closes_millis: int | None
    overrun: Overrun
    opens_millis: int | None
    reason: str


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """When a window was last open, and when it opens next, whatever other windows say. Milliseconds since 1970.

    `last_opened_millis`: the last time of its schedule, None if there was none; `last_closed_millis`: its end, None as
    long as it lasts; `next_opens_millis`: None if it never opens again; `problem`: why it cannot be read.
    """

    window: str
    kind: WindowKind
    operations: list[MaintenanceOperation]
    is_open: bool
    last_opened_millis: int | None
    last_closed_millis: int | None
    next_opens_millis: int | None
    problem: str | None


class Calendar:
    """The windows of one `spec.maintenance`, read once."""

    def __init__(self, maintenance: MaintenanceSettings) -> None:
        self._maintenance = maintenance
        zone, zone_problem = _zone(maintenance.time_zone)
        self.zone = zone
        self._schedules = [
            _schedule(window, zone, zone_problem or _schedule_problem(window, f"spec.maintenance.windows[{index}]"))
            for index, window in enumerate(maintenance.windows)
        ]
        problems = [zone_problem, *(schedule.problem for schedule in self._schedules)]
        self.problems: tuple[str, ...] = tuple(dict.fromkeys(filter(None, problems)))

    def status(self, operation: MaintenanceOperation, millis: int) -> WindowStatus:
        """Whether the operation is allowed at that moment, may start, until when or from when on, and why."""
        opens = self._opening(operation, millis)
        if opens != millis:
            return WindowStatus(
                operation=operation,
                is_allowed=False,
                may_start=False,
                closes_millis=None,
                overrun=Overrun.STOP,
                opens_millis=opens,
                reason=self._why_closed(operation, millis, opens),
            )
        closes, overrun = self._closing(operation, millis)
        open_now = [s for s in self._of(operation, WindowKind.ALLOW) if s.is_open(millis)]
        cutoff = min((int(schedule.window.start_cutoff) for schedule in open_now), default=0)
        may_start = closes is None or millis < closes - cutoff
        names = ", ".join(schedule.window.name for schedule in open_now)
        reason = f"in window {names}" if names else f"no window is about {operation}"
        if not names and self._of(operation, WindowKind.DENY):
            reason = "outside of every Deny window"
        if not may_start:
            reason = f"nothing starts in the last {min(s.window.start_cutoff for s in open_now)} of window {names}"
        return WindowStatus(
            operation=operation,
            is_allowed=True,
            may_start=may_start,
            closes_millis=closes,
            overrun=overrun,
            opens_millis=millis,
            reason=reason,
        )

    def permission(self, operation: MaintenanceOperation, millis: int) -> Permission:
        """The same as the engine asks for it (`Reclaimer.permission`), with the floor of the emergency."""
        status = self.status(operation, millis)
        return Permission(
            is_granted=status.may_start,
            until_millis=_end_of_run(status, millis),
            emergency_free_percentage=emergency_floor(self._maintenance, operation),
            reason=status.reason,
        )

    def allowed_millis(self, operation: MaintenanceOperation, since: int, until: int) -> int:
        """For how long the operation was allowed between two moments."""
        return sum(end - start for start, end in self.spans(operation, since, until))

    def spans(self, operation: MaintenanceOperation, since: int, until: int) -> Iterator[tuple[int, int]]:
        """When the operation is allowed between two moments, from and to, in order. Where windows open more than
        OPENINGS_MAX times meanwhile, what is beyond counts as a whole.
        """
        at = since
        for _ in range(OPENINGS_MAX):
            opens = self._opening(operation, at)
            if opens is None or opens >= until:
                return
            closes, _ = self._closing(operation, opens)
            at = min(until, opens + HORIZON_MILLIS if closes is None else closes)
            yield opens, at
        if at < until:
            yield at, until

    def openings(self, millis: int) -> list[Opening]:
        """Every window's last and next opening, in the order of the document."""
        return [schedule.opening(millis) for schedule in self._schedules]

    def _of(self, operation: MaintenanceOperation, kind: WindowKind) -> list["_Schedule"]:
        return [s for s in self._schedules if s.window.kind == kind and operation in s.window.operations]

    def _opening(self, operation: MaintenanceOperation, millis: int) -> int | None:
        """The first moment from `millis` on at which the operation is allowed."""
        if self._maintenance.paused:
            return None
        allows, denies = self._of(operation, WindowKind.ALLOW), self._of(operation, WindowKind.DENY)
        for _ in range(OPENINGS_MAX):
            denied = [end for schedule in denies if (end := schedule.end_at(millis)) is not None]
            if denied:
                if max(denied) - millis >= HORIZON_MILLIS:
                    return None
                millis = max(denied)
                continue
            if not allows or any(schedule.is_open(millis) for schedule in allows):
                return millis
            starts = [start for schedule in allows if (start := schedule.next_start(millis)) is not None]
            if not starts:
                return None
            millis = min(starts)
        return None

    def _closing(self, operation: MaintenanceOperation, millis: int) -> tuple[int | None, Overrun]:
        """When an operation allowed at `millis` stops being so, and what the windows that end it say of a run."""
        allows, denies = self._of(operation, WindowKind.ALLOW), self._of(operation, WindowKind.DENY)
        if not allows and not denies:
            return None, Overrun.FINISH
        end, enders = _union_end(allows, millis, millis + HORIZON_MILLIS)
        starts = [(start, schedule) for schedule in denies if (start := schedule.next_start(millis)) is not None]
        first = min((start for start, _ in starts), default=end)
        if first <= end:
            denying = [schedule for start, schedule in starts if start == first]
            end, enders = first, denying if first < end else [*denying, *enders]
        if end >= millis + HORIZON_MILLIS:
            return None, Overrun.STOP
        must_stop = any(schedule.window.overrun == Overrun.STOP for schedule in enders)
        return end, Overrun.STOP if must_stop else Overrun.FINISH

    def _why_closed(self, operation: MaintenanceOperation, millis: int, opens: int | None) -> str:
        if self._maintenance.paused:
            return "spec.maintenance.paused is true"
        denying = [s for s in self._of(operation, WindowKind.DENY) if s.is_open(millis)]
        allows = self._of(operation, WindowKind.ALLOW)
        when = "no opening is in sight" if opens is None else f"opens at {in_words(opens, self._maintenance)}"
        broken = [s.problem for s in (denying or allows) if s.problem is not None]
        if broken:
            return f"{'; '.join(dict.fromkeys(broken))}: kept closed; {when}"
        if denying:
            return f"denied by window {', '.join(s.window.name for s in denying)}; {when}"
        return f"outside of window {', '.join(s.window.name for s in allows)}; {when}"


class Timetable:
    """A schedule without a duration: moments at which something is due. `field` names it in `problem`, empty if the
    schedule can be read. Milliseconds since 1970.
    """

    def __init__(self, schedule: str, time_zone: str, field: str) -> None:
        zone, zone_problem = _zone(time_zone)
        window = Window(name="moments", schedule=schedule, duration=Duration(WINDOW_MILLIS_MIN))
        self.problem = zone_problem or _schedule_problem(window, field) or ""
        self._schedule = _schedule(window, zone, self.problem or None)

    def last(self, millis: int) -> int | None:
        """The last moment up to then; None if there was none."""
        return self._schedule.last_start(millis)

    def next(self, millis: int) -> int | None:
        """The first moment after that; None if there is none."""
        return self._schedule.next_start(millis)


class _Schedule:
    """One window in real time. `problem`: it cannot be read, so it is closed to what it governs."""

    def __init__(self, window: Window, zone: zoneinfo.ZoneInfo | None, problem: str | None) -> None:
        self.window = window
        self.problem = problem
        self._zone = zone
        self._duration = int(window.duration)
        fields = window.schedule.split()
        self._is_every_minute = fields == ["*"] * CRON_FIELDS
        self._is_elapsed = any(field.startswith("*") for field in fields[:2])
        self.end_at = lru_cache(REMEMBERED_MAX)(self._end_at)
        self.next_start = lru_cache(REMEMBERED_MAX)(self._next_start)

    def is_open(self, millis: int) -> bool:
        if self.problem is not None:
            return self.window.kind == WindowKind.DENY
        start = self.next_start(millis - self._duration)
        return start is not None and start <= millis

    def _end_at(self, millis: int) -> int | None:
        """The end of the opening at that moment, at most the horizon ahead; None if it is not open."""
        if self.problem is not None:
            return millis + HORIZON_MILLIS if self.window.kind == WindowKind.DENY else None
        if self._is_every_minute:
            return millis + HORIZON_MILLIS
        end: int | None = None
        for start in self._starts(millis - self._duration):
            if start > (millis if end is None else end):
                break
            end = start + self._duration
            if end >= millis + HORIZON_MILLIS:
                return millis + HORIZON_MILLIS
        return end

    def opening(self, millis: int) -> Opening:
        """Its last and next opening. One that began while another lasted counts as its own."""
        last, end = self.last_start(millis), self.end_at(millis)
        return Opening(
            window=self.window.name,
            kind=self.window.kind,
            operations=list(self.window.operations),
            is_open=self.is_open(millis),
            last_opened_millis=last,
            last_closed_millis=None if last is None or end is not None else last + self._duration,
            next_opens_millis=self.next_start(millis),
            problem=self.problem,
        )

    def last_start(self, millis: int) -> int | None:
        """The last time up to that moment at which the schedule opened; None if it never did."""
        if self.problem is not None:
            return None
        entered = moment_of(millis + FOLD_MILLIS).replace(microsecond=0).astimezone(self._zone)
        starts = (int(moment.timestamp()) * 1000 for moment in CronSim(self.window.schedule, entered, reverse=True))
        return next((start for start in starts if start <= millis), None)

    def _next_start(self, millis: int) -> int | None:
        """The first time after that moment at which the schedule opens; None if it never does again."""
        return None if self.problem is not None else next(self._starts(millis), None)

    def _starts(self, after: int) -> Iterator[int]:
        """The times of the schedule after that moment, in order."""
        entered = moment_of(after - FOLD_MILLIS).replace(microsecond=0).astimezone(self._zone)
        if self._is_elapsed:
            found = _shown(CronSim(self.window.schedule, entered.replace(tzinfo=None)), self._zone)
        else:
            found = (int(moment.timestamp()) * 1000 for moment in CronSim(self.window.schedule, entered))
        yield from (start for start in found if start > after)


def _shown(times: Iterable[datetime], zone: zoneinfo.ZoneInfo | None) -> Iterator[int]:
    """When clocks show these times, which come in order: never one that a change skips, twice one that it repeats.

    cronsim in a zone would do the same, but for a day whose midnight is skipped (Havana): it takes the first hour
    after the gap for over, and a window of that hour would stay shut that day.
    """
    waiting: list[int] = []
    for time in times:
        moments = [time.replace(tzinfo=zone, fold=fold) for fold in (0, 1)]
        real = {
            int(moment.timestamp()) * 1000
            for moment in moments
            if moment.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == time
        }
        for millis in real:
            heappush(waiting, millis)
        # A later time is shown later, the first time that it is; the second time may come before its first time.
        while real and waiting and waiting[0] <= min(real):
            yield heappop(waiting)


@lru_cache(SCHEDULES_MAX)
def _schedule(window: Window, zone: zoneinfo.ZoneInfo | None, problem: str | None) -> _Schedule:
    """The schedule of equal windows is one, with all that it remembers."""
    return _Schedule(window, zone, problem)


def in_words(millis: int, maintenance: MaintenanceSettings) -> str:
    """A moment in the zone of the schedules, or in UTC where that is unknown: `2026-03-01T01:00:00+00:00`."""
    zone, _ = _zone(maintenance.time_zone)
    return moment_of(millis).astimezone(zone or UTC).isoformat()


def _union_end(allows: Sequence[_Schedule], millis: int, limit: int) -> tuple[int, list[_Schedule]]:
    """The first moment with none of these windows open, at most `limit`, and the windows that reach it."""
    end, last = millis if allows else limit, list(allows)
    while end < limit:
        ends = [(reached, schedule) for schedule in allows if (reached := schedule.end_at(end)) is not None]
        if not ends:
            break
        end = max(reached for reached, _ in ends)
        last = [schedule for reached, schedule in ends if reached == end]
    return min(end, limit), last


def _end_of_run(status: WindowStatus, millis: int) -> int | None:
    if status.closes_millis is not None:
        return status.closes_millis if status.overrun == Overrun.STOP else None
    return millis + HORIZON_MILLIS if status.overrun == Overrun.STOP else None


_NO_ZONES: Final = re.compile(r"localtime$|posixrules$|Factory$|posix/|right/")
"""Files beside those of zones, which say another time on each machine, none at all, or one with leap seconds."""


def _zone(name: str) -> tuple[zoneinfo.ZoneInfo | None, str | None]:
    with contextlib.suppress(KeyError, ValueError, OSError):  # not there; not a name; a directory of names
        if not _NO_ZONES.match(name):
            return zoneinfo.ZoneInfo(name), None
    return None, f"spec.maintenance.timeZone: {name!r} is no IANA time zone, such as UTC or Europe/Berlin"


def _schedule_problem(window: Window, field: str) -> str | None:
    if len(window.schedule.split()) != CRON_FIELDS:
        return f"{field}.schedule: {window.schedule!r} is not cron with five fields, such as '0 1 * * *'"
    try:
        CronSim(window.schedule, datetime.fromtimestamp(0, UTC))
    except CronSimError as error:
        return f"{field}.schedule: {window.schedule!r} is not cron: {str(error).lower()}"
    return None

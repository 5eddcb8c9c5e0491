from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import example, given, settings, strategies as st

from ullage.contract import (
    HORIZON_MILLIS,
    Calendar,
    Duration,
    EmergencySettings,
    MaintenanceOperation,
    MaintenanceSettings,
    Overrun,
    Window,
    WindowKind,
    windows,
)

MINUTE = 60_000
HOUR = 60 * MINUTE
REWRITE, DELETE = MaintenanceOperation.REWRITE, MaintenanceOperation.DELETE


def at(text: str, zone: str = "UTC") -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def window(schedule: str, minutes: int, **fields: object) -> Window:
    given = {"name": "w", "schedule": schedule, "duration": Duration(minutes * MINUTE)} | fields
    return Window(**given)  # type: ignore[arg-type]


def calendar(*windows: Window, zone: str = "UTC") -> Calendar:
    return Calendar(MaintenanceSettings(windows=windows, time_zone=zone))


# The model: cron's fields matched minute by minute, and a window open if one of the minutes before opened it.


def field_matches(text: str, value: int, first: int) -> bool:
    for term in text.split(","):
        span, _, step = term.partition("/")
        low, high = (first, 99) if span == "*" else (int(span.split("-")[0]), int(span.split("-")[-1]))
        if low <= value <= high and (value - low) % int(step or 1) == 0:
            return True
    return False


def wall_matches(schedule: str, wall: datetime) -> bool:
    minute, hour, day, month, weekday = schedule.split()
    days = [field_matches(day, wall.day, 1), field_matches(weekday, wall.isoweekday() % 7, 0)]
    is_day = all(days) if day.startswith("*") or weekday.startswith("*") else any(days)
    return (
        is_day
        and field_matches(minute, wall.minute, 0)
        and field_matches(hour, wall.hour, 0)
        and field_matches(month, wall.month, 1)
    )


def model_starts(schedule: str, zone: ZoneInfo, first: int, last: int) -> set[int]:
    """Openings in [first, last): by elapsed time, or for fixed times by wall time, as Debian's cron does."""
    if any(part.startswith("*") for part in schedule.split()[:2]):
        return {
            millis
            for millis in range(first, last, MINUTE)
            if wall_matches(schedule, datetime.fromtimestamp(millis / 1000, zone))
        }
    starts = set()
    wall = datetime.fromtimestamp(first / 1000, UTC).replace(tzinfo=None) - timedelta(days=2)
    for _ in range((last - first) // MINUTE + 4 * 24 * 60):
        wall += timedelta(minutes=1)
        if wall_matches(schedule, wall):
            real = wall.replace(tzinfo=zone)
            while real.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != real.replace(tzinfo=None):
                real += timedelta(minutes=1)
            starts.add(round(real.timestamp() * 1000))
    return {start for start in starts if first <= start < last}


CHANGES = [
    ("Europe/Berlin", "2026-03-29T00:00"),  # 02:00 to 03:00 does not exist
    ("Europe/Berlin", "2026-10-25T00:00"),  # 02:00 to 03:00 comes twice
    ("America/New_York", "2026-03-08T04:00"),
    ("America/New_York", "2026-11-01T03:00"),
    ("America/Havana", "2026-03-08T02:00"),  # midnight does not exist
    ("America/Havana", "2026-11-01T02:00"),  # midnight comes twice
    ("Asia/Kathmandu", "2028-02-28T18:00"),  # into a leap day, at a quarter hour's offset
    ("UTC", "2027-12-31T20:00"),
]

minutes = st.sampled_from(["0", "30", "15,45", "*/20", "*", "5-50/15"])
hours = st.sampled_from(["0", "1", "2", "3", "23", "*", "*/3", "0-2", "1,22"])
days = st.sampled_from(["*", "*", "1", "29", "28-31", "*/2"])
weekdays = st.sampled_from(["*", "*", "0", "6,0", "1-5"])
schedules = st.builds(lambda m, h, d, w: f"{m} {h} {d} * {w}", minutes, hours, days, weekdays)
drawn_windows = st.builds(
    window,
    schedules,
    st.sampled_from([1, 7, 30, 59, 60, 61, 90, 180, 1440]),
    kind=st.sampled_from(WindowKind),
    overrun=st.sampled_from(Overrun),
)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(CHANGES), st.lists(drawn_windows, min_size=1, max_size=3))
@example(CHANGES[0], [window("30 2 * * *", 60)])
@example(CHANGES[7], [window("0 23 * * *", 180)])
@example(CHANGES[4], [window("0 */3 * * 0", 1)])
@example(CHANGES[4], [window("0 * * * 0", 1)])
@example(CHANGES[4], [window("*/20 1 * * 0", 7)])
@example(CHANGES[1], [window("30 2 * * *", 60)])
@example(CHANGES[1], [window("* * * * *", 1), window("15,45 2 * * *", 7, kind=WindowKind.DENY)])
def test_every_minute_is_allowed_as_a_minute_by_minute_model_says(
    change: tuple[str, str], windows: list[Window]
) -> None:
    """Through clock changes, midnights and leap days: allowed, the end and the next opening are the model's."""
    name, text = change
    zone, begin = ZoneInfo(name), at(text)
    span = range(begin, begin + 14 * HOUR, MINUTE)
    open_by_kind: dict[WindowKind, set[int]] = {kind: set() for kind in WindowKind}
    for one in windows:
        for start in model_starts(one.schedule, zone, begin - int(one.duration), span.stop):
            open_by_kind[one.kind].update(range(start, start + int(one.duration), MINUTE))
    has_allow = any(one.kind == WindowKind.ALLOW for one in windows)
    expected = [
        (millis in open_by_kind[WindowKind.ALLOW] or not has_allow) and millis not in open_by_kind[WindowKind.DENY]
        for millis in span
    ]

    subject = Calendar(MaintenanceSettings(windows=tuple(windows), time_zone=name))

    for step in range(0, len(span), 29):
        millis = span[step]
        verdict = subject.status(REWRITE, millis)
        print(name, datetime.fromtimestamp(millis / 1000, zone), verdict)
        assert verdict.is_allowed == expected[step]
        assert subject.allowed_millis(REWRITE, begin, millis) == MINUTE * sum(expected[:step])
        change_at = verdict.closes_millis if verdict.is_allowed else verdict.opens_millis
        later = [span[n] for n in range(step, len(span)) if expected[n] != expected[step]]
        assert later[0] == change_at if later else change_at is None or change_at >= span.stop


def test_without_windows_everything_may_finish() -> None:
    """None means always, for every operation, with no end."""
    for operation in MaintenanceOperation:
        permission = calendar().permission(operation, at("2026-05-05T12:00"))
        assert permission.is_granted
        assert permission.until_millis is None


def test_an_operation_that_no_window_names_is_always_allowed() -> None:
    """A window for rewriting says nothing of deleting."""
    subject = calendar(window("0 1 * * *", 60, operations=(REWRITE,)))

    assert not subject.status(REWRITE, at("2026-05-05T12:00")).is_allowed
    assert subject.status(DELETE, at("2026-05-05T12:00")).is_allowed


def test_a_change_of_half_an_hour_moves_a_fixed_time_by_that() -> None:
    """Lord Howe Island skips from 02:00 to 02:30: a window of 02:15 opens at 02:30, and the night after at 02:15."""
    zone = "Australia/Lord_Howe"
    subject = calendar(window("15 2 * * *", 60), zone=zone)

    before = subject.status(REWRITE, at("2026-10-04T01:00", zone))
    after = subject.status(REWRITE, at("2026-10-04T12:00", zone))

    assert before.opens_millis == at("2026-10-04T02:30", zone)
    assert after.opens_millis == at("2026-10-05T02:15", zone)


def test_a_leap_day_is_waited_for() -> None:
    """A schedule of 29 February opens in the next leap year, over the skipped one of 2100 as well."""
    subject = calendar(window("0 0 29 2 *", 60))

    assert subject.status(REWRITE, at("2026-03-01T00:00")).opens_millis == at("2028-02-29T00:00")
    assert subject.status(REWRITE, at("2097-01-01T00:00")).opens_millis == at("2104-02-29T00:00")


def test_openings_longer_than_their_period_merge() -> None:
    """Two hours each hour is always, and permission then reaches as far as anybody looks."""
    subject = calendar(window("0 * * * *", 120))
    now = at("2026-05-05T12:34")

    verdict = subject.status(REWRITE, now)

    assert verdict.is_allowed
    assert verdict.closes_millis is None
    assert subject.permission(REWRITE, now).until_millis == now + HORIZON_MILLIS


def test_a_clock_that_jumps_gets_the_answer_of_where_it_lands() -> None:
    """Answers depend on the moment alone: asked in any order they are the same."""
    subject = calendar(window("0 1 * * *", 180), window("30 2 * * 0", 60, name="d", kind=WindowKind.DENY))
    moments = [at("2026-05-10T00:00") + n * 13 * MINUTE for n in range(200)]

    forward = [subject.status(REWRITE, moment) for moment in moments]
    backward = [subject.status(REWRITE, moment) for moment in reversed(moments)]

    assert forward == backward[::-1]


def test_deny_wins_and_the_next_opening_is_after_it() -> None:
    """In both windows at once nothing runs; the reason names the one that denies and the opening."""
    subject = calendar(window("0 1 * * *", 180), window("0 2 * * *", 30, name="backup", kind=WindowKind.DENY))

    verdict = subject.status(REWRITE, at("2026-05-05T02:10"))

    assert not verdict.is_allowed
    assert verdict.reason == "denied by window backup; opens at 2026-05-05T02:30:00+00:00"
    assert subject.status(REWRITE, at("2026-05-05T01:30")).closes_millis == at("2026-05-05T02:00")


def test_nothing_starts_in_the_cut_off() -> None:
    """Half an hour before the end a run may go on and none may start."""
    subject = calendar(window("0 1 * * *", 180, start_cutoff=Duration(30 * MINUTE)))

    assert subject.status(REWRITE, at("2026-05-05T03:29")).may_start
    late = subject.status(REWRITE, at("2026-05-05T03:30"))
    assert late.is_allowed
    assert not late.may_start
    assert late.reason == "nothing starts in the last 30m of window w"
    assert not subject.permission(REWRITE, at("2026-05-05T03:30")).is_granted


@pytest.mark.parametrize(
    ("allow", "deny", "end"),
    [
        (Overrun.FINISH, None, None),
        (Overrun.STOP, None, "2026-05-05T04:00"),
        (Overrun.FINISH, Overrun.STOP, "2026-05-05T02:00"),
        (Overrun.STOP, Overrun.FINISH, None),
    ],
)
def test_the_windows_that_end_a_run_say_whether_it_finishes(
    allow: Overrun, deny: Overrun | None, end: str | None
) -> None:
    """A run ends where Stop is said by the window that closes, or by the Deny window that begins first."""
    windows = [window("0 1 * * *", 180, overrun=allow)]
    if deny is not None:
        windows.append(window("0 2 * * *", 30, name="d", kind=WindowKind.DENY, overrun=deny))

    permission = calendar(*windows).permission(REWRITE, at("2026-05-05T01:30"))

    assert permission.until_millis == (None if end is None else at(end))


def test_where_two_windows_end_at_once_one_stop_is_enough() -> None:
    """An end of Allow and a beginning of Deny in the same minute: both must let the run finish."""
    windows = [
        window("0 1 * * *", 60, overrun=Overrun.STOP),
        window("0 2 * * *", 30, name="d", kind=WindowKind.DENY),
    ]

    assert calendar(*windows).permission(REWRITE, at("2026-05-05T01:30")).until_millis == at("2026-05-05T02:00")


@pytest.mark.parametrize("kind", WindowKind)
@pytest.mark.parametrize(
    ("schedule", "zone", "field"),
    [
        ("every night", "UTC", "spec.maintenance.windows[0].schedule: 'every night'"),
        ("0 25 * * *", "UTC", "spec.maintenance.windows[0].schedule: '0 25 * * *' is not cron: bad hour"),
        ("0 0 0 1 * *", "UTC", "spec.maintenance.windows[0].schedule"),
        ("0 0 30 2 *", "UTC", "spec.maintenance.windows[0].schedule"),
        ("@daily", "UTC", "spec.maintenance.windows[0].schedule"),
        ("0 1 * * *", "Europe/Atlantis", "spec.maintenance.timeZone: 'Europe/Atlantis'"),
        ("0 1 * * *", "../etc", "spec.maintenance.timeZone"),
        ("0 1 * * *", "Europe", "spec.maintenance.timeZone"),
    ],
)
def test_what_cannot_be_read_stays_closed(kind: WindowKind, schedule: str, zone: str, field: str) -> None:
    """A mistake never opens anything, beside another window either when it denies, and is named."""
    broken = window(schedule, 60, kind=kind)
    subject = calendar(broken, zone=zone)

    verdict = subject.status(REWRITE, at("2026-05-05T01:30"))

    assert not verdict.is_allowed
    assert verdict.opens_millis is None
    assert verdict.reason.startswith(field)
    assert len(subject.problems) == 1
    assert subject.status(DELETE, at("2026-05-05T01:30")).is_allowed


def test_a_schedule_that_never_comes_never_opens() -> None:
    """A date that no year has, spread over fields that are each right, is a window that does not open."""
    subject = calendar(window("0 0 31 4,6 *", 60))

    assert subject.status(REWRITE, at("2026-05-05T01:30")).opens_millis is None


def test_paused_is_closed_in_an_emergency_too() -> None:
    """Somebody who paused wants nothing to change."""
    subject = Calendar(MaintenanceSettings(paused=True))

    for operation in MaintenanceOperation:
        permission = subject.permission(operation, at("2026-05-05T01:30"))
        assert not permission.is_granted
        assert permission.emergency_free_percentage == 0
        assert permission.reason == "spec.maintenance.paused is true"


def test_an_emergency_ignores_windows_for_what_moves_no_bytes() -> None:
    """Delete and Truncate have a floor below which they run at any hour; Punch and Rewrite have none."""
    maintenance = MaintenanceSettings(
        windows=(window("0 1 * * *", 60, operations=tuple(MaintenanceOperation)),),
        emergency=EmergencySettings(min_free_percentage=7),
    )
    subject = Calendar(maintenance)

    answers = {operation: subject.permission(operation, at("2026-05-05T12:00")) for operation in MaintenanceOperation}

    assert not any(answer.is_granted for answer in answers.values())
    assert {operation for operation, answer in answers.items() if answer.emergency_free_percentage == 7} == {
        DELETE,
        MaintenanceOperation.TRUNCATE,
    }


def test_a_window_says_when_it_was_last_open_and_when_it_opens_next() -> None:
    """Before its end the last opening has none; both come from the schedule, whatever Deny windows say."""
    night = calendar(window("0 1 * * *", 120), window("0 0 * * *", 600, name="deny", kind=WindowKind.DENY))

    during = night.openings(at("2026-11-21T02:00"))[0]
    after = night.openings(at("2026-11-21T10:00"))[0]

    assert (during.is_open, during.last_opened_millis, during.last_closed_millis) == (
        True,
        at("2026-11-21T01:00"),
        None,
    )
    assert (after.is_open, after.last_opened_millis) == (False, at("2026-11-21T01:00"))
    assert (after.last_closed_millis, after.next_opens_millis) == (at("2026-11-21T03:00"), at("2026-11-22T01:00"))


def test_a_window_that_cannot_be_read_has_no_last_opening() -> None:
    """What is wrong is said instead."""
    broken = calendar(window("every night", 60)).openings(at("2026-11-21T02:00"))[0]

    assert (broken.is_open, broken.last_opened_millis, broken.next_opens_millis) == (False, None, None)
    assert "every night" in str(broken.problem)


def test_a_search_in_vain_is_bounded_and_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every opening is denied, some are looked at; the next question, of whatever calendar, finds the answers."""
    looked_at = 0

    class Counting(CronSim):
        def __next__(self) -> datetime:
            nonlocal looked_at
            looked_at += 1
            return super().__next__()

    monkeypatch.setattr(windows, "CronSim", Counting)
    denied = [window("7 0 * * *", 5), window("* 0-21 * * *", 60, kind=WindowKind.DENY)]

    def ask(operation: MaintenanceOperation, millis: int) -> int:
        nonlocal looked_at
        looked_at = 0
        assert calendar(*denied).status(operation, millis).opens_millis is None
        return looked_at

    now = at("2026-11-21T12:00")
    first = ask(REWRITE, now)
    assert 1_000 < first < windows.OPENINGS_MAX * 24 * 60 * 3
    assert ask(MaintenanceOperation.PUNCH, now) + ask(REWRITE, now + MINUTE) < first / 10


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "America/Sao_Paulo", "UTC"])
@pytest.mark.parametrize("schedule", ["30 2 * * *", "30 1 * * *", "0 3 * * 0", "*/20 * * * *"])
def test_the_last_opening_is_the_next_one_of_the_moment_before_it(zone: str, schedule: str) -> None:
    """Looking back agrees with looking ahead, over the changes of the clocks in both directions."""
    found = calendar(window(schedule, 19), zone=zone)
    for start in (at("2026-03-28T20:00"), at("2026-10-24T20:00"), at("2026-03-07T20:00"), at("2026-10-31T20:00")):
        for millis in range(start, start + 30 * HOUR, 17 * MINUTE):
            last = found.openings(millis)[0].last_opened_millis
            assert last is not None
            assert last <= millis
            assert found.openings(last - 1)[0].next_opens_millis == last
            following = found.openings(last)[0].next_opens_millis
            assert following is not None
            assert following > millis

"""How long ago something was, as statuses say it, for people. Pure."""

import contextlib

from ullage.contract import millis_of


def seconds_since(time: str | None, now_millis: int) -> int | None:
    """None if that is not known: a status may say a time that no calendar has."""
    with contextlib.suppress(ValueError):  # then it is not known
        return None if time is None else max(0, now_millis - millis_of(time)) // 1000
    return None


def seconds_until(time: str | None, now_millis: int) -> int | None:
    """The same of a time that is to come."""
    with contextlib.suppress(ValueError):  # then it is not known
        return None if time is None else max(0, millis_of(time) - now_millis) // 1000
    return None


def span(seconds: int) -> str:
    """A time for people, as kubectl shows ages: `45s`, `12m`, `3h`, `8d`."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"

"""Times that are options: a moment, or an age."""

import time
from datetime import UTC, datetime

import click

from ullage.contract import Duration

FORMS = "in ISO 8601 and UTC, or as an age such as 90m"


def time_option(_ctx: click.Context, _parameter: click.Parameter, text: str) -> int | None:
    """A moment, or an age counted back from now."""
    if not text:
        return None
    try:
        return round(time.time() * 1000) - int(Duration.parse(text))
    except ValueError:
        pass  # not an age, so a moment, or neither
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.UsageError(f"{text!r} is neither a time like 2026-01-31T12:00 nor an age like 90m") from error
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)

"""docs/valid.md tells what the code holds."""

import re
from pathlib import Path

import pytest

from ullage.engine.wal.format import OPERATIONS_MAX
from ullage.interface.checks import KEY_CHARACTERS_MAX, WAIT_SECONDS_MAX
from ullage.interface.handles import PAGE_MAX
from ullage.wire.documents import (
    ATTRIBUTES_BYTES_MAX,
    ATTRIBUTES_MAX,
    CONDITIONS_MAX,
    COUNT_MAX,
    COUNTERS_MAX,
    EVENTS_MAX,
    GENERATIONS_MAX,
    NAME_CHARACTERS_MAX,
    TEXT_BYTES_MAX,
)

TABLE = {
    "a number": COUNT_MAX,
    "a time to live": COUNT_MAX,
    "the duration of a lease": COUNT_MAX,
    "the name of a queue": NAME_CHARACTERS_MAX,
    "component": NAME_CHARACTERS_MAX,
    "a relationship": TEXT_BYTES_MAX,
    "an idempotency key": KEY_CHARACTERS_MAX,
    "attributes": ATTRIBUTES_BYTES_MAX,
    "attributes | texts": ATTRIBUTES_MAX,
    "FlowFiles of one transaction": OPERATIONS_MAX,
    "attributes to remove": ATTRIBUTES_MAX,
    "attributes that a poll": CONDITIONS_MAX,
    "counters that a session": COUNTERS_MAX,
    "a page": PAGE_MAX,
    "a lineage": GENERATIONS_MAX,
    "time to wait": WAIT_SECONDS_MAX,
}


@pytest.mark.parametrize("what", TABLE)
def test_the_table_says_the_bounds_that_the_code_has(what: str) -> None:
    """The largest value of each row, and the events of a page."""
    text = Path("docs/valid.md").read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith(f"| {what}"))

    assert re.search(rf"\b{TABLE[what]}\b", row)
    assert f"1 to {EVENTS_MAX} events" in text

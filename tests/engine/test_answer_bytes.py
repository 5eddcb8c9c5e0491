"""What rows take as an answer is reckoned before they are made: never too little, and not much too much."""

import random

import msgspec
import pytest

from tests.support import Workshop, put_all
from ullage.embedded.rows import event_rows, flow_file_rows
from ullage.wire.provenance import EventQuery

ALPHABETS = ["abc", "\x00\x1f\n", '"\\', "\u00e9\u4e2d", "a\x01\U0001f600"]


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_rows_take_no_more_than_was_reckoned(workshop: Workshop, alphabet: str, seed: int) -> None:
    """Each way of writing a text as JSON; none takes half again as much as it does, and what a row has beside."""
    chosen = random.Random(seed)
    repository = workshop.make()
    for _ in range(20):
        texts = ["".join(chosen.choices(alphabet, k=chosen.randrange(300))) for _ in range(40)]
        put_all(repository, "q", [b""], **dict(zip(texts[::2], texts[1::2], strict=True)))
    repository.provenance.drain()

    for rows in (
        flow_file_rows(repository.queue("q").records()),
        event_rows(repository.history.query(EventQuery()).events),
    ):
        found = [len(msgspec.json.encode(row)) for row in rows]
        assert len(found) == 20
        assert sum(found) <= rows.answer_bytes <= 1.5 * sum(found) + 20 * 1_000

"""Remembered answers that name a subject's FlowFiles or handles, in memory and in runs."""

import re
from collections.abc import Collection, Iterator

from ullage.engine.erasure.tally import ErasureTally
from ullage.engine.ledger.answerruns import AnswerRuns
from ullage.engine.model import UUID_BYTES, parse_uuid, split_uuids
from ullage.uuids import NOTATION
from ullage.wire.erasure import ErasurePlace

_UUID = re.compile(NOTATION.encode())


def find_answers(answers: AnswerRuns, tally: ErasureTally) -> None:
    """Count those with one of `tally.uuids`, which are all known by then: an answer has nothing else of a subject."""
    for each in answers.all(tally.miss):
        if names_any(each.answer, tally.uuids):
            tally.add(ErasurePlace.ANSWERS, len(each.answer))


def names_any(answer: bytes, uuids: Collection[bytes]) -> bool:
    """Whether an answer names one of these."""
    return any(uuid in uuids for uuid in _uuids_in(answer))


def _uuids_in(answer: bytes) -> Iterator[bytes]:
    """Answers are documents with uuids in their usual notation, or nothing but uuids."""
    for text in _UUID.findall(answer):
        yield parse_uuid(text.decode())
    if len(answer) % UUID_BYTES == 0:
        yield from split_uuids(answer)

"""Finds everything that a repository has of one subject, and changes nothing.

    records of the subject | its events, with what they tell of content | records of others on the same claims | answers

The order matters: who else needs a byte is known once all bytes of the subject are, and which answers name it once all
its uuids are. It holds what is the subject's in memory, and nothing of anybody else's but slices of the same claims.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from ullage.engine.engine import Engine
from ullage.engine.erasure.answers import find_answers
from ullage.engine.erasure.contents import SubjectContents
from ullage.engine.erasure.events import find_events
from ullage.engine.erasure.records import PlacedRecord, RecordScan
from ullage.engine.erasure.subject import Subject
from ullage.engine.erasure.tally import ErasureTally
from ullage.engine.erasure.unpromised import not_promised
from ullage.engine.ledger.aside import HANDLES_SPACE
from ullage.engine.ledger.remembered import ANSWERS_SPACE
from ullage.engine.model import ContentClaim
from ullage.engine.provenance.store import ProvenanceStore
from ullage.wire.erasure import ErasureCost, ErasurePlace, ErasureSurvey

Step = Callable[[int], None]
"""Told now and then how many records were looked at since the last time."""

STEP = 1_000


def cost_of(engine: Engine) -> ErasureCost:
    """What a look for a subject is going to read; nothing is read for it."""
    ledger = engine.ledger
    with ledger.lock:
        resident, swaps = len(ledger.kept()), list(ledger.swaps.values())
    runs = [run for space in (HANDLES_SPACE, ANSWERS_SPACE) for run in ledger.runs_of(space)]
    files = engine.provenance.manifest.files if isinstance(engine.provenance, ProvenanceStore) else ()
    return ErasureCost(
        records=resident + sum(swap.count for swap in swaps),
        swap_files=len(swaps),
        run_bytes=sum(run.length for run in runs),
        events=sum(file.events for file in files),
        event_bytes=sum(file.bytes for file in files),
    )


class FoundSubject(NamedTuple):
    """What was found, and by what it is found again once its records are gone: uuids of FlowFiles and handles that are
    or were the subject's, and the base claims that they have, or that events tell of.
    """

    survey: ErasureSurvey
    uuids: frozenset[bytes]
    claims: tuple[ContentClaim, ...]


def find_subject(engine: Engine, where: Mapping[str, str], cost: ErasureCost, on_step: Step) -> ErasureSurvey:
    """Everything of the subject. Nothing may be committed meanwhile, or it may be missed or told twice."""
    return look_for(engine, where, cost, on_step).survey


def look_for(
    engine: Engine, where: Mapping[str, str], cost: ErasureCost, on_step: Step, subject: Subject | None = None
) -> FoundSubject:
    """The same, with what an erasure has to know; of a `subject` that is known otherwise than by what `where` says."""
    subject, tally, contents = subject or Subject(where), ErasureTally(), SubjectContents()
    scan = RecordScan(engine.ledger, engine.swap_files, tally)
    for place, record in _stepwise(scan, on_step):
        if subject.has(record):
            tally.uuids.add(record.uuid)
            contents.need(record)
            if place != ErasurePlace.SET_ASIDE:  # the record that it went with is told below
                tally.add(place, record.size)
    for aside in scan.set_aside:
        if subject.has_aside(aside):
            tally.add(ErasurePlace.SET_ASIDE, len(aside.data))
    find_events(engine.provenance, subject, tally, contents)
    for _, record in _stepwise(scan, on_step):
        if not subject.has(record):
            contents.also_need(record)
    contents.count(engine.ledger, tally)
    find_answers(engine.spaces.answers, tally)
    for name in sorted(engine.content.away):
        tally.miss(f"container {name} is away: what content it has was not compared with its files")
    survey = ErasureSurvey(
        where=dict(where),
        cost=cost,
        findings=tally.findings(),
        unread=tuple(tally.unread),
        not_promised=not_promised(engine),
    )
    return FoundSubject(survey, frozenset(tally.uuids), contents.claims())


def _stepwise(scan: RecordScan, on_step: Step) -> Iterator[PlacedRecord]:
    for number, each in enumerate(scan, 1):
        yield each
        if number % STEP == 0:
            on_step(STEP)

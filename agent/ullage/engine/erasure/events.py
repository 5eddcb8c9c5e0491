"""The provenance events of a subject: in event files, and those that only the log holds."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ullage.engine.arrow import pa
from ullage.engine.erasure.contents import SubjectContents
from ullage.engine.erasure.subject import Subject
from ullage.engine.erasure.tally import ErasureTally
from ullage.engine.model import Content, ContentClaim, parse_uuid
from ullage.engine.provenance.scan import EventColumns
from ullage.engine.provenance.store import ProvenanceStore
from ullage.engine.repositories import ProvenanceRepository
from ullage.errors import ProvenanceDamaged
from ullage.wire.erasure import ErasurePlace
from ullage.wire.provenance import EventQuery

REDACTED: Final = "what was told of this FlowFile was erased"
"""The details of an event that was redacted: else nobody could tell it from one that never had attributes."""

_COLUMNS = ("flow_file", "details", "attributes_before", "attributes_updated", "content_before", "content")


def find_events(
    provenance: ProvenanceRepository, subject: Subject, tally: ErasureTally, contents: SubjectContents
) -> None:
    """Count the subject's events, and note which FlowFiles and which content they tell of.

    An event counts by what its FlowFile was called before it, after it, or both: an attribute that was taken away
    still stands in the event that tells so.
    """
    for row in _rows(provenance, subject, tally):
        before = dict(row["attributes_before"] or ())
        after = _updated(before, row["attributes_updated"])
        flow_file = row["flow_file"]
        if row["details"] == REDACTED and not before and not after:
            continue  # it has nothing of anybody any more, but a uuid by which it may be asked for
        sides = [(ErasurePlace.EVENTS_AFTER, after, row["content"])]
        if row["content_before"] is not None:  # else there was no such FlowFile before
            sides.append((ErasurePlace.EVENTS_BEFORE, before, row["content_before"]))
        for place, attributes, content in sides:
            if subject.has_event(flow_file, attributes):
                tally.add(place, _text_bytes(attributes))
                tally.uuids.add(parse_uuid(flow_file))
                if content is not None and content["resource"] is not None:
                    contents.needed(_content(content))


def _rows(provenance: ProvenanceRepository, subject: Subject, tally: ErasureTally) -> Iterator[dict[str, Any]]:
    """Those of all events that can be read; what cannot is told, and what lies behind it is read all the same."""
    seen: int | None = 0
    while seen is not None:
        try:
            for run in provenance.columns(EventQuery(after=seen)):
                yield from _rows_of(run, subject, tally)
                seen = run.first_sequence + run.events - 1
            return
        except ProvenanceDamaged as error:  # a file that does not even tell its parts
            seen = _end_of_next(provenance, seen)
            tally.miss(error if seen is not None else f"{error}; no later event was looked at")


def _rows_of(run: EventColumns, subject: Subject, tally: ErasureTally) -> Iterator[dict[str, Any]]:
    try:
        table = run.read(_COLUMNS)
    except ProvenanceDamaged as error:
        tally.miss(error)
        return
    if table is not None:
        # Of a few million events as many attributes would be made objects of: most are of somebody else.
        yield from table.take(pa.array(subject.rows(table), pa.int64())).to_pylist()


def _end_of_next(provenance: ProvenanceRepository, seen: int) -> int | None:
    """The last event of the file that follows on this one; None where only the repository itself knows its files."""
    files = provenance.manifest.files if isinstance(provenance, ProvenanceStore) else ()
    return next((file.last_sequence for file in files if file.last_sequence > seen), None)


def _updated(before: Mapping[str, str], changes: list[tuple[str, str | None]] | None) -> dict[str, str]:
    changed = dict(changes or ())
    return {name: value for name, value in {**before, **changed}.items() if value is not None}


def _content(fields: Mapping[str, int]) -> Content:
    claim = ContentClaim(fields["resource"], fields["offset"], fields["length"], fields["crc"])
    return Content(claim, fields["start"], fields["size"])


def _text_bytes(attributes: Mapping[str, str]) -> int:
    return sum(len(name.encode()) + len(value.encode()) for name, value in attributes.items())

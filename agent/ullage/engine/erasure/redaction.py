"""Event files written anew, without what they tell of a subject: the skeleton of the lineage stays.

An event that is redacted keeps who did what to which FlowFile, and when, and which bytes were its content: numbers that
lead nowhere once the bytes are gone. All that is text about the FlowFile goes: every attribute before and after it, the
details, the transit URI and the alternate identifier.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from ullage.engine.arrow import pa
from ullage.engine.erasure.events import REDACTED
from ullage.engine.erasure.subject import Subject
from ullage.engine.model import parse_uuid
from ullage.engine.provenance.columns import schema
from ullage.engine.provenance.eventfiles import EventFiles, encode_tables
from ullage.engine.provenance.manifest import EventFile
from ullage.errors import ProvenanceDamaged

_INSTEAD: Final[Mapping[str, Any]] = {
    "attributes_before": [],
    "attributes_updated": [],
    "details": REDACTED,
    "transit_uri": "",
    "alternate_identifier": "",
}

_LOOKED_AT: Final = ("flow_file", "details", "attributes_before", "attributes_updated")


class Redaction:
    """What is to be put in the place of event files. It may be asked again after a crash: what is redacted already has
    nothing of the subject any more.
    """

    def __init__(self, subject: Subject, uuids: Collection[bytes], event_files: EventFiles, *, compress: bool) -> None:
        """`uuids` are those of the subject's FlowFiles."""
        self._subject = subject
        self._uuids = uuids
        self._event_files = event_files
        self._compress = compress

    def anew(self, file: EventFile) -> memoryview | None:
        """The bytes of a file without what it tells of the subject; None: it tells nothing, or can't be read, which
        must keep no other file from it: whoever looks again is told.
        """
        try:
            groups = range(len(self._event_files.starts(file)) - 1)
            found = {group: rows for group in groups if (rows := self._rows(file, group))}
            if not found:
                return None
            names = schema().names
            tables = (
                _redacted(table, found[group]) if group in found else table
                for group, table in ((group, self._event_files.columns(file, group, names)) for group in groups)
            )
            return encode_tables(tables, compress=self._compress)
        except ProvenanceDamaged:
            return None
        finally:
            # Of those that stay, too: else a repository's every file would be held open, with its footer in memory.
            self._event_files.forget(file)

    def _rows(self, file: EventFile, group: int) -> set[int]:
        """Which events of a row group are the subject's."""
        table = self._event_files.columns(file, group, _LOOKED_AT)
        rows = self._subject.rows(table)
        few = table.take(pa.array(rows, pa.int64()))
        values = zip(*(few[name].to_pylist() for name in _LOOKED_AT), strict=True)
        return {row for row, each in zip(rows, values, strict=True) if self._is_meant(*each)}

    def _is_meant(
        self,
        flow_file: str,
        details: str,
        before: Sequence[tuple[str, str]] | None,
        updated: Sequence[tuple[str, str | None]] | None,
    ) -> bool:
        old = dict(before or ())
        changes = dict(updated or ())
        after = {name: value for name, value in {**old, **changes}.items() if value is not None}
        if self._subject.has_event(flow_file, old) or self._subject.has_event(flow_file, after):
            # One that is asked for by its uuid is the subject's before it is redacted, and after.
            return bool(old or changes) or details != REDACTED
        # A FlowFile that was not yet, or no more, the subject's by all values that were said may have some of them.
        has_some = self._subject.shares(old) or self._subject.shares(after)
        return has_some and parse_uuid(flow_file) in self._uuids


def _redacted(table: pa.Table, rows: Collection[int]) -> pa.Table:
    """The table with these rows redacted: what is to stand there is put behind each column, and taken from there."""
    count = table.num_rows
    places = pa.array([count if row in rows else row for row in range(count)])
    for name, instead in _INSTEAD.items():
        type = schema().field(name).type
        column = pa.chunked_array([*table[name].chunks, pa.array([instead], type)]).combine_chunks()
        table = table.set_column(table.schema.get_field_index(name), name, column.take(places))
    return table

"""Packing events into an `TransactionEvents` operation: like events of consecutive FlowFiles become one run.

So a batch costs no more than its first event, but for the FlowFiles that changed: those stand in the operation once as
they were.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from ullage.engine.model import NO_ATTRIBUTES, EventRun, EventType, FlowFileRecord, Operation, TransactionEvents
from ullage.engine.wal.format import PAYLOAD_BYTES_MAX
from ullage.errors import TransactionTooLarge

BEFORE_BYTES_MAX = 4 << 20
"""Attributes of changed and removed FlowFiles that one transaction repeats for its events: half of what it may hold.

Beyond it they are left out, and the events say so. Removing a FlowFile must not fail because of its history.
"""


class EventRunBuilder:
    """Collects events; those that continue the run before them extend it. TransactionTooLarge as soon as a transaction
    has no room for them: what FlowFiles of one report repeat could be more than there is memory.
    """

    def __init__(self, created: int) -> None:
        self._created = created
        self._before: list[FlowFileRecord] = []
        self._numbers: dict[bytes, int] = {}
        self._runs: list[EventRun] = []
        self._first = self._count = self._size = 0
        self._template: EventRun | None = None

    def number(self, record: FlowFileRecord) -> int:
        """The subject number of a FlowFile that existed before."""
        number = self._numbers.get(record.uuid)
        if number is None:
            number = self._numbers[record.uuid] = self._created + len(self._before)
            self._before.append(record)
        return number

    def add_existing(self, records: Sequence[FlowFileRecord], template: EventRun) -> None:
        """Each of these FlowFiles, which existed before, has this event."""
        if self._before or not records:
            for record in records:
                self.add(self.number(record), template)
            return
        # The hot case: a batch of which nothing was told yet is one run as it stands.
        self._flush()
        self._before = list(records)
        self._numbers = {record.uuid: number for number, record in enumerate(records, start=self._created)}
        self._template, self._first, self._count = template, self._created, len(records)

    def add_many(self, count: int, template: EventRun) -> None:
        """The first `count` subjects have this event."""
        self._flush()
        self._template, self._first, self._count = template, 0, count

    def add(self, subject: int, template: EventRun) -> None:
        """One event. Templates are compared by identity: who emits many alike uses one."""
        if template is self._template and subject == self._first + self._count:
            self._count += 1
            return
        self._flush()
        self._template, self._first, self._count = template, subject, 1

    def finish(self, component: str, component_type: str) -> list[Operation]:
        """The operation, or none if nothing happened."""
        self._flush()
        if not self._runs:
            return []
        is_abridged = sum(len(record.attributes) for record in self._before) > BEFORE_BYTES_MAX
        if is_abridged:
            self._before = [msgspec.structs.replace(record, attributes=NO_ATTRIBUTES) for record in self._before]
        return [TransactionEvents(component, component_type, tuple(self._runs), tuple(self._before), is_abridged)]

    def _flush(self) -> None:
        found = self._template
        if found is not None:
            self._runs.append(_at(found, self._first, self._count))
            self._template = None
            texts = len(found.details) + len(found.transit_uri) + len(found.alternate_identifier)
            self._size += texts + len(found.attributes or b"") + len(found.parents) + len(found.children)
            if self._size > PAYLOAD_BYTES_MAX:
                raise TransactionTooLarge(
                    f"provenance events of more than {PAYLOAD_BYTES_MAX} bytes in one transaction: commit in parts"
                )


def template(type: EventType, **fields: object) -> EventRun:
    """What events of one kind have in common, whoever they are about."""
    return EventRun(type, 0, 1, **fields)  # type: ignore[arg-type]


PLAIN: Final = {type: template(type) for type in EventType}
"""Of events of which there is nothing more to say: made once, since each session would make three."""


def _at(run: EventRun, first: int, count: int) -> EventRun:
    # Field by field: `msgspec.structs.replace` takes six times as long, and every commit comes here.
    return EventRun(
        run.type,
        first,
        count,
        run.relationship,
        run.details,
        run.transit_uri,
        run.alternate_identifier,
        run.duration_millis,
        run.parents,
        run.children,
        run.attributes,
        run.content,
    )


def of_new(type: EventType, count: int, component: str = "", by: str = "") -> list[Operation]:
    """`count` FlowFiles that this transaction creates, first among its FlowFile operations; `by` whom, if that is
    known, stands in place of a component's type.
    """
    return [TransactionEvents(component, by, (EventRun(type, 0, count),))] if count else []


def of_existing(
    type: EventType, records: Sequence[FlowFileRecord], details: str, component: str = "", by: str = ""
) -> list[Operation]:
    """FlowFiles that this transaction removes, or changes, without a session; `by` whom as in `of_new`."""
    runs = EventRunBuilder(0)
    runs.add_existing(records, template(type, details=details))
    return runs.finish(component, by)

"""What a session, a queue or a handle did, as the `Events` operation that rides in the same transaction.

Automatic events, as NiFi's `StandardProcessSession` emits them: CREATE, FORK, JOIN or CLONE for what came to be
(unless the component said RECEIVE), CONTENT_MODIFIED, ATTRIBUTES_MODIFIED where nothing else tells of the change,
ADDINFO for an `alternate.identifier`, ROUTE for a transfer along a named relationship, DROP for what was removed.
A transfer that names no relationship is silent: that is how a funnel with one output stays invisible.
"""

from collections.abc import Mapping, Sequence

import msgspec

from ullage.engine.model import (
    Content,
    EventRun,
    EventType,
    FlowFileRecord,
    Operation,
    unpack_attributes,
)
from ullage.engine.provenance.eventruns import PLAIN, EventRunBuilder, template
from ullage.engine.provenance.reporter import AS_EMITTED, Reported
from ullage.engine.working import Settled, Working

ALTERNATE_IDENTIFIER = "alternate.identifier"
_ALTERNATE_IDENTIFIER = ALTERNATE_IDENTIFIER.encode()

SPAWNING = frozenset(
    {EventType.CREATE, EventType.RECEIVE, EventType.FORK, EventType.JOIN, EventType.CLONE, EventType.REPLAY}
)
"""Types that say how a FlowFile came to be: one of them is enough."""


class Registration:
    """Works out the events of one session's commit."""

    def __init__(
        self,
        ingested: Sequence[FlowFileRecord],
        workings: Mapping[bytes, Working],
        settled: Settled,
        reported: Sequence[Reported],
    ) -> None:
        self._ingested = ingested
        self._workings = workings
        self._settled = settled
        self._reported = reported
        self._created = {uuid: number for number, uuid in enumerate(settled.created, start=len(ingested))}
        self._runs = EventRunBuilder(len(ingested) + len(settled.created))
        self._numbers_of_ingested: dict[bytes, int] = {}
        self._told: dict[bytes, set[EventType]] = {}
        for event in reported:
            for record in event.records:
                self._told.setdefault(record.uuid, set()).add(event.run.type)
        self._common: dict[tuple[EventType, str], EventRun] = {}

    def operations(self, component: str, component_type: str) -> list[Operation]:
        """The events in the order: what came to be, what was reported, what was changed, where it went."""
        self._tell_ingested()
        self._tell_created()
        for event in self._reported:
            self._tell_reported(event)
        self._tell_changes()
        self._tell_ways()
        return self._runs.finish(component, component_type)

    def _tell_ingested(self) -> None:
        if not self._ingested:
            return
        created = self._like(EventType.CREATE)
        if not self._told:
            self._runs.add_many(len(self._ingested), created)
        for number, record in enumerate(self._ingested):
            if self._told and SPAWNING.isdisjoint(self._told.get(record.uuid, ())):
                self._runs.add(number, created)
            if _ALTERNATE_IDENTIFIER in record.attributes:
                identifier = unpack_attributes(record.attributes).get(ALTERNATE_IDENTIFIER)
                if identifier is not None:
                    self._associate(number, identifier)

    def _tell_created(self) -> None:
        """FORK once a parent with all its children, CLONE once a child, JOIN and CREATE of the child itself."""
        forks: dict[bytes, list[bytes]] = {}
        for uuid, number in self._created.items():
            working = self._workings[uuid]
            spawned = working.spawned
            if not SPAWNING.isdisjoint(self._told.get(uuid, ())):
                continue
            if spawned == EventType.CREATE:
                self._runs.add(number, self._like(EventType.CREATE))
            elif spawned == EventType.JOIN:
                self._runs.add(number, template(EventType.JOIN, parents=working.parents, children=uuid))
            elif spawned == EventType.FORK and self._subject(working.parents) is not None:
                forks.setdefault(working.parents, []).append(uuid)
            else:
                # What the parent is, this transaction does not say where it vanished in the same session.
                subject = self._subject(working.parents)
                run = template(spawned, parents=working.parents, children=uuid, details=working.spawned_details)
                self._runs.add(number if subject is None else subject, run)
        for parent, children in forks.items():
            subject = self._subject(parent)
            assert subject is not None
            self._runs.add(subject, template(EventType.FORK, parents=parent, children=b"".join(children)))

    def _tell_reported(self, event: Reported) -> None:
        for record in event.records:
            subject = self._subject(record.uuid)
            if subject is None:  # created and removed in this session: the event is all that is left of it
                subject = self._runs.number(self._workings[record.uuid].current)
            run = event.run
            if event.as_emitted:
                run = self._as_emitted(event, record)
            self._runs.add(subject, run)

    def _as_emitted(self, event: Reported, record: FlowFileRecord) -> EventRun:
        """What left is what the event shows, also where the session changed the FlowFile afterwards."""
        working = self._workings.get(record.uuid)
        if working is None:
            return event.run
        last = working.current if not working.is_removed or working.original is None else working.original
        attributes = None if record.attributes == last.attributes else record.attributes
        is_same = (record.claim, record.start, record.size) == (last.claim, last.start, last.size)
        content = None if is_same else Content(record.claim, record.start, record.size)
        if attributes is None and content is None:
            return event.run
        return msgspec.structs.replace(event.run, attributes=attributes, content=content)

    def _tell_changes(self) -> None:
        content_modified = self._like(EventType.CONTENT_MODIFIED)
        attributes_modified = self._like(EventType.ATTRIBUTES_MODIFIED)
        for update in self._settled.updates:
            is_attributes = update.set_attributes is not None or bool(update.remove_attributes)
            if not is_attributes and update.content is None:
                continue
            working = self._workings[update.uuid]
            assert working.original is not None
            told = self._told.get(update.uuid, set())
            if update.content is not None:
                if EventType.CONTENT_MODIFIED not in told and EventType.FETCH not in told:
                    self._runs.add(self._runs.number(working.original), content_modified)
            elif not (told - AS_EMITTED) and not working.relationship:
                self._runs.add(self._runs.number(working.original), attributes_modified)
        for uuid, working in self._workings.items():
            identifier = working.changed.get(ALTERNATE_IDENTIFIER)
            if identifier is not None and EventType.ADDINFO not in self._told.get(uuid, ()):
                subject = self._subject(uuid)
                if subject is not None and not working.is_removed:
                    self._associate(subject, identifier)

    def _tell_ways(self) -> None:
        """ROUTE and DROP. What was created and removed in the session left no trace, so it is not dropped either."""
        dropped: list[FlowFileRecord] = []
        routed: dict[str, list[FlowFileRecord]] = {}
        told = self._told
        for uuid, working in self._workings.items():
            original = working.original
            if working.is_removed:
                if original is None or (told and EventType.DROP in told.get(uuid, ())):
                    continue
                if working.current is original:
                    dropped.append(original)
                else:
                    self._runs.add(self._runs.number(original), self._changed_drop(working))
            elif working.relationship and not (told and EventType.ROUTE in told.get(uuid, ())):
                if original is None:
                    self._runs.add(self._created[uuid], self._like(EventType.ROUTE, working.relationship))
                else:
                    routed.setdefault(working.relationship, []).append(original)
        for relationship, records in routed.items():
            self._runs.add_existing(records, self._like(EventType.ROUTE, relationship))
        self._runs.add_existing(dropped, self._like(EventType.DROP))

    def _changed_drop(self, working: Working) -> EventRun:
        """A removal logs no update, so what the session had changed before stands in the event."""
        current = working.current
        return template(
            EventType.DROP,
            details=working.changed.get("discard.reason", ""),
            attributes=current.attributes,
            content=None if working.content is None else Content(current.claim, current.start, current.size),
        )

    def _associate(self, subject: int, identifier: str) -> None:
        self._runs.add(subject, template(EventType.ADDINFO, alternate_identifier=identifier))

    def _subject(self, uuid: bytes) -> int | None:
        """A FlowFile's number; None for one that this transaction neither creates nor found."""
        number = self._created.get(uuid)
        if number is not None:
            return number
        working = self._workings.get(uuid)
        if working is None or working.original is None:
            return self._ingested_number(uuid)
        return self._runs.number(working.original)

    def _ingested_number(self, uuid: bytes) -> int | None:
        if not self._ingested:
            return None
        if len(self._numbers_of_ingested) != len(self._ingested):
            self._numbers_of_ingested.update((record.uuid, at) for at, record in enumerate(self._ingested))
        return self._numbers_of_ingested.get(uuid)

    def _like(self, type: EventType, relationship: str = "") -> EventRun:
        """One template for all events alike, so that they can run together."""
        if not relationship:
            return PLAIN[type]
        key = (type, relationship)
        found = self._common.get(key)
        if found is None:
            found = self._common[key] = template(type, relationship=relationship)
        return found

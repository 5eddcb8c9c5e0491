"""From the engine's records to the documents that users and other processes get. Nothing is decided here."""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

import msgspec

from ullage.clock import LATEST_MILLIS
from ullage.contract import GoalSettings
from ullage.engine.believed import ClockReading
from ullage.engine.byteranges import ByteRange, unpack_ranges
from ullage.engine.content.containers import Container
from ullage.engine.flowfile.queues import FlowFileQueue, PassedOver
from ullage.engine.holdings import Holdings
from ullage.engine.ledger.aside import HANDLES_SPACE
from ullage.engine.model import Action, Content, FlowFileRecord, LeaseRecord, SetAside, format_uuid
from ullage.engine.provenance.events import ProvenanceEvent
from ullage.engine.provenance.lineage import LineageGraph
from ullage.engine.provenance.query import Page, Unreadable
from ullage.engine.reclaim.accounting import Share
from ullage.engine.reclaim.goalkeeper import GoalFigures
from ullage.engine.reclaim.goals import GoalDecision
from ullage.engine.reclaim.pacing import OPERATIONS
from ullage.engine.reclaim.plan import ReclamationPlan, ReclamationStep
from ullage.engine.reclaim.report import ReclamationReport
from ullage.engine.reclaim.returns import ExpectedReturn
from ullage.engine.reclaim.survey import ContainerFigures, ResourceFigures
from ullage.engine.unavailable import Unavailable
from ullage.wire.content import HandleHead
from ullage.wire.leases import LeaseStatus
from ullage.wire.provenance import ContentLocation, Event, EventPage, Lineage, UnreadableEvents
from ullage.wire.queues import FlowFile, QueueStatus
from ullage.wire.service import ClockStatus
from ullage.wire.setaside import DATA_SHOWN, FLOW_FILES_SHOWN, RecordSetAside
from ullage.wire.space import (
    ContainerUsage,
    FileRange,
    GoalStatus,
    Plan,
    PlannedAction,
    ResourceClaimMap,
    ResourceClaimUsage,
    RunReport,
    SkippedSteps,
    SpaceComing,
    SpaceShare,
)
from ullage.wire.unavailable import UnavailableContent
from ullage.wire.volumes import Volume

STEPS_SHOWN = 10_000
"""Steps of a plan in one document; its totals are of all."""

LEASED_SHOWN = 1_000
PROBLEMS_SHOWN = 100

Document = TypeVar("Document", bound=msgspec.Struct)


def _document(kind: type[Document], record: object, **given: object) -> Document:
    """A document with what is given; its other fields are the record's of the same names."""
    for name in kind.__struct_fields__:
        if name not in given:
            given[name] = getattr(record, name)
    return kind(**given)


def handle_head(record: FlowFileRecord, node: str) -> HandleHead:
    """A handle as its node tells of it; a repository that nobody serves has no node's name."""
    handle = f"{record.id}@{node}" if node else record.id
    return _document(HandleHead, record, handle=handle, attributes=record.attribute_map())


def flow_file(record: FlowFileRecord) -> FlowFile:
    """A FlowFile as it is."""
    return FlowFile(  # each field by hand: a session makes one for every FlowFile that it gets
        id=record.id,
        size=record.size,
        attributes=record.attribute_map(),
        parents=record.parent_ids,
        entry_millis=record.entry_millis,
        lineage_millis=record.lineage_millis,
    )


def queue_status(queue: FlowFileQueue) -> QueueStatus:
    """A queue's settings and what is in it."""
    figures = queue.figures()._asdict()
    del figures["swap_files"]
    return _document(QueueStatus, queue.definition, is_full=queue.is_full, **figures)


def unavailable_content(found: Unavailable, queue_name: Callable[[int], str]) -> UnavailableContent:
    """A FlowFile or handle whose content can't be read."""
    record, damage = found
    return UnavailableContent(
        id=record.id,
        filename=record.attribute_map()["filename"],
        queue=queue_name(record.queue),
        size=record.size,
        path=damage.path,
        resource=damage.file,
        reason=damage.reason,
    )


def unavailable_swap_file(found: PassedOver, path: str, queue_name: Callable[[int], str]) -> UnavailableContent:
    """All FlowFiles of a swap file that can't be read."""
    summary = found.summary
    return UnavailableContent(
        id="",
        filename=summary.name,
        queue=queue_name(summary.queue),
        size=summary.size_bytes,
        path=path,
        resource=0,
        reason=f"{summary.count} FlowFiles are in a swap file that can't be read: {found.error}",
    )


def unavailable_event_file(path: str, name: str, size: int, error: Exception) -> UnavailableContent:
    """Provenance events that can't be read."""
    reason = f"provenance events are in an event file that can't be read: {error}"
    return UnavailableContent(id="", filename=name, queue="", size=size, path=path, resource=0, reason=reason)


def unavailable_run(path: str, name: str, size: int, error: Exception) -> UnavailableContent:
    """Handles, or answers to requests, that can't be read."""
    what = "handles" if os.path.basename(os.path.dirname(path)) == HANDLES_SPACE else "answers to requests with a key"
    reason = f"{what} are in a run that can't be read: {error}"
    return UnavailableContent(id="", filename=name, queue="", size=size, path=path, resource=0, reason=reason)


def record_set_aside(record: SetAside) -> RecordSetAside:
    """A record that can't be used."""
    return RecordSetAside(
        id=format_uuid(record.id),
        place=record.place,
        reason=record.reason,
        size=len(record.data),
        data=record.data[:DATA_SHOWN],
        flow_files=[flow_file.id for flow_file in record.flow_files[:FLOW_FILES_SHOWN]],
        flow_file_count=len(record.flow_files),
        holds_all=record.held_through > 0,
    )


def clock_status(reading: ClockReading) -> ClockStatus:
    """The time that the repository goes by."""
    return ClockStatus(
        machine_millis=min(max(-LATEST_MILLIS, reading.machine_millis), LATEST_MILLIS),
        believed_millis=reading.believed_millis,
        reason=reading.reason,
    )


def volume(container: Container, held: Holdings) -> Volume:
    """The volume that a container lies on."""
    usage = container.usage()
    return Volume(
        container=container.name,
        path=container.path,
        state=container.condition.state.value,
        reason=container.condition.reason,
        total_bytes=usage.total_bytes,
        used_bytes=usage.used_bytes,
        resource_claims=held.records,
        archived=held.archived,
        content_claims=held.content_claims,
        live_bytes=held.live_bytes,
        flow_files=held.flow_files,
        handles=held.handles,
        unread=list(held.unread),
    )


def lease_status(lease: LeaseRecord) -> LeaseStatus:
    """A lease that stands."""
    return _document(LeaseStatus, lease, id=format_uuid(lease.id), resources=list(lease.resources[:LEASED_SHOWN]))


def event(found: ProvenanceEvent) -> Event:
    """What happened to one FlowFile."""
    return Event(  # each field by hand: a page has thousands of them
        sequence=found.sequence,
        id=str(found.id),
        type=found.type.name,
        time_millis=found.millis,
        flow_file=found.flow_file,
        component=found.component,
        component_type=found.component_type,
        relationship=found.relationship,
        details=found.details,
        transit_uri=found.transit_uri,
        alternate_identifier=found.alternate_identifier,
        duration_millis=None if found.duration_millis < 0 else found.duration_millis,
        queue=found.queue,
        entry_millis=found.entry_millis,
        lineage_millis=found.lineage_millis,
        size=found.size,
        parents=found.parent_ids,
        children=found.child_ids,
        previous_attributes=found.previous_attributes(),
        attributes=found.attribute_map(),
        previous_content=_content_location(found.content_before),
        content=_content_location(found.content),
    )


def event_page(page: Page) -> EventPage:
    """What a search found, without the events, of which each may be large."""
    lost = [(lost.first_sequence, lost.events) for lost in page.lost]
    return _document(EventPage, page, events=[], lost=lost, unreadable=_unreadable(page.unreadable))


def _unreadable(found: Iterable[Unreadable]) -> list[UnreadableEvents]:
    return [_document(UnreadableEvents, each) for each in found]


def lineage_graph(found: LineageGraph) -> Lineage:
    """What led to what, without the events."""
    unexpanded = [uuid.hex() for uuid in found.unexpanded]
    return _document(
        Lineage,
        found,
        events=[],
        links=list(found.links),
        unexpanded=unexpanded,
        unreadable=_unreadable(found.unreadable),
    )


def container_usage(figures: ContainerFigures, leased_bytes: int) -> ContainerUsage:
    """A container; `leased_bytes` are those of files that leases keep from being rewritten."""
    return _document(
        ContainerUsage,
        figures,
        unused_bytes=figures.free_bytes,
        leased_bytes=leased_bytes,
        total_bytes=figures.usage.total_bytes,
        used_bytes=figures.usage.used_bytes,
        used_percentage=round(figures.usage.percentage, 2),
        volume=figures.condition.state.value,
        volume_reason=figures.condition.reason,
    )


def resource_claim_usage(figures: ResourceFigures, leased: Collection[int]) -> ResourceClaimUsage:
    """One resource claim; `leased` are the files that leases keep from being rewritten."""
    is_leased = figures.resource in leased
    return _document(ResourceClaimUsage, figures, is_archived=figures.archived_millis > 0, is_leased=is_leased)


def resource_claim_map(
    figures: ResourceFigures, dead: Iterable[ByteRange], leased: Collection[int]
) -> ResourceClaimMap:
    """The whole file, without a gap: what is neither dead nor a hole lives."""
    marked = [FileRange(start=run.offset, length=run.length, kind="hole") for run in unpack_ranges(figures.holes)]
    marked += [FileRange(start=start, length=length, kind="dead") for start, length in dead]
    ranges: list[FileRange] = []
    at = 0
    for each in sorted(marked, key=lambda found: (found.start, found.length)):
        if each.start > at:
            ranges.append(FileRange(start=at, length=each.start - at, kind="live"))
        ranges.append(each)
        at = max(at, each.start + each.length)
    if at < figures.length:
        ranges.append(FileRange(start=at, length=figures.length - at, kind="live"))
    return ResourceClaimMap(resource=resource_claim_usage(figures, leased), ranges=ranges)


def reclamation_plan(made: ReclamationPlan) -> Plan:
    """What a run would do, with its first steps."""
    steps = [_planned_action(step) for step in made.steps[:STEPS_SHOWN]]
    return _document(Plan, made, steps=steps, step_count=len(made.steps), notes=list(made.notes))


def space_share(share: Share) -> SpaceShare:
    """Bytes that are there for one reason."""
    return _document(SpaceShare, share, until_millis=share.until_millis or None)


def space_coming(found: ExpectedReturn) -> SpaceComing:
    """Bytes that come back together."""
    return _document(
        SpaceComing,
        found,
        operation=OPERATIONS.get(found.action),
        earliest_millis=found.earliest_millis or None,
        latest_millis=found.latest_millis or None,
    )


def goal_status(goal: GoalSettings, figures: GoalFigures | None) -> GoalStatus:
    """How a goal is held; `figures` are of the last look."""
    decision = GoalDecision() if figures is None else figures.decision
    miss = decision.miss
    return GoalStatus(
        disk_to_live=goal.disk_to_live,
        max_dead_age_millis=None if goal.max_dead_age is None else int(goal.max_dead_age),
        looked_millis=None if figures is None else figures.millis,
        disk_to_live_now=None if figures is None else figures.disk_to_live or None,
        dead_bytes=0 if figures is None else figures.dead_bytes,
        hindered_bytes=0 if figures is None else figures.hindered_bytes,
        oldest_dead_millis=None if figures is None else figures.oldest_millis or None,
        dead_per_second=0.0 if figures is None else round(figures.dead_per_second, 3),
        copied_per_second=0.0 if figures is None else round(figures.copied_per_second, 3),
        decided_by=decision.decider,
        chosen_files=len(decision.chosen),
        bytes_per_second=decision.rate,
        will_miss=None if miss is None else miss.goal,
        will_miss_millis=None if miss is None else miss.millis,
        hindrance=None if miss is None else miss.hindrance.kind,
        reason="" if miss is None else miss.hindrance.reason,
        helps="" if miss is None else miss.hindrance.helps,
    )


def run_report(report: ReclamationReport, kept: Iterable[Share] = ()) -> RunReport:
    """What a run did, and what dead bytes are `kept` behind it."""
    reasons = Counter(left.reason for left in report.left)
    return _document(
        RunReport,
        report,
        done={action.name.lower(): report.done.get(action, 0) for action in Action if action != Action.NONE},
        seconds=round(report.seconds, 3),
        left=[SkippedSteps(reason=reason, steps=count) for reason, count in reasons.items()],
        kept=list(map(space_share, kept)),
        problems=report.problems[:PROBLEMS_SHOWN],
    )


def _content_location(content: Content | None) -> ContentLocation | None:
    if content is None:
        return None
    claim = content.claim
    return ContentLocation(
        resource=claim.resource if claim else None,
        offset=claim.offset if claim else None,
        length=claim.length if claim else None,
        start=content.start,
        size=content.size,
    )


def _planned_action(step: ReclamationStep) -> PlannedAction:
    return _document(PlannedAction, step, action=step.action.name.lower(), holes=len(step.holes))

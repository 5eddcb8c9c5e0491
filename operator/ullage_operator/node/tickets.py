"""Who may reclaim now: tickets are kept, taken back and given. Pure.

    wanted by the agent, window open, no pod in the way, room among maxConcurrentNodes, volume free    given
    done, refused, failed, expired, settings changed, window over, pods came, node cordoned or gone    taken back
    not begun, and nothing wanted any more                                                             taken back
    its run deleted, suspended, or ended                                                               taken back

A node that is silent keeps its place among the concurrent ones until its ticket has expired: it may still be at work.
"""

import functools
from collections.abc import Mapping

import msgspec

from ullage.contract import (
    ENDED,
    RUNNABLE,
    TICKETED,
    BlockerMode,
    Calendar,
    Deferral,
    MaintenanceOperation,
    Ticket,
    TicketState,
    millis_of,
    nodes_at_once,
    time_of,
)
from ullage_operator.node.runs import is_called_off
from ullage_operator.observation import NodeObject, Observation, RunObject
from ullage_operator.settings import OperatorSettings


class TicketSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """What the nodes' objects are to say. `next_millis`: when time alone changes it; None: never."""

    tickets: dict[str, Ticket]
    deferrals: dict[str, Deferral]
    overdue: int
    """How many nodes have waited for pods longer than spec.maintenance.blockers.sparkPods.maxDefer, and still have no
    ticket.
    """

    next_millis: int | None
    window_closes_millis: int | None
    is_open: bool


class TicketScheduler:
    """One round for one repository."""

    def __init__(self, seen: Observation, settings: OperatorSettings, ready: frozenset[str]) -> None:
        self._seen = seen
        self._spec = spec = seen.repository.spec
        self._settings = settings
        self._ready = ready
        self._now = seen.now_millis
        self._calendar = Calendar(spec.maintenance)
        self._wakes: list[int] = []
        self._open_nodes = {each.name for each in seen.cluster_nodes if not each.is_cordoned}
        # One moment, one answer: asked of the calendar for each of thousands of nodes, it is most of a round's time.
        self._permission = functools.cache(lambda operation: self._calendar.permission(operation, self._now))
        self._waited = functools.cache(self._waited_millis)

    def schedule(self, runs: Mapping[str, RunObject]) -> TicketSchedule:
        """`runs`: the run that each node is due for, if any."""
        objects = self._seen.objects
        windows = [self._calendar.status(operation, self._now) for operation in TICKETED]
        for window in windows:
            self._wake(window.closes_millis)
            if not window.is_allowed:
                self._wake(window.opens_millis)
        deferrals = {node: self._deferral(found, node in runs) for node, found in objects.items()}
        held = {
            node: found.spec.ticket
            for node, found in objects.items()
            if found.spec.ticket is not None and self._is_kept(found, found.spec.ticket, deferrals[node])
        }
        room = nodes_at_once(self._spec.maintenance.max_concurrent_nodes, len(objects)) - len(held)
        for node in sorted(set(objects) - set(held), key=self._urgency):
            if room < 1:
                break
            given = self._given(objects[node], deferrals[node], runs.get(node))
            if given is not None:
                held[node] = given
                room -= 1
        for end in {ticket.not_after for ticket in held.values()}:
            self._wake(millis_of(end))
        waiting = {node: each for node, each in deferrals.items() if each is not None and node not in held}
        return TicketSchedule(
            tickets=held,
            deferrals=waiting,
            overdue=sum(self._is_overdue(objects[node], each, runs.get(node)) for node, each in waiting.items()),
            next_millis=min(self._wakes, default=None),
            window_closes_millis=min((v.closes_millis for v in windows if v.closes_millis is not None), default=None),
            is_open=any(window.may_start for window in windows),
        )

    def _wake(self, millis: int | None) -> None:
        if millis is not None and millis > self._now:
            self._wakes.append(millis)

    def _urgency(self, node: str) -> tuple[float, str]:
        """The fullest first."""
        return self._seen.objects[node].status.space.free_percentage, node

    def _deferral(self, found: NodeObject, is_due: bool) -> Deferral | None:
        """What stands in the way on this node, since when it does. It is looked for only where something is wanted."""
        if self._spec.maintenance.blockers.spark_pods.mode == BlockerMode.IGNORE:
            return None
        waits_for = self._seen.blockers.on(found.spec.node_name)
        if not waits_for or not (found.status.wanted or is_due):
            return None
        since = found.spec.deferral.since if found.spec.deferral is not None else time_of(self._now)
        return Deferral(since=since, waits_for=waits_for)

    def _blocks(self, operation: MaintenanceOperation, deferral: Deferral | None) -> bool:
        """Whether an operation still waits for pods."""
        # Only the time in which it was allowed counts. Of a job that begins at 20:00 and takes all night six hours are
        # over at 02:00: a node that may be reclaimed from 01:00 to 04:00 would have waited for one hour.
        if deferral is None or operation not in TICKETED:
            return False
        left = int(self._spec.maintenance.blockers.spark_pods.max_defer) - self._waited(operation, deferral.since)
        if left > 0 and self._permission(operation).is_granted:
            self._wake(self._now + left)
        return left > 0

    def _waited_millis(self, operation: MaintenanceOperation, since: str) -> int:
        return self._calendar.allowed_millis(operation, millis_of(since), self._now)

    def _is_overdue(self, found: NodeObject, deferral: Deferral, run: RunObject | None) -> bool:
        wanted = run.spec.operations if run is not None else found.status.wanted
        return any(operation in wanted and not self._blocks(operation, deferral) for operation in TICKETED)

    def _is_kept(self, found: NodeObject, ticket: Ticket, deferral: Deferral | None) -> bool:
        report = found.status.ticket
        state = report.state if report is not None and report.id == ticket.id else None
        node = found.spec.node_name
        if state in ENDED or self._spec.maintenance.paused or ticket.generation != self._seen.repository.generation:
            return False
        if is_called_off(ticket, self._seen.runs) or self._is_idle(found, ticket, state):
            return False
        if self._is_expired(ticket, state == TicketState.RUNNING and node in self._ready):
            return False
        if node not in self._ready:
            return True
        if node not in self._open_nodes:
            return False
        is_override = any(run.uid == ticket.run_uid and run.spec.override_windows for run in self._seen.runs)
        return is_override or not any(self._blocks(operation, deferral) for operation in ticket.operations)

    def _is_idle(self, found: NodeObject, ticket: Ticket, state: TicketState | None) -> bool:
        """Whether a window's ticket was not begun and is of no use any more: it would keep others waiting."""
        return not (ticket.run or state or found.status.wanted) and found.spec.node_name in self._ready

    def _is_expired(self, ticket: Ticket, is_under_way: bool) -> bool:
        if ticket.stop_after is not None and self._now >= millis_of(ticket.stop_after):
            return True
        return self._now >= millis_of(ticket.not_after) and not is_under_way

    def _given(self, found: NodeObject, deferral: Deferral | None, run: RunObject | None) -> Ticket | None:
        status, repository = found.status, self._seen.repository
        if self._spec.maintenance.paused or not self._may_have_one(found):
            return None
        wanted = run.spec.operations if run is not None else status.wanted
        overrides = run is not None and run.spec.override_windows
        known = TICKETED if run is None else RUNNABLE
        operations: tuple[MaintenanceOperation, ...] = tuple(o for o in known if o in wanted)
        stop, reason = None, "the windows were overridden"
        if not overrides:
            permissions = {operation: self._permission(operation) for operation in operations}
            operations = self._free(operations, deferral, is_run=run is not None)
            ends = (permissions[operation].until_millis for operation in operations)
            stop = min((end for end in ends if end is not None), default=None)
            reason = "; ".join(dict.fromkeys(permissions[operation].reason for operation in operations))
        if not operations:
            return None
        end = min(self._now + self._settings.ticket_seconds * 1000, stop or 1 << 62)
        return Ticket(
            id=f"t{self._now:x}-{repository.generation}",
            operations=operations,
            generation=repository.generation,
            not_before=time_of(self._now),
            not_after=time_of(end),
            stop_after=None if stop is None else time_of(stop),
            reason=reason,
            run="" if run is None else run.name,
            run_uid="" if run is None else run.uid,
            dry_run=run is not None and run.spec.dry_run,
            policy="" if run is None else run.spec.policy,
            bytes_per_second=None if run is None else run.spec.bytes_per_second,
        )

    def _free(
        self, wanted: tuple[MaintenanceOperation, ...], deferral: Deferral | None, *, is_run: bool
    ) -> tuple[MaintenanceOperation, ...]:
        """Those that may begin now."""
        granted = tuple(operation for operation in wanted if self._permission(operation).is_granted)
        free = tuple(operation for operation in granted if not self._blocks(operation, deferral))
        if not is_run:
            return free
        # A node carries a run out once, so nothing of it begins without what waits for pods; nor does Delete alone,
        # which is hardly ever bound to a window, while all else waits for one.
        is_first = free == granted and (set(TICKETED).intersection(granted) or not set(TICKETED).intersection(wanted))
        return free if is_first else ()

    def _may_have_one(self, found: NodeObject) -> bool:
        """Whether the agent could make use of a ticket, and its volumes are free."""
        node, status = found.spec.node_name, found.status
        if node not in self._ready or node not in self._open_nodes:
            return False
        if status.settings_generation != self._seen.repository.generation:
            return False
        if self._seen.busy_volumes.get(node, frozenset()) & set(status.volumes):
            return False
        report = status.ticket
        if report is not None and report.state in (TicketState.REFUSED, TicketState.FAILED) and report.ended:
            again = millis_of(report.ended) + self._settings.retry_seconds * 1000
            self._wake(again)
            return self._now >= again
        return True

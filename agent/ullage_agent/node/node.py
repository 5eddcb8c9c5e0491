"""An agent's part in a cluster: follow its own object, run what its ticket permits, say how it is.

    following   a thread: list, watch, again                    -> ticket, cordon
    obeying     a thread, every second: ticket due? run it      -> report
    backing up  a thread, every second: asked for? write it     -> report
    verifying   a thread, every second: asked for? read it      -> report
    telling     a thread, every second: changed? heartbeat?     -> status

Telling goes on while a run of hours is under way: a node that is silent counts as lost.

While the API server cannot be reached it serves on, and what its ticket still permits it does; nothing beyond. The
times of a ticket are held against this node's clock.
"""

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import msgspec
import structlog

from ullage import __version__
from ullage.contract import (
    ENDED,
    ENGINE_FORMAT,
    HEARTBEAT_FIELDS,
    HEARTBEAT_SECONDS,
    TICKETED,
    Condition,
    MaintenanceOperation,
    NodeStatus,
    RestoreTicketReport,
    Returning,
    Space,
    Ticket,
    TicketReport,
    TicketState,
    conditions_of,
    time_of,
)
from ullage.errors import CompactionRefused, UllageError
from ullage.wire.space import RunReport
from ullage_agent.node.aim import NodeGoal, node_goal
from ullage_agent.node.backups import NodeBackups, NodeVerifications
from ullage_agent.node.objects import NodeObjectClient, NodeObjectError, ObservedNode
from ullage_agent.node.restoring import restoration_of
from ullage_agent.node.returning import returning_of
from ullage_agent.node.shipping import NodeShipping, node_shipping
from ullage_agent.node.tickets import TicketHolder, void_reason
from ullage_agent.service.host import Host

TICK_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 60.0
"""How often the space and what could be reclaimed are looked at: a survey costs a step for each resource claim."""

GOAL_SECONDS: Final = 600.0
"""How soon after a ticket that gave nothing back another is asked for, where compaction has a goal to hold."""

DRAIN_LOOK_SECONDS: Final = 5.0
"""The same while the node is drained: somebody waits for the end."""

PERCENTAGE_STEP: Final = 1.0
"""What free space must change by to be told before the next heartbeat."""


AWAY: Final = ("away", "foreign")
"""What a survey calls a volume whose content can't be read."""

FOLLOWED: Final = "No changes are taken: another node has the repository, or may have it. Replicated says more."


class Faults(NamedTuple):
    """What was stored and can't be read or used now."""

    containers_away: tuple[str, ...]
    unavailable_contents: int
    unavailable_swap_files: int
    records_set_aside: int

    def condition(self) -> tuple[str, str]:
        """The gravest reason, and all of them in words."""
        found = []
        if self.containers_away:
            found.append(("VolumeAway", f"the volumes of {', '.join(self.containers_away)} are away"))
        if self.unavailable_contents:
            found.append(("ContentUnavailable", f"contents that can't be read: {self.unavailable_contents}"))
        if self.unavailable_swap_files:
            found.append(("ContentUnavailable", f"swap files that can't be read: {self.unavailable_swap_files}"))
        if self.records_set_aside:
            found.append(("RecordsSetAside", f"records that can't be used: {self.records_set_aside}"))
        if not found:
            return "AllThere", ""
        return found[0][0], "; ".join(words for _, words in found)[:1024]


class ClockFault(NamedTuple):
    """Why the machine's clock is not believed."""

    reason: str
    is_ahead: bool

    def condition(self) -> tuple[str, str]:
        """In which direction, if it is so, and in words."""
        if not self.reason:
            return "Plausible", ""
        return "Ahead" if self.is_ahead else "Behind", self.reason[:1024]


class NodeAgent:
    """Begins with `start`, when the host is open; `generation` is that of the settings in force."""

    def __init__(
        self,
        host: Host,
        api: NodeObjectClient,
        tickets: TicketHolder,
        generation: Callable[[], int],
        heed: Callable[[ObservedNode], None] = lambda _: None,
        restored: RestoreTicketReport | None = None,
    ) -> None:
        """`heed` gets the object whenever it was seen, as `NodeCertificate.heed` takes it; NodeObjectError. `restored`:
        what came of the restoration that this process has begun with.
        """
        self._host = host
        self._heed = heed
        self._api = api
        self._tickets = tickets
        self._generation = generation
        self._volumes: tuple[str, ...] = ()
        self._policies: tuple[str, ...] = ()
        self._log = structlog.get_logger().bind(logger="node")
        self._stop = threading.Event()
        self._wakes = {name: threading.Event() for name in ("obey", "back-up", "verify", "tell")}
        self._writing = threading.Lock()
        self._counting = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._generation_seen = 0
        self._is_seen = False
        self._drains = False
        self._report: TicketReport | None = None
        self._wanted: tuple[MaintenanceOperation, ...] = ()
        self._space = Space()
        self._returning = Returning()
        self._goal = NodeGoal()
        self._shipping = NodeShipping()
        self._next_forecast = 0.0
        self._faults = Faults((), 0, 0, 0)
        self._clock = ClockFault("", is_ahead=False)
        self._reclaimed = 0
        self._under: Counter[str] = Counter()  # what was done under the ticket that was heard of last
        self._backups = NodeBackups(host)
        self._verifications = NodeVerifications(host)
        self._restored = restored
        self._next_look = 0.0
        self._fruitless_until = 0.0
        self._written: NodeStatus | None = None
        self._next_heartbeat = 0.0

    def start(self) -> None:
        """Follow, obey and tell, until `stop`."""
        self.attach()
        self._tickets.on_revoked = self._revoke
        self._started(self._follow, "follow")
        steps = {"obey": self.obey, "back-up": self.back_up, "verify": self.verify, "tell": self._tell_once_seen}
        for name, step in steps.items():
            self._threads.append(self._started(partial(self._repeat, name, step), name))

    def attach(self) -> None:
        """Have the engine tell of its runs, also of those that its own schedules begin while a ticket permits them."""
        self._policies = tuple(self._host.repository.reclamation.policies().names)

        def count(name: str, report: RunReport) -> None:
            with self._counting:
                self._reclaimed += report.freed_bytes
                if name != "clean" and self._tickets.ticket is not None:
                    done = {"actions": sum(report.done.values()), "freed_bytes": report.freed_bytes}
                    self._under.update(done | {"copied_bytes": report.copied_bytes})

        self._host.repository.reclamation.hear(count)

    def stop(self) -> None:
        """End; a run stops after its present action. Following, which may wait for a word, ends with the process."""
        self._tickets.take_over(None, is_cordoned=self._tickets.is_cordoned)
        self._stop.set()
        self._backups.stop()
        self._verifications.stop()
        self._nudge()
        for thread in self._threads:
            thread.join()

    def take_over(self, seen: ObservedNode) -> None:
        """What the object says now."""
        self._generation_seen = seen.generation
        self._is_seen = True
        if self._report is None and seen.status.ticket is not None and seen.status.ticket.state in ENDED:
            self._report = seen.status.ticket  # of before the restart: it is not run twice
        if seen.spec.cordoned and not self._tickets.is_cordoned:
            self._log.info("cordoned: nothing is reclaimed")
            self._host.repository.checkpoint()
        before, ticket = self._tickets.ticket, seen.spec.ticket
        if ticket is not None and (before is None or before.id != ticket.id):
            with self._counting:
                self._under.clear()
        self._tickets.take_over(ticket, is_cordoned=seen.spec.cordoned)
        self._drain(seen.spec.draining)
        self._backups.take_over(seen.spec.backup, seen.status.backup)
        self._verifications.take_over(seen.spec.verification, seen.status.verification)
        self._restored = restoration_of(seen, self._restored)
        self._nudge()
        self._heed(seen)

    def _drain(self, drains: bool) -> None:
        """Take nothing new from now on, or take it again."""
        if drains == self._drains:
            return
        # Before anything is looked at: Drained is said of a node into which nothing comes any more.
        self._host.repository.drain(drains=drains)
        self._drains, self._next_look = drains, 0.0
        self._log.info("drained: nothing new is taken" if drains else "drained no more")

    def obey(self) -> None:
        """Run the ticket that is due, if there is one; returns when that run has ended."""
        self._heed_settings()
        ticket = self._tickets.ticket
        if ticket is not None and self._is_new(ticket) and self._generation() >= ticket.generation:
            self._run(ticket)

    def back_up(self) -> None:
        """Write the backup that the object asks for, if it was not yet; returns when that has ended."""
        self._work(self._backups)

    def verify(self) -> None:
        """The same of a verification that the object asks for."""
        self._work(self._verifications)

    def _work(self, task: NodeBackups | NodeVerifications) -> None:
        before = task.report
        task.obey(self._generation())
        if task.report is not before:
            self._nudge()

    def tell(self) -> None:
        """Look around, and write the status if there is news or a heartbeat is due."""
        self._heed_settings()
        clock = self._host.clock
        if clock.monotonic() >= self._next_look:
            self._next_look = clock.monotonic() + (DRAIN_LOOK_SECONDS if self._drains else LOOK_SECONDS)
            self._look()
        with self._writing:
            status = self.status()
            if self._differs(status) or clock.monotonic() >= self._next_heartbeat:
                self._write(status)

    def _tell_once_seen(self) -> None:
        """Not before the object was read: what is written replaces what the last process said of its ticket, its
        backup and its verification, and then they would be done once more.
        """
        if self._is_seen:
            self.tell()

    def status(self) -> NodeStatus:
        """How this node is."""
        repository = self._host.repository
        return NodeStatus(
            observed_generation=self._generation_seen,
            settings_generation=self._tickets.generation,
            version=__version__,
            format=ENGINE_FORMAT,
            heartbeat=time_of(self._host.clock.now_millis()),
            repository_uuid=repository.uuid,
            volumes=self._volumes,
            space=self._space,
            sole_copy_bytes=self._shipping.sole_copy_bytes,
            reclaimed_bytes=self._reclaimed,
            leases=len(repository.leases.all()),
            containers_away=self._faults.containers_away,
            unavailable_contents=self._faults.unavailable_contents,
            records_set_aside=self._faults.records_set_aside,
            policies=self._policies,
            wanted=self._wanted,
            ticket=self._report,
            backup=self._backups.report,
            verification=self._verifications.report,
            restoration=self._restored,
            conditions=self._conditions(),
        )

    def _heed_settings(self) -> None:
        """Other settings want other things: what there would be to do is looked at anew."""
        generation = self._generation()
        if generation != self._tickets.generation:
            self._tickets.settings_are(generation)
            self._next_look = 0.0

    def _is_new(self, ticket: Ticket) -> bool:
        return self._report is None or self._report.id != ticket.id or self._report.state not in ENDED

    def _run(self, ticket: Ticket) -> None:
        now = self._host.clock.now_millis()
        state, started = TicketState.RUNNING, time_of(now)
        report = TicketReport(id=ticket.id, run=ticket.run, run_uid=ticket.run_uid, state=state, started=started)
        if reason := void_reason(ticket, self._tickets.generation, now):
            self._ended(report, TicketState.REFUSED, message=reason)
            return
        self._report = report
        with self._writing:
            self._write(self.status())
        try:
            done = self._planned(ticket) if ticket.dry_run else self._carried_out(ticket)
        except CompactionRefused as error:
            self._ended(report, TicketState.REFUSED, message=str(error)[:1024])
            return
        except UllageError as error:
            self._log.error("ticket failed", ticket=ticket.id, exc_info=error)
            self._ended(report, TicketState.FAILED, message=f"{type(error).__name__}: {error}"[:1024])
            return
        self._ended(msgspec.structs.replace(report, **done), TicketState.COMPLETED)

    def _planned(self, ticket: Ticket) -> dict[str, object]:
        reclamation, policy = self._host.repository.reclamation, ticket.policy or None
        plan = reclamation.plan(policy, operations=ticket.operations, respects_guards=not ticket.run)
        return {"actions": plan.step_count, "freed_bytes": plan.frees_bytes, "copied_bytes": plan.copies_bytes}

    def _carried_out(self, ticket: Ticket) -> dict[str, object]:
        message = self._host.repository.reclamation.carry_out(ticket, self._stop.is_set)
        with self._counting:
            under, self._under = self._under, Counter()
        if not under["freed_bytes"]:
            compaction = self._host.spec.compaction
            again = GOAL_SECONDS if compaction.goal.is_set else compaction.check_frequency.seconds
            self._fruitless_until = self._host.clock.monotonic() + again
        return {**under, "message": message[:1024]}

    def _ended(self, report: TicketReport, state: TicketState, message: str = "") -> None:
        ended = time_of(self._host.clock.now_millis())
        self._report = msgspec.structs.replace(report, state=state, ended=ended, message=message or report.message)
        self._log.info("ticket ended", ticket=report.id, state=str(state), freed_bytes=self._report.freed_bytes)
        self._wanted = ()
        self._next_look = 0.0
        self._nudge()

    def _look(self) -> None:
        """The space, what cannot be read or used, and what there would be to do."""
        containers = self._host.repository.reclamation.survey().containers
        state = self._host.repository.state()
        away = tuple(each.name for each in containers if each.volume in AWAY)
        self._volumes = _devices(path for name, path in self._host.repository.paths().items() if name not in away)
        self._faults = Faults(away, state.unavailable_contents, state.unavailable_swap_files, state.records_set_aside)
        self._clock = ClockFault(state.clock.reason, state.clock.machine_millis > state.clock.believed_millis)
        if (now := self._host.clock.monotonic()) >= self._next_forecast:
            self._next_forecast = now + HEARTBEAT_SECONDS  # it makes each plan, and looks into files
            self._returning = returning_of(self._host.repository.reclamation.forecast())
        self._goal = node_goal(self._host.repository.reclamation.goal(), self._goal, self._host.clock.now_millis())
        self._space = Space(
            capacity_bytes=sum(each.total_bytes for each in containers),
            free_bytes=sum(max(0, each.total_bytes - each.used_bytes) for each in containers),
            live_bytes=sum(each.live_bytes for each in containers),
            dead_bytes=sum(each.dead_bytes for each in containers),
            archived_bytes=sum(each.archived_bytes for each in containers),
            orphan_bytes=sum(each.orphan_bytes for each in containers),
            free_percentage=round(min((100 - each.used_percentage for each in containers), default=100.0), 1),
            returning=self._returning,
            disk_to_live=self._goal.disk_to_live,
            oldest_dead=self._goal.oldest_dead,
            goal_missed=self._goal.missed,
        )
        self._shipping = node_shipping(state.replication, self._space.live_bytes)
        is_resting = self._host.clock.monotonic() < self._fruitless_until
        found = () if is_resting or self._host.spec.maintenance.paused else self._host.repository.reclamation.wanted()
        self._wanted = tuple(operation for operation in TICKETED if operation in found)

    def _conditions(self) -> tuple[Condition, ...]:
        is_full = self._space.free_percentage < 100 - self._host.spec.archive.backpressure_percentage
        is_running = self._report is not None and self._report.state == TicketState.RUNNING
        facts = [
            ("Ready", *self._readiness()),
            ("DiskPressure", "AboveBackpressure" if is_full else "RoomLeft", ""),
            ("DataUnavailable", *self._faults.condition()),
            ("GoalMissed", self._goal.reason, self._goal.message),
            ("Replicated", self._shipping.reason, self._shipping.message),
            ("Drained", self._shipping.drained if self._drains else "NotAsked", ""),
            ("ClockImplausible", *self._clock.condition()),
            ("Reclaiming", "Ticket" if is_running else "Idle", ""),
            ("Degraded", *self._trouble()),
        ]
        before = () if self._written is None else self._written.conditions
        now = time_of(self._host.clock.now_millis())
        return conditions_of("ContentRepositoryNode", facts, before, self._generation_seen, now)

    def _readiness(self) -> tuple[str, str]:
        """Whether changes are taken here, and in words where another node is why not."""
        if self._host.is_ready:
            return "Serves", ""
        return "Stopped", FOLLOWED if self._host.is_open and self._host.repository.is_ready else ""

    def _trouble(self) -> tuple[str, str]:
        """What is wrong with the agent itself, in words."""
        if problem := self._host.settings_problem:
            return "SettingsRefused", problem[:1024]
        if failures := self._host.repository.failures:
            return "MaintenanceFailed", f"{failures[-1][0]}: {failures[-1][1]}"[:1024]
        return "Well", ""

    def _differs(self, status: NodeStatus) -> bool:
        """Whether it says what people or the operator should know now; sums wait for the heartbeat."""
        old = self._written
        if old is None:
            return True
        if abs(old.space.free_percentage - status.space.free_percentage) >= PERCENTAGE_STEP:
            return True
        same = {name: getattr(old, name) for name in HEARTBEAT_FIELDS}
        return msgspec.structs.replace(status, **same) != old

    def _write(self, status: NodeStatus) -> None:
        clock = self._host.clock
        try:
            self._api.write(status)
        except NodeObjectError as error:
            self._log.warning("status not written", problem=str(error))
            self._next_heartbeat = clock.monotonic() + RETRY_SECONDS
            self._stop.wait(RETRY_SECONDS)
        else:
            self._written = status
            self._next_heartbeat = clock.monotonic() + HEARTBEAT_SECONDS

    def _revoke(self) -> None:
        """A fresh function takes back what the last one granted: runs under way stop after their present action."""
        if self._host.is_open:
            permission = self._tickets.permission_of(self._host.spec.maintenance)
            self._host.repository.reclamation.permit(permission)

    def _started(self, run: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=run, name=f"ullage-{name}", daemon=True)
        thread.start()
        return thread

    def _nudge(self) -> None:
        for wake in self._wakes.values():
            wake.set()

    def _repeat(self, name: str, step: Callable[[], None]) -> None:
        wake = self._wakes[name]
        while not self._stop.is_set():
            try:
                step()
            except Exception as error:  # noqa: BLE001 - a step that fails must not end the thread that heartbeats
                self._log.error("step failed", step=name, exc_info=error)
                self._stop.wait(RETRY_SECONDS)
            wake.wait(TICK_SECONDS)
            wake.clear()

    def _gone(self) -> None:
        """There is no object: nothing is permitted, and nothing asked for."""
        self._tickets.take_over(None, is_cordoned=False)
        self._backups.take_over(None, None)
        self._verifications.take_over(None, None)

    def _follow(self) -> None:
        while not self._stop.is_set():
            try:
                seen = self._api.read()
                if seen is None:
                    self._gone()
                    self._stop.wait(RETRY_SECONDS)
                    continue
                self.take_over(seen)
                for change in self._api.watch(seen.version):
                    if change is None:
                        self._gone()
                        break
                    self.take_over(change)
            except NodeObjectError as error:
                self._log.warning("own object not followed", problem=str(error))
                self._stop.wait(RETRY_SECONDS)
            except Exception as error:  # noqa: BLE001 - without this thread no ticket would ever come or go again
                self._log.error("following failed", exc_info=error)
                self._stop.wait(RETRY_SECONDS)


def _devices(paths: Iterable[str]) -> tuple[str, ...]:
    """Numbers of the devices that these lie on."""
    found = set()
    for path in paths:
        with suppress(OSError):  # its volume has gone away since it was looked at
            found.add(str(os.stat(path).st_dev))
    return tuple(sorted(found))

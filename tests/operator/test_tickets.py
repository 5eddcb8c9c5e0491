from typing import Any

import msgspec
import pytest

from tests.operator.support import HOUR, MINUTE, NOW, changed, decided, fleet, lone, node, report, repository, ticket
from ullage.contract import (
    FINISHED_MAX,
    TICKETED,
    Deferral,
    FinishedRun,
    MaintenanceOperation,
    RunPhase,
    RunSpec,
    RunStatus,
    TicketState,
    time_of,
)
from ullage_operator.observation import Blockers, ClusterNode, RunObject
from ullage_operator.repository.decide import Decision

ONE = {"maintenance": {"maxConcurrentNodes": 1}}
RUNNING = report(TicketState.RUNNING, ended=None)
NIGHT: dict[str, Any] = {"name": "night", "schedule": "0 1 * * *", "duration": "3h"}
NIGHTLY: dict[str, Any] = {"maintenance": {"windows": [NIGHT]}}


def holders(decision: Decision) -> list[str]:
    return [name for name, spec in decision.nodes.items() if spec.ticket is not None]


@pytest.mark.parametrize(("share", "count"), [(3, 3), ("10%", 2), ("1%", 1), ("100%", 20)])
def test_no_more_nodes_at_once_than_allowed(share: int | str, count: int) -> None:
    """Of twenty nodes that all want to, so many get a ticket; a percentage is rounded down, to at least one."""
    assert len(holders(decided(fleet(20, {"maintenance": {"maxConcurrentNodes": share}})))) == count


def test_the_fullest_node_comes_first() -> None:
    """Of three nodes the one with the least free space gets the only ticket."""
    seen = fleet(3, ONE)
    space = seen.objects["node-1"].status.space.__class__(free_percentage=3.0)

    full = changed(seen, objects={**seen.objects, "node-1": node("node-1", space=space)})

    assert holders(decided(full)) == ["node-1"]


def test_an_idle_fleet_gets_no_ticket_and_no_write() -> None:
    """Who wants nothing gets nothing: the specs decided on are those that are there."""
    seen = fleet(5)
    idle = changed(seen, objects={name: node(name, wanted=()) for name in seen.objects})

    assert {name: found.spec for name, found in idle.objects.items()} == decided(idle).nodes


def test_a_closed_window_gives_nothing_and_says_when_it_opens() -> None:
    """At midnight nothing is given; the next look is at one, when the window opens."""
    decision = decided(fleet(3, NIGHTLY))

    assert holders(decision) == []
    assert decision.next_millis == NOW + HOUR
    assert decision.status.next_window == time_of(NOW + HOUR)


def test_an_open_window_gives_a_ticket_that_ends_with_it_where_runs_must_stop() -> None:
    """Ten minutes before the end: valid for ten minutes, and a run stops then."""
    stop = {"maintenance": {"windows": [{**NIGHT, "overrun": "Stop"}]}}
    late = NOW + 4 * HOUR - 10 * MINUTE

    given = decided(changed(lone(stop, heard=late), now_millis=late)).nodes["node-0"].ticket

    assert given is not None
    assert (given.not_after, given.stop_after) == (time_of(NOW + 4 * HOUR), time_of(NOW + 4 * HOUR))


@pytest.mark.parametrize(
    ("why", "fields"),
    [
        ("it is done", {"ticket": ticket(), "report": report(TicketState.COMPLETED), "wanted": ()}),
        ("it was refused", {"ticket": ticket(), "report": report(TicketState.REFUSED)}),
        ("it expired before it was begun", {"ticket": ticket(not_after=time_of(NOW - MINUTE)), "heard": NOW - HOUR}),
        ("nothing is wanted any more", {"ticket": ticket(), "wanted": ()}),
        ("the settings changed", {"ticket": ticket(generation=0), "report": RUNNING, "wanted": ()}),
    ],
)
def test_a_ticket_is_taken_back(why: str, fields: dict[str, Any]) -> None:
    """Each of these ends it, and no other follows at once."""
    seen = lone(**fields)

    assert decided(seen).nodes["node-0"].ticket is None, why


def test_a_ticket_in_use_is_kept_past_its_last_beginning() -> None:
    """A run under way may finish; the ticket stays until it says that it has."""
    late = ticket(not_after=time_of(NOW - MINUTE))
    seen = lone(ticket=late, report=report(TicketState.RUNNING, ended=None))

    assert decided(seen).nodes["node-0"].ticket == late


def test_a_ticket_that_nobody_needs_makes_room_for_a_run() -> None:
    """Of two nodes one at a time: the window's ticket of the first goes, and the run that waits gets the second's."""
    idle = node("node-0", ticket=ticket(), wanted=())
    seen = fleet(2, ONE, objects={"node-0": idle, "node-1": node("node-1", wanted=())})

    given = decided(changed(seen, runs=(run(nodes=("node-1",)),))).nodes

    assert given["node-0"].ticket is None
    assert given["node-1"].ticket is not None
    assert given["node-1"].ticket.run == "now"


def test_a_run_s_ticket_and_one_under_way_are_kept_where_nothing_is_wanted() -> None:
    """Who begins wants nothing more; and what a run asks for the agent need not want."""
    asked = lone(ticket=ticket(run="now"), wanted=())
    begun = lone(ticket=ticket(), report=report(TicketState.RUNNING, ended=None), wanted=())

    assert holders(decided(changed(asked, runs=(run(),)))) == ["node-0"]
    assert holders(decided(begun)) == ["node-0"]


def test_a_silent_node_keeps_its_place_until_its_ticket_ends() -> None:
    """It may still be at work: nobody takes its place among the concurrent ones before."""
    lost = node("node-0", ticket=ticket(), heard=NOW - HOUR)
    seen = fleet(2, ONE)
    seen = changed(seen, objects={**seen.objects, "node-0": lost})

    assert holders(decided(seen)) == ["node-0"]
    later = changed(seen, now_millis=NOW + HOUR, objects={"node-0": lost, "node-1": node("node-1", heard=NOW + HOUR)})
    assert holders(decided(later)) == ["node-1"]


def test_a_cordoned_node_loses_its_ticket_and_is_told() -> None:
    """Whoever drains a node wants it quiet."""
    cordoned = (ClusterNode(name="node-0", labels={}, is_cordoned=True),)

    spec = decided(changed(lone(ticket=ticket()), cluster_nodes=cordoned)).nodes["node-0"]

    assert (spec.ticket, spec.cordoned) == (None, True)


def test_two_repositories_never_work_on_one_volume() -> None:
    """Another repository holds a ticket on the same device of the same node; on other nodes it is in nobody's way."""
    seen = fleet(2, {"maintenance": {"maxConcurrentNodes": 2}}, busy_volumes={"node-0": frozenset({"8:1"})})

    assert holders(decided(seen)) == ["node-1"]


def test_a_node_with_executors_waits_and_says_for_whom() -> None:
    """The other gets the ticket; the status names the application."""
    seen = fleet(2, ONE, blockers=Blockers(by_node={"node-0": ("data/etl",)}))

    decision = decided(seen)

    assert holders(decision) == ["node-1"]
    assert decision.nodes["node-0"].deferral == Deferral(since=time_of(NOW), waits_for=("data/etl",))
    assert decision.status.nodes_deferred == 1


def test_waiting_is_bounded() -> None:
    """After maxDefer the node is reclaimed all the same; just before it is not, and the next look is then."""
    waiting = Deferral(since=time_of(NOW - 6 * HOUR + MINUTE), waits_for=("data/etl",))
    busy = Blockers(by_node={"node-0": ("data/etl",)})
    before = changed(lone(deferral=waiting), blockers=busy)

    assert holders(decided(before)) == []
    assert decided(before).next_millis == NOW + MINUTE
    assert holders(decided(changed(before, now_millis=NOW + MINUTE))) == ["node-0"]


def test_only_the_time_of_windows_counts_as_waiting() -> None:
    """A job that began in the evening is waited for as long in the night; what no window is about waited from then."""
    seen = fleet(1, {"maintenance": {"windows": [NIGHT], "blockers": {"sparkPods": {"maxDefer": "2h"}}}})
    busy = Blockers(by_node={"node-0": ("data/etl",)})
    waiting = Deferral(since=time_of(NOW - 4 * HOUR), waits_for=("data/etl",))
    wants = (MaintenanceOperation.REWRITE,)
    evening = changed(seen, blockers=busy, objects={"node-0": node("node-0", deferral=waiting, wanted=wants)})

    def at(hours: float) -> Decision:
        moment = NOW + int(hours * HOUR)
        objects = {"node-0": node("node-0", deferral=waiting, wanted=wants, heard=moment)}
        return decided(changed(evening, now_millis=moment, objects=objects))

    found = {hours: (holders(at(hours)), at(hours).nodes_overdue) for hours in (0, 1, 2.9, 3, 5, 26)}

    assert found == {0: ([], 0), 1: ([], 0), 2.9: ([], 0), 3: (["node-0"], 0), 5: ([], 1), 26: (["node-0"], 0)}
    assert at(2.5).next_millis == NOW + 3 * HOUR


def test_a_run_takes_whole_dead_files_and_waits_for_pods_as_a_whole() -> None:
    """A window's ticket is never about them. A node carries a run out once, so nothing of it is left out."""
    seen = changed(lone(), runs=(run(),))
    given, other = decided(seen).nodes["node-0"].ticket, decided(lone()).nodes["node-0"].ticket
    assert given is not None
    assert other is not None
    assert given.operations == (MaintenanceOperation.DELETE, *TICKETED)
    assert MaintenanceOperation.DELETE not in other.operations

    busy = Blockers(by_node={"node-0": ("data/etl",)})
    assert holders(decided(changed(seen, blockers=busy))) == []
    alone = changed(seen, blockers=busy, runs=(run(operations=(MaintenanceOperation.DELETE,)),))
    assert holders(decided(alone)) == ["node-0"]


def test_a_ticket_is_taken_back_for_pods_that_one_of_its_operations_waits_for() -> None:
    """It is one permission."""
    spec = {"maintenance": {"windows": [{**NIGHT, "operations": ["Rewrite"], "schedule": "0 0 * * *"}]}}
    waiting = Deferral(since=time_of(NOW - 7 * HOUR), waits_for=("data/etl",))
    seen = fleet(1, spec, blockers=Blockers(by_node={"node-0": ("data/etl",)}))

    def kept(*operations: MaintenanceOperation) -> list[str]:
        held = ticket(operations=operations)
        return holders(decided(changed(seen, objects={"node-0": node("node-0", ticket=held, deferral=waiting)})))

    assert kept(MaintenanceOperation.TRUNCATE) == ["node-0"]
    assert kept(MaintenanceOperation.TRUNCATE, MaintenanceOperation.REWRITE) == []


def test_pods_that_cannot_be_asked_for_count_as_busy() -> None:
    """A failed query defers every node: better late than under a reader."""
    assert holders(decided(fleet(3, blockers=Blockers(problem="403")))) == []


def test_pausing_takes_everything_back() -> None:
    """spec.maintenance.paused leaves no ticket, not even one in use."""
    running = {"ticket": ticket(), "report": report(TicketState.RUNNING)}

    assert holders(decided(lone({"maintenance": {"paused": True}}, **running))) == []


def run(**spec: Any) -> RunObject:
    status = spec.pop("status", RunStatus())
    asked = RunSpec(repository="flows", **spec)
    return RunObject(
        name="now", uid="uid of now", generation=1, created=time_of(NOW - MINUTE), spec=asked, status=status
    )


def test_a_run_waits_for_its_window_unless_it_overrides_it() -> None:
    """Outside of the window a run gets nothing; with overrideWindows it does, also beside Spark."""
    seen = fleet(1, NIGHTLY, blockers=Blockers(by_node={"node-0": ("data/etl",)}))

    assert holders(decided(changed(seen, runs=(run(),)))) == []
    given = decided(changed(seen, runs=(run(override_windows=True, dry_run=True),))).nodes["node-0"].ticket
    assert given is not None
    assert (given.run, given.dry_run) == ("now", True)


def test_a_run_ends_with_the_report_of_every_node_in_its_scope() -> None:
    """Two of three nodes, one failed: the run failed, with the sums and both reports, the worse one first."""
    seen = fleet(3)
    reports = {
        "node-0": report(TicketState.COMPLETED, run="now", freed_bytes=2048),
        "node-1": report(TicketState.FAILED, run="now", message="EIO"),
    }
    objects = {name: node(name, report=reports.get(name), wanted=()) for name in seen.objects}

    status = decided(changed(seen, objects=objects, runs=(run(nodes=("node-0", "node-1")),))).runs["now"]

    assert (status.phase, status.nodes, status.nodes_failed, status.freed) == ("Failed", 2, 1, "2Ki")
    assert [result.node for result in status.results] == ["node-1", "node-0"]


def test_what_a_node_reported_of_a_run_outlives_its_next_ticket() -> None:
    """The report is kept in the node's object by the write that takes the ticket back. So a window's ticket in between
    sends nobody to the node again, a run of that name that comes later has nothing to do with it, and what is kept of
    a run that is no more goes with the next report.
    """
    seen = fleet(2, {"maintenance": {"maxConcurrentNodes": 2}}, runs=(run(),))
    first = node("node-0", report=report(TicketState.COMPLETED, run="now", freed_bytes=2048))
    kept = decided(changed(seen, objects={**seen.objects, "node-0": first})).nodes["node-0"].finished
    assert [(each.uid, each.report.freed_bytes) for each in kept] == [("uid of now", 2048)]

    later = node("node-0", report=report(TicketState.COMPLETED, id="t2"), finished=kept)
    after = decided(changed(seen, objects={**seen.objects, "node-0": later}))
    assert (after.runs["now"].nodes_done, after.runs["now"].freed) == (1, "2Ki")
    given = after.nodes["node-0"].ticket
    assert given is not None
    assert given.run == ""

    again = msgspec.structs.replace(run(), uid="another")
    anew = decided(changed(seen, objects={**seen.objects, "node-0": later}, runs=(again,)))
    assert anew.runs["now"].nodes_done == 0
    ended = node("node-0", report=report(TicketState.COMPLETED, id="t3", run="now", run_uid="another"), finished=kept)
    [left] = decided(changed(seen, objects={**seen.objects, "node-0": ended}, runs=(again,))).nodes["node-0"].finished
    assert left.uid == "another"


def test_a_node_keeps_so_many_reports_and_those_of_runs_under_way_the_longest() -> None:
    """Of runs that have all come to an end there, the oldest report makes way for the next."""
    runs = tuple(msgspec.structs.replace(run(), name=f"r{n}", uid=f"uid of r{n}") for n in range(FINISHED_MAX + 1))
    over = msgspec.structs.replace(runs[3], status=RunStatus(phase=RunPhase.COMPLETED))
    kept = tuple(FinishedRun(uid=each.uid, report=report(TicketState.COMPLETED, run=each.name)) for each in runs[:-1])
    found = node("node-0", report=report(TicketState.FAILED, run=runs[-1].name), finished=kept)

    after = decided(fleet(1, objects={"node-0": found}, runs=(*runs[:3], over, *runs[4:]))).nodes["node-0"].finished

    assert {each.uid for each in runs} - {each.uid for each in after} == {over.uid}


def test_a_run_ends_at_its_deadline_and_goes_a_while_after_its_end() -> None:
    """Both are waited for, to the millisecond; what was not done by then has failed."""
    begun = RunStatus(phase=RunPhase.RUNNING, started=time_of(NOW - MINUTE))
    seen = lone(ticket=ticket(run="now"), wanted=())
    # Of one whose beginning is only told now too: nothing wakes the operator when it has written that.
    assert decided(changed(seen, runs=(run(active_deadline_seconds=61),))).next_millis == NOW + 1000
    before = changed(seen, runs=(run(status=begun, active_deadline_seconds=61),))
    late = changed(before, now_millis=NOW + 1000)

    assert (holders(decided(before)), decided(before).next_millis) == (["node-0"], NOW + 1000)
    ended = decided(late).runs["now"]
    assert (ended.phase, ended.nodes_failed, ended.ended) == (RunPhase.FAILED, 1, time_of(NOW + 1000))

    # What follows from the end follows at once: nothing wakes the operator when it has written that, either.
    assert holders(decided(late)) == []
    going = changed(late, runs=(run(status=begun, active_deadline_seconds=61, ttl_seconds_after_finished=5),))
    assert (decided(going).expired, decided(going).next_millis) == ((), NOW + 6000)

    over = changed(late, runs=(run(status=ended, ttl_seconds_after_finished=5),))
    assert holders(decided(over)) == []
    assert (decided(over).expired, decided(over).next_millis) == ((), NOW + 6000)
    assert [each.name for each in decided(changed(over, now_millis=NOW + 6000)).expired] == ["now"]


def test_a_run_whose_time_was_over_before_its_beginning_was_told_ends_at_once() -> None:
    """An operator that comes back to it late, as on a busy machine, has nothing that would wake it again."""
    seen = changed(lone(ticket=ticket(run="now"), wanted=()), runs=(run(active_deadline_seconds=1),))

    ended = decided(seen).runs["now"]

    assert (ended.phase, ended.nodes_failed, ended.ended) == (RunPhase.FAILED, 1, time_of(NOW))
    assert holders(decided(seen)) == []


def test_the_time_of_a_run_goes_on_while_its_repository_is_paused() -> None:
    """It ends at its deadline, which takes its ticket back, and goes a while after its end."""
    begun = RunStatus(phase=RunPhase.RUNNING, started=time_of(NOW - MINUTE))
    bounded = run(status=begun, active_deadline_seconds=61)
    seen = changed(lone(ticket=ticket(run="now")), repository=repository(is_paused=True), runs=(bounded,))
    late = changed(seen, now_millis=NOW + 1000)

    assert (decided(seen).nodes, decided(seen).next_millis) == ({}, NOW + 1000)
    ended = decided(late).runs["now"]
    assert (ended.phase, ended.ended) == (RunPhase.FAILED, time_of(NOW + 1000))

    assert decided(late).nodes["node-0"].ticket is None
    hurried = run(status=begun, active_deadline_seconds=61, ttl_seconds_after_finished=5)
    assert decided(changed(late, runs=(hurried,))).next_millis == NOW + 6000

    over = changed(late, runs=(run(status=ended, ttl_seconds_after_finished=5),))
    assert decided(over).nodes["node-0"].ticket is None
    assert (decided(over).expired, decided(over).next_millis) == ((), NOW + 6000)
    assert [each.name for each in decided(changed(over, now_millis=NOW + 6000)).expired] == ["now"]


def test_operations_without_a_window_of_their_own_are_given() -> None:
    """A window about Rewrite leaves Truncate free at any time."""
    only = {"maintenance": {"windows": [{**NIGHT, "operations": ["Rewrite"]}]}}
    wanted = (MaintenanceOperation.TRUNCATE, MaintenanceOperation.REWRITE)

    given = decided(lone(only, wanted=wanted)).nodes["node-0"].ticket

    assert given is not None
    assert given.operations == (MaintenanceOperation.TRUNCATE,)


def test_a_report_is_kept_though_its_run_is_over() -> None:
    """The end of the run was written, and the node's object was not: the next pass makes up for it."""
    spec, over = RunSpec(repository="flows"), RunStatus(phase=RunPhase.COMPLETED)
    run = RunObject(name="r", uid="uid of r", generation=1, created=time_of(NOW - HOUR), spec=spec, status=over)
    seen = lone(report=report(TicketState.COMPLETED, run="r"), ticket=ticket(run="r"))

    [made] = decided(changed(seen, runs=(run,))).nodes.values()

    assert [(each.uid, each.report.state) for each in made.finished] == [("uid of r", TicketState.COMPLETED)]


def test_no_more_runs_are_under_way_than_a_node_keeps_reports_of() -> None:
    """The end of one more would be kept in place of that of a run that goes on, which would come to the node again."""
    runs = tuple(
        msgspec.structs.replace(run(nodes=("node-0", "node-1")), name=f"r{n:02}", uid=f"uid of r{n:02}")
        for n in range(FINISHED_MAX + 1)
    )
    kept = tuple(FinishedRun(uid=each.uid, report=report(TicketState.COMPLETED, run=each.name)) for each in runs[:-1])
    objects = {"node-0": node("node-0", finished=kept, wanted=()), "node-1": node("node-1", wanted=())}

    given = decided(fleet(2, {"maintenance": {"maxConcurrentNodes": 2}}, objects=objects, runs=runs)).nodes

    assert given["node-0"].ticket is None
    assert given["node-1"].ticket is not None
    assert given["node-1"].ticket.run == "r00"

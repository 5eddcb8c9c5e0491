"""What queues, provenance, reclamation, leases and upkeep promise, whichever way the repository is reached."""

from pathlib import Path

import pytest

import ullage
from ullage import EventQuery, Keep, Repository
from ullage.contract import ContentRepositorySpec
from ullage.engine.engine import Engine
from ullage.errors import (
    BackPressure,
    ClaimGone,
    DirectoryUnusable,
    EventNotFound,
    FlowFileNotFound,
    HandleDeleted,
    InvalidArgument,
    LeaseLost,
    LeaseRefused,
    NotABackup,
    NotFound,
    QueueNotEmpty,
    QueueNotFound,
    ReplayRefused,
)


def test_queues_are_defined_changed_and_shown(repository: Repository) -> None:
    """What is not said stays as it is, or has its default; impossible settings change nothing."""
    queues = repository.queues
    made = queues.define("in", priority="NewestFirst", count_max=2)
    changed = queues.define("in", bytes_max=100, expiration_millis=3_600_000)

    assert (made.bytes_max, made.is_full) == (1 << 30, False)
    assert (changed.priority, changed.count_max, changed.bytes_max) == ("NewestFirst", 2, 100)
    for name, settings in (("in", {"count_max": -1}), ("in", {"priority": "None"}), ("", {}), ("x" * 256, {})):
        with pytest.raises(InvalidArgument):
            queues.define(name, **settings)
    assert queues.all() == [queues.find("in")] == [changed]


@pytest.mark.parametrize("name", ["a/b", "/", ".", "..", "a/../b", "a%2Fb", "with blank?and#more", "fässer", "\n"])
def test_a_queues_name_is_any_text(repository: Repository, name: str) -> None:
    """Also what means something in a path."""
    queues = repository.queues
    id = queues.put(name, b"content")

    assert [one.id for one in queues.flow_files(name)] == [id]
    assert queues.define(name, count_max=5) == queues.find(name)
    assert (queues.find(name).name, queues.drop(name)) == (name, 1)
    queues.remove(name)
    assert queues.all() == []


def test_queues_order_what_is_put_into_them_and_drop_it(repository: Repository) -> None:
    """The priority decides; a look takes nothing; a drop leaves what a session holds."""
    queues = repository.queues
    queues.define("in", priority="PriorityAttribute", count_max=3)
    queues.put_many("in", [b"late", b"soon"], [{"priority": "2"}, {"priority": "1"}])
    first = queues.put("in", iter([b"no", b"w"]), {"priority": "0"})

    assert [(one.size, one.attributes["priority"]) for one in queues.flow_files("in")] == [(3, "0"), (4, "1"), (4, "2")]
    assert [one.id for one in queues.flow_files("in", limit=1)] == [first]
    with pytest.raises(BackPressure):
        queues.put("in", b"more")
    queues.put("in", b"more", force=True)
    with repository.session() as session:
        held = session.get("in")
        assert held is not None
        assert (queues.find("in").held, queues.drop("in"), queues.find("in").flow_files) == (1, 3, 1)


def test_an_empty_queue_is_removed_and_comes_back_when_it_is_used(repository: Repository) -> None:
    """Removed is gone, also for the next start; whoever transfers to it later has it again."""
    queues = repository.queues
    queues.put("in", b"one")
    with pytest.raises(QueueNotEmpty):
        queues.remove("in")
    with repository.session() as session:
        held = session.get("in")
        assert held is not None
        with pytest.raises(QueueNotEmpty):
            queues.remove("in")
        session.remove(held)
        queues.define("other")
        session.transfer(session.create(), "other")
        queues.remove("other")
        session.commit()

    queues.remove("in")

    assert [(queue.name, queue.flow_files) for queue in queues.all()] == [("other", 1)]
    assert queues.put("in", b"again") == queues.flow_files("in")[0].id
    for call in (queues.find, queues.remove, queues.flow_files, queues.drop):
        with pytest.raises(QueueNotFound):
            call("never")


def test_events_are_searched_traced_and_read(repository: Repository) -> None:
    """Pages in both orders, one event by number and by id, its content and that before, and what led to what."""
    with repository.session("editor") as session:
        one = session.write(session.create(attributes={"n": "1"}), b"first")
        session.transfer(one, "in")
        session.commit()
        held = session.get("in")
        assert held is not None
        child = session.clone(session.write(held, b"second!"), 0, 6)
        session.transfer([held, child], "out")
        session.commit()
    provenance = repository.provenance

    page = provenance.search(EventQuery(component="editor", limit=2))
    rest = provenance.search(EventQuery(component="editor", after=page.next or 0))
    newest = provenance.search(EventQuery(newest_first=True))
    modified = provenance.search(EventQuery(types=["CONTENT_MODIFIED"], attributes={"n": "1"}, size_min=7)).events[0]

    assert [event.type for event in (*page.events, *rest.events)] == ["CREATE", "FORK", "CONTENT_MODIFIED"]
    assert newest.events == [*page.events, *rest.events][::-1]
    assert provenance.event(modified.sequence) == provenance.event(modified.id) == modified
    assert provenance.content(modified.id).read() == b"second!"
    assert provenance.content(modified.sequence, 1, 3, previous=True).read() == b"irs"
    graph = provenance.lineage(one.id)
    assert {(event.type, *event.children) for event in graph.events} == {
        ("CREATE",),
        ("FORK", child.id),
        ("CONTENT_MODIFIED",),
    }
    assert [event.type for event in provenance.lineage(one.id, way="parents").events][:1] == ["CREATE"]
    assert provenance.lineage("00000000-0000-0000-0000-000000000000").events == []


def test_an_event_is_replayed_or_refused_with_the_reason(repository: Repository) -> None:
    """What it was about stands in the queue again; an event without a queue needs one to be named."""
    repository.queues.put("in", b"content", {"n": "1"})
    repository.queues.drop("in")
    dropped = repository.provenance.search(EventQuery(types=["DROP"])).events[0]

    replayed = repository.provenance.replay(dropped.id)

    assert (replayed.event, replayed.queue, replayed.size) == (dropped.id, "in", 7)
    assert [one.attributes["n"] for one in repository.queues.flow_files("in")] == ["1"]
    assert repository.provenance.replayability(dropped.id).is_possible
    refusal = repository.provenance.replayability(1)
    assert (refusal.is_possible, refusal.reason) == (False, "no queue")
    with pytest.raises(ReplayRefused) as refused:
        repository.provenance.replay(1)
    assert refused.value.reason == "no queue"


@pytest.mark.parametrize("event", ["9", "9.9", "", "nonsense", "1.x"])
def test_events_that_there_are_not_are_not_found(repository: Repository, event: str) -> None:
    """By number, by id, and what is neither."""
    for call in (repository.provenance.event, repository.provenance.content, repository.provenance.replay):
        with pytest.raises(EventNotFound):
            call(event)


def test_impossible_searches_are_refused(repository: Repository) -> None:
    """Types that there are not, and uuids that are none."""
    for query in (EventQuery(types=["NOTHING"]), EventQuery(flow_file="nobody"), EventQuery(limit=0)):
        with pytest.raises(InvalidArgument):
            repository.provenance.search(query)
    with pytest.raises(InvalidArgument):
        repository.provenance.lineage("nobody")
    with pytest.raises(InvalidArgument):
        repository.provenance.lineage("00000000-0000-0000-0000-000000000000", way="sideways")


def test_dead_space_is_surveyed_planned_and_given_back(repository: Repository) -> None:
    """The plan says what the run then does, and progress is told on the way."""
    repository.queues.put_many("in", [b"x" * 100_000] * 10)
    kept = repository.handles.put(b"kept")
    repository.queues.drop("in")
    space = repository.reclamation

    (container,) = space.survey().containers
    dead = [resource for resource in space.resources() if resource.is_free]
    plan = space.plan()
    run = space.reclaim(bytes_per_second=0, on_progress=lambda _: True)

    assert container.live_bytes == 4
    assert container.dead_bytes >= plan.frees_bytes > 900_000
    assert dead or plan.step_count
    assert run.report is not None
    assert (run.problem, run.report.freed_bytes >= 900_000, run.report.is_stopped) == (None, True, False)
    assert space.runs()[-1].id == run.id
    assert repository.handles.get(kept) == b"kept"
    (resource,) = [resource for resource in space.resources() if resource.live_bytes]
    ranges = space.resource(resource.resource).ranges
    assert sum(each.length for each in ranges) == resource.length
    assert [each.kind for each in ranges].count("live") == 1


def test_what_cannot_be_reclaimed_is_refused(repository: Repository) -> None:
    """Unknown policies, operations and resource claims."""
    space = repository.reclamation
    for call in (lambda: space.plan("Nothing"), lambda: space.reclaim(operations=["Nothing"])):
        with pytest.raises(InvalidArgument):
            call()
    with pytest.raises(NotFound):
        space.resource(4_711)
    assert space.reclaim(operations=["Delete"], resources=[(1, 1)]).report is not None
    assert space.policies().configured in space.policies().names
    assert next((str(each.operation), each.is_allowed) for each in space.windows()) == ("Delete", True)
    assert space.openings() == []


def test_a_plan_and_a_run_keep_to_the_operations_that_are_asked_for(repository: Repository) -> None:
    """What nobody asked for is not in the plan; a run that may not begin anything begins nothing."""
    for name in ("gone", "kept"):
        repository.queues.put_many(name, [bytes(200_000)])
    repository.queues.drop("gone")
    reclamation = repository.reclamation

    assert [step.action for step in reclamation.plan().steps] == ["delete"]
    assert reclamation.plan(operations=("Truncate",)).steps == []
    late = reclamation.reclaim(seconds=0).report
    none = reclamation.reclaim(operations=("Truncate", "Rewrite")).report
    assert late is not None
    assert none is not None
    assert (late.is_stopped or bool(late.left), late.freed_bytes, none.left, none.freed_bytes) == (True, 0, [], 0)
    assert reclamation.maintenance().windows == ()


def test_cleaning_takes_away_what_nobody_refers_to(repository: Repository) -> None:
    """Unused resource claims, and what has expired; what lives stays."""
    kept = repository.handles.put(bytes(200_000))
    repository.queues.put_many("gone", [bytes(200_000)])
    repository.queues.drop("gone")

    cleaned = repository.reclamation.clean(adopts_orphans=True)

    assert (cleaned.report.done["delete"], cleaned.adopted_orphans) == (1, 0)
    assert cleaned.report.freed_bytes >= 200_000
    assert repository.handles.get(kept) == bytes(200_000)


def test_leases_are_taken_renewed_released_and_revoked(repository: Repository) -> None:
    """One that has ended is lost for everybody, and none is longer than the settings allow."""
    leases = repository.leases
    lease = leases.acquire(60_000, purpose="copy")
    repository.handles.put(b"content")
    (resource,) = [each.resource for each in repository.reclamation.resources()]
    other = leases.acquire(60_000, [resource])

    assert lease.holder.endswith("copy")
    assert other.resources == [resource]
    assert leases.renew(lease.id, 120_000).expires_millis > lease.expires_millis
    assert [each.id for each in leases.all()] == [lease.id, other.id]
    assert leases.find(other.id).transaction == other.transaction > lease.transaction
    leases.release(lease.id)
    leases.release(lease.id)
    leases.revoke(other.id)
    for call in (leases.find, leases.revoke, lambda name: leases.renew(name, 1)):
        for ended in (lease.id, other.id, "no lease"):
            with pytest.raises(LeaseLost):
                call(ended)
    with pytest.raises(LeaseRefused):
        leases.acquire(1 << 50)
    with pytest.raises(ClaimGone):
        leases.acquire(60_000, [resource + 1])


def test_what_stands_in_a_queue_is_looked_at_and_read_where_it_is(repository: Repository) -> None:
    """In pages, and by its id alone, a handle too; whoever holds it may go on."""
    contents = [bytes([number]) * (number + 1) * 1_000 for number in range(5)]
    ids = repository.queues.put_many("in", contents)
    handle = repository.handles.put(b"handle")

    assert [one.id for one in repository.queues.flow_files("in", limit=2, skip=2)] == ids[2:4]
    assert [one.id for one in repository.queues.all_flow_files("in")] == ids
    for id, content in zip((*ids, handle), (*contents, b"handle"), strict=True):
        with repository.content(id, 2) as stream:
            assert stream.read() == content[2:]
    with pytest.raises(InvalidArgument):
        repository.content(ids[0], 0, 2_000)
    for unknown in ("00000000-0000-4000-8000-000000000000", "x"):
        with pytest.raises(FlowFileNotFound):
            repository.content(unknown)
    repository.handles.delete(handle)
    with pytest.raises(HandleDeleted):
        repository.content(handle)
    assert repository.queues.find("in").flow_files == 5


ON_DISK = pytest.mark.parametrize("repository", ["embedded", "http", "all transports"], indirect=True)
"""What memory has nothing of: snapshots, and files to copy."""


@ON_DISK
def test_a_checkpoint_covers_everything(repository: Repository) -> None:
    """After it nothing of the log has to be replayed."""
    repository.queues.put("in", b"one")

    written = repository.checkpoint()

    assert written.last_transaction == repository.state().log.last_transaction > 0
    assert written.snapshot_bytes > 0


@ON_DISK
def test_it_is_checked_and_backed_up_while_it_is_used(repository: Repository, tmp_path: Path) -> None:
    """A check finds nothing wrong; a backup has everything, a second one copies only what is new."""
    handle = repository.handles.put(b"content" * 1_000)
    destination = str(tmp_path / "backup")
    report = repository.check(deep=True)
    assert (report.problems, report.orphans, report.flow_files) == ((), (), 1)
    assert report.bytes_verified >= 7_000

    first = repository.backup(destination)
    repository.queues.put("in", b"later")
    second = repository.backup(destination)

    assert first.kept_files == 0 < first.copied_bytes
    assert second.copied_files > 0
    assert second.kept_files + second.copied_files > 0
    copy = ContentRepositorySpec.embedded(tmp_path / "copy")
    Engine.restore_backup(destination, copy)
    with ullage.open(tmp_path / "copy") as restored:
        assert restored.handles.get(handle.partition("@")[0]) == b"content" * 1_000
        assert restored.queues.find("in").flow_files == 1


@ON_DISK
def test_its_backups_are_listed_verified_and_counted(repository: Repository, tmp_path: Path) -> None:
    """Generations, a look at all of it or at a share, what is damaged, and how far each was and who asked for it."""
    destination = str(tmp_path / "backup")
    seen: list[tuple[int, int]] = []
    reports = []
    for number in range(3):
        repository.queues.put("in", b"content" * 10_000 * (number + 1))
        report = repository.backup(destination, keep=Keep(last=2), on_progress=lambda *each: seen.append(each))
        assert seen[-1] == (report.copied_bytes, report.copied_bytes)
        reports.append(report)
    assert [each.sequence for each in repository.generations(destination)] == [2, 3]

    found = repository.verify_backup(destination, on_progress=lambda *each: seen.append(each))
    assert (found.generations, found.damaged, found.read_files, found.read_bytes) == (2, (), found.files, found.bytes)
    assert seen[-1] == (found.bytes, found.bytes)
    assert repository.verify_backup(destination, generation=3).files < found.files
    drawn = [repository.verify_backup(destination, sample=0.5, seed=4) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert (drawn[0].files, drawn[0].seed) == (found.files, 4)
    with pytest.raises(InvalidArgument, match="above 0"):
        repository.verify_backup(destination, sample=0)
    damaged = next((tmp_path / "backup" / "content" / "c1").iterdir())
    damaged.unlink()
    told = repository.verify_backup(destination).damaged
    assert [(each.path, each.reason) for each in told] == [(f"content/c1/{damaged.name}", "it is missing")]
    for call in (
        lambda: repository.generations(f"{destination}-2"),
        lambda: repository.verify_backup(destination, generation=9),
    ):
        with pytest.raises(NotABackup):
            call()

    runs = repository.backup_runs()
    assert [each.action for each in runs] == ["write"] * 3 + ["verify"] * 6
    assert {(each.place, bool(each.owner)) for each in runs} == {(destination, True)}
    assert all(each.began_millis <= (each.ended_millis or 0) for each in runs)
    assert [(each.files_done, each.bytes_done) for each in runs] == [(each.files, each.bytes) for each in runs]
    assert [(each.files, each.bytes) for each in runs[:3]] == [
        (each.copied_files, each.copied_bytes) for each in reports
    ]
    assert [each.slug for each in runs] == [None] * 8 + ["no-backup"]
    assert repository.backup_run(runs[2].id).report == reports[2]
    assert repository.backup_run(runs[3].id).found == found
    for ask in (repository.backup_run, repository.stop_backup):
        with pytest.raises(NotFound):
            ask("none")


def test_its_state_says_what_is_in_it(repository: Repository) -> None:
    """Ids, counts and the log, at one moment."""
    before = repository.state()
    repository.queues.put_many("in", [b"a", b"b"])
    repository.queues.define("full", count_max=1)
    repository.queues.put("full", b"c")
    repository.leases.acquire(60_000)
    after = repository.state()

    assert (before.flow_files, before.queues, before.leases) == (0, 0, 0)
    assert (after.flow_files, after.queues, after.leases, after.full_queues) == (3, 2, 1, ["full"])
    assert after.repository == before.repository
    assert after.log.durable_transaction > before.log.durable_transaction
    assert (after.is_ready, after.is_stopping, after.failures) == (True, False, [])


def test_pages_of_what_is_large_end_early_and_go_on(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handles, FlowFiles and events, two to a page; what is larger than a page is one by itself."""
    monkeypatch.setattr("ullage.engine.paging.PAGE_BYTES", 25_000)
    sizes = [10_000, 10_000, 10_000, 60_000, 10, 10]
    ids = repository.queues.put_many("in", [b""] * 6, [{"text": "t" * size} for size in sizes])
    handles = repository.handles.put_many([b""] * 5, [{"text": "t" * 10_000}] * 5)

    first = repository.handles.page()
    assert [one.handle for one in first.handles] == sorted(handles)[:2]
    assert first.next == first.handles[-1].id
    assert [one.handle for one in repository.handles.all()] == sorted(handles)

    assert [one.id for one in repository.queues.flow_files("in")] == ids[:2]
    assert [one.id for one in repository.queues.flow_files("in", skip=3)] == ids[3:4]
    assert [one.id for one in repository.queues.all_flow_files("in")] == ids

    pages: list[int] = []
    after: int | None = 0
    while after is not None:
        page = repository.provenance.search(EventQuery(after=after))
        pages.append(len(page.events))
        after = page.next
    assert pages == [2, 1, 1, 4, 2, 1]


@ON_DISK
def test_a_directory_that_takes_no_backup_is_named_with_its_reason(repository: Repository, tmp_path: Path) -> None:
    """Also by a service, which says nothing of errors that it did not foresee."""
    long = str(tmp_path / ("x" * 300))
    with pytest.raises(DirectoryUnusable, match=r"xxx: File name too long\. Say another place"):
        repository.backup(long)
    place = tmp_path / "backup"
    repository.backup(str(place))
    (place / "flowfile" / "mine").mkdir()
    (place / "flowfile" / "mine" / "file").write_bytes(b"mine")
    for ask in (repository.backup, repository.verify_backup):
        ask(str(place))
    assert (place / "flowfile" / "mine" / "file").read_bytes() == b"mine"

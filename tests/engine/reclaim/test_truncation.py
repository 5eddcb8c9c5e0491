"""Tail truncation (NIFI-15570): what it frees, when it runs, and what it must never cut."""

import io
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import Workshop, committing, containers, content_sizes, drain, put_all
from ullage.contract import Quantity, TruncationMode
from ullage.engine.engine import Engine
from ullage.engine.model import Action, parse_uuid
from ullage.engine.reclaim.plan import plan_release

KB = 1024
MB = 1 << 20
GB = 1 << 30
EAGER = {"mode": TruncationMode.EAGER}
QUOTA = containers(c1=100 * MB)


def file_sizes(workshop: Workshop) -> list[int]:
    return list(content_sizes(workshop.path).values())


def put_with_tail(repository: Engine, tail: int = 2 * MB) -> None:
    """100 bytes into queue `keep`, and behind them in the same file a large claim into queue `tail`."""
    with committing(repository) as session:
        session.ingest("keep", [b"k" * 100])
        session.ingest("tail", [b"t" * tail])


@pytest.fixture
def repository(workshop: Workshop) -> Engine:
    """One that cuts at once, with a tail that lives."""
    made = workshop.make(truncation=EAGER)
    put_with_tail(made)
    return made


@pytest.mark.parametrize("restart", ["none", "clean", "crash"])
def test_the_seeds_example_frees_the_gigabyte(workshop: Workshop, restart: str) -> None:
    """Of 1, 2, 4, 3 KB and 1 GB in one file exactly 10 KB remain when the gigabyte is gone, and they read back."""
    repository = workshop.make(truncation=EAGER)
    small = [bytes([number]) * size * KB for number, size in enumerate((1, 2, 4, 3))]
    piece = b"\0" * (4 * MB)

    def gigabyte() -> Iterator[bytes]:
        for _ in range(GB // len(piece)):
            yield piece

    with committing(repository) as session:
        session.ingest("small", small)
        large = session.write(session.create(), gigabyte())
        session.transfer(large, "large")
    before = file_sizes(workshop)
    repository.queues.drop(repository.queue("large"))
    repository = workshop.restart(restart)
    report = repository.reclamation.truncate()

    assert before == [12 * KB + GB]  # the gigabyte starts on a 4 KiB boundary
    assert file_sizes(workshop) == [10 * KB]
    assert report.freed_bytes == GB  # what is left takes the three blocks that it took before
    assert drain(repository, "small") == small


@pytest.mark.parametrize("restart", ["none", "clean", "crash", "swapped"])
def test_ten_batches_shrink_to_92_160_bytes(workshop: Workshop, restart: str) -> None:
    """Ten times nine claims of 1 KB and one of 10 MB: what is left is exactly the ninety small ones."""
    swapped = {"swap_threshold": 10, "swap_batch": 5} if restart == "swapped" else {}
    repository = workshop.make(truncation=EAGER, flow_file=swapped)
    for _ in range(10):
        with committing(repository) as session:
            session.ingest("small", [b"s" * KB] * 9)
            session.ingest("large", [b"L" * (10 * MB)])
    assert sum(file_sizes(workshop)) >= 100 * MB
    repository.queues.drop(repository.queue("large"))
    repository = workshop.restart("clean" if restart == "swapped" else restart)

    repository.reclamation.truncate()

    assert sum(file_sizes(workshop)) == 92_160
    assert drain(repository, "small") == [b"s" * KB] * 90


@pytest.mark.parametrize(("tail", "cut"), [(9 * KB, False), (11 * KB, True)])
def test_the_minimum_size_is_a_setting(workshop: Workshop, tail: int, cut: bool) -> None:
    """Dead tails up to the smaller of largeClaim and maxAppendableSize are left alone."""
    claims = {"max_appendable_size": Quantity(10 * KB), "large_claim": Quantity(MB), "max_flow_files": 2}
    repository = workshop.make(truncation=EAGER, claims=claims)
    put_with_tail(repository, tail)
    drain(repository, "tail")

    repository.reclamation.truncate()

    assert file_sizes(workshop) == [100 if cut else 100 + tail]


def test_content_replacement_releases_the_old_tail(workshop: Workshop, repository: Engine) -> None:
    """An overwrite frees the old claim as a removal does."""
    with committing(repository) as session:
        (tail,) = session.get_many("tail", 1)
        session.transfer(session.write(tail, b"short"), "tail")

    repository.reclamation.truncate()

    assert sorted(file_sizes(workshop)) == [5, 100]
    assert drain(repository, "tail") == [b"short"]


def test_nothing_is_taken_before_its_transaction_is_durable(workshop: Workshop) -> None:
    """A death that is applied but not synced is kept in the queue, and truncated once it is durable."""
    repository = workshop.make(truncation=EAGER)
    repository.reclamation.truncate()
    put_with_tail(repository)
    drain(repository, "tail")
    log: Any = repository.log
    durable = log._durable

    log._durable = 0
    assert repository.reclamation._take_candidates() == set()
    log._durable = durable
    repository.reclamation.truncate()

    assert file_sizes(workshop) == [100]


def test_pressure_mode_waits_for_an_empty_archive_and_the_threshold_and_loses_nothing(workshop: Workshop) -> None:
    """Deferred while usage is low, while the archive holds something, and cut by the first run after both."""
    repository = workshop.make(storage=QUOTA, archive={"max_usage_percentage": 40})
    put_with_tail(repository, 30 * MB)
    drain(repository, "tail")

    low = [repository.reclamation.truncate().freed_bytes for _ in range(3)]
    put_all(repository, "live", [b"l" * (30 * MB)])
    put_all(repository, "archived", [b"a" * MB])
    drain(repository, "archived")
    repository.reclamation.execute(plan_release(repository.reclamation.survey().resources, repository.spec.archive))
    archived = repository.reclamation.truncate().freed_bytes
    repository.reclamation.clean()
    freed = repository.reclamation.truncate().freed_bytes

    assert low == [0, 0, 0]
    assert archived == 0
    assert freed >= 30 * MB
    assert 100 in file_sizes(workshop)


def test_disabled_truncation_cuts_nothing_unless_asked_eagerly(workshop: Workshop) -> None:
    """The switch stops the task; an admin's eager plan still works."""
    repository = workshop.make(truncation={"enabled": False, "mode": TruncationMode.EAGER})
    put_with_tail(repository)
    drain(repository, "tail")

    assert repository.reclamation.truncate().freed_bytes == 0
    plan = repository.reclamation.plan_truncation(eager=True)
    repository.reclamation.execute(plan)

    assert file_sizes(workshop) == [100]


def test_an_unsealed_file_is_never_cut(workshop: Workshop) -> None:
    """A dead tail of a file that may still be appended to waits, and goes when the file is sealed."""
    claims = {"max_appendable_size": Quantity(10 * MB), "max_flow_files": 3}
    repository = workshop.make(truncation=EAGER, claims=claims)
    put_with_tail(repository, 600 * KB)
    drain(repository, "tail")

    repository.reclamation.truncate()
    unsealed = file_sizes(workshop)
    put_all(repository, "tail", [b"t" * 600 * KB])
    drain(repository, "tail")
    repository.reclamation.truncate()

    assert unsealed == [100 + 600 * KB]
    assert file_sizes(workshop) == [100]


def test_an_unsealed_dead_tail_is_remembered_until_the_seal(workshop: Workshop) -> None:
    """No death says it again when the file is sealed later, by a session that was rolled back."""
    claims = {"max_appendable_size": Quantity(10 * MB)}
    repository = workshop.make(truncation=EAGER, claims=claims)
    repository.reclamation.truncate()
    put_with_tail(repository, 600 * KB)
    put_all(repository, "tail", [b"t" * 600 * KB])
    drain(repository, "tail")
    repository.reclamation.truncate()
    unsealed = file_sizes(workshop)

    with repository.session() as session:
        session.write(session.create(), b"L" * (2 * MB))
    repository.reclamation.truncate()

    assert unsealed == [100 + 1200 * KB]
    assert file_sizes(workshop) == [100]


@pytest.mark.parametrize("recover", [False, True])
def test_a_clone_keeps_the_tail(workshop: Workshop, repository: Engine, recover: bool) -> None:
    """NIFI-15732 and 15913: also when the original was recovered before it was cloned."""
    if recover:
        repository = workshop.crash()
    with committing(repository) as session:
        (tail,) = session.get_many("tail", 1)
        session.transfer(session.clone(tail), "clone")
        session.transfer(tail, "tail")
    drain(repository, "tail")
    if recover:
        repository = workshop.reopen()

    freed = repository.reclamation.truncate().freed_bytes
    survivors = drain(repository, "clone")
    later = repository.reclamation.truncate().freed_bytes

    assert freed == 0
    assert survivors == [b"t" * (2 * MB)]
    assert later > 0


def test_a_clone_born_and_removed_in_one_session_counts_for_nothing(repository: Engine) -> None:
    """NIFI-16098: it takes no claimant away from the original."""
    with committing(repository) as session:
        (tail,) = session.get_many("tail", 1)
        session.remove(session.clone(tail))
        session.transfer(tail, "tail")

    assert repository.reclamation.truncate().freed_bytes == 0
    assert drain(repository, "tail") == [b"t" * (2 * MB)]


def test_content_that_arrives_from_elsewhere_is_kept(workshop: Workshop, repository: Engine) -> None:
    """A stream imported over an old content, and a handle's content imported without a copy."""
    handle = repository.handles.put(b"h" * (2 * MB))
    with committing(repository) as session:
        (tail,) = session.get_many("tail", 1)
        session.transfer(session.write(tail, io.BytesIO(b"i" * (2 * MB))), "tail")
        session.transfer(session.import_handle(parse_uuid(handle)), "imported")
    workshop.forget(handle)

    repository.reclamation.truncate()
    repository.reclamation.clean()

    assert drain(repository, "tail") == [b"i" * (2 * MB)]
    assert drain(workshop.crash(), "imported") == [b"h" * (2 * MB)]


def test_a_slice_keeps_its_whole_base_claim(repository: Engine) -> None:
    """Ten bytes of a split keep the run they are a slice of, and nothing once they are gone."""
    with committing(repository) as session:
        (tail,) = session.get_many("tail", 1)
        for fragment in session.split(tail, [10, 20]):
            session.transfer(fragment, "fragments")
        session.remove(tail)

    kept = repository.reclamation.truncate().freed_bytes
    fragments = drain(repository, "fragments")
    freed = repository.reclamation.truncate().freed_bytes

    assert (kept, fragments) == (0, [b"t" * 10, b"t" * 20])
    assert freed == 2 * MB


def test_an_open_reader_keeps_the_tail(workshop: Workshop) -> None:
    """A handle's stream is read to its end across delete, purge, truncation and cleaning."""
    repository = workshop.make(truncation=EAGER, archive={"enabled": False})
    put_all(repository, "keep", [b"k" * 100])
    handle = repository.handles.put(b"h" * (2 * MB))
    stream = repository.handles.get(handle)
    first = stream.read(1000)
    workshop.forget(handle)

    pinned = repository.reclamation.truncate().freed_bytes
    repository.reclamation.clean()
    rest = stream.read()
    stream.close()
    freed = repository.reclamation.truncate().freed_bytes

    assert pinned == 0
    assert first + rest == b"h" * (2 * MB)
    assert freed == 2 * MB


def test_a_plan_of_an_older_generation_is_skipped(repository: Engine) -> None:
    """A plan chooses, it never authorises; executed twice it does nothing the second time."""
    drain(repository, "tail")
    plan = repository.reclamation.plan_truncation()

    first = repository.reclamation.execute(plan)
    second = repository.reclamation.execute(plan)

    assert (first.done, first.skipped) == ({Action.TRUNCATE: 1}, 0)
    assert (second.done, second.freed_bytes, second.skipped) == ({}, 0, 1)


def test_a_claim_that_came_to_life_after_the_plan_is_not_cut(workshop: Workshop) -> None:
    """The executor derives the tail again: a pin taken since then makes the step smaller or void."""
    repository = workshop.make(truncation=EAGER)
    put_all(repository, "keep", [b"k" * 100])
    handle = repository.handles.put(b"h" * (2 * MB))
    stream = repository.handles.get(handle)
    workshop.forget(handle)
    pins = next(entry.pins for entry in repository.ledger.entries())
    (entry,) = repository.ledger.entries()
    entry.pins = None
    plan = repository.reclamation.plan_truncation()
    entry.pins = pins

    report = repository.reclamation.execute(plan)

    assert len(plan.steps) == 1
    assert report.skipped == 1
    assert stream.read() == b"h" * (2 * MB)
    stream.close()


def test_swapped_flow_files_keep_their_tail_and_give_it_back_after_swap_in(workshop: Workshop) -> None:
    """Ends are exact with swap files around, after a crash, and after the FlowFiles came back to memory."""
    repository = workshop.make(truncation=EAGER, flow_file={"swap_threshold": 4, "swap_batch": 2})
    for _ in range(12):
        put_with_tail(repository)
    assert repository.queue("tail").figures().swapped > 0
    repository = workshop.crash()

    while_live = repository.reclamation.truncate().freed_bytes
    contents = drain(repository, "tail")
    repository.reclamation.truncate()

    assert while_live == 0
    assert contents == [b"t" * (2 * MB)] * 12
    assert sum(file_sizes(workshop)) == 1_200
    assert drain(repository, "keep") == [b"k" * 100] * 12


def test_dropping_a_swapped_queue_gives_its_tails_back(workshop: Workshop) -> None:
    """A queue of swapped FlowFiles dies file by file without coming back to memory."""
    repository = workshop.make(truncation=EAGER, flow_file={"swap_threshold": 4, "swap_batch": 2})
    for _ in range(12):
        put_with_tail(repository)

    repository.queues.drop(repository.queue("tail"))
    repository.reclamation.truncate()

    assert sum(file_sizes(workshop)) == 1_200


def test_archive_partial_keeps_dead_tails_for_the_retention(workshop: Workshop) -> None:
    """With it nothing of a partly live file goes before the retention has passed since its last death."""
    archive = {"partial": True, "max_usage_percentage": 1}
    repository = workshop.make(storage=QUOTA, archive=archive, truncation={"usage_threshold_percentage": 1})
    put_with_tail(repository)
    workshop.clock.advance(11 * 3600)
    drain(repository, "tail")
    workshop.clock.advance(11 * 3600)

    early = repository.reclamation.truncate().freed_bytes
    repository = workshop.crash()
    recovered = repository.reclamation.truncate().freed_bytes
    workshop.clock.advance(2 * 3600)
    late = repository.reclamation.truncate().freed_bytes

    assert (early, recovered) == (0, 0)
    assert late == 2 * MB
    assert repository.queue("keep").figures().flow_files == 1

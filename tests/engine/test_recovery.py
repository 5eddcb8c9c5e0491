"""After an unclean end: a start serves at once, and what the log brought back is proved behind it."""

import pytest

from tests.failing_files import FailingFiles
from tests.support import Workshop, claim_of, drain, entry_of, flip, put_all
from ullage.embedded.repository import recovery_of
from ullage.engine.engine import Engine
from ullage.engine.model import Action
from ullage.engine.wal.format import FILE_MAGIC, unpack_file_header
from ullage.wire.upkeep import RecoveryReport

MB = 1 << 20


def test_a_start_reads_no_content(workshop: Workshop) -> None:
    """However much was written since the last checkpoint: it is served at once, and proved afterwards."""
    repository = workshop.make()
    put_all(repository, "q", [b"x" * MB] * 20)
    workshop.kill()
    files = FailingFiles()

    repository = workshop.open(files)

    assert files.count("read", "*/c1/*/*") == 0
    assert repository.proof.files_left > 0
    repository.proof.run()
    assert files.count("read", "*/c1/*/*") > 0
    assert repository.proof.files_left == 0


def test_what_is_not_proved_stays_marked_over_crashes_and_is_not_reclaimed(workshop: Workshop) -> None:
    """A second kill before the proof was done forgets nothing; proved, the file is given back like any other."""
    repository = workshop.make()
    put_all(repository, "q", [bytes([n]) * 200_000 for n in range(30)])
    with repository.session() as session:
        session.remove_many(session.get_many("q", 29))
        session.commit()
    for _ in range(2):
        workshop.kill()
        repository = workshop.open()
        assert repository.compactor.execute(repository.compactor.plan(policy="CompactAll")).freed_bytes == 0
    repository = workshop.reopen()
    assert [entry.claim.unproved for entry in repository.ledger.entries()] == [True]

    repository.proof.run()

    assert [entry.claim.unproved for entry in repository.ledger.entries()] == [False]
    assert repository.compactor.execute(repository.compactor.plan(policy="CompactAll")).freed_bytes > 5 * MB
    assert drain(workshop.crash(), "q") == [bytes([29]) * 200_000]


@pytest.mark.parametrize("action", [Action.PUNCH, Action.REWRITE])
def test_a_start_goes_past_what_reclamation_took_from_swapped_neighbours(workshop: Workshop, action: Action) -> None:
    """Swap, removal and reclamation since the last checkpoint, then a kill: what is dead and gone is nobody's loss."""
    repository = workshop.make(flow_file={"swap_threshold": 100, "swap_batch": 50})
    contents = [b"%04d" % number * 1_500 for number in range(600)]
    put_all(repository, "q", contents)
    with repository.session() as session:
        session.remove_many(session.get_many("q", 330))
        session.commit()
    plan = repository.compactor.plan(policy="CompactAll", actions=frozenset({action}))
    assert repository.compactor.execute(plan).freed_bytes > 0

    repository = workshop.crash()

    assert drain(repository, "q") == contents[330:]


def test_dead_content_is_not_asked_for(workshop: Workshop, repository: Engine) -> None:
    """What nobody needs any more cannot stop a start."""
    record = put_all(repository, "q", [b"x" * MB])[0]
    drain(repository, "q")
    workshop.kill()
    flip(workshop.content_file(claim_of(record).resource), 5)

    assert workshop.open().restored.clean is False


def test_every_file_is_sealed_with_its_real_length(workshop: Workshop, repository: Engine) -> None:
    """Also with bytes of a session that never committed, which are dead from now on."""
    record = put_all(repository, "q", [b"committed"])[0]
    session = repository.session()
    session.write(session.create(), b"L" * (2 * MB))

    repository = workshop.crash()

    entry = entry_of(repository, record)
    assert entry.claim.sealed
    assert entry.claim.length == workshop.content_file(claim_of(record).resource).stat().st_size == 4096 + 2 * MB
    assert repository.content.containers["c1"].bytes_used == 4096 + 2 * MB


def test_an_open_file_is_synced_before_a_snapshot_seals_it(workshop: Workshop, repository: Engine) -> None:
    """The page cache may show more of it than the disk holds: a seal must never count bytes that a crash takes away."""
    put_all(repository, "q", [b"x"])
    workshop.kill()
    files = FailingFiles()

    workshop.open(files)

    order = [
        files.calls.index(("sync", str(workshop.content_file(1)))),
        files.calls.index(("rename", str(workshop.path / "flowfile" / "snapshot"))),
    ]
    assert order == sorted(order)


def test_a_clean_end_needs_no_proof(workshop: Workshop, repository: Engine) -> None:
    """The log's close frame says that nothing was in flight."""
    put_all(repository, "q", [b"x"])
    workshop.close()
    files = FailingFiles()

    repository = workshop.open(files)

    assert repository.restored.clean
    assert files.count("sync", "*/c1/*") == 0


def test_what_a_clean_close_left_open_is_sealed_by_the_next_start(workshop: Workshop, repository: Engine) -> None:
    """A session that outlived its repository keeps a file from being sealed at close, but not for ever."""
    record = put_all(repository, "q", [b"x"])[0]
    session = repository.session()
    session.ingest("q", [b"never committed"])
    workshop.shut()
    session.rollback()
    repository = workshop.open()
    assert repository.restored.clean
    entry = entry_of(repository, record)

    assert entry.claim.sealed
    assert entry.claim.length == repository.content.containers["c1"].bytes_used
    assert repository.check(deep=True).problems == ()


def test_a_start_tells_of_a_log_that_holds_nothing_but_torn_bytes(workshop: Workshop) -> None:
    """Of what was in it nothing can be said; after a kill in which nothing was begun there is nothing to tell."""
    workshop.make()
    assert recovery_of(workshop.crash()) is None
    workshop.kill()
    newest = max((workshop.path / "flowfile" / "partition-0").iterdir())
    found = unpack_file_header(FILE_MAGIC, newest.read_bytes())
    assert found is not None
    with newest.open("r+b") as file:
        file.seek(found[1])
        file.write(b"junk")

    assert recovery_of(workshop.open()) == RecoveryReport(transactions=0, torn_bytes=4, discarded=0)

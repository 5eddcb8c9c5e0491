"""What the survey calls disk, live, dead, and what it shows apart."""

from tests.support import Workshop, committing, put_all
from ullage.engine.engine import Engine
from ullage.engine.model import parse_uuid

KB = 1024


def test_what_tombstones_keep_stands_apart(workshop: Workshop) -> None:
    """A deleted handle's bytes are neither live nor dead until its retention ends, then they are dead."""
    repository = workshop.make(archive={"enabled": False})
    repository.handles.put(b"k" * KB)
    deleted = repository.handles.put(b"d" * 3 * KB)

    repository.handles.delete(deleted)
    kept = repository.reclamation.survey().containers[0]
    workshop.clock.advance(8 * 24 * 3600)
    repository.handles.purge()
    purged = repository.reclamation.survey().containers[0]

    assert (kept.disk_bytes, kept.live_bytes, kept.dead_bytes, kept.tombstone_bytes) == (KB, KB, 0, 3 * KB)
    assert (purged.disk_bytes, purged.live_bytes, purged.dead_bytes, purged.tombstone_bytes) == (4 * KB, KB, 3 * KB, 0)


def test_an_undeleted_handle_is_live_again(repository: Engine) -> None:
    """Nothing stands apart once the tombstone is gone."""
    handle = repository.handles.put(b"h" * KB)
    repository.handles.delete(handle)

    repository.handles.undelete(handle)

    figures = repository.reclamation.survey().containers[0]
    assert (figures.live_bytes, figures.tombstone_bytes) == (KB, 0)


def test_a_claim_that_a_flow_file_shares_with_a_tombstone_is_live(repository: Engine) -> None:
    """One living claimant is enough."""
    handle = repository.handles.put(b"h" * KB)
    with committing(repository) as session:
        flow_file = session.import_handle(parse_uuid(handle))
        session.transfer(flow_file, "q")

    repository.handles.delete(handle)

    figures = repository.reclamation.survey().containers[0]
    assert (figures.live_bytes, figures.tombstone_bytes) == (KB, 0)


def test_a_dead_tail_behind_content_shared_with_a_swap_file_is_seen(workshop: Workshop) -> None:
    """Bytes that a resident and a swapped FlowFile share count on both sides, and hide no dead tail for that."""
    repository = workshop.make(flow_file={"swap_threshold": 2, "swap_batch": 2})
    with committing(repository) as session:
        small = session.write(session.create(), b"s" * 40 * KB)
        large = session.write(session.create(), b"l" * 60 * KB)
        for _ in range(8):
            session.transfer(session.clone(small), "swapping")
        session.transfer(small, "kept")
        session.transfer(large, "large")
    put_all(repository, "other", [b"x"])

    repository.queues.drop(repository.queue("large"))

    figures = repository.reclamation.survey().resources[0]
    assert repository.queue("swapping").figures().swapped > 0
    assert figures.dead_tail_bytes == 60 * KB

"""What workloads do to handles that rest on the disk: see `tests.crash.steps`."""

from tests.crash.specs import Restart
from tests.crash.steps import (
    LARGE,
    Step,
    broken,
    checkpoint,
    clean,
    deed,
    fails,
    maintain,
    patterned,
    truncate,
)
from tests.support import ManualClock
from ullage.engine.engine import Engine


@deed
def rest(repository: Engine, clock: ManualClock, *sizes: int) -> None:
    """Put handles whose content is in files that are sealed, so that they may leave memory."""
    repository.handles.put_many([patterned(size) for size in sizes], {"kind": "rests"})
    repository.content.retire_idle()
    if seals := repository.content.take_seals():
        repository.committer.commit(seals, creates=False)


def revise(repository: Engine, clock: ManualClock) -> None:
    """Delete a handle that rests, delete one and bring it back, let one end, and give one up."""
    found = [record for record in repository.handles.page(b"", 100) if record.claim and not record.deleted_millis]
    deleted, undeleted, ending, forgotten = sorted(found, key=lambda record: record.queued)[:4]
    repository.handles.delete(deleted.id)
    repository.handles.delete(undeleted.id)
    repository.handles.undelete(undeleted.id)
    repository.handles.set_ttl(ending.id, 60_000)
    repository.handles.forget([forgotten.uuid], "not needed")


def cool(repository: Engine, clock: ManualClock) -> None:
    """A snapshot before which handles that rest leave memory; what runs there are become one, with the next one."""
    repository.spaces.handles.rows_min = 1
    checkpoint(repository, clock)
    while repository.spaces.handles.merge_step():
        continue


def renew(repository: Engine, clock: ManualClock) -> None:
    """A run is written anew, which the next snapshot lists."""
    assert repository.spaces.handles.rewrite(frozenset(run.listed.number for run in repository.ledger.cold.runs))


def do_without(repository: Engine, clock: ManualClock) -> None:
    """A person gives up what of runs cannot be read just now."""
    assert [*repository.spaces.handles.problems(deep=True)]
    asides = repository.set_aside.listed(10)
    assert repository.set_aside.drop([aside.id for aside in asides], "somebody") == len(asides) > 0


HANDLE_RUNS: list[Step | Restart] = [
    *[rest(30, 40, 50), rest(60, 70), cool, rest(35, 45, LARGE), cool, revise, checkpoint, clean],
    Restart(is_kill=True),
    *[rest(55, 65), cool, revise],
    Restart(),
    *[rest(75, 85), revise, cool, maintain(120), checkpoint, truncate],
]
"""Runs are written, merged while handles leave them, listed, and left out; a start finds all of it."""

HANDLE_RUN_ERRORS: list[Step | Restart] = [
    *[rest(30, 40, 50, 60), cool, rest(55, 65), broken(cool, fails("write", "*/handles/*.run"))],
    broken(cool, fails("sync", "*/handles/*.run"), fails("unlink", "*/handles/*.run")),
    broken(cool, fails("sync_directory", "*/runs/handles")),
    broken(cool, fails("size", "*/handles/*.run", times=2)),
    broken(cool, fails("write", "*/claims/*.run")),
    broken(cool, fails("sync", "*/claims/*.run"), fails("unlink", "*/claims/*.run")),
    broken(cool, fails("sync_directory", "*/runs/claims")),
    *[broken(cool, fails("write", "*/snapshot.partial")), cool, revise, rest(70)],
    *[broken(cool, fails("rename", "*/snapshot.partial")), revise, checkpoint],
    *[renew, broken(do_without, fails("read", "*/handles/*.run", times=2)), rest(55), cool],
]

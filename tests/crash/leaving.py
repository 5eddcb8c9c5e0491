"""Workloads of records that leave memory for runs, and the steps that only these take."""

from tests.crash.specs import Restart
from tests.crash.steps import KB, Step, answered, broken, checkpoint, clean, deed, drop, fails, put, take, wait
from tests.support import ManualClock
from ullage.engine.engine import Engine
from ullage.engine.model import ClaimBlocks

SEVERAL_BLOCKS = 257 * KB
"""The least that has block checksums, for few workloads."""


@deed
def has_blocks(repository: Engine, clock: ManualClock, queue: str) -> None:
    """The last FlowFile's content has block checksums, as a larger one would."""
    claim = repository.queue(queue).records()[-1].claim
    assert claim is not None, "an empty content"
    repository.committer.commit([ClaimBlocks(claim.resource, claim.offset, b"8 bytes!")], creates=True)


def merge_runs(repository: Engine, clock: ManualClock) -> None:
    """Runs of block checksums become one, in as many steps as that can take."""
    while repository.spaces.blocks.merge_step(1):
        continue


def checkpoint_of_merged(repository: Engine, clock: ManualClock) -> None:
    """A snapshot while whose records are written runs become one."""
    repository.checkpoint(lambda _: merge_runs(repository, clock))


ANSWERS: list[Step | Restart] = [
    *[answered(1), put("a", 50), checkpoint, answered(1), answered(4), checkpoint],
    wait(2_000),
    answered(7),
    Restart(is_kill=True),
    *[answered(7), answered(10), checkpoint, answered(13)],
    Restart(),
    *[answered(7), wait(1_700), checkpoint],
]

BLOCKS: list[Step | Restart] = [
    *[put("a", SEVERAL_BLOCKS), checkpoint],
    *[put("a", 30), has_blocks("a"), checkpoint, take("a", 1), checkpoint],
    *[has_blocks("a"), checkpoint],
    *[has_blocks("a"), checkpoint_of_merged],
    Restart(is_kill=True),
    *[merge_runs, put("a", 40), checkpoint],
    *[has_blocks("a"), checkpoint] * 3,
    *[has_blocks("a"), checkpoint_of_merged],
    broken(checkpoint, fails("write", "*/snapshot.partial")),
    *[drop("a"), clean, checkpoint],
]

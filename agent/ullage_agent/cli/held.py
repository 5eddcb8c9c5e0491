"""`ullage held`: a person's word about FlowFiles that a salvage held, because something that is lost may say more."""

import click

from ullage import Repository
from ullage.wire.salvage import HELD_IN, HELD_QUEUE, HELD_REASON, HELD_UUID
from ullage_agent.cli.choice import ChosenRepository
from ullage_agent.cli.options import Group, on_repository
from ullage_agent.cli.output import many, tell_or_print

BATCH = 1_000


@click.group(cls=Group)
def held() -> None:
    """FlowFiles that a salvage put into queue `salvaged`. `ullage drop salvaged` gives them up."""


@held.command()
@on_repository
def release(where: ChosenRepository, as_json: bool) -> None:
    """Put them at the end of the queues that they were in. Handles have none, and stay: `ullage get UUID` reads them.

    Drop first what was processed before the repository was damaged, or it is processed again.
    """
    with where.opened() as repository:
        count = repository.queues.find(HELD_QUEUE).flow_files
        released = sum(_release(repository, min(BATCH, count - at)) for at in range(0, count, BATCH))
        left = repository.queues.find(HELD_QUEUE).flow_files
    what = f"{many(released, 'FlowFile')} put back, {left:,} left in queue {HELD_QUEUE}"
    tell_or_print({"released": released, "left": left}, what, as_json)


def _release(repository: Repository, count: int) -> int:
    """One batch; what stays goes to the end of the queue, so that the next batch is another one."""
    released = 0
    with repository.session("ullage held release") as session:
        for flow_file in session.get_many(HELD_QUEUE, count):
            queue = flow_file.attributes.get(HELD_IN)
            if queue:
                session.transfer(session.remove_attributes(flow_file, (HELD_IN, HELD_REASON, HELD_UUID)), queue)
                released += 1
            else:
                session.transfer(flow_file, HELD_QUEUE)
        session.commit()
    return released

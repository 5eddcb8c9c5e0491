"""What `ullage restore` and `kubectl ullage restore` both take: of which moment, and which parts; and both tell.

Not among the other options: times need the contract, whose import doubles what each --help costs.
"""

from typing import Final

from ullage_agent.cli.options import option
from ullage_agent.cli.output import many
from ullage_agent.cli.times import FORMS, time_option

restored_moment: Final = option(
    "--at",
    "at_millis",
    callback=time_option,
    metavar="TIME",
    default="",
    help=f"Restore the state of this moment, {FORMS}.",
)
restored_queues: Final = option(
    "--queue", "queues", metavar="NAME", multiple=True, help="Restore only this queue; may be repeated."
)
restored_ids: Final = option(
    "--id", "ids", metavar="ID", multiple=True, help="Restore only this FlowFile or handle; may be repeated."
)


def left_out(count: int) -> str:
    """What to say of FlowFiles and handles that a register of erasures kept from coming back."""
    return f"left out, as a register says that they were erased: {many(count, 'FlowFile')} (handles included)"

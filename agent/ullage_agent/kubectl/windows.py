"""`kubectl ullage windows`: when a fleet may be reclaimed."""

from ullage_agent.cli.options import command, option
from ullage_agent.cli.windows import show_windows
from ullage_agent.kubectl.cluster import Cluster
from ullage_agent.kubectl.options import on_cluster, output, repository
from ullage_agent.kubectl.settings import spec_of


@command(short_help="Show whether each operation may run now, until when, and why.")
@repository
@option(
    "--at",
    metavar="TIME",
    help="Show them at this moment: 2026-03-29T01:30 in the schedules' time zone, or with +01:00 behind it.",
)
@output
@on_cluster
def windows(cluster: Cluster, name: str, at: str | None, shape: str) -> None:
    """Show for each operation whether the windows allow it now, and why; when that ends, and when they open next.

    Worked out here, of what the ContentRepository says: no agent is asked.
    """
    show_windows(spec_of(cluster.repository(name)).maintenance, at, shape == "json")

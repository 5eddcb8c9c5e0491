"""`kubectl ullage logs`: what the agents of a fleet say, each line with its node."""

import click

from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.options import DURATION, command, option
from ullage_agent.cli.output import say, tell
from ullage_agent.kubectl.cluster import Cluster, Object
from ullage_agent.kubectl.options import nodes_chosen, on_cluster, repository
from ullage_agent.kubectl.trouble import Trouble

TAIL_LINES = 100


@command(short_help="Show the last lines of the agents' logs.")
@repository
@nodes_chosen
@option("--tail", metavar="LINES", type=click.IntRange(min=0), default=TAIL_LINES, help="The last lines of each agent.")
@option("--since", type=DURATION, help="Only those of this long, such as 10m.")
@on_cluster
def logs(cluster: Cluster, name: str, chosen: tuple[str, ...], tail: int, since: int | None) -> None:
    """Show the last lines of each agent's log, those of one node after the other.

    To follow them: `kubectl logs -f -l ullage.dev/repository=NAME --prefix`.
    """
    missing = False
    for pod in pods_of(cluster, name, chosen):
        node = pod["spec"].get("nodeName") or pod["metadata"]["name"]
        seconds = None if since is None else max(1, since // 1000)
        try:
            text = cluster.log(pod["metadata"]["namespace"], pod["metadata"]["name"], tail=tail, since=seconds)
        except Trouble as error:
            say(f"{node}: {error.message}")
            missing = True
            continue
        for line in text.splitlines():
            tell(f"{node}: {line}")
    if missing:
        raise click.exceptions.Exit(ExitCode.INCOMPLETE)


def pods_of(cluster: Cluster, name: str, chosen: tuple[str, ...]) -> list[Object]:
    """The agents' pods by node, of all nodes if none is chosen. Trouble for a node without one."""
    found = cluster.repository(name)
    pods = cluster.pods(found["metadata"]["namespace"], name)
    by_node = {each["spec"]["nodeName"]: each for each in pods if each["spec"].get("nodeName")}
    if unknown := sorted(set(chosen) - set(by_node)):
        raise Trouble(
            f"no agent of {name} runs on {', '.join(unknown)}; agents run on: {', '.join(sorted(by_node)) or 'none'}",
            ExitCode.NOT_FOUND,
        )
    return [by_node[node] for node in sorted(by_node) if not chosen or node in chosen]

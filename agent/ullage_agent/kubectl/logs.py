"""`kubectl ullage logs`: what the agents of a fleet say, each line with its node."""

import threading
from collections.abc import Iterator
from functools import partial
from queue import Queue
from typing import Final

import click

from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.options import DURATION, command, option
from ullage_agent.cli.output import say, tell
from ullage_agent.kubectl.cluster import Cluster, Object
from ullage_agent.kubectl.options import nodes_chosen, on_cluster, repository
from ullage_agent.kubectl.trouble import Trouble

TAIL_LINES: Final = 100

FOLLOWED_MAX: Final = 100
"""Agents that are followed at a time: each takes a thread here and a connection of the API server's."""

LINES_AHEAD: Final = 1_000
"""That have come and are not printed yet: agents that say more wait for who reads."""


@command(short_help="Show the last lines of the agents' logs, and follow them.")
@repository
@nodes_chosen
@option(
    "--tail",
    metavar="LINES",
    type=click.IntRange(min=0),
    default=TAIL_LINES,
    help="Show this many of the last lines of each agent.",
)
@option("--since", type=DURATION, help="Show only lines of this last stretch of time, such as 10m.")
@option("--follow", "-f", is_flag=True, help="Go on with lines as they come, until Ctrl-C or until the agents end.")
@on_cluster
def logs(cluster: Cluster, name: str, chosen: tuple[str, ...], tail: int, since: int | None, follow: bool) -> None:
    """Show the last lines of each agent's log, those of one node after the other; with --follow as they come."""
    pods = pods_of(cluster, name, chosen)
    seconds = None if since is None else max(1, since // 1000)
    missing = False
    for node, said in (_followed if follow else _shown)(cluster, pods, tail, seconds):
        if isinstance(said, Trouble):
            say(f"{node}: {said.message}")
            missing = True
        elif isinstance(said, Exception):
            raise said
        else:
            tell(f"{node}: {said}")
    if missing:
        raise click.exceptions.Exit(ExitCode.INCOMPLETE)


Said = Iterator[tuple[str, str | Exception]]
"""A line of a node's agent, or why there is none."""


def _shown(cluster: Cluster, pods: list[Object], tail: int, since: int | None) -> Said:
    for pod in pods:
        try:
            text = cluster.log(pod["metadata"]["namespace"], pod["metadata"]["name"], tail=tail, since=since)
        except Trouble as error:
            yield _node(pod), error
        else:
            yield from ((_node(pod), line) for line in text.splitlines())


def _followed(cluster: Cluster, pods: list[Object], tail: int, since: int | None) -> Said:
    """All at once, each by a thread that nobody waits for: an agent that says nothing keeps none from ending."""
    if len(pods) > FOLLOWED_MAX:
        raise Trouble(
            f"{len(pods)} agents would be followed, at most {FOLLOWED_MAX} can be: choose some with --node",
            ExitCode.USAGE,
        )
    lines: Queue[tuple[str, str | Exception | None]] = Queue(LINES_AHEAD)
    for pod in pods:
        follow = partial(_follow, cluster, pod, tail, since, lines)
        threading.Thread(target=follow, name=f"follow {_node(pod)}", daemon=True).start()
    left = len(pods)
    while left:
        node, said = lines.get()
        if said is None:
            left -= 1
        else:
            yield node, said


def _follow(
    cluster: Cluster,
    pod: Object,
    tail: int,
    since: int | None,
    lines: Queue[tuple[str, str | Exception | None]],
) -> None:
    """Put the lines of one agent, and None behind them."""
    node, metadata = _node(pod), pod["metadata"]
    try:
        for line in cluster.followed_log(metadata["namespace"], metadata["name"], tail=tail, since=since):
            lines.put((node, line))
    except Exception as error:  # noqa: BLE001 - who reads the lines raises it, or tells it
        lines.put((node, error))
    finally:
        lines.put((node, None))


def _node(pod: Object) -> str:
    found: str = pod["spec"].get("nodeName") or pod["metadata"]["name"]
    return found


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

"""`kubectl ullage drain`: a node takes nothing new, and is waited for until nothing is lost with it."""

import time
from typing import Final

import click

from ullage.contract import DRAIN
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.options import command, option
from ullage_agent.cli.output import print_json, print_rows, say, size, tell
from ullage_agent.kubectl.cluster import Cluster, Object
from ullage_agent.kubectl.completion_values import node_names
from ullage_agent.kubectl.fleet import drain_document
from ullage_agent.kubectl.following import LOOK_SECONDS
from ullage_agent.kubectl.options import on_all_namespaces, output
from ullage_agent.kubectl.trouble import Trouble

ENDED: Final = ("Shipped", "SoleCopy")
"""Reasons that do not change by waiting."""


@command(short_help="Have a node take nothing new, and ship what only it has.")
@click.argument("node", metavar="NODE", shell_complete=node_names)
@option("--undo", is_flag=True, help="Have it take new content again.")
@option("--wait/--no-wait", default=True, help="Whether to wait until the bucket has everything.")
@option(
    "--timeout", metavar="SECONDS", type=float, default=3600.0, help="How long to wait until the bucket has everything."
)
@output
@on_all_namespaces
def drain(cluster: Cluster, node: str, undo: bool, wait: bool, timeout: float, shape: str) -> None:
    """Have the agents of a node take nothing new, and wait until the bucket has all that lies there: then it may go.

    What lies there is still read, taken out and deleted. Ctrl-C ends the waiting and not the drain: --undo does that.
    Exit code 8: a repository ships nothing, and what it holds on this node lies on its disks alone.
    """
    found = _objects(cluster, node)
    if not found:
        where = f"namespace {cluster.namespace}" if cluster.namespace else "this cluster"
        raise Trouble(f"no repository of {where} is on node {node}; -A looks in all namespaces", ExitCode.NOT_FOUND)
    for each in found:
        cluster.annotate(each, DRAIN, None if undo else "true")
    say(f"{node} takes new content again" if undo else f"{node} takes nothing new")
    if wait and not undo:
        _show(_followed(cluster, node, timeout), shape)
    elif shape == "json":
        print_json({"node": node, "draining": not undo})


def _objects(cluster: Cluster, node: str) -> list[Object]:
    return [each for each in cluster.nodes() if each["spec"]["nodeName"] == node]


def _followed(cluster: Cluster, node: str, timeout: float) -> list[Object]:
    """How each repository's part has ended. Trouble when that takes longer than one would wait."""
    deadline = time.monotonic() + timeout
    while True:
        told = [drain_document(each, time.time_ns() // 1_000_000) for each in _objects(cluster, node)]
        waits = [each for each in told if each["reason"] not in ENDED]
        if not waits:
            return told
        if time.monotonic() > deadline:
            whom = ", ".join(f"{each['namespace']}/{each['repository']} ({each['reason']})" for each in waits)
            raise Trouble(f"{node} is not drained in {timeout:g} s: {whom}", ExitCode.UNREACHABLE)
        time.sleep(LOOK_SECONDS)


def _show(told: list[Object], shape: str) -> None:
    """What became of it, and its exit code."""
    is_safe = all(each["drained"] == "True" for each in told)
    if shape == "json":
        print_json({"drained": is_safe, "repositories": told})
    else:
        rows = [
            (f"{each['namespace']}/{each['repository']}", each["reason"], size(each["soleCopyBytes"])) for each in told
        ]
        print_rows(("repository", "drained", ">sole copy"), rows)
        tell(
            "drained: nothing is lost with the node"
            if is_safe
            else "not drained: what has a sole copy goes with the node"
        )
    if not is_safe:
        raise click.exceptions.Exit(ExitCode.CLOSED)

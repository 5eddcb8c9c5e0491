"""What the commands take: kubectl's own options, by their own names, and what shape the answer has."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from ullage_agent.cli.options import option, with_options
from ullage_agent.kubectl.cluster import Choice, Cluster
from ullage_agent.kubectl.completion_values import accounts, contexts, namespaces, node_names, repository_names

Function = Callable[..., Any]

CLUSTER: Final = "Cluster"
EVERYWHERE: Final = option("-A", "--all-namespaces", is_flag=True, section=CLUSTER, help="Look in all namespaces.")

OF_CLUSTER: Final = (
    option("--kubeconfig", metavar="FILE", section=CLUSTER, help="The file of kubectl's settings.", type=click.Path()),
    option("--context", metavar="NAME", section=CLUSTER, help="A context of the kubeconfig.", shell_complete=contexts),
    option(
        "-n", "--namespace", metavar="NAME", section=CLUSTER, shell_complete=namespaces,
        help="The namespace to look in. The default is the context's.",
    ),
)  # fmt: skip

output: Final = option(
    "-o",
    "--output",
    "shape",
    type=click.Choice(["table", "json"]),
    default="table",
    help="The format of the output: for people, or for programs.",
)
account: Final = option(
    "--account", metavar="NAME", envvar="ULLAGE_ACCOUNT", show_envvar=True, default="", shell_complete=accounts,
    help="Ask the agents as this service account of the namespace.",
)  # fmt: skip
nodes_chosen: Final = option(
    "--node", "chosen", metavar="NAME", multiple=True, shell_complete=node_names,
    help="Take only this node; may be repeated.",
)  # fmt: skip
repository: Final = click.argument("name", metavar="REPOSITORY", shell_complete=repository_names)


def on_cluster(function: Function, more: Sequence[Callable[[Function], Function]] = ()) -> Function:
    """A command of a cluster; it gets `cluster`."""

    @functools.wraps(function)
    def wrapped(*, kubeconfig: str | None, context: str | None, namespace: str | None, **rest: Any) -> Any:
        everywhere = rest.pop("all_namespaces", False)
        cluster = Cluster(Choice(kubeconfig or "", context or "", namespace or "", everywhere))
        return function(cluster=cluster, **rest)

    return with_options(wrapped, (*more, *OF_CLUSTER))


def on_all_namespaces(function: Function) -> Function:
    """The same, which may look everywhere."""
    return on_cluster(function, (EVERYWHERE,))

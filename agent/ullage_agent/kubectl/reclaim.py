"""`kubectl ullage plan` and `reclaim`: a ReclamationRun, asked for and followed to its end."""

from typing import Any, Final

import click

from ullage.contract import RUNNABLE, MaintenanceOperation, RunPhase
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.options import SIZE, OneOf, command, option, override
from ullage_agent.cli.output import print_json, print_rows, say, size, tell
from ullage_agent.kubectl.cluster import RUNS, Cluster, Object
from ullage_agent.kubectl.fleet import run_document
from ullage_agent.kubectl.following import followed, going_on
from ullage_agent.kubectl.options import nodes_chosen, on_cluster, output, repository
from ullage_agent.kubectl.trouble import Trouble

operations: Final = option(
    "--operation",
    "operations",
    type=OneOf(RUNNABLE),
    multiple=True,
    help="Take only this operation; may be repeated.",
)
policy: Final = option(
    "--policy",
    metavar="NAME",
    default="",
    help="Use this policy, such as CompactAll, instead of spec.compaction.policy.",
)
timeout: Final = option("--timeout", metavar="SECONDS", type=float, default=300.0, help="How long to wait for the end.")


@command(short_help="Show what `reclaim` would give back, node by node.")
@repository
@nodes_chosen
@operations
@policy
@timeout
@output
@on_cluster
def plan(
    cluster: Cluster,
    name: str,
    chosen: tuple[str, ...],
    operations: tuple[MaintenanceOperation, ...],
    policy: str,
    timeout: float,
    shape: str,
) -> None:
    """Show what `reclaim` would give back on each node, for how many bytes copied. Changes nothing.

    The agents work it out: this asks for a ReclamationRun with dryRun, waits for it and deletes it. It waits neither
    for a window nor for Spark, since nothing is changed.
    """
    spec = _spec(cluster, name, chosen, operations, policy) | {"dryRun": True, "overrideWindows": True}
    run = cluster.begin(RUNS, f"{name}-plan", spec)
    try:
        found = followed(cluster, RUNS, run, timeout)
    finally:
        cluster.delete(RUNS, run)
    _show(found, shape)


@command(short_help="Give dead bytes back, as the windows permit.")
@repository
@nodes_chosen
@operations
@policy
@option(
    "--bytes-per-second", type=SIZE, help="Copy at most this much a second on each disk, such as 50Mi; 0 sets no limit."
)
@override
@option("--wait/--no-wait", default=True, help="Whether to wait for the end.")
@timeout
@output
@on_cluster
def reclaim(
    cluster: Cluster,
    name: str,
    chosen: tuple[str, ...],
    operations: tuple[MaintenanceOperation, ...],
    policy: str,
    bytes_per_second: int | None,
    override: bool,
    wait: bool,
    timeout: float,
    shape: str,
) -> None:
    """Give dead bytes back, on all nodes or on some, as soon as the windows permit.

    Asks for a ReclamationRun, whose report stays in the cluster. Ctrl-C ends the waiting and not the run: deleting the
    object does that.
    """
    spec = _spec(cluster, name, chosen, operations, policy) | {"overrideWindows": override}
    if bytes_per_second is not None:
        spec["bytesPerSecond"] = bytes_per_second
    run = cluster.begin(RUNS, name, spec)
    say(f"reclamationrun/{run} asked for")
    if not wait:
        if shape == "json":
            print_json({"name": run})
        return
    with going_on(cluster, RUNS, run, "a run"):
        found = followed(cluster, RUNS, run, timeout)
    _show(found, shape)


def _spec(
    cluster: Cluster, name: str, chosen: tuple[str, ...], operations: tuple[MaintenanceOperation, ...], policy: str
) -> Object:
    """What both ask for; Trouble for nodes that the repository is not on."""
    cluster.repository(name)
    there = {each["spec"]["nodeName"] for each in cluster.nodes(repository=name)}
    if unknown := sorted(set(chosen) - there):
        raise Trouble(
            f"{name} is not on the nodes {', '.join(unknown)}; it is on: {', '.join(sorted(there)) or 'none'}",
            ExitCode.NOT_FOUND,
        )
    wanted: Object = {"repository": name, "nodes": list(chosen), "policy": policy}
    if operations:
        wanted["operations"] = [str(each) for each in operations]
    return wanted


def _show(found: Object, shape: str) -> None:
    """The report of a run, and its exit code."""
    status = found["status"]
    results = status.get("results") or []
    told = run_document(found)
    if shape == "json":
        print_json(told | {"results": results})
    else:
        if results:
            print_rows(("node", "state", ">actions", ">frees", ">copies", "why"), [_row(each) for each in results])
        tell(
            f"{told['phase'].lower()}: {told['nodesDone']} of {told['nodes']} nodes, "
            f"{'would give back' if told['dryRun'] else 'gave back'} {told['freed']}, copying {told['copied']}"
        )
        if told["message"]:
            tell(told["message"])
    if told["phase"] == RunPhase.FAILED or told["nodesFailed"]:
        raise click.exceptions.Exit(ExitCode.CLOSED)


def _row(result: Object) -> tuple[Any, ...]:
    report = result["report"]
    sizes = [size(report.get(key, 0)) for key in ("freedBytes", "copiedBytes")]
    return result["node"], report["state"], f"{report.get('actions', 0):,}", *sizes, report.get("message") or "-"

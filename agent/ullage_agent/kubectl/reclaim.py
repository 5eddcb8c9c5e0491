"""`kubectl ullage plan` and `reclaim`: a ReclamationRun, asked for and followed to its end."""

import time
from typing import Any, Final

import click

from ullage.contract import RUNNABLE, MaintenanceOperation, RunPhase
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.options import SIZE, OneOf, command, option, override
from ullage_agent.cli.output import bar, print_json, print_rows, say, size, tell
from ullage_agent.kubectl.cluster import Cluster, Object
from ullage_agent.kubectl.fleet import run_document
from ullage_agent.kubectl.options import nodes_chosen, on_cluster, output, repository
from ullage_agent.kubectl.trouble import Trouble

LOOK_SECONDS: Final = 1.0
"""Between two looks at a run: each is one small request."""

ENDED: Final = (RunPhase.COMPLETED, RunPhase.FAILED)

operations: Final = option(
    "--operation",
    "operations",
    type=OneOf(RUNNABLE),
    multiple=True,
    help="This one alone; may be given more than once.",
)
policy: Final = option(
    "--policy", metavar="NAME", default="", help="Instead of spec.compaction.policy, such as CompactAll."
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
    run = cluster.begin_run(cluster.namespace, f"{name}-plan", spec)
    try:
        found = _followed(cluster, run, timeout)
    finally:
        cluster.delete_run(cluster.namespace, run)
    _show(found, shape)


@command(short_help="Give dead bytes back, as the windows permit.")
@repository
@nodes_chosen
@operations
@policy
@option("--bytes-per-second", type=SIZE, help="What may be copied a second on each disk, such as 50Mi; 0: no limit.")
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
    run = cluster.begin_run(cluster.namespace, name, spec)
    say(f"reclamationrun/{run} asked for")
    if not wait:
        if shape == "json":
            print_json({"name": run})
        return
    try:
        found = _followed(cluster, run, timeout)
    except (KeyboardInterrupt, Trouble):
        stop = f"kubectl delete reclamationrun {run} -n {cluster.namespace}"
        say(f"a run that has not ended goes on; `{stop}` stops it")
        raise
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


def _followed(cluster: Cluster, run: str, timeout: float) -> Object:
    """The run when it has ended. Trouble when that takes longer than one would wait."""
    deadline = time.monotonic() + timeout
    with bar("nodes done", None, is_bytes=False) as shown:
        while True:
            found = cluster.run(cluster.namespace, run)
            status = found.get("status") or {}
            shown.reach(status.get("nodesDone", 0), status.get("nodes") or None)
            if status.get("phase") in ENDED:
                return found
            if time.monotonic() > deadline:
                why = status.get("message") or "the operator has not begun it: is it running?"
                raise Trouble(f"reclamationrun/{run} has not ended in {timeout:g} s: {why}", ExitCode.UNREACHABLE)
            time.sleep(LOOK_SECONDS)


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

"""`kubectl ullage backup` and `restore`: a ContentBackup or a ContentRestore, asked for and followed to its end."""

from typing import Any, Final

import click

from ullage.contract import RunPhase, time_of
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.options import command, option
from ullage_agent.cli.output import print_json, print_rows, say, size, tell
from ullage_agent.cli.restoreoptions import left_out, restored_ids, restored_moment, restored_queues
from ullage_agent.kubectl.cluster import BACKUPS, RESTORES, Cluster, Object
from ullage_agent.kubectl.completion_values import node_names
from ullage_agent.kubectl.following import followed, going_on
from ullage_agent.kubectl.options import on_cluster, output, repository
from ullage_agent.kubectl.trouble import Trouble

waiting: Final = option("--wait/--no-wait", default=True, help="Whether to wait for the end.")
timeout: Final = option(
    "--timeout", metavar="SECONDS", type=float, default=3600.0, help="How long to wait for the end."
)


@command(short_help="Back every node up into a bucket, now.")
@repository
@option(
    "--to",
    "bucket",
    metavar="URL",
    default="",
    help="Write to s3://BUCKET/PREFIX. The default is where its schedules write to.",
)
@waiting
@timeout
@output
@on_cluster
def backup(cluster: Cluster, name: str, bucket: str, wait: bool, timeout: float, shape: str) -> None:
    """Back every node of a repository up into a bucket, now.

    Asks for a ContentBackup without a schedule, whose report stays in the cluster. Into the place of another one it
    writes the next generation, by the rules that were said there. Ctrl-C ends the waiting and not the backup: deleting
    the object does that.
    """
    found = cluster.repository(name)
    spec = {"repository": name, "bucket": bucket or _usual(cluster, name, found)}
    made = cluster.begin(BACKUPS, name, spec)
    _asked(BACKUPS, made, shape, wait=wait)
    if wait:
        with going_on(cluster, BACKUPS, made, "a backup"):
            _show_backup(followed(cluster, BACKUPS, made, timeout), shape)


@command(short_help="Have a node begin with a backup.")
@repository
@option(
    "--node",
    metavar="NAME",
    required=True,
    shell_complete=node_names,
    help="The node that gets the repository; it must have none yet.",
)
@option("--backup", "source", metavar="NAME", default="", help="The ContentBackup that wrote the backup.")
@option("--from-node", metavar="NAME", default="", help="With --backup, the node that wrote it, if it was another one.")
@option("--place", metavar="URL", default="", help="Instead of --backup, where the backup of one node lies.")
@option(
    "--generation",
    metavar="N",
    type=click.IntRange(min=1),
    help="Restore this generation or point. The default is the newest.",
)
@restored_moment
@restored_queues
@restored_ids
@waiting
@timeout
@output
@on_cluster
def restore(
    cluster: Cluster,
    name: str,
    node: str,
    source: str,
    from_node: str,
    place: str,
    generation: int | None,
    at_millis: int | None,
    queues: tuple[str, ...],
    ids: tuple[str, ...],
    wait: bool,
    timeout: float,
    shape: str,
) -> None:
    """Have a node begin with a backup of a repository, instead of an empty one.

    Asks for a ContentRestore. Neither the repository nor the node needs to be there yet; where the node has a
    repository already, nothing is replaced. Ctrl-C ends the waiting and not the restoration.
    """
    if bool(source) == bool(place) or (from_node and place):
        raise click.UsageError("say --backup, with --from-node if another node wrote it, or --place")
    if at_millis is not None and generation is not None:
        raise click.UsageError("--at and --generation both say of when: leave one out")
    where = {"backup": source, "fromNode": from_node, "place": place, "generation": generation}
    parts = {"at": at_millis and time_of(at_millis), "queues": list(queues), "ids": list(ids)}
    spec = {"repository": name, "node": node, **where, **parts}
    made = cluster.begin(RESTORES, name, {key: value for key, value in spec.items() if value})
    _asked(RESTORES, made, shape, wait=wait)
    if wait:
        with going_on(cluster, RESTORES, made, "a restoration"):
            _show_restore(followed(cluster, RESTORES, made, timeout), shape)


def _usual(cluster: Cluster, name: str, found: Object) -> str:
    """Where its schedules write to, or else the place that it allows, if that is one; Trouble names several."""
    scheduled = {
        each["spec"]["bucket"]
        for each in cluster.listed(BACKUPS, found["metadata"]["namespace"])
        if each["spec"]["repository"] == name and each["spec"].get("schedule")
    }
    allowed = {each["url"] for each in (found["spec"].get("service") or {}).get("backupBuckets") or ()}
    choices = sorted(scheduled or allowed)
    if len(choices) == 1:
        return str(choices[0])
    words = f"several places for backups: say which with --to: {', '.join(choices)}"
    none = "no place for backups: list one in its spec.service.backupBuckets first"
    raise Trouble(f"{name} has {words if choices else none}", ExitCode.USAGE)


def _asked(plural: str, made: str, shape: str, *, wait: bool) -> None:
    say(f"{plural.removesuffix('s')}/{made} asked for")
    if not wait and shape == "json":
        print_json({"name": made})


def _show_backup(found: Object, shape: str) -> None:
    """The report of a backup, and its exit code."""
    status = found["status"]
    results = status.get("results") or []
    if shape == "json":
        print_json({"name": found["metadata"]["name"], **status})
    else:
        rows = [_row(each["node"], each["report"]) for each in results]
        print_rows(("node", "state", ">generation", ">files", ">copied", "why"), rows)
        done, nodes = status.get("nodesDone", 0), status.get("nodes", 0)
        tell(f"{status['phase'].lower()}: {done} of {nodes} nodes, {size(status.get('bytes', 0))} copied")
        if status.get("message"):
            tell(status["message"])
    if status["phase"] == RunPhase.FAILED:
        raise click.exceptions.Exit(ExitCode.CLOSED)
    if any(each["report"].get("damaged") for each in results):
        raise click.exceptions.Exit(ExitCode.INCOMPLETE)


def _row(node: str, report: Object) -> tuple[Any, ...]:
    counts = f"{report.get('generation', 0):,}", f"{report.get('filesDone', 0):,}", size(report.get("bytesDone", 0))
    return node, report["state"], *counts, report.get("message") or "-"


def _show_restore(found: Object, shape: str) -> None:
    """What came of a restoration, and its exit code."""
    spec, status = found["spec"], found["status"]
    if shape == "json":
        print_json({"name": found["metadata"]["name"], **status})
    else:
        tell(
            f"{status['phase'].lower()}: {spec['node']}, generation {status.get('generation', 0)} of {status['place']}"
        )
        if status.get("message"):
            tell(status["message"])
        if erased := status.get("erased"):
            tell(left_out(erased))
    if status["phase"] == RunPhase.FAILED:
        raise click.exceptions.Exit(ExitCode.CLOSED)
    if status.get("lost"):
        raise click.exceptions.Exit(ExitCode.INCOMPLETE)

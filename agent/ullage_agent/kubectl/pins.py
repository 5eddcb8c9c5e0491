"""`kubectl ullage pins`: who holds what on the disks of a fleet, and until when."""

import time
from typing import Final

import click
import msgspec

from ullage import Repository, SpaceUse
from ullage.errors import UllageError
from ullage.wire.holders import HolderStatus
from ullage.wire.space import SpaceShare
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.failures import message_of
from ullage_agent.cli.options import command
from ullage_agent.cli.output import many, moment, print_json, print_rows, say, size, tell
from ullage_agent.cli.space import why_of
from ullage_agent.kubectl.ages import span
from ullage_agent.kubectl.cluster import Cluster, Object
from ullage_agent.kubectl.logs import pods_of
from ullage_agent.kubectl.options import account, nodes_chosen, on_cluster, output, repository
from ullage_agent.kubectl.reaching import Reach
from ullage_agent.kubectl.settings import spec_of
from ullage_agent.kubectl.trouble import Trouble

HOLDING: Final = frozenset(
    {
        *(SpaceUse.TOMBSTONE, SpaceUse.ARCHIVE, SpaceUse.PINNED, SpaceUse.LEASE, SpaceUse.WRITING, SpaceUse.SET_ASIDE),
        *(SpaceUse.UNPROVED, SpaceUse.ORPHAN, SpaceUse.WINDOW),
    }
)
"""Uses in which something holds bytes that nothing points at. The others live, or go with the next run."""


@command(short_help="Show who holds what, and until when.")
@repository
@nodes_chosen
@account
@output
@on_cluster
def pins(cluster: Cluster, name: str, chosen: tuple[str, ...], account: str, shape: str) -> None:
    """Show what keeps dead bytes, and who holds what until when: leases, staged writes, sessions, snapshots, streams,
    events that readers have not got to, and uploads.

    Each agent is asked, through the API server, as the account of --account: it needs the ClusterRole ullage-inspector
    in the repository's namespace, and you the rights to make a token for it and to forward a port of a pod.
    """
    found = cluster.repository(name)
    namespace = found["metadata"]["namespace"]
    reach = Reach(cluster, namespace, name, spec_of(found), account)
    held: list[Object] = []
    missing: dict[str, str] = {}
    for pod in pods_of(cluster, name, chosen):
        node = pod["spec"]["nodeName"]
        try:
            with reach.opened(pod["metadata"]["name"]) as repository:
                held.append(holds_of(node, repository))
        except Trouble as error:
            missing[node] = error.message
        except UllageError as error:
            missing[node] = message_of(error)
    if shape == "json":
        print_json({"nodes": held, "missing": missing})
    else:
        show_holds(held, round(time.time() * 1000))
    for node, why in missing.items():
        say(f"{node}: {why}")
    if missing:
        raise click.exceptions.Exit(ExitCode.INCOMPLETE)


def holds_of(node: str, repository: Repository) -> Object:
    """What one node holds: who has what, and the dead bytes that are there for each reason."""
    shares = [each for each in repository.reclamation.explain().shares if each.use in HOLDING and each.bytes]
    return {
        "node": node,
        "holders": msgspec.to_builtins(repository.holders()),
        "shares": msgspec.to_builtins(shares),
    }


def show_holds(held: list[Object], now: int) -> None:
    """For people: the dead bytes first, then the holders."""
    rows = []
    for each in held:
        shares = msgspec.convert(each["shares"], list[SpaceShare])
        rows += [(each["node"], share.use, f"{share.files:,}", size(share.bytes), why_of(share)) for share in shares]
    if rows:
        print_rows(("node", "holds", ">files", ">bytes", "why, and until when"), rows)
    else:
        tell("nothing holds dead bytes")
    holders = [
        (each["node"], *holder_row(holder, now))
        for each in held
        for holder in msgspec.convert(each["holders"], list[HolderStatus])
    ]
    if holders:
        tell("")
        print_rows(("node", "who", "holds", ">bytes", "what", "since", "ends", "id"), holders)


def holder_row(holder: HolderStatus, now: int) -> tuple[str, ...]:
    """Of one that holds something: who, kind, bytes, what, since when, when it ends, and its id."""
    what = holder.about
    if holder.flow_files is not None:
        what = ", ".join(filter(None, (many(holder.flow_files, "content"), what)))
    ends = "with its request"
    if holder.until_millis is not None:
        ends = f"{moment(holder.until_millis)} (in {span(max(0, holder.until_millis - now) // 1000)})"
    return (
        holder.principal or "nobody",
        holder.kind,
        "-" if holder.bytes is None else size(holder.bytes),
        what or "-",
        "-" if holder.since_millis is None else moment(holder.since_millis),
        ends,
        holder.id or "-",
    )

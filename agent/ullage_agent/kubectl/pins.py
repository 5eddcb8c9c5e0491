"""`kubectl ullage pins`: who holds dead bytes on the disks of a fleet, and until when."""

import time
from typing import Final

import click
import msgspec

from ullage import Repository, SpaceUse
from ullage.errors import UllageError
from ullage.wire.space import SpaceShare
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.failures import message_of
from ullage_agent.cli.options import command
from ullage_agent.cli.output import moment, print_json, print_rows, say, size, tell
from ullage_agent.cli.space import why_of
from ullage_agent.kubectl.cluster import Cluster, Object
from ullage_agent.kubectl.fleet import span
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


@command(short_help="Show who holds dead bytes, and until when.")
@repository
@nodes_chosen
@account
@output
@on_cluster
def pins(cluster: Cluster, name: str, chosen: tuple[str, ...], account: str, shape: str) -> None:
    """Show who holds dead bytes, and until when: leases, archive, deleted handles, sessions, staged writes, windows.

    Each agent is asked, through the API server, as the account of --account: it needs the ClusterRole ullage-reader in
    the repository's namespace, and you the rights to make a token for it and to forward a port of a pod.
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
    """What one node holds: leases with their owners, and the bytes that are there for each reason."""
    state = repository.state()
    shares = [each for each in repository.reclamation.explain().shares if each.use in HOLDING and each.bytes]
    return {
        "node": node,
        "sessions": state.sessions,
        "leases": [_lease(msgspec.to_builtins(each)) for each in repository.leases.all()],
        "shares": msgspec.to_builtins(shares),
    }


def _lease(lease: Object) -> Object:
    """Without the list of resource claims, which says nothing to people and may be long."""
    return {key: value for key, value in lease.items() if key != "resources"}


def show_holds(held: list[Object], now: int) -> None:
    """For people: the bytes first, then the leases."""
    rows = []
    for each in held:
        shares = msgspec.convert(each["shares"], list[SpaceShare])
        rows += [(each["node"], share.use, f"{share.files:,}", size(share.bytes), why_of(share)) for share in shares]
    if rows:
        print_rows(("node", "holds", ">files", ">bytes", "why, and until when"), rows)
    else:
        tell("nothing holds dead bytes")
    sessions = {each["node"]: each["sessions"] for each in held if each["sessions"]}
    if sessions:
        tell("sessions that are open: " + ", ".join(f"{node} {count:,}" for node, count in sessions.items()))
    leases = [(each["node"], *_lease_row(lease, now)) for each in held for lease in each["leases"]]
    if leases:
        tell("")
        print_rows(("node", "lease", "holder", "since", "ends"), leases)


def _lease_row(lease: Object, now: int) -> tuple[str, ...]:
    left = max(0, lease["expires_millis"] - now) // 1000
    ends = f"{moment(lease['expires_millis'])} (in {span(left)})"
    return lease["id"], lease["holder"], moment(lease["created_millis"]), ends

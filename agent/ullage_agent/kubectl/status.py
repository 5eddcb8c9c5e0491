"""`kubectl ullage status`: a fleet on one screen."""

import time
from collections.abc import Callable, Sequence

import click

from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.options import command, option
from ullage_agent.cli.output import fits, many, print_json, print_rows, say, size, tell
from ullage_agent.kubectl.cluster import Cluster, Object
from ullage_agent.kubectl.completion_values import repository_names
from ullage_agent.kubectl.copies import BACKUP_COLUMNS, RESTORE_COLUMNS, backup_row, restore_row
from ullage_agent.kubectl.fleet import (
    NODE_VIEWS,
    RETURNING,
    RUN_COLUMNS,
    RUNS_SHOWN,
    fleet_document,
    node_cells,
    run_row,
)
from ullage_agent.kubectl.options import on_all_namespaces, output
from ullage_agent.kubectl.trouble import Trouble

NODES_SHOWN = 20
"""Of a fleet: what a screen holds beside the rest. Those in trouble come first, then those with most to give back."""

COPIES_SHOWN = 10
"""Of a repository's backups, and of its restorations: those in trouble come first, then the youngest."""

Row = tuple[str, ...]

SUMS = (("live", "live"), ("dead", "dead"), ("archive", "archived"), ("free", "free"))
"""What is told of a fleet's bytes, and where it stands in its document."""


@command(short_help="Show nodes, disks, live and dead bytes, windows, runs and backups.")
@click.argument("name", metavar="[REPOSITORY]", required=False, shell_complete=repository_names)
@option("--all-nodes", is_flag=True, help=f"Show every node, and not only the worst {NODES_SHOWN}.")
@output
@on_all_namespaces
def status(cluster: Cluster, name: str | None, all_nodes: bool, shape: str) -> None:
    """Show each fleet on a screen: nodes, disks, live and dead bytes, the window, runs, backups, and what is wrong.

    `back` says when dead bytes come back; `ullage status` on a node says why. Nodes in trouble come first, then those
    with most dead bytes. `seen` is the time since the agent last wrote its status, which it does every five minutes
    though nothing happens.
    """
    found = [cluster.repository(name)] if name else cluster.repositories()
    place = found[0]["metadata"]["namespace"] if name else ""
    nodes, runs = (cluster.nodes(place), cluster.runs(place)) if found else ([], [])
    backups, restores, unknown = _copies(cluster, place) if found else ([], [], [])
    now = round(time.time() * 1000)
    fleets = [fleet_document(each, nodes, runs, now, backups, restores) for each in found]
    if shape == "json":
        print_json({"fleets": fleets})
        return
    if not fleets:
        where = f"namespace {cluster.namespace}" if cluster.namespace else "this cluster"
        raise Trouble(
            f"there is no ContentRepository in {where}: -n chooses another, -A looks in all", ExitCode.NOT_FOUND
        )
    for number, each in enumerate(fleets):
        if number:
            tell("")
        show_fleet(each, len(each["nodes"]) if all_nodes else NODES_SHOWN)
    for line in unknown:
        say(line)


def _copies(cluster: Cluster, place: str) -> tuple[list[Object], list[Object], list[str]]:
    """Backups and restorations, and why they are not known: the rest is shown to who may not list them, and of a
    cluster whose definitions are older.
    """
    found: list[list[Object]] = []
    unknown: list[str] = []
    for word, ask in (("backups", cluster.backups), ("restorations", cluster.restores)):
        try:
            found.append(ask(place))
        except Trouble as error:
            found.append([])
            unknown.append(f"{word} are not shown: {error.message}")
    return found[0], found[1], unknown


def show_fleet(fleet: Object, nodes_shown: int) -> None:
    """One fleet, for people."""
    nodes = fleet["nodes"]
    _show_sums(fleet)
    if nodes:
        tell("")
        _print_nodes([node_cells(each) for each in nodes[:nodes_shown]])
        if len(nodes) > nodes_shown:
            tell(f"and {many(len(nodes) - nodes_shown, 'node')} more: --all-nodes shows them")
        for each in nodes[:nodes_shown]:
            for line in each["trouble"]:
                tell(f"  {each['node']}: {line}")
    if fleet["runs"]:
        tell("")
        print_rows(RUN_COLUMNS, [run_row(each) for each in fleet["runs"][:RUNS_SHOWN]])
    _show_copies("backup", fleet["backups"], BACKUP_COLUMNS, backup_row)
    _show_copies("restore", fleet["restores"], RESTORE_COLUMNS, restore_row)


def _show_sums(fleet: Object) -> None:
    """What holds of all nodes together."""
    totals = fleet["totals"]
    ready = sum(each["ready"] == "True" for each in fleet["nodes"])
    tell(f"{fleet['namespace']}/{fleet['name']}  {_word(fleet['ready'])}")
    tell(f"  nodes   {ready} of {fleet['nodesWanted']} ready")
    tell("  bytes   " + ", ".join(f"{word} {size(totals[f'{key}Bytes'])}" for word, key in SUMS))
    if fleet["replicated"]:
        tell(f"  bucket  lacks {size(totals['soleCopyBytes'])} of what is live")
    for key, words in RETURNING.items():
        if count := fleet["returning"][key]:
            tell(f"  back    {size(count)} {words}")
    tell(f"  window  {fleet['window'] or 'unknown'}")
    for line in fleet["now"]:
        tell(f"  now     {line}")
    for line in fleet["trouble"]:
        tell(f"  {line}")


def _show_copies(word: str, found: list[Object], columns: Sequence[str], row: Callable[[Object], Row]) -> None:
    """A table, and below it what is wrong with each of its lines."""
    if not found:
        return
    tell("")
    print_rows(columns, [row(each) for each in found[:COPIES_SHOWN]])
    for each in found[:COPIES_SHOWN]:
        for line in each["trouble"]:
            tell(f"  {word} {each['name']}: {line}")
    if len(found) > COPIES_SHOWN:
        tell(f"and {many(len(found) - COPIES_SHOWN, word)} more: -o json has them all")


def _print_nodes(cells: list[dict[str, str]]) -> None:
    """With as many columns as the screen has room for."""
    views = [(view, [[each[title] for title in view] for each in cells]) for view in NODE_VIEWS]
    print_rows(*next((each for each in views if fits(*each)), views[-1]))


def _word(ready: str) -> str:
    return {"True": "Ready", "False": "not Ready"}.get(ready, "not known to be Ready")

"""A survey as people and scripts see it, taken here or by a running service."""

from collections.abc import Iterable
from typing import Any

from rich.table import Table

from ullage_agent.cli.output import size, table
from ullage_agent.engine.reclaim.survey import ContainerFigures, Survey

FIGURES = (
    "resource_claims",
    "disk_bytes",
    "live_bytes",
    "dead_bytes",
    "dead_tail_bytes",
    "free_bytes",
    "archived_claims",
    "archived_bytes",
    "tombstone_bytes",
)


def survey_document(taken: Survey) -> dict[str, Any]:
    """The figures of each container and their totals. `disk_to_live` is null where nothing is live."""
    return totalled(taken.millis, [_figures(container) for container in taken.containers])


def totalled(millis: int, containers: list[dict[str, Any]]) -> dict[str, Any]:
    """A survey of containers' figures, with their totals."""
    totals: dict[str, Any] = {name: sum(figures[name] for figures in containers) for name in FIGURES}
    totals["disk_to_live"] = totals["disk_bytes"] / totals["live_bytes"] if totals["live_bytes"] else None
    return {"millis": millis, "containers": containers, "totals": totals}


def survey_table(document: dict[str, Any]) -> Table:
    """A survey's document as a table, with totals where there are several containers."""
    columns = ["container", ">claims", ">disk", ">live", ">dead", ">tails", ">unused", ">ratio"]
    apart = {
        name: column
        for name, column in (("archived_bytes", ">archive"), ("tombstone_bytes", ">deleted"))
        if document["totals"][name] > 0
    }
    rows = [[figures["name"], *_cells(figures, apart)] for figures in document["containers"]]
    totals = ["total", *_cells(document["totals"], apart)] if len(rows) > 1 else []
    columns.extend(apart.values())
    for row, figures in zip(rows, document["containers"], strict=True):
        row.append(f"{figures['usage_percentage']:.0f}%")
    return table([*columns, ">used"], rows, [*totals, ""] if totals else ())


def _figures(container: ContainerFigures) -> dict[str, Any]:
    figures: dict[str, Any] = {"name": container.name, "path": container.path}
    figures |= {name: getattr(container, name) for name in FIGURES}
    figures["used_bytes"] = container.usage.used_bytes
    figures["total_bytes"] = container.usage.total_bytes
    figures["usage_percentage"] = round(container.usage.percentage, 2)
    return figures


def _cells(figures: dict[str, Any], apart: Iterable[str]) -> list[str]:
    live = figures["live_bytes"]
    return [
        f"{figures['resource_claims']:,}",
        *(size(figures[name]) for name in ("disk_bytes", "live_bytes", "dead_bytes", "dead_tail_bytes", "free_bytes")),
        f"{figures['disk_bytes'] / live:.2f}" if live else "-",
        *(size(figures[name]) for name in apart),
    ]

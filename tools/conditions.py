"""Makes docs/conditions.md from the contract's table of conditions."""

from pathlib import Path
from typing import Final

from ullage.contract import TABLE, Cell, ConditionRow

PAGE: Final = Path(__file__).parents[1] / "docs" / "conditions.md"

HEADER: Final = """# Conditions

<!-- Written by tools/conditions.py from ullage.contract.conditions: change that, and run `make generate`. -->

What `status.conditions` of each kind can say: all of it. Each condition carries `observedGeneration`, the generation of
the spec that it was found for; `status.observedGeneration` is the operator's latest. A `message` has the details: nodes
by name, and the words of an agent, a pod or the API server.

`Ready`, `Reconciling` and `Stalled` are those of [kstatus], which Flux, `kpt` and others wait by: an object is done
when `Ready` is `True`, under way while `Reconciling` is, and in need of somebody while `Stalled` is. The last two are
never `True` at once. Where the table has no row with `Unknown`, the condition is never that.

    kubectl wait contentrepository/flows --for=condition=Ready --timeout=10m
    kubectl wait reclamationrun/now --for=condition=Ready --timeout=4h

An event is told when a condition turns to a row with one: `Warning DegradedTrue` when `Degraded` becomes `True`. Rows
marked Normal are told only when they follow another one, never about what was well from the start.

For Argo CD see the health check in [install.md](install.md).

[kstatus]: https://github.com/kubernetes-sigs/cli-utils/blob/master/pkg/kstatus/README.md
"""


def text() -> str:
    """The page."""
    return HEADER + "".join(f"\n## {kind}\n" + "".join(map(_section, rows)) for kind, rows in TABLE.items())


def _section(row: ConditionRow) -> str:
    head = f"\n### {row.type}\n\n{row.about}\n\n| status | reason | when | event |\n|---|---|---|---|\n"
    return head + "".join(_line(row, cell) for cell in row.cells)


def _line(row: ConditionRow, cell: Cell) -> str:
    event = f"{cell.news} `{row.type}{cell.status}`" if cell.news else ""
    return f"| `{cell.status}` | `{cell.reason}` | {cell.when} | {event} |\n"


def texts() -> dict[Path, str]:
    """The file that is made here."""
    return {PAGE: text()}

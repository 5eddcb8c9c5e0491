"""A lineage, as programs get it, as a picture: Mermaid where Markdown is shown, SVG for everywhere else.

Time goes down, a row an event; FlowFiles stand side by side, a column each, in the order in which they appear.
"""

from collections.abc import Mapping
from html import escape
from typing import Any

from ullage_agent.cli.output import size

Document = Mapping[str, Any]

BOX_WIDTH, BOX_HEIGHT = 220, 44
COLUMN_WIDTH, ROW_HEIGHT = 250, 74
MARGIN = 20
LABEL_CHARACTERS = 26
"""What fits into a box."""

COLORS = {
    **dict.fromkeys(("RECEIVE", "CREATE", "FETCH", "REPLAY"), "#d5efdb"),
    **dict.fromkeys(("FORK", "JOIN", "CLONE"), "#fdecc8"),
    **dict.fromkeys(("SEND", "DOWNLOAD"), "#d3e5f7"),
    **dict.fromkeys(("DROP", "EXPIRE"), "#f3d4d4"),
}
OTHER_COLOR = "#ececec"


def filename(event: Document) -> str:
    """The file name at the event; without one, the FlowFile."""
    return str(event["attributes"].get("filename", event["flow_file"]))


def mermaid(lineage: Document) -> str:
    """A Mermaid flowchart; paste it into Markdown."""
    lines = ["flowchart TD"]
    for event in lineage["events"]:
        text = "<br/>".join(_mermaid_text(line) for line in _labels(event))
        lines.append(f'    e{event["sequence"]}["{text}"]:::{event["type"]}')
    lines += [f"    e{one} --> e{other}" for one, other in lineage["links"]]
    names = sorted({event["type"] for event in lineage["events"]})
    lines += [f"    classDef {name} fill:{COLORS.get(name, OTHER_COLOR)},stroke:#555,color:#111" for name in names]
    return "\n".join(lines) + "\n"


def svg(lineage: Document) -> str:
    """A self-contained SVG document."""
    columns = _columns(lineage)
    places = {
        event["sequence"]: (MARGIN + columns[event["flow_file"]] * COLUMN_WIDTH, MARGIN + row * ROW_HEIGHT)
        for row, event in enumerate(lineage["events"])
    }
    width = 2 * MARGIN + BOX_WIDTH + COLUMN_WIDTH * max(columns.values(), default=0)
    height = 2 * MARGIN + BOX_HEIGHT + ROW_HEIGHT * max(0, len(lineage["events"]) - 1)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" font-size="11">'
        ),
        (
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#555"/></marker></defs>'
        ),
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    parts += [_arrow(places[one], places[other]) for one, other in lineage["links"]]
    parts += [_box(event, *places[event["sequence"]]) for event in lineage["events"]]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _columns(lineage: Document) -> dict[str, int]:
    """A column for each FlowFile, children right of what they came from."""
    columns: dict[str, int] = {}
    shown = {event["flow_file"] for event in lineage["events"]}
    for event in lineage["events"]:
        columns.setdefault(event["flow_file"], len(columns))
        for child in event["children"]:
            if child in shown:
                columns.setdefault(child, len(columns))
    return columns


def _labels(event: Document) -> list[str]:
    """What a box says: the event and its component, then the FlowFile."""
    who = event["component_type"] or event["component"]
    detail = event["relationship"] or event["transit_uri"]
    first = " ".join(part for part in (event["type"], who, f"({detail})" if detail else "") if part)
    return [first, f"{filename(event)}, {size(event['size'])}"]


def _mermaid_text(text: str) -> str:
    """Text that ends no string and makes no markup."""
    return escape(text, quote=False).replace('"', "#quot;").replace("\n", " ")


def _box(event: Document, x: int, y: int) -> str:
    color = COLORS.get(event["type"], OTHER_COLOR)
    first, second = (escape(_short(line)) for line in _labels(event))
    title = escape(f"{event['id']} {event['type']} {event['flow_file']} {event['details']}".strip())
    return (
        f'<g><title>{title}</title><rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5" '
        f'fill="{color}" stroke="#555"/><text x="{x + 8}" y="{y + 18}" font-weight="bold">{first}</text>'
        f'<text x="{x + 8}" y="{y + 34}" fill="#333">{second}</text></g>'
    )


def _arrow(source: tuple[int, int], target: tuple[int, int]) -> str:
    """Straight down within a column, a curve between columns."""
    x1, y1 = source[0] + BOX_WIDTH // 2, source[1] + BOX_HEIGHT
    x2, y2 = target[0] + BOX_WIDTH // 2, target[1]
    middle = (y1 + y2) // 2
    path = f"M{x1},{y1} L{x2},{y2}" if x1 == x2 else f"M{x1},{y1} C{x1},{middle} {x2},{middle} {x2},{y2}"
    return f'<path d="{path}" fill="none" stroke="#777" marker-end="url(#arrow)"/>'


def _short(text: str) -> str:
    return text if len(text) <= LABEL_CHARACTERS else text[: LABEL_CHARACTERS - 1] + "…"

"""Pictures of the dashboards from what a real Prometheus has: each panel's own query, drawn by us, not Grafana."""

import html
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.cluster.prometheus import Series

DASHBOARDS = Path(__file__).parents[2] / "charts/ullage/files/dashboards"
RATE_SECONDS = 5
"""What `$__rate_interval` is here: Grafana's would be longer, for it scrapes more seldom than a scenario."""

WIDTH, HEIGHT, MARGIN = 560, 210, 12
LEFT, RIGHT, TOP, BOTTOM = 74, 12, 54, 24
"""Of a panel's curves within it: the axes' figures stand outside."""

COLOURS = ("#0b7a6f", "#d9480f", "#2b6cb0", "#b7791f", "#805ad5", "#c53030", "#4a5568", "#2f855a")
POINTS = 150
UNITS = {"ops": "/s", "s": " s"}
BINARY = ("", "Ki", "Mi", "Gi", "Ti")

Ask = Callable[[str, float, float, float], list[Series]]
"""A query over a stretch: expression, begin, end and step in seconds since 1970."""


class Panel(NamedTuple):
    """One of a dashboard, with what it shows."""

    title: str
    unit: str
    series: dict[str, list[tuple[float, float]]]
    """By legend: moments and values."""


def draw(name: str, ask: Ask, begin: float, end: float) -> str:
    """An SVG of the dashboard `name` as it was from `begin` to `end`. ValueError if a panel shows nothing."""
    board = json.loads((DASHBOARDS / f"{name}.json").read_text(encoding="utf-8"))
    panels = [_panel(each, ask, begin, end) for each in board["panels"]]
    height = MARGIN + (HEIGHT + MARGIN) * math.ceil(len(panels) / 2) + 20
    note = (
        f"{board['title']}: the panels' own queries on a real Prometheus, {end - begin:.0f} s; "
        "drawn by Ullage's tests, not by Grafana"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH + 3 * MARGIN} {height}">',
        '<g font-family="system-ui, sans-serif" font-size="11" fill="#2d3748">',
        '<rect width="100%" height="100%" fill="#f4f4f2"/>',
        f'<text x="{MARGIN}" y="{height - 10}">{html.escape(note)}</text>',
    ]
    for number, panel in enumerate(panels):
        row, column = divmod(number, 2)
        x, y = MARGIN + column * (WIDTH + MARGIN), MARGIN + row * (HEIGHT + MARGIN)
        parts += [f'<g transform="translate({x} {y})">', *_drawn(panel, begin, end), "</g>"]
    return "\n".join([*parts, "</g></svg>", ""])


def _panel(panel: dict[str, Any], ask: Ask, begin: float, end: float) -> Panel:
    [target] = panel["targets"]
    query = target["expr"].replace("$job", ".+").replace("$instance", ".+")
    answer = ask(query.replace("$__rate_interval", f"{RATE_SECONDS}s"), begin, end, (end - begin) / POINTS)
    series = {_legend(target["legendFormat"], each.labels): each.points for each in answer}
    if not any(series.values()):
        raise ValueError(f"the panel {panel['title']} shows nothing: {query}")
    return Panel(panel["title"], panel["fieldConfig"]["defaults"]["unit"], series)


def _legend(pattern: str, labels: dict[str, str]) -> str:
    for name, value in labels.items():
        pattern = pattern.replace("{{" + name + "}}", value)
    return pattern


def _drawn(panel: Panel, begin: float, end: float) -> list[str]:
    top = _top(panel)
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    parts = [
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#ffffff" stroke="#d8d8d4"/>',
        f'<text x="12" y="20" font-size="13" font-weight="600">{html.escape(panel.title)}</text>',
    ]
    for part in (0, 0.5, 1):
        y = TOP + high * (1 - part)
        parts.append(f'<path d="M{LEFT} {y:.1f}h{wide}" stroke="#e2e2de"/>')
        figure = _figure(top * part, panel.unit)
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{figure}</text>')
        x, anchor = LEFT + wide * part, ("start", "middle", "end")[int(part * 2)]
        seconds = f"{(end - begin) * part:.0f} s"
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{seconds}</text>')
    shown = _shown(panel)
    for legend, colour in reversed(list(zip(shown, _colours(len(shown)), strict=True))):
        dots = " ".join(
            f"{LEFT + wide * (at - begin) / (end - begin):.0f},{TOP + high * (1 - value / top):.1f}"
            for at, value in panel.series[legend]
            if math.isfinite(value)
        )
        parts.append(f'<polyline points="{dots}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
    told = [
        f'<tspan fill="{colour}" dx="8">{html.escape(legend)}</tspan>'
        for legend, colour in zip(shown, _colours(len(shown)), strict=True)
    ]
    if more := len(panel.series) - len(shown):
        told.append(f'<tspan dx="8">and {more} more, always 0</tspan>')
    return [*parts, f'<text x="4" y="37">{"".join(told)}</text>']


def _shown(panel: Panel) -> list[str]:
    """By legend, what moves first; of more than there are colours only what moves."""
    moving = [legend for legend, points in panel.series.items() if any(value for _, value in points)]
    idle = [legend for legend in panel.series if legend not in moving]
    return moving + idle if len(panel.series) <= len(COLOURS) else moving


def _colours(count: int) -> list[str]:
    return [COLOURS[number % len(COLOURS)] for number in range(count)]


def _top(panel: Panel) -> float:
    """The axis' end: above the highest value, at a figure that reads well."""
    highest = max((value for points in panel.series.values() for _, value in points if math.isfinite(value)), default=0)
    if panel.unit == "bool" or highest <= 0:
        return 1.0
    if panel.unit in ("bytes", "Bps"):
        return float(2 ** math.ceil(math.log2(highest)))
    decade = 10.0 ** math.floor(math.log10(highest))
    return next(decade * lead for lead in (1, 2, 5, 10) if decade * lead >= highest)


def _figure(value: float, unit: str) -> str:
    """As a person would write it."""
    if unit in ("bytes", "Bps"):
        power = min(int(math.log2(value) // 10), len(BINARY) - 1) if value >= 1 else 0
        return f"{value / 1024**power:.3g} {BINARY[power]}B{'/s' if unit == 'Bps' else ''}"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "s" and 0 < value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:,.6g}{UNITS.get(unit, '')}"

"""Values over time, a panel each, one above the other: drawn plainly, so that a picture needs no more than Pillow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from PIL import Image, ImageDraw, ImageFont

from bench.table import number

WIDTH: Final = 1000
HEIGHT: Final = 220
"""Of a panel, its title included."""

LEFT: Final = 70
MARGIN: Final = 30
COLOURS: Final = ("#1f6fb4", "#c8552b", "#3a8f4d", "#8a5fb0")


@dataclass(frozen=True)
class Panel:
    """A title, and lines by their name; one line needs none."""

    title: str
    lines: Mapping[str, Sequence[float]]

    @property
    def top(self) -> float:
        """The end of its axis, which begins at 0."""
        return 1.1 * max((value for line in self.lines.values() for value in line), default=1.0) or 1.0


def draw(panels: Sequence[Panel], axis: str) -> Image.Image:
    """All panels over the same time, which `axis` names."""
    image = Image.new("RGB", (WIDTH, HEIGHT * len(panels) + MARGIN), "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(15)
    for place, panel in enumerate(panels):
        _draw_panel(pen, font, panel, HEIGHT * place)
    pen.text((WIDTH - MARGIN, HEIGHT * len(panels) + 5), axis, fill="black", font=font, anchor="rt")
    return image


def _draw_panel(
    pen: ImageDraw.ImageDraw, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, panel: Panel, begin: int
) -> None:
    ceiling, floor = begin + MARGIN, begin + HEIGHT - 10
    pen.text((LEFT, begin + 6), panel.title, fill="black", font=font)
    for step in range(5):
        y = floor - (floor - ceiling) * step / 4
        pen.line([(LEFT, y), (WIDTH - MARGIN, y)], fill="#dddddd")
        pen.text((LEFT - 8, y), number(panel.top * step / 4), fill="black", font=font, anchor="rm")
    label = WIDTH - MARGIN
    for (name, values), colour in zip(panel.lines.items(), COLOURS, strict=False):
        width = (WIDTH - MARGIN - LEFT) / max(1, len(values) - 1)
        points = [(LEFT + at * width, floor - (floor - ceiling) * value / panel.top) for at, value in enumerate(values)]
        pen.line(points, fill=colour, width=2)
        pen.text((label, begin + 6), name, fill=colour, font=font, anchor="ra")
        label -= int(pen.textlength(name, font=font)) + 20

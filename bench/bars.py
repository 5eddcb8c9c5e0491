"""`python -m bench.bars RESULTS.json FILE.png`: measured rows as bars.

--case CASE    only the rows of a case; as often as there are such
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from PIL import Image, ImageDraw, ImageFont

from bench.table import Row, number, read_results

WIDTH: Final = 1000
LINE: Final = 26
"""Height of a row."""

HEAD: Final = 34
"""Height of what stands above the rows of a case."""

LABEL: Final = 560
"""Width of what a row says, left of its bar."""

FIGURE: Final = 70
"""Width of its median, right of the bar."""

DECADES: Final = 2
"""Of the axis to either side of 1; what lies beyond ends there."""

MET: Final = "#3a8f4d"
MISSED: Final = "#c8552b"
PLAIN: Final = "#1f6fb4"
"""A row without a target."""


def main() -> None:
    """Read the rows and write the picture."""
    parser = argparse.ArgumentParser(prog="python -m bench.bars", description=__doc__)
    parser.add_argument("results", type=Path, metavar="RESULTS.json")
    parser.add_argument("target", type=Path, metavar="FILE.png")
    parser.add_argument("--case", action="append", help="only the rows of a case")
    options = parser.parse_args()
    rows = read_results(options.results).rows
    draw([row for row in rows if not options.case or row.case in options.case]).save(options.target, optimize=True)


def draw(rows: Sequence[Row]) -> Image.Image:
    """A bar a row from 1 to its median, on a logarithmic axis, with its least and largest value and its target.

    Only rows whose 1 means something: ratios, and figures without a unit.
    """
    drawn = [row for row in rows if row.unit in ("x", "")]
    cases = list(dict.fromkeys(row.case for row in drawn))
    image = Image.new("RGB", (WIDTH, LINE * len(drawn) + HEAD * len(cases) + 10), "white")
    pen = ImageDraw.Draw(image)
    top = 0
    for case in cases:
        chosen = [row for row in drawn if row.case == case]
        _draw_axis(pen, case, top, top + HEAD + LINE * len(chosen))
        top += HEAD
        for row in chosen:
            _draw_row(pen, row, top)
            top += LINE
    return image


def _draw_axis(pen: ImageDraw.ImageDraw, case: str, top: int, bottom: int) -> None:
    font = ImageFont.load_default(15)
    pen.text((10, top + 14), case, fill="black", font=font)
    for power in range(-DECADES, DECADES + 1):
        x = _place(10.0**power)
        pen.line([(x, top + HEAD - 4), (x, bottom)], fill="#888888" if power == 0 else "#dddddd")
        pen.text((x, top + HEAD - 6), f"{10.0**power:g}", fill="black", font=ImageFont.load_default(11), anchor="mb")


def _draw_row(pen: ImageDraw.ImageDraw, row: Row, top: int) -> None:
    font, middle = ImageFont.load_default(12), top + LINE // 2
    colour = PLAIN if row.target is None else MET if row.target.is_met(row.median) else MISSED
    text = f"{row.what} | {row.against}" if row.against else row.what
    while pen.textlength(text, font=font) > LABEL - 20:
        text = text[:-2].rstrip() + "\N{HORIZONTAL ELLIPSIS}"
    pen.text((10, middle), text, fill="black", font=font, anchor="lm")
    begin, end = sorted((_place(1), _place(row.median)))
    pen.rectangle([(begin, middle - 6), (end, middle + 6)], fill=colour)
    pen.line([(_place(min(row.values)), middle), (_place(max(row.values)), middle)], fill="black")
    if row.target is not None:
        x = _place(row.target.value)
        pen.line([(x, middle - 9), (x, middle + 9)], fill="black", width=2)
    pen.text((WIDTH - 10, middle), f"{number(row.median)} {row.unit}".rstrip(), fill=colour, font=font, anchor="rm")


def _place(value: float) -> float:
    """Where a value lies: at an end of the axis if it is beyond it."""
    power = math.log10(value) if value > 0 else -DECADES
    share = (max(-DECADES, min(DECADES, power)) + DECADES) / (2 * DECADES)
    return LABEL + share * (WIDTH - FIGURE - 10 - LABEL)


if __name__ == "__main__":
    main()

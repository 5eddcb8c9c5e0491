"""`python -m bench.graph FILE.png`: space over time in the steady state of `reclaim-steady`, drawn.

--quick    a smaller set of contents
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from bench.reclaim import Churn
from bench.workbench import FULL, QUICK, Workbench

WIDTH, HEIGHT, MARGIN = 1000, 480, 64
SPACE_MAX = 2.0
LINES = (("90/10 overwrites", 0.9, "#1f6fb4"), ("uniform overwrites", 0.0, "#c8552b"))


def main() -> None:
    """Measure both kinds of overwrites and write the picture."""
    parser = argparse.ArgumentParser(prog="python -m bench.graph", description=__doc__)
    parser.add_argument("target", type=Path, metavar="FILE.png")
    parser.add_argument("--quick", action="store_true", help="a smaller set of contents")
    parser.add_argument("--dir", type=Path, help="where to work: on the disk to measure")
    options = parser.parse_args()
    drawn = []
    with tempfile.TemporaryDirectory(prefix="ullage-graph-", dir=options.dir) as place:
        for label, hot, colour in LINES:
            bench = Workbench(Path(place), QUICK if options.quick else FULL, print)
            amplification, history = Churn(bench, hot, 0).run()
            print(f"{label}: write amplification {amplification:.2f}")
            drawn.append((f"{label}, write amplification {amplification:.2f}", history, colour))
    draw(drawn).save(options.target, optimize=True)


def draw(lines: Sequence[tuple[str, Sequence[float], str]]) -> Image.Image:
    """Disk / live, from 1 up, over how many times the live size was overwritten; each line with its label."""
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(16)
    right, bottom = WIDTH - MARGIN // 2, HEIGHT - MARGIN
    for tenth in range(10, round(SPACE_MAX * 10) + 1, 2):
        y = _height(tenth / 10)
        pen.line([(MARGIN, y), (right, y)], fill="#888888" if tenth == 14 else "#dddddd")
        pen.text((MARGIN - 10, y), f"{tenth / 10:.1f}", fill="black", font=font, anchor="rm")
    for turnover in range(Churn.TURNOVERS + 1):
        x = MARGIN + (right - MARGIN) * turnover / Churn.TURNOVERS
        pen.text((x, bottom + 10), f"{turnover}", fill="black", font=font, anchor="mt")
    pen.text((MARGIN, 12), "disk / live", fill="black", font=font)
    pen.text((right, HEIGHT - 10), "bytes put / live bytes", fill="black", font=font, anchor="rb")
    for number, (label, history, colour) in enumerate(lines):
        step = (right - MARGIN) / max(1, len(history) - 1)
        pen.line([(MARGIN + at * step, _height(space)) for at, space in enumerate(history)], fill=colour, width=2)
        pen.text((right - 10, 40 + 22 * number), label, fill=colour, font=font, anchor="ra")
    return image


def _height(space: float) -> float:
    share = (min(SPACE_MAX, space) - 1) / (SPACE_MAX - 1)
    return HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN + 16) * share


if __name__ == "__main__":
    main()

"""Has a change made a main operation slower? `python -m bench.check BASE` says.

Old and new engine are measured in turns, each beside the disk, by its own bench in processes of their own; what counts
is the new one's ratio over the old one's of the same round, so that what the machine does meanwhile meets both.

    a few rounds of all cases -> rows that may be slower -> many more rounds of their cases -> slower, or not

BASE           a revision, or a directory that holds a tree
--head DIR     another tree than this one
--rounds N     rounds of the first pass; the second one has three times as many
--size SIZE    quick by default; tiny is for tests
--dir DIR      where to work: on the disk that is to be measured
CASE...        only these cases

Exit code 1: a row is slower. Noise alone gets there about once in two hundred rows; a fifth less speed is seen in
nineteen of twenty.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.table import OURSELVES, number

ROOT: Final = Path(__file__).parents[1]
CASES: Final = (
    "content-batches",
    "content-stream",
    "content-reads",
    "updates",
    "update-batches",
    "provenance-costs",
    "reclaim-copying",
    "agent-puts",
    "agent-single-puts",
    "agent-reads",
)
"""The main operations, those of which each row is a speed."""

ROUNDS: Final = 5
MORE: Final = 3
"""The second pass has so many times as many rounds."""

SUSPECT: Final = 0.95
"""A median quotient below this is measured again."""

SLOWER: Final = 0.90
"""Below this after all rounds it is slower: between what noise does and the fifth that must be seen."""

Key = tuple[str, str, str]
Quotients = dict[Key, list[float]]
"""Of each row, by case, what and against: the new engine's ratio over the old one's, a round each."""


class CannotCompare(Exception):
    """A tree that is none, or on which the bench does not run."""


def suspects(quotients: Mapping[Key, Sequence[float]], below: float) -> list[Key]:
    """The rows whose median is below, worst first."""
    medians = {key: statistics.median(values) for key, values in quotients.items()}
    return sorted((key for key, median in medians.items() if median < below), key=lambda key: medians[key])


def speeds(rows: Sequence[Mapping[str, object]]) -> dict[Key, float]:
    """The rows of a run of the bench that are speeds beside a peer, by what they compare."""
    found: dict[Key, float] = {}
    for row in rows:
        target, median = row["target"], row["median"]
        is_ceiling = isinstance(target, dict) and target["is_ceiling"]
        # A faster engine makes what stands beside it look slower.
        is_beside = row["unit"] == "x" and row["against"] != OURSELVES
        if is_beside and not is_ceiling and isinstance(median, float) and median > 0:
            found[(str(row["case"]), str(row["what"]), str(row["against"]))] = median
    return found


def main(arguments: list[str] | None = None) -> int:
    """Compare; 1 if something is slower, 2 if nothing can be said."""
    options = _parser().parse_args(arguments)
    cases = tuple(options.cases or CASES)
    try:
        with _tree(options.base) as base, tempfile.TemporaryDirectory(prefix="ullage-check-", dir=options.dir) as place:
            trees = (base, options.head.resolve())
            quotients: Quotients = {}
            names = _measure(quotients, trees, cases, options.rounds, options.size, Path(place))
            doubted = suspects(quotients, SUSPECT)
            again = [case for case in cases if any(key in names[case] for key in doubted)]
            if again:
                print(f"measured again: {', '.join(again)}", file=sys.stderr)
                _measure(quotients, trees, again, MORE * options.rounds, options.size, Path(place))
    except CannotCompare as error:
        print(error, file=sys.stderr)
        return 2
    slower = suspects({key: quotients[key] for key in doubted}, SLOWER)
    print(_table(quotients, slower))
    return 1 if slower else 0


def _measure(
    quotients: Quotients, trees: tuple[Path, Path], cases: Sequence[str], rounds: int, size: str, place: Path
) -> dict[str, set[Key]]:
    """Add a quotient a row and round; which rows each case has."""
    rows_of: dict[str, set[Key]] = {case: set() for case in cases}
    for turn in range(rounds):
        for case in cases:
            print(f"round {turn + 1} of {rounds}: {case}", file=sys.stderr)
            order = (0, 1) if turn % 2 == 0 else (1, 0)
            found = {side: _run(trees[side], case, size, place) for side in order}
            for key in found[0].keys() & found[1].keys():
                quotients.setdefault(key, []).append(found[1][key] / found[0][key])
                rows_of[case].add(key)
    return rows_of


def _run(tree: Path, case: str, size: str, place: Path) -> dict[Key, float]:
    """One case with the engine and the bench of a tree: a bench knows its own names, and rows compare by words."""
    report = place / "rows.json"
    path = os.pathsep.join(str(folder) for folder in (tree / "agent", tree))
    command = [sys.executable, "-m", "bench", case, "--size", size, "--dir", str(place), "--json", str(report)]
    result = subprocess.run(
        command, check=False, cwd=tree, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    if result.returncode:
        raise CannotCompare(f"the bench does not run {case} on the engine of {tree}:\n{result.stderr[-2_000:]}")
    return speeds(json.loads(report.read_text(encoding="utf-8"))["rows"])


@contextmanager
def _tree(base: str) -> Iterator[Path]:
    """The tree of a revision, as long as it is needed, or the directory that was named."""
    if (Path(base) / "bench").is_dir():
        yield Path(base).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="ullage-base-") as place:
        archive = subprocess.run(
            ["git", "archive", "--format=tar", base, "agent", "bench"], check=False, cwd=ROOT, capture_output=True
        )
        if archive.returncode:
            raise CannotCompare(f"{base} is no tree and no revision: {archive.stderr.decode(errors='replace').strip()}")
        subprocess.run(["tar", "--extract", "--directory", place], check=True, input=archive.stdout)
        yield Path(place)


def _table(quotients: Quotients, slower: Sequence[Key]) -> str:
    lines = ["| Case | What | Against | New over old (min - median - max) | Rounds | |", "|---|---|---|---|---|---|"]
    for key, values in sorted(quotients.items(), key=lambda item: statistics.median(item[1])):
        spread = " - ".join(number(value) for value in (min(values), statistics.median(values), max(values)))
        lines.append(f"| {' | '.join(key)} | {spread} | {len(values)} | {'SLOWER' if key in slower else ''} |")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.check", description="Is this tree slower than another one?")
    parser.add_argument("base", metavar="BASE", help="a revision, or a directory with a tree")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"by default {', '.join(CASES)}")
    parser.add_argument("--head", type=Path, default=ROOT, metavar="DIR", help="another tree than this one")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of the first pass")
    parser.add_argument("--size", choices=("full", "quick", "tiny"), default="quick")
    parser.add_argument("--dir", type=Path, help="where to work: on the disk that is to be measured")
    return parser


if __name__ == "__main__":
    sys.exit(main())

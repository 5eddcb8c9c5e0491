"""The operator's decisions by the size of the fleet: `python -m bench.decisions [--write-docs]`; a minute, no cluster.

Seconds of the processor's: a decision waits for nobody, and is made in a thread beside the watches.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.exponents import EXPONENT, slope
from bench.table import Row, Target, describe_machine, duration, markdown, write_docs
from tests.operator.scenes import SCENES
from tests.operator.support import decided
from ullage_operator.observation import Observation

DOCUMENT: Final = Path(__file__).parents[1] / "docs" / "performance.md"
TABLE: Final = "bench-decisions"
SIZES: Final = (500, 1_000, 5_000)
ROUNDS: Final = 9
CEILING: Final = Target(0.15, is_ceiling=True)


def seconds_of(seen: Observation) -> float:
    """What one decision takes."""
    began = time.process_time()
    decided(seen)
    return time.process_time() - began


def rows() -> list[Row]:
    """For each scene the time at the largest size, and how it grows."""
    found = []
    for name, scene in SCENES.items():
        fleets = {count: scene(count) for count in SIZES}
        rounds = [{count: seconds_of(seen) for count, seen in fleets.items()} for _ in range(ROUNDS)]
        medians = {count: statistics.median(each[count] for each in rounds) for count in SIZES}
        told = ", ".join(f"{count:,}: {duration(seconds)}" for count, seconds in medians.items())
        largest = tuple(each[SIZES[-1]] for each in rounds)
        found.append(Row("decisions", f"{SIZES[-1]:,} nodes, {name}", "", largest, "s", CEILING))
        exponents = tuple(1 + slope({count: seconds / count for count, seconds in each.items()}) for each in rounds)
        found.append(Row("decisions", f"{name}: exponent of its growth", "", exponents, "", EXPONENT, told))
    return found


def main() -> int:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(prog="python -m bench.decisions", description=__doc__)
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/performance.md")
    options = parser.parse_args()
    measured, machine = rows(), describe_machine(Path(tempfile.gettempdir()))
    print(f"{machine}\n\n{markdown(measured)}")
    if options.write_docs:
        write_docs(DOCUMENT, TABLE, measured, machine, is_all=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What a test of the proof explored: printed, and kept for the table of docs/reliability.md if somebody collects."""

import json
import os
from pathlib import Path

COLLECT = "ULLAGE_PROOF_FIGURES"
"""The environment names a file that takes one JSON document a line."""


def note(**counts: int) -> None:
    """Count what was explored; counts of the same name are added up over all tests."""
    path = os.environ.get(COLLECT, "")
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(counts) + "\n")  # one write, so lines of several processes do not mix
            file.flush()


def collected(path: Path) -> dict[str, int]:
    """The sums of what was noted in a file."""
    sums: dict[str, int] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        for name, count in json.loads(line).items():
            sums[name] = sums.get(name, 0) + count
    return sums

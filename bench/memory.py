"""Memory: what a FlowFile costs while it is resident, and while it is swapped out, measured in fresh processes."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.growth import RESIDENT
from bench.table import Row, Target, number
from bench.workbench import Workbench, fill, spec_at
from ullage.engine.engine import Engine

NIFI_BYTES = 945
"""Heap of Apache NiFi 2.11.0 for a FlowFile with 5 attributes, as recorded on another day and machine: shown, and no
target. The peer's own figure is measured by `bench --peers`."""

SWAP_FILE = 10_000
"""FlowFiles in one swap file."""

SWAPPED_TARGET = 2
"""Bytes: a swap file's summary and its share of the resource claims, over the 10,000 FlowFiles in it."""

ROOT = Path(__file__).parents[1]


def memory(bench: Workbench) -> Iterator[Row]:
    """Growth of a process that opens a repository of n FlowFiles, over one that opens a small one."""
    count = bench.sizes.memory
    rounds = bench.sizes.pause_rounds
    rss: list[float] = []
    traced: list[float] = []
    swapped: list[float] = []
    kept = 3 * SWAP_FILE
    small = _make(bench, "memory-small", 1, threshold=RESIDENT["swap_threshold"])
    large = _make(bench, "memory-large", 1 + count, threshold=RESIDENT["swap_threshold"])
    few = _make(bench, "memory-few", kept, threshold=2 * SWAP_FILE)
    many = _make(bench, "memory-many", kept + count // SWAP_FILE * SWAP_FILE, threshold=2 * SWAP_FILE)
    for _ in range(rounds):
        bench.say("processes with resident FlowFiles")
        base, full = _probe(small, RESIDENT["swap_threshold"]), _probe(large, RESIDENT["swap_threshold"])
        rss.append((full["rss"] - base["rss"]) / count)
        traced.append((full["traced"] - base["traced"]) / count)
        bench.say("processes with swapped FlowFiles")
        base, full = _probe(few, 2 * SWAP_FILE), _probe(many, 2 * SWAP_FILE)
        swapped.append((full["traced"] - base["traced"]) / max(1, full["swapped"] - base["swapped"]))
    for path in (small, large, few, many):
        shutil.rmtree(path)
    share = tuple(value / NIFI_BYTES for value in rss)
    what = f"a resident FlowFile with 5 attributes and content, of {count:,}"
    yield Row("memory", f"{what}: growth of the process", "", tuple(rss), "bytes")
    yield Row("memory", f"{what}: as a share", f"{NIFI_BYTES} bytes, recorded of NiFi 2.11.0", share)
    yield Row("memory", f"{what}: objects alone", "", tuple(traced), "bytes")
    if count >= SWAP_FILE:
        yield Row(
            "memory",
            f"a swapped FlowFile, of {count:,} in one queue",
            "",
            tuple(swapped),
            "bytes",
            Target(SWAPPED_TARGET, is_ceiling=True),
            f"{number(10 * SWAP_FILE * max(swapped) / 1e3)} kB for {10 * SWAP_FILE:,}",
        )


def _make(bench: Workbench, name: str, count: int, *, threshold: int) -> Path:
    """A closed repository whose snapshot holds `count` FlowFiles of one queue, each with a claim of its own."""
    path = bench.path(name)
    spec = spec_at(path, flow_file={"swap_threshold": threshold})
    Engine.initialize(spec)
    with Engine.open(spec) as repository:
        fill(repository, "inbox", count, with_attributes=True, say=bench.say)
        repository.checkpoint()
    return path


def resident_bytes(path: Path, threshold: int) -> int:
    """How large a fresh process is that opens the repository."""
    return _probe(path, threshold, "--size-only")["rss"]


def _probe(path: Path, threshold: int, *options: str) -> dict[str, int]:
    """What a fresh process that opens the repository uses."""
    program = [sys.executable, "-m", "bench.probe", str(path), str(threshold), *options]
    result = subprocess.run(program, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, int] = json.loads(result.stdout)
    return figures

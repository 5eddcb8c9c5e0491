"""`python -m tests.proof --seed N`: all of the proof with one seed, in about an hour; prints what it explored.

--seed N       the seed of everything that chooses at random
--write-docs   put the table of all runs with this code, a column a seed, into docs/reliability.md
PART...        only these parts

Each part is a test run of its own. What it explored is kept in `.proof/`; a part that fails leaves no figure. Runs
in one checkout wait for each other.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.table import describe_machine
from tests.cluster.cache import locked
from tests.proof.figures import COLLECT, collected

ROOT = Path(__file__).parents[2]
KEPT = ROOT / ".proof"
DOCUMENT = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- proof: begin -->", "<!-- proof: end -->"

Figures = Mapping[str, int]


@dataclass(frozen=True)
class Part:
    """One row: a command, its environment ("SEED" stands for the seed), and how its figures read."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    text: Callable[[Figures], str]


def _pytest(*paths: str) -> tuple[str, ...]:
    options = "-q -n 2 --dist worksteal --timeout 3600 -p no:cacheprovider"
    return ("-m", "pytest", *options.split(), *paths)


PARTS = (
    Part(
        "crash states",
        _pytest("tests/crash/test_crash_states.py", "tests/crash/test_call_sites.py", "tests/crash/test_power_loss.py"),
        {
            "ULLAGE_CRASH_SEED": "SEED",
            "ULLAGE_CRASH_SAMPLE": "1",
            "ULLAGE_CRASH_NESTED": "0.02",
            "ULLAGE_CRASH_KILLS": "0.2",
        },
        lambda of: (
            f"{of['once'] + of['twice'] + of['killed']:,} distinct in {of['workloads']} workloads: {of['once']:,} "
            f"after one crash, {of['twice']:,} after a second one, {of['killed']:,} after a kill; "
            f"{of['sites']} call sites"
        ),
    ),
    Part(
        "syncs left out",
        ("-m", "tests.crash.mutants"),
        {"ULLAGE_CRASH_SEED": "SEED"},
        lambda of: f"{of['syncs']} syncs, {of['noticed']} noticed",
    ),
    Part(
        "calls failed once",
        _pytest("tests/crash/test_failing_calls.py"),
        {"ULLAGE_CRASH_SEED": "SEED", "ULLAGE_FAULTS": "0.3"},
        lambda of: f"{of['faults']:,} faults, {of['images']:,} crash states after them",
    ),
    Part(
        "random orders of calls",
        _pytest("tests/crash/test_state_machine.py", "--hypothesis-seed=SEED"),
        {"ULLAGE_MACHINE_EXAMPLES": "600"},
        lambda of: f"{of['runs']:,} runs, {of['steps']:,} steps",
    ),
    Part(
        "SIGKILL and power cuts",
        _pytest("tests/kill"),
        {"ULLAGE_SEED": "SEED", "ULLAGE_KILLS": "50"},
        lambda of: (
            f"{of['kills']:,} kills, {of['cuts']:,} with a power cut, on {of['filesystems']} filesystems; "
            f"{of['acknowledged']:,} transactions acknowledged, {of['in_flight']:,} in flight"
        ),
    ),
    Part(
        "bit rot",
        _pytest("tests/rot"),
        {"ULLAGE_ROT_SEED": "SEED", "ULLAGE_ROT_SAMPLE": "0.5"},
        lambda of: (
            f'{of["flips"]:,} bit flips, {of["cuts"]:,} cuts; {of["untold"]:,} as described under "cannot be told"'
        ),
    ),
    Part(
        "hostile bytes",
        _pytest("tests/fuzz"),
        {"ULLAGE_FUZZ_SEED": "SEED", "ULLAGE_FUZZ_EXAMPLES": "5000"},
        lambda of: f"{of['examples']:,} files",
    ),
)


def main() -> int:
    """Run the parts; 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description="All of the proof, with one seed.")
    parser.add_argument("--seed", type=int, default=20261121)
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/reliability.md")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(part.name for part in PARTS)}")
    options = parser.parse_args()
    chosen = [part for part in PARTS if part.name in (options.parts or {part.name for part in PARTS})]
    KEPT.mkdir(exist_ok=True)
    with locked(KEPT / ".lock"):  # a second run would remove what the first one has counted
        failed = [part.name for part in chosen if not _run(part, options.seed)]
    text = table()
    print(f"\n{text}\n")
    if failed:
        print(f"failed: {', '.join(failed)}")
    elif options.write_docs:
        _write_docs(text)
    return 1 if failed else 0


def _run(part: Part, seed: int) -> bool:
    """Run one part and keep what it explored."""
    kept = _kept(part, seed)
    lines = kept.with_suffix(".lines")
    for old in (kept, lines):
        old.unlink(missing_ok=True)
    environment = {name: value.replace("SEED", str(seed)) for name, value in part.environment.items()}
    began = time.monotonic()
    print(f"== {part.name}, seed {seed}", flush=True)
    command = [sys.executable, *(word.replace("SEED", str(seed)) for word in part.command)]
    result = subprocess.run(command, check=False, cwd=ROOT, env={**os.environ, **environment, COLLECT: str(lines)})
    seconds = round(time.monotonic() - began)
    print(f"== {part.name}: {seconds} s, {'failed' if result.returncode else 'ok'}", flush=True)
    if result.returncode == 0:
        kept.write_text(json.dumps({"seconds": seconds, "figures": collected(lines)}), encoding="utf-8")
    lines.unlink(missing_ok=True)
    return result.returncode == 0


def table() -> str:
    """All that was kept, a row a part, a column a seed."""
    seeds = sorted({int(path.stem.rsplit("-", 1)[1]) for path in KEPT.glob("*.json")})
    lines = ["| what | " + " | ".join(f"explored with seed {seed}" for seed in seeds) + " | lost, wrong or leaked |"]
    lines.append("|---" * (len(seeds) + 2) + "|")
    for part in PARTS:
        cells = []
        for seed in seeds:
            kept = _kept(part, seed)
            found = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else None
            cells.append("-" if found is None else f"{part.text(found['figures'])} ({found['seconds'] / 60:.1f} min)")
        lines.append(f"| {part.name} | {' | '.join(cells)} | {'-' if '-' in cells else '0'} |")
    return "\n".join(lines)


def _kept(part: Part, seed: int) -> Path:
    return KEPT / f"{part.name.replace(' ', '-')}-{seed}.json"


def _write_docs(text: str) -> None:
    document = DOCUMENT.read_text(encoding="utf-8")
    head, begin, rest = document.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{DOCUMENT} has no lines {BEGIN} and {END} to write between")
    machine = describe_machine(ROOT)
    DOCUMENT.write_text(f"{head}{BEGIN}\n\n{machine}.\n\n{text}\n\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

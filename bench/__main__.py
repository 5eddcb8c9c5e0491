"""`python -m bench [CASE...]`: measure the engine beside the disk and print one table of ratios.

--quick        smaller sizes: about a minute
--dir DIR      where to work: on the disk that is to be measured (default: the system's temporary directory)
--json FILE    write the table as JSON too
--write-docs   put machine and table into docs/performance.md
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import content, growth, memory, updates
from bench.table import Row, as_json, describe_machine, filesystem_of, markdown, write_docs
from bench.workbench import FULL, QUICK, TINY, Workbench

Case = Callable[[Workbench], Iterator[Row]]

CASES: dict[str, Case] = {
    "content-batches": content.batches,
    "content-stream": content.stream,
    "content-reads": content.reads,
    "updates": updates.threads,
    "updates-slow-disk": updates.slow_disk,
    "update-batches": updates.batches,
    "recovery": growth.recovery,
    "pauses": growth.pauses,
    "memory": memory.memory,
}
SIZES = {"full": FULL, "quick": QUICK, "tiny": TINY}
DOCUMENT = Path(__file__).parents[1] / "docs" / "performance.md"


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen cases; 0 whatever the targets say, because a busy machine is slow, not wrong."""
    options = _parser().parse_args(arguments)
    unknown = set(options.cases) - set(CASES)
    if unknown:
        print(f"unknown case {', '.join(sorted(unknown))}: there are {', '.join(CASES)}", file=sys.stderr)
        return 2
    chosen = options.cases or list(CASES)
    with tempfile.TemporaryDirectory(prefix="ullage-bench-", dir=options.dir) as place:
        directory = Path(place)
        if filesystem_of(directory) in ("tmpfs", "ramfs"):
            print("this is memory, not a disk: a sync costs nothing here; choose --dir", file=sys.stderr)
        machine = describe_machine(directory)
        rows: list[Row] = []
        for name in chosen:
            rows += _run(name, Workbench(directory, SIZES[options.size], _sayer(name)))
            for leftover in directory.iterdir():
                shutil.rmtree(leftover)
    print(f"{machine}\n\n{markdown(rows)}")
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(rows, machine), indent=2) + "\n", encoding="utf-8")
    if options.write_docs:
        write_docs(DOCUMENT, rows, f"{machine}; sizes: {options.size}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure the engine beside the disk.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"any of {', '.join(CASES)}; all by default")
    parser.add_argument("--size", choices=SIZES, default="full", help="tiny is for tests: its figures mean nothing")
    parser.add_argument("--quick", action="store_const", const="quick", dest="size", help="the same as --size quick")
    parser.add_argument("--dir", type=Path, help="where to work: on the disk to measure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table as JSON too")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/performance.md")
    return parser


def _run(name: str, bench: Workbench) -> list[Row]:
    begin = time.monotonic()
    rows = []
    for row in CASES[name](bench):
        rows.append(row)
        bench.say("")
        print(" | ".join(cell for cell in row.cells() if cell), file=sys.stderr)
    bench.say("")
    print(f"{name} took {time.monotonic() - begin:.0f} s\n", file=sys.stderr)
    return rows


def _sayer(name: str) -> Callable[[str], None]:
    """One line that is rewritten (empty: wiped), on a terminal; silence elsewhere."""

    def say(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{name}: {text}" if text else "\r\x1b[K", end="", file=sys.stderr, flush=True)

    return say


if __name__ == "__main__":
    sys.exit(main())

"""`python -m bench [CASE...]`: measure the engine beside the disk and print one table of ratios.

--peers        beside Apache NiFi's own classes instead, and Ambry's: needs a JDK of 21 or newer, and Maven
--quick        smaller sizes: about a minute
--dir DIR      where to work: on the disk that is to be measured (default: the system's temporary directory)
--json FILE    write the table as JSON too
--write-docs   put machine and rows into docs/performance.md and the JSON beside it; of chosen cases only their rows
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench import (
    agent,
    agent_memory,
    agent_reads,
    content,
    exponents,
    fairness,
    growth,
    hostile,
    memory,
    peers,
    peers_compaction,
    peers_growth,
    peers_provenance,
    peers_space,
    placement,
    provenance,
    reclaim,
    reclaim_copying,
    tenants,
    updates,
)
from bench.arena import PEER_FULL, PEER_QUICK, PEER_TINY, Arena
from bench.harness import Harness, HarnessFailed
from bench.table import PEERS, TABLE, Results, Row, describe_machine, filesystem_of, markdown, write_docs
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
    "growth": exponents.exponents,
    "memory": memory.memory,
    "provenance-costs": provenance.costs,
    "provenance-answers": provenance.answers,
    "agent-puts": agent.puts,
    "agent-single-puts": agent.single_puts,
    "agent-large-puts": agent.large_puts,
    "agent-reads": agent_reads.reads,
    "agent-large": agent_reads.large,
    "agent-memory": agent_memory.streaming,
    "agent-slow-readers": agent_memory.slow_readers,
    "agent-hostile": hostile.hostile,
    "agent-hostile-writers": hostile.hostile_writers,
    "agent-fairness": fairness.fairness,
    "reclaim-story": reclaim.story,
    "reclaim-copying": reclaim_copying.copying,
    "reclaim-paced": reclaim.paced,
    "reclaim-steady": reclaim.steady,
    "reclaim-growth": reclaim.growth,
    "placement": placement.placement,
    "placement-outputs": placement.outputs,
    "tenants": tenants.tenants,
}
PEER_CASES: dict[str, Callable[[Arena], Iterator[Row]]] = {
    "content": peers.contents,
    "reads": peers.reads,
    "updates": peers.updates,
    "many": peers_growth.many,
    "drops": peers_growth.drops,
    "registrations": peers_provenance.registrations,
    "answers": peers_provenance.answers,
    "tails": peers_space.tails,
    "mixed": peers_space.mixed,
    "replays": peers_space.replays,
    "compaction": peers_compaction.compaction,
}
SIZES = {"full": FULL, "quick": QUICK, "tiny": TINY}
PEER_SIZES = {"full": PEER_FULL, "quick": PEER_QUICK, "tiny": PEER_TINY}
DOCUMENT = Path(__file__).parents[1] / "docs" / "performance.md"


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen cases; 0 whatever the targets say, because a busy machine is slow, not wrong.

    2: no such case; 3: the peer does not start; 4: the table could not be put into the document.
    """
    options = _parser().parse_args(arguments)
    known: Mapping[str, object] = PEER_CASES if options.peers else CASES
    unknown = set(options.cases) - set(known)
    if unknown:
        print(f"unknown case {', '.join(sorted(unknown))}: there are {', '.join(known)}", file=sys.stderr)
        return 2
    chosen = options.cases or list(known)
    with tempfile.TemporaryDirectory(prefix="ullage-bench-", dir=options.dir) as place, ExitStack() as stack:
        directory = Path(place)
        if filesystem_of(directory) in ("tmpfs", "ramfs"):
            print("this is memory, not a disk: a sync costs nothing here; choose --dir", file=sys.stderr)
        machine = describe_machine(directory)
        cases = CASES
        if options.peers:
            try:
                harness = stack.enter_context(Harness.start(directory))
            except HarnessFailed as error:
                print(error, file=sys.stderr)
                return 3
            cases = _peer_cases(harness, options.size)
            machine += f"; Apache NiFi {harness.version} on Java {harness.java}"
        rows: list[Row] = []
        for name in chosen:
            rows += _run(name, cases[name], Workbench(directory, SIZES[options.size], _sayer(name)))
            for leftover in directory.iterdir():
                shutil.rmtree(leftover)
    print(f"{machine}\n\n{markdown(rows)}")
    if options.json is not None:
        options.json.write_text(Results(machine, tuple(rows)).as_json(), encoding="utf-8")
    if options.write_docs:
        table, machine = PEERS if options.peers else TABLE, f"{machine}; sizes: {options.size}"
        try:
            write_docs(DOCUMENT, table, rows, machine, is_all=set(chosen) == set(known))
        except ValueError as error:
            print(error, file=sys.stderr)
            return 4
    return 0


def _peer_cases(harness: Harness, size: str) -> dict[str, Case]:
    def with_harness(case: Callable[[Arena], Iterator[Row]], bench: Workbench) -> Iterator[Row]:
        return case(Arena(bench, PEER_SIZES[size], harness))

    return {name: partial(with_harness, case) for name, case in PEER_CASES.items()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure the engine beside the disk.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"any of {', '.join(CASES)}; all by default")
    parser.add_argument("--peers", action="store_true", help=f"beside Apache NiFi: any of {', '.join(PEER_CASES)}")
    parser.add_argument("--size", choices=SIZES, default="full", help="tiny is for tests: its figures mean nothing")
    parser.add_argument("--quick", action="store_const", const="quick", dest="size", help="the same as --size quick")
    parser.add_argument("--dir", type=Path, help="where to work: on the disk to measure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table as JSON too")
    parser.add_argument(
        "--write-docs", action="store_true", help="put the table, or the chosen cases' rows, into docs/performance.md"
    )
    return parser


def _run(name: str, case: Case, bench: Workbench) -> list[Row]:
    begin = time.monotonic()
    rows = []
    for row in case(bench):
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

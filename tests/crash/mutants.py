"""Take one sync out of the engine at a time, or let it do a step too early: the crash exploration is to find it.

`python -m tests.crash.mutants` finds every call of `sync` and `sync_directory` in the engine by walking its syntax
tree, so that a new one cannot be forgotten. Each is left out in a copy of the package. First come the states right
after the places where a workload missed it, then the tests in which power is lost, then ever larger shares of all
states of all workloads; the first that fails ends it. A sync whose removal breaks no promise is a survivor: a promise
is not tested, or nobody needs that sync.
"""

import ast
import builtins
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import NamedTuple

import ullage
from tests.crash.explore import SEED, Recording, Tally, explore
from tests.crash.workloads import INIT, WORKLOADS, Workload
from tests.proof.figures import note

PACKAGE = Path(ullage.__file__).parent
ROOT = Path(__file__).parents[2]

SYNCS = {"sync", "sync_directory"}
DISK = {"OsFile", "OsFiles", "File", "Files"}
"""Classes that are the disk, rather than users of it."""

NEAR_MOMENTS = 30
"""Moments explored after a miss: until something else has been synced, or what needed the sync has been promised."""

NEAR_MISSES = 3
"""Misses explored so closely, of each workload."""

TESTS = (
    "tests/crash/test_power_loss.py",
    "tests/engine/runs/test_merged_rows.py",
    "tests/engine/ledger/test_resident_records.py",
    "tests/engine/ledger/test_residents.py",
    "tests/engine/test_claim_runs.py",
    "tests/engine/test_cold_handles.py",
    "tests/engine/test_damaged_handles.py",
)
"""Paths that no workload can take, since they begin with files that somebody else has changed; and what costs nobody
anything that a workload could miss, yet.
"""


class Shares(NamedTuple):
    """What is explored of each workload: of its states, of crashes during their recovery, of kills."""

    states: float
    recoveries: float
    kills: float


ROUNDS = (Shares(0.02, 0.02, 0.03), Shares(0.1, 0.05, 0.1), Shares(1.0, 0.02, 0.2))

INIT_TIMES = 50
"""The init is short, and has a sync at every other call: its shares are larger by this factor."""

PROCESSES = 2

BUDGET_SECONDS = 100
"""Of one processor, for the exploration of one mutant, after which it has survived; most are found within one."""

TIMEOUT_SECONDS = 3_600
"""For a mutant that neither ends nor fails, on a busy machine."""

MISSED = "ullage_sync_left_out"
"""What stands in the place of a call, and tells the hunt that the engine came by."""


class Sync(NamedTuple):
    """One call that makes something durable, in bytes of its file's lines."""

    path: Path
    line: int
    column: int
    end_line: int
    end_column: int
    text: str
    function: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.function}: {self.text}"


class Hurry(NamedTuple):
    """A step that must come after another one, and comes before it in the mutant: lines of one module."""

    path: Path
    first: str
    later: str

    def __str__(self) -> str:
        return f"{self.path}: {self.later.strip()} before {self.first.strip()}"


LOG = Path("engine", "wal", "log.py")
HURRIES = (
    Hurry(LOG, "        publish(self._place)\n", "        self._state.published()\n"),
    Hurry(LOG, "        publish(self._place)\n", "        self._delete(rotation.covered)\n"),
)
"""What a snapshot makes unnecessary is needed until its rename."""


class Slip(NamedTuple):
    """A line that says something else in the mutant."""

    path: Path
    right: str
    wrong: str

    def __str__(self) -> str:
        return f"{self.path}: {self.wrong.strip()} for {self.right.strip()}"


RUN_FILES = Path("engine", "ledger", "runfiles.py")
COLD = Path("engine", "ledger", "coldhandles.py")
RESIDENT = Path("engine", "ledger", "resident.py")
HANDLE_RUNS = Path("engine", "ledger", "handleruns.py")
CLAIM_RUNS = Path("engine", "ledger", "claimruns.py")
SLIPS = (
    Slip(Path("engine", "runs", "mergedrows.py"), "(value or not has_oldest)", "value"),
    Slip(RUN_FILES, "kept = self._listed | self._writing\n", f"kept = frozenset({MISSED}() or self._writing)\n"),
    Slip(RUN_FILES, "kept |= self._counting()\n", f"kept |= frozenset({MISSED}() or ())\n"),
    Slip(RESIDENT, "if record is not None or moves == self.moves:", "if True:"),
    Slip(RESIDENT, " if objects.get(each.uuid) is each]", "]"),
    Slip(Path("engine", "ledger", "packed.py"), " and row_at(current, index) == row", ""),
    Slip(COLD, "        run.hide(row)\n        if record", "        if record"),
    Slip(COLD, "run.left.append(record.uuid)", "return True"),
    Slip(COLD, "self.shares.lower(record.claim)", "pass"),
    Slip(HANDLE_RUNS, "self._cold.shares.lower(claim)", "pass"),
    Slip(HANDLE_RUNS, "yield [*listed, *beside]", "yield listed"),
    Slip(HANDLE_RUNS, "if merged is not None and number in _numbers(merged.runs):", "if False:"),
    Slip(HANDLE_RUNS, "if number in self._left_out:", "if False:"),
    Slip(CLAIM_RUNS, "            self._claim_rows.finish()\n", ""),
    Slip(CLAIM_RUNS, "self.give_up()  # one without", "pass  # one without"),
    Slip(CLAIM_RUNS, "if part.has(each.row)", "if True"),
    Slip(Path("engine", "ledger", "claimrows.py"), "before = segment * SEGMENT_ROWS", "before = 0"),
    Slip(Path("engine", "ledger", "packedclaims.py"), "column[place + 1 :]", "column[place + 2 :]"),
    Slip(
        Path("engine", "ledger", "resources.py"),
        "                self._share(row[0])\n            else:",
        "            else:",
    ),
    Slip(Path("engine", "ledger", "aside.py"), " or self.is_holding_unread", ""),
)
"""A deletion that goes while older runs have what it hides; runs that leave the disk before the rename of the snapshot
that does without them, or after a merge before the one that lists them; a handle that is not found while it becomes an
object again, or is packed as it was before its last change; one that leaves memory as it was before that, that is in
memory and in a run, or comes back with a merge; a claim that dies with its neighbour, or with the first of
those that share it; a file's share of what rests in runs that a handle leaves, or never joined, and that counts it
still; what a block that cannot be read may claim is given back; handles that come back with a merge after they were
given up, or that a record gives up of a run which a start does not find; handles whose claims no snapshot lists, or are
cut short, or lie there though their handles were never finished, or are those of handles that left, or of handles of
another segment.
"""


class Verdict(NamedTuple):
    """What became of a mutant: who found it, or "" if nobody did, and what they said."""

    mutant: Sync | Hurry | Slip | None
    killer: str
    said: str
    seconds: float


def find_syncs(package: Path = PACKAGE) -> list[Sync]:
    """Every such call of the engine that stands as a statement; one whose value is used returns more than a promise."""
    found: list[Sync] = []
    for path in sorted((package / "engine").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found.extend(_syncs_below(tree, path.relative_to(package), ""))
    return found


def _syncs_below(node: ast.AST, path: Path, function: str) -> Iterator[Sync]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef) and child.name in DISK:
            continue
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Call):
            call = child.value
            if isinstance(call.func, ast.Attribute) and call.func.attr in SYNCS:
                place = (call.lineno, call.col_offset, call.end_lineno or 0, call.end_col_offset or 0)
                yield Sync(path, *place, ast.unparse(call), function)
        inner = function
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inner = f"{function}.{child.name}".strip(".")
        yield from _syncs_below(child, path, inner)


def without(source: bytes, sync: Sync) -> bytes:
    """The module with `MISSED` in the call's place."""
    lines = source.splitlines(keepends=True)
    head = lines[sync.line - 1][: sync.column]
    tail = lines[sync.end_line - 1][sync.end_column :]
    lines[sync.line - 1 : sync.end_line] = [head + MISSED.encode() + b"()" + tail]
    return b"".join(lines)


def hurried(source: str, hurry: Hurry) -> str:
    """The module with the later step in front of the first one."""
    assert source.count(hurry.first) == source.count(hurry.later) == 1, f"{hurry} is not what it was"
    return source.replace(hurry.later, "").replace(hurry.first, f"        {MISSED}()\n{hurry.later}{hurry.first}")


def slipped(source: str, slip: Slip) -> str:
    """The module with the other line."""
    assert source.count(slip.right) == 1, f"{slip} is not what it was"
    return source.replace(slip.right, slip.wrong)


def judge(mutant: Sync | Hurry | Slip | None) -> Verdict:
    """Explore a copy of the package with this change, or with none: else every mutant would seem to be killed."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ullage-mutant-") as folder:
        copy = Path(folder) / PACKAGE.name
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        if isinstance(mutant, Sync):
            mutated = copy / mutant.path
            mutated.write_bytes(without(mutated.read_bytes(), mutant))
        elif isinstance(mutant, Slip):
            mutated = copy / mutant.path
            mutated.write_text(slipped(mutated.read_text(encoding="utf-8"), mutant), encoding="utf-8")
        elif mutant is not None:
            mutated = copy / mutant.path
            mutated.write_text(hurried(mutated.read_text(encoding="utf-8"), mutant), encoding="utf-8")
        paths = os.pathsep.join((folder, str(ROOT)))
        command = [sys.executable, "-m", "tests.crash.mutants", "hunt", folder]
        result = subprocess.run(
            command,
            check=False,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
    killer, _, said = result.stdout.strip().partition(": ")
    if result.returncode:
        raise RuntimeError(f"the exploration of {mutant} did not run:\n{result.stdout}{result.stderr}")
    return Verdict(mutant, killer, said, time.monotonic() - began)


class Hunt(Recording):
    """A recording that knows at which of its moments the engine came by without its sync."""

    def __init__(self, workload: Workload) -> None:
        self._misses: list[int] = []
        setattr(builtins, MISSED, lambda: self._misses.append(len(self.moments)))
        super().__init__(workload)
        count = len(self.moments)
        near = {moment for miss in self._chosen() for moment in range(miss, min(miss + NEAR_MOMENTS, count))}
        ends = {at for at, moment in enumerate(self.moments) if moment.promises.is_closed}
        self.near = sorted(near | ends) if near else []

    def _skip_init(self) -> None:
        super()._skip_init()
        self._misses.clear()

    def _chosen(self) -> list[int]:
        """The first miss, the last, and some between them."""
        misses = sorted({miss for miss in self._misses if miss < len(self.moments)})
        return [misses[at * (len(misses) - 1) // (NEAR_MISSES - 1)] for at in range(NEAR_MISSES)] if misses else []


def hunt(folder: str) -> str:
    """In the mutant's own process: who notices the miss, and how; nothing if nobody does."""
    assert PACKAGE.is_relative_to(folder), f"{PACKAGE} is not the mutant in {folder}"
    end = time.process_time() + BUDGET_SECONDS
    tally = Tally()
    hunts: dict[str, Hunt] = {}
    name = ""
    try:
        for name, workload in WORKLOADS.items():
            found = hunts[name] = Hunt(workload)
            explore(found, SEED, tally, kills=ROUNDS[-1].kills, moments=found.near)
        failed = _failing_test()
        if failed:
            return failed
        # The init first: it is short, and what opens a repository is needed by all that come after.
        for shares, (name, found) in product(ROUNDS, sorted(hunts.items(), key=lambda item: item[0] != INIT)):
            if time.process_time() < end:
                more = INIT_TIMES if name == INIT else 1
                sample, kills = shares.states * more, shares.kills * more
                explore(found, SEED, tally, sample=sample, nested=shares.recoveries, kills=kills)
    except Exception as error:  # noqa: BLE001 - whatever it is, the missing sync was noticed
        first = " ".join(f"{type(error).__name__} {error}".split())[:160]
        return f"{name}: {first} [{' '.join(getattr(error, '__notes__', []))}]"
    return f": none of {tally}"


def _failing_test() -> str:
    """The first of `TESTS` that fails on the mutant, and how."""
    program = f"import builtins, sys, pytest; builtins.{MISSED} = lambda: None; sys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "-x", "-q", "-p", "no:cacheprovider", *TESTS]
    result = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    if result.returncode == 0:
        return ""
    failed = [line for line in result.stdout.splitlines() if line.startswith("FAILED")]
    assert failed, f"{TESTS} did not run:\n{result.stdout}{result.stderr}"
    return failed[0].partition("::")[2].replace(" - ", ": ", 1)[:200]


def main() -> int:
    """Judge every sync of the engine, every hurry and every slip; 1 if one survives."""
    began = time.monotonic()
    syncs = find_syncs()
    mutants = (*syncs, *HURRIES, *SLIPS)
    others = f"{len(HURRIES)} hurries, {len(SLIPS)} slips"
    print(f"{len(syncs)} syncs in the engine, {others}, seed {SEED}", flush=True)
    survivors: list[Verdict] = []
    intact = True
    with ThreadPoolExecutor(PROCESSES) as pool:
        for verdict in pool.map(judge, (*mutants, None)):
            if verdict.mutant is None:
                intact = not verdict.killer
                print(f"{verdict.seconds:5.1f} s  the intact engine: {verdict.killer or 'nothing'}: {verdict.said}")
                continue
            outcome = f"killed by {verdict.killer}" if verdict.killer else "SURVIVED"
            print(f"{verdict.seconds:5.1f} s  {outcome:22}  {verdict.mutant}\n         {verdict.said}", flush=True)
            if not verdict.killer:
                survivors.append(verdict)
    seconds = time.monotonic() - began
    killed = len(mutants) - len(survivors)
    print(f"{len(mutants)} mutants, {killed} killed, {len(survivors)} survived, {seconds:.0f} s")
    note(syncs=len(mutants), noticed=killed)
    for verdict in survivors:
        print(f"survivor: {verdict.mutant}")
    if not intact:
        print("the intact engine fails as well: these verdicts say nothing")
    return 0 if intact and not survivors else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["hunt"]:
        print(hunt(sys.argv[2]))
    else:
        sys.exit(main())

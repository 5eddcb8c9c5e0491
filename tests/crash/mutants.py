"""Take one sync out of the engine at a time, and let the crash exploration find that it is gone.

`python -m tests.crash.mutants` finds every call of `sync` and `sync_directory` in the engine by walking its syntax
tree, so that a new one cannot be forgotten. Each is replaced by a no-op in a copy of the package; the exploration over
that copy must then fail, first in small shares of all workloads, in the end in all their states. A sync whose removal
breaks no promise is a survivor: a promise is not tested, or nobody needs that sync.
"""

import ast
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import ullage_agent

PACKAGE = Path(ullage_agent.__file__).parent
ROOT = Path(__file__).parents[2]

SYNCS = {"sync", "sync_directory"}
DISK = {"OsFile", "OsFiles", "File", "Files"}
"""Classes that are the disk, rather than users of it."""

SEED = int(os.environ.get("ULLAGE_CRASH_SEED", "20261121"))

ROUNDS = ((0.02, 0.02, 0.03), (0.1, 0.05, 0.1), (1.0, 0.02, 0.2))
"""Shares of what is explored of each workload: of states, of crashes during their recovery, of kills."""

INIT_TIMES = 50
"""The init is short, and has a sync at every other call: its shares are larger by this factor."""

PROCESSES = 2
TIMEOUT_SECONDS = 600
"""For one mutant. One that is not decided by then counts as a survivor."""


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


class Verdict(NamedTuple):
    """What became of a mutant: who found it, or "" if nobody did, and what they said."""

    sync: Sync | None
    killer: str
    said: str
    seconds: float


def find_syncs(package: Path = PACKAGE) -> list[Sync]:
    """Every such call of the engine that stands as a statement; one whose value is used returns more than a promise."""
    found: list[Sync] = []
    for path in sorted((package / "engine").rglob("*.py")):
        if path.name != "testing.py":
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
    """The module with `None` in the call's place."""
    lines = source.splitlines(keepends=True)
    head = lines[sync.line - 1][: sync.column]
    tail = lines[sync.end_line - 1][sync.end_column :]
    lines[sync.line - 1 : sync.end_line] = [head + b"None" + tail]
    return b"".join(lines)


def judge(sync: Sync | None) -> Verdict:
    """Explore a copy of the package that lacks this call, or none: else every mutant would seem to be killed."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ullage-mutant-") as folder:
        copy = Path(folder) / PACKAGE.name
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        if sync is not None:
            mutated = copy / sync.path
            mutated.write_bytes(without(mutated.read_bytes(), sync))
        paths = os.pathsep.join((folder, str(ROOT)))
        command = [sys.executable, "-m", "tests.crash.mutants", "hunt", folder]
        try:
            result = subprocess.run(
                command,
                check=False,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return Verdict(sync, "", f"not decided within {TIMEOUT_SECONDS} s", time.monotonic() - began)
    killer, _, said = result.stdout.strip().partition(": ")
    if result.returncode:
        raise RuntimeError(f"the exploration of {sync} did not run:\n{result.stdout}{result.stderr}")
    return Verdict(sync, killer, said, time.monotonic() - began)


def hunt(folder: str) -> str:
    """In the mutant's own process: the workload that fails, and how; nothing if none does."""
    from tests.crash.explore import Recording, Tally, explore
    from tests.crash.workloads import INIT, WORKLOADS

    assert PACKAGE.is_relative_to(folder), f"{PACKAGE} is not the mutant in {folder}"
    recordings: dict[str, Recording] = {}
    tally = Tally()
    for sample, nested, kills in ROUNDS:
        for name, workload in WORKLOADS.items():
            try:
                recording = recordings.setdefault(name, recordings.get(name) or Recording(workload))
                more = INIT_TIMES if name == INIT else 1
                explore(recording, SEED, tally, sample=sample * more, nested=nested, kills=kills * more)
            except Exception as error:  # noqa: BLE001 - whatever it is, the missing sync was noticed
                first = " ".join(f"{type(error).__name__} {error}".split())[:160]
                return f"{name}: {first} [{' '.join(getattr(error, '__notes__', []))}]"
    return f": none of {tally}"


def main() -> int:
    """Judge every sync of the engine; 1 if one survives."""
    syncs = find_syncs()
    print(f"{len(syncs)} syncs in the engine, seed {SEED}", flush=True)
    survivors: list[Verdict] = []
    intact = True
    with ThreadPoolExecutor(PROCESSES) as pool:
        for verdict in pool.map(judge, (*syncs, None)):
            if verdict.sync is None:
                intact = not verdict.killer
                print(f"the intact engine, explored for {verdict.seconds:.0f} s: {verdict.killer}: {verdict.said}")
                continue
            outcome = f"killed by {verdict.killer}" if verdict.killer else "SURVIVED"
            print(f"{verdict.seconds:5.1f} s  {outcome:22}  {verdict.sync}\n         {verdict.said}", flush=True)
            if not verdict.killer:
                survivors.append(verdict)
    print(f"{len(syncs)} syncs, {len(syncs) - len(survivors)} killed, {len(survivors)} survived")
    for verdict in survivors:
        print(f"survivor: {verdict.sync}")
    if not intact:
        print("the intact engine fails as well: these verdicts say nothing")
    return 0 if intact and not survivors else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["hunt"]:
        print(hunt(sys.argv[2]))
    else:
        sys.exit(main())

"""Take one `except` that keeps the engine going out of it at a time, and let a test find that it is gone.

`python -m tests.crash.tries` finds every handler and `suppress` of the engine that ends an error instead of raising it,
by walking its syntax tree, so that a new one cannot be forgotten. In a copy of the package each notes who came by. All
tests of the engine run over it once; then each handler raises what it had ended, and the tests that came by run again,
until one fails. One that no test comes by, or whose absence no test notices, is a survivor.
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

import ullage
from tests.proof.figures import note

PACKAGE = Path(ullage.__file__).parent
ROOT = Path(__file__).parents[2]
PARTS = (
    "opening",
    "engine",
    "careful",
    "usable",
    "recovery",
    "holdings",
    "proof",
    "unavailable",
    "setaside",
    "volumes",
)
"""Modules of the engine that a start and what follows it goes through, beside those of whole packages."""

PACKAGES = ("wal", "ledger", "content", "flowfile", "provenance")
TESTS = (
    "tests/engine",
    "tests/faults",
    "tests/repositories",
    "tests/conformance",
    "tests/fuzz/test_hostile_transactions.py",
    "tests/crash/test_failing_calls.py",
    "tests/crash/test_power_loss.py",
)
COMERS_MAX = 25
"""Tests that are tried for one handler."""

PROCESSES = 2

PROBE = '''"""What the handlers of this copy call."""

import os
from contextlib import suppress
from types import TracebackType

GONE = os.environ.get("ULLAGE_HANDLER_GONE")
NOTES = os.environ.get("ULLAGE_HANDLER_NOTES")


def reached(handler: str) -> None:
    if NOTES is not None:
        descriptor = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        os.write(descriptor, f"{handler}\\t{test}\\n".encode())
        os.close(descriptor)
    if handler == GONE:
        raise


class Suppress(suppress):
    def __init__(self, handler: str, *errors: type[BaseException]) -> None:
        super().__init__(*errors)
        self.handler = handler

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if not super().__exit__(kind, error, at):
            return False
        try:
            raise error
        except kind:
            reached(self.handler)
        return True
'''


class Handler(NamedTuple):
    """A handler that ends an error, or a `suppress`: where it begins, and where the probe is put."""

    path: Path
    line: int
    column: int
    end_column: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.text}"


class Verdict(NamedTuple):
    """What became of a handler that was taken out: how many tests came by, and the one that failed, if any."""

    handler: Handler
    comers: int
    killer: str
    seconds: float


def find_handlers(package: Path = PACKAGE) -> list[Handler]:
    """Those that end an error, always or in some case."""
    engine = package / "engine"
    modules = [engine / f"{part}.py" for part in PARTS]
    for name in PACKAGES:
        modules += sorted((engine / name).rglob("*.py"))
    found: list[Handler] = []
    for path in modules:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found.extend(_handlers_of(tree, path.relative_to(package)))
    return found


def _handlers_of(tree: ast.AST, path: Path) -> Iterator[Handler]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and not any(isinstance(each, ast.Raise) for each in node.body):
            first = node.body[0]
            kinds = ast.unparse(node.type) if node.type is not None else ""
            yield Handler(path, first.lineno, first.col_offset, 0, f"except {kinds}: {ast.unparse(first)[:50]}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "suppress":
            yield Handler(path, node.lineno, node.func.col_offset, node.func.end_col_offset or 0, ast.unparse(node))


def instrument(folder: Path, handlers: list[Handler]) -> None:
    """A copy of the package in whose handlers the probe is called first."""
    copy = folder / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "probe.py").write_text(PROBE)
    for path in {handler.path for handler in handlers}:
        lines = (copy / path).read_text(encoding="utf-8").splitlines(keepends=True)
        own = [(number, handler) for number, handler in enumerate(handlers) if handler.path == path]
        for number, handler in sorted(own, key=lambda each: (each[1].line, each[1].column), reverse=True):
            line = lines[handler.line - 1]
            if handler.end_column:
                call = f'__import__("ullage.probe").probe.Suppress("{number}", '
                rest = line[handler.end_column :].removeprefix("(")
                lines[handler.line - 1] = line[: handler.column] + call + rest
            else:
                call = f'__import__("ullage.probe").probe.reached("{number}")'
                lines.insert(handler.line - 1, f"{line[: handler.column]}{call}\n")
        (copy / path).write_text("".join(lines), encoding="utf-8")


def run_tests(folder: Path, tests: list[str], *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Over the copy."""
    paths = os.pathsep.join((str(folder), str(ROOT)))
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *tests],
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
    )


def comers(folder: Path) -> dict[str, list[str]]:
    """By handler, the tests that came by."""
    notes = folder / "notes"
    result = run_tests(folder, list(TESTS), "-n", str(PROCESSES), ULLAGE_HANDLER_NOTES=str(notes))
    if result.returncode:
        raise RuntimeError(f"the tests do not pass over the intact copy:\n{result.stdout[-4_000:]}{result.stderr}")
    found: dict[str, dict[str, None]] = {}
    for line in notes.read_text(encoding="utf-8").splitlines():
        handler, _, test = line.partition("\t")
        if test:
            found.setdefault(handler, {})[test] = None
    return {handler: list(tests) for handler, tests in found.items()}


def judge(folder: Path, number: int, handler: Handler, tests: list[str]) -> Verdict:
    """Run the tests that came by while this handler raises."""
    began = time.monotonic()
    killer = ""
    if tests:
        share = tests[:: max(1, len(tests) // COMERS_MAX)][:COMERS_MAX]
        result = run_tests(folder, share, "-x", ULLAGE_HANDLER_GONE=str(number))
        failed = [line for line in result.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        if result.returncode not in (0, 1) or (result.returncode == 1 and not failed):
            raise RuntimeError(f"the tests of {handler} did not run:\n{result.stdout}{result.stderr}")
        killer = failed[0].split(" - ")[0] if failed else ""
    return Verdict(handler, len(tests), killer, time.monotonic() - began)


def main() -> int:
    """Judge every handler; 1 if one survives."""
    began = time.monotonic()
    handlers = find_handlers()
    survivors: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="ullage-handlers-") as name:
        folder = Path(name)
        instrument(folder, handlers)
        print(f"{len(handlers)} handlers; all tests run once", flush=True)
        found = comers(folder)
        print(f"{time.monotonic() - began:5.0f} s  tests come by {len(found)} of them", flush=True)
        with ThreadPoolExecutor(PROCESSES) as pool:
            judged = (
                pool.submit(judge, folder, number, handler, found.get(str(number), []))
                for number, handler in enumerate(handlers)
            )
            for future in list(judged):
                verdict = future.result()
                outcome = f"noticed by {verdict.killer}" if verdict.killer else f"SURVIVED {verdict.comers} tests"
                print(f"{verdict.seconds:5.1f} s  {verdict.handler}\n         {outcome}", flush=True)
                if not verdict.killer:
                    survivors.append(verdict)
    print(f"{len(handlers)} handlers, {len(survivors)} survived, {time.monotonic() - began:.0f} s")
    note(handlers=len(handlers), handlers_noticed=len(handlers) - len(survivors))
    for verdict in survivors:
        print(f"survivor ({verdict.comers} tests): {verdict.handler}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())

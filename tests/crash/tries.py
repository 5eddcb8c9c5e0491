"""Take one `except` that keeps the engine going out of it at a time, and let a test find that it is gone.

`python -m tests.crash.tries` finds every handler and `suppress` of the engine that ends an error instead of raising it,
by walking its syntax tree, so that a new one cannot be forgotten. All of them are in question: what a start does not
come by itself it leaves to the first uses, and those go through all the rest.

In a copy of the package each handler notes which tests come by. All tests of the engine run over it once; then each
handler raises what it had ended, and the tests that came by run again, until one fails. One that no test comes by, or
whose absence no test notices, is a survivor, unless `EQUIVALENT` says why nobody could notice.

What was found is kept in `.proof/` and not sought again: which test notices as long as that test's and the handler's
module are the same, and which tests come by as long as their module is; only for what survives those do all tests run
again over an engine that has changed.
"""

import ast
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import ullage

PACKAGE = Path(ullage.__file__).parent
ROOT = Path(__file__).parents[2]
KEPT = ROOT / ".proof" / "tries.kept"
SEED = int(os.environ.get("ULLAGE_SEED", "20261121"))
MINUTES = float(os.environ.get("ULLAGE_TRIES_MINUTES", "40"))
"""What has begun comes to its end, the run of all tests too."""

TESTS = (
    "tests/engine",
    "tests/faults",
    "tests/repositories",
    "tests/conformance",
    "tests/rot",
    "tests/fuzz",
    "tests/crash/test_backup_crashes.py",
    "tests/crash/test_failing_calls.py",
    "tests/crash/test_power_loss.py",
)
"""Those that take long come last, and where one before them notices, do not run."""

COMERS_MAX = 25
"""Tests that are tried for one handler."""

PROCESSES = 2

NOT_COLLECTED = 4
"""How pytest ends that does not find a test."""

EQUIVALENT: dict[str, str] = {}
"""Handlers whose absence nobody could notice, and why."""

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
    """A handler that ends an error, or a `suppress`: what it is called, and where the probe is put."""

    name: str
    path: Path
    line: int
    column: int
    end_column: int


class Comers(NamedTuple):
    """Of one module of tests, as it was when it ran over the engine as that was."""

    version: str
    engine: str
    tests: dict[str, list[str]]
    """By handler, those that came by."""


class Kept:
    """What earlier runs have found, in a file of JSON."""

    def __init__(self, path: Path = KEPT) -> None:
        self._path = path
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self.comers = {module: Comers(*of) for module, of in found.get("comers", {}).items()}
        self._noticed: dict[str, list[str]] = found.get("noticed", {})
        """By handler: the test that noticed, and what its module and the handler's were."""

    def is_noticed(self, handler: Handler) -> bool:
        """Whether the verdict still stands."""
        killer, versions = self._noticed.get(handler.name, ("", ""))
        return bool(killer) and versions == _versions(handler, killer)

    def notice(self, handler: Handler, killer: str) -> None:
        """By which test."""
        self._noticed[handler.name] = [killer, _versions(handler, killer)]
        self.write()

    def write(self) -> None:
        """All of it; what was there stays until then."""
        self._path.parent.mkdir(exist_ok=True)
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps({"comers": self.comers, "noticed": self._noticed}, indent=1), encoding="utf-8")
        partial.replace(self._path)


def _versions(handler: Handler, killer: str) -> str:
    test = ROOT / killer.partition("::")[0]
    return _digest(PACKAGE / handler.path, test) if test.exists() else ""


def _digest(*paths: Path) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def find_handlers(package: Path = PACKAGE) -> list[Handler]:
    """Those that end an error, always or in some case, of every module."""
    found: list[Handler] = []
    for path in sorted((package / "engine").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found.extend(_handlers_below(tree, path.relative_to(package), ""))
    for at, handler in enumerate(found):
        same = sum(handler.name == earlier.name for earlier in found[:at])
        if same:
            found[at] = handler._replace(name=f"{handler.name} ({same + 1})")
    return found


def _handlers_below(node: ast.AST, path: Path, function: str) -> Iterator[Handler]:
    for child in ast.iter_child_nodes(node):
        inner = function
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inner = f"{function}.{child.name}".strip(".")
        name = f"{path.relative_to('engine')} {function}: "
        if isinstance(child, ast.ExceptHandler) and not any(isinstance(each, ast.Raise) for each in child.body):
            kinds = ast.unparse(child.type) if child.type is not None else ""
            first = child.body[0]
            yield Handler(f"{name}except {kinds}", path, first.lineno, first.col_offset, 0)
        elif isinstance(child, ast.Call) and isinstance(child.func, ast.Name) and child.func.id == "suppress":
            place = (child.lineno, child.func.col_offset, child.func.end_col_offset or 0)
            yield Handler(f"{name}{ast.unparse(child)}", path, *place)
        yield from _handlers_below(child, path, inner)


def instrument(folder: Path, handlers: list[Handler]) -> None:
    """A copy of the package in whose handlers the probe is called first."""
    copy = folder / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "probe.py").write_text(PROBE)
    for path in {handler.path for handler in handlers}:
        lines = (copy / path).read_text(encoding="utf-8").splitlines(keepends=True)
        own = [handler for handler in handlers if handler.path == path]
        for handler in sorted(own, key=lambda each: (each.line, each.column), reverse=True):
            line = lines[handler.line - 1]
            if handler.end_column:
                call = f'__import__("ullage.probe").probe.Suppress("{handler.name}", '
                rest = line[handler.end_column :].removeprefix("(")
                lines[handler.line - 1] = line[: handler.column] + call + rest
            else:
                call = f'__import__("ullage.probe").probe.reached("{handler.name}")'
                lines.insert(handler.line - 1, f"{line[: handler.column]}{call}\n")
        (copy / path).write_text("".join(lines), encoding="utf-8")


def run_tests(folder: Path, tests: list[str], *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Over the copy."""
    paths = os.pathsep.join((str(folder), str(ROOT)))
    seeds = {"ULLAGE_SEED": str(SEED), "ULLAGE_CRASH_SEED": str(SEED)}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *tests],
        check=False,
        cwd=ROOT,
        env={**os.environ, **seeds, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
    )


def find_comers(folder: Path, kept: Kept, *, is_exact: bool) -> dict[str, list[str]]:
    """By handler, the tests that come by; unless `is_exact`, maybe by the engine as it was when they last ran."""
    engine = _digest(*sorted(PACKAGE.rglob("*.py")))
    modules = {str(path.relative_to(ROOT)): _digest(path) for path in _tests()}
    kept.comers = {module: of for module, of in kept.comers.items() if modules.get(module) == of.version}
    unknown = [
        module for module in modules if module not in kept.comers or (is_exact and kept.comers[module].engine != engine)
    ]
    if unknown:
        print(f"{len(unknown)} of {len(modules)} modules of tests run once", flush=True)
        came_by, failed = _run_once(folder, unknown)
        for module in unknown:
            if module not in failed:
                kept.comers[module] = Comers(modules[module], engine, came_by.get(module, {}))
        kept.write()
        if failed:
            raise RuntimeError(f"tests do not pass over the intact copy: {', '.join(sorted(failed))}")
    found: dict[str, list[str]] = {}
    for comers in kept.comers.values():
        for name, tests in comers.tests.items():
            found.setdefault(name, []).extend(tests)
    return found


def _tests() -> Iterator[Path]:
    for name in TESTS:
        path = ROOT / name
        yield from sorted(path.rglob("test_*.py")) if path.is_dir() else [path]


def _run_once(folder: Path, modules: list[str]) -> tuple[dict[str, dict[str, list[str]]], set[str]]:
    """By module and handler, the tests of these modules that come by; and the modules that have a test that fails."""
    notes = folder / "notes"
    notes.touch()
    result = run_tests(folder, modules, "-n", str(PROCESSES), ULLAGE_HANDLER_NOTES=str(notes))
    failed = {test.partition("::")[0] for test in _failed(result)}
    if result.returncode and not failed:
        raise RuntimeError(f"the tests did not run over the intact copy:\n{result.stdout[-4_000:]}{result.stderr}")
    found: dict[str, dict[str, list[str]]] = {}
    for line in dict.fromkeys(notes.read_text(encoding="utf-8").splitlines()):
        name, _, test = line.partition("\t")
        found.setdefault(test.partition("::")[0], {}).setdefault(name, []).append(test)
    return found, failed


def _failed(result: subprocess.CompletedProcess[str]) -> list[str]:
    """The tests that failed, in the order of the summary."""
    lines = [line for line in result.stdout.splitlines() if line.startswith(("FAILED tests", "ERROR tests"))]
    return [line.partition(" ")[2].split(" - ")[0] for line in lines]


def judge(folder: Path, handler: Handler, tests: list[str]) -> str:
    """The first of these tests that fails while this handler raises, and fails again alone; "" if none does."""
    while tests:
        result = run_tests(folder, tests, "-x", ULLAGE_HANDLER_GONE=handler.name)
        if not result.returncode:
            return ""
        # A test that hangs ends the process, and says nothing: then it is each by itself.
        for killer in _failed(result)[:1] or tests:
            again = run_tests(folder, [killer], ULLAGE_HANDLER_GONE=handler.name)
            if again.returncode == NOT_COLLECTED:
                raise RuntimeError(f"{killer} is not there any more:\n{again.stdout}{again.stderr}")
            if again.returncode:
                return killer
        tests = tests[tests.index(killer) + 1 :]
    return ""


class Judging:
    """Of some handlers, for as long as there is time: which of them survive, and which nobody had the time for."""

    def __init__(self, folder: Path, kept: Kept) -> None:
        self._folder = folder
        self._kept = kept
        self._chosen = random.Random(SEED)
        self._end = time.monotonic() + MINUTES * 60
        self._tried: dict[Handler, set[str]] = {}
        self.survivors: list[Handler] = []
        self.left: list[Handler] = []

    def run(self, handlers: list[Handler]) -> None:
        """Judge them by the tests that are known to come by; what survives those, in time, by all that do."""
        self.survivors = [handler for handler in handlers if not self._kept.is_noticed(handler)]
        self._chosen.shuffle(self.survivors)
        if self.survivors:
            self._judge(find_comers(self._folder, self._kept, is_exact=False))
        if self.survivors and time.monotonic() < self._end:
            self._judge(find_comers(self._folder, self._kept, is_exact=True))

    def tried(self, handler: Handler) -> int:
        """How many tests had their chance."""
        return len(self._tried.get(handler, ()))

    def _judge(self, found: dict[str, list[str]]) -> None:
        handlers, self.survivors = self.survivors, []
        shares = [self._share(handler, found.get(handler.name, [])) for handler in handlers]
        with ThreadPoolExecutor(PROCESSES) as pool:
            judged = {pool.submit(self._killer, *each): each[0] for each in zip(handlers, shares, strict=True)}
            for future in as_completed(judged):
                handler, killer = judged[future], future.result()
                if killer is None:
                    self.left.append(handler)
                elif killer:
                    self._kept.notice(handler, killer)
                    print(f"{handler.name}\n    noticed by {killer}", flush=True)
                else:
                    self.survivors.append(handler)
                    print(f"{handler.name}\n    survives {self.tried(handler)} tests", flush=True)

    def _share(self, handler: Handler, tests: list[str]) -> list[str]:
        tried = self._tried.setdefault(handler, set())
        fresh = [test for test in tests if test not in tried]
        share = self._chosen.sample(fresh, min(len(fresh), COMERS_MAX - len(tried)))
        tried.update(share)
        return sorted(share, key=lambda test: next(at for at, path in enumerate(TESTS) if test.startswith(path)))

    def _killer(self, handler: Handler, tests: list[str]) -> str | None:
        return judge(self._folder, handler, tests) if time.monotonic() < self._end or not tests else None


def main() -> int:
    """Judge what time allows; 1 if one survives, or if the table names a handler that is not there."""
    handlers = find_handlers()
    gone = sorted(EQUIVALENT.keys() - {handler.name for handler in handlers})
    judged = [handler for handler in handlers if handler.name not in EQUIVALENT]
    print(f"{len(handlers)} handlers in the engine, {len(handlers) - len(judged)} equivalent; seed {SEED}", flush=True)
    with tempfile.TemporaryDirectory(prefix="ullage-handlers-") as name:
        instrument(Path(name), handlers)
        judging = Judging(Path(name), Kept())
        judging.run(judged)
    count = len(judged) - len(judging.left)
    share = f"{count} of {len(judged)} handlers judged, {100 * count // len(judged)} %"
    print(f"{share}: {count - len(judging.survivors)} noticed, {len(judging.survivors)} survive")
    for survivor in judging.survivors:
        print(f"survivor: {survivor.name}, {judging.tried(survivor)} tests come by")
    for name in gone:
        print(f"EQUIVALENT names what is not there: {name}")
    return 1 if judging.survivors or gone else 0


if __name__ == "__main__":
    sys.exit(main())

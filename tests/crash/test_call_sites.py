"""Coverage of crashes: each place where the engine changes the disk is crashed, before and after the change."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import pytest

import ullage
from tests.crash import away, test_erasure_crashes
from tests.crash.explore import SEED, Recording, Tally, explore
from tests.crash.mutants import DISK, HURRIES, PACKAGE, SLIPS, Hurry, Slip, hurried, slipped
from tests.crash.workloads import INIT, WORKLOADS
from tests.proof.figures import note
from tests.shipping import test_restoration_crashes
from ullage.engine import heldfiles
from ullage.testing import crashing as testing
from ullage.testing.crashing import CrashFiles

ENGINE = Path(ullage.__file__).parent / "engine"

AWAY = Path(away.__file__).name
"""Where workloads themselves take volumes away and bring them back."""

CHANGES = {
    *("create", "make_directory", "rename", "unlink", "sync_directory"),
    *("write", "write_vector", "truncate", "allocate", "punch", "sync"),
}
NO_FILES = {
    "self": "a session's or handle store's own method",
    "container": "a container's create, whose calls are found inside it",
    "stream": "a claim stream's write",
    "_stream": "the same",
    "put": "a handle's write, which is its claim stream's",
    "writer": "a content writer's sync, found inside it",
    "_writer": "the same",
    "store": "a content store's, found inside it",
    "partition": "a partition's sync, found inside it",
    "_backup": "a repository's backup, whose calls are found inside it",
    "_place": "the manifest's write, found inside replace_file",
    "event_files": "an event file's write, found inside it",
    "swap_files": "a swap file's write, found inside it",
    "_swap_files": "a swap file's write, found inside it",
    "_content": "contents of a share that is restored, whose files are found inside it",
    "log": "the log of a share that is restored, whose file is found inside it",
}
"""Receivers of methods with the same names; whoever is not listed here is taken for a file."""

NOT_CRASHED = {
    ("_begin", "files.unlink(partial)"): "a damaged identity: replace_file never leaves one, only bit rot does",
    (
        "_sync",
        "file.sync()",
    ): "a file whose length is not its record's: no crash leaves one, only rot or a stranger does",
    (
        "Repair.execute",
        "self._parts.files.unlink(step.path)",
    ): "leftovers that nothing needs: the next repair removes them",
    ("ProvenanceIndex._prepare", "self._files.unlink(path)"): "a shard that is not whole: nothing needs it",
    ("write_shard", "files.unlink(path)"): "the same",
    ("write_run", "files.unlink(path)"): "the same",
    (
        "RestoredContent._sync",
        "self._files.unlink(self._paths[resource])",
    ): "a sync that fails: tests/shipping/test_restoration_resumes.py has a disk that refuses one",
    ("_zero_ahead", "file.truncate(offset)"): "a full disk: tests/faults fills real ones",
    (
        "FileContentStore.sync_output",
        "output.file.truncate(output.offset)",
    ): "what a source left that did not read back: only rot",
    ("_allocate_ahead", "file.truncate(offset)"): "a full disk: tests/faults fills real ones",
    ("_allocate_ahead", "file.allocate(offset, ahead)"): "the same",
}
"""(function, call) of error paths that no workload reaches, with the reason: the fault injection reaches them."""


class Site(NamedTuple):
    """One call, by the lines it stands on."""

    path: str
    first: int
    last: int
    function: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.first} {self.function}: {self.text}"


def sites() -> list[Site]:
    """Every call of the engine that changes or syncs something, found by walking its syntax tree."""
    found: list[Site] = []
    for path in sorted(ENGINE.rglob("*.py")):
        if path.name not in ("testing.py", "faults.py", "images.py", Path(heldfiles.__file__).name):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found.extend(_sites_below(tree, str(path.relative_to(ENGINE)), ""))
    return found


def _sites_below(node: ast.AST, path: str, function: str) -> Iterator[Site]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef) and child.name in DISK:
            continue
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute) and child.func.attr in CHANGES:
            if _receiver(child.func.value) not in NO_FILES:
                yield Site(path, child.lineno, child.end_lineno or 0, function, ast.unparse(child))
        inner = function
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inner = f"{function}.{child.name}".strip(".")
        yield from _sites_below(child, path, inner)


def _receiver(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _receiver(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class Watch:
    """Notes who made each call at which a crash point is recorded."""

    def __init__(self) -> None:
        self.before: set[tuple[str, int]] = set()
        self.after: set[tuple[str, int]] = set()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """From here on, files with a hook tell it who calls."""
        enter, leave = testing._Mutation.__enter__, testing._Mutation.__exit__

        def entering(mutation: testing._Mutation) -> None:
            self._note(mutation._files, self.before)
            enter(mutation)

        def leaving(mutation: testing._Mutation, kind: type[BaseException] | None, *error: object) -> None:
            if kind is None:
                self._note(mutation._files, self.after)
            leave(mutation, kind, *error)

        monkeypatch.setattr(testing._Mutation, "__enter__", entering)
        monkeypatch.setattr(testing._Mutation, "__exit__", leaving)

    def _note(self, files: CrashFiles, places: set[tuple[str, int]]) -> None:
        """Recoveries that nobody crashes have no hook, and do not count."""
        if files.before is not testing._nothing:
            places.add(_caller(sys._getframe(2)))


def _caller(frame: FrameType | None) -> tuple[str, int]:
    while frame is not None and frame.f_code.co_filename in (testing.__file__, heldfiles.__file__, __file__):
        frame = frame.f_back
    assert frame is not None
    return _place(frame.f_code.co_filename), frame.f_lineno


@cache
def _place(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(ENGINE)) if path.is_relative_to(ENGINE) else path.name


@pytest.mark.timeout(1_200)  # seconds; all workloads in one test: minutes where others compute, too
def test_each_change_of_the_disk_is_crashed_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call of the engine that changes the disk is left out of the crash states that are explored."""
    watch = Watch()
    watch.install(monkeypatch)
    for name, workload in WORKLOADS.items():
        # Recordings meet what works and recoveries of few states the rest; test_crash_states explores the states.
        sample, kills = (0.3, 0.3) if name == INIT else (0.0002, 0.001)
        explore(Recording(workload), SEED, Tally(), sample=sample, nested=1.0, kills=kills)
    test_restoration_crashes.test_a_crash_during_a_restoration_leaves_no_repository_or_a_whole_one()
    test_restoration_crashes.test_a_crash_beside_the_mark_of_what_is_shipped_costs_nothing()
    test_erasure_crashes.recorded.__wrapped__()
    test_erasure_crashes.recorded.__wrapped__(overwrites=True)
    test_erasure_crashes.recorded_restoration.__wrapped__()
    test_erasure_crashes.test_a_crash_while_a_part_of_a_file_goes_costs_nothing_beside_it()

    known = sites()
    missed = "\n".join(
        str(site)
        for site in known
        if (site.function, site.text) not in NOT_CRASHED
        and not all(
            any(path == site.path and site.first <= line <= site.last for path, line in places)
            for places in (watch.before, watch.after)
        )
    )
    unknown = [
        f"{path}:{line}"
        for path, line in sorted(watch.before)
        if path != AWAY and not any(path == site.path and site.first <= line <= site.last for site in known)
    ]

    note(sites=len(known))
    assert missed == "", f"never crashed:\n{missed}"
    assert unknown == []
    assert len(known) > 30


@pytest.mark.parametrize("slip", SLIPS, ids=str)
def test_each_slip_is_about_a_line_that_is_there(slip: Slip) -> None:
    """A mutant of a line that was written anew would be none, and nobody would miss what it proved."""
    source = (PACKAGE / slip.path).read_text()
    assert slipped(source, slip) != source


@pytest.mark.parametrize("hurry", HURRIES, ids=str)
def test_each_hurry_is_about_lines_that_are_there(hurry: Hurry) -> None:
    """The same of steps that change places."""
    source = (PACKAGE / hurry.path).read_text()
    assert hurried(source, hurry) != source

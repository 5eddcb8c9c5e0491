"""What changes memory and log together is done where no signal falls into it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import ullage

ENGINE = Path(ullage.__file__).parent / "engine"

WITHIN = {
    "Engine.__init__.reserve_indexes": "called while a writer takes a resource claim, which is guarded",
    "Engine._restore": "nobody has the repository yet: an interrupt ends the start",
    "Salvager.fill": "nobody has the new repository yet: an interrupt ends the salvage",
    "Salvager.remember": "the same",
    "QueueManager._remove": "called by a poll of a session and by `_take_out`, which are guarded",
    "QueueManager._write_file": "called by what writes and rewrites swap files, which is guarded",
    "HandleStore._remove": "called by `_purge_slice` and `_forget_slice`, which are guarded",
    "HandleStore.commit_new": "called by `store` and `HandlePut.commit`, which are guarded",
    "History._commit": "called by `_enqueue`, which is guarded",
    "RecordWiper._commit": "only the ledger shows it, and what is left undone is the intent's to finish",
    "wipe_answers": "the same",
    "Rewriter._commit": "called by `finish`, which is guarded",
}
"""Functions that commit, and have no guard of their own, with the reason."""


def commits(node: ast.AST, path: str, guarded: bool) -> Iterator[tuple[str, bool]]:
    """Each function that commits, and whether it or one around it is guarded."""
    for child in ast.iter_child_nodes(node):
        name, is_guarded = path, guarded
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            name = f"{path}.{child.name}".strip(".")
            decorators = [each.id for each in child.decorator_list if isinstance(each, ast.Name)]
            is_guarded = guarded or "uninterrupted" in decorators
        if isinstance(child, ast.Call) and ast.unparse(child.func).endswith("committer.commit"):
            yield path, guarded
        yield from commits(child, name, is_guarded)


def test_every_function_that_commits_is_guarded_or_says_why_not() -> None:
    """An interrupt between a commit and what shows it would leave memory and log apart."""
    found = {
        name: is_guarded
        for path in sorted(ENGINE.rglob("*.py"))
        for name, is_guarded in commits(ast.parse(path.read_text(encoding="utf-8")), "", False)
    }
    assert len(found) > 20
    assert {name for name, is_guarded in found.items() if not is_guarded} == set(WITHIN)

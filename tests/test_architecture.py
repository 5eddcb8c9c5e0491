"""ARCHITECTURE.md against the tree: what it names exists, and no folder of the product is left out."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
PRODUCT = ("agent", "operator", "spark")
FILES_MAX = {"a flag of `ullage ls`": 2, "an event type": 2, "a transport": 4, "a column of a table": 2}
"""How many files some of the usual changes may touch."""


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def named(path: str, name: str) -> bool:
    """Whether a module has this function, method or field."""
    body: list[ast.stmt] = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    for part in name.split("."):
        found = [node for node in body if getattr(node, "name", None) == part or _field(node) == part]
        if not found:
            return False
        body = getattr(found[0], "body", [])
    return True


def _field(node: ast.stmt) -> str:
    return node.target.id if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else ""


def test_each_folder_of_the_product_has_its_line() -> None:
    """A new folder gets a line that says what it promises, and one that goes takes its line along."""
    folders = {path.parent.relative_to(ROOT).as_posix() for name in PRODUCT for path in (ROOT / name).rglob("*.py")}

    lines = [cells[0].strip("`") for cells in rows("Map of the code")]

    assert sorted(lines) == sorted(folders)


def test_what_a_change_touches_exists_and_is_little() -> None:
    """The files of each how-to are there, and as few as was aimed at."""
    changes = {cells[0]: re.findall(r"`([^`]+\.py)`", cells[1]) for cells in rows("How to")}

    assert len(changes) == 12
    assert [path for paths in changes.values() for path in paths if not (ROOT / path).is_file()] == []
    assert all(paths for paths in changes.values())
    for start, files_max in FILES_MAX.items():
        (touched,) = [paths for change, paths in changes.items() if change.startswith(start)]
        assert len(touched) <= files_max, start


def test_call_chains_are_short_and_name_what_exists() -> None:
    """At most eight stations each, and every one is a function, a method or a field of the module that is named."""
    chains = {cells[0]: re.findall(r"`([^`:]+\.py):([^`]+)`", cells[1]) for cells in rows("Call chains")}

    assert len(chains) == 6
    assert {what: len(stations) for what, stations in chains.items() if not 2 <= len(stations) <= 8} == {}
    assert [f"{path}:{name}" for stations in chains.values() for path, name in stations if not named(path, name)] == []

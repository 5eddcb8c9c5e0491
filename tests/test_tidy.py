"""The part of the style that a program can check: what the engine may touch, how long and silent code is."""

import ast
import functools
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.count import code_lines

ROOT = Path(__file__).parents[1]
ENGINE = ROOT / "agent" / "ullage" / "engine"
PRODUCT = ("agent", "operator", "spark")
FOLDERS = (*PRODUCT, "tests", "bench", "examples", "tools")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
PRODUCT_SOURCES = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in PRODUCT]
ENGINE_SOURCES = [path for path in SOURCES if path.is_relative_to(ENGINE)]
TEST_SOURCES = [path for path in SOURCES if path.is_relative_to(ROOT / "tests")]

MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70

ENGINE_LIBRARIES = {"crc32c", "msgspec", "pyarrow"}
ENGINE_PACKAGES = (
    *("ullage.engine", "ullage.contract", "ullage.wire", "ullage.enums", "ullage.errors"),
    *(
        "ullage.beneath",
        "ullage.clock",
        "ullage.holes",
        "ullage.interface.reporter",
        "ullage.sessionroom",
        "ullage.streams",
        "ullage.uuids",
    ),
)
ENGINE_BANNED_LIBRARIES = {  # what would bring in a network, other processes, or a second way to the disk
    *("asyncio", "http", "multiprocessing", "select", "signal", "socket", "ssl", "subprocess", "urllib"),
    *("logging", "pickle", "shelve", "shutil", "sqlite3", "tempfile"),
    "gc",  # the collector is the process's: a library that freezes or stops it does so for everybody
}
ENGINE_BANNED_NAMES = {"os.environ", "os.getenv", "os.system", "print", "input"}
DURABLE_CALLS = {  # in files.py only, so that tests can make each of them fail
    *("open", "io.open", "mmap.mmap"),
    *(
        f"os.{name}"
        for name in ("open", "fdopen", "write", "writev", "pwrite", "pwritev", "sendfile", "copy_file_range")
    ),
    *(f"os.{name}" for name in ("fsync", "fdatasync", "sync", "truncate", "ftruncate", "posix_fallocate")),
    *(f"os.{name}" for name in ("rename", "replace", "renames", "unlink", "remove", "link", "symlink")),
    *(f"os.{name}" for name in ("mkdir", "makedirs", "rmdir", "removedirs")),
}
DURABLE_METHODS = {
    "write_bytes",
    "write_text",
    "touch",
    "posix_fallocate",
    "fallocate",
}  # of paths and libraries


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def place(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def imports(path: Path) -> Iterator[tuple[ast.stmt, str]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node, "." * node.level + (node.module or "")


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_the_operator_of_the_standard_library_is_intact() -> None:
    """No folder of this repository takes the place of Python's own `operator` when Python starts here."""
    program = "import operator, collections; print(operator.itemgetter(1)('ab'), operator.__file__)"

    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)

    item, file = result.stdout.split()
    assert item == "b"
    assert not Path(file).is_relative_to(ROOT / "operator")


def test_the_engine_imports_only_what_it_may() -> None:
    """The engine needs the standard library, msgspec, crc32c, pyarrow, the wire, the contract and itself."""
    wrong = [
        f"{place(path, node)} imports {name}"
        for path in ENGINE_SOURCES
        for node, name in imports(path)
        if not name.startswith(ENGINE_PACKAGES)
        and (path, name) != (ENGINE / "files.py", "shutil")
        and (top := name.split(".")[0]) not in ENGINE_LIBRARIES
        and (top not in sys.stdlib_module_names or top in ENGINE_BANNED_LIBRARIES)
    ]

    assert wrong == []


def test_the_engine_reads_no_environment_and_prints_nothing() -> None:
    """What the engine must know is passed in; what it has to say it returns or raises."""
    wrong = [
        f"{place(path, node)} uses {name}"
        for path in ENGINE_SOURCES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Name | ast.Attribute) and (name := dotted(node)) in ENGINE_BANNED_NAMES
    ]

    assert wrong == []


def test_only_files_py_changes_what_is_on_disk() -> None:
    """Every open, write, sync, rename and unlink of the engine can be made to fail in one place."""
    wrong = [
        f"{place(path, node)} calls {name}"
        for path in ENGINE_SOURCES
        if path != ENGINE / "files.py"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and ((name := dotted(node.func)) in DURABLE_CALLS or name.split(".")[-1] in DURABLE_METHODS)
    ]
    wrong += [
        f"{place(path, node)} imports names from {name}"
        for path in ENGINE_SOURCES
        if path != ENGINE / "files.py"
        for node, name in imports(path)
        if isinstance(node, ast.ImportFrom) and name in {"os", "io", "mmap"}
    ]

    assert wrong == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_and_functions_are_short(path: Path) -> None:
    """A module fits in a sitting, and a function on a screen."""
    lines = len(path.read_text(encoding="utf-8").splitlines())
    long = [
        f"{place(path, node)} {node.name} has {length} lines"
        for node in functions(path)
        if (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]

    assert lines <= MODULE_LINES_MAX
    assert long == []


def silences(path: Path) -> Iterator[ast.ExceptHandler | ast.expr]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ExceptHandler) and all(isinstance(s, ast.Pass | ast.Continue) for s in node.body):
            yield node
        if isinstance(node, ast.withitem) and "suppress(" in ast.unparse(node.context_expr):
            yield node.context_expr


def test_no_error_is_swallowed_without_a_reason() -> None:
    """An exception that is caught and dropped has a comment beside it, or right above, that says why."""
    wrong = []
    for path in SOURCES:
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in silences(path):
            beside = lines[node.lineno - 2 : node.end_lineno]
            if not any("#" in line for line in beside):
                wrong.append(place(path, node))

    assert wrong == []


def test_every_test_says_what_it_states() -> None:
    """Each test function has a docstring: the fact under test, in one sentence."""
    wrong = [
        f"{place(path, node)} {node.name}"
        for path in TEST_SOURCES
        for node in functions(path)
        if node.name.startswith("test_") and not ast.get_docstring(node)
    ]

    assert wrong == []


def test_no_test_sleeps() -> None:
    """Tests move a clock or wait for an event; a sleep is either too short or too long."""
    wrong = [
        place(path, node)
        for path in TEST_SOURCES
        for node in ast.walk(tree(path))
        if (isinstance(node, ast.Attribute) and dotted(node) == "time.sleep")
        or (isinstance(node, ast.ImportFrom) and node.module == "time" and any(a.name == "sleep" for a in node.names))
    ]

    assert wrong == []


def test_every_folder_of_tests_is_a_package() -> None:
    """Without `__init__.py` two tests of one name collide, and tests/operator would replace Python's own."""
    folders = {path.parent for path in TEST_SOURCES}

    assert [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_a_class_name_means_one_thing() -> None:
    """No two classes of the product share a name: one concept, one word."""
    names = Counter(
        node.name for path in PRODUCT_SOURCES for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)
    )

    assert {name for name, count in names.items() if count > 1} == set()


def test_what_counts_as_a_line_of_code() -> None:
    """Comments, docstrings and blank lines do not count, each line of a statement does."""
    text = '"""Says."""\n\nimport os  # why\n\n# more\nx = (\n    1,\n\n)\n"""Of x."""\ntext = """a\n\nb"""\n'

    assert code_lines(text) == 1 + 3 + 2


def test_the_glossary_has_a_row_for_each_term() -> None:
    """Each term stands once, with one sentence and a word or a dash for each of the four systems."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = [
        line.strip("|").split("|")
        for line in text.splitlines()
        if line.startswith("| ") and not line.startswith("| Term")
    ]
    terms = [row[0].strip() for row in rows]

    assert sorted(set(terms)) == sorted(terms)
    assert [row for row in rows if len(row) != 6 or not all(cell.strip() for cell in row)] == []
    assert [row[1] for row in rows if not row[1].strip().endswith(".")] == []

"""Counts lines of Python code, of product and of tests, without comments, docstrings and blank lines.

    python tools/count.py [REVISION ...]

prints a column for each revision, and one for the files as they lie here.
"""

import ast
import io
import subprocess
import sys
import tarfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PRODUCT: Final = ("agent", "operator", "spark")
FOLDERS: Final = (*PRODUCT, "tests")
NO_CODE: Final = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.ENCODING),
}


def code_lines(text: str) -> int:
    """How many lines hold code. A string that stands as a statement is a docstring, wherever it stands."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    rows = text.split("\n")
    return sum(1 for line in lines if rows[line - 1].strip())


def files_here() -> Iterator[tuple[str, str]]:
    """Every module of the working tree: its top-level folder and its text."""
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            yield folder, path.read_text(encoding="utf-8")


def files_at(revision: str) -> Iterator[tuple[str, str]]:
    """The same of a revision."""
    command = ["git", "archive", revision, "--", *FOLDERS]
    archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout  # noqa: S603 - our own words
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            if member.name.endswith(".py") and (file := tar.extractfile(member)):
                yield member.name.split("/")[0], file.read().decode("utf-8")


def counted(files: Iterator[tuple[str, str]]) -> Counter[str]:
    """Lines by folder, and those of the product together."""
    totals: Counter[str] = Counter()
    for folder, text in files:
        totals[folder] += code_lines(text)
    totals["product"] = sum(totals[folder] for folder in PRODUCT)
    return totals


def main() -> None:
    """Print the table."""
    columns = {revision: counted(files_at(revision)) for revision in sys.argv[1:]} | {"here": counted(files_here())}
    sys.stdout.write(" ".join([" " * 8, *(f"{name:>10}" for name in columns)]) + "\n")
    for row in (*PRODUCT, "product", "tests"):
        sys.stdout.write(" ".join([f"{row:<8}", *(f"{totals[row]:>10,}" for totals in columns.values())]) + "\n")


if __name__ == "__main__":
    main()

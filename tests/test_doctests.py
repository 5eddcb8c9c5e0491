"""The examples of the public package and of docs/ run, each in a directory and with a repository of its own."""

import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import ullage
import ullage.interface
from ullage.interface.reporter import Reporter

PUBLIC = {name: getattr(ullage, name) for name in ullage.__all__} | {"Reporter": Reporter}
MODULES = sorted(
    {"ullage", "ullage.aio", "ullage.testing"}
    | {f"ullage.interface.{module.name}" for module in pkgutil.iter_modules(ullage.interface.__path__)}
    | {public.__module__ for public in PUBLIC.values() if not inspect.ismodule(public)}
)
EXAMPLES = [
    test
    for name in MODULES
    for test in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name))
    if test.examples
]
PAGES = [
    doctest.DocTestParser().get_doctest(page.read_text(encoding="utf-8"), {}, page.name, str(page), 0)
    for page in sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
    if ">>> " in page.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("example", EXAMPLES + PAGES, ids=lambda example: example.name)
def test_an_example_does_what_it_says(
    example: doctest.DocTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands in a docstring or on a page, typed in, gives what stands behind it."""
    monkeypatch.chdir(tmp_path)
    told: list[str] = []
    with ullage.open("fresh", create=True, maintain=False) as repository, repository.session() as session:
        example.globs = {
            "repository": repository,
            "session": session,
            "ullage": ullage,
            **{name: getattr(ullage, name) for name in ("EventQuery", "EventType", "RunRequest", "Retries")},
        }
        doctest.DocTestRunner().run(example, out=told.append)

    assert "".join(told) == ""


def test_every_public_name_shows_how_it_is_used() -> None:
    """Each that `ullage` has, and each method of its classes: a text, with an example that the test above runs."""
    found = {name: public for name, public in PUBLIC.items() if not inspect.ismodule(public)}
    for name, public in list(found.items()):
        if inspect.isclass(public):
            methods = {each for each, value in vars(public).items() if inspect.isfunction(value) and each[0] != "_"}
            found |= {f"{name}.{each}": vars(public)[each] for each in methods}

    assert [name for name, public in found.items() if ">>> " not in (public.__doc__ or "")] == []

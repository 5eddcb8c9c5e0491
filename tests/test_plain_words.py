"""What people read stands alone: descriptions of kinds, and the help of both command lines."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from ullage_agent.cli.app import COMMANDS, app
from ullage_agent.kubectl.app import app as plugin

CRDS = Path(__file__).parents[1] / "crds"
WORDS_MIN = 4
FRAGMENTS = re.compile(r"(Of|Since|Whom|It|Its|They|What is|Every (\w+ )?of (it|them)|And|Or|With it)\b")
"""How a text begins whose subject is somewhere else."""


def _described(node: Any, path: str) -> Iterator[tuple[str, str]]:
    """Each description of a definition, as `kubectl explain` shows it."""
    if isinstance(node, dict):
        if isinstance(node.get("description"), str):
            yield path, node["description"]
        for key, value in node.items():
            yield from _described(value, f"{path}.{key}")
    elif isinstance(node, list):
        for place, value in enumerate(node):
            yield from _described(value, f"{path}[{place}]")


def _helps(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    """What --help says of a command, of its options and of what stands below it."""
    if not command.hidden:
        yield path, (command.help or "").partition("\f")[0]
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            yield f"{path} {parameter.opts[-1]}", parameter.help or ""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _helps(below, f"{path} {name}")


def _texts() -> Iterator[tuple[str, str]]:
    for file in sorted(CRDS.glob("*.yaml")):
        for definition in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            yield from _described(definition, file.stem)
    yield from _helps(app, "ullage")
    yield from _helps(plugin, "kubectl ullage")
    yield from ((f"ullage: {name}", each.summary) for name, each in COMMANDS.items())


def _fault(text: str) -> str:
    text = " ".join(text.split())
    if len(text.split()) < WORDS_MIN:
        return f"fewer than {WORDS_MIN} words"
    if not text.endswith("."):
        return "no full stop at its end"
    return "begins without its subject" if FRAGMENTS.match(text) else ""


def test_every_description_and_every_help_is_a_sentence_that_stands_alone() -> None:
    """Four words or more, with a full stop, and not beginning in the middle of a thought."""
    texts = list(_texts())

    assert len(texts) > 1_000
    assert [f"{path}: {fault}: {text!r}" for path, text in texts if (fault := _fault(text))] == []


@pytest.mark.parametrize("text", ["When it began.", "Nodes that should have an agent", "Of a deleted handle.", ""])
def test_a_text_that_does_not_is_found(text: str) -> None:
    """The rule bites: these are texts that once stood there."""
    assert _fault(text)

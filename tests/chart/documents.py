"""The commands that documents tell people to type."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PROGRAMS = ("helm", "kubectl", "docker", "curl", "TOKEN=")


class Command(NamedTuple):
    """One, with the heading below which it stands, in one line."""

    heading: str
    text: str


def commands(path: Path) -> list[Command]:
    """Those of indented blocks, and those that stand in a sentence or a table, in the order of the text."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = [(found.start(), found[1]) for found in re.finditer(r"^#+ (.*)$", text, re.MULTILINE)]
    found = [(each.start(), each[0]) for each in re.finditer(r"^    \S(?:.*\\\n)*.*$", text, re.MULTILINE)]
    inline = re.sub(r"^    .*$", lambda line: " " * len(line[0]), text, flags=re.MULTILINE)
    found += [(each.start(), each[1]) for each in re.finditer(r"`([^`]+)`", inline)]
    told = []
    for start, raw in sorted(found):
        line = re.sub(r"\s+# .*$", "", re.sub(r"\\?\s*\n\s*", " ", raw).strip())
        if line.startswith(PROGRAMS) and len(line.split()) > 2:  # the bare name of a command is no command
            told.append(Command([name for at, name in headings if at < start][-1], line))
    return told

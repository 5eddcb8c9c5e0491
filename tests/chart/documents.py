"""The commands that documents tell people to type, and a shell that types them."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.cluster.control_plane import ControlPlane
from tests.cluster.errors import ClusterError

ROOT = Path(__file__).parents[2]
PROGRAMS = ("helm", "kubectl", "docker", "curl", "TOKEN=", "make", "oras", "cosign", "tools/")
OPTIONS = "--"
"""What a block begins with that is a part of a command which is told elsewhere."""

SECONDS_MAX = 900
"""More than helm and kubectl wait by themselves, five minutes: then their own words say what was not there."""


class Command(NamedTuple):
    """One, with the heading below which it stands, in one line."""

    heading: str
    text: str


def commands(path: Path) -> list[Command]:
    """Those of indented blocks, and those that stand in a sentence or a table, in the order of the text."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = [(found.start(), found[1]) for found in re.finditer(r"^#+ (.*)$", text, re.MULTILINE)]
    found = [(each.start(), each[0], 2) for each in re.finditer(r"^    \S(?:.*\\\n)*.*$", text, re.MULTILINE)]
    inline = re.sub(r"^    .*$", lambda line: " " * len(line[0]), text, flags=re.MULTILINE)
    # In a sentence two words are the bare name of a command.
    found += [(each.start(), each[1], 3) for each in re.finditer(r"`([^`]+)`", inline)]
    told = []
    for start, raw, words_min in sorted(found):
        line = re.sub(r"\s+# .*$", "", re.sub(r"\\?\s*\n\s*", " ", raw).strip())
        if line.startswith(PROGRAMS) and len(line.split()) >= words_min:
            told.append(Command([name for at, name in headings if at < start][-1], line))
    return told


def wait_until_explained(cluster: ControlPlane) -> None:
    """The API server publishes the schema of a new kind a moment after it serves the kind: later under load."""

    def explained() -> bool:
        try:
            return bool(cluster.kubectl("explain", "contentrepository.spec"))
        except ClusterError:
            return False

    cluster.wait_until("the kinds are explained", explained)


class Shell:
    """Types commands, in a folder that looks like the checkout; `not_here`: beginnings of those that are left out."""

    def __init__(self, cluster: ControlPlane, folder: Path, not_here: Iterable[str]) -> None:
        self.cluster = cluster
        self._not_here = tuple(not_here)
        self._folder = folder
        self.typed: list[str] = []
        for name in ("charts", "deploy", "examples", "README.md"):
            (folder / name).symlink_to(ROOT / name)

    def type(self, command: str) -> str:
        """What it prints; an assertion with its complaint if it fails."""
        self.typed.append(command)
        environment = self.cluster.environment
        own = {
            "HOME": str(self._folder),
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]]),  # kubectl's plug-in
        }
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self._folder,
            env={**environment, **own},
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}{done.stdout}"
        return done.stdout

    def type_all(self, told: list[Command], names: Mapping[str, str]) -> list[str]:
        """Those that can run here, with names for what stands in capitals."""
        typed = []
        for each in told:
            if not each.text.startswith(self._not_here):
                text = each.text
                for word, name in names.items():
                    text = text.replace(word, name)
                self.type(text)
                typed.append(text)
        return typed

"""What can go wrong with a cluster, and the one way to run a program that may."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

TOLD = 4000
"""Characters of what a program said last."""


class ClusterError(Exception):
    """A cluster could not be brought up, or what was asked of it did not come about; says what to do where we know."""


class NotPossibleHereError(ClusterError):
    """This machine lacks a privilege, a kernel feature or a program that the level needs; the message names it."""


def printed(
    command: Sequence[str | Path],
    *,
    stdin: str = "",
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> str:
    """What a command prints; `ClusterError` with its words and the end of its complaint if it fails."""
    given = list(map(str, command))
    done = subprocess.run(given, env=environment, cwd=folder, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        words, said = " ".join([Path(given[0]).name, *given[1:]]), (done.stderr.strip(), done.stdout.strip())
        told = "\n".join(each[-TOLD:] for each in said)
        raise ClusterError(f"{words[:TOLD]}: status {done.returncode}\n{told}")
    return done.stdout

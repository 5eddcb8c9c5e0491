"""Other states of this checkout, each in a folder of its own, where `make` works as in the checkout itself."""

import os
import tarfile
from pathlib import Path

from tests.cluster.errors import ClusterError, printed
from tests.tars import unpack_all

ROOT = Path(__file__).parents[2]
BASE = "ULLAGE_BASE"
"""Names the revision that is upgraded from; without it, the one before."""


def previous(checkout: Path = ROOT) -> str:
    """The id of the commit that `BASE` names. `ClusterError` with what to do where a clone has not so many."""
    named = os.environ.get(BASE, "HEAD~1")
    try:
        return _git(checkout, "rev-parse", "--verify", f"{named}^{{commit}}")
    except ClusterError as error:
        raise ClusterError(
            f"this clone has no {named}; `git fetch --deepen=1` brings the one before\n{error}"
        ) from error


def present(checkout: Path = ROOT) -> str:
    """The id of a commit of what is in the checkout now, committed or not, but for files that git does not know."""
    return _git(checkout, "stash", "create") or _git(checkout, "rev-parse", "HEAD")


def unpacked(revision: str, folder: Path, checkout: Path = ROOT) -> Path:
    """The tree of a commit. Its environment is the checkout's own, which `make` finds up to date."""
    archive = folder.with_suffix(".tar")
    _git(checkout, "archive", f"--output={archive}", revision)
    with tarfile.open(archive) as packed:
        unpack_all(packed, folder)
    archive.unlink()
    environment = folder / ".venv"
    environment.mkdir()
    for part in (checkout / ".venv").iterdir():
        if not part.name.startswith("."):
            (environment / part.name).symlink_to(part)
    (environment / ".stamp").touch()
    return folder


def paths_of(tree: Path) -> dict[str, str]:
    """The variables by which Python takes the project's packages from a tree, and not from the checkout."""
    return {"PYTHONPATH": os.pathsep.join(str(tree / each) for each in (".", "agent", "operator", "spark"))}


def _git(checkout: Path, *words: str) -> str:
    return printed(["git", *words], folder=checkout).strip()

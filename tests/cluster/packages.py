"""Packages of PyPI that run beside this environment and not in it: what they require is nobody else's business."""

import hashlib
import shutil
import sys
from pathlib import Path

from tests.cluster.cache import cache_root, locked
from tests.cluster.errors import ClusterError, NotPossibleHereError, printed
from tests.cluster.say import step

FOLDER = Path(__file__).parent
GO_LOCK = FOLDER / "go.lock"
"""A Go that builds where the machine has none or too old a one."""

CHECKOV_LOCK = FOLDER / "checkov.lock"
"""What looks for insecure settings in manifests, with the ninety packages that it requires."""


def installed(lock: Path) -> Path:
    """The folder with all that a lock pins, by its hashes; from the cache, or installed into it now.

    Raises `NotPossibleHereError` with pip's words if that fails.
    """
    home = cache_root() / f"{lock.stem}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    with locked(cache_root() / f"{lock.stem}.lock"):
        if not home.exists():
            _install(lock, home)
    return home


def _install(lock: Path, home: Path) -> None:
    scratch = home.with_name(f"{home.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    with step(f"install what {lock.name} pins into the cache"):
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        try:
            printed([*pip, "install", "--no-deps", "--require-hashes", "--target", scratch, "--requirement", lock])
        except ClusterError as error:
            raise NotPossibleHereError(f"what {lock.name} pins could not be installed:\n{error}") from error
    scratch.rename(home)

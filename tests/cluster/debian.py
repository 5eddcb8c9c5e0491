"""Programs of Debian's that are unpacked beside the cluster's tools: no service of the machine's starts with them."""

import shutil
import subprocess

from tests.cluster.cache import cache_root, locked


def program(name: str, package: str) -> str:
    """The path of a program: from the machine's own path, or of a package that is fetched once."""
    if found := shutil.which(name):
        return found
    kept = cache_root() / "tools" / package
    with locked(cache_root() / "tools" / f"{package}.lock"):
        if not (kept / "usr/bin" / name).exists():
            kept.mkdir(parents=True, exist_ok=True)
            subprocess.run(["apt-get", "download", package], cwd=kept, check=True, capture_output=True)
            subprocess.run(["dpkg", "-x", *map(str, kept.glob("*.deb")), str(kept)], check=True)
    return str(kept / "usr/bin" / name)

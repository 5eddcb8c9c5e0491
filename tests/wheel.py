"""An environment that has what somebody gets who installs the wheel, and nothing of the repository."""

import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

BARE = ("crc32c", "cronsim", "msgspec", "pyarrow", "pyyaml")
"""What the wheel itself depends on."""


def installed_wheel(folder: Path) -> Path:
    """Where its scripts are, and its `python`."""
    python = [sys.executable, "-m"]
    build = [*python, "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(Path(__file__).parents[1])]
    subprocess.run(build, check=True, capture_output=True)
    venv.create(folder / "env", with_pip=False, symlinks=True)
    bin = folder / "env" / "bin"
    [wheel] = folder.glob("*.whl")
    install = [*python, "pip", "--python", str(bin / "python"), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], check=True)
    [packages] = (folder / "env" / "lib").glob("*/site-packages")
    for name in BARE:  # links: copying them takes longer than all the rest
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or ()} - {".."}:
            (packages / top).symlink_to(str(found.locate_file(top)))
    return bin

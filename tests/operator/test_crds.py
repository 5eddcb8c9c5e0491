import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_definitions_are_those_of_the_contract() -> None:
    """Whoever changes the contract runs `make crds`."""
    command = [sys.executable, "tools/crds.py", "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr


def test_each_can_be_applied_by_kubectl() -> None:
    """Kept in an annotation, none is larger than the API server takes."""
    files = list((ROOT / "crds").glob("*.yaml"))

    assert len(files) == 3
    assert all(path.stat().st_size < 256 * 1024 for path in files)

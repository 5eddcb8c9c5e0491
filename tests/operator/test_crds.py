import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_what_is_generated_is_up_to_date() -> None:
    """Whoever changes the contract, a rule or a panel runs `make generate`: CRDs, chart and docs say what it says."""
    command = [sys.executable, "-m", "tools.generate", "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr


def test_each_can_be_applied_by_kubectl() -> None:
    """Kept in an annotation, none is larger than the API server takes."""
    files = list((ROOT / "crds").glob("*.yaml"))

    assert len(files) == 5
    assert all(path.stat().st_size < 256 * 1024 for path in files)

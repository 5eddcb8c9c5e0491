"""The wheel on its own, as somebody installs it who does not know the extras."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.wheel import installed_wheel

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a script of an environment that has the built wheel and its dependencies, without any extra."""
    bin = installed_wheel(tmp_path_factory.mktemp("wheel"))

    def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([bin / name, *arguments], capture_output=True, text=True, check=False)

    return run


def test_the_version_needs_no_extra(script: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """It is what somebody looks at first."""
    assert script("ullage", "--version").stdout.startswith("ullage ")


@pytest.mark.parametrize(
    ("name", "extra"), [("ullage", "agent"), ("kubectl-ullage", "kubectl"), ("ullage-operator", "operator")]
)
def test_a_script_says_which_extra_it_needs(
    script: Callable[..., subprocess.CompletedProcess[str]], name: str, extra: str
) -> None:
    """One sentence, exit code 2, no traceback."""
    ran = script(name, "ls")

    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert f"needs the extra `{extra}`" in ran.stderr


def test_nothing_tells_to_install_by_a_name_that_is_not_ours() -> None:
    """Whoever registered `ullage` at an index would be run by every reader."""
    by_name = re.compile(r"(pip|pipx|uv tool|uv) install[^\n]*['\" ]ullage\b(?![-./])")
    folders = ("agent", "operator", "spark", "docs", "examples", "charts", "deploy")
    texts = [*ROOT.glob("*.md"), ROOT / "Dockerfile"]
    for folder in folders:
        texts += [path for path in (ROOT / folder).rglob("*") if path.suffix in {".md", ".py", ".yaml", ".txt"}]

    assert [path for path in texts if by_name.search(path.read_text(encoding="utf-8"))] == []

"""The examples and the README's programs: type checkers find them sound against the wheel, and they run."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ullage
from tests.service.secured import Secured
from tests.wheel import installed_wheel

ROOT = Path(__file__).parents[2]
EXAMPLES = ("flow.py", "webcrawler.py")


def code_of(page: Path) -> list[str]:
    """The programs that stand on a page."""
    return [part.split("```")[0] for part in page.read_text(encoding="utf-8").split("```python\n")[1:]]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder outside of the repository that has all of them, next to an environment with the wheel alone."""
    folder = tmp_path_factory.mktemp("programs")
    installed_wheel(folder / "wheel")
    (folder / "src").mkdir()
    for name in EXAMPLES:
        shutil.copy(ROOT / "examples" / name, folder / "src")
    for number, code in enumerate(code_of(ROOT / "README.md")):
        (folder / "src" / f"readme_{number}.py").write_text(code)
    settings = {"typeCheckingMode": "strict", "include": ["src"]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    return folder


CHECKERS = {"mypy": ("mypy", "--strict", "--python-executable"), "pyright": ("pyright", "--pythonpath")}


def checked(programs: Path, checker: str, *sources: str) -> subprocess.CompletedProcess[str]:
    """In its strict mode, with the wheel installed and no repository in sight."""
    command = [sys.executable, "-m", *CHECKERS[checker], str(programs / "wheel" / "env" / "bin" / "python")]
    return subprocess.run([*command, *sources], cwd=programs, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_type_checker_finds_every_program_sound(programs: Path, checker: str) -> None:
    """And a mistake: were the package untyped where it is installed, it would be content with anything."""
    wrong = "import ullage\n\nwith ullage.open('data') as repository:\n    repository.handles.put(7)\n"
    (programs / "wrong.py").write_text(wrong)

    sound = checked(programs, checker, *(["src"] if checker == "mypy" else []))
    refused = checked(programs, checker, "wrong.py")

    assert sound.returncode == 0, sound.stdout + sound.stderr
    assert refused.returncode == 1
    assert "put" in refused.stdout


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    secured = Secured(tmp_path)
    with secured.running:
        yield secured


def test_the_flow_keeps_one_of_ten(secured: Secured, tmp_path: Path) -> None:
    """As the quickstart runs it in a pod: the address, a file with a token, and the authority come as variables."""
    token = tmp_path / "token"
    token.write_text(secured.tokens["all"] + "\n")
    with ullage.connect(secured.url(), token=secured.tokens["all"], ca_file=secured.ca_file) as repository:
        repository.queues.put_many("inbox", [b"content"] * 25)
        where = {"ULLAGE_URL": secured.url(), "ULLAGE_TOKEN_FILE": str(token), "ULLAGE_CA": secured.ca_file}

        program = (ROOT / "examples" / "flow.py").read_text(encoding="utf-8")
        subprocess.run([sys.executable, "-"], input=program, text=True, env=where, check=True)

        assert [repository.queues.find(name).flow_files for name in ("inbox", "kept")] == [0, 3]

"""Clients that generators make of the OpenAPI document: they compile, and talk to a running service."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service.running import Running

PROGRAMS = Path(__file__).parent / "clients"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def document(running: Running, tmp_path: Path) -> Path:
    """The document as the service answers it."""
    path = tmp_path / "openapi.json"
    path.write_bytes(running.client.get("/openapi.json").content)
    return path


def ran(*command: str | Path, cwd: Path) -> str:
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def test_a_python_client_is_made_checked_and_used(running: Running, document: Path, tmp_path: Path) -> None:
    """By openapi-python-client, without a warning; mypy finds a program on it sound, and the program runs."""
    made = tmp_path / "ullage_http"
    config = tmp_path / "config.yaml"
    config.write_text("post_hooks: []\n")
    generate = (*(sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none"), "--fail-on-warning")
    program = shutil.copy(PROGRAMS / "use.py", tmp_path)

    ran(*generate, "--path", document, "--output-path", made, "--config", config, cwd=tmp_path)
    ran(sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", program, cwd=tmp_path)
    ran(sys.executable, program, running.url, cwd=tmp_path)


def test_a_typescript_client_is_made_compiled_and_used(running: Running, document: Path, tmp_path: Path) -> None:
    """By openapi-ts; tsc finds it and a program on it sound, and the program runs."""
    programs = Path(ran(ROOT / "tools" / "typescript" / "install", cwd=tmp_path).strip())
    shutil.copy(PROGRAMS / "use.ts", tmp_path)
    plugins = ("@hey-api/client-fetch", "@hey-api/sdk", "@hey-api/typescript")
    options = ("--strict", "--target", "es2022", "--lib", "es2022,dom,dom.iterable", "--skipLibCheck")
    types = ("--types", "node", "--typeRoots", programs.parent / "@types")
    modules = ("--module", "commonjs", "--moduleResolution", "node10", "--esModuleInterop", "--outDir", "js")

    ran(programs / "openapi-ts", "-i", document, "-o", "ullage", "-p", *plugins, cwd=tmp_path)
    ran(programs / "tsc", *options, *types, *modules, "use.ts", cwd=tmp_path)
    ran("node", "js/use.js", running.url, cwd=tmp_path)

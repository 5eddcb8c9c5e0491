"""What the command line imports before it does anything: each --version, --help and TAB waits for that."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys
before = set(sys.modules)
atexit.register(lambda: print(*sorted(set(sys.modules) - before), file=sys.stderr))
from ullage_agent.cli import main
main()
"""

SLOW = {"asyncio", "httpx", "litestar", "msgspec", "pyarrow", "rich", "structlog", "ullage.engine", "uvicorn", "yaml"}


def imported(*arguments: str, tab: str = "") -> set[str]:
    """The modules that a run of `ullage` imports; with `tab`, of a completion of that line."""
    completion = {"_ULLAGE_COMPLETE": "zsh_complete", "COMP_WORDS": tab, "COMP_CWORD": str(tab.count(" "))}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env=os.environ | (completion if tab else {}),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout
    return set(ran.stderr.split())


def test_the_version_costs_next_to_nothing() -> None:
    """It needs no library at all, so that it works without any extra."""
    assert len(imported("--version")) < 40


@pytest.mark.parametrize(("arguments", "tab"), [(("--help",), ""), ((), "ullage ")])
def test_the_list_of_commands_imports_no_command(arguments: tuple[str, ...], tab: str) -> None:
    """Neither the help nor a completion of names pays for what commands need."""
    modules = imported(*arguments, tab=tab)

    assert len(modules) < 110
    assert not modules & SLOW

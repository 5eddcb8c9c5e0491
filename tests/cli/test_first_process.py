"""The first process of a container, to which the kernel takes no signal that it has no handler for."""

import subprocess
import sys

import pytest

PROGRAMS = {
    "ullage": ("ullage_agent.cli", "ullage_agent.cli.app"),
    "ullage-operator": ("ullage_operator.__main__", "ullage_operator.process"),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_ends_when_it_is_told_to_while_it_is_still_coming_up(program: str) -> None:
    """Else it would serve for the whole grace of its pod, after everybody has been told that it ends."""
    door, late = PROGRAMS[program]
    code = f"""
import importlib.abc, os, signal, sys
from {door} import main

class Told(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name == "{late}":
            os.kill(1, signal.SIGTERM)

sys.meta_path.insert(0, Told())
sys.argv = ["{program}", "version"]
assert os.getpid() == 1
main()
"""
    command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert (ended.returncode, ended.stderr) == (143, "")

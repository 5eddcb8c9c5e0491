"""`kubectl ullage`: a fleet as its administrators see it, from their own machine and with their own rights.

kubectl finds a program `kubectl-ullage` on the PATH, and asks `kubectl_complete-ullage` what may come next.
"""

from collections.abc import Callable

from ullage_agent.cli import run
from ullage_agent.kubectl.program import PROGRAM

EXTRA = "kubectl"


def main() -> None:
    """The script `kubectl-ullage`."""

    def load() -> Callable[..., object]:
        from ullage_agent.kubectl.app import app

        return app

    run(PROGRAM, load, EXTRA)


def complete() -> None:
    """The script `kubectl_complete-ullage`."""

    def load() -> Callable[..., object]:
        from ullage_agent.kubectl.completion import complete_words

        return complete_words

    run(PROGRAM, load, EXTRA)

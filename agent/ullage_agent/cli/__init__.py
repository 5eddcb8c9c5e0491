"""The command line: `ullage`, for people and scripts. Commands talk; what they talk about is done by the library."""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

EXTRAS = {
    "kubernetes": "kubectl",
    "pandas": "spark",
    "pyiceberg": "iceberg",
    "pyspark": "spark",
    "ullage_spark": "spark",
}
"""Which extra brings a module, where it is not `agent`."""


def main() -> None:
    """Run the command line: the script `ullage`."""

    def load() -> Callable[..., object]:
        from ullage_agent.cli.app import app

        return app

    if os.getpid() == 1:
        # The kernel takes no signal to a container's first process before it has a handler. Told to end while it still
        # imports what it needs, an agent served after that for all of its pod's grace, with its node away to everybody.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    run("ullage", load)


def run(program: str, load: Callable[[], Callable[..., object]], extra: str = "agent") -> None:
    """Run the application that `load` imports; what keeps it from starting is a line on stderr.

    `extra`: what its modules need, where `EXTRAS` names nothing else.
    """
    if sys.argv[1:] == ["--version"]:
        from ullage import __version__

        with suppress(OSError):  # then the command line itself says what is wrong with the output
            sys.stdout.write(f"{program} {__version__}\n")
            sys.stdout.flush()
            return
    try:
        load()(prog_name=program)
    except KeyboardInterrupt:  # before a command is at work: `plain_ends` tells of later ones
        from ullage_agent.cli.exits import ExitCode

        sys.stderr.write("interrupted\n")
        sys.exit(ExitCode.INTERRUPTED)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing.startswith("ullage") and missing not in EXTRAS:  # a defect of ours, no missing extra
            raise
        sys.stderr.write(
            f"{program}: this needs the extra `{EXTRAS.get(missing, extra)}`, of which the module {missing} is "
            "missing: install the package with "
            f"[{EXTRAS.get(missing, extra)}] behind its name, as the README shows.\n"
        )
        sys.exit(2)

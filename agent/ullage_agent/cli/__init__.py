"""The command line: `ullage`, for people and scripts. Commands talk; what they talk about is done by the library."""

import sys
from contextlib import suppress

EXTRAS = {"pyspark": "spark", "pandas": "spark", "ullage_spark": "spark"}
"""Which extra brings a module, where it is not `agent`."""


def main() -> None:
    """Run the command line: the script `ullage`."""
    if sys.argv[1:] == ["--version"]:
        from ullage import __version__

        with suppress(OSError):  # then the command line itself says what is wrong with the output
            sys.stdout.write(f"ullage {__version__}\n")
            sys.stdout.flush()
            return
    try:
        from ullage_agent.cli.app import app

        app(prog_name="ullage")
    except KeyboardInterrupt:  # before a command is at work: `Commands` tells of later ones
        from ullage_agent.cli.exits import ExitCode

        sys.stderr.write("interrupted\n")
        sys.exit(ExitCode.INTERRUPTED)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing.startswith("ullage") and missing not in EXTRAS:  # a defect of ours, no missing extra
            raise
        extra = EXTRAS.get(missing, "agent")
        sys.stderr.write(
            f"ullage: this needs the extra `{extra}`, of which the module {missing} is missing: "
            f"install the package with [{extra}] behind its name, as the README shows.\n"
        )
        sys.exit(2)

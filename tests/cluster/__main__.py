"""`python -m tests.cluster build` builds the programs of a level; `sweep` removes what killed runs left behind."""

import argparse
import sys

from tests.cluster.errors import ClusterError
from tests.cluster.instance import sweep
from tests.cluster.say import say
from tests.cluster.tools import LEVELS, tool


def build(level: str) -> None:
    """Build what the level needs and the cache does not have."""
    for name in LEVELS[level]:
        tool(name)
    say(f"the programs of level {level} are there")


def main() -> int:
    """Do what the command line says; 1 with the reason on stderr if it cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="build the programs of a level")
    building.add_argument("level", choices=LEVELS)
    commands.add_parser("sweep", help="remove what killed runs left behind")
    arguments = parser.parse_args()
    try:
        if arguments.command == "build":
            build(arguments.level)
        else:
            sweep()
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

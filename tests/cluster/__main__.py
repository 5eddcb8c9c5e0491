"""`build` builds what the tests need here; `up`, `shell` and `down` are a person's cluster; `sweep` removes what killed
runs left behind.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.cluster import dev, images
from tests.cluster.errors import ClusterError
from tests.cluster.fixtures import FULL
from tests.cluster.instance import sweep
from tests.cluster.node import why_no_node
from tests.cluster.packages import CHECKOV_LOCK, installed
from tests.cluster.say import say
from tests.cluster.tools import LEVELS, tool


def build() -> None:
    """Build the programs and images of every level that this machine can run, unless the cache has them."""
    lacking = why_no_node()
    levels, targets = ["bucket", "release", "fleet", "node"], ["agent", "operator"]
    if lacking:
        say(f"no real node can run here: {lacking}")
        levels, targets = ["bucket", "release", "fleet"], []
    elif os.environ.get(FULL):
        levels, targets = [*levels, "spark"], [*targets, "spark"]
    with ThreadPoolExecutor(2) as lanes:  # an image takes one core and the network, a compiler all that is left
        for lane in [lanes.submit(_build_programs, levels), lanes.submit(_build_images, targets)]:
            lane.result()
    say(f"all there for: {', '.join(['control-plane', *levels])}")


def _build_programs(levels: Sequence[str]) -> None:
    for level in levels:
        for name in LEVELS[level]:
            tool(name)


def _build_images(targets: Sequence[str]) -> None:
    if targets:
        images.pause_archive()
        images.base_archive()
    for target in targets:
        images.archive(target)
    installed(CHECKOV_LOCK)


COMMANDS: dict[str, Callable[[], object]] = {
    "build": build,
    "up": dev.up,
    "shell": dev.shell,
    "down": dev.down,
    "sweep": sweep,
}


def main() -> int:
    """Do what the command line says; 1 with the reason on stderr if it cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    try:
        COMMANDS[parser.parse_args().command]()
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

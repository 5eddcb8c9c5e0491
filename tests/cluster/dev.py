"""The cluster that stays until it is taken down, for a person: `make cluster`, `make cluster-down`."""

import json
import os
import subprocess

from tests.cluster import images
from tests.cluster.errors import ClusterError, NotPossibleHereError
from tests.cluster.instance import Instance, State, clusters, remove, sweep
from tests.cluster.node import start_cluster, why_no_node
from tests.cluster.say import say, step

NAME = "dev"
NODES = 2
TARGETS = ("agent", "operator")
GREETING = "kubectl and helm work on it; `exit` leaves it running, `make cluster-down` takes it down"


def up() -> None:
    """Bring the cluster up, with the images on its nodes; nothing if it is up already."""
    sweep()
    home = clusters() / NAME
    if home.exists():
        say("it is up already")
        return
    if lacking := why_no_node():
        raise NotPossibleHereError(f"no real node can run here: {lacking}")
    with step("bring up a cluster"):
        archives = [images.archive(target) for target in TARGETS]
        instance = Instance.create("cluster", kept_as=NAME)
        try:
            cluster = start_cluster(instance, NODES)
            for archive in archives:
                cluster.load(archive)
            changed = {name: value for name, value in cluster.environment.items() if os.environ.get(name) != value}
            (home / "environment.json").write_text(json.dumps(changed, indent=1))
        except BaseException:
            instance.close()
            raise
    say(f"images on its nodes: {', '.join(map(images.image_name, TARGETS))}")


def shell() -> None:
    """A shell whose kubectl and helm work on the cluster; how the last command in it went is no failure of ours."""
    changed = json.loads((clusters() / NAME / "environment.json").read_text())
    say(GREETING)
    program = os.environ.get("SHELL", "/bin/sh")
    subprocess.run([program], env={**os.environ, **changed}, check=False)


def down() -> None:
    """Take the cluster down; nothing of it stays but what was built."""
    home = clusters() / NAME
    if not home.exists():
        raise ClusterError("no cluster is up")
    with step("take the cluster down"):
        remove(home, State.read(home))

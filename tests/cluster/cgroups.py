"""Control groups of a node's own, so that two kubelets of one kernel keep out of each other's way."""

from pathlib import Path

from tests.cluster.instance import Instance

TOP = Path("/sys/fs/cgroup")


def make_cgroup(instance: Instance, node: str) -> str:
    """Make the node's group in every hierarchy, recorded before it exists; its path from the hierarchies' roots."""
    name = f"ullage-{instance.home.name}-{node}"
    unified = (TOP / "cgroup.controllers").exists()
    hierarchies = [TOP] if unified else [path for path in sorted(TOP.iterdir()) if (path / "cgroup.procs").exists()]
    folders = [str(hierarchy / name) for hierarchy in hierarchies]
    instance.state.cgroups += [folder for folder in folders if folder not in instance.state.cgroups]
    instance.state.write(instance.home)
    for hierarchy in hierarchies:
        folder = hierarchy / name
        folder.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if not unified and (folder / setting).exists():  # version 1: empty at first, and useless until it is not
                (folder / setting).write_text((hierarchy / setting).read_text())
    return f"/{name}"

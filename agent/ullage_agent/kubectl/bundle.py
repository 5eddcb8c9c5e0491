"""`kubectl ullage support-bundle`: what somebody needs who helps from afar, and nothing that is nobody's business."""

import io
import json
import os
import tarfile
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from ullage import __version__
from ullage.clock import moment_of
from ullage.errors import UllageError
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.failures import message_of
from ullage_agent.cli.options import FILE, command, option
from ullage_agent.cli.output import many, say, tell
from ullage_agent.kubectl.cluster import Cluster, Object
from ullage_agent.kubectl.fleet import fleet_document
from ullage_agent.kubectl.options import account, on_cluster, repository
from ullage_agent.kubectl.reaching import Reach
from ullage_agent.kubectl.redact import (
    redacted_event,
    redacted_holders,
    redacted_log,
    redacted_object,
    redacted_pod,
    scrubbed,
)
from ullage_agent.kubectl.settings import spec_of
from ullage_agent.kubectl.trouble import Trouble

LOG_LINES: Final = 2_000
"""Of each agent: some hours of a busy one."""

README: Final = """\
What `kubectl ullage support-bundle` found of one repository. Read it before you send it.

There are no contents, no attributes, no tokens, no Secrets, no ConfigMaps, no environment variables, no annotations and
no arguments of programs in it. Of logs only the fields that are known to be harmless are kept. It does hold names (of
nodes, pods, namespaces, the repository), paths of directories on nodes, sizes, counts and times.

problems.txt says what could not be asked for, and why.
"""


class Bundle:
    """Collects files; what fails is a line of problems.txt, and takes nothing else with it."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {"README.txt": README}
        self.problems: list[str] = []

    def add(self, path: str, make: Callable[[], Any]) -> None:
        """A file of a document or a text."""
        try:
            made = make()
        except Trouble as error:
            self.problems.append(f"{path}: {scrubbed(error.message)}")
        except UllageError as error:
            self.problems.append(f"{path}: {scrubbed(message_of(error))}")
        else:
            self.files[path] = made if isinstance(made, str) else json.dumps(made, indent=2, sort_keys=True) + "\n"

    def write(self, target: Path, root: str, moment: int) -> None:
        """As a .tar.gz that its owner alone may read, whole or not at all."""
        files = self.files | {"problems.txt": "".join(f"{each}\n" for each in self.problems)}
        unfinished = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
                for path, text in sorted(files.items()):
                    data = text.encode("utf-8", "replace")
                    entry = tarfile.TarInfo(f"{root}/{path}")
                    entry.size, entry.mtime, entry.mode = len(data), moment // 1000, 0o600
                    archive.addfile(entry, io.BytesIO(data))
            os.replace(unfinished, target)
        finally:
            unfinished.unlink(missing_ok=True)


@command(name="support-bundle", short_help="Write what helps others to help you into one file, redacted.")
@repository
@option(
    "--file",
    "-f",
    "target",
    type=FILE,
    metavar="FILE",
    help="Write the bundle to this file. The default is a name with the time, in this directory.",
)
@account
@on_cluster
def support_bundle(cluster: Cluster, name: str, target: Path | None, account: str) -> None:
    """Write what helps others to help you into one file: objects, events, logs and figures, redacted.

    No contents, attributes, tokens, Secrets, ConfigMaps, environment or annotations are in it; its README says what is.
    With --account the agents' own figures are in it too.
    """
    now = round(time.time() * 1000)
    found = cluster.repository(name)
    namespace = found["metadata"]["namespace"]
    stamp = moment_of(now).strftime("%Y%m%d-%H%M%S")
    root = f"ullage-{namespace}-{name}-{stamp}"
    target = target or Path(f"{root}.tar.gz")
    bundle = _collected(cluster, found, account, now)
    bundle.write(target, root, now)
    tell(f"{target}: {many(len(bundle.files) + 1, 'file')}. Read it before you send it.")
    for problem in bundle.problems:
        say(problem)
    if bundle.problems:
        raise click.exceptions.Exit(ExitCode.INCOMPLETE)


def _collected(cluster: Cluster, found: Object, account: str, now: int) -> Bundle:
    namespace, name = found["metadata"]["namespace"], found["metadata"]["name"]
    bundle = Bundle()
    bundle.add("versions.json", lambda: {"kubectl-ullage": __version__, "server": cluster.version()})
    bundle.add("repository.json", lambda: redacted_object(found))
    nodes: list[Object] = []
    runs: list[Object] = []
    backups: list[Object] = []
    restores: list[Object] = []
    pods: list[Object] = []
    bundle.add("nodes.json", lambda: _all(_kept(nodes, cluster.nodes(namespace, name))))
    bundle.add("runs.json", lambda: _all(_kept(runs, _naming(name, cluster.runs(namespace)))))
    bundle.add("backups.json", lambda: _all(_kept(backups, _naming(name, cluster.backups(namespace)))))
    bundle.add("restores.json", lambda: _all(_kept(restores, _naming(name, cluster.restores(namespace)))))
    seen = [_all(each) for each in (nodes, runs, backups, restores)]
    bundle.add("fleet.json", lambda: fleet_document(redacted_object(found), seen[0], seen[1], now, seen[2], seen[3]))
    bundle.add("pods.json", lambda: [redacted_pod(each) for each in _kept(pods, cluster.pods(namespace, name))])
    asked_for = {each["metadata"]["uid"] for each in (*runs, *backups, *restores)}
    bundle.add("events.json", lambda: [redacted_event(e) for e in _of(name, asked_for, cluster.events(namespace))])
    for pod in pods:
        own = pod["metadata"]["name"]
        bundle.add(f"logs/{own}.log", partial(_log, cluster, namespace, own))
    if account:
        _add_figures(bundle, cluster, found, account, pods)
    return bundle


def _add_figures(bundle: Bundle, cluster: Cluster, found: Object, account: str, pods: list[Object]) -> None:
    """What each agent says of itself."""
    namespace, name = found["metadata"]["namespace"], found["metadata"]["name"]
    try:
        reach = Reach(cluster, namespace, name, spec_of(found), account)
    except Trouble as error:
        bundle.problems.append(f"agents: {scrubbed(error.message)}")
        return
    for pod in pods:
        own = pod["metadata"]["name"]
        bundle.add(f"agents/{own}.json", partial(_figures, reach, own))
        bundle.add(f"agents/{own}-holders.json", partial(_holders, reach, own))


def _figures(reach: Reach, pod: str) -> Object:
    """Numbers alone, and what they are of: names of queues and texts of errors may say what nobody should read."""
    with reach.opened(pod) as repository:
        state = msgspec.to_builtins(repository.state())
        shares = msgspec.to_builtins(repository.reclamation.explain().shares)
    kept = {key: value for key, value in state.items() if isinstance(value, int | float | bool)}
    return kept | {
        "version": state["version"],
        "log": state["log"],
        "counters": state["counters"],
        "containers": state["containers"],
        "shares": shares,
    }


def _holders(reach: Reach, pod: str) -> list[Object]:
    with reach.opened(pod) as repository:
        return redacted_holders(msgspec.to_builtins(repository.holders()))


def _log(cluster: Cluster, namespace: str, pod: str) -> str:
    return redacted_log(cluster.log(namespace, pod, tail=LOG_LINES, since=None))


def _kept(place: list[Object], found: list[Object]) -> list[Object]:
    """The same, remembered for the files that come after."""
    place += found
    return found


def _all(found: list[Object]) -> list[Object]:
    return [redacted_object(each) for each in found]


def _naming(name: str, found: list[Object]) -> list[Object]:
    """What is asked for of the repository; what is asked for of others is none of its business."""
    return [each for each in found if each["spec"].get("repository") == name]


def _of(name: str, uids: Collection[str], events: list[Object]) -> list[Object]:
    """Events of objects that carry the repository's name, and of what was asked for of it."""

    def is_about_it(about: Object) -> bool:
        return str(about.get("name", "")).startswith(name) or about.get("uid") in uids

    return [each for each in events if is_about_it(each.get("involvedObject") or {})]

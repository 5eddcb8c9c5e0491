"""`kubectl ullage` as people run it: through kubectl, against a real API server, with a real agent behind one pod."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ullage
from tests.cluster.fleet import Fleet
from tests.cluster.operator_process import Operator, now_text, objects, say_ready
from tests.cluster.release import account
from tests.cluster.scenario import NODE, Scenario
from tests.cluster.tools import tool
from tests.cluster.workloads import made
from ullage.contract import REPOSITORY_LABEL, ContentRepository
from ullage_agent.cli.exits import ExitCode
from ullage_agent.service.kubernetes import ApiServer
from ullage_operator.objects import RBAC, binding

DOCS = Path(__file__).parents[2] / "docs/kubectl.md"
CLOSED = {"name": "newyear", "schedule": "0 0 1 1 *", "duration": "1m"}
"""Open in the first minute of a year."""

CANARY = "CANARY-d2c1"
MIB = 1 << 20


class Served(Scenario):
    """A fleet of three nodes, of which one has a real agent; the others say that they serve."""

    def _document(self) -> ContentRepository:
        """On the port where the ports of pods lead; deleted handles are kept for an hour."""
        made = super()._document()
        service = msgspec.structs.replace(made.spec.service, http_port=self.fleet.pod_port)
        return msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, service=service))

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(60), "the agent does not serve"
        self.repository = ullage.connect(
            self.server.urls["http"].replace("127.0.0.1", "localhost"),
            token=(self._home / "flow").read_text(),
            ca_file=str(self._home / "tls" / "ca.crt"),
        )


@dataclass
class Person:
    """Somebody at a shell, with a kubeconfig."""

    fleet: Fleet
    place: str
    kubeconfig: Path

    def begins(self, *words: str) -> subprocess.Popen[str]:
        """`kubectl WORDS`, in a process group of its own, which goes on, and heeds SIGINT wherever the tests run."""
        return subprocess.Popen(
            ["env", "--default-signal=INT", tool("kubectl"), *words],
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def _environment(self) -> dict[str, str]:
        environment = {key: value for key, value in self.fleet.environment.items() if key != "COLUMNS"}
        environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
        environment["KUBECONFIG"] = str(self.kubeconfig)
        return environment

    def runs(self, *words: str, columns: int | None = None) -> subprocess.CompletedProcess[str]:
        """`kubectl WORDS`, whatever comes of it."""
        environment = self._environment()
        if columns is not None:
            environment["COLUMNS"] = str(columns)
        return subprocess.run(
            [tool("kubectl"), *words], env=environment, capture_output=True, text=True, check=False, timeout=120
        )

    def says(self, command: str, *words: str, code: int = 0, columns: int | None = None) -> str:
        """What `kubectl ullage COMMAND -n PLACE WORDS` prints; complaints too where it is to fail."""
        result = self.runs("ullage", command, "-n", self.place, *words, columns=columns)
        assert result.returncode == code, result.stdout + result.stderr
        return result.stdout + (result.stderr if code else "")


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as made:
        yield made


@pytest.fixture(scope="module")
def served(
    fleet: Fleet, operator: Operator, tmp_path_factory: pytest.TempPathFactory, patch: pytest.MonkeyPatch
) -> Iterator[Served]:
    """Its agent holds 2 MiB that live and 2 MiB that are dead, and a lease of somebody's."""
    home = tmp_path_factory.mktemp("kubectl")
    with fleet.namespace("data", awaits_end=False) as place:
        service = {"httpPort": fleet.pod_port}
        operator.runs(place, {"maintenance": {"windows": [CLOSED]}, "service": service})
        token = home / "token"
        of_this_pod = classmethod(lambda cls, _environment: cls(fleet.url, str(token), str(fleet.ca)))
        patch.setattr(ApiServer, "of_this_pod", of_this_pod)  # the kubelet's folder is not here
        made = Served(fleet, operator, place, home, 4)
        try:
            made.start()
            fleet.apply(*account(place, "viewer", "inspector"), *account(place, "leaser", "admin"))
            made.batches = 1
            _fill(made)
            made.join()
            for node in ("worker-1", "worker-2"):
                space = {"liveBytes": MIB, "deadBytes": 3 * MIB, "freeBytes": 100 * MIB, "capacityBytes": 104 * MIB}
                say_ready(fleet, place, node, space=space | {"freePercentage": 96}, volumes=["8:1"])
            operator.until("the agent tells", lambda: objects(fleet, place)[NODE]["status"].get("wanted") is not None)
            yield made
        finally:
            made.end()
            fleet.kubectl("delete", "contentrepositories", "--all", "--namespace", place, "--timeout=60s")


def _fill(served: Served) -> None:
    """Half of it dead, and a lease on what lives."""
    served.fill()
    served.server.host.repository.leases.acquire(3_600_000, purpose="nightly export")


@pytest.fixture(scope="module")
def person(served: Served) -> Person:
    """The cluster's administrator."""
    return Person(served.fleet, served.place, served.fleet.kubeconfig)


def test_the_page_shows_what_is_printed(person: Person, served: Served, tmp_path: Path) -> None:
    """Each example of docs/kubectl.md is run, and prints what stands below it, but for names, times and ages."""
    served.fleet.pod_log.write_text(f"2026-03-01T00:00:00.000000000Z stdout F {SERVING}\n")
    wrong = []
    for command, shown in examples():
        words = [str(tmp_path / word) if word.endswith(".gz") else word for word in shlex.split(command)[1:]]
        result = person.runs(*words)
        said = result.stdout.replace(f"{tmp_path}/", "")
        if result.returncode or plain(said) != plain(shown):
            wrong.append(f"$ {command}\n{said}{result.stderr}")
    assert not wrong, "\n".join(wrong)


def examples() -> list[tuple[str, str]]:
    """The commands of the page with what it shows of their output."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"(?:^    .*\n(?:\n(?=    ))?)+", DOCS.read_text(encoding="utf-8"), re.MULTILINE):
        command, _, shown = textwrap.dedent(block).partition("\n")
        if command.startswith("$ "):
            found.append((command.removeprefix("$ "), shown))
    return found


def plain(text: str) -> list[str]:
    """Without what differs from run to run, and without the widths that follow from it."""
    for pattern, word in VARIABLE:
        text = re.sub(pattern, word, text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


SERVING = '{"node": "worker-0", "event": "serving", "level": "info", "timestamp": "2026-03-01T00:00:00Z"}'
VARIABLE = (
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID"),
    (r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?", "TIME"),
    (r"\b\d+[smh]\b", "AGE"),
    ("─+", "─"),
)
"""What differs from run to run."""


def test_status_is_a_screen_for_people(person: Person) -> None:
    """Each node with its figures; the same facts at any width, and no colours where nobody looks."""
    for columns in (None, 200, 80, 40):
        said = person.says("status", columns=columns)
        assert "\x1b" not in said
        assert "data/flows" in said
        assert all(f"worker-{number}" in said for number in range(3))
        assert "3.0 MiB" in said
        if columns and columns > 40:
            assert max(map(len, said.splitlines()[2:])) <= columns


def test_status_is_a_document_for_programs(person: Person) -> None:
    """In bytes; the worst node first."""
    [fleet] = json.loads(person.says("status", "flows", "-o", "json"))["fleets"]
    by_node = {each["node"]: each for each in fleet["nodes"]}
    assert (fleet["namespace"], fleet["name"], fleet["nodesWanted"]) == ("data", "flows", 3)
    assert by_node["worker-1"]["deadBytes"] == 3 * MIB
    assert by_node["worker-1"]["ready"] == "True"
    assert fleet["totals"]["deadBytes"] == sum(each["deadBytes"] for each in fleet["nodes"])


def test_plan_asks_the_agents_and_leaves_nothing_behind(person: Person, served: Served) -> None:
    """What would be given back is what is dead there; the run that was asked for is gone."""
    document = json.loads(person.says("plan", "flows", "--node", NODE, "-o", "json"))
    [result] = document["results"]
    assert (result["node"], result["report"]["state"]) == (NODE, "Completed")
    assert document["dryRun"]
    runs = served.fleet.get("reclamationruns", "--namespace", served.place)["items"]
    assert [each for each in runs if each["spec"].get("dryRun")] == []


def test_windows_are_those_of_the_repository(person: Person) -> None:
    """Closed, with the date on which they open."""
    said = person.says("windows", "flows", "--at", "2026-03-01T00:00")
    assert re.search(r"Rewrite +closed +2027-01-01", said), said


def test_logs_carry_their_nodes(person: Person, served: Served) -> None:
    """Each line behind the name of the node; a node without an agent is named."""
    served.fleet.pod_log.write_text("2026-03-01T00:00:00.000000000Z stdout F serving\n")
    said = person.says("logs", "flows")
    assert said.splitlines() == [f"worker-{number}: serving" for number in range(3)]
    assert "no agent of flows runs on nowhere" in person.says("logs", "flows", "--node", "nowhere", code=6)


def test_logs_are_followed_until_they_are_interrupted(person: Person, served: Served) -> None:
    """Of all agents at once: what stands in them, then what comes. Ctrl-C ends it in a line."""
    log = served.fleet.pod_log
    log.write_text("2026-03-01T00:00:00.000000000Z stdout F first\n")
    nodes = {f"worker-{number}" for number in range(3)}
    with person.begins("ullage", "logs", "flows", "-n", served.place, "--follow") as following, speaking(log):
        try:
            assert following.stdout is not None
            said = {node: list[str]() for node in nodes}
            while not all("more" in lines for lines in said.values()):
                node, _, line = following.stdout.readline().rstrip().partition(": ")
                said[node].append(line)
            assert [lines[0] for lines in said.values()] == ["first"] * 3
        finally:
            os.killpg(following.pid, signal.SIGINT)  # as a terminal does: kubectl and the plug-in
            over = threading.Timer(30, following.kill)
            over.start()
        _, complaints = following.communicate()
        over.cancel()
        assert (complaints, following.returncode) == ("interrupted\n", ExitCode.INTERRUPTED)


@contextmanager
def speaking(log: Path) -> Iterator[None]:
    """Agents that say more again and again: what is said just when kwok begins to watch the file, it misses."""
    over = threading.Event()

    def speak() -> None:
        while not over.wait(0.2):
            with log.open("a") as file:
                file.write("2026-03-01T00:00:01.000000000Z stdout F more\n")

    thread = threading.Thread(target=speak)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_pins_name_who_holds(person: Person, served: Served) -> None:
    """A lease, and a session of somebody else's, each with whose it is and its end, from the agent itself."""
    served.repository.queues.put("held", b"12345")
    with served.repository.session("pump") as session:
        session.get_many("held")
        said = person.says("pins", "flows", "--node", NODE, "--account", "viewer", columns=200)
        assert re.search(r"this process +Lease .*nightly export", said), said
        assert re.search(r"system:serviceaccount:data:flow +Session +5 B +1 content, pump", said), said
        [node] = json.loads(person.says("pins", "flows", "--node", NODE, "--account", "viewer", "-o", "json"))["nodes"]
        kinds = {each["kind"]: each for each in node["holders"]}
        assert (kinds["Session"]["bytes"], kinds["Lease"]["about"]) == (5, "nightly export")
        session.rollback()


def test_pins_say_what_is_missing(person: Person) -> None:
    """No account; one that does not exist; one that may not look."""
    assert "--account" in person.says("pins", "flows", code=10)
    assert "serviceaccounts/token 'nobody'" in person.says("pins", "flows", "--account", "nobody", code=6)
    said = person.says("pins", "flows", "--node", NODE, "--account", "prometheus", code=11)
    assert "does not have the right" in said


def test_errors_say_what_to_do(person: Person, served: Served, tmp_path: Path) -> None:
    """No such repository, context, cluster or right: each in a line, with its code and without a traceback."""
    assert "there are: flows" in person.says("status", "flow", code=6)
    assert "there are: ullage" in person.says("status", "--context", "nowhere", code=2)
    assert "not on the nodes nowhere" in person.says("plan", "flows", "--node", "nowhere", code=6)
    fleet = served.fleet
    config = json.loads(fleet.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / "away").write_text(json.dumps(config))
    away = Person(fleet, served.place, tmp_path / "away")
    assert "does not answer" in away.says("status", code=9)
    stranger = Person(fleet, served.place, fleet.kubeconfig_for("stranger"))
    said = stranger.says("status", code=10)
    assert "you may not list contentrepositories.ullage.dev in namespace data" in said
    assert "Traceback" not in said
    missing = Person(fleet, served.place, tmp_path / "none")
    assert "--kubeconfig" in missing.says("status", code=2)


def test_who_may_only_look_may_look(served: Served) -> None:
    """The rights to list our three kinds are enough for `status` and `windows`."""
    fleet, place = served.fleet, served.place
    kinds = ["contentrepositories", "contentrepositorynodes", "reclamationruns"]
    rules = [{"apiGroups": ["ullage.dev"], "resources": kinds, "verbs": ["list"]}]
    bound = binding("Role", "looks", "nobody", place)
    bound["subjects"] = [{"kind": "User", "name": "looker", "apiGroup": RBAC}]
    fleet.apply(
        made(f"{RBAC}/v1", "Role", "looks", place, rules=rules),
        made(f"{RBAC}/v1", "RoleBinding", "looks", place, **bound),
    )
    looker = Person(fleet, place, fleet.kubeconfig_for("looker"))
    assert "worker-2" in looker.says("status")
    assert "Rewrite" in looker.says("windows", "flows")
    assert "you may not create reclamationruns.ullage.dev" in looker.says("plan", "flows", code=10)


def test_kubectl_completes(person: Person) -> None:
    """Commands, options and names, through kubectl's own completion, which all its shells share."""

    def proposed(*words: str) -> list[str]:
        result = person.runs("__complete", "ullage", *words)
        assert ":4" in result.stdout, result.stdout + result.stderr
        return [line.split("\t")[0] for line in result.stdout.splitlines() if not line.startswith(":")]

    assert set(proposed("")) >= {"status", "plan", "reclaim", "windows", "logs", "pins", "support-bundle"}
    assert proposed("st") == ["status"]
    assert "--all-namespaces" in proposed("status", "--al")
    assert proposed("windows", "-n", "data", "fl") == ["flows"]
    assert proposed("plan", "-n", "data", "flows", "--node", "worker-") == ["worker-0", "worker-1", "worker-2"]
    assert proposed("status", "-n", "dat") == ["data"]
    assert proposed("status", "--context", "") == ["ullage"]


def test_a_bundle_holds_no_secret(person: Person, served: Served, tmp_path: Path) -> None:
    """A canary in each place where something of somebody's may be: none is in the file, and the figures are."""
    fleet, place = served.fleet, served.place
    plant(served)
    target = tmp_path / "bundle.tar.gz"
    said = person.says("support-bundle", "flows", "-f", str(target), "--account", "viewer")
    assert str(target) in said
    assert target.stat().st_mode & 0o777 == 0o600
    with tarfile.open(target) as archive:
        files = {each.name.partition("/")[2]: archive.extractfile(each).read().decode() for each in archive}  # type: ignore[union-attr]
    found = {name for name, text in files.items() if re.search(CANARY, text, re.IGNORECASE)}
    assert found == set()
    tokens = [served.token.read_text(), (served._home / "flow").read_text()]
    assert not [name for name, text in files.items() for token in tokens if token in text or "eyJ" in text]
    assert {"repository.json", "nodes.json", "runs.json", "pods.json", "events.json", "fleet.json"} <= set(files)
    assert [name for name in files if name.startswith("logs/")]
    assert json.loads(files["fleet.json"])["nodesWanted"] == 3
    [pod] = [each for each in fleet.get("pods", "-n", place)["items"] if each["spec"].get("nodeName") == NODE]
    assert json.loads(files[f"agents/{pod['metadata']['name']}.json"])["containers"]
    holders = json.loads(files[f"agents/{pod['metadata']['name']}-holders.json"])
    assert [each["kind"] for each in holders].count("Lease") == 2
    log = files[f"logs/{pod['metadata']['name']}.log"]
    assert '"event": "step failed"' in log
    assert "OSError" in log


def plant(served: Served) -> None:
    """A canary in everything that a bundle comes near."""
    fleet, place = served.fleet, served.place
    here = ("--namespace", place)
    fleet.kubectl("annotate", "contentrepository", "flows", f"note={CANARY}", "--overwrite", *here)
    fleet.kubectl("label", "contentrepository", "flows", f"team={CANARY}", "--overwrite", *here)
    node = objects(fleet, place)[NODE]["metadata"]["name"]
    fleet.kubectl("annotate", "contentrepositorynode", node, f"note={CANARY}", "--overwrite", *here)
    container = {
        "name": "main",
        "image": "none",
        "args": [f"--password={CANARY}"],
        "env": [{"name": "PASSWORD", "value": CANARY}, {"name": CANARY, "value": "x"}],
    }
    metadata = {"labels": {REPOSITORY_LABEL: "flows", "owner": CANARY}, "annotations": {"note": CANARY}}
    event: dict[str, Any] = {
        "involvedObject": {"kind": "ContentRepository", "name": "flows", "namespace": place},
        "message": f"pull refused: Bearer {CANARY} and https://me:{CANARY}@registry/ and password={CANARY}",
        "reason": "Failed",
        "type": "Warning",
        "firstTimestamp": now_text(),
        "lastTimestamp": now_text(),
    }
    fleet.apply(
        made("v1", "Pod", "canary", place, metadata=metadata, spec={"nodeName": "worker-2", "containers": [container]}),
        made("v1", "Secret", "flows-canary", place, stringData={"token": CANARY}),
        made("v1", "ConfigMap", "flows-canary", place, data={"token": CANARY}),
        made("v1", "Event", "flows.canary", place, **event),
    )
    exception = f'Traceback:\n  File "/app/x.py", line 3, in tell\n    raise OSError("{CANARY}")\nOSError: {CANARY}'
    lines = [
        f"a library said {CANARY}",
        json.dumps({"event": "refused", "path": f"/v1/handles/{CANARY}", "reason": CANARY, "level": "warning"}),
        json.dumps({"event": "step failed", "step": "tell", "exception": exception, "level": "error"}),
    ]
    fleet.pod_log.write_text("".join(f"2026-03-01T00:00:00.000000000Z stdout F {line}\n" for line in lines))
    served.repository.handles.put(CANARY.encode(), {"customer": CANARY})
    served.repository.queues.put(CANARY, b"x")
    served.server.host.repository.leases.acquire(3_600_000, purpose=CANARY)


def test_reclaim_follows_a_run_to_its_end(person: Person) -> None:
    """Over the windows, since that was asked for; the report is in the cluster, and `status` shows it."""
    said = person.says("reclaim", "flows", "--node", NODE, "--override", "-o", "json")
    run = json.loads(said)
    assert (run["phase"], run["nodesDone"], run["dryRun"]) == ("Completed", 1, False)
    [result] = run["results"]
    assert result["report"]["state"] == "Completed"
    assert run["name"] in person.says("status", "flows")


def test_who_waits_in_vain_is_told_for_what(person: Person) -> None:
    """The windows are closed: the run goes on, and how to stop it is said."""
    said = person.says("reclaim", "flows", "--node", NODE, "--timeout", "0", code=9)
    assert "has not ended in 0 s" in said
    run = re.search(r"kubectl delete reclamationrun (\S+) -n data", said)
    assert run
    assert "deleted" in person.runs("delete", "reclamationrun", run[1], "-n", "data").stdout

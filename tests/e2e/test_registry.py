"""Ullage as strangers have it: a release in a registry of their own, and what docs/install.md tells them to type, on
two real nodes that pull its images from there. The release before is upgraded to this one, lived with, and removed.

Each test is a chapter, and goes on where the one before has ended. `make e2e` tells it.
"""

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import ullage
from tests.chart.documents import ROOT, Shell, commands
from tests.chart.test_documents import RUNBOOKS, TYPED_ELSEWHERE
from tests.cluster import images
from tests.cluster.errors import ClusterError, printed
from tests.cluster.node import Cluster, cluster_running
from tests.cluster.operator_process import condition, objects
from tests.cluster.registry import registry_of
from tests.cluster.release import SYSTEM, Flows
from tests.e2e.trees import BASE, paths_of, present, previous, unpacked
from ullage import Retries

TOLD = commands(ROOT / "docs/install.md")
HERE = tuple(begins for begins, path in TYPED_ELSEWHERE.items() if path == "tests/e2e/test_registry.py")
"""What commands begin with that only this file types."""

PLACE = "data"
LOST = "node2"
"""The node whose disk is lost; clients of the first one never notice."""

REGISTRY = "registry.example/ullage"
COUNT = 40
SIZE = 1 << 16
UNTIL_IT_LISTENS = "until (exec 3<>/dev/tcp/127.0.0.1/8480) 2>/dev/null; do kill -0 $!; sleep 0.1; done"
"""Shell: a person would see that the port is forwarded before typing on."""

pytestmark = pytest.mark.timeout(5400)
"""Seconds: two releases, each with all of its images."""


def told(begins: str) -> str:
    """The command of install.md that begins so."""
    return next(each.text for each in TOLD if each.text.startswith(begins))


@dataclass
class Stranger:
    """Somebody who has this document, a registry and a cluster; and what must be there to the end."""

    shell: Shell
    flows: Flows
    registry: str
    digests: dict[str, dict[str, str]]
    """Of images, by what they are for, by release."""

    kept: dict[str, bytes] = field(default_factory=dict)

    def types(self, begins: str, release: str = "") -> str:
        """A command of install.md, about this release, in a registry without TLS."""
        text = told(begins).replace(REGISTRY, f"{self.registry}/{release}").replace("0.2.0", ullage.__version__)
        return self.shell.type(f"{text} --plain-http" if "oci:" in text else text)

    def puts(self) -> None:
        """More that must be there."""
        contents = [secrets.token_bytes(SIZE) for _ in range(COUNT)]
        self.kept |= dict(zip(self.flows.repository.handles.put_many(contents), contents, strict=True))

    def is_all_there(self) -> bool:
        """Whether everything that was put can be read, and is what it was."""
        return self.flows.repository.handles.get_many(list(self.kept)) == list(self.kept.values())

    def runs(self, release: str) -> None:
        """Wait until operator and agents are those of this release, and serve."""
        cluster = self.flows.cluster
        operator, agent = (self.image(release, target) for target in ("operator", "agent"))
        image = "--for=jsonpath={.spec.template.spec.containers[0].image}="
        for name, place, wanted in (
            ("deployment/ullage-operator", SYSTEM, operator),
            ("daemonset/flows-ullage", PLACE, agent),
        ):
            cluster.kubectl("wait", f"{image}{wanted}", name, f"--namespace={place}", "--timeout=120s")
            cluster.kubectl("rollout", "status", name, f"--namespace={place}", "--timeout=300s")
        self.flows.wait_until_ready()
        self.flows.connect()

    def image(self, release: str, target: str) -> str:
        """Its name in the registry."""
        return f"{self.registry}/{release}/ullage-{target}@{self.digests[release][target]}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Its own: nobody has loaded an image there."""
    with cluster_running(nodes=2) as running:
        yield running


@pytest.fixture(scope="module")
def stranger(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stranger]:
    """The release before and this one are in a registry that the nodes reach, and nothing is installed."""
    folder = tmp_path_factory.mktemp("stranger")
    registry = registry_of(cluster)
    revisions = {"before": previous(), "this": present()}
    digests = {name: _pushed(revision, folder / name, f"{registry}/{name}") for name, revision in revisions.items()}
    checkout = folder / "checkout"
    checkout.mkdir()
    flows = Flows(cluster, PLACE, folder, has_account=True)
    yield Stranger(Shell(cluster, checkout, ()), flows, registry, digests)
    flows.disconnect()


def _pushed(revision: str, folder: Path, place: str) -> dict[str, str]:
    """Build that commit's release and push it, as install.md says: the digests of its images by what they are for."""
    tree = unpacked(revision, folder)
    pushing = told("make push").replace(REGISTRY, place)
    for text in ("make release", f"{pushing} PUSH_OPTIONS=--to-plain-http"):
        printed(["bash", "-c", text], folder=tree, environment={**os.environ, **paths_of(tree)})
    lines = (tree / "dist/digests.txt").read_text(encoding="utf-8").splitlines()
    shutil.rmtree(tree)
    named = {name.removeprefix("oci/ullage-"): digest for digest, name in (line.split() for line in lines)}
    return {target: named[target] for target in ("agent", "operator", "spark")}


def test_the_release_before_is_installed_from_the_registry(stranger: Stranger) -> None:
    """The nodes pull what was pushed, by its digest; the release's own test passes; a repository is Ready."""
    stranger.types("helm install ullage oci:", "before")
    stranger.types("helm test")
    stranger.types("kubectl create namespace")
    stranger.types("kubectl label namespace")
    for begins in ("kubectl apply -n data -f examples/kubernetes/repository.yaml", "kubectl wait", "kubectl get   -n"):
        stranger.types(begins)

    stranger.runs("before")

    stranger.puts()
    assert stranger.is_all_there()


def test_content_comes_and_goes_from_outside_as_told(stranger: Stranger) -> None:
    """The authority, a token, a forwarded port, and curl: line by line in one shell."""
    typed = [each.text for each in TOLD if each.heading == "A repository"]
    first = next(at for at, text in enumerate(typed) if "ca.crt" in text)
    script = ["set -e", "trap 'kill $(jobs -p)' EXIT"]
    for line in typed[first:]:
        script += [line, UNTIL_IT_LISTENS] if line.endswith("&") else [line]

    answers = stranger.shell.type("\n".join(script))

    stored = re.search(r'"id": ?"([0-9a-f-]{36})"', answers)
    assert stored is not None, answers
    assert answers.count(stored[1]) > 2, answers  # twice in the first answer, and in the list of the same node


def test_it_is_upgraded_to_this_commit_and_has_everything(stranger: Stranger) -> None:
    """Operator and agents are those of the other release; what the older agents wrote is read, and more is written."""
    stranger.types("helm upgrade ullage oci:", "this")

    stranger.runs("this")

    assert stranger.is_all_there()
    stranger.puts()
    assert stranger.is_all_there()


def test_paused_it_stays_ready_and_serves(stranger: Stranger) -> None:
    """An agent that dies meanwhile comes back, and has what it had; then it is looked after again."""
    cluster = stranger.flows.cluster
    stranger.types("kubectl annotate contentrepository flows")
    cluster.wait_until("it is paused", lambda: condition(cluster, PLACE, "Paused") == "True")
    assert condition(cluster, PLACE, "Ready") == "True"

    cluster.kill_container(PLACE, stranger.flows.pods()["node1"])

    with stranger.flows.connected(Retries(attempts=40)) as patient:
        patient.state()
    assert stranger.is_all_there()
    stranger.shell.type(told("kubectl annotate contentrepository flows").replace("paused=true", "paused-"))
    stranger.flows.wait_until_ready()


def test_what_runbooks_ask_of_a_kubelet_is_answered(stranger: Stranger) -> None:
    """Logs, those of a container that has ended too, and the kernel's; what is looked for in them need not be there."""
    cluster, node = stranger.flows.cluster, "node1"
    chosen = "--selector=app.kubernetes.io/name=ullage-operator"
    place = f"--namespace={SYSTEM}"
    (operator,) = cluster.get("pods", chosen, place)["items"]
    cluster.kill_container(SYSTEM, operator["metadata"]["name"])  # an agent was killed before
    pod = f"pod/{operator['metadata']['name']}"
    again = operator["status"]["containerStatuses"][0]["restartCount"] + 1
    started = f"--for=jsonpath={{.status.containerStatuses[0].restartCount}}={again}"
    cluster.kubectl("wait", started, pod, place, "--timeout=120s")
    cluster.kubectl("wait", "--for=condition=Ready", pod, place, "--timeout=120s")
    cluster.load(images.base_archive())  # an image in which root has dmesg
    names = {
        "NAMESPACE": PLACE,
        "NAME": "flows",
        "POD": stranger.flows.pods()[node],
        "NODE": node,
        "busybox": images.BASE_NAME,
    }
    asked = {each.text for path in RUNBOOKS for each in commands(path) if each.text.startswith(HERE)}

    answers = {text: stranger.shell.type(_about(text.partition(" | ")[0], names)) for text in asked}

    assert len(answers) >= 4
    assert [text for text, answer in answers.items() if not answer.strip()] == []
    cluster.kubectl("delete", "pods", "--all", "--namespace=default", "--timeout=60s")  # those of kubectl debug


def _about(text: str, names: dict[str, str]) -> str:
    for word, name in names.items():
        text = re.sub(rf"\b{word}\b", name, text)
    return text


def test_a_run_is_halted_and_called_off(stranger: Stranger) -> None:
    """As every day: it is begun, halted and deleted, and no node has a ticket then."""
    cluster = stranger.flows.cluster
    stranger.types("kubectl apply -n data -f examples/kubernetes/reclaim-now.yaml")
    stranger.types("kubectl patch reclamationrun")

    stranger.types("kubectl delete reclamationrun")

    cluster.wait_until(
        "no ticket is left", lambda: not any("ticket" in each["spec"] for each in objects(cluster, PLACE).values()), 30
    )
    assert stranger.is_all_there()


def test_a_lost_disk_is_given_up_and_its_node_begins_anew(stranger: Stranger) -> None:
    """Until somebody names it the repository is not Ready; then it is, and the other node has lost nothing."""
    cluster = stranger.flows.cluster
    before = objects(cluster, PLACE)[LOST]["status"]["repositoryUuid"]
    disk = cluster.nodes[LOST].disk / "data" / PLACE / "flows"
    disk.rename(disk.with_name("lost"))
    cluster.kubectl("delete", "pod", stranger.flows.pods()[LOST], f"--namespace={PLACE}", "--timeout=120s")
    cluster.wait_until("it is told", lambda: condition(cluster, PLACE, "Ready") != "True")

    named = told("kubectl get contentrepositorynode flows--NODE").replace("NODE", LOST)
    uid = stranger.shell.type(named)
    stranger.shell.type(told("kubectl annotate contentrepositorynode").replace("NODE", LOST).replace("UID", uid))

    stranger.flows.wait_until_ready()
    assert objects(cluster, PLACE)[LOST]["status"]["repositoryUuid"] != before
    events = cluster.get("events", f"--namespace={PLACE}")["items"]
    assert [each for each in events if each["reason"] == "Released" and LOST in each["message"]]
    assert stranger.is_all_there()


def test_removed_and_installed_again_it_finds_what_it_had(stranger: Stranger) -> None:
    """The release goes after its repository; the kinds stay, and so does content, on each node."""
    cluster = stranger.flows.cluster
    stranger.types("kubectl delete contentrepository flows")
    stranger.types("helm uninstall")
    assert "contentrepositories.ullage.dev" in cluster.kubectl("get", "crds")
    assert stranger.flows.disk_bytes("node1") > len(stranger.kept) * SIZE

    stranger.types("helm install ullage oci:", "this")
    stranger.types("kubectl apply -n data -f examples/kubernetes/repository.yaml")
    stranger.types("kubectl wait")

    stranger.runs("this")
    assert stranger.is_all_there()


def test_removed_it_leaves_nothing_but_content(stranger: Stranger) -> None:
    """No kind, no role, no policy, no operator."""
    cluster = stranger.flows.cluster
    stranger.types("kubectl delete contentrepository flows")
    stranger.types("helm uninstall")
    stranger.types("kubectl delete crd")

    every = "crds,clusterroles,clusterrolebindings,validatingadmissionpolicies,priorityclasses"
    assert "ullage" not in cluster.kubectl("get", every, "--output=name")
    cluster.wait_until("its pods have ended", lambda: cluster.get("all", f"--namespace={SYSTEM}")["items"] == [])
    assert stranger.flows.disk_bytes("node1") > len(stranger.kept) * SIZE


def test_what_nobody_else_types_was_typed(stranger: Stranger) -> None:
    """All that install.md and the runbooks tell which played nodes cannot do; what makes a release, on the way here."""
    typed = "\n".join(stranger.shell.typed)

    left = [begins for begins in HERE if not re.search(rf"^{re.escape(begins)}", typed, re.MULTILINE)]

    assert left == ["make release", "make push"]


def test_a_clone_without_the_commit_before_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As CI systems make them, one commit deep."""
    monkeypatch.delenv(BASE, raising=False)
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@ullage.invalid")
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    subprocess.run(["git", *who, "commit", "--quiet", "--allow-empty", "--message=one"], cwd=tmp_path, check=True)

    with pytest.raises(ClusterError, match="git fetch --deepen=1"):
        previous(tmp_path)
    assert present(tmp_path) == printed(["git", "rev-parse", "HEAD"], folder=tmp_path).strip()

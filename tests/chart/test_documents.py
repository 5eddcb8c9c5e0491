"""Every command of docs/install.md and the runbooks, as it is written, on a real API server with played nodes."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chart.documents import PROGRAMS, ROOT, Command, Shell, commands, wait_until_explained
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fleet import fleet_running
from tests.cluster.operator_process import Operator, condition, objects, say_ready

NODES = ("worker-0", "worker-1")
REGISTRY = "tests/e2e/test_registry.py"
TYPED_ELSEWHERE = {
    "make release": REGISTRY,
    "make push": REGISTRY,
    "helm install ullage oci:": REGISTRY,
    "helm upgrade ullage oci:": REGISTRY,
    "helm test": REGISTRY,
    "kubectl port-forward": REGISTRY,
    "curl": REGISTRY,
    "kubectl logs": REGISTRY,
    "kubectl ullage logs": REGISTRY,
    "kubectl -n ullage-system logs": REGISTRY,
    "kubectl debug": REGISTRY,
    "kubectl exec": "tests/nifi/test_watch.py",
    "oras discover": "tests/chart/test_install.py",
    "kubectl delete pvc": "tests/cluster/test_operator_volumes.py",
    "kubectl delete pv ": "tests/cluster/test_operator_volumes.py",
    "tools/sbom.py": "tests/cluster/test_images.py",
}
"""What a command begins with that needs a registry, a real node, a volume or an image, and who types it where there is
one.
"""

UNTESTED = {"docker": "no container engine is here", "cosign": "no key is here"}
"""What nobody types, and why; the text says so."""

NOT_HERE = (*TYPED_ELSEWHERE, *UNTESTED)

REMEDIES = "When an installation is not whole"
"""A heading of install.md: its commands are for installations that tests/cluster/test_definitions.py breaks, and
tests/chart/test_install.py. Typed on one that is whole, they would break it.
"""

PLAIN = ("kubectl apply --server-side -f deploy/install.yaml", "kubectl -n ullage-system", "kubectl delete -f deploy")
"""The way without Helm."""

RUNBOOKS = sorted((ROOT / "docs/runbooks").glob("*.md"))


def guide() -> list[Command]:
    """What somebody types who follows install.md from its beginning to its end."""
    return [each for each in commands(ROOT / "docs/install.md") if each.heading != REMEDIES]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A cluster of its own: definitions come and go."""
    with fleet_running() as fleet:
        fleet.add_nodes(len(NODES), "worker")
        yield Shell(fleet, tmp_path_factory.mktemp("checkout"), NOT_HERE)


@pytest.fixture(scope="module")
def installed(shell: Shell) -> Iterator[Shell]:
    """By the chart and the example, as install.md says, up to the repository; then it is removed in the same way."""
    told = guide()
    plain = [each for each in told if not each.text.startswith(PLAIN)]
    headings = [each.heading for each in plain]
    repository = headings.index("A repository")
    for each in plain[:repository]:
        shell.type_all([each], {})
    wait_until_explained(shell.cluster)
    operator = Operator(shell.cluster)  # the pod of its Deployment is only played
    operator.start()
    try:
        for each in plain[repository : headings.index("Every day")]:
            if each.text.startswith("kubectl wait"):
                _play_agents(shell.cluster, operator)
            shell.type_all([each], {})
        yield shell
        for each in plain[headings.index("Upgrade") :]:
            shell.type_all([each], {})
    finally:
        operator.end()


def _play_agents(fleet: ControlPlane, operator: Operator) -> None:
    operator.until("the nodes have objects", lambda: len(objects(fleet, "data")) == len(NODES))
    for node in NODES:
        say_ready(fleet, "data", node)


def names(fleet: ControlPlane) -> dict[str, str]:
    """For the words in capitals."""
    pod = fleet.get("pods", "--namespace", "data", "--selector=app.kubernetes.io/name=ullage-agent")["items"][0]
    return {
        "NAMESPACE": "data",
        "NAME": "flows",
        "POD": pod["metadata"]["name"],
        "NODE": pod["spec"]["nodeName"],
    }


def test_without_helm_it_comes_and_goes(shell: Shell) -> None:
    """install.yaml, the images set by kubectl, and all of it deleted. First of all: the chart stays till the end."""
    told = [each for each in guide() if each.text.startswith(PLAIN)]
    assert len(told) == 5

    shell.type_all(told, {})

    assert "ullage" not in shell.cluster.kubectl("get", "crds,clusterroles,clusterrolebindings,namespaces")


def test_install_md_leads_to_a_repository_that_is_ready(installed: Shell) -> None:
    """By the chart, with the values and the example that it names; and every day's commands work on it."""
    assert condition(installed.cluster, "data", "Ready") == "True"
    daily = [each for each in guide() if each.heading == "Every day"]

    typed = installed.type_all(daily, names(installed.cluster))

    assert len(typed) >= 7
    installed.type("kubectl annotate contentrepository flows -n data ullage.dev/paused-")


@pytest.mark.parametrize("runbook", RUNBOOKS, ids=lambda path: path.stem)
def test_the_commands_of_a_runbook_work(installed: Shell, runbook: Path) -> None:
    """Each as it is written, but for those that need a kubelet."""
    told = commands(runbook)

    installed.type_all(told, names(installed.cluster))

    assert told
    installed.type("kubectl delete reclamationruns --all -n data")


def test_no_line_of_a_block_is_passed_over() -> None:
    """In install.md a block that is no command begins with an option, and is part of one."""
    path = ROOT / "docs/install.md"
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = re.findall(r"(?<!\\\n)^    (\S.*)$", text, re.MULTILINE)

    passed_over = [line for line in lines if not line.startswith(("--", *PROGRAMS))]

    assert len(lines) > 20
    assert passed_over == []
    assert {"make release", "make push REGISTRY=registry.example/ullage"} <= {each.text for each in commands(path)}


def test_every_command_has_its_place() -> None:
    """What is not typed here is named with who does, and nothing is named in vain."""
    told = [each.text for path in (ROOT / "docs/install.md", *RUNBOOKS) for each in commands(path)]

    assert len(told) > 50
    assert [start for start in NOT_HERE if not any(text.startswith(start) for text in told)] == []
    assert sum(text.startswith(NOT_HERE) for text in told) < len(told) / 2
    assert [path for path in TYPED_ELSEWHERE.values() if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("begins", UNTESTED)
def test_what_nobody_types_is_said_to_be_untested(begins: str) -> None:
    """In install.md, in its block or the paragraph before; and runbooks have no such command."""
    paragraphs = (ROOT / "docs/install.md").read_text(encoding="utf-8").split("\n\n")
    blocks = [at for at, each in enumerate(paragraphs) if re.search(rf"^    {begins} ", each, re.MULTILINE)]

    unmarked = [paragraphs[at] for at in blocks if "untested" not in "".join(paragraphs[at - 1 : at + 1])]

    assert blocks
    assert unmarked == []
    assert [each.text for path in RUNBOOKS for each in commands(path) if each.text.startswith(begins)] == []

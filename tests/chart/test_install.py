"""The chart of a release, installed by the real helm from a real registry on a real API server. Its node is played."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

import ullage
from tests.chart.documents import wait_until_explained
from tests.chart.releases import small_release
from tests.chart.test_chart import CHART
from tests.cluster.control_plane import ControlPlane
from tests.cluster.errors import ClusterError, printed
from tests.cluster.fleet import Fleet, fleet_running
from tests.cluster.operator_process import repository
from tests.cluster.registry import registry_of
from tests.cluster.tools import tool
from tests.cluster.workloads import made
from tools import release
from ullage.contract import ROLES, Right
from ullage_spark import addresses, skips
from ullage_spark.errors import SparkSourceError

PLACE = ("--namespace", "ullage-system")
OPERATOR = "system:serviceaccount:ullage-system:ullage-operator"


class Pushed(NamedTuple):
    """A release where others can have it."""

    cluster: Fleet
    registry: str
    digests: dict[str, str]


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pushed]:
    """In a registry beside a cluster of its own, because the chart's CRDs stay."""
    out = small_release(tmp_path_factory.mktemp("release"))
    with fleet_running() as cluster:
        registry = f"{registry_of(cluster)}/ullage"
        release.push(out, registry, ["--to-plain-http"])
        yield Pushed(cluster, registry, release.image_digests(out))


@pytest.fixture(scope="module")
def installed(pushed: Pushed) -> ControlPlane:
    """The release, once its operator is said to be ready."""
    pushed.cluster.add_nodes(1)
    chart = (f"oci://{pushed.registry}/{release.CHART_REPOSITORY}", "--version", ullage.__version__, "--plain-http")
    pushed.cluster.helm("install", "ullage", *chart, *PLACE, "--create-namespace", "--wait", "--timeout=120s")
    return pushed.cluster


def test_what_runs_is_what_was_pushed(pushed: Pushed, installed: ControlPlane) -> None:
    """By digest, in the registry that it came from, whatever somebody pushes there under the same tag later."""
    (container,) = installed.get("deployment", "ullage-operator", *PLACE)["spec"]["template"]["spec"]["containers"]
    told = {each["name"]: each.get("value") for each in container["env"]}
    images = {target: f"{pushed.registry}/ullage-{target}@{digest}" for target, digest in pushed.digests.items()}

    assert container["image"] == images["operator"]
    assert told["ULLAGE_OPERATOR_AGENT_IMAGE"] == images["agent"]
    assert told["ULLAGE_OPERATOR_SPARK_IMAGE"] == images["spark"]
    for image in images.values():
        assert json.loads(_oras("manifest", "fetch", image))["layers"]


def test_the_list_of_packages_is_found_by_the_image(pushed: Pushed) -> None:
    """By whoever scans it, though this registry knows nothing of what refers to what."""
    image = f"{pushed.registry}/ullage-agent@{pushed.digests['agent']}"

    (found,) = json.loads(_oras("discover", "--format=json", image))["referrers"]
    (layer,) = json.loads(_oras("manifest", "fetch", found["reference"]))["layers"]
    statement = json.loads(_oras("blob", "fetch", "--output=-", f"{pushed.registry}/ullage-agent@{layer['digest']}"))

    assert found["artifactType"] == "application/vnd.in-toto+json"
    assert statement["subject"][0]["digest"]["sha256"] == pushed.digests["agent"].removeprefix("sha256:")
    assert statement["predicateType"] == "https://cyclonedx.org/bom"


def _oras(*words: str) -> str:
    return printed([tool("oras"), *words, "--plain-http"])


def test_the_kinds_are_served_and_explained(installed: ControlPlane) -> None:
    """A repository can be asked for as soon as the chart is there."""
    wait_until_explained(installed)

    assert "maxAppendableSize" in installed.kubectl("explain", "contentrepository.spec.claims")


def _may(
    cluster: ControlPlane,
    user: str,
    verb: str,
    resource: str,
    group: str = "",
    subresource: str = "",
    namespace: str = "",
) -> bool:
    """As the API server sees it; without a namespace, in all of them."""
    wanted = {"verb": verb, "resource": resource, "group": group, "subresource": subresource, "namespace": namespace}
    spec = {"user": user, "resourceAttributes": wanted}
    review = made("authorization.k8s.io/v1", "SubjectAccessReview", "", spec=spec)
    answer = cluster.kubectl("create", "--filename=-", "--output=json", stdin=json.dumps(review))
    return bool(json.loads(answer)["status"]["allowed"])


def test_the_operator_may_do_its_work_and_no_more(installed: ControlPlane) -> None:
    """Its service account, as the API server sees it."""
    may = partial(_may, installed, OPERATOR)
    assert may("patch", "daemonsets", "apps")
    assert may("patch", "contentrepositories", "ullage.dev", "status")
    assert may("get", "contentrepositories", "ullage.dev", "space")
    assert not may("get", "contentrepositories", "ullage.dev", "content")
    assert not may("delete", "nodes")
    assert not may("create", "clusterroles", "rbac.authorization.k8s.io")


@pytest.mark.parametrize("role", ROLES)
def test_a_role_for_clients_gives_just_its_rights(installed: ControlPlane, role: str) -> None:
    """On the object itself it gives none; nobody has one of these roles unless somebody binds it."""
    may = partial(_may, installed, role, group="ullage.dev", resource="contentrepositories")
    assert not any(may(verb=right.verb, subresource=right.subresource) for right in ROLES[role])

    installed.kubectl("create", "clusterrolebinding", role, f"--clusterrole=ullage-{role}", f"--user={role}")

    first = ROLES[role][0]
    installed.wait_until("it is bound", lambda: may(verb=first.verb, subresource=first.subresource))
    assert {right for right in Right if may(verb=right.verb, subresource=right.subresource)} == set(ROLES[role])
    assert not may(verb="get")
    assert not may(verb="create")


def test_an_account_of_spark_says_which_nodes_it_skipped(
    installed: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the namespace of the repositories for which the chart names it, with its own token, and nowhere else; before
    that it may not.
    """
    for name in ("events-here", "events-elsewhere", "jobs"):
        installed.create_namespace(name)
    installed.apply(made("v1", "ServiceAccount", "etl", "jobs"))
    token = installed.kubectl("create", "token", "etl", "--namespace=jobs")
    for name, text in (("token", token), ("namespace", "jobs"), ("ca.crt", installed.ca.read_text())):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(addresses, "ACCOUNT", str(tmp_path))
    monkeypatch.setattr(addresses, "API", installed.url)

    def is_told(namespace: str) -> bool:
        skips._told.clear()  # each time is the first of its hour
        skips.tell(f"kubernetes:{namespace}/flows", "worker-1", "a job goes on without 1 of 2 nodes")
        events = installed.get("events", f"--namespace={namespace}", "--field-selector=reason=NodesSkipped")["items"]
        return bool(events)

    assert not is_told("events-here")
    given = {"namespace": "events-here", "account": "etl", "accountNamespace": "jobs"}
    values = f"--set-json=spark.accounts={json.dumps([given])}"
    installed.helm("upgrade", "ullage", str(CHART), *PLACE, "--reuse-values", values)

    installed.wait_until("it is bound", lambda: is_told("events-here"))
    assert addresses.of_kubernetes("events-here/flows") == []
    assert not is_told("events-elsewhere")
    with pytest.raises(SparkSourceError, match="403"):
        addresses.of_kubernetes("events-elsewhere/flows")
    may = partial(_may, installed, "system:serviceaccount:jobs:etl", namespace="events-here")
    for verb, resource in (("get", "events"), ("create", "pods"), ("get", "contentrepositorynodes")):
        assert not may(verb, resource, "ullage.dev" if resource == "contentrepositorynodes" else "")


def test_an_upgrade_changes_the_operator_and_keeps_the_kinds(installed: ControlPlane) -> None:
    """A changed value arrives, and a repository outlives it."""
    installed.wait_until("the kinds are served", installed.serves_all_custom_resources)
    installed.apply(repository("default"))

    installed.helm("upgrade", "ullage", str(CHART), *PLACE, "--set", "resources.requests.memory=200Mi")

    (container,) = installed.get("deployment", "ullage-operator", *PLACE)["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["requests"]["memory"] == "200Mi"
    assert installed.get("contentrepository", "flows", "--namespace", "default")["metadata"]["name"] == "flows"


def test_an_upgrade_puts_back_what_is_gone(installed: ControlPlane) -> None:
    """Of a release that somebody removed in part: rights, a policy, a kind, the class of agents, and the operator."""
    parts = {
        "clusterrole": ("ullage-system-ullage-operator", "ullage-planner"),
        "clusterrolebinding": ("ullage-system-ullage-operator",),
        "role,rolebinding,serviceaccount,deployment": ("ullage-operator",),
        "priorityclass": ("ullage-system-ullage-operator-agents",),
        "validatingadmissionpolicy": ("ullage-agents-own-nodes",),
        "crd": ("reclamationruns.ullage.dev",),
    }
    for kinds, names in parts.items():
        installed.kubectl("delete", kinds, *names, *PLACE)

    installed.helm("upgrade", "ullage", str(CHART), *PLACE, "--reuse-values")

    for kinds, names in parts.items():
        for name in names:
            installed.kubectl("get", kinds, name, *PLACE)
    wait_until_explained(installed)
    assert _may(installed, OPERATOR, "patch", "daemonsets", "apps")


def test_a_second_operator_looks_after_another_tenant(installed: ControlPlane) -> None:
    """Beside the first, without what is there once in a cluster: nothing of the first one's is its own."""
    for name in ("tenant", "tenant-system"):
        installed.create_namespace(name)
    place = ("--namespace", "tenant-system")
    once = "shared.enabled=false,crds.enabled=false"

    installed.helm("install", "ullage", str(CHART), *place, "--set", f"namespaces={{tenant}},{once}")

    may = partial(_may, installed, "system:serviceaccount:tenant-system:ullage-operator")
    assert may("list", "nodes")
    assert not may("patch", "daemonsets", "apps")
    installed.helm("uninstall", "ullage", *place, "--no-hooks")
    assert "ullage-planner" in installed.kubectl("get", "clusterroles", "--output=name")


def test_it_is_installed_again_elsewhere_and_takes_the_kinds_over(installed: ControlPlane) -> None:
    """The definitions stayed, and repositories with them; without the flag Helm would not touch another release's."""
    installed.helm("uninstall", "ullage", *PLACE, "--no-hooks")
    installed.create_namespace("elsewhere")
    elsewhere = ("--namespace", "elsewhere")

    with pytest.raises(ClusterError, match="ownership"):
        installed.helm("install", "ullage", str(CHART), *elsewhere)
    installed.helm("install", "ullage", str(CHART), *elsewhere, "--take-ownership")

    crd = installed.get("crd", "contentrepositories.ullage.dev")
    assert crd["metadata"]["annotations"]["meta.helm.sh/release-namespace"] == "elsewhere"
    assert installed.get("contentrepository", "flows", "--namespace", "default")["metadata"]["name"] == "flows"

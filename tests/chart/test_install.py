"""The chart, installed by the real helm on a real API server. No node is there to run its pods."""

import json
from collections.abc import Iterator
from functools import partial

import pytest

from tests.chart.documents import wait_until_explained
from tests.chart.test_chart import CHART
from tests.cluster.control_plane import ControlPlane, control_plane_running
from tests.cluster.errors import ClusterError
from tests.cluster.operator_process import repository
from tests.cluster.workloads import made
from ullage.contract import ROLES, Right

PLACE = ("--namespace", "ullage-system")
OPERATOR = "system:serviceaccount:ullage-system:ullage-operator"


@pytest.fixture(scope="module")
def installed() -> Iterator[ControlPlane]:
    """A cluster of its own, because the chart's CRDs stay."""
    with control_plane_running() as cluster:
        cluster.helm("install", "ullage", str(CHART), *PLACE, "--create-namespace")
        yield cluster


def test_the_kinds_are_served_and_explained(installed: ControlPlane) -> None:
    """A repository can be asked for as soon as the chart is there."""
    wait_until_explained(installed)

    assert "maxAppendableSize" in installed.kubectl("explain", "contentrepository.spec.claims")


def _may(cluster: ControlPlane, user: str, verb: str, resource: str, group: str = "", subresource: str = "") -> bool:
    """As the API server sees it."""
    wanted = {"verb": verb, "resource": resource, "group": group, "subresource": subresource}
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


def test_an_upgrade_changes_the_operator_and_keeps_the_kinds(installed: ControlPlane) -> None:
    """A changed value arrives, and a repository outlives it."""
    installed.wait_until("the kinds are served", installed.serves_all_custom_resources)
    installed.apply(repository("default"))

    installed.helm("upgrade", "ullage", str(CHART), *PLACE, "--set", "resources.requests.memory=200Mi")

    (container,) = installed.get("deployment", "ullage-operator", *PLACE)["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["requests"]["memory"] == "200Mi"
    assert installed.get("contentrepository", "flows", "--namespace", "default")["metadata"]["name"] == "flows"


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

"""The chart for one namespace, installed by the real helm on a real API server, and the operator as its account."""

import json
from collections.abc import Iterator

import pytest

from tests.chart.documents import wait_until_explained
from tests.chart.test_chart import CHART
from tests.cluster.errors import ClusterError
from tests.cluster.fleet import Fleet, fleet_running
from tests.cluster.operator_process import QUICK, Operator, condition, objects, repository
from tests.cluster.workloads import executor, made

SYSTEM = ("--namespace", "ullage-system")
ACCOUNT = "system:serviceaccount:ullage-system:ullage-operator"
MINE = {"ULLAGE_OPERATOR_NAMESPACES": "mine"}


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """Two nodes, a namespace that is looked after, and one that is not."""
    with fleet_running() as running:
        running.add_nodes(2, "worker")
        for name in ("mine", "theirs"):
            running.create_namespace(name)
        running.helm("install", "ullage", str(CHART), *SYSTEM, "--create-namespace", "--set", "namespaces={mine}")
        wait_until_explained(running)
        yield running


@pytest.fixture
def operator(fleet: Fleet) -> Iterator[Operator]:
    running = Operator(fleet, QUICK | MINE)
    running.start()
    yield running
    fleet.kubectl("delete", "contentrepositories", "--all", "--namespace", "mine", "--timeout=60s")
    running.end()


def may(fleet: Fleet, verb: str, resource: str, *, group: str = "", place: str = "") -> bool:
    """The operator's account, as the API server sees it; without a place: in all namespaces."""
    wanted = {"verb": verb, "resource": resource, "group": group, "namespace": place}
    spec = {"user": ACCOUNT, "groups": ["system:authenticated"], "resourceAttributes": wanted}
    review = made("authorization.k8s.io/v1", "SubjectAccessReview", "", spec=spec)
    answer = fleet.kubectl("create", "--filename=-", "--output=json", stdin=json.dumps(review))
    return bool(json.loads(answer)["status"]["allowed"])


def test_a_repository_comes_and_goes(fleet: Fleet, operator: Operator) -> None:
    """With all that it needs; of another namespace nothing is heard, and its pods are not waited for."""
    fleet.apply(repository("theirs"))
    fleet.apply(executor("theirs", "worker-0"))
    operator.runs("mine", {"planning": {"schedule": "0 1 * * *"}, "deletionPolicy": "Delete"})

    assert len(objects(fleet, "mine")) == 2
    assert "ca.crt" in fleet.get("configmap", "flows-ullage-ca", "--namespace", "mine")["data"]
    accounts = {each["metadata"]["name"] for each in fleet.get("rolebindings", "--namespace", "mine")["items"]}
    assert {"flows-ullage-agent", "flows-ullage-planner", "flows-ullage-planner-executors"} <= accounts
    assert condition(fleet, "theirs", "Accepted") == ""
    assert fleet.get("daemonsets", "--namespace", "theirs")["items"] == []
    fleet.kubectl("delete", "contentrepository", "flows", "--namespace", "mine", "--timeout=60s")
    assert objects(fleet, "mine") == {}
    assert fleet.get("secrets", *SYSTEM, "--selector=app.kubernetes.io/managed-by=ullage-operator")["items"] == []
    assert not operator.is_logged("forbidden")


def test_nothing_is_allowed_elsewhere_but_to_read_nodes(fleet: Fleet) -> None:
    """Whatever it is that the operator does in its namespaces."""
    assert may(fleet, "list", "nodes")
    assert may(fleet, "patch", "daemonsets", group="apps", place="mine")
    assert may(fleet, "get", "secrets", place="ullage-system")
    refused = [
        *(("get", "secrets", "", place) for place in ("", "mine", "theirs")),
        *(("list", "secrets", "", place) for place in ("", "mine", "theirs", "ullage-system")),
        *(("watch", "secrets", "", place) for place in ("", "ullage-system")),
        *((verb, "pods", "", place) for verb in ("list", "create", "delete") for place in ("", "theirs")),
        *((verb, "daemonsets", "apps", place) for verb in ("list", "create", "patch") for place in ("", "theirs")),
        *((verb, "nodes", "", "") for verb in ("create", "patch", "delete")),
        *((verb, "clusterroles", "rbac.authorization.k8s.io", "") for verb in ("bind", "escalate", "create")),
        *((verb, "clusterrolebindings", "rbac.authorization.k8s.io", "") for verb in ("get", "create", "delete")),
        ("list", "contentrepositories", "ullage.dev", "theirs"),
        ("create", "tokenreviews", "authentication.k8s.io", ""),
    ]

    assert [each for each in refused if may(fleet, each[0], each[1], group=each[2], place=each[3])] == []


def test_agents_may_ask_who_a_client_is(fleet: Fleet) -> None:
    """The chart has let the accounts of the namespace do so, because the operator may not."""

    def asks(place: str) -> None:
        token = fleet.kubectl("create", "token", "default", "--namespace", place).strip()
        server = (f"--server={fleet.url}", f"--certificate-authority={fleet.ca}", "--kubeconfig=/dev/null")
        review = made("authentication.k8s.io/v1", "TokenReview", "", spec={"token": "x"})
        fleet.kubectl(
            "create", "--filename=-", "--validate=false", f"--token={token}", *server, stdin=json.dumps(review)
        )

    asks("mine")
    with pytest.raises(ClusterError, match="forbidden"):
        asks("theirs")


def test_another_tenant_s_operator_works_beside_it(fleet: Fleet, operator: Operator) -> None:
    """Of another release, with repositories of the same name: neither takes anything of the other's, at its end too."""
    fleet.create_namespace("theirs-system")
    once = "shared.enabled=false,crds.enabled=false"
    place = ("--namespace", "theirs-system")
    fleet.helm("install", "ullage", str(CHART), *place, "--set", f"namespaces={{theirs}},{once}")
    other = Operator(fleet, QUICK | {"ULLAGE_OPERATOR_NAMESPACES": "theirs"}, namespace="theirs-system")
    other.start()
    operator.runs("mine")
    other.runs("theirs")
    mine = {node: each["metadata"]["uid"] for node, each in objects(fleet, "mine").items()}
    assert len(mine) == len(objects(fleet, "theirs")) == 2

    fleet.kubectl("delete", "contentrepository", "flows", "--namespace", "theirs", "--timeout=60s")

    other.end()
    fleet.helm("uninstall", "ullage", *place, "--no-hooks")
    fleet.kubectl("annotate", "contentrepository", "flows", "ullage.dev/paused=true", "--namespace", "mine")
    operator.until("the other goes on", lambda: condition(fleet, "mine", "Paused") == "True")
    assert {node: each["metadata"]["uid"] for node, each in objects(fleet, "mine").items()} == mine
    assert not operator.is_logged("forbidden")
    assert not other.is_logged("forbidden")


def test_the_release_can_be_removed(fleet: Fleet) -> None:
    """The hook that looks for repositories needs no right elsewhere either; here no kubelet runs it."""
    fleet.helm("uninstall", "ullage", *SYSTEM, "--no-hooks")

    assert "ullage" not in fleet.kubectl("get", "clusterroles,clusterrolebindings")

"""Repositories on local volumes, deletion policies, certificates of others: a real API server, played nodes."""

import base64
import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.errors import ClusterError
from tests.cluster.fleet import Fleet
from tests.cluster.operator_process import Operator, condition, objects, repository, say, say_ready, template
from tests.cluster.test_tenant import agent_of
from tests.cluster.workloads import definition, made
from tests.operator.support import repository as known
from ullage.contract import NODE_LABEL
from ullage_agent.node.certificate import NodeCertificate
from ullage_operator.authority import CertificateAuthority
from ullage_operator.certificates import renewed, rotated
from ullage_operator.settings import OperatorSettings

NODES = ("worker-0", "worker-1", "worker-2")
LATE: dict[str, Any] = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
CLASS = made("storage.k8s.io/v1", "StorageClass", "local", **LATE)


def volume(place: str, node: str, path: str = "") -> dict[str, Any]:
    """A directory of the node."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "local",
        "persistentVolumeReclaimPolicy": "Retain",
        "local": {"path": path or f"/mnt/{place}"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
    }
    return made("v1", "PersistentVolume", f"{place}-{node}", metadata={"labels": {"place": place}}, spec=spec)


def lose(fleet: Fleet, name: str) -> None:
    """The PersistentVolume goes, though it is bound."""
    fleet.kubectl("delete", "persistentvolume", name, "--wait=false")
    fleet.kubectl("patch", "persistentvolume", name, "--type=merge", '--patch={"metadata": {"finalizers": null}}')


def on_volumes(fleet: Fleet, place: str, **spec: Any) -> dict[str, Any]:
    """The volumes exist; a repository that claims them."""
    fleet.apply(CLASS, *(volume(place, node) for node in NODES))
    local = {"localPersistentVolume": {"storageClassName": "local", "size": "1Gi"}}
    return repository(place, {"storage": local, **spec})


def images(fleet: Fleet, place: str) -> dict[str, str]:
    """Of the ready pods, by node."""
    pods = fleet.get("pods", "--namespace", place)["items"]
    ready = [
        each for each in pods if each["status"]["phase"] == "Running" and "deletionTimestamp" not in each["metadata"]
    ]
    return {each["spec"]["nodeName"]: each["spec"]["containers"][0]["image"] for each in ready}


@pytest.mark.parametrize(("policy", "claims"), [("Retain", 3), ("Delete", 0)])
def test_local_volumes_give_each_node_an_agent_and_a_claim(
    fleet: Fleet, operator: Operator, place: str, policy: str, claims: int
) -> None:
    """Pinned, rolled one at a time, guarded by a budget; the claims outlive the repository unless it says otherwise."""
    here = ("--namespace", place)
    fleet.apply(on_volumes(fleet, place, image="agent:1", deletionPolicy=policy))
    operator.until("the agents run", lambda: images(fleet, place) == dict.fromkeys(NODES, "agent:1"))
    assert fleet.get("poddisruptionbudget", "flows-ullage", *here)["spec"]["maxUnavailable"] == 1
    assert len(fleet.get("persistentvolumeclaims", *here)["items"]) == 3

    fleet.apply(on_volumes(fleet, place, image="agent:2", deletionPolicy=policy))
    operator.until("all are rolled", lambda: images(fleet, place) == dict.fromkeys(NODES, "agent:2"))

    fleet.kubectl("delete", "contentrepository", "flows", *here, "--timeout=60s")

    def left() -> int:
        return len(fleet.get("persistentvolumeclaims", *here)["items"])

    operator.until("the claims are as the policy says", lambda: left() == claims and images(fleet, place) == {})
    assert objects(fleet, place) == {}
    fleet.kubectl("delete", "persistentvolumes", f"--selector=place={place}", "--wait=false")


def test_a_container_is_appended_on_a_volume_of_its_own(fleet: Fleet, operator: Operator, place: str) -> None:
    """Each node claims a second volume, and its agent is rolled to have it mounted; another's claim is left alone."""
    here = ("--namespace", place)
    volumes = [volume(f"{place}-{disk}", node) for disk in ("a", "b") for node in NODES]
    for each in volumes:
        each["metadata"]["labels"]["place"] = place
    fleet.apply(CLASS, *volumes)
    local = {"storageClassName": "local", "size": "1Gi"}
    first = {"name": "c1", "subPath": "c1"}
    second = {"name": "c2", "subPath": "disk", "localPersistentVolume": local}
    fleet.apply(repository(place, {"storage": {"localPersistentVolume": local, "containers": [first]}}))
    operator.until("the agents run", lambda: len(images(fleet, place)) == 3)
    node_claims = {each["metadata"]["name"] for each in fleet.get("persistentvolumeclaims", *here)["items"]}

    fleet.apply(repository(place, {"storage": {"localPersistentVolume": local, "containers": [first, second]}}))

    def mounted() -> set[str]:
        """The claims that running pods have at the place of the second container."""
        found = set()
        for pod in fleet.get("pods", *here)["items"]:
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]:
                paths = {each["mountPath"]: each["name"] for each in pod["spec"]["containers"][0]["volumeMounts"]}
                claims = {each["name"]: each.get("persistentVolumeClaim", {}) for each in pod["spec"]["volumes"]}
                found |= {claims[name]["claimName"] for path, name in paths.items() if path == "/var/lib/ullage/disk"}
        return found

    operator.until("each has its own", lambda: mounted() == {f"{name}.c2" for name in node_claims})
    claims = fleet.get("persistentvolumeclaims", *here)["items"]
    assert {each["status"]["phase"] for each in claims} == {"Bound"}
    assert len({each["spec"]["volumeName"] for each in claims}) == 6
    moved = {key: value for key, value in second.items() if key != "localPersistentVolume"}
    with pytest.raises(ClusterError, match="never moved to another path or volume"):
        fleet.apply(repository(place, {"storage": {"localPersistentVolume": local, "containers": [first, moved]}}))
    fleet.kubectl("delete", "contentrepository", "flows", *here, "--timeout=60s")
    assert len(fleet.get("persistentvolumeclaims", *here)["items"]) == 6
    fleet.kubectl("delete", "persistentvolumes", f"--selector=place={place}", "--wait=false")


def test_a_release_takes_claims_along_that_have_lost_their_volume(fleet: Fleet, operator: Operator, place: str) -> None:
    """A claim whose volume is gone, and one that somebody deleted, which its pod held: the next ones are bound to what
    volumes there are then. Without a release nothing is given up.
    """
    here = ("--namespace", place)
    fleet.apply(on_volumes(fleet, place))
    operator.until("the agents run", lambda: len(images(fleet, place)) == 3)
    for node in ("worker-0", "worker-1"):
        say_ready(fleet, place, node, space={"liveBytes": 5 << 20})
    before = claims_of(fleet, place)
    for pod in fleet.get("pods", *here)["items"]:
        if pod["spec"]["nodeName"] != "worker-2":
            say(fleet, place, "pod", pod["metadata"]["name"], {"conditions": [{"type": "Ready", "status": "False"}]})
    lose(fleet, before["worker-0"]["spec"]["volumeName"])
    fleet.kubectl("delete", "persistentvolumeclaim", before["worker-1"]["metadata"]["name"], *here, "--wait=false")
    told = ('{.status.conditions[?(@.type=="Provisioned")].reason}', "contentrepository/flows", place)
    operator.until("the loss is told", lambda: fleet.field(*told) == "VolumeLost")
    assert {node: each["metadata"]["uid"] for node, each in claims_of(fleet, place).items()} == {
        node: each["metadata"]["uid"] for node, each in before.items()
    }
    new = [volume(f"{place}-new", node) for node in ("worker-0", "worker-1")]
    for each in new:
        each["metadata"]["labels"]["place"] = place
    fleet.apply(*new)

    for node in ("worker-0", "worker-1"):
        found = objects(fleet, place)[node]["metadata"]
        what = ("contentrepositorynode", found["name"], f"ullage.dev/release={found['uid']}")
        fleet.kubectl("annotate", *what, *here)

    volumes = {node: f"{place}-{'new-' if node != 'worker-2' else ''}{node}" for node in NODES}

    def bound() -> dict[str, str]:
        return {node: each["spec"].get("volumeName", "") for node, each in claims_of(fleet, place).items()}

    operator.until("they are bound to the new ones", lambda: bound() == volumes and len(images(fleet, place)) == 3)
    fleet.kubectl("delete", "contentrepository", "flows", *here, "--timeout=60s")
    fleet.kubectl("delete", "persistentvolumes", f"--selector=place={place}", "--wait=false")


def claims_of(fleet: Fleet, place: str) -> dict[str, Any]:
    """By node."""
    claims = fleet.get("persistentvolumeclaims", "--namespace", place)["items"]
    return {each["metadata"]["annotations"][NODE_LABEL]: each for each in claims}


def test_a_claim_of_somebody_else_is_never_mounted(fleet: Fleet, operator: Operator, place: str) -> None:
    """What lies on it would be the agent's: it is refused in words, and no agent is made."""
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "local"}
    requested = {"resources": {"requests": {"storage": "1Gi"}}}
    name = known().node_name("worker-1")
    fleet.apply(made("v1", "PersistentVolumeClaim", name, place, spec=spec | requested))

    fleet.apply(on_volumes(fleet, place))

    operator.until("it is refused", lambda: condition(fleet, place, "Stalled") == "True")
    told = fleet.get("contentrepository", "flows", "--namespace", place)["status"]["conditions"]
    assert "is not this repository's" in next(each["message"] for each in told if each["type"] == "Stalled")
    assert fleet.get("statefulsets", "--namespace", place)["items"] == []
    fleet.kubectl("delete", "persistentvolumes", f"--selector=place={place}", "--wait=false")


def test_an_agent_that_is_never_ready_is_replaced_by_the_next(fleet: Fleet, operator: Operator, place: str) -> None:
    """A change that broke it must not need somebody who deletes its pod before the mended one comes."""
    fleet.apply(on_volumes(fleet, place, image="agent:broken"))
    operator.until("the agents run", lambda: images(fleet, place) == dict.fromkeys(NODES, "agent:broken"))
    here = ("--namespace", place)
    unready = f"--patch={json.dumps({'status': {'conditions': [{'type': 'Ready', 'status': 'False'}]}})}"
    for pod in fleet.get("pods", *here)["items"]:
        fleet.kubectl("patch", "pod", pod["metadata"]["name"], *here, "--subresource=status", unready)

    fleet.apply(on_volumes(fleet, place, image="agent:mended"))

    operator.until("all are replaced", lambda: images(fleet, place) == dict.fromkeys(NODES, "agent:mended"))
    fleet.kubectl("delete", "persistentvolumes", f"--selector=place={place}", "--wait=false")


def test_on_delete_leaves_pods_until_somebody_deletes_them(fleet: Fleet, operator: Operator, place: str) -> None:
    """The new settings wait; the pod that is deleted comes back with them."""
    strategy = {"updateStrategy": {"type": "OnDelete"}}
    fleet.apply(repository(place, {"image": "agent:1", **strategy}))
    operator.until("the agents run", lambda: images(fleet, place) == dict.fromkeys(NODES, "agent:1"))
    fleet.apply(repository(place, {"image": "agent:2", **strategy}))
    here = ("--namespace", place)

    operator.until("the template is new", lambda: template(fleet, place)["containers"][0]["image"] == "agent:2")
    assert images(fleet, place) == dict.fromkeys(NODES, "agent:1")
    fleet.kubectl("delete", "pod", *here, "--field-selector=spec.nodeName=worker-1")

    expected = {**dict.fromkeys(NODES, "agent:1"), "worker-1": "agent:2"}
    operator.until("one is new", lambda: images(fleet, place) == expected)


CLOSED = {"name": "newyear", "schedule": "0 0 1 1 *", "duration": "1m"}
"""Open in the first minute of a year."""


@pytest.mark.parametrize("is_local", [False, True])
def test_a_change_of_the_engine_s_format_waits_for_a_window(
    fleet: Fleet, operator: Operator, place: str, is_local: bool
) -> None:
    """Newer agents would leave nothing that older ones open: none is rolled before a window is, then all are."""
    made = on_volumes(fleet, place) if is_local else repository(place)

    def apply(*windows: dict[str, str]) -> None:
        fleet.apply({**made, "spec": made["spec"] | {"maintenance": {"windows": list(windows)}}})

    def progress() -> str:
        status = fleet.get("contentrepository", "flows", "--namespace", place).get("status") or {}
        return "".join(each["reason"] for each in status.get("conditions", ()) if each["type"] == "Reconciling")

    apply(CLOSED)
    before = dict.fromkeys(NODES, OperatorSettings().agent_image)
    operator.until("the agents run", lambda: images(fleet, place) == before)
    for node in NODES:
        say_ready(fleet, place, node, format=1)
    operator.end()
    operator.start(ULLAGE_OPERATOR_AGENT_FORMAT="2", ULLAGE_OPERATOR_AGENT_IMAGE="agent:2")
    try:
        operator.until("it waits", lambda: progress() == "WaitsForWindow")
        assert images(fleet, place) == before

        apply()

        operator.until("all are rolled", lambda: images(fleet, place) == dict.fromkeys(NODES, "agent:2"))
        for node in NODES:
            say_ready(fleet, place, node, format=2)
        operator.until("it is over", lambda: progress() == "Settled")
        for each in fleet.get("daemonsets", "--namespace", place)["items"]:
            operator.until("rolls are the DaemonSet's again", lambda: strategy(fleet, place) == "RollingUpdate")
            assert each["spec"]["template"]["spec"]["containers"][0]["image"] == "agent:2"
    finally:
        operator.end()
        operator.start()
        fleet.kubectl("delete", "persistentvolumes", f"--selector=place={place}", "--wait=false")


def strategy(fleet: Fleet, place: str) -> str:
    found = fleet.get("daemonset", "flows-ullage", "--namespace", place)
    return str(found["spec"]["updateStrategy"]["type"])


def test_policy_delete_empties_the_directories_of_the_nodes(fleet: Fleet, operator: Operator, place: str) -> None:
    """A job on each node, after the agents have ended; then the objects go."""
    here = ("--namespace", place)
    operator.runs(place, {"deletionPolicy": "Delete"})

    fleet.kubectl("delete", "contentrepository", "flows", *here, "--wait=false")

    cleaned: set[str] = set()

    def is_gone() -> bool:
        jobs = fleet.get("jobs", *here)["items"]
        cleaned.update(each["spec"]["template"]["spec"]["nodeName"] for each in jobs)
        return not fleet.get("contentrepositories", *here)["items"]

    operator.until("it is gone", is_gone)
    assert cleaned == set(NODES)
    assert objects(fleet, place) == {}


def test_without_cert_manager_the_wish_is_refused_and_with_it_each_agent_s_request_is_passed_on(
    fleet: Fleet, operator: Operator, place: str, tmp_path: Path
) -> None:
    """Accepted is False; once the kind is served, an agent's own request is passed on, the answer stands in its node's
    object, clients are told the authority, and the CertificateRequest goes. No secret is mounted.
    """
    here = ("--namespace", place)
    fleet.apply(repository(place, {"tls": {"mode": "CertManager"}}))
    operator.until("it is refused", lambda: condition(fleet, place, "Accepted") == "False")
    told = fleet.get("contentrepository", "flows", *here)["status"]["conditions"]
    assert "install cert-manager" in next(c["message"] for c in told if c["type"] == "Accepted")
    assert fleet.get("daemonsets", *here)["items"] == []

    fleet.apply(definition("cert-manager.io", "v1", "CertificateRequest"))
    try:
        fleet.wait_until("the kind is served", fleet.serves_all_custom_resources)
        fleet.kubectl("label", "contentrepository", "flows", *here, "looked=again")
        operator.until("its agents run", lambda: len(images(fleet, place)) == len(NODES))
        pod = fleet.get("daemonset", "flows-ullage", *here)["spec"]["template"]["spec"]
        assert [each for each in pod["volumes"] if "secret" in each] == []
        agent = NodeCertificate(agent_of(fleet, place, tmp_path, "worker-0"), "worker-0", str(tmp_path))
        api = agent_of(fleet, place, tmp_path, "worker-0")

        def is_asked() -> bool:
            seen = api.read()
            if seen is None or not seen.spec.certificate_names:
                return False
            agent.heed(seen)
            return len(_asked(fleet, place)) == 1

        operator.until("the request is passed on", is_asked)
        (asked,) = _asked(fleet, place)
        assert asked["spec"]["issuerRef"] == {"name": "flows-ullage", "kind": "Issuer", "group": "cert-manager.io"}
        kept = rotated(CertificateAuthority(), datetime.now(UTC), "issuer")
        request = base64.b64decode(asked["spec"]["request"]).decode()
        seen = api.read()
        assert seen is not None
        made = renewed(kept, "", request, datetime.now(UTC), "worker-0", seen.spec.certificate_names)
        status = {"certificate": base64.b64encode(made.encode()).decode()}
        status["ca"] = base64.b64encode(kept.authority.encode()).decode()
        say(fleet, place, "certificaterequest", asked["metadata"]["name"], status)
        operator.until("it is copied", lambda: (now := api.read()) is not None and now.spec.certificate == made)
        agent.obtain()
        assert (tmp_path / "tls.crt").read_text() == made
        operator.until("the request goes", lambda: _asked(fleet, place) == [])
        published = partial(fleet.get, "configmap", "flows-ullage-ca", *here)
        operator.until("clients are told", lambda: published()["data"]["ca.crt"] == kept.authority)
    finally:
        fleet.kubectl("delete", "crd", "certificaterequests.cert-manager.io")


def _asked(fleet: Fleet, place: str) -> list[dict[str, Any]]:
    try:
        return list(fleet.get("certificaterequests.cert-manager.io", "--namespace", place)["items"])
    except ClusterError:  # discovery follows a moment later
        return []

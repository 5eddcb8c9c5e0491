"""Every cell of the table of conditions, reached on a real API server: what docs/conditions.md says can be seen."""

import contextlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.errors import ClusterError
from tests.cluster.fleet import Fleet
from tests.cluster.health import argo, kstatus
from tests.cluster.looks import Looks
from tests.cluster.operator_process import ROOTS, Operator, objects, repository, say, spoiled_authority
from tests.cluster.test_operator_volumes import lose, volume
from tests.cluster.workloads import definition, executor, made, run
from ullage.contract import TABLE, object_name
from ullage_agent.node.certificate import NodeCertificate
from ullage_agent.node.objects import NodeObjectClient
from ullage_agent.service.kubernetes import ApiServer

OLD = "2026-01-01T00:00:00Z"
CLOSED = {"maintenance": {"windows": [{"name": "newyear", "schedule": "0 0 1 1 *", "duration": "1m"}]}}
KINDS = ("ContentRepository", "ReclamationRun")
"""Of the operator. What agents say of nodes is in test_agent_conditions.py."""


@pytest.fixture
def looks(fleet: Fleet, operator: Operator, place: str) -> Looks:
    return Looks(fleet, operator, place)


def pool(name: str) -> dict[str, Any]:
    """A repository on the nodes of a pool, which no other one is on."""
    return {"nodeSelector": {"pool": name}, "tolerations": [{"key": "pool", "operator": "Exists"}]}


@pytest.fixture
def far(fleet: Fleet) -> Iterator[list[str]]:
    """Four nodes of a pool of their own, and one that never gets ready."""
    names = fleet.add_nodes(4, "far")
    fleet.apply(made("v1", "Node", "bare-0", metadata={"labels": {"pool": "bare"}}))
    fleet.kubectl("label", "nodes", *names, "pool=far")
    fleet.kubectl("taint", "nodes", *names, "bare-0", "pool=own:NoSchedule")
    yield names
    fleet.kubectl("delete", "nodes", *names, "bare-0", "--ignore-not-found", "--wait=false")


@pytest.mark.timeout(600)
def test_every_cell_of_the_table_is_reached(looks: Looks, far: list[str]) -> None:
    """Story by story; what is left of the table at the end was reached by none."""
    for story in (
        _well,
        _troubled,
        _shipped,
        _out_of_reach,
        _provisioned,
        _not_accepted,
        _refused,
        _uncertified,
        _runs,
        _removed,
        _waits_for_a_window,
    ):
        story(looks)

    table = {(kind, row.type, cell.reason) for kind in KINDS for row in TABLE[kind] for cell in row.cells}
    assert table - looks.cells == set()


def _well(looks: Looks) -> None:
    """Agents come, speak, are given other settings, and are left alone for a while."""
    fleet = looks.fleet
    fleet.apply(repository(looks.place, name="well"))
    looks.until("well", "Ready Silent", "Applied Silent", "Reconciling Settled", "Accepted Valid")
    looks.speak("well")
    found = looks.until("well", "Ready AllServe", "Applied AllAgents", "Reachable AllServed", "Degraded Well")
    assert (kstatus(found), argo(found)) == ("Current", "Healthy")
    fleet.kubectl("wait", "contentrepository/well", "--for=condition=Ready", *looks.here, "--timeout=60s")

    fleet.apply(repository(looks.place, {"leases": {"maxDuration": "7m"}}, "well"))
    found = looks.until("well", "Applied AgentsBehind", "Reconciling AgentsBehind", words="worker-1")
    assert (kstatus(found), argo(found)) == ("InProgress", "Progressing")
    looks.speak("well")
    looks.until("well", "Applied AllAgents", "Reconciling Settled")

    fleet.kubectl("annotate", "contentrepository", "well", "ullage.dev/paused=true", *looks.here)
    found = looks.until("well", "Paused Annotation", "Reconciling HandsOff", "Ready AllServe")
    assert (kstatus(found), argo(found)) == ("Current", "Suspended")
    fleet.apply(run(looks.place, "worker-0", "held", repository="well"))
    looks.until("held", "Ready HandsOff", "Reconciling HandsOff", "Stalled HandsOff")
    fleet.kubectl("delete", "reclamationrun", "held", *looks.here)
    for change, said in (("=True", "NotUnderstood"), ("-", "NotPaused")):
        fleet.kubectl("annotate", "--overwrite", "contentrepository", "well", f"ullage.dev/paused{change}", *looks.here)
        looks.until("well", f"Paused {said}", "Reconciling Settled")

    theirs = ("daemonset", "well-ullage", *looks.here)
    beside = {"name": "theirs", "image": "agent:1"}
    for container, said in ((beside, "ForeignFields"), (beside | {"$patch": "delete"}, "Well")):
        made_so = {"spec": {"template": {"spec": {"containers": [container]}}}}
        fleet.kubectl("patch", *theirs, f"--patch={json.dumps(made_so)}")
        looks.until("well", f"Degraded {said}", words="" if said == "Well" else "containers[name=theirs]")
    # Each change of the workload is rolled out: what comes next looks at kstatus, which waits for that.
    looks.until("well", "Degraded Well", "Reconciling Settled")


def _troubled(looks: Looks) -> None:
    """One agent says what is wrong with it, stops serving, and is not heard of any more; pods of Spark come."""
    troubles = {"Degraded": "MaintenanceFailed", "DataUnavailable": "VolumeAway", "DiskPressure": "AboveBackpressure"}
    troubles["GoalMissed"] = "WillBeMissed"
    looks.speak("well", "worker-1", troubles=troubles)
    cells = ("Degraded AgentTrouble", "DataUnavailable OnNodes", "DiskPressure AboveBackpressure", "GoalMissed OnNodes")
    found = looks.until("well", *cells, words="worker-1 (Degraded: MaintenanceFailed in words)")
    assert (kstatus(found), argo(found)) == ("Current", "Degraded")
    looks.speak("well", "worker-1")
    looks.until("well", "Degraded Well", "DataUnavailable AllThere", "DiskPressure RoomLeft", "GoalMissed NoneMissed")

    stopped = {"type": "Ready", "status": "False", "reason": "Stopped", "lastTransitionTime": OLD}
    looks.speak("well", "worker-1", conditions=[stopped], space={"liveBytes": 5 << 20})
    found = looks.until("well", "Ready NotServing", "Reachable NotServing", words="worker-1 (5Mi live; Stopped)")
    assert found["status"]["outOfReach"][0]["live"] == "5Mi"
    looks.speak("well", "worker-1", heartbeat=OLD)
    said = ("Reachable", "Degraded", "DataUnavailable", "DiskPressure", "GoalMissed", "Ready")
    found = looks.until("well", *(f"{type} Silent" for type in said), words="worker-1")
    assert (kstatus(found), argo(found)) == ("InProgress", "Progressing")

    looks.speak("well", wanted=["Rewrite"])
    looks.until("well", "MaintenanceDeferred NothingInTheWay", "Reachable AllServed")
    looks.fleet.apply(executor(looks.place, "worker-1"))
    looks.until("well", "MaintenanceDeferred PodsRun", words=f"{looks.place}/etl")
    looks.fleet.kubectl("delete", "pod", "exec-1", *looks.here, "--wait=false", "--grace-period=0", "--force")


def _shipped(looks: Looks) -> None:
    """Agents begin a share, ship, are refused by the bucket, and are not heard of any more."""
    looks.fleet.apply(repository(looks.place, {"replication": {"mode": "Async", "url": "s3://flows/r"}}, "shipped"))
    looks.agents("shipped")
    looks.speak("shipped", "worker-0", "worker-1", troubles={"Replicated": "Shipping"}, soleCopyBytes=5)
    looks.until("shipped", "Replicated Starting", words="worker-2")
    looks.speak("shipped", "worker-2", troubles={"Replicated": "Shipping"}, soleCopyBytes=7)
    found = looks.until("shipped", "Replicated AllNodes")
    looks.operator.until("the sum is told", lambda: looks.all()["shipped"]["status"]["soleCopyBytes"] == 17)
    assert (kstatus(found), argo(found)) == ("Current", "Healthy")

    since = {"lastTransitionTime": OLD}
    refused = {"type": "Replicated", "status": "False", "reason": "Failing", "message": "AccessDenied", **since}
    serves = {"type": "Ready", "status": "True", "reason": "Serves", **since}
    looks.speak("shipped", "worker-1", conditions=[serves, refused])
    looks.until("shipped", "Replicated OnNodes", words="worker-1 (AccessDenied)")
    looks.speak("shipped", "worker-1", troubles={"Replicated": "Shipping"}, heartbeat=OLD)
    looks.until("shipped", "Replicated Silent", words="worker-1")


def _out_of_reach(looks: Looks) -> None:
    """Content lies on nodes that are unselected, unschedulable, without a ready pod, gone, or never ready."""
    fleet, place = looks.fleet, looks.place
    nodes = tuple(f"far-{number}" for number in range(4))
    fleet.apply(repository(place, pool("far"), "far"))
    looks.agents("far", nodes)
    looks.operator.until("pods run", lambda: len(_pods(looks, "far")) == 4)
    looks.speak("far", *nodes, space={"liveBytes": 3 << 30})
    looks.until("far", "Ready AllServe", "Reachable AllServed")

    fleet.kubectl("cordon", "far-1")
    looks.operator.until("it is seen", lambda: objects(fleet, place, "far")["far-1"]["spec"].get("cordoned"))
    assert looks.until("far", "Ready AllServe", "Reachable AllServed")["status"]["nodes"] == 4

    fleet.kubectl("label", "node", "far-1", "pool-")
    found = looks.until("far", "Reachable Unselected", "Ready OutOfReach", words="far-1 (3Gi live")
    assert (found["status"]["nodes"], found["status"]["nodesOutOfReach"]) == (4, 1)
    assert (kstatus(found), argo(found)) == ("InProgress", "Degraded")
    fleet.kubectl("label", "node", "far-1", "pool=far")
    looks.operator.until("pods run", lambda: len(_pods(looks, "far")) == 4)

    broken = {
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [
            {
                "name": "agent",
                "image": "a",
                "imageID": "",
                "ready": False,
                "restartCount": 3,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
                "lastState": {"terminated": {"exitCode": 2, "message": "there is no content repository 's3'"}},
            }
        ],
    }
    say(fleet, place, "pod", _pods(looks, "far")["far-2"], broken)
    words = "far-2 (3Gi live; CrashLoopBackOff: there is no content repository 's3')"
    looks.until("far", "Reachable NoAgent", "Reconciling Rolling", "Ready NotServing", words=words)

    fleet.kubectl("delete", "node", "far-0", "--wait=false")
    status = looks.until("far", "Reachable NodeGone", "Degraded NodeLost", words="far-0")["status"]
    assert ([each["node"] for each in status["outOfReach"]], status["nodes"]) == (["far-0", "far-2"], 4)
    fleet.kubectl("delete", "contentrepositorynode", object_name("far", "far-0"), *looks.here, "--wait=false")
    looks.until("far", "Degraded ObjectDeleted", words="far-0")
    _told(looks, "far", "Warning", "ReachableFalse", "far-0")

    fleet.apply(repository(place, pool("bare"), "bare"))
    looks.agents("bare", ("bare-0",))
    looks.speak("bare", "bare-0")
    looks.until("bare", "Reachable NodeNotReady", words="bare-0")


def _pods(looks: Looks, name: str) -> dict[str, str]:
    """The agents' pods that are ready, by node."""
    pods = looks.fleet.get("pods", *looks.here, f"--selector=ullage.dev/repository={name}")["items"]
    ready = [each for each in pods if each["status"]["phase"] == "Running" and "nodeName" in each["spec"]]
    return {each["spec"]["nodeName"]: each["metadata"]["name"] for each in ready}


def _told(looks: Looks, name: str, kind: str, reason: str, words: str) -> None:
    """There is an event of the object that says so."""

    def is_told() -> bool:
        events = looks.fleet.get("events", *looks.here)["items"]
        about = [e for e in events if (e["involvedObject"]["name"], e["type"], e["reason"]) == (name, kind, reason)]
        return any(words in each["message"] for each in about)

    looks.operator.until(f"an event tells {reason} of {name}", is_told)


def _provisioned(looks: Looks) -> None:
    """Claims wait for volumes, get them, are too small, may not grow, grow, cannot, and are as large as asked for."""
    fleet, place = looks.fleet, looks.place
    late: dict[str, Any] = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    fleet.apply(made("storage.k8s.io/v1", "StorageClass", place, **late))

    def claiming(size: str) -> dict[str, Any]:
        local = {"storageClassName": place, "size": size}
        on = {"nodeSelector": {"kubernetes.io/hostname": "worker-0"}}
        return repository(place, {"storage": {"localPersistentVolume": local}, **on}, "claims")

    def until(reason: str, words: str = "") -> None:
        looks.fleet.kubectl("label", "contentrepository", "claims", f"looked={reason}", "--overwrite", *looks.here)
        looks.until("claims", f"Provisioned {reason}", words=words)

    fleet.apply(claiming("1Gi"))
    until("Unbound", "on worker-0")
    disk = volume(place, "worker-0")
    fleet.apply(disk | {"spec": disk["spec"] | {"storageClassName": place}})
    until("AsAsked")
    fleet.apply(claiming("2Gi"))
    until("NotExpandable", f"(1Gi of 2Gi, class {place})")
    fleet.apply(made("storage.k8s.io/v1", "StorageClass", place, **late, allowVolumeExpansion=True))
    until("Growing", "(1Gi of 2Gi)")
    (claim,) = fleet.get("persistentvolumeclaims", *looks.here)["items"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "2Gi"
    told = partial(say, fleet, place, "persistentvolumeclaim", claim["metadata"]["name"])
    told({"conditions": [{"type": "ControllerResizeError", "status": "True", "message": "the pool is full"}]})
    until("GrowthFailed", "(1Gi of 2Gi): the pool is full")
    told({"conditions": [], "capacity": {"storage": "2Gi"}})
    until("AsAsked")
    lose(fleet, f"{place}-worker-0")
    until("VolumeLost", f"({place}-worker-0 is gone)")
    fleet.kubectl("delete", "storageclass", place)


def _not_accepted(looks: Looks) -> None:
    """What the operator cannot or may not do; and a policy that nobody has said that they have, or somebody lacks."""
    bad: dict[str, dict[str, Any]] = {
        "Invalid": {"storage": {"containers": [{"name": "a", "subPath": "a"}, {"name": "b", "subPath": "a/b"}]}},
        "PathNotAllowed": {"storage": {"hostPath": {"path": "/etc"}}},
        "ImageNotAllowed": {"image": "mine:1"},
        "NoCertManager": {"tls": {"mode": "CertManager"}},
        "InvalidWindow": {"maintenance": {"timeZone": "Mars/Olympus"}},
        "InvalidSchedule": {"planning": {"schedule": "61 * * * *"}},
    }
    looks.fleet.apply(*(repository(looks.place, spec, reason.lower()) for reason, spec in bad.items()))
    for reason in bad:
        cells = (f"Accepted {reason}", "Stalled NotAccepted", "Applied NotAccepted", "Ready NotStarted")
        found = looks.until(reason.lower(), *cells)
        assert (kstatus(found), argo(found)) == ("Failed", "Degraded")
    _conflict(looks)

    theirs = partial(repository, looks.place, name="theirs")
    looks.fleet.apply(theirs({"compaction": {"policy": "Theirs"}}))
    looks.until("theirs", "Accepted PluginUnheard", "Reconciling PluginUnheard")
    looks.agents("theirs")
    looks.operator.until("pods run", lambda: len(_pods(looks, "theirs")) == 3)
    looks.speak("theirs", policies=["StatsBased"])
    looks.until("theirs", "Accepted UnknownPlugin", "Ready AllServe", words="no policy 'Theirs'")


def _conflict(looks: Looks) -> None:
    """The younger would lie in nested/PLACE, and the older lies in nested/PLACE/PLACE/older."""
    fleet = looks.fleet
    older = repository(looks.place, {"storage": {"hostPath": {"path": ROOTS[1]}}}, "older")
    fleet.apply(older)
    looks.until("older", "Accepted Valid")

    def is_free() -> bool:
        return "nested" not in fleet.kubectl("get", "namespaces")

    fleet.wait_until("the namespace is free", is_free)
    with fleet.namespace("nested", awaits_end=False):
        born = older_than(fleet, looks.place)
        fleet.wait_until("a second has passed", born)
        fleet.apply(repository("nested", name=looks.place))
        there = Looks(fleet, looks.operator, "nested")
        there.until(looks.place, "Accepted PathConflict", words="older")
        looks.cells |= there.cells
        fleet.kubectl("delete", "contentrepository", looks.place, "--namespace", "nested", "--timeout=60s")


def older_than(fleet: Fleet, place: str) -> Callable[[], bool]:
    """Whether a second has begun since the repository `older` was made: creation times have whole ones."""
    made_at = fleet.get("contentrepository", "older", "--namespace", place)["metadata"]["creationTimestamp"]

    def passed() -> bool:
        probe = fleet.kubectl("create", "configmap", "probe", "--namespace", place, "--output=json")
        fleet.kubectl("delete", "configmap", "probe", "--namespace", place)
        return bool(json.loads(probe)["metadata"]["creationTimestamp"] > made_at)

    return passed


def _refused(looks: Looks) -> None:
    """By the API server, by admission, by a webhook that is out of order; and what nobody has thought of."""
    fleet, place = looks.fleet, looks.place
    fleet.apply(made("v1", "ConfigMap", "clash-ullage", place, data={}))
    fleet.apply(repository(place, {"nodeSelector": {"disk": "none"}}, "nowhere"))
    fleet.apply(repository(place, name="clash"), repository(place, {"priorityClassName": "none"}, "class"))
    found = looks.until("nowhere", "Stalled NoNodes", "Ready NoNodes", "Applied NoNodes", words="spec.nodeSelector")
    assert (kstatus(found), argo(found)) == ("Failed", "Degraded")
    looks.until("clash", "Stalled Refused", words="ConfigMap clash-ullage is there already")
    looks.until("class", "Stalled PodsRefused", words="no PriorityClass with name none")
    _told(looks, "clash", "Warning", "StalledTrue", "clash-ullage")

    with _webhook(fleet, place):
        fleet.apply(repository(place, name="unlucky"))
        found = looks.until("unlucky", "Reconciling Retrying", words="failed calling webhook")
        assert kstatus(found) == "InProgress"
    looks.until("unlucky", "Reconciling Settled")

    with spoiled_authority(fleet, looks.operator, place, "unlucky"):  # what nobody thought of stops it alone
        looks.until("unlucky", "Stalled OperatorFailed", words="ValueError")
    looks.speak("unlucky")
    looks.until("unlucky", "Stalled Working", "Ready AllServe")


def _uncertified(looks: Looks) -> None:
    """cert-manager denies what an agent asks for, and its words are told."""
    fleet, place = looks.fleet, looks.place
    fleet.apply(definition("cert-manager.io", "v1", "CertificateRequest"))
    try:
        fleet.wait_until("the kind is served", fleet.serves_all_custom_resources)
        fleet.apply(repository(place, {"tls": {"mode": "CertManager"}}, "denied"))
        looks.agents("denied")
        looks.operator.until("pods run", lambda: len(_pods(looks, "denied")) == 3)
        pod = fleet.get("pod", _pods(looks, "denied")["worker-0"], *looks.here)["metadata"]
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={pod['name']}")
        token = Path(fleet.instance.home, "denied.token")
        token.write_text(fleet.kubectl("create", "token", "denied-ullage-agent", *looks.here, *bound))
        api = NodeObjectClient(ApiServer(fleet.url, str(token), str(fleet.ca)), place, "denied", "worker-0")
        (folder := Path(fleet.instance.home, "denied")).mkdir(exist_ok=True)

        def asked() -> list[dict[str, Any]]:
            if (seen := api.read()) is not None and seen.spec.certificate_names:
                NodeCertificate(api, "worker-0", str(folder)).heed(seen)
            return list(fleet.get("certificaterequests.cert-manager.io", *looks.here)["items"])

        looks.operator.until("the request is passed on", lambda: len(asked()) == 1)
        words = {"type": "Denied", "status": "True", "reason": "policy", "message": "not for the likes of you"}
        say(fleet, place, "certificaterequest", asked()[0]["metadata"]["name"], {"conditions": [words]})
        looks.until("denied", "Degraded NoCertificate", words="policy: not for the likes of you")
        _told(looks, "denied", "Warning", "DegradedTrue", "not for the likes of you")
    finally:
        fleet.kubectl("delete", "crd", "certificaterequests.cert-manager.io")


@contextlib.contextmanager
def _webhook(fleet: Fleet, place: str) -> Iterator[None]:
    """One that nobody answers, for every Service of the namespace."""
    hook = {
        "name": "services.none.example",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["services"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": place}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    kind = "ValidatingWebhookConfiguration"
    fleet.apply(made("admissionregistration.k8s.io/v1", kind, "none.example", webhooks=[hook]))
    try:

        def is_heeded() -> bool:
            try:
                fleet.kubectl("create", "service", "clusterip", "probe", "--tcp=1", "--namespace", place)
            except ClusterError:
                return True
            fleet.kubectl("delete", "service", "probe", "--namespace", place)
            return False

        fleet.wait_until("the webhook is heeded", is_heeded)
        yield
    finally:
        fleet.kubectl("delete", kind, "none.example")


def _runs(looks: Looks) -> None:
    """One waits for a window, is at work and completes; others fail, each in its way."""
    fleet, place = looks.fleet, looks.place
    fleet.apply(run(place, "worker-0", "orphan", repository="none"))
    fleet.apply(run(place, "", "empty", repository="nowhere", nodes=[]))
    found = looks.until("orphan", "Ready NoRepository", "Stalled NoRepository", "Reconciling HandsOff")
    assert kstatus(found) == "Failed"
    looks.until("empty", "Ready NoNodes", "Stalled NoNodes", "Reconciling Ended")
    fleet.apply(run(place, "worker-9", "absent", repository="well"))
    looks.until("absent", "Ready Failed", "Stalled Failed", words="worker-9")
    _told(looks, "absent", "Warning", "ReadyFalse", "worker-9")

    fleet.apply(run(place, "worker-0", "later", repository="well", suspend=True))
    looks.until("later", "Ready Suspended", "Reconciling HandsOff", "Stalled Suspended", words="set spec.suspend")

    looks.speak("well", wanted=[])
    fleet.apply(repository(place, CLOSED, "well"))
    fleet.apply(run(place, "worker-0", "now", repository="well"))
    assert kstatus(looks.until("now", "Ready Waiting", "Reconciling Waiting", "Stalled Working")) == "InProgress"
    fleet.apply(repository(place, name="well"))
    looks.speak("well")
    looks.until("now", "Ready Running", "Reconciling Running")
    ticket = objects(fleet, place, "well")["worker-0"]["spec"]["ticket"]
    done = {"id": ticket["id"], "run": "now", "runUid": ticket["runUid"], "state": "Completed", "ended": OLD}
    looks.speak("well", "worker-0", ticket=done)
    assert kstatus(looks.until("now", "Ready Completed", "Reconciling Ended", "Stalled Working")) == "Current"
    fleet.kubectl("wait", "reclamationrun/now", "--for=condition=Ready", *looks.here, "--timeout=60s")

    fleet.apply(run(place, "worker-0", "late", repository="well", activeDeadlineSeconds=1))
    looks.until("late", "Ready DeadlineExceeded", "Stalled DeadlineExceeded", "Reconciling Ended", words="worker-0")
    _told(looks, "late", "Warning", "ReadyFalse", "activeDeadlineSeconds")


def _removed(looks: Looks) -> None:
    """With policy Delete: a quota refuses the job that empties a directory, then a node does not run it."""
    fleet, place = looks.fleet, looks.place
    spec = {**pool("bare"), "deletionPolicy": "Delete"}
    fleet.apply(repository(place, spec, "going"))
    looks.agents("going", ("bare-0",))
    fleet.apply(made("v1", "ResourceQuota", "none", place, spec={"hard": {"count/jobs.batch": "0"}}))
    fleet.wait_until("the quota counts", lambda: "hard" in (fleet.get("resourcequota", "none", *looks.here)["status"]))
    fleet.kubectl("delete", "contentrepository", "going", *looks.here, "--wait=false")
    # Nobody plays the pod of a node that is bare.
    fleet.kubectl(
        "delete", "pods", "--selector=ullage.dev/repository=going", *looks.here, "--grace-period=0", "--force"
    )
    found = looks.until("going", "Stalled RemovalRefused", words="exceeded quota")
    assert kstatus(found) == "Terminating"
    _told(looks, "going", "Warning", "StalledTrue", "exceeded quota")
    fleet.kubectl("delete", "resourcequota", "none", *looks.here)
    looks.until("going", "Reconciling Removing", words="bare-0")
    fleet.kubectl("delete", "node", "bare-0", "--wait=false")
    looks.operator.until("it is gone", lambda: "going" not in looks.all())


def _waits_for_a_window(looks: Looks) -> None:
    """A newer format on disk is rolled out in a window only."""
    fleet, place, operator = looks.fleet, looks.place, looks.operator
    fleet.apply(repository(place, CLOSED, "well"))
    looks.speak("well", format=1)
    operator.end()
    operator.start(ULLAGE_OPERATOR_AGENT_FORMAT="2", ULLAGE_OPERATOR_AGENT_IMAGE="agent:2")
    try:
        looks.until("well", "Reconciling WaitsForWindow", words="worker-1")
    finally:
        operator.end()
        operator.start()
    assert object_name("well", "worker-0") in str(objects(fleet, place, "well")["worker-0"]["metadata"])

"""What people get wrong: each ends at the API server with the field's path, or in a condition and an event."""

import re
from functools import partial
from typing import Any, NamedTuple

from tests.cluster.errors import ClusterError
from tests.cluster.fleet import Fleet
from tests.cluster.operator_process import Operator, objects, repository, say_ready
from tests.cluster.workloads import made
from ullage.contract import API_VERSION

REFUSED = "refused"
"""By the API server itself; all others are a condition's type, status and reason."""

INVALID = "Accepted False Invalid"


class Bad(NamedTuple):
    """What is asked for, how it ends, and what of it must be named."""

    spec: dict[str, Any]
    ends: str
    names: str
    name: str = ""


def on_nodes(**expression: Any) -> dict[str, Any]:
    """An affinity to nodes with one expression."""
    terms = [{"matchExpressions": [expression]}] if expression else []
    required = {"nodeSelectorTerms": terms}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def apart(**term: Any) -> dict[str, Any]:
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def window(**fields: Any) -> dict[str, Any]:
    return {"maintenance": {"windows": [{"name": "w", "schedule": "0 1 * * *", "duration": "1h", **fields}]}}


def resources(requests: dict[str, str], limits: dict[str, str] | None = None) -> dict[str, Any]:
    return {"resources": {"requests": requests, "limits": limits or {}}}


def directories(*paths: str, **fields: Any) -> dict[str, Any]:
    containers = [{"name": f"c{number}", "subPath": path, **fields} for number, path in enumerate(paths)]
    return {"storage": {"containers": containers}}


LOCAL = {"storageClassName": "local", "size": "1Gi"}
TERMS = r"spec.affinity.nodeAffinity.required\w+.nodeSelectorTerms"

CASES: dict[str, Bad] = {
    # Names
    "a name with a dot": Bad({}, REFUSED, "metadata.name must be a label", "a.b"),
    "a long name": Bad({}, REFUSED, "metadata.name must be a label of DNS of at most 57", "a" * 58),
    "a name that begins with a digit": Bad({}, REFUSED, "metadata.name must be", "1st"),
    # Resources
    "a limit below the request": Bad(resources({"cpu": "2"}, {"cpu": "1500m"}), INVALID, "spec.resources.limits.cpu"),
    "an unknown resource": Bad(resources({"cpus": "2"}), INVALID, "spec.resources.requests.cpus"),
    "a resource of the cluster's domain": Bad(
        resources({"kubernetes.io/cpu": "1"}), INVALID, "spec.resources.requests.kubernetes.io/cpu"
    ),
    "an amount that is none": Bad(resources({"cpu": "two"}), REFUSED, "spec.resources.requests.cpu"),
    "a device that is shared": Bad(resources({"a.b/nic": "1"}), INVALID, "spec.resources.limits.a.b/nic"),
    # Affinity and placement
    "an operator that there is not": Bad(
        on_nodes(key="zone", operator="Is", values=["a"]), INVALID, TERMS + r"\[0\].matchExpressions\[0\].operator"
    ),
    "In without values": Bad(on_nodes(key="zone", operator="In"), INVALID, r"matchExpressions\[0\].values"),
    "Gt of a word": Bad(on_nodes(key="zone", operator="Gt", values=["a"]), INVALID, r"values: must be one whole"),
    "an affinity without terms": Bad(on_nodes(), INVALID, TERMS),
    "a slip in an affinity": Bad({"affinity": {"nodeAfinity": {}}}, INVALID, "spec.affinity: .*`nodeAfinity`"),
    "an anti-affinity without topology": Bad(
        apart(labelSelector={"matchLabels": {"a": "b"}}), INVALID, r"podAntiAffinity.*\[0\]: .*`topologyKey`"
    ),
    "a label's key with a blank": Bad({"nodeSelector": {"a b": "c"}}, INVALID, "spec.nodeSelector"),
    "a label's value with a blank": Bad({"nodeSelector": {"a": "c d"}}, REFUSED, "spec.nodeSelector.a"),
    "a taint's key with a blank": Bad({"tolerations": [{"key": "a b"}]}, REFUSED, r"spec.tolerations\[0\].key"),
    "Exists with a value": Bad({"tolerations": [{"operator": "Exists", "value": "x"}]}, REFUSED, r"tolerations\[0\]"),
    "seconds of no effect": Bad(
        {"tolerations": [{"key": "a", "operator": "Exists", "tolerationSeconds": 5}]}, REFUSED, r"spec.tolerations\[0\]"
    ),
    "a selector that matches nothing": Bad(
        {"nodeSelector": {"disk": "none"}}, "Stalled True NoNodes", "spec.nodeSelector"
    ),
    "a class that no name can be": Bad({"priorityClassName": "A_b"}, REFUSED, "spec.priorityClassName"),
    "a class that there is not": Bad({"priorityClassName": "none"}, "Stalled True PodsRefused", "PriorityClass.*none"),
    # Storage
    "an image of one's own": Bad({"image": "mine:1"}, "Accepted False ImageNotAllowed", "spec.image: mine:1"),
    "a directory of one's own": Bad(
        {"storage": {"hostPath": {"path": "/etc"}}}, "Accepted False PathNotAllowed", "spec.storage.hostPath.path: /etc"
    ),
    "a path that leads upwards": Bad({"storage": {"hostPath": {"path": "/a/../b"}}}, REFUSED, "spec.storage.hostPath"),
    "paths that contain each other": Bad(directories("a", "a/b"), INVALID, r"spec.storage.containers\[1\].subPath"),
    "a path of the repository's own": Bad(directories("flowfile"), INVALID, r"spec.storage.containers\[0\].subPath"),
    "a path of two lines": Bad(directories("a\nb"), INVALID, r"spec.storage.containers\[0\].subPath: .*U\+000A"),
    "a path that reads backwards": Bad(directories("a\u202eb"), INVALID, r"containers\[0\].subPath: .*U\+202E"),
    "an absolute path": Bad(directories("/a"), REFUSED, r"spec.storage.containers\[0\]"),
    "nowhere for content": Bad(directories("a", evacuate=True), INVALID, "spec.storage.containers"),
    "events that lie in content": Bad(
        {"storage": {"provenanceDirectories": ["c1/events"]}}, INVALID, r"spec.storage.provenanceDirectories\[0\]"
    ),
    "a directory and a volume": Bad(
        {"storage": {"hostPath": {"path": "/a"}, "localPersistentVolume": LOCAL}}, REFUSED, "spec.storage.*exclude"
    ),
    "a storage class that no name can be": Bad(
        {"storage": {"localPersistentVolume": LOCAL | {"storageClassName": "A b"}}}, REFUSED, "storageClassName"
    ),
    # Plug-ins
    "a policy that nobody vouches for": Bad(
        {"compaction": {"policy": "StatBased"}}, "Accepted Unknown PluginUnheard", "spec.compaction.policy 'StatBased'"
    ),
    "a repository that nobody vouches for": Bad(
        {"content": {"repository": "s3"}}, "Accepted Unknown PluginUnheard", "spec.content.repository 's3'"
    ),
    # Times
    "a cron of no minute": Bad(
        window(schedule="61 * * * *"), "Accepted False InvalidWindow", r"spec.maintenance.windows\[0\].schedule"
    ),
    "a zone of no place": Bad(
        {"maintenance": {"timeZone": "Mars/Olympus"}}, "Accepted False InvalidWindow", "spec.maintenance.timeZone"
    ),
    "a zone of this machine": Bad(
        {"maintenance": {"timeZone": "localtime"}}, "Accepted False InvalidWindow", "spec.maintenance.timeZone"
    ),
    "a zone with leap seconds": Bad(
        {"maintenance": {"timeZone": "right/Europe/Berlin"}}, "Accepted False InvalidWindow", "maintenance.timeZone"
    ),
    "a window of a month": Bad(window(duration="720h"), REFUSED, r"spec.maintenance.windows\[0\]"),
    "a plan on no day": Bad(
        {"planning": {"schedule": "0 0 31 2"}}, "Accepted False InvalidSchedule", "spec.planning.schedule"
    ),
    "a plan that nobody may ask for": Bad(
        {"planning": {"schedule": "0 * * * *"}, "auth": {"mode": "TokenFile"}}, REFUSED, "planning.schedule needs"
    ),
    # The rest
    "none at a time": Bad({"updateStrategy": {"maxUnavailable": "0%"}}, INVALID, "spec.updateStrategy.maxUnavailable"),
    "more at a time than can be counted": Bad(
        {"updateStrategy": {"maxUnavailable": 10**18}}, INVALID, "spec.updateStrategy.maxUnavailable"
    ),
    "a plug-in with a name of a page": Bad({"content": {"repository": "x" * 4096}}, REFUSED, "spec.content.repository"),
    "more than all at a time": Bad(
        {"maintenance": {"maxConcurrentNodes": "200%"}}, REFUSED, "spec.maintenance.maxConcurrentNodes"
    ),
    "full before it is used": Bad({"archive": {"backpressurePercentage": 10}}, REFUSED, "spec.archive"),
    "more than everything": Bad({"archive": {"maxUsagePercentage": 101}}, REFUSED, "spec.archive.maxUsagePercentage"),
    "two services at one port": Bad({"service": {"httpPort": 8481}}, REFUSED, "spec.service"),
    "a slip in a section": Bad({"storge": {}}, REFUSED, "spec.*storge"),
    "certificates of nobody": Bad({"tls": {"mode": "CertManager"}}, "Accepted False NoCertManager", "spec.tls.mode"),
    "a peer of no label": Bad(
        {"network": {"clients": [{"podSelector": {"matchLabels": {"a b": "c"}}}]}}, INVALID, "spec.network.clients"
    ),
}

RUNS: dict[str, Bad] = {
    "a repository that is not there": Bad({"repository": "none"}, "Ready False NoRepository", "ContentRepository none"),
    "no operation": Bad({"repository": "r0", "operations": []}, REFUSED, "spec.operations"),
    "a name of no repository": Bad({"repository": "A b"}, REFUSED, "spec.repository"),
}


def test_what_people_get_wrong_is_refused_or_told(fleet: Fleet, operator: Operator, place: str) -> None:
    """At the API server with the field's path, or in a condition that names it, and an event that says the same."""
    assert len(CASES) + len(RUNS) >= 34
    wrong: dict[str, str] = {}
    told: dict[str, tuple[Bad, tuple[str, str]]] = {}
    for number, (case, bad) in enumerate(CASES.items()):
        asked = repository(place, bad.spec, bad.name or f"r{number}")
        _ask(fleet, case, bad, asked, wrong, told)
    for number, (case, bad) in enumerate(RUNS.items()):
        asked = made(API_VERSION, "ReclamationRun", f"run{number}", place, spec=bad.spec)
        _ask(fleet, case, bad, asked, wrong, told)
    here = ("--namespace", place)
    left: dict[str, str] = {}

    def are_told() -> bool:
        items = fleet.get("contentrepositories,reclamationruns", *here)["items"]
        found = {(each["kind"], each["metadata"]["name"]): each for each in items}
        events = fleet.get("events", *here)["items"]
        left.clear()
        left.update((case, why) for case, (bad, key) in told.items() if (why := _lacks(bad, key, found, events)))
        return not left

    try:
        operator.until("all of them are told", are_told)
    except ClusterError as error:
        raise AssertionError(f"not told: {left}") from error
    assert wrong == {}


def _ask(
    fleet: Fleet,
    case: str,
    bad: Bad,
    asked: dict[str, Any],
    wrong: dict[str, str],
    told: dict[str, tuple[Bad, tuple[str, str]]],
) -> None:
    try:
        fleet.apply(asked)
    except ClusterError as error:
        if bad.ends != REFUSED or not re.search(bad.names, str(error)):
            wrong[case] = str(error)
        return
    if bad.ends == REFUSED:
        wrong[case] = "it was taken"
    else:
        told[case] = bad, (asked["kind"], asked["metadata"]["name"])


def _lacks(bad: Bad, key: tuple[str, str], found: dict[tuple[str, str], Any], events: list[dict[str, Any]]) -> str:
    """What is not told yet; empty if everything is."""
    type, status, reason = bad.ends.split()
    status_of = found[key].get("status") or {}
    conditions = {each["type"]: each for each in status_of.get("conditions", ())}
    condition = conditions.get(type, {})
    said = f"{condition.get('status')} {condition.get('reason')}: {condition.get('message', '')}"
    if said.split(":", maxsplit=1)[0] != f"{status} {reason}" or not re.search(bad.names, said):
        return said
    if condition["observedGeneration"] != found[key]["metadata"]["generation"]:
        return "observedGeneration"
    about = [
        each["message"]
        for each in events
        if (each["involvedObject"]["kind"], each["involvedObject"]["name"]) == key
        and (each["type"], each["reason"]) == ("Warning", f"{type}{status}")
    ]
    return "" if any(re.search(bad.names, message) for message in about) else f"events: {about}"


def test_a_policy_that_an_agent_lacks_is_refused_and_reaches_none(fleet: Fleet, operator: Operator, place: str) -> None:
    """The agents go on with what they had; with a policy that they have it is accepted again."""
    here = ("--namespace", place)

    def accepted() -> str:
        found = fleet.get("contentrepository", "flows", *here)["status"]["conditions"]
        return next(f"{each['status']} {each['reason']}" for each in found if each["type"] == "Accepted")

    def speak() -> None:
        for node in objects(fleet, place):
            say_ready(fleet, place, node, policies=["StatsBased", "CompactAll", "theirs"])

    operator.runs(place)
    speak()
    fleet.apply(repository(place, {"compaction": {"policy": "StatBased"}}))
    operator.until("it is refused", lambda: accepted() == "False UnknownPlugin")
    assert "StatBased" not in str(fleet.get("configmap", "flows-ullage", *here)["data"])

    fleet.apply(repository(place, {"compaction": {"policy": "theirs"}}))
    operator.until("it is accepted", lambda: accepted() == "True Valid")
    told = partial(fleet.get, "configmap", "flows-ullage", *here)
    operator.until("the agents are told", lambda: "theirs" in str(told()["data"]))


def test_a_quota_that_refuses_pods_is_told_and_its_end_too(fleet: Fleet, operator: Operator, place: str) -> None:
    """Stalled says why in the quota's words; when there is room again, so does it."""
    quota = made("v1", "ResourceQuota", "none", place, spec={"hard": {"pods": "0"}})
    here = ("--namespace", place)

    def stalled() -> str:
        found = fleet.get("contentrepository", "flows", *here).get("status") or {"conditions": ()}
        said = [each for each in found["conditions"] if each["type"] == "Stalled"]
        return "".join(f"{each['status']} {each['reason']} {each.get('message', '')}" for each in said)

    fleet.apply(quota)
    fleet.wait_until("the quota counts", lambda: "hard" in (fleet.get("resourcequota", "none", *here)["status"] or {}))
    fleet.apply(repository(place))
    operator.until("it is told", lambda: "True PodsRefused" in stalled() and "exceeded quota" in stalled())
    operator.until("an event tells it", lambda: "StalledTrue" in fleet.kubectl("get", "events", *here))

    fleet.kubectl("delete", "resourcequota", "none", *here)
    operator.until("there is room", lambda: stalled().startswith("False Working"))

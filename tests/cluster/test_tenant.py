"""What somebody gets who may create ContentRepositories in a namespace, and nothing else: against a real API server.

Such a tenant has the operator make pods. None of what the tenant can say may make of them root on a node, another's
directory or another's secret. Who may write statuses as well harms no object but their own by what they write there.
"""

import json
import ssl
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from tests.cluster.errors import ClusterError
from tests.cluster.fleet import Fleet
from tests.cluster.operator_process import (
    ROOTS,
    Operator,
    condition,
    now_text,
    objects,
    repository,
    say,
    say_ready,
    template,
    token_of_pod,
)
from tests.cluster.test_backups import BUCKETS, NODES, ready, report, status, tickets
from tests.cluster.workloads import backup, made, restore, run
from ullage.contract import Condition, ConditionStatus, NodeStatus, object_name, status_of
from ullage_agent.node.certificate import NodeCertificate
from ullage_agent.node.objects import NodeObjectClient, NodeObjectError
from ullage_agent.service.kubernetes import ApiServer
from ullage_operator.objects import RBAC, binding
from ullage_operator.settings import OperatorSettings

NODE = "worker-0"
KINDS = ["contentrepositories", "reclamationruns", "contentbackups", "contentrestores"]

NEVER = "2026-02-30T00:00:00Z"
LAST = "9999-12-31T23:59:59Z"
CROWD = [
    {"type": f"Theirs{number}", "status": "True", "reason": "X", "message": "", "lastTransitionTime": now_text()}
    for number in range(16)
]
"""As many conditions as there is room for."""

RUNNING = {"phase": "Running", "run": "r", "scheduled": LAST, "started": LAST}

HOSTILE: dict[str, tuple[dict[str, Any], ...]] = {
    "contentbackup": (
        {"phase": "Running"},
        {"phase": "Running", "run": "r" * 128},
        {"started": NEVER, "phase": "Completed"},
        {"scheduled": LAST, "ended": LAST, "nextRun": LAST, "lastSuccess": LAST, "phase": "Completed"},
        {"verification": {"phase": "Running"}},
        {"verification": RUNNING | {"samplePercentage": 100, "seed": 2**63 - 1}, **RUNNING, "run": "other"},
        {"verification": {"lastCompleted": NEVER, "askedSince": LAST}},
        {"conditions": [CROWD[0] | {"lastTransitionTime": NEVER}]},
        {"results": [{"node": "n" * 100_000, "report": {"id": "i", "state": "Failed", "ended": NEVER}}]},
        {"message": "m" * 300_000, "nodes": 2**63 - 1, "bytes": 2**63 - 1},
    ),
    "contentrestore": (
        {"phase": "Running"},
        {"phase": "Running", "place": "s3://others/b", "started": NEVER},
        {"phase": "Completed", "ended": NEVER},
    ),
    "reclamationrun": (
        {"phase": "Running", "started": NEVER},
        {"phase": "Running", "started": LAST},
        {"phase": "Completed", "ended": NEVER},
        {"results": [{"node": "n", "report": {"id": "i", "state": "Running", "started": NEVER}}]},
    ),
    "contentrepository": (
        {"planning": {"nextRun": NEVER, "lastRun": NEVER}},
        {"window": {"opens": NEVER}},
        {"conditions": [CROWD[0] | {"lastTransitionTime": NEVER}]},
    ),
}
WRONG: tuple[dict[str, Any], ...] = (
    {"phase": "Exploded"},
    {"started": "yesterday"},
    {"nodes": 1.5, "files": -1, "bytes": "many"},
    {"results": [{"node": "n", "report": {"id": "i", "state": "Failed"}}] * 17},
    {"conditions": [*CROWD, CROWD[0] | {"type": "More"}]},
    {"run": "r" * 129, "verification": {"samplePercentage": 101}},
)
"""What the API server itself refuses."""


class Tenant:
    """An account with all verbs on the kinds of Ullage that people write, in one namespace."""

    def __init__(self, fleet: Fleet, place: str) -> None:
        self._fleet = fleet
        self._here = ("--namespace", place)
        rules = [{"apiGroups": ["ullage.dev"], "verbs": ["*"], "resources": KINDS}]
        fleet.apply(
            made("v1", "ServiceAccount", "tenant", place),
            made(f"{RBAC}/v1", "Role", "tenant", place, rules=rules),
            made(f"{RBAC}/v1", "RoleBinding", "tenant", place, **binding("Role", "tenant", "tenant", place)),
        )
        token = fleet.kubectl("create", "token", "tenant", *self._here).strip()
        server = (f"--server={fleet.url}", f"--certificate-authority={fleet.ca}", "--kubeconfig=/dev/null")
        self._as = (f"--token={token}", *server)

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        return self._fleet.kubectl(*arguments, *self._here, *self._as, stdin=stdin)

    def asks(self, wish: dict[str, Any]) -> None:
        self.kubectl("apply", "--filename=-", stdin=json.dumps(wish))

    def is_told(self, name: str) -> tuple[str, str]:
        """The reason and the message of Accepted, once it is False."""
        found = self._fleet.get("contentrepository", name, *self._here).get("status") or {}
        told = [each for each in found.get("conditions", ()) if each["type"] == "Accepted"]
        return (told[0]["reason"], told[0]["message"]) if told and told[0]["status"] == "False" else ("", "")


@pytest.fixture
def tenant(fleet: Fleet, operator: Operator, place: str) -> Tenant:
    return Tenant(fleet, place)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"storage": {"hostPath": {"path": "/"}}}, "PathNotAllowed"),
        ({"storage": {"hostPath": {"path": "/etc"}}}, "PathNotAllowed"),
        ({"storage": {"hostPath": {"path": "/var/lib/kubelet"}}}, "PathNotAllowed"),
        ({"storage": {"hostPath": {"path": "/var/lib/ullage/of-another"}}}, "PathNotAllowed"),
        ({"image": "registry.example/evil:1"}, "ImageNotAllowed"),
        ({"planning": {"schedule": "* * * * *", "image": "registry.example/evil:1"}}, "ImageNotAllowed"),
    ],
)
def test_what_would_be_root_on_nodes_is_refused(
    fleet: Fleet, operator: Operator, place: str, tenant: Tenant, spec: dict[str, Any], reason: str
) -> None:
    """With what to do about it; nothing is built, and nothing is emptied when it goes."""
    tenant.asks(repository(place, spec | {"deletionPolicy": "Delete"}))

    operator.until("it is refused", lambda: tenant.is_told("flows")[0] == reason)
    assert "ULLAGE_OPERATOR_" in tenant.is_told("flows")[1]
    tenant.kubectl("delete", "contentrepository", "flows", "--timeout=30s")
    kinds = "daemonsets,statefulsets,jobs,pods,configmaps,serviceaccounts,services"
    here = fleet.get(kinds, "--namespace", place)["items"]
    assert {each["metadata"]["name"] for each in here} <= {"default", "tenant", "kube-root-ca.crt"}


def test_all_that_a_tenant_can_say_makes_no_pod_more_than_an_agent(
    fleet: Fleet, operator: Operator, place: str, tenant: Tenant
) -> None:
    """Every field that reaches a pod, each with what it would be good for: volumes, mounts and rights stay ours."""
    wish = {
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}, "podAffinity": {}},
        "priorityClassName": "system-node-critical",
        "resources": {"requests": {"cpu": "10m"}, "limits": {"memory": "1Gi"}},
        "image": "agent:1",
        "storage": {"hostPath": {"path": "//var/lib//ullage/"}, "containers": [{"name": "c1", "subPath": "c1"}]},
        "service": {
            "socketPath": "/etc/cron.d/ullage",
            "backupBuckets": [{"url": "s3://theirs/b", "credentialsSecret": "theirs"}],
        },
        "replication": {"mode": "Async", "url": "s3://theirs/r", "credentialsSecret": "other"},
        "tls": {"mode": "Secret", "directory": "/opt/ullage/lib/python3.11/site-packages"},
        "auth": {"mode": "TokenFile", "tokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token"},
    }
    tenant.asks(repository(place, wish))
    operator.until("it is accepted", lambda: condition(fleet, place, "Accepted") == "True")
    operator.until("its pods are made", lambda: fleet.get("daemonsets", "--namespace", place)["items"] != [])

    pod = template(fleet, place)

    assert not {"hostNetwork", "hostPID", "hostIPC"} & {key for key, value in pod.items() if value}
    allowed = {f"{ROOTS[0]}/{place}/flows", f"/run/ullage/{place}/flows"}
    assert {each["hostPath"]["path"] for each in pod["volumes"] if "hostPath" in each} == allowed
    secrets = [each["secret"] for each in pod["volumes"] if "secret" in each]
    names = ["flows-ullage-tls", "flows-ullage-bucket-other", "flows-ullage-bucket-theirs"]
    assert [each["secretName"] for each in secrets] == names
    for secret in secrets[1:]:
        assert secret["items"] == [{"key": key, "path": key} for key in ("credentials", "ca.crt")]
        assert secret["optional"]
    config = fleet.get("configmap", "flows-ullage", "--namespace", place)["data"]["contentrepository.yaml"]
    read = yaml.safe_load(config)["spec"]["replication"]
    assert read["credentialsFile"] == "/etc/ullage/buckets/other/credentials"
    assert "credentialsSecret" not in read
    (starts,), (agent,) = pod["initContainers"], pod["containers"]
    assert (starts["image"], agent["image"]) == (OperatorSettings().agent_image, "agent:1")
    assert starts["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
    assert agent["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert (agent["securityContext"]["runAsNonRoot"], agent["command"][:2]) == (True, ["ullage", "agent"])
    for container in (starts, agent):
        assert not container["securityContext"].get("privileged")
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
    places = {each["mountPath"] for container in (starts, agent) for each in container["volumeMounts"]}
    assert places == {
        "/var/lib/ullage",
        "/run/ullage",
        "/etc/ullage/tls",
        "/etc/ullage/repository",
        "/etc/ullage/buckets/theirs",
        "/etc/ullage/buckets/other",
    }


def test_a_name_gives_nobody_s_objects_away(fleet: Fleet, operator: Operator, place: str, tenant: Tenant) -> None:
    """A Service and a ConfigMap of somebody else, of the names that the operator would give its own, stay theirs."""
    theirs = {"ports": [{"port": 80}], "selector": {"app": "theirs"}}
    fleet.apply(made("v1", "Service", "flows-nodes", place, spec=theirs))
    fleet.apply(made("v1", "ConfigMap", "flows-ullage", place, data={"theirs": "1"}))

    tenant.asks(repository(place))

    operator.until("it was tried", lambda: operator.is_logged("not this repository's"))
    assert fleet.get("service", "flows-nodes", "--namespace", place)["spec"]["selector"] == {"app": "theirs"}
    assert fleet.get("configmap", "flows-ullage", "--namespace", place)["data"] == {"theirs": "1"}
    fleet.kubectl("delete", "service/flows-nodes", "configmap/flows-ullage", "--namespace", place)
    operator.until("it is made once they are gone", lambda: condition(fleet, place, "Accepted") == "True")


def agent_of(fleet: Fleet, place: str, home: Path, node: str = NODE) -> NodeObjectClient:
    """As the agent of a node speaks to the API server."""
    token = home / f"token-{node}"
    token.write_text(token_of_pod(fleet, place, node))
    return NodeObjectClient(ApiServer(fleet.url, str(token), str(fleet.ca)), place, "flows", node)


def test_each_agent_has_a_key_of_its_own(fleet: Fleet, operator: Operator, place: str, tmp_path: Path) -> None:
    """It makes it, asks with its pod's token, and gets a certificate of its node's names from the repository's
    authority. No secret is where the repository is; started again it asks nobody.
    """
    operator.runs(place)
    for node in (NODE, "worker-1"):
        (tmp_path / node).mkdir()
        NodeCertificate(agent_of(fleet, place, tmp_path, node), node, str(tmp_path / node)).obtain()

    names = [_names(tmp_path / node / "tls.crt") for node in (NODE, "worker-1")]
    assert names[0] & names[1] == {name for name in names[0] if "-local" in name or name == "localhost"}
    assert f"{NODE}.flows-nodes.{place}.svc" in names[0]
    assert (tmp_path / NODE / "tls.key").read_bytes() != (tmp_path / "worker-1" / "tls.key").read_bytes()
    assert (tmp_path / NODE / "tls.key").stat().st_mode & 0o777 == 0o600
    authority = fleet.get("configmap", "flows-ullage-ca", "--namespace", place)["data"]["ca.crt"]
    signer = x509.load_pem_x509_certificate(authority.encode())
    x509.load_pem_x509_certificate((tmp_path / NODE / "tls.crt").read_bytes()).verify_directly_issued_by(signer)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / NODE / "tls.crt", tmp_path / NODE / "tls.key")
    assert fleet.get("secrets", "--namespace", place)["items"] == []
    nowhere = NodeObjectClient(ApiServer("https://127.0.0.1:1", "", ""), place, "flows", NODE)
    NodeCertificate(nowhere, NODE, str(tmp_path / NODE)).obtain()


def _names(path: Path) -> set[str]:
    found = x509.load_pem_x509_certificate(path.read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return set(names.get_values_for_type(x509.DNSName))


def test_a_status_that_an_agent_writes_keeps_what_it_asked_for(
    fleet: Fleet, operator: Operator, place: str, tmp_path: Path
) -> None:
    """Both are parts of one status, written apart from each other: a heartbeat takes neither request nor certificate
    away, and the next pod's request replaces both.
    """
    operator.runs(place)
    api = agent_of(fleet, place, tmp_path)
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    first = NodeCertificate(api, NODE, str(tmp_path / "first"))
    first.obtain()
    seen = api.read()
    assert seen is not None

    written = api.write(seen.status.__class__(version="1", heartbeat="2026-03-01T00:00:00Z"))

    assert (written.status.certificate_request, written.spec.certificate) == (first.request(()), seen.spec.certificate)
    NodeCertificate(api, NODE, str(tmp_path / "second")).obtain()
    assert first.is_there
    after = api.read()
    assert after is not None
    assert after.spec.certificate not in (None, seen.spec.certificate)


def test_nobody_asks_for_a_certificate_in_an_agent_s_name(
    fleet: Fleet, operator: Operator, place: str, tmp_path: Path
) -> None:
    """Neither the agent of another node, nor that of another repository on the same node, nor an account that may write
    to every status of the namespace.
    """
    operator.runs(place)
    fleet.apply(repository(place, name="other"))
    operator.until("both have objects", lambda: len(fleet.get("contentrepositorynodes", "-n", place)["items"]) == 6)
    mine = agent_of(fleet, place, tmp_path)
    server = ApiServer(fleet.url, str(tmp_path / f"token-{NODE}"), str(fleet.ca))
    for repository_name, node in (("flows", "worker-1"), ("other", NODE)):
        with pytest.raises(NodeObjectError, match="must leave the object"):
            NodeObjectClient(server, place, repository_name, node).ask_for_certificate("x")
    mine.ask_for_certificate("x")

    rules = [{"apiGroups": ["ullage.dev"], "verbs": ["*"], "resources": ["*"]}]
    tenant = Tenant(fleet, place)
    fleet.apply(made(f"{RBAC}/v1", "Role", "tenant", place, rules=rules))
    patch = ("contentrepositorynode", object_name("flows", NODE), "--subresource=status", "--type=merge")
    with pytest.raises(ClusterError, match="only an agent asks for a certificate"):
        tenant.kubectl("patch", *patch, '--patch={"status": {"certificateRequest": "y"}}')
    tenant.kubectl("patch", *patch, '--patch={"status": {"version": "1"}}')
    assert fleet.field("{.status.certificateRequest}", f"contentrepositorynode/{patch[1]}", place) == "x"


def asked_for(place: str, kind: str, number: int) -> dict[str, Any]:
    """An object of this kind that has little to do."""
    name = f"{kind[7:9]}{number}"
    return {
        "contentbackup": lambda: backup(place, name, schedule="0 0 1 1 *", verify={"schedule": "0 0 1 1 *"}),
        "contentrestore": lambda: restore(place, name, "no-such-node"),
        "reclamationrun": lambda: run(place, NODES[0], name, suspend=True),
        "contentrepository": lambda: repository(place, {"nodeSelector": {"nobody": "has"}}, name),
    }[kind]()


def say_all(fleet: Fleet, objects: Iterable[dict[str, Any]], statuses: Iterable[dict[str, Any]]) -> None:
    """As a tenant does who may write to these statuses."""
    said = [
        {key: each[key] for key in ("apiVersion", "kind")}
        | {"metadata": {k: each["metadata"][k] for k in ("name", "namespace")}}
        | {"status": status}
        for each, status in zip(objects, statuses, strict=True)
    ]
    how = ("--server-side", "--subresource=status", "--force-conflicts", "--filename=-")
    fleet.kubectl("apply", *how, stdin="".join(f"---\n{json.dumps(each)}\n" for each in said))


def test_no_status_that_a_tenant_writes_stops_anything_near_it(fleet: Fleet, operator: Operator, place: str) -> None:
    """Of each kind: other backups of the repository run, other repositories are seen, and each bad status is replaced
    by what is so.
    """
    here = ("--namespace", place)
    operator.runs(place, BUCKETS)
    for node in NODES:
        say_ready(fleet, place, node)
    fleet.apply(backup(place, "victim", suspend=True))
    for wrong in WRONG:
        with pytest.raises(ClusterError, match=r"(?i)invalid|too many|duplicate"):
            say(fleet, place, "contentbackup", "victim", wrong)

    hostile = [(kind, n, status) for kind, statuses in HOSTILE.items() for n, status in enumerate(statuses)]
    asked = [asked_for(place, kind, number) for kind, number, _ in hostile]
    fleet.apply(*asked)
    say_all(fleet, asked, [status for _, _, status in hostile])
    for kind in ("contentbackup", "contentrestore", "reclamationrun"):
        say(fleet, place, kind, asked_for(place, kind, 1)["metadata"]["name"], {"conditions": CROWD})
    fleet.apply(backup(place, "healthy"), repository(place, {"nodeSelector": {"nobody": "has"}}, "neighbour"))
    operator.until("the healthy one has begun", lambda: set(tickets(fleet, place)) == set(NODES))
    for node, ticket in tickets(fleet, place).items():
        say_ready(fleet, place, node, backup=report(ticket, filesDone=2**63 - 1))
    operator.until("it has ended", lambda: ready(fleet, place, "healthy") == "Completed")
    operator.until("a neighbour is seen", lambda: condition(fleet, place, "Accepted", "neighbour") == "True")
    assert status(fleet, place, "healthy")["files"] == 2**63 - 1
    bad: dict[str, str] = {}

    def all_mended() -> bool:
        bad.clear()
        for each in fleet.get("contentbackups,contentrestores,reclamationruns,contentrepositories", *here)["items"]:
            said = each.get("status") or {}
            is_told = any(condition["type"] == "Ready" for condition in said.get("conditions", ()))
            if NEVER in str(said) or "Theirs" in str(said) or not said.get("observedGeneration") or not is_told:
                bad[each["metadata"]["name"]] = str(said)[:300]
        return not bad

    try:
        operator.until("all are put right", all_mended)
    except ClusterError as error:
        raise AssertionError(f"left as they were: {bad}") from error
    assert condition(fleet, place, "Stalled") == "False"
    assert not operator.is_logged('"exc_info"')
    assert not operator.is_logged("Traceback")


@pytest.fixture
def refusing(fleet: Fleet) -> Iterator[Callable[[str], None]]:
    """Has the API server refuse any status of the objects whose names begin so."""
    kind = "ValidatingAdmissionPolicy"

    def refuse(name: str) -> None:
        rule = {
            "apiGroups": ["ullage.dev"],
            "apiVersions": ["*"],
            "operations": ["UPDATE"],
            "resources": ["contentbackups/status"],
        }
        barred = f"!object.metadata.name.startsWith('{name}')"
        spec = {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": barred, "message": "no status for this one"}],
        }
        bound = {"policyName": "refusing", "validationActions": ["Deny"]}
        version = "admissionregistration.k8s.io/v1"
        fleet.apply(made(version, kind, "refusing", spec=spec), made(version, f"{kind}Binding", "refusing", spec=bound))

    yield refuse
    names = ("validatingadmissionpolicybinding/refusing", "validatingadmissionpolicy/refusing")
    fleet.kubectl("delete", *names, "--ignore-not-found")


def test_a_status_that_is_refused_for_good_harms_its_own_object_alone(
    fleet: Fleet, operator: Operator, place: str, refusing: Callable[[str], None]
) -> None:
    """As where an object has become too large for any: the next backup runs, and the repository is well."""
    operator.runs(place, BUCKETS)
    for node in NODES:
        say_ready(fleet, place, node)
    refusing("a-refused")

    # The policy takes effect some time after it is stored. An object that is made before that gets its status from the
    # operator, which then has nothing left to say about it: another of the same beginning shows when the policy holds.
    fleet.apply(backup(place, "a-refused-probe", suspend=True))

    def is_refused() -> bool:
        try:
            say(fleet, place, "contentbackup", "a-refused-probe", {"message": now_text()})
        except ClusterError:
            return True
        return False

    operator.until("the policy holds", is_refused)
    fleet.apply(backup(place, "a-refused", suspend=True), backup(place, "healthy"))
    operator.until("the healthy one has begun", lambda: set(tickets(fleet, place)) == set(NODES))
    for node, ticket in tickets(fleet, place).items():
        say_ready(fleet, place, node, backup=report(ticket))
    operator.until("it has ended", lambda: ready(fleet, place, "healthy") == "Completed")
    assert condition(fleet, place, "Stalled") == "False"
    operator.until("it is told", lambda: operator.is_logged("status refused"))


def test_conditions_of_others_leave_an_agent_its_room(
    fleet: Fleet, operator: Operator, place: str, tmp_path: Path
) -> None:
    """Where somebody has filled the list of a node, or wrote a time that no calendar has, its agent still says how it
    is.
    """
    operator.runs(place)
    api = agent_of(fleet, place, tmp_path)
    name = object_name("flows", NODES[0])
    theirs = {"conditions": CROWD, "backup": _report(NEVER), "repositoryUuid": "u"}
    say(fleet, place, "contentrepositorynode", name, theirs)
    found = api.read()
    assert found is not None
    assert found.status == NodeStatus(repository_uuid="u")
    mine = Condition(type="Ready", status=ConditionStatus.TRUE, reason="Serves", last_transition_time=now_text())

    api.write(NodeStatus(version="1", heartbeat=now_text(), conditions=(mine,)))

    told = objects(fleet, place)[NODES[0]]["status"]
    assert [each["type"] for each in told["conditions"]] == ["Ready"]
    assert told["version"] == "1"
    assert status_of(NodeStatus, told)[1] == ""


def _report(time: str) -> dict[str, Any]:
    return {"id": "i", "state": "Failed", "started": time}

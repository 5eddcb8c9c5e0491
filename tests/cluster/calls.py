"""A short life of a repository, told to an operator of whose calls to the API server one goes wrong.

    made, two nodes ── agents serve, get certificates ── a run reclaims both ── another image ── looked at ── removed

Whatever call it is, and however it goes wrong, what is there at the end is the same, with no ticket given twice, and
after its removal nothing is left.
"""

import difflib
import http.client
import json
import re
import signal
import ssl
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from cryptography import x509

from tests.cluster.control_plane import LOOPBACK, POLL_SECONDS
from tests.cluster.errors import ClusterError
from tests.cluster.fault_proxy import FaultProxy
from tests.cluster.fleet import Fleet
from tests.cluster.operator_process import SECONDS_MAX, Operator, done_by, now_text, repository
from tests.cluster.workloads import made
from tests.operator.test_certificates import key_and_request
from ullage.contract import API_VERSION
from ullage_operator.install import NAMESPACE
from ullage_operator.objects import path_of
from ullage_operator.repository.cache import OURS, OWNED

POOL: Final = {"pool": "calls"}
SPEC: Final[dict[str, Any]] = {"image": "agent:1", "nodeSelector": POOL, "deletionPolicy": "Delete"}
CHANGED: Final[dict[str, Any]] = {**SPEC, "image": "agent:2", "flowFile": {"partitions": 2}}
COMPARED: Final = (*OWNED, "ContentRepositoryNode", "ReclamationRun", "ContentRepository")
FLOWS: Final = "flows"

STILL_SECONDS: Final = 3.0
"""More than the operator takes to hear of a pod and to say so."""

VARYING: Final = (
    (re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+Z"), "TIME"),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}"), "UID"),
    (re.compile(r"-----BEGIN .*?-----END [A-Z ]*-----", re.DOTALL), "PEM"),
    (re.compile(r'"\d+\.\d+\.\d+\.\d+"'), '"ADDRESS"'),
    (re.compile(r'"t[0-9a-f]+-\d+"'), '"TICKET"'),
)
"""What is another in each life."""


class Case(NamedTuple):
    """One call, and how it goes wrong."""

    call: str
    kind: str


class Administrator:
    """Speaks to the API server without anybody between: quicker than kubectl, of which each call is a process."""

    def __init__(self, fleet: Fleet) -> None:
        trust = ssl.create_default_context(cafile=str(fleet.ca))
        trust.load_cert_chain(fleet.admin.certificate, fleet.admin.key)
        self._connection = http.client.HTTPSConnection(LOOPBACK, fleet.port, context=trust, timeout=30)
        self._agent = http.client.HTTPSConnection(
            LOOPBACK, fleet.port, context=ssl.create_default_context(cafile=str(fleet.ca)), timeout=30
        )

    def close(self) -> None:
        self._connection.close()
        self._agent.close()

    def ask(self, method: str, path: str, body: Any = None, content: str = "application/json", token: str = "") -> Any:
        """The answer; None where there is nothing, `ClusterError` for a refusal. `token`: as whom instead."""
        connection = self._agent if token else self._connection
        headers = {"Content-Type": content, **({"Authorization": f"Bearer {token}"} if token else {})}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        said = json.loads(answer.read())
        if answer.status == 404:
            return None
        if answer.status >= 300:
            raise ClusterError(f"{method} {path}: {said.get('message')}")
        return said

    def apply(self, document: dict[str, Any]) -> None:
        metadata = document["metadata"]
        path = path_of(document["kind"], metadata["namespace"], metadata["name"])
        self.ask("PATCH", f"{path}?fieldManager=people&force=true", document, "application/apply-patch+yaml")

    def merge(self, path: str, change: Any, token: str = "") -> None:
        self.ask("PATCH", path, change, "application/merge-patch+json", token)

    def items(self, kind: str, place: str, query: str = "") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("GET", path_of(kind, place) + query)["items"]
        return found


class Life:
    """One telling of the story, in a namespace of its own."""

    def __init__(self, people: Administrator, operator: Operator, proxy: FaultProxy, place: str) -> None:
        self._people, self._operator, self._proxy, self._place = people, operator, proxy, place
        self._request = key_and_request()[1]
        self._generation = 0
        self._still: dict[str, str] = {}
        self._since = 0.0

    def lived(self) -> dict[str, str]:
        """What is there before its removal, as text, by kind and name."""
        people, place = self._people, self._place
        people.apply(repository(place, SPEC, FLOWS))
        self._until("both agents serve", self._serves)
        run = {"repository": FLOWS}
        people.apply(made(API_VERSION, "ReclamationRun", "now", place, spec=run))
        self._until("the run is over", self._has_run)
        people.apply(repository(place, CHANGED, FLOWS))
        self._until("all have the other image, and nothing changes any more", self._is_still)
        found = self._still
        people.ask("DELETE", path_of("ReclamationRun", place, "now"))
        people.ask("DELETE", path_of("ContentRepository", place, FLOWS))
        self._until("nothing is left", self._is_gone)
        return found

    def _until(self, what: str, holds: Callable[[], bool]) -> None:
        """The operator is started again where it was killed, and agents do what they do."""
        end = time.monotonic() + SECONDS_MAX
        while True:
            if self._proxy.killed.is_set():
                self._proxy.killed.clear()
                self._operator.end(signal.SIGKILL)
                self._operator.start()
            self._play()
            if holds():
                return
            if time.monotonic() > end:
                left = json.dumps(self._found(), indent=1)
                raise ClusterError(f"waited {SECONDS_MAX:g} s in vain until {what}: {left}\n{self._operator.tail()}")
            self._proxy.killed.wait(POLL_SECONDS)

    def _play(self) -> None:
        """Agents: each asks for a certificate, says that it serves, and does at once what a ticket says."""
        found = self._people.ask("GET", path_of("ContentRepository", self._place, FLOWS))
        if found is None or "deletionTimestamp" in found["metadata"]:
            return
        generation = found["metadata"]["generation"]
        for each in self._people.items("ContentRepositoryNode", self._place):
            status, ticket = each.get("status") or {}, each["spec"].get("ticket")
            path = path_of("ContentRepositoryNode", self._place, each["metadata"]["name"], "status")
            if not status.get("certificateRequest"):
                self._ask_for_certificate(each["spec"]["nodeName"], path)
            said: dict[str, Any] = {"settingsGeneration": generation, "repositoryUuid": "u"}
            if ticket is not None:
                said["ticket"] = done_by(ticket, freedBytes=4096)
            if any(status.get(field) != value for field, value in said.items() if field != "ticket") or (
                ticket is not None and (status.get("ticket") or {}).get("id") != ticket["id"]
            ):
                now = now_text()
                serves = {"type": "Ready", "status": "True", "reason": "Serves", "lastTransitionTime": now}
                if ticket is not None:
                    said["ticket"]["ended"] = now
                self._people.merge(path, {"status": {**said, "heartbeat": now, "conditions": [serves]}})

    def _ask_for_certificate(self, node: str, path: str) -> None:
        """As the agent's pod: nobody else may. Without one yet, later."""
        pods = self._people.items("Pod", self._place, "?labelSelector=app.kubernetes.io/name%3Dullage-agent")
        here = [
            each
            for each in pods
            if each["spec"].get("nodeName") == node and "deletionTimestamp" not in each["metadata"]
        ]
        if not here or (here[0].get("status") or {}).get("phase") != "Running":
            return
        metadata = here[0]["metadata"]
        bound = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"]}
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}}
        account = path_of("ServiceAccount", self._place, f"{FLOWS}-ullage-agent", "token")
        if (answer := self._people.ask("POST", account, asked)) is not None:  # or the pod has gone meanwhile
            self._people.merge(path, {"status": {"certificateRequest": self._request}}, answer["status"]["token"])

    def _status(self) -> dict[str, Any]:
        found = self._people.ask("GET", path_of("ContentRepository", self._place, FLOWS))
        status: dict[str, Any] = found.get("status") or {}
        self._generation = found["metadata"]["generation"]
        return status

    def _serves(self) -> bool:
        """Two nodes, with certificates that clients trust, addresses, and nothing under way."""
        status = self._status()
        now = {each["type"]: each["status"] for each in status.get("conditions", ())}
        wanted = {"Ready": "True", "Reconciling": "False", "Stalled": "False", "Applied": "True"}
        if not wanted.items() <= now.items():
            return False
        nodes = self._people.items("ContentRepositoryNode", self._place)
        slices = self._people.items(
            "EndpointSlice", self._place, "?labelSelector=kubernetes.io/service-name%3Dflows-nodes"
        )
        hosts = [each for found in slices for each in found.get("endpoints") or () if each["conditions"]["ready"]]
        is_told = status.get("observedGeneration") == self._generation
        return is_told and len(nodes) == len(hosts) == 2 and all(map(self._is_trusted, nodes))

    def _is_trusted(self, node: dict[str, Any]) -> bool:
        """Whether its agent's certificate is signed by the authority that clients are told of."""
        published = self._people.ask("GET", path_of("ConfigMap", self._place, f"{FLOWS}-ullage-ca"))
        if published is None or not node["spec"].get("certificate"):
            return False
        authority = x509.load_pem_x509_certificate(published["data"]["ca.crt"].encode())
        signed = x509.load_pem_x509_certificates(node["spec"]["certificate"].encode())[0]
        signed.verify_directly_issued_by(authority)
        return True

    def _has_run(self) -> bool:
        run = self._people.ask("GET", path_of("ReclamationRun", self._place, "now"))
        nodes = self._people.items("ContentRepositoryNode", self._place)
        is_over = (run.get("status") or {}).get("phase") == "Completed"
        return is_over and not any("ticket" in each["spec"] for each in nodes)

    def _is_changed(self) -> bool:
        pods = self._people.items("Pod", self._place, "?labelSelector=app.kubernetes.io/name%3Dullage-agent")
        return [each["spec"]["containers"][0]["image"] for each in pods] == ["agent:2", "agent:2"]

    def _is_still(self) -> bool:
        """What was said of the pods before stands for a moment longer than they do."""
        found = self._found() if self._is_changed() and self._serves() else {}
        if found != self._still:
            self._still, self._since = found, time.monotonic()
        return bool(found) and time.monotonic() - self._since >= STILL_SECONDS

    def _is_gone(self) -> bool:
        """With what has no owner that would take it along."""
        here = path_of("ContentRepository", self._place, FLOWS)
        if self._people.ask("GET", here) is not None or self._people.items("ContentRepositoryNode", self._place):
            return False
        bound = self._people.ask("GET", path_of("ClusterRoleBinding", None, f"ullage:{self._place}:{FLOWS}"))
        secrets = self._people.items("Secret", NAMESPACE)
        about = f"{self._place}/{FLOWS}"
        kept = [s for s in secrets if (s["metadata"].get("annotations") or {}).get("ullage.dev/repository") == about]
        return bound is None and not kept

    def _found(self) -> dict[str, str]:
        """All that the operator has made here and said, without what is another each time."""
        found = {}
        for kind in COMPARED:
            query = f"?labelSelector={OURS.replace('=', '%3D')}" if kind in OWNED else ""
            for each in self._people.items(kind, self._place, query):
                owners = [owner["kind"] for owner in each["metadata"].get("ownerReferences") or ()]
                if "Service" in owners:  # the cluster's own addresses, with our labels
                    continue
                found[f"{kind}/{each['metadata']['name']}"] = _text(kind, each, self._place)
        return found


def _text(kind: str, found: dict[str, Any], place: str) -> str:
    """An object's, for comparison: of a status only what is the operator's."""
    metadata = found["metadata"]
    annotations = [name for name in metadata.get("annotations") or {} if "operator.ullage.dev" not in name]
    said = {key: value for key, value in found.items() if key not in ("metadata", "status", "apiVersion", "kind")}
    if kind in ("ContentRepository", "ReclamationRun"):
        said["status"] = found.get("status")
    if kind == "DaemonSet":
        said["spec"]["template"]["metadata"].pop("annotations")  # digests of names that are others
    owners = [each["kind"] for each in metadata.get("ownerReferences") or ()]
    said["metadata"] = {"labels": metadata.get("labels"), "annotations": sorted(annotations), "owners": owners}
    said["finalizers"] = metadata.get("finalizers")
    text = json.dumps(said, indent=1, sort_keys=True).replace(place, "PLACE").replace("\\n", "\n")
    for pattern, word in VARYING:
        text = pattern.sub(word, text)
    return text


def difference(expected: dict[str, str], found: dict[str, str]) -> str:
    """Empty if they are the same."""
    lines: list[str] = []
    for name in sorted({*expected, *found}):
        one, other = expected.get(name, ""), found.get(name, "")
        lines += difflib.unified_diff(
            one.splitlines(), other.splitlines(), f"{name} without", f"{name} with", lineterm=""
        )
    return "\n".join(lines)

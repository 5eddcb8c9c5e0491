"""Objects of the cluster: a repository and what belongs to it, and whether an object is what it shall be. Pure."""

import hashlib
import json
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from ullage.contract import (
    API_VERSION,
    REPOSITORY_LABEL,
    ClusterRecord,
    ContentRepository,
    ContentRepositorySpec,
    ContractError,
    RepositoryStatus,
    millis_of,
    parse,
    status_of,
    time_of,
)
from ullage_operator.settings import PodSettings

Object = dict[str, Any]

RBAC: Final = "rbac.authorization.k8s.io"


VERSIONS: Final = {
    API_VERSION: ("ContentRepository", "ContentRepositoryNode", "ReclamationRun", "ContentBackup", "ContentRestore"),
    "v1": (
        *("Namespace", "Node", "Pod", "Service", "ConfigMap", "Secret"),
        *("ServiceAccount", "PersistentVolumeClaim", "Event"),
    ),
    "apps/v1": ("DaemonSet", "Deployment", "StatefulSet"),
    "batch/v1": ("Job",),
    "discovery.k8s.io/v1": ("EndpointSlice",),
    "networking.k8s.io/v1": ("NetworkPolicy",),
    f"{RBAC}/v1": ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"),
    "scheduling.k8s.io/v1": ("PriorityClass",),
    "policy/v1": ("PodDisruptionBudget",),
    "sparkoperator.k8s.io/v1beta2": ("SparkApplication",),
    "cert-manager.io/v1": ("CertificateRequest",),
    "storage.k8s.io/v1": ("StorageClass",),
    "coordination.k8s.io/v1": ("Lease",),
}
"""The kinds that we know, by group and version."""

VERSION_OF: Final = {kind: version for version, kinds in VERSIONS.items() for kind in kinds}


def path_of(kind: str, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
    """Where one object is found, those of a namespace, or all of a kind."""
    version, word = VERSION_OF[kind], kind.lower()
    ends = {"y": "ies", "s": "ses"}
    plural = f"{word[:-1]}{ends[word[-1]]}" if word[-1] in ends else f"{word}s"
    place = ("namespaces", namespace) if namespace else ()
    parts = ("apis" if "/" in version else "api", version, *place, plural, name, subresource)
    return "/" + "/".join(part for part in parts if part)


DESIRED: Final = "ullage.dev/desired"
"""Annotation: a digest of what was applied, so that a field that is no longer wished for is noticed."""


def digest(value: Any, length: int = 32) -> str:
    """Of a text, or of what JSON can say: the same for the same."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def is_owned(found: Mapping[str, Any], uid: str) -> bool:
    """Whether what has this uid controls the object."""
    owners = found["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == uid and owner.get("controller") for owner in owners)


def has_labels(found: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether the object has each of these labels, with this value."""
    return labels.items() <= (found["metadata"].get("labels") or {}).items()


def covers(found: Mapping[str, Any] | None, desired: Object) -> bool:
    """Whether an object is already what it shall be: same digest, and nobody changed a field of ours by hand."""
    if found is None:
        return False
    metadata, wanted = found["metadata"], desired["metadata"]
    if (metadata.get("annotations") or {}).get(DESIRED) != wanted.get("annotations", {}).get(DESIRED):
        return False
    # Lists of the API server leave out kind and version of their items.
    return all(_within(value, found.get(key)) for key, value in desired.items() if key not in ("apiVersion", "kind"))


def _within(desired: Any, found: Any) -> bool:
    """Lists as a whole, objects field by field: what the API server added is none of our business."""
    if isinstance(desired, Mapping):
        if not isinstance(found, Mapping):
            return not desired and found is None
        return all(_within(value, found.get(key)) for key, value in desired.items())
    if isinstance(desired, list):
        if not desired and found is None:
            return True
        return (
            isinstance(found, list)
            and len(desired) == len(found)
            and all(_within(one, other) for one, other in zip(desired, found, strict=True))
        )
    return bool(desired == found) or (desired in ("", False, 0) and found is None)


CONTENT: Final = "operator.ullage.dev/content"
"""Finalizer of a ContentRepositoryNode: who deletes it by hand makes nobody forget that content lies on its node."""


def is_held(found: Mapping[str, Any]) -> bool:
    """Whether it has that finalizer."""
    return CONTENT in (found["metadata"].get("finalizers") or ())


PAUSED: Final = "ullage.dev/paused"
"""Annotation of a ContentRepository: "true" keeps the operator's hands off it."""

MANAGED: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "ullage-operator"
USER: Final = 10001
"""Of the agent's image."""

SPARK_USER: Final = 10002
"""Of the image for Spark: another one, or its pods could write into the folder of the agent's socket."""


POD_MAKERS: Final = ("DaemonSet", "StatefulSet")
"""Kinds of objects for which the cluster makes the agents' pods."""


def selector_of(labels: Mapping[str, str]) -> str:
    """What asks for the objects that have all of these labels."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def document(kind: str, metadata: Object, **rest: Any) -> Object:
    """An object as it is sent."""
    return {"apiVersion": VERSION_OF[kind], "kind": kind, "metadata": metadata, **rest}


def made(kind: str, metadata: Object, **rest: Any) -> Object:
    """The same with the digest of itself."""
    desired = document(kind, metadata, **rest)
    metadata.setdefault("annotations", {})[DESIRED] = digest(desired)
    return desired


def event_object(about: Object, event: tuple[str, str, str], now_millis: int) -> Object:
    """A Kubernetes Event: type, reason and message; `about`: names an object of its namespace."""
    kind, reason, message = event
    name = f"{about['name']}.{digest([about['uid'], reason, message, now_millis], 16)}"[-253:].lstrip("-.")
    said = {
        "involvedObject": about,
        "reason": reason,
        "message": message,
        "type": kind,
        "count": 1,
        "firstTimestamp": time_of(now_millis),
        "lastTimestamp": time_of(now_millis),
        "source": {"component": MANAGER},
        "reportingComponent": MANAGER,
    }
    return document("Event", {"name": name, "namespace": about["namespace"]}, **said)


def binding(kind: str, role: str, account: str, namespace: str) -> Object:
    """What a RoleBinding or ClusterRoleBinding says: this account has the role."""
    return {
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }


def confined(user: int = USER, capabilities: Sequence[str] = ()) -> Object:
    """What a container of ours may do: nothing that it does not need, and root only where it says so."""
    context: Object = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsUser": user,
        "capabilities": {"drop": ["ALL"], **({"add": [*capabilities]} if capabilities else {})},
    }
    return {**context, "runAsNonRoot": True} if user else context


TROUBLE_MAX: Final = 500
"""Characters that are kept of what a pod said last, or of why a status cannot be read: a status names several."""

Told = TypeVar("Told", bound=ClusterRecord)


def told_of(kind: type[Told], found: Mapping[str, Any]) -> tuple[Told, str]:
    """What the status of an object says, and in words why it cannot be read, as `status_of` has both."""
    status, problem = status_of(kind, found.get("status"))
    words = f"the status of {found['metadata']['name']} cannot be read: {problem}" if problem else ""
    return status, words[:TROUBLE_MAX]


def soonest(*times: int | None) -> int | None:
    """The first of these times; None if there is none."""
    return min((each for each in times if each is not None), default=None)


class RepositoryObject(msgspec.Struct, frozen=True, kw_only=True):
    """A ContentRepository as it is. `document` is None where `problem` says what is wrong with it."""

    namespace: str
    name: str
    uid: str
    generation: int
    created_millis: int
    document: ContentRepository | None
    problem: str = ""
    pause: str | None = None
    """What its annotation says; see PAUSED."""

    is_going: bool = False
    status: RepositoryStatus = RepositoryStatus()
    trouble: str = ""
    """Why its status cannot be read; see told_of."""

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "RepositoryObject":
        """From what the API server says."""
        metadata, (status, trouble) = found["metadata"], told_of(RepositoryStatus, found)
        document, problem = None, ""
        try:
            document = parse({key: found.get(key) or {} for key in ("apiVersion", "kind", "metadata", "spec")})
        except ContractError as error:
            problem = str(error)
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            generation=metadata.get("generation", 0),
            created_millis=millis_of(metadata["creationTimestamp"]),
            document=document,
            problem=problem,
            pause=(metadata.get("annotations") or {}).get(PAUSED),
            is_going="deletionTimestamp" in metadata,
            status=status,
            trouble=trouble,
        )

    @property
    def is_paused(self) -> bool:
        return self.pause == "true"

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name

    @property
    def spec(self) -> ContentRepositorySpec:
        """What is asked for; not to be asked of a document that could not be read."""
        assert self.document is not None
        return self.document.spec

    @property
    def root(self) -> str:
        """The directory of this repository on its nodes; empty where each node has a volume of its own."""
        if self.document is None or self.spec.storage.local_persistent_volume is not None:
            return ""
        # A directory for each repository: no name can lead out of it or into another's.
        return f"{normal(self.spec.storage.host_path.path)}/{self.namespace}/{self.name}"

    @property
    def labels(self) -> dict[str, str]:
        """Of everything that belongs to it."""
        return {MANAGED: MANAGER, "app.kubernetes.io/name": "ullage-agent", REPOSITORY_LABEL: self.name}

    @property
    def account(self) -> str:
        """Name of the agents' ServiceAccount; the admission policy knows them by its end."""
        return f"{self.name}-ullage-agent"

    @property
    def service(self) -> str:
        """Name of the headless Service: `<node>.<this>.<namespace>.svc` is the agent of a node."""
        return f"{self.name}-nodes"

    @property
    def tls_secret(self) -> str:
        """Name of the Secret with the agents' certificate."""
        return f"{self.name}-ullage-tls"

    @property
    def authority(self) -> str:
        """Name of the ConfigMap with the authority's certificate: for clients, and for Spark."""
        return f"{self.name}-ullage-ca"

    def node_name(self, node: str, infix: str = "") -> str:
        """Of an object that there is one of for each node: short enough for the names that are made of it."""
        return f"{self.name[:30].rstrip('-.')}-{infix}{digest(f'{self.name}/{node}', 12)}"

    @property
    def ports(self) -> list[Object]:
        """What an agent serves, as Services and EndpointSlices name it; port 0 means that it is not served."""
        service = self.spec.service
        named = {"http": service.http_port, "flight": service.flight_port, "metrics": service.metrics_port}
        return [{"name": name, "port": port, "protocol": "TCP"} for name, port in named.items() if port]

    @property
    def probed_ports(self) -> list[Object]:
        """What only the kubelet asks: no Service and no policy names it."""
        port = self.spec.service.health_port
        return [{"name": "health", "port": port, "protocol": "TCP"}] if port else []

    @property
    def reference(self) -> Object:
        """Names it in other objects."""
        return {"apiVersion": API_VERSION, "kind": "ContentRepository", "name": self.name, "uid": self.uid}

    def owned(self, kind: str, name: str, *, metadata: Mapping[str, Any] | None = None, **rest: Any) -> Object:
        """An object of its namespace that goes when it does. `metadata` adds to the usual."""
        owner = {**self.reference, "controller": True, "blockOwnerDeletion": True}
        place = {"name": name, "namespace": self.namespace, "ownerReferences": [owner]}
        return made(kind, {**place, "labels": self.labels, **(metadata or {})}, **rest)

    def owned_account(self, name: str, rules: Sequence[Object]) -> list[Object]:
        """A ServiceAccount, and the role of the same name that it has."""
        return [
            self.owned("ServiceAccount", name),
            self.owned("Role", name, rules=rules),
            self.owned("RoleBinding", name, **binding("Role", name, name, self.namespace)),
        ]


def normal(path: str) -> str:
    """A directory's one name: two slashes, a dot or a slash at the end make no other directory of it."""
    return posixpath.normpath(f"/{path.strip('/')}")


STEPS: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def rounded(size: int) -> str:
    """A size to three digits, so that a status does not change with every byte: `1.23Gi`."""
    number, step = float(size), 0
    while number >= 1000 and step < len(STEPS) - 1:
        number, step = number / 1024, step + 1
    if step == 0:
        return str(size)
    return f"{number:.3g}{STEPS[step]}"


def dressed(made: Object, pods: PodSettings, *, has_files: bool = False) -> Object:
    """The template of a pod with what whoever installed the operator gives to all of them. `has_files`: it reads and
    writes directories of nodes.
    """
    metadata, pod = dict(made.get("metadata") or {}), dict(made["spec"])
    for field, given in (("labels", pods.labels), ("annotations", pods.annotations)):
        if both := {**given, **metadata.get(field, {})}:
            metadata[field] = both
    if pods.image_pull_secrets:
        pod["imagePullSecrets"] = list(pods.image_pull_secrets)
    if has_files and pods.se_linux_options:
        pod["securityContext"] = {**pod["securityContext"], "seLinuxOptions": dict(pods.se_linux_options)}
    for field in ("initContainers", "containers"):
        if field in pod:
            pod[field] = [{**each, "imagePullPolicy": pods.image_pull_policy} for each in pod[field]]
    return {"metadata": metadata, "spec": pod}

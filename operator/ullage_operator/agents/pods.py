"""The pods of agents, and what makes them: a DaemonSet, or a StatefulSet for each node. Pure."""

import posixpath
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ullage.contract import NODE_LABEL, POLICIES, ContentRepositorySpec, TlsMode, dump, needs_no_restart
from ullage_operator.agents.claims import SET_LABEL, volumes_of
from ullage_operator.objects import USER, Object, RepositoryObject, confined, digest, dressed
from ullage_operator.observation import TEMPLATE
from ullage_operator.settings import DEFAULT_PODS, PodSettings

ROOT: Final = "/var/lib/ullage"
"""Where an agent finds its repository, wherever it lies on the node."""


CONFIGURATION: Final = "/etc/ullage/repository"
FILE: Final = "contentrepository.yaml"
SOCKETS: Final = "/run/ullage"
TLS: Final = "/etc/ullage/tls"
BUCKETS: Final = "/etc/ullage/buckets"
CREDENTIALS: Final = "credentials"
SECRET_KEYS: Final = (CREDENTIALS, "ca.crt")
"""The keys of a bucket's Secret that agents get, and the files that they become: one that has only one of them has only
that file. The kubelet brings what comes later, or is rotated.
"""

SEAL_SECONDS: Final = 120
"""What an agent may take to end: sessions, checkpoint, lock."""


REQUESTS: Final = {"cpu": "100m", "memory": "256Mi"}
"""Of an agent that is given none: with nothing asked for it would be the first that a node in need ends."""

HELPER_RESOURCES: Final = {
    "requests": {"cpu": "10m", "memory": "64Mi"},
    "limits": {"cpu": "1", "memory": "256Mi"},
}
"""Of what begins before an agent and cleans after it: with neither, a quota of the namespace refuses its pod."""

FLEET_FIELDS: Final = (
    *("nodeSelector", "tolerations", "affinity", "priorityClassName", "resources", "image"),
    *("deletionPolicy", "updateStrategy", "planning", "network"),
)
"""Of no concern to an agent: it does not see them change."""


def agent_document(repository: RepositoryObject, *, is_pending: bool = False) -> Object:
    """The ContentRepository as its agents read it: without what only a cluster obeys, and where it lies for them.

    `is_pending`: it is not known yet whether agents have the policy of compaction. One that starts with a policy that
    it lacks ends at once, so until then none is named, and nothing is compacted.
    """
    assert repository.document is not None
    document = dump(repository.document)
    for field in FLEET_FIELDS:
        document["spec"].pop(field, None)
    storage = document["spec"]["storage"]
    storage.pop("localPersistentVolume", None)
    storage["hostPath"] = {"path": ROOT}
    for container in storage["containers"]:
        # An agent that was made before the claim lacks the volume: what it wrote there would be hidden by it later.
        container["mounted"] |= container.pop("localPersistentVolume") is not None
    for field in ("maxConcurrentNodes", "blockers"):
        document["spec"]["maintenance"].pop(field, None)
    document["spec"]["replication"].pop("guard", None)
    for bucket in (*document["spec"]["service"]["backupBuckets"], document["spec"]["replication"]):
        if secret := bucket.pop("credentialsSecret", ""):
            bucket["credentialsFile"] = f"{BUCKETS}/{secret}/{CREDENTIALS}"
    # A secret that is mounted wherever somebody likes could lie over the program.
    document["spec"]["tls"]["directory"] = TLS
    if is_pending:
        document["spec"]["compaction"] |= {"policy": POLICIES[0], "enabled": False}
    document["metadata"] |= {"generation": repository.generation}
    return document


def restart_digest(document: Object) -> str:
    """Changes when agents must restart to take over what changed."""
    fixed = {path: value for path, value in leaves(document["spec"]) if not needs_no_restart(path)}
    return digest(fixed)


def leaves(value: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
    """Fields by their path; a list is one."""
    found: list[tuple[str, Any]] = []
    for name, below in value.items():
        found += leaves(below, f"{path}{name}.") if isinstance(below, Mapping) else [(f"{path}{name}", below)]
    return found


def template_digest(made: Object) -> str:
    """What the pods of a template carry, so that it is known which are of an older one."""
    return str(made["metadata"]["annotations"][TEMPLATE])


def daemon_set(repository: RepositoryObject, image: str, *, is_gated: bool, pods: PodSettings = DEFAULT_PODS) -> Object:
    """One pod a node. `is_gated`: pods change only when they are deleted."""
    strategy = repository.spec.update_strategy
    update: Object = {"type": "OnDelete" if is_gated else str(strategy.type)}
    if update["type"] == "RollingUpdate":
        # Never two pods of one repository on a node: the second would wait for the first one's lock.
        update["rollingUpdate"] = {"maxUnavailable": strategy.max_unavailable, "maxSurge": 0}
    selector = {"matchLabels": repository.labels}
    spec = {"selector": selector, "updateStrategy": update, "template": template(repository, image, pods=pods)}
    return repository.owned("DaemonSet", f"{repository.name}-ullage", spec=spec)


def stateful_set(repository: RepositoryObject, image: str, node: str, *, pods: PodSettings = DEFAULT_PODS) -> Object:
    """One replica pinned to a node, on claims of its own: a DaemonSet's pods would all have the same."""
    name = repository.node_name(node)
    own_labels = {**repository.labels, SET_LABEL: name}
    made_of = template(repository, image, node, pods=pods)
    made_of["metadata"]["labels"] |= own_labels
    spec = {
        "replicas": 1,
        "serviceName": repository.service,
        "selector": {"matchLabels": own_labels},
        "updateStrategy": {"type": str(repository.spec.update_strategy.type)},
        "template": made_of,
        # One pod: there is no order to keep, and with one a pod that never got ready would never be replaced.
        "podManagementPolicy": "Parallel",
    }
    made = repository.owned("StatefulSet", name, spec=spec)
    made["metadata"]["annotations"][NODE_LABEL] = node
    return made


def template(repository: RepositoryObject, image: str, node: str = "", *, pods: PodSettings = DEFAULT_PODS) -> Object:
    """From which pods are made: those of the DaemonSet, or the one of a node's StatefulSet."""
    restart = restart_digest(agent_document(repository))
    spec, affinity = repository.spec, dict(repository.spec.affinity)
    security: Object = {"seccompProfile": {"type": "RuntimeDefault"}}
    volumes: list[Object] = [{"name": "configuration", "configMap": {"name": f"{repository.name}-ullage"}}]
    if node:
        pinned = {"key": "metadata.name", "operator": "In", "values": [node]}
        required = {"nodeSelectorTerms": [{"matchFields": [pinned]}]}
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": required}
        volumes.append({"name": "sockets", "emptyDir": {}})
        volumes += [volume for volume, _ in volumes_of(repository, node)]
        # The kubelet gives these volumes to the group by itself; only directories of nodes need somebody who is root.
        starts: Object = {}
        security["fsGroup"], security["fsGroupChangePolicy"] = USER, "OnRootMismatch"
    else:
        volumes.append(directory_volume("sockets", f"{SOCKETS}/{repository.namespace}/{repository.name}"))
        volumes.append(directory_volume("repository", repository.root))
        starts = {"initContainers": [_owner(image)]}
    if spec.tls.mode.agent_makes_key:  # the agent makes its key itself; as long as the pod is, a reboot included
        volumes.append({"name": "tls", "emptyDir": {}})
    elif spec.tls.mode != TlsMode.NONE:
        volumes.append({"name": "tls", "secret": {"secretName": repository.tls_secret}})
    for name, secret in _bucket_secrets(spec):
        # By a name that follows from the repository's: whoever writes one must not get somebody else's Secret by it.
        # One that is not there keeps nobody from what the repository holds: backups wait for it.
        only = {"items": [{"key": key, "path": key} for key in SECRET_KEYS], "optional": True}
        volumes.append({"name": name, "secret": {"secretName": f"{repository.name}-ullage-bucket-{secret}", **only}})
    pod: Object = {
        "serviceAccountName": repository.account,
        "terminationGracePeriodSeconds": SEAL_SECONDS,
        "containers": [_container(repository, image, node, pods)],
        "volumes": [*volumes, *pods.volumes],
        "tolerations": [_said(each) for each in spec.tolerations],
        "nodeSelector": dict(spec.node_selector),
        "securityContext": security,
        **starts,
    }
    if affinity:
        pod["affinity"] = affinity
    if priority := spec.priority_class_name or pods.priority_class_name:
        pod["priorityClassName"] = priority
    made = dressed({"metadata": {"labels": repository.labels}, "spec": pod}, pods, has_files=True)
    made["metadata"].setdefault("annotations", {})[TEMPLATE] = digest([restart, made])
    return made


def directory_volume(name: str, path: str) -> Object:
    """A directory of the node, made by the kubelet if it is missing."""
    return {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}


def _said(settings: msgspec.Struct) -> Object:
    """What of the settings says anything, as a pod's field says it."""
    return {key: value for key, value in msgspec.to_builtins(settings).items() if value not in (None, "", {})}


def _container(repository: RepositoryObject, image: str, node: str, pods: PodSettings) -> Object:
    spec = repository.spec
    mounts: list[Object] = [
        {"name": "configuration", "mountPath": CONFIGURATION, "readOnly": True},
        {"name": "sockets", "mountPath": SOCKETS},
    ]
    if node:
        claimed = volumes_of(repository, node)
        mounts += [{"name": v["name"], "mountPath": posixpath.join(ROOT, path).rstrip("/")} for v, path in claimed]
    else:
        # A disk that the node mounts below the directory after the pod has begun is seen all the same.
        mounts.append({"name": "repository", "mountPath": ROOT, "mountPropagation": "HostToContainer"})
    if spec.tls.mode != TlsMode.NONE:
        mounts.append({"name": "tls", "mountPath": TLS, "readOnly": not spec.tls.mode.agent_makes_key})
    mounts += [
        {"name": name, "mountPath": f"{BUCKETS}/{secret}", "readOnly": True} for name, secret in _bucket_secrets(spec)
    ]
    where = _probed(spec)
    own = [
        {"name": "ULLAGE_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "ULLAGE_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
    ]
    taken = {each["name"] for each in own}
    return {
        "name": "agent",
        "image": spec.image or image,
        "command": ["ullage", "agent", "--config", f"{CONFIGURATION}/{FILE}"],
        "env": [*own, *(each for each in pods.env if each.get("name") not in taken)],
        "ports": [
            {"name": each["name"], "containerPort": each["port"], "protocol": each["protocol"]}
            for each in [*repository.ports, *repository.probed_ports]
        ],
        "volumeMounts": [*mounts, *pods.volume_mounts],
        "resources": _resources(spec),
        # A second, the default, is little on a node that is busy: a slow answer would take its content out of service.
        "readinessProbe": {"httpGet": {**where, "path": "/readyz"}, "periodSeconds": 10, "timeoutSeconds": 5},
        # Recovery may take a while: it must not be killed for it.
        "startupProbe": {"httpGet": dict(where), "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 360},
        "livenessProbe": {"httpGet": dict(where), "periodSeconds": 20, "timeoutSeconds": 5, "failureThreshold": 6},
        "securityContext": {**confined(), "runAsGroup": USER},
        # Why it ended is told in the repository's status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _bucket_secrets(spec: ContentRepositorySpec) -> list[tuple[str, str]]:
    """Volumes of the Secrets that buckets name, each once: a file that is rotated is seen without a restart."""
    named = (*(each.credentials_secret for each in spec.service.backup_buckets), spec.replication.credentials_secret)
    secrets = sorted({secret for secret in named if secret})
    return [(f"bucket-{number}", secret) for number, secret in enumerate(secrets)]


def _resources(spec: ContentRepositorySpec) -> Object:
    """As the repository says; what it neither requests nor limits is requested by default. A limit is a request."""
    said = spec.resources
    defaults = {name: amount for name, amount in REQUESTS.items() if name not in said.limits}
    return _said(msgspec.structs.replace(said, requests={**defaults, **said.requests}))


def _probed(spec: ContentRepositorySpec) -> Object:
    """Where probes ask: on the port that is theirs, which answers under any load, or else where everybody does."""
    if spec.service.health_port:
        return {"path": "/healthz", "port": "health", "scheme": "HTTP"}
    return {"path": "/healthz", "port": "http", "scheme": "HTTP" if spec.tls.mode == TlsMode.NONE else "HTTPS"}


def _owner(image: str) -> Object:
    """Hands the directories, which the kubelet makes as root, to the agent's user; the only thing done as root, and so
    by the operator's own image, whatever image the repository names.
    """
    return {
        "name": "own",
        "image": image,
        "command": ["chown", f"{USER}:{USER}", ROOT, SOCKETS],
        "volumeMounts": [{"name": "repository", "mountPath": ROOT}, {"name": "sockets", "mountPath": SOCKETS}],
        "resources": HELPER_RESOURCES,
        "securityContext": confined(0, ["CHOWN"]),
    }

"""The objects of one repository, as they shall be. Pure: the same wish gives the same bytes."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

import yaml

from ullage_agent.contract import AuthMode, ContentRepository, ContentRepositorySpec, TlsMode, dump, nodes_at_once
from ullage_agent.fleet import NODE_LABEL, REPOSITORY_LABEL, NodeSpec, object_name, plain
from ullage_operator.desired import Object, sealed
from ullage_operator.observe import TEMPLATE, Agent, Wish, root_of
from ullage_operator.rbac import AGENT_RULES, DELEGATOR

MANAGED: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "ullage-operator"

ROOT: Final = "/var/lib/ullage"
"""Where an agent finds its repository, wherever it lies on the node."""

CONFIGURATION: Final = "/etc/ullage/repository"
FILE: Final = "contentrepository.yaml"
SOCKETS: Final = "/run/ullage"
USER: Final = 10001
"""Of the agent's image."""

SEAL_SECONDS: Final = 120
"""What an agent may take to end: sessions, checkpoint, lock."""

ENDPOINTS_MAX: Final = 500
"""In one EndpointSlice; the API server takes a thousand."""

FLEET_FIELDS: Final = (
    *("nodeSelector", "tolerations", "affinity", "priorityClassName", "resources", "image"),
    *("deletionPolicy", "updateStrategy", "planning"),
)
"""Of no concern to an agent: it does not see them change."""

LIVE: Final = (
    *("archive", "claims", "compaction", "leases", "maintenance", "truncation"),
    *("flowFile.checkpointInterval", "flowFile.checkpointLogSize", "flowFile.queueDefaults", "flowFile.walMaxBytes"),
    "service.maxRequestBytes",
)
FIXED: Final = ("compaction.deletedRetention", "compaction.outputSize")
"""What an agent takes over without a restart, with exceptions; a test holds this against the agent's own list."""


def labels(wish: Wish) -> dict[str, str]:
    """Of everything that belongs to a repository."""
    name = wish.name if len(wish.name) <= 63 else hashlib.sha256(wish.name.encode()).hexdigest()[:32]
    return {MANAGED: MANAGER, "app.kubernetes.io/name": "ullage-agent", REPOSITORY_LABEL: name}


def account_name(wish: Wish) -> str:
    """Of the agents; the admission policy knows them by its end."""
    return f"{wish.name}-ullage-agent"


def service_name(wish: Wish) -> str:
    """Of the headless service: `<node>.<this>.<namespace>.svc` is the agent of a node."""
    return f"{wish.name}-nodes"


def tls_name(wish: Wish) -> str:
    """Of the secret with the agents' certificate."""
    assert wish.document is not None
    return f"{wish.name}-ullage-tls"


def authority_name(wish: Wish) -> str:
    """Of the ConfigMap with the authority's certificate: for clients, and for Spark."""
    return f"{wish.name}-ullage-ca"


def owned(wish: Wish, kind: str, api_version: str, name: str, **rest: Any) -> Object:
    """An object of the repository's namespace that goes when the repository does."""
    owner = {
        "apiVersion": "ullage.dev/v1alpha1",
        "kind": "ContentRepository",
        "name": wish.name,
        "uid": wish.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata = {"name": name, "namespace": wish.namespace, "labels": labels(wish), "ownerReferences": [owner]}
    return sealed({"apiVersion": api_version, "kind": kind, "metadata": metadata, **rest})


def agent_document(wish: Wish) -> Object:
    """The ContentRepository as its agents read it: without what only a cluster obeys, and where it lies for them."""
    assert wish.document is not None
    document = dump(wish.document)
    for field in FLEET_FIELDS:
        document["spec"].pop(field, None)
    document["spec"]["storage"].pop("localPersistentVolume", None)
    document["spec"]["storage"]["hostPath"] = {"path": ROOT}
    for field in ("maxConcurrentNodes", "blockers"):
        document["spec"]["maintenance"].pop(field, None)
    document["metadata"] |= {"generation": wish.generation}
    return document


def restart_digest(document: Object) -> str:
    """Changes when agents must restart to take over what changed."""
    fixed = {path: value for path, value in leaves(document["spec"]) if not is_live(path)}
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:32]


def leaves(value: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
    """Fields by their path; a list is one."""
    found: list[tuple[str, Any]] = []
    for name, below in value.items():
        found += leaves(below, f"{path}{name}.") if isinstance(below, Mapping) else [(f"{path}{name}", below)]
    return found


def is_live(path: str) -> bool:
    """Whether an agent takes over the field without a restart."""

    def within(fields: tuple[str, ...]) -> bool:
        return any(path == field or path.startswith(f"{field}.") for field in fields)

    return within(LIVE) and not within(FIXED)


def shared_objects(wish: Wish, image: str, *, is_gated: bool = False) -> list[Object]:
    """Everything that does not depend on which nodes there are. `is_gated`: pods change only when they are deleted."""
    assert wish.document is not None
    document = agent_document(wish)
    text = yaml.safe_dump(document, sort_keys=True)
    objects = [
        owned(wish, "ConfigMap", "v1", f"{wish.name}-ullage", data={FILE: text}),
        owned(wish, "ServiceAccount", "v1", account_name(wish)),
        owned(wish, "Role", "rbac.authorization.k8s.io/v1", account_name(wish), rules=AGENT_RULES),
        owned(wish, "RoleBinding", "rbac.authorization.k8s.io/v1", account_name(wish), **_binding(wish, "Role", "")),
        *_services(wish),
        _network_policy(wish),
    ]
    if wish.document.spec.storage.local_persistent_volume is None:
        objects.append(_daemon_set(wish, image, is_gated=is_gated))
    else:
        objects.append(_disruption_budget(wish))
    return objects


def delegation(wish: Wish) -> Object | None:
    """The agents' permission to ask who a client is; it has no namespace, so the operator deletes it itself."""
    assert wish.document is not None
    if wish.document.spec.auth.mode != AuthMode.KUBERNETES:
        return None
    return sealed(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": delegation_name(wish), "labels": labels(wish)},
            **_binding(wish, "ClusterRole", DELEGATOR),
        }
    )


def delegation_name(wish: Wish) -> str:
    """Of the ClusterRoleBinding."""
    return f"ullage:{wish.namespace}:{wish.name}"


def _binding(wish: Wish, kind: str, name: str) -> Object:
    return {
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": kind,
            "name": name or account_name(wish),
        },
        "subjects": [{"kind": "ServiceAccount", "name": account_name(wish), "namespace": wish.namespace}],
    }


def _ports(spec: ContentRepositorySpec) -> list[tuple[str, int]]:
    named = (("http", spec.service.http_port), ("flight", spec.service.flight_port))
    return [(name, port) for name, port in (*named, ("metrics", spec.service.metrics_port)) if port]


def _services(wish: Wish) -> list[Object]:
    """An address for each node, and one that leads to the agent of the node where the client runs."""
    assert wish.document is not None
    ports = [
        {"name": name, "port": port, "protocol": "TCP", "targetPort": port} for name, port in _ports(wish.document.spec)
    ]
    local = {
        "selector": labels(wish),
        "ports": ports,
        "internalTrafficPolicy": "Local",
        "type": "ClusterIP",
    }
    headless = {"clusterIP": "None", "ports": ports, "type": "ClusterIP"}
    return [
        owned(wish, "Service", "v1", f"{wish.name}-local", spec=local),
        owned(wish, "Service", "v1", service_name(wish), spec=headless),
    ]


def endpoint_slices(wish: Wish, agents: Mapping[str, Agent]) -> list[Object]:
    """The addresses of the headless service. A DaemonSet gives its pods no names, so each gets its node's here."""
    assert wish.document is not None
    ports = [{"name": name, "port": port, "protocol": "TCP"} for name, port in _ports(wish.document.spec)]
    known = [agent for _, agent in sorted(agents.items()) if agent.address]
    slices = []
    for version, address_type in (("4", "IPv4"), ("6", "IPv6")):
        family = [agent for agent in known if (":" in agent.address) == (version == "6")]
        for first in range(0, len(family), ENDPOINTS_MAX):
            endpoints = [
                {
                    "addresses": [agent.address],
                    "hostname": host_label(agent.node),
                    "nodeName": agent.node,
                    "conditions": {"ready": agent.is_ready, "serving": agent.is_ready, "terminating": False},
                }
                for agent in family[first : first + ENDPOINTS_MAX]
            ]
            name = f"{service_name(wish)}-v{version}-{first // ENDPOINTS_MAX}"
            made = owned(wish, "EndpointSlice", "discovery.k8s.io/v1", name)
            made["metadata"]["labels"] |= {
                "kubernetes.io/service-name": service_name(wish),
                "endpointslice.kubernetes.io/managed-by": MANAGER,
            }
            del made["metadata"]["annotations"]
            slices.append(sealed({**made, "addressType": address_type, "ports": ports, "endpoints": endpoints}))
    return slices


def host_label(node: str) -> str:
    """A node's name as one label of DNS: dots would be labels of their own."""
    label = node.replace(".", "-")
    if len(label) <= 63 and "." not in node:
        return label
    return f"{label[:50].rstrip('-')}-{hashlib.sha256(node.encode()).hexdigest()[:12]}"


def certificate_names(wish: Wish) -> list[str]:
    """What clients may call an agent: all that a pod's resolver completes; a star has two labels behind it at least."""
    names = [f"{wish.name}-local"]
    for service in (f"*.{service_name(wish)}", f"{wish.name}-local"):
        host = f"{service}.{wish.namespace}"
        names += [host, f"{host}.svc", f"{host}.svc.cluster.local"]
    return [*names, "localhost"]


def _network_policy(wish: Wish) -> Object:
    """In: the ports that are served, from anywhere; who may do what is asked for there. Out: anything."""
    assert wish.document is not None
    ports = [{"port": port, "protocol": "TCP"} for _, port in _ports(wish.document.spec)]
    spec = {
        "podSelector": {"matchLabels": labels(wish)},
        "policyTypes": ["Ingress"],
        "ingress": [{"ports": ports}],
    }
    return owned(wish, "NetworkPolicy", "networking.k8s.io/v1", f"{wish.name}-ullage", spec=spec)


def _disruption_budget(wish: Wish) -> Object:
    """Drains take one agent at a time. Those of a DaemonSet need no budget: drains leave them alone."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": labels(wish)}}
    return owned(wish, "PodDisruptionBudget", "policy/v1", f"{wish.name}-ullage", spec=spec)


def template(wish: Wish, image: str) -> Object:
    """From which the DaemonSet's pods are made."""
    assert wish.document is not None
    directory = {"path": root_of(wish.document), "type": "DirectoryOrCreate"}
    volume = {"name": "repository", "hostPath": directory}
    return _template(wish, image, volume, wish.document.spec.affinity)


def template_digest(made: Object) -> str:
    """What the pods of a template carry, so that it is known which are of an older one."""
    return str(made["metadata"]["annotations"][TEMPLATE])


def _daemon_set(wish: Wish, image: str, *, is_gated: bool) -> Object:
    assert wish.document is not None
    strategy = wish.document.spec.update_strategy
    update: Object = {"type": "OnDelete" if is_gated else str(strategy.type)}
    if update["type"] == "RollingUpdate":
        # Never two pods of one repository on a node: the second would wait for the first one's lock.
        update["rollingUpdate"] = {"maxUnavailable": strategy.max_unavailable, "maxSurge": 0}
    spec = {
        "selector": {"matchLabels": labels(wish)},
        "updateStrategy": update,
        "template": template(wish, image),
    }
    return owned(wish, "DaemonSet", "apps/v1", f"{wish.name}-ullage", spec=spec)


def stateful_set(wish: Wish, image: str, node: str) -> Object:
    """One replica pinned to a node, with a claim that outlives it. A DaemonSet has no claim templates."""
    assert wish.document is not None
    local = wish.document.spec.storage.local_persistent_volume
    assert local is not None
    pinned = {"key": "metadata.name", "operator": "In", "values": [node]}
    affinity = {
        **wish.document.spec.affinity,
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [pinned]}]}
        },
    }
    name = f"{wish.name[:30].rstrip('-.')}-{hashlib.sha256(f'{wish.name}/{node}'.encode()).hexdigest()[:12]}"
    pods = _template(wish, image, None, affinity)
    pods["metadata"]["labels"] = {**labels(wish), "ullage.dev/set": name}
    claim = {
        "metadata": {"name": "repository", "labels": labels(wish)},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": local.storage_class_name,
            "resources": {"requests": {"storage": str(local.size)}},
        },
    }
    spec = {
        "replicas": 1,
        "serviceName": service_name(wish),
        "selector": {"matchLabels": {**labels(wish), "ullage.dev/set": name}},
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
        "updateStrategy": {"type": str(wish.document.spec.update_strategy.type)},
        "template": pods,
        # One pod: there is no order to keep, and with one a pod that never got ready would never be replaced.
        "podManagementPolicy": "Parallel",
        "volumeClaimTemplates": [claim],
    }
    made = owned(wish, "StatefulSet", "apps/v1", name, spec=spec)
    made["metadata"]["annotations"][NODE_LABEL] = node
    return made


def _template(wish: Wish, image: str, volume: Object | None, affinity: Mapping[str, Any]) -> Object:
    assert wish.document is not None
    restart = restart_digest(agent_document(wish))
    spec = wish.document.spec
    volumes: list[Object] = [
        {"name": "configuration", "configMap": {"name": f"{wish.name}-ullage"}},
        {
            "name": "sockets",
            "hostPath": {"path": f"{SOCKETS}/{wish.namespace}/{wish.name}", "type": "DirectoryOrCreate"},
        },
    ]
    if volume is not None:
        volumes.append(volume)
    else:
        volumes[1] = {"name": "sockets", "emptyDir": {}}
    if spec.tls.mode != TlsMode.NONE:
        volumes.append({"name": "tls", "secret": {"secretName": tls_name(wish)}})
    pod: Object = {
        "serviceAccountName": account_name(wish),
        "terminationGracePeriodSeconds": SEAL_SECONDS,
        "initContainers": [_owner(wish, image)],
        "containers": [_container(wish, image)],
        "volumes": volumes,
        "tolerations": [_toleration(each) for each in spec.tolerations],
        "nodeSelector": dict(spec.node_selector),
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
    }
    if affinity:
        pod["affinity"] = dict(affinity)
    if spec.priority_class_name:
        pod["priorityClassName"] = spec.priority_class_name
    digest = hashlib.sha256(json.dumps([restart, pod], sort_keys=True).encode()).hexdigest()[:32]
    return {"metadata": {"labels": labels(wish), "annotations": {TEMPLATE: digest}}, "spec": pod}


def _toleration(toleration: Any) -> Object:
    made = {"operator": str(toleration.operator), "key": toleration.key, "value": toleration.value}
    made |= {"effect": None if toleration.effect is None else str(toleration.effect)}
    made |= {"tolerationSeconds": toleration.toleration_seconds}
    return {key: value for key, value in made.items() if value not in (None, "")}


def _container(wish: Wish, image: str) -> Object:
    assert wish.document is not None
    spec = wish.document.spec
    scheme = "HTTP" if spec.tls.mode == TlsMode.NONE else "HTTPS"
    mounts: list[Object] = [
        {"name": "configuration", "mountPath": CONFIGURATION, "readOnly": True},
        {"name": "repository", "mountPath": ROOT, "mountPropagation": "HostToContainer"},
        {"name": "sockets", "mountPath": SOCKETS},
    ]
    if spec.tls.mode != TlsMode.NONE:
        mounts.append({"name": "tls", "mountPath": spec.tls.directory, "readOnly": True})
    if spec.storage.local_persistent_volume is not None:
        del mounts[1]["mountPropagation"]
    where = {"path": "/healthz", "port": "http", "scheme": scheme}
    container: Object = {
        "name": "agent",
        "image": spec.image or image,
        "command": ["ullage", "agent", "--config", f"{CONFIGURATION}/{FILE}"],
        "env": [
            {"name": "ULLAGE_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "ULLAGE_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        ],
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in _ports(spec)],
        "volumeMounts": mounts,
        "resources": {
            key: dict(value)
            for key, value in (("requests", spec.resources.requests), ("limits", spec.resources.limits))
            if value
        },
        # A second, the default, is little on a node that is busy: a slow answer would take its content out of service.
        "readinessProbe": {"httpGet": {**where, "path": "/readyz"}, "periodSeconds": 10, "timeoutSeconds": 5},
        # Recovery may take a while: it must not be killed for it.
        "startupProbe": {"httpGet": dict(where), "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 360},
        "livenessProbe": {"httpGet": dict(where), "periodSeconds": 20, "timeoutSeconds": 5, "failureThreshold": 6},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return container


def _owner(wish: Wish, image: str) -> Object:
    """Hands the directories, which the kubelet makes as root, to the agent's user; the only thing done as root."""
    assert wish.document is not None
    return {
        "name": "own",
        "image": wish.document.spec.image or image,
        "command": ["chown", f"{USER}:{USER}", ROOT, SOCKETS],
        "volumeMounts": [{"name": "repository", "mountPath": ROOT}, {"name": "sockets", "mountPath": SOCKETS}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsUser": 0,
            "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]},
        },
    }


def node_object(wish: Wish, spec: NodeSpec) -> Object:
    """The ContentRepositoryNode of a node. It has no owner: with policy Retain it stays as long as its data."""
    name = object_name(wish.name, spec.node_name)
    wanted = {key: value for key, value in plain(spec).items() if value is not None}
    if wanted.get("ticket"):
        wanted["ticket"] = {key: value for key, value in wanted["ticket"].items() if value is not None}
    metadata = {"name": name, "namespace": wish.namespace, "labels": labels(wish)}
    return {"apiVersion": "ullage.dev/v1alpha1", "kind": "ContentRepositoryNode", "metadata": metadata, "spec": wanted}


def cleaning_job(wish: Wish, image: str, node: str) -> Object:
    """Empties the repository's directory of one node, where policy Delete asks for it."""
    assert wish.document is not None
    document: ContentRepository = wish.document
    container = {
        "name": "clean",
        "image": document.spec.image or image,
        "command": ["find", ROOT, "-mindepth", "1", "-delete"],
        "volumeMounts": [{"name": "repository", "mountPath": ROOT}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsUser": 0,
            "capabilities": {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]},
        },
    }
    pod = {
        "nodeName": node,
        "restartPolicy": "Never",
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "automountServiceAccountToken": False,
        "volumes": [{"name": "repository", "hostPath": {"path": root_of(document), "type": "DirectoryOrCreate"}}],
    }
    spec = {"backoffLimit": 6, "ttlSecondsAfterFinished": 600, "template": {"spec": pod}}
    digest = hashlib.sha256(f"{wish.name}/{node}".encode()).hexdigest()[:12]
    return owned(wish, "Job", "batch/v1", f"{wish.name[:30].rstrip('-.')}-clean-{digest}", spec=spec)


def unavailable_max(wish: Wish, nodes: int) -> int:
    """How many agents may be away at once during a roll."""
    assert wish.document is not None
    strategy = wish.document.spec.update_strategy
    return 0 if strategy.type == "OnDelete" else nodes_at_once(strategy.max_unavailable, nodes)


def certificate(wish: Wish) -> Object:
    """What cert-manager is asked for, by the issuer of the same name as the repository's secret."""
    issuer = {"name": f"{wish.name}-ullage", "kind": "Issuer"}
    spec = {"secretName": tls_name(wish), "dnsNames": certificate_names(wish), "issuerRef": issuer}
    return owned(wish, "Certificate", "cert-manager.io/v1", f"{wish.name}-ullage", spec=spec)

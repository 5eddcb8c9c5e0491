"""The objects of one repository, as they shall be. Pure: the same repository gives the same bytes."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import yaml

from ullage.contract import AuthMode, NetworkPeer, NodeSpec, TlsMode, document_of, object_name
from ullage_operator.agents.claims import claim_objects
from ullage_operator.agents.guards import guard_objects
from ullage_operator.agents.pods import (
    FILE,
    HELPER_RESOURCES,
    ROOT,
    agent_document,
    daemon_set,
    directory_volume,
)
from ullage_operator.agents.rollout import stateful_sets
from ullage_operator.node.draining import guarded
from ullage_operator.objects import (
    CONTENT,
    MANAGED,
    MANAGER,
    POD_MAKERS,
    USER,
    Object,
    RepositoryObject,
    binding,
    confined,
    digest,
    document,
    dressed,
    made,
)
from ullage_operator.observation import AgentPod, NodeObject, Observation
from ullage_operator.planning.build import account_objects, run_object
from ullage_operator.rbac import AGENT_RULES, DELEGATOR
from ullage_operator.repository.decide import Decision
from ullage_operator.repository.signing import signing_objects
from ullage_operator.repository.trust import authority_objects, host_label, next_trust_millis
from ullage_operator.settings import DEFAULT_PODS, OperatorSettings, PodSettings

ENDPOINTS_MAX: Final = 500
"""In one EndpointSlice; the API server takes a thousand."""


OBSOLESCENT: Final = (
    *POD_MAKERS,
    *("EndpointSlice", "PodDisruptionBudget"),
    *("RoleBinding", "Role", "ServiceAccount"),
)
"""Kinds of which no object is kept that is not desired any more."""


class Desired(msgspec.Struct, frozen=True, kw_only=True):
    """The objects that shall be there, and the kinds of which all others go. `claims`: of local volumes, of which none
    ever goes. `certificates`: of the agents, as PEM, where the operator signs them. `next_millis`: when time alone
    changes them, None: never. `planning`: the run that shall begin, None for none.
    """

    objects: list[Object]
    claims: tuple[Object, ...] = ()
    obsolescent: tuple[str, ...] = OBSOLESCENT
    certificates: tuple[str, ...] = ()
    next_millis: int | None = None
    planning: Object | None = None


def desired(seen: Observation, decision: Decision, settings: OperatorSettings) -> Desired:
    """Everything that belongs to a repository that was accepted, its nodes' objects aside."""
    repository, image = seen.repository, settings.agent_image
    spec = repository.spec
    objects = shared_objects(
        repository,
        image,
        is_gated=decision.rollout.is_gated,
        is_pending=decision.is_pending,
        pods=settings.pods,
    )
    objects += endpoint_slices(repository, seen.agents, repository.ports)
    if spec.storage.local_persistent_volume is not None:
        objects += stateful_sets(seen, tuple(decision.nodes), decision.rollout, settings)
    objects += guard_objects(repository, image, guarded(seen, decision.nodes), pods=settings.pods)
    if spec.planning.schedule:
        objects += account_objects(repository)
    if spec.auth.mode == AuthMode.KUBERNETES and not settings.namespaces:
        objects.append(delegation(repository))
    certificates = tuple(spec.certificate for spec in decision.nodes.values() if spec.certificate is not None)
    if spec.tls.mode == TlsMode.OPERATOR:
        objects += authority_objects(seen, settings.namespace)
    elif spec.tls.mode == TlsMode.CERT_MANAGER:
        objects += signing_objects(seen)
    return Desired(
        objects=objects,
        claims=tuple(claim_objects(seen, decision.nodes)),
        certificates=certificates,
        next_millis=next_trust_millis(seen, certificates) if spec.tls.mode.agent_makes_key else None,
        planning=_planning_run(seen, decision, settings),
    )


def addresses(seen: Observation, service: Object | None) -> Desired:
    """All that is written for a repository that is left alone: where its agents are. Pods come and go all the same, and
    an address that is nobody's any more may be somebody else's soon. `service`: its headless one as it is, because the
    agents listen where they did when it was written, whatever the spec says by now; None: it was never started.
    """
    ports = () if service is None else service["spec"].get("ports") or ()
    listed = [{key: port[key] for key in ("name", "port", "protocol")} for port in ports]
    objects = endpoint_slices(seen.repository, seen.agents, listed) if listed else []
    return Desired(objects=objects, obsolescent=("EndpointSlice",))


def _planning_run(seen: Observation, decision: Decision, settings: OperatorSettings) -> Object | None:
    begin = decision.planning.begin
    if begin is None or seen.planning is None:
        return None
    return run_object(
        seen.repository,
        settings.spark_image,
        begin,
        is_application=seen.planning.has_spark_applications,
        # Where others sign, whoever lets them do so publishes whom to trust as well.
        has_authority=seen.repository.spec.tls.mode == TlsMode.OPERATOR or seen.planning.has_authority,
        pods=settings.pods,
    )


def shared_objects(
    repository: RepositoryObject,
    image: str,
    *,
    is_gated: bool = False,
    is_pending: bool = False,
    pods: PodSettings = DEFAULT_PODS,
) -> list[Object]:
    """Everything that does not depend on which nodes there are. `is_gated`: pods change only when they are deleted;
    `is_pending`: agents have yet to say whether they have what is asked for.
    """
    text = yaml.safe_dump(agent_document(repository, is_pending=is_pending), sort_keys=True)
    objects = [
        repository.owned("ConfigMap", f"{repository.name}-ullage", data={FILE: text}),
        *repository.owned_account(repository.account, AGENT_RULES),
        *_services(repository),
        _network_policy(repository),
    ]
    if repository.spec.storage.local_persistent_volume is None:
        objects.append(daemon_set(repository, image, is_gated=is_gated, pods=pods))
    else:
        objects.append(_disruption_budget(repository))
    return objects


def delegation(repository: RepositoryObject) -> Object:
    """The agents' permission to ask who a client is; it has no namespace, so the operator deletes it itself."""
    metadata = {"name": delegation_name(repository), "labels": repository.labels}
    given = binding("ClusterRole", DELEGATOR, repository.account, repository.namespace)
    return made("ClusterRoleBinding", metadata, **given)


def delegation_name(repository: RepositoryObject) -> str:
    """Of the ClusterRoleBinding."""
    return f"ullage:{repository.namespace}:{repository.name}"


def _services(repository: RepositoryObject) -> list[Object]:
    """An address for each node, and one that leads to the agent of the node where the client runs."""
    served = [{**each, "targetPort": each["port"]} for each in repository.ports]
    common = {"ports": served, "type": "ClusterIP"}
    local = {**common, "selector": repository.labels, "internalTrafficPolicy": "Local"}
    return [
        repository.owned("Service", f"{repository.name}-local", spec=local),
        repository.owned("Service", repository.service, spec={**common, "clusterIP": "None"}),
    ]


def endpoint_slices(
    repository: RepositoryObject, agents: Mapping[str, AgentPod], ports: Sequence[Object]
) -> list[Object]:
    """The addresses of the headless service. A DaemonSet gives its pods no names, so each gets its node's here."""
    own = {
        "kubernetes.io/service-name": repository.service,
        "endpointslice.kubernetes.io/managed-by": MANAGER,
    }
    metadata = {"labels": repository.labels | own}
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
            name = f"{repository.service}-v{version}-{first // ENDPOINTS_MAX}"
            rest = {"addressType": address_type, "ports": [*ports], "endpoints": endpoints}
            slices.append(repository.owned("EndpointSlice", name, metadata=metadata, **rest))
    return slices


def _network_policy(repository: RepositoryObject) -> Object:
    """In: who is named, to the ports that are theirs; who may do what is asked for there. Out: anything."""
    network = repository.spec.network
    clients = [_peer(each) for each in network.clients or (NetworkPeer(),)]
    scrapers = [_peer(each) for each in network.scrapers]
    ports = {each["name"]: {"port": each["port"], "protocol": each["protocol"]} for each in repository.ports}
    ingress: list[Object] = [{"from": clients, "ports": list(ports.values())}]
    if scrapers and "metrics" in ports:
        ingress.append({"from": scrapers, "ports": [ports["metrics"]]})
    spec = {"podSelector": {"matchLabels": repository.labels}, "policyTypes": ["Ingress"], "ingress": ingress}
    return repository.owned("NetworkPolicy", f"{repository.name}-ullage", spec=spec)


def _peer(peer: NetworkPeer) -> Object:
    """As a policy has it: without a namespace it means the policy's own."""
    namespaces, pods = peer.namespace_selector, peer.pod_selector
    named = {} if namespaces is None else {"namespaceSelector": {"matchLabels": dict(namespaces.match_labels)}}
    return {**named, "podSelector": {"matchLabels": {} if pods is None else dict(pods.match_labels)}}


def _disruption_budget(repository: RepositoryObject) -> Object:
    """Drains take one agent at a time. Those of a DaemonSet need no budget: drains leave them alone."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": repository.labels}}
    return repository.owned("PodDisruptionBudget", f"{repository.name}-ullage", spec=spec)


def node_object(repository: RepositoryObject, spec: NodeSpec, over: NodeObject | None = None) -> Object:
    """The ContentRepositoryNode of a node. It has no owner: with policy Retain it stays as long as its data.

    `over`: the one on which it was decided, and over which it may be written. What is written late, or by an operator
    that was replaced meanwhile, would bring back a ticket that was taken back, or take away one that was given since.
    To take one back is never wrong, and must not wait until we have heard the agent's last heartbeat.
    """
    name = object_name(repository.name, spec.node_name)
    metadata: Object = {"name": name, "namespace": repository.namespace, "labels": repository.labels}
    if over is None:
        metadata["finalizers"] = [CONTENT]
    else:
        if CONTENT not in over.finalizers and not over.is_going:  # then none may be added
            metadata["finalizers"] = [*over.finalizers, CONTENT]
        metadata["uid"] = over.uid
        metadata["labels"] = {**over.labels, **repository.labels}
        if spec.ticket is not None or over.spec.ticket is None:
            metadata["resourceVersion"] = over.version
    return document("ContentRepositoryNode", metadata, spec=document_of(spec))


def cleaning_labels(repository: RepositoryObject) -> dict[str, str]:
    """Of the jobs that empty its directories where it is not: no other's, of whatever namespace and name."""
    return {MANAGED: MANAGER, "ullage.dev/emptied": repository.uid}


def cleaning_job(
    repository: RepositoryObject, image: str, node: str, *, pods: PodSettings = DEFAULT_PODS, place: str = ""
) -> Object:
    """Empties the repository's directory of one node, where policy Delete asks for it: as the agent's user, who owns
    all that is in there, so that whatever else it came upon would be left alone. `place`: the namespace, if it is not
    the repository's own; there it has no owner, since owners are of the same namespace.
    """
    container = {
        "name": "clean",
        "image": image,
        "command": ["python3", "-m", "ullage_agent.node.cleaning", ROOT],
        "volumeMounts": [{"name": "repository", "mountPath": ROOT}],
        "resources": HELPER_RESOURCES,
        "securityContext": {**confined(), "runAsGroup": USER},
    }
    pod = {
        "nodeName": node,
        "restartPolicy": "Never",
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "automountServiceAccountToken": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [directory_volume("repository", repository.root)],
    }
    spec = {"backoffLimit": 6, "ttlSecondsAfterFinished": 600, "template": dressed({"spec": pod}, pods, has_files=True)}
    if place in ("", repository.namespace):
        return repository.owned("Job", repository.node_name(node, "clean-"), spec=spec)
    name = f"clean-{digest(f'{repository.uid}/{node}')}"
    about = {"annotations": {"ullage.dev/repository": "/".join(repository.key)}}
    return made("Job", {"name": name, "namespace": place, "labels": cleaning_labels(repository), **about}, spec=spec)

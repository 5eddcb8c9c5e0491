"""Who signs for the agents of a repository, and whom its clients should trust: names, secrets and certificates. Pure.

    agent       makes a key ── asks in its node object's status ───────── serves with it
    operator                        takes the key, signs it for the node's names, writes it into the node object's spec

The authority's key is in a secret beside the operator: who may read secrets where repositories are gets none.
"""

import base64
from datetime import UTC, datetime

import msgspec
import structlog

from ullage.contract import TlsMode
from ullage_operator.authority import KEYS, CertificateAuthority
from ullage_operator.certificates import next_rotation, readable, renewed, spent_at
from ullage_operator.objects import MANAGED, MANAGER, Object, RepositoryObject, digest, made
from ullage_operator.observation import NodeObject, Observation
from ullage_operator.repository.signing import ASK_MILLIS, signing
from ullage_operator.settings import CLUSTER_DOMAIN


def authority_secret_name(repository: RepositoryObject) -> str:
    """Of the secret with the authority's key, in the operator's own namespace."""
    return f"ullage-authority-{digest('/'.join(repository.key))}"


def authority_of(secret: Object | None) -> CertificateAuthority:
    """What is kept in the secret; an empty one if there is none."""
    data = (secret or {}).get("data") or {}
    return CertificateAuthority(**{KEYS[key]: base64.b64decode(data[key]).decode() for key in KEYS if key in data})


def authority_objects(seen: Observation, namespace: str) -> list[Object]:
    """The secret, in the operator's namespace, and the ConfigMap for clients."""
    repository, kept = seen.repository, seen.authority
    data = {key: base64.b64encode(getattr(kept, field).encode()).decode() for key, field in KEYS.items()}
    metadata = {
        "name": authority_secret_name(repository),
        "namespace": namespace,
        "labels": {MANAGED: MANAGER},
        "annotations": {"ullage.dev/repository": "/".join(repository.key)},
    }
    published = repository.owned("ConfigMap", repository.authority, data={"ca.crt": kept.bundle})
    return [made("Secret", metadata, type="Opaque", data=data), published]


def certificate_names(repository: RepositoryObject, label: str, cluster_domain: str = CLUSTER_DOMAIN) -> list[str]:
    """What clients may call the agent of a node, whose label in DNS this is: all that a pod's resolver completes. A key
    that was stolen from one node stands for no other, but for the name that leads each client to its own node's agent.
    """
    names = [f"{repository.name}-local"]
    for service in (f"{label}.{repository.service}", f"{repository.name}-local"):
        host = f"{service}.{repository.namespace}"
        names += [host, f"{host}.svc", f"{host}.svc.{cluster_domain}"]
    return [*names, "localhost"]


def host_label(node: str) -> str:
    """A node's name as one label of DNS: dots would be labels of their own."""
    label = node.replace(".", "-")
    if len(label) <= 63 and "." not in node:
        return label
    return f"{label[:50].rstrip('-')}-{digest(node, 12)}"


def trusted(seen: Observation, cluster_domain: str = CLUSTER_DOMAIN) -> Observation:
    """The same with the certificates that agents shall have: signed anew where it is time."""
    mode = TlsMode.NONE if seen.repository.document is None else seen.repository.spec.tls.mode
    if mode == TlsMode.CERT_MANAGER:
        names = {n: tuple(certificate_names(seen.repository, host_label(n), cluster_domain)) for n in seen.objects}
        said = signing(seen, names)
        return msgspec.structs.replace(
            seen,
            certificates=said.certificates,
            certificate_names=names,
            signing_asked=said.asked,
            refused_certificates=said.refused,
        )
    if mode != TlsMode.OPERATOR:
        return seen
    found = {node: _certificate(seen, each, cluster_domain) for node, each in seen.objects.items()}
    return msgspec.structs.replace(seen, certificates={node: pem for node, pem in found.items() if pem})


def _certificate(seen: Observation, found: NodeObject, cluster_domain: str) -> str:
    """Of a node's agent; empty if it has asked for none."""
    before, request = readable(found.spec.certificate), found.status.certificate_request
    if not request:
        return ""
    repository, node = seen.repository, found.spec.node_name
    now = datetime.fromtimestamp(seen.now_millis / 1000, UTC)
    hosts = certificate_names(repository, host_label(node), cluster_domain)
    name = f"{repository.namespace}/{repository.name} {node}"
    try:
        return renewed(seen.authority, before, request, now, name, hosts)
    except ValueError as error:  # whoever asks like that gets nothing, and stops nobody else
        structlog.get_logger("trust").warning("no certificate", node=node, problem=str(error))
        return before


def next_trust_millis(seen: Observation, certificates: tuple[str, ...]) -> int | None:
    """When time alone changes the authority, or one of the certificates."""
    if seen.repository.spec.tls.mode == TlsMode.CERT_MANAGER:
        if seen.signing_asked:
            return seen.now_millis + ASK_MILLIS
        ends = [int(spent_at(each).timestamp() * 1000) for each in certificates]
        return min((each for each in ends if each > seen.now_millis), default=None)
    soonest = min([next_rotation(seen.authority), *map(spent_at, certificates)])
    return int(soonest.timestamp() * 1000)

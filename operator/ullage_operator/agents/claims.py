"""The claims of agents that lie on local PersistentVolumes: one a node for the root, and one for each container that
has a volume of its own. Pure.

They are the operator's own objects, and no templates of a StatefulSet: those can be neither changed nor added to. They
have no owner, so that they outlive the repository.

    asked for more, class allows it      the claim asks for more; the storage and then the kubelet enlarge the volume
    asked for more, class does not       the claim stays as it is, and condition Provisioned says so
    no volume yet                        the claim stays as it is: until it is bound, nothing of it can be changed
    its volume is gone                   the claim stays as it is, in case the volume comes back; a release gives it up
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from ullage.contract import NODE_LABEL, Quantity
from ullage_operator.objects import Object, RepositoryObject, has_labels, made
from ullage_operator.observation import Observation

CLAIM: Final = "PersistentVolumeClaim"

SET_LABEL: Final = "ullage.dev/set"
"""Label of what belongs to the agent of one node: the name of its StatefulSet."""

FAILURES: Final = ("ControllerResizeError", "NodeResizeError")
"""Conditions of a claim that could not be enlarged, in the words of the storage or of the kubelet."""


class WantedClaim(NamedTuple):
    """One claim of a node, as the spec asks for it. `sub_path`: where it is mounted below the root."""

    name: str
    storage_class: str
    size: Quantity
    sub_path: str = ""


class Standing(NamedTuple):
    """How a claim stands: a reason of condition Provisioned, and why in words."""

    reason: str
    words: str = ""


AS_ASKED: Final = Standing("AsAsked")


def wanted_claims(repository: RepositoryObject, node: str) -> list[WantedClaim]:
    """All of a node's, that of the root first."""
    storage, name = repository.spec.storage, repository.node_name(node)
    root = storage.local_persistent_volume
    if root is None:
        return []
    own = [(each, volume) for each in storage.containers if (volume := each.local_persistent_volume) is not None]
    return [
        WantedClaim(name, root.storage_class_name, root.size),
        # With a dot, which is in no container's name: nobody's is that of the root.
        *(WantedClaim(f"{name}.{each.name}", v.storage_class_name, v.size, each.sub_path) for each, v in own),
    ]


def claim_objects(seen: Observation, nodes: Iterable[str]) -> list[Object]:
    """The claims of these nodes as they shall be; where the spec asks for more than may be had, as they are."""
    return [_claim(seen, node, wanted) for node in nodes for wanted in wanted_claims(seen.repository, node)]


def lost_claims(seen: Observation, node: str) -> list[Object]:
    """Those of a node whose volume is gone: they never get another one."""
    found = (_found(seen, wanted) for wanted in wanted_claims(seen.repository, node))
    return [each for each in found if each is not None and _is_lost(each) and has_labels(each, seen.repository.labels)]


def classes_in_question(repository: RepositoryObject, found: Iterable[Object]) -> set[str]:
    """Storage classes of which it matters whether their volumes can grow: some claim of the repository's, among those
    that were found, is smaller than asked for.
    """
    if repository.document is None or repository.spec.storage.local_persistent_volume is None:
        return set()
    storage = repository.spec.storage
    asked = [each.local_persistent_volume for each in storage.containers] + [storage.local_persistent_volume]
    sizes: dict[str, int] = {}
    for each in filter(None, asked):
        sizes[each.storage_class_name] = max(each.size, sizes.get(each.storage_class_name, 0))
    mine = (
        each
        for each in found
        if each["metadata"]["namespace"] == repository.namespace and has_labels(each, repository.labels)
    )
    return {
        name
        for claim in mine
        if (name := claim["spec"].get("storageClassName", "")) in sizes and _requested(claim) < sizes[name]
    }


def provisioned(seen: Observation, nodes: Iterable[str]) -> tuple[str, str]:
    """Reason and message of condition Provisioned: of what is in the way, the gravest."""
    if seen.repository.document is None or seen.repository.spec.storage.local_persistent_volume is None:
        return "NoClaims", ""
    standings: dict[str, list[str]] = {}
    for node in nodes:
        for wanted in wanted_claims(seen.repository, node):
            standing = _standing(seen, wanted)
            standings.setdefault(standing.reason, []).append(f"{wanted.name} on {node}{standing.words}")
    for reason in ("VolumeLost", "GrowthFailed", "NotExpandable", "Unbound", "Growing"):
        if named := standings.get(reason):
            more = f", and {len(named) - 3} more" if len(named) > 3 else ""
            return reason, f"{_WORDS[reason]}: {', '.join(named[:3])}{more}."
    return AS_ASKED


_WORDS: Final = {
    "VolumeLost": "Bring back the volumes of claims, or give up what they held by the annotation ullage.dev/release",
    "GrowthFailed": "Claims could not be enlarged",
    "NotExpandable": "Claims are smaller than asked for, and their class has no allowVolumeExpansion",
    "Unbound": "Claims have no volume",
    "Growing": "Claims are being enlarged",
}


def _claim(seen: Observation, node: str, wanted: WantedClaim) -> Object:
    repository = seen.repository
    found = _found(seen, wanted)
    size: str = str(wanted.size)
    if found is not None and not _may_ask(seen, found, wanted):
        size = found["spec"]["resources"]["requests"]["storage"]
    metadata = {
        "name": wanted.name,
        "namespace": repository.namespace,
        "labels": {**repository.labels, SET_LABEL: repository.node_name(node)},
        "annotations": {NODE_LABEL: node},
    }
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": wanted.storage_class,
        "resources": {"requests": {"storage": size}},
    }
    return made(CLAIM, metadata, spec=spec)


def _may_ask(seen: Observation, found: Object, wanted: WantedClaim) -> bool:
    """Whether the claim shall ask for what the spec does, rather than for what it has asked for until now."""
    is_short = _requested(found) < wanted.size and _capacity(found) < wanted.size
    return _is_bound(found) and is_short and seen.expandable.get(wanted.storage_class, False)


def _standing(seen: Observation, wanted: WantedClaim) -> Standing:
    found = _found(seen, wanted)
    if found is not None and _is_lost(found):
        return Standing("VolumeLost", f" ({found['spec'].get('volumeName', '')} is gone)")
    if found is None or not _is_bound(found):
        return Standing("Unbound")
    if _capacity(found) >= wanted.size:
        return AS_ASKED
    sizes = f" ({_text(found)} of {wanted.size})"
    if _requested(found) < wanted.size and not seen.expandable.get(wanted.storage_class, False):
        return Standing("NotExpandable", f"{sizes[:-1]}, class {wanted.storage_class})")
    told = (found.get("status") or {}).get("conditions") or ()
    failed = [each for each in told if each["type"] in FAILURES and each["status"] == "True"]
    if failed:
        return Standing("GrowthFailed", f"{sizes}: {failed[0].get('message') or failed[0]['type']}")
    return Standing("Growing", sizes)


def _found(seen: Observation, wanted: WantedClaim) -> Object | None:
    claims = seen.owned.get(CLAIM) or {}
    found: Object | None = claims.get((seen.repository.namespace, wanted.name))
    return found


def _is_bound(found: Object) -> bool:
    return _phase(found) == "Bound"


def _is_lost(found: Object) -> bool:
    return _phase(found) == "Lost"


def _phase(found: Object) -> str:
    return str((found.get("status") or {}).get("phase"))


def _requested(found: Object) -> int:
    return Quantity.whole_of(str(found["spec"]["resources"]["requests"]["storage"]))


def _capacity(found: Object) -> int:
    return Quantity.whole_of(_text(found))


def _text(found: Object) -> str:
    return str(((found.get("status") or {}).get("capacity") or {}).get("storage", "0"))


def volumes_of(repository: RepositoryObject, node: str) -> Iterator[tuple[Object, str]]:
    """The volumes of a node's pod, each with where it is mounted below the root."""
    for number, wanted in enumerate(wanted_claims(repository, node)):
        name = f"content-{number}" if number else "repository"
        volume: dict[str, Any] = {"name": name, "persistentVolumeClaim": {"claimName": wanted.name}}
        yield volume, wanted.sub_path

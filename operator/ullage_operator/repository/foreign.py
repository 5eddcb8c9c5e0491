"""What others have put into objects of ours, from what the API server notes of who wrote which field. Pure.

Server-side apply keeps what is not in our own wish, and so it must: a restart that somebody asked for stands there too.
A container beside the agent's or another network is told, and who put it there can take it away.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from ullage_operator.objects import MANAGER, Object, is_owned

KINDS: Final = ("Service", "DaemonSet", "StatefulSet", "ConfigMap", "NetworkPolicy", "PodDisruptionBudget")
"""Of all others of ours the fields are lists that an apply replaces, or the cluster's own programs write there too."""

PARTS: Final = ("f:spec", "f:data", "f:binaryData")
DEFAULTED: Final = frozenset(
    f"f:{name}"
    for name in (
        *(
            "clusterIP",
            "clusterIPs",
            "internalTrafficPolicy",
            "ipFamilies",
            "ipFamilyPolicy",
            "sessionAffinity",
            "type",
        ),
        *("minReadySeconds", "podManagementPolicy", "persistentVolumeClaimRetentionPolicy", "replicas"),
        *("revisionHistoryLimit", "updateStrategy", "dnsPolicy", "restartPolicy", "schedulerName", "serviceAccount"),
        *("terminationGracePeriodSeconds", "imagePullPolicy", "terminationMessagePath", "terminationMessagePolicy"),
        *("resources", "protocol", "failureThreshold", "periodSeconds", "successThreshold", "timeoutSeconds"),
        *("initialDelaySeconds", "scheme", "defaultMode", "apiVersion", "medium", "expirationSeconds"),
    )
)
"""What the API server adds by itself: whoever restores an object from a backup has written it."""

NAMED_MAX: Final = 3


def added(owned: Mapping[str, Mapping[tuple[str, str], Object]], namespace: str, uid: str) -> list[str]:
    """The fields that others have added to objects of this owner, each as its object and its path, by name."""
    return sorted(
        f"{path} of {kind} {name}"
        for kind in KINDS
        for (place, name), found in owned.get(kind, {}).items()
        if place == namespace and is_owned(found, uid)
        for path in _added_to(found)
    )


def in_words(fields: list[str]) -> str:
    """The first few, and how many more."""
    more = f", and {len(fields) - NAMED_MAX} more" if len(fields) > NAMED_MAX else ""
    return ", ".join(fields[:NAMED_MAX]) + more


def _added_to(found: Object) -> set[str]:
    noted = [each for each in found["metadata"].get("managedFields") or () if not each.get("subresource")]
    theirs = [each.get("fieldsV1") or {} for each in noted if each.get("manager") != MANAGER]
    ours = [each.get("fieldsV1") or {} for each in noted if each.get("manager") == MANAGER]
    return {path for each in theirs for part in PARTS for path in _beyond(each, ours, part, "")}


def _beyond(theirs: Mapping[str, Any], ours: Iterable[Mapping[str, Any]], key: str, before: str) -> Iterator[str]:
    """The highest fields below this one of theirs that are none of ours."""
    if key not in theirs or key in DEFAULTED:
        return
    path = f"{before}.{key.removeprefix('f:')}" if key.startswith("f:") else f"{before}[{_named(key[2:])}]"
    if path.endswith("template.metadata"):  # everybody's: `kubectl rollout restart` writes an annotation there
        return
    have = [each[key] for each in ours if key in each]
    if not have and before:
        yield path.removeprefix(".")
    elif all(have) or not before:  # one of ours without fields below is ours as a whole
        for below in theirs[key]:
            if below != ".":
                yield from _beyond(theirs[key], have, below, path)


def _named(key: str) -> str:
    """One of a list, as the API server names it: by fields of its own, or by its value."""
    fields = json.loads(key)
    return ",".join(f"{name}={value}" for name, value in fields.items()) if isinstance(fields, dict) else str(fields)

"""Whether an object is what it shall be. Pure."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

Object = dict[str, Any]

DESIRED: Final = "ullage.dev/desired"
"""Annotation: a digest of what was applied, so that a field that is no longer wished for is noticed."""


def sealed(document: Object) -> Object:
    """With the digest of itself."""
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:32]
    document["metadata"].setdefault("annotations", {})[DESIRED] = digest
    return document


def is_owned(found: Mapping[str, Any], uid: str) -> bool:
    """Whether what has this uid controls the object."""
    owners = found["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == uid and owner.get("controller") for owner in owners)


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

"""What others have put into objects of ours: told by its path, and nothing else is."""

import json
from typing import Any

import pytest

from ullage_operator.objects import MANAGER
from ullage_operator.repository.foreign import added, in_words

AGENT: dict[str, Any] = {'k:{"name":"agent"}': {".": {}, "f:image": {}}}
RESTART: dict[str, Any] = {"f:metadata": {"f:annotations": {"f:kubectl.kubernetes.io/restartedAt": {}}}}


def template(containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"f:spec": {"f:selector": {}, "f:template": {"f:spec": {"f:containers": containers, **more}}}}


def daemon_set(theirs: dict[str, Any], subresource: str = "") -> dict[str, Any]:
    """One of ours into which somebody has written these fields."""
    ours = {"manager": MANAGER, "fieldsV1": template(AGENT)}
    noted = [ours, {"manager": "kubectl-edit", "fieldsV1": theirs, "subresource": subresource}]
    owners = [{"uid": "u", "controller": True}]
    return {"metadata": {"name": "d", "namespace": "n", "ownerReferences": owners, "managedFields": noted}}


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        (template({'k:{"name":"theirs"}': {".": {}, "f:image": {}}}), "spec.template.spec.containers[name=theirs]"),
        (template(AGENT, **{"f:hostNetwork": {}}), "spec.template.spec.hostNetwork"),
        (template({'k:{"name":"agent"}': {"f:tty": {}}}), "spec.template.spec.containers[name=agent].tty"),
        ({"f:data": {"f:more": {}}}, "data.more"),
    ],
)
def test_a_field_that_others_have_added_is_told_by_its_path(theirs: dict[str, Any], told: str) -> None:
    """A container, a field of the pod or of our own container, and a part that we write nothing in."""
    assert _added(daemon_set(theirs)) == [f"{told} of DaemonSet d"]


@pytest.mark.parametrize(
    "theirs",
    [
        template(AGENT),
        template({'k:{"name":"agent"}': {"f:terminationMessagePath": {}}}, **{"f:dnsPolicy": {}}),
        {"f:spec": {"f:selector": {"f:matchLabels": {}}}},
        {"f:spec": {"f:template": RESTART}},
        {"f:metadata": {"f:labels": {"f:theirs": {}}}},
    ],
)
def test_what_is_ours_or_does_not_matter_is_not_told(theirs: dict[str, Any]) -> None:
    """The same fields, as a restored backup writes them, and what the API server adds; restarts; labels of others."""
    assert _added(daemon_set(theirs)) == []
    assert _added(daemon_set(template({'k:{"name":"x"}': {".": {}}}), subresource="status")) == []


def test_a_few_are_named_and_the_rest_is_counted() -> None:
    """A message has room for some."""
    theirs = template({f"k:{json.dumps({'name': name})}": {".": {}} for name in "abcde"})
    words = in_words(_added(daemon_set(theirs)))
    assert words.endswith("[name=c] of DaemonSet d, and 2 more")


def _added(found: dict[str, Any]) -> list[str]:
    return added({"DaemonSet": {("n", "d"): found}}, "n", "u")

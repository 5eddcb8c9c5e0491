"""What whoever installs the operator gives to the pods of every repository."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.operator.support import NOW, repository
from ullage_operator.agents import pods
from ullage_operator.planning.build import run_object
from ullage_operator.repository import build
from ullage_operator.repository.trust import certificate_names
from ullage_operator.settings import OperatorSettings, PodSettings, settings_from

GIVEN: dict[str, Any] = {
    "imagePullSecrets": [{"name": "registry"}],
    "imagePullPolicy": "Always",
    "labels": {"cost-center": "7", "app.kubernetes.io/name": "theirs"},
    "annotations": {"sidecar.istio.io/inject": "false"},
    "seLinuxOptions": {"type": "spc_t"},
    "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}, {"name": "ULLAGE_NODE", "value": "another"}],
    "volumes": [{"name": "authorities", "configMap": {"name": "authorities"}}],
    "volumeMounts": [{"name": "authorities", "mountPath": "/etc/ssl/certs"}],
    "priorityClassName": "content",
}


def settings(**fields: Any) -> PodSettings:
    return settings_from({"ULLAGE_OPERATOR_PODS": json.dumps(fields)}).pods


def daemon(given: PodSettings) -> dict[str, Any]:
    made = pods.daemon_set(repository(), "agent:1", is_gated=False, pods=given)
    template: dict[str, Any] = made["spec"]["template"]
    return template


def stateful(given: PodSettings) -> dict[str, Any]:
    spec = {"storage": {"localPersistentVolume": {"storageClassName": "local", "size": "1Gi"}}}
    made = pods.stateful_set(repository(spec), "agent:1", "node-0", pods=given)
    template: dict[str, Any] = made["spec"]["template"]
    return template


def cleaning(given: PodSettings) -> dict[str, Any]:
    made = build.cleaning_job(repository(), "agent:1", "node-0", pods=given)
    template: dict[str, Any] = made["spec"]["template"]
    return template


def planning(given: PodSettings) -> dict[str, Any]:
    made = run_object(repository(), "spark:1", NOW, is_application=False, has_authority=True, pods=given)
    template: dict[str, Any] = made["spec"]["template"]
    return template


ALL = (daemon, stateful, cleaning, planning)


@pytest.mark.parametrize("made", ALL)
@pytest.mark.parametrize("field", GIVEN)
def test_each_setting_reaches_the_pods_that_it_is_for(
    made: Callable[[PodSettings], dict[str, Any]], field: str
) -> None:
    """What is about registries and labels reaches all, SELinux those that use the directories, the rest agents."""
    is_for = {"seLinuxOptions": (daemon, stateful, cleaning)} | dict.fromkeys(
        ("env", "volumes", "volumeMounts", "priorityClassName"), (daemon, stateful)
    )

    assert (made(settings(**{field: GIVEN[field]})) != made(settings())) == (made in is_for.get(field, ALL))


@pytest.mark.parametrize("made", ALL)
def test_what_the_operator_needs_goes_before_what_is_given(made: Callable[[PodSettings], dict[str, Any]]) -> None:
    """Labels by which pods are found, and the name of the node: a second value of the same name would win."""
    plain, given = made(settings()), made(settings(**GIVEN))

    assert given["metadata"]["labels"] == {**GIVEN["labels"], **plain["metadata"].get("labels", {})}
    for one, other in zip(plain["spec"]["containers"], given["spec"]["containers"], strict=True):
        names = [each["name"] for each in other.get("env", [])]
        assert len(names) == len(set(names))
        assert other.get("env", [])[: len(one.get("env", []))] == one.get("env", [])


@pytest.mark.parametrize("made", ALL)
def test_no_container_asks_for_nothing(made: Callable[[PodSettings], dict[str, Any]]) -> None:
    """It would be the first that a node in need ends, and a quota on requests would refuse its pod."""
    spec = made(settings())["spec"]
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        assert {"cpu", "memory"} <= set(container["resources"]["requests"]), container["name"]


def test_a_limit_of_an_agent_is_what_it_requests() -> None:
    """A default request above it would have the API server refuse the pod."""
    spec = {"resources": {"limits": {"memory": "64Mi"}}}
    made = pods.daemon_set(repository(spec), "agent:1", is_gated=False)

    [container] = made["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {"memory": "64Mi"}, "requests": {"cpu": "100m"}}


def test_the_class_of_a_repository_goes_before_the_given_one() -> None:
    """Of priorities; empty takes the given one."""
    given = settings(priorityClassName="content")
    made = [pods.template(repository({"priorityClassName": name}), "a", pods=given) for name in ("own", "")]

    assert [each["spec"]["priorityClassName"] for each in made] == ["own", "content"]


@pytest.mark.parametrize("text", ['{"nosuch": 1}', '{"imagePullPolicy": "Sometimes"}'])
def test_what_is_no_pod_setting_is_refused(text: str) -> None:
    """The operator does not start with what it would not obey."""
    with pytest.raises(msgspec.ValidationError):
        settings_from({"ULLAGE_OPERATOR_PODS": text})


def test_certificates_are_for_the_names_of_the_cluster_s_domain() -> None:
    """And for none of another."""
    domain = settings_from({"ULLAGE_OPERATOR_CLUSTER_DOMAIN": "fleet.example"}).cluster_domain
    names = certificate_names(repository(), "node-0", domain)

    assert "node-0.flows-nodes.data.svc.fleet.example" in names
    assert not [each for each in names if each.endswith(OperatorSettings().cluster_domain)]

"""How a change of the engine's format is rolled."""

from typing import Any

import msgspec
import pytest

from tests.operator.support import HOUR, NOW, SETTINGS, fleet, node, repository
from ullage.contract import time_of
from ullage_operator.agents import pods
from ullage_operator.agents.rollout import Rollout, rollout
from ullage_operator.observation import AgentPod
from ullage_operator.repository import build
from ullage_operator.repository.decide import decide
from ullage_operator.settings import OperatorSettings

NEWER = msgspec.structs.replace(SETTINGS, agent_format=2)
NIGHTLY = {"name": "nightly", "schedule": "0 1 * * *", "duration": "1h"}
NODES = ("node-0", "node-1", "node-2")


def rolled(
    *,
    spec: dict[str, Any] | None = None,
    formats: tuple[int, ...] = (1, 1, 1),
    ready: tuple[bool, ...] = (True, True, True),
    changed: tuple[bool, ...] = (False, False, False),
    now: int = NOW,
    settings: OperatorSettings = NEWER,
) -> Rollout:
    """What is rolled of three nodes; `changed`: whose pods are made from the new template."""
    template = pods.template_digest(pods.template(repository(spec), settings.agent_image))
    agents = {
        name: AgentPod(node=name, address="", is_ready=is_ready, name=name, template=template if is_new else "old")
        for name, is_ready, is_new in zip(NODES, ready, changed, strict=True)
    }
    objects = {name: node(name, format=number) for name, number in zip(NODES, formats, strict=True)}
    return rollout(fleet(3, spec, agents=agents, objects=objects, now_millis=now), settings, NODES)


def windows(**strategy: Any) -> dict[str, Any]:
    return {"maintenance": {"windows": [NIGHTLY]}, "updateStrategy": strategy}


def test_outside_of_windows_nothing_goes() -> None:
    """It is known who waits, and when to look again."""
    found = rolled(spec=windows())

    assert (found.is_gated, found.may_go, found.replaced) == (True, False, ())
    assert found.waiting == NODES
    assert found.next_millis == NOW + HOUR


@pytest.mark.parametrize(
    ("ready", "changed", "expected"),
    [
        ((True, True, True), (False, False, False), ["node-0"]),
        ((True, True, True), (True, False, False), ["node-1"]),
        ((False, True, True), (True, False, False), []),
        ((True, False, True), (False, False, False), ["node-1"]),
        ((True, True, True), (True, True, True), []),
    ],
)
def test_inside_of_a_window_one_goes_after_the_other(
    ready: tuple[bool, ...], changed: tuple[bool, ...], expected: list[str]
) -> None:
    """As many as may be away; whose pod is not ready goes first, and makes no other one go."""
    found = rolled(spec=windows(), ready=ready, changed=changed, now=NOW + HOUR)

    assert [agent.name for agent in found.replaced] == expected


def test_as_many_go_as_may_be_away() -> None:
    """`maxUnavailable` holds for these rolls too."""
    found = rolled(spec=windows(maxUnavailable=2), now=NOW + HOUR)

    assert [agent.name for agent in found.replaced] == ["node-0", "node-1"]


@pytest.mark.parametrize(
    ("formats", "strategy", "settings"),
    [
        ((1, 1, 1), {}, SETTINGS),
        ((2, 2, 2), {}, NEWER),
        ((0, 0, 0), {}, NEWER),
        ((1, 1, 1), {"type": "OnDelete"}, NEWER),
    ],
)
def test_other_rolls_are_the_workload_s_own(
    formats: tuple[int, ...], strategy: dict[str, str], settings: OperatorSettings
) -> None:
    """The same format, one that nobody told, and those who delete pods themselves."""
    assert rolled(spec=windows(**strategy), formats=formats, settings=settings) == Rollout()


def test_the_condition_says_what_is_waited_for() -> None:
    """Reconciling, with the nodes by name."""
    objects = {name: node(name, format=1) for name in NODES}
    decision = decide(fleet(3, windows(), objects=objects), NEWER)

    found = next(each for each in decision.status.conditions if each.type == "Reconciling")
    assert (found.status, found.reason) == ("True", "WaitsForWindow")
    assert found.message.endswith("waits for a window on node-0, node-1, node-2.")
    assert decision.next_millis is not None
    assert time_of(decision.next_millis) <= time_of(NOW + HOUR)


def test_a_gated_daemonset_rolls_nothing_by_itself() -> None:
    """OnDelete while it lasts, with the template that is to come."""
    gated, free = (
        next(each for each in build.shared_objects(repository(), "a:2", is_gated=gate) if each["kind"] == "DaemonSet")
        for gate in (True, False)
    )

    assert gated["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert free["spec"]["updateStrategy"]["type"] == "RollingUpdate"
    assert gated["spec"]["template"] == free["spec"]["template"]

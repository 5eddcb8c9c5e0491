from typing import Any

import msgspec
import pytest
import yaml

from tests.operator.support import HOUR, NOW, SETTINGS, changed, decided, fleet, node, repository
from ullage.contract import ConditionStatus, ContractError
from ullage_operator.agents import pods
from ullage_operator.agents.pods import stateful_set
from ullage_operator.observation import ClusterNode, Observation
from ullage_operator.repository.acceptance import acceptance_of, conflict
from ullage_operator.repository.build import cleaning_job, shared_objects
from ullage_operator.repository.decide import decide
from ullage_operator.settings import OperatorSettings, settings_from


def at(path: str) -> dict[str, Any]:
    return {"storage": {"hostPath": {"path": path}}}


@pytest.mark.parametrize("path", ["/", "/etc", "/var/lib", "/var/lib/ullage/below", "/var/lib/ullage2", "/run/ullage"])
def test_a_directory_that_the_operator_does_not_allow_is_refused(path: str) -> None:
    """Nothing is built, and the message says which are allowed and who can change that."""
    decision = decided(fleet(1, at(path)))

    accepted = decision.status.conditions[0]
    assert (accepted.status, accepted.reason) == (ConditionStatus.FALSE, "PathNotAllowed")
    assert decision.keeps_hands_off
    for words in (path, "/var/lib/ullage", "ULLAGE_OPERATOR_ROOTS", "hostPathRoots"):
        assert words in accepted.message


@pytest.mark.parametrize("path", ["/var/lib/ullage", "/var/lib/ullage/", "//var//lib/./ullage", "///var/lib/ullage"])
def test_one_directory_has_one_name(path: str) -> None:
    """However it is written: what is allowed is, and the repository lies in the same place."""
    assert acceptance_of(fleet(1, at(path)), SETTINGS)[0] == "Valid"
    assert repository(at(path)).root == "/var/lib/ullage/data/flows"


@pytest.mark.parametrize("path", ["/var/lib/ullage/../../../etc", "/var/lib/ullage/..", "var/lib/ullage", "/a\0b"])
def test_a_path_that_leads_elsewhere_is_no_path(path: str) -> None:
    """It is refused where documents are read."""
    with pytest.raises(ContractError, match=r"hostPath\.path"):
        repository(at(path))


@pytest.mark.parametrize("field", ["image", "planning.image"])
def test_an_image_that_the_operator_does_not_allow_is_refused(field: str) -> None:
    """Neither as an agent nor for planning; its own, and those that its settings name, are taken."""

    def reason(image: str) -> str:
        spec = {"image": image} if field == "image" else {"planning": {"schedule": "0 * * * *", "image": image}}
        return acceptance_of(fleet(1, spec), SETTINGS)[0]

    own = SETTINGS.agent_image if field == "image" else SETTINGS.spark_image
    other = SETTINGS.spark_image if field == "image" else SETTINGS.agent_image
    assert [reason(image) for image in ("", own, "mine:2")] == ["Valid"] * 3
    refused = ("evil:1", "mine:2@sha256:0", "mine:20", f"evil/{own}", other)
    assert {reason(image) for image in refused} == {"ImageNotAllowed"}


@pytest.mark.parametrize("path", ["/a", "/a/", "/a//", "//a/."])
def test_a_directory_in_another_s_is_refused_however_it_is_written(path: str) -> None:
    """The younger of the two, whichever lies in the other."""
    within = repository(at("/a/data/flows"), name="b", created_millis=NOW - 2 * HOUR)
    around = repository(at(path))
    nodes = (ClusterNode(name="node-0", labels={}),)

    assert "older data/b overlap on node node-0" in conflict(around, (within,), nodes, SETTINGS)
    assert conflict(within, (around,), nodes, SETTINGS) == ""


def test_of_two_that_are_as_old_the_uid_decides() -> None:
    """Whoever asks first: exactly one of them is refused."""
    one, other = repository(at("/a")), repository(at("/a/data/flows"), name="other")
    nodes = (ClusterNode(name="node-0", labels={}),)

    refused = [conflict(a, (b,), nodes, SETTINGS) != "" for a, b in ((one, other), (other, one))]

    assert sorted(refused) == [False, True]


def test_one_that_is_not_allowed_keeps_nobody_out() -> None:
    """Or anybody could take the place of a repository that is yet to come."""
    squatter = repository(at("/a"), name="older", created_millis=NOW - 2 * HOUR)
    mine = repository(at("/a/data/flows"), name="flows")
    nodes = (ClusterNode(name="node-0", labels={}),)

    narrower = OperatorSettings(roots=("/a/data/flows",))
    assert conflict(mine, (squatter,), nodes, narrower) == ""


def test_one_that_is_going_still_has_its_directory() -> None:
    """Until it is gone: it may be emptied at this moment."""
    going = repository(at("/a/data/flows"), name="older", created_millis=NOW - 2 * HOUR, is_going=True)

    assert conflict(repository(at("/a")), (going,), (ClusterNode(name="n", labels={}),), SETTINGS) != ""


def test_lists_are_read_from_the_environment() -> None:
    """With commas; none leaves the default."""
    settings = settings_from({"ULLAGE_OPERATOR_ROOTS": "/a, /b", "ULLAGE_OPERATOR_IMAGES": "x:1,"})

    assert (settings.roots, settings.images) == (("/a", "/b"), ("x:1",))
    assert settings_from({}).roots == ("/var/lib/ullage",)


@pytest.mark.parametrize("kind", ["HostPath", "LocalPersistentVolume"])
def test_only_the_operator_s_image_is_ever_root(kind: str) -> None:
    """On a directory of the node: one init container, with CAP_CHOWN and nothing else. On a volume: none."""
    local = {"storage": {"localPersistentVolume": {"storageClassName": "a", "size": "1Gi"}}}
    spec = {"image": "theirs:1"} | (local if kind == "LocalPersistentVolume" else {})
    made = stateful_or_daemon(spec)

    starts = made.get("initContainers", [])
    assert [each["image"] for each in starts] == (["ours:1"] if kind == "HostPath" else [])
    for each in starts:
        assert each["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
        assert each["securityContext"]["allowPrivilegeEscalation"] is False
    (agent,) = made["containers"]
    assert agent["securityContext"]["runAsNonRoot"] is True
    assert agent["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def stateful_or_daemon(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec of an agent's pod."""
    wanted = repository(spec)
    if wanted.root:
        (made,) = [each for each in shared_objects(wanted, "ours:1") if each["kind"] == "DaemonSet"]
    else:
        made = stateful_set(wanted, "ours:1", "node-0")
    found: dict[str, Any] = made["spec"]["template"]["spec"]
    return found


def test_who_empties_directories_is_not_root() -> None:
    """It runs the operator's image as the agent's user, without any capability or token."""
    pod = cleaning_job(repository({"image": "theirs:1"}), "ours:1", "node-0")["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert container["image"] == "ours:1"
    assert container["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["automountServiceAccountToken"] is False


def test_a_secret_is_mounted_in_one_place_only() -> None:
    """Wherever spec.tls.directory says: over the program's own files it would be another program."""
    pod = stateful_or_daemon({"tls": {"mode": "Secret", "directory": "/opt/ullage/lib/python3.11/site-packages"}})

    (mount,) = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "tls"]
    assert mount["mountPath"] == "/etc/ullage/tls"


OTHERS = {"compaction": {"policy": "Theirs"}}


def asked(spec: dict[str, Any], **said: Any) -> Observation:
    """Two agents from the pods that are to be, of which the first says this of itself."""
    seen = fleet(2, spec)
    template = pods.template_digest(pods.template(seen.repository, SETTINGS.agent_image))
    agents = {name: msgspec.structs.replace(each, template=template) for name, each in seen.agents.items()}
    policies = ("StatsBased", "CompactAll", "Theirs")
    objects = {"node-0": node("node-0", **{"policies": policies, **said}), "node-1": node("node-1", policies=policies)}
    return changed(seen, agents=agents, objects=objects)


@pytest.mark.parametrize(
    ("spec", "said", "expected"),
    [
        (OTHERS, {}, "Valid"),
        (OTHERS, {"policies": ("StatsBased", "CompactAll")}, "UnknownPlugin"),
        (OTHERS, {"heard": NOW - HOUR}, "PluginUnheard"),
        ({"content": {"repository": "theirs"}}, {}, "Valid"),
        ({"content": {"repository": "theirs"}}, {"heard": NOW - HOUR}, "PluginUnheard"),
        ({"content": {"repository": "memory"}}, {"heard": NOW - HOUR}, "Valid"),
    ],
)
def test_what_agents_lack_is_not_accepted(spec: dict[str, Any], said: dict[str, Any], expected: str) -> None:
    """One agent that lacks it is enough; until each has spoken it is not known."""
    assert acceptance_of(asked(spec, **said), SETTINGS)[0] == expected


def test_an_agent_of_another_image_says_nothing_of_what_is_to_be() -> None:
    """A policy and the image that has it are asked for at once: the image is rolled out, and then it is known."""
    seen = asked(OTHERS | {"image": "mine:2"}, policies=("StatsBased",))
    older = {name: msgspec.structs.replace(each, template="before") for name, each in seen.agents.items()}

    assert acceptance_of(changed(seen, agents=older), SETTINGS)[0] == "PluginUnheard"


def test_a_policy_that_nobody_vouches_for_reaches_no_agent() -> None:
    """An agent that starts with a policy that it lacks ends at once: until it is known nothing is compacted."""
    seen = asked(OTHERS, heard=NOW - HOUR)
    decision = decide(seen, SETTINGS)

    assert decision.is_pending
    made = shared_objects(seen.repository, "agent:1", is_pending=decision.is_pending)
    text = next(each for each in made if each["kind"] == "ConfigMap")["data"][pods.FILE]
    told = yaml.safe_load(text)["spec"]["compaction"]
    assert (told["policy"], told["enabled"]) == ("StatsBased", False)

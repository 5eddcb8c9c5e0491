import json
import re
from pathlib import Path
from typing import Any

import msgspec

from tests.operator.support import node, repository, ticket
from ullage.contract import ENGINE_FORMAT, ContentRepositorySpec, parse
from ullage.engine.wal.format import FORMAT_VERSION
from ullage_operator.agents import pods
from ullage_operator.objects import SPARK_USER, USER, covers
from ullage_operator.observation import AgentPod, NodeObject
from ullage_operator.planning.build import CONFINED
from ullage_operator.repository import build


def by_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(each for each in objects if each["kind"] == kind)


def test_the_same_wish_gives_the_same_bytes() -> None:
    """Nothing in it depends on the process, the order of dictionaries or the time."""
    one, other = (json.dumps(build.shared_objects(repository(), "agent:1")) for _ in range(2))

    assert one == other


def test_the_operator_knows_the_engine_s_format() -> None:
    """It cannot import the engine: the number it has instead is the engine's."""
    assert ENGINE_FORMAT == FORMAT_VERSION


def test_a_live_setting_changes_the_file_and_not_the_pods() -> None:
    """Agents read the file again; pods are rolled only for what needs a restart."""
    plain = build.shared_objects(repository(), "agent:1")
    live = build.shared_objects(repository({"leases": {"maxCount": 5}, "isolation": "PerTenant"}), "agent:1")
    fixed = build.shared_objects(repository({"flowFile": {"partitions": 2}}), "agent:1")

    assert by_kind(plain, "ConfigMap") != by_kind(live, "ConfigMap")
    assert by_kind(plain, "DaemonSet") == by_kind(live, "DaemonSet") != by_kind(fixed, "DaemonSet")


def test_an_agent_s_file_is_a_content_repository_without_the_cluster_s_fields() -> None:
    """It can be read by the agent, lies where the volume is mounted, and does not change with the cluster's fields."""
    local = {"storage": {"localPersistentVolume": {"storageClassName": "a", "size": "1Gi"}}, "image": "x"}

    spec: ContentRepositorySpec = parse(pods.agent_document(repository(local))).spec

    assert spec.storage.host_path.path == pods.ROOT
    assert spec.storage.local_persistent_volume is None
    assert spec.image == ""


def test_a_change_by_hand_is_noticed_and_what_the_api_server_adds_is_not() -> None:
    """Defaults beside our fields are none of our business; another value of ours is."""
    desired = by_kind(build.shared_objects(repository(), "agent:1"), "DaemonSet")
    found = json.loads(json.dumps(desired))
    found["spec"]["revisionHistoryLimit"] = 10
    assert covers(found, desired)

    found["spec"]["template"]["spec"]["containers"][0]["image"] = "theirs"
    assert not covers(found, desired)


def test_a_field_that_is_no_longer_wished_for_is_noticed() -> None:
    """The digest differs though everything that is still wished for is there."""
    before = by_kind(build.shared_objects(repository({"nodeSelector": {"disk": "fast"}}), "agent:1"), "DaemonSet")

    assert not covers(before, by_kind(build.shared_objects(repository(), "agent:1"), "DaemonSet"))


def admitted(spec: dict[str, Any]) -> list[tuple[list[int], list[dict[str, Any]]]]:
    """To which ports the network lets whom."""
    policy = by_kind(build.shared_objects(repository(spec), "agent:1"), "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    return [([port["port"] for port in each["ports"]], each["from"]) for each in policy["ingress"]]


def test_only_the_own_namespace_reaches_agents_unless_others_are_named() -> None:
    """A peer without a namespace is of the policy's own; nobody who is not named is let in anywhere."""
    everything = [8480, 8481, 8482]
    flows = {"namespaceSelector": {"matchLabels": {"team": "flows"}}, "podSelector": {"matchLabels": {"app": "a"}}}
    watchers = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    anybody: dict[str, Any] = {"namespaceSelector": {}}

    assert admitted({}) == [(everything, [{"podSelector": {"matchLabels": {}}}])]
    assert admitted({"network": {"clients": [flows], "scrapers": [watchers]}}) == [
        (everything, [flows]),
        ([8482], [{**watchers, "podSelector": {"matchLabels": {}}}]),
    ]
    assert admitted({"network": {"clients": [anybody]}})[0][1][0]["namespaceSelector"] == {"matchLabels": {}}
    assert len(admitted({"network": {"scrapers": [watchers]}, "service": {"metricsPort": None}})) == 1


def test_every_node_has_a_name_of_its_own() -> None:
    """Also where names have dots, or become alike without them."""
    agents = {name: AgentPod(node=name, address="10.0.0.1", is_ready=True) for name in ("a.b", "a-b", "c")}

    [made] = build.endpoint_slices(repository(), agents, repository().ports)

    assert len({endpoint["hostname"] for endpoint in made["endpoints"]}) == 3
    assert all("." not in endpoint["hostname"] for endpoint in made["endpoints"])


def test_who_uses_the_socket_can_not_write_where_it_lies() -> None:
    """The folder is the agent's user's, and programs of Spark's image are another one's."""
    dockerfile = (Path(__file__).parents[2] / "Dockerfile").read_text(encoding="utf-8")
    users = re.findall(r"^USER (\d+):", dockerfile, re.MULTILINE)

    assert str(USER) in users
    assert users[-1] == str(SPARK_USER)
    assert CONFINED["runAsUser"] == SPARK_USER
    assert len({SPARK_USER, USER}) == 2


def test_a_node_is_written_over_what_was_looked_at_unless_its_ticket_is_taken_back() -> None:
    """By its version, and in any case by its uid: nothing is made anew that has gone meanwhile."""

    def named(found: NodeObject, **said: Any) -> list[str]:
        spec = msgspec.structs.replace(found.spec, **said)
        made = build.node_object(repository(), spec, found)
        return [name for name in ("uid", "resourceVersion") if name in made["metadata"]]

    without, held = node("node-0"), node("node-0", ticket=ticket())
    assert named(without, ticket=ticket()) == ["uid", "resourceVersion"]
    assert named(without, cordoned=True) == ["uid", "resourceVersion"]
    assert named(held, cordoned=True) == ["uid", "resourceVersion"]
    assert named(held, ticket=None) == ["uid"]

"""The story of a repository on two real nodes, as its users live it: each test is a chapter, and goes on where the one
before has ended. `make e2e` tells it.

What a flow wrote is kept through everything that follows: a window that gives space back, a pod killed under load, an
upgrade that changes a kind, and a release that is removed and comes back.
"""

import hashlib
import json
import secrets
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from tests.cluster import images
from tests.cluster.errors import ClusterError
from tests.cluster.operator_process import objects
from tests.cluster.release import CHART, CLOSED, OPEN, PORT, RELEASE, SYSTEM, Flows, install
from tests.cluster.workloads import made
from tests.e2e.story import HELD_SECONDS, POLLED, Story, digest_of, digests
from ullage import EventQuery, Retries
from ullage.contract import audience_of
from ullage.errors import Unauthenticated

LIBRARY = "/usr/lib/python3.11"
"""Real files of the agent's image: some thousand, most of them small."""

TOKENS = "/var/run/secrets/tokens"
BLOCK = 4096
FAILING = {"CrashLoopBackOff", "RunContainerError", "StartError"}
IMAGE = "{.spec.template.spec.containers[0].image}"
PUTS = 120
PUT_BYTES = 64 << 10


def test_a_flow_on_each_node_puts_real_files_through_the_service(story: Story) -> None:
    """A pod on each node puts a tree of files by the Service's name; its own node's agent has all of them."""
    flows = story.flows
    flows.cluster.apply(*(_flow(flows.namespace, node) for node in flows.cluster.nodes))
    phase = "--for=jsonpath={.status.phase}=Succeeded"
    flows.cluster.kubectl("wait", phase, "pod", "--selector=app=flow", flows.here, "--timeout=120s")

    for node in flows.cluster.nodes:
        put = json.loads(flows.cluster.kubectl("logs", f"flow-{node}", flows.here))
        assert put["count"] > 1000
        assert put["skipped"] == []
        assert flows.disk_bytes(node) >= put["bytes"]
        if node == flows.repository.state().node:
            queue = flows.repository.queues.find("inbox")
            assert (queue.flow_files, queue.size_bytes) == (put["count"], put["bytes"])


def _flow(place: str, node: str) -> dict[str, Any]:
    """A pod that puts the library into the queue inbox, with the rights and the authority that a flow is given."""
    environment = {
        "ULLAGE_URL": f"https://flows-local.{place}.svc:{PORT}/",
        "ULLAGE_CA": "/authority/ca.crt",
    }
    container = {
        "name": "put",
        "image": images.image_name("agent"),
        "imagePullPolicy": "Never",
        "command": ["ullage", "put", "--follow", "--queue=inbox", "--json", LIBRARY],
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "volumeMounts": [{"name": "authority", "mountPath": "/authority"}, {"name": "token", "mountPath": TOKENS}],
    }
    token = {"serviceAccountToken": {"audience": audience_of(place, "flows"), "path": "ullage"}}
    spec = {
        "serviceAccountName": "flow",
        "nodeName": node,
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [
            {"name": "authority", "configMap": {"name": "flows-ullage-ca"}},
            {"name": "token", "projected": {"sources": [token]}},
        ],
    }
    return made("v1", "Pod", f"flow-{node}", place, metadata={"labels": {"app": "flow"}}, spec=spec)


def test_agents_run_without_root_and_refuse_strangers(story: Story) -> None:
    """Their user cannot write to the image, Python's path has no current directory, and no token means 401."""
    flows = story.flows
    look = "import os, sys; print(os.getuid(), sys.flags.safe_path); open('/opt/ullage/new', 'w')"
    command = ("exec", "daemonset/flows-ullage", flows.here, "--container=agent", "--", "sh", "-c")

    refused = flows.cluster.kubectl(*command, f'python -c "{look}" 2>&1 || true')

    assert refused.startswith("10001 True")
    assert "Read-only file system" in refused
    with flows.connected(is_known=False) as stranger, pytest.raises(Unauthenticated):
        stranger.handles.page()


def test_drops_leave_dead_bytes_while_the_window_is_closed(story: Story) -> None:
    """Two of three FlowFiles are done with: the disk is as full as before, and nothing was given back."""
    flows = story.flows
    node = flows.repository.state().node
    full = flows.disk_bytes(node)
    gone = 0
    with flows.repository.session(lease_seconds=HELD_SECONDS) as session:
        while held := session.get_many("inbox", POLLED):
            found = {each.id: digest_of(session, each) for each in held}
            kept = [each.id for each in held[::3]]
            rest = [each for each in held if each.id not in kept]
            session.transfer(kept, "kept")
            session.remove(rest)
            session.commit()
            story.digests |= {id: found[id] for id in kept}
            story.dropped |= {each.id: found[each.id] for each in rest}
            gone += sum(each.size for each in rest)

    flows.cluster.wait_until("what was dropped is dead", lambda: flows.dead_bytes() >= gone)
    assert len(story.dropped) > 500
    assert flows.disk_bytes(node) >= full
    assert flows.shown()["status"]["reclaimed"] == "0"


def test_the_past_of_a_dropped_file_can_be_read_and_replayed(story: Story) -> None:
    """Its events tell what happened; while its bytes are there it can be put back into a queue."""
    repository = story.flows.repository
    repository.queues.define("again")
    id, digest = next(iter(story.dropped.items()))
    events = repository.provenance.search(EventQuery(flow_file=id)).events
    assert events[0].attributes["absolute.path"].startswith(LIBRARY)
    assert events[-1].type == "DROP"
    with repository.provenance.content(events[0].id) as past:
        assert hashlib.sha256(past.read()).hexdigest() == digest
    replayed = repository.provenance.replay(events[0].id, "again")
    assert digests(repository, "again") == {replayed.id: digest}
    assert "REPLAY" in {event.type for event in repository.provenance.lineage(id).events}
    assert repository.queues.drop("again") == 1


def test_the_window_opens_and_the_disk_falls_to_what_the_plan_said(story: Story) -> None:
    """As many bytes come back as the plan promised, but for parts of blocks; what was kept is what it was."""
    flows = story.flows
    node = flows.repository.state().node
    plan = flows.repository.reclamation.plan(respects_guards=True)
    full = flows.disk_bytes(node)
    slack = BLOCK * 2 * plan.step_count
    assert plan.frees_bytes > 10 * slack

    flows.apply(OPEN)

    flows.cluster.wait_until(
        "the disk has its space back", lambda: flows.disk_bytes(node) <= full - plan.frees_bytes + slack
    )
    flows.cluster.wait_until("the status says so", lambda: flows.shown()["status"]["reclaimed"] != "0")
    flows.apply(CLOSED)
    flows.wait_until_ready()

    def row() -> dict[str, str]:
        cells = flows.cluster.kubectl("get", "contentrepositories", flows.here).splitlines()[1].split()
        return dict(zip(_headings(flows), cells, strict=False))

    shown = row()
    assert (shown["NODES"], shown["READY"]) == ("2", "2")
    # More may be told between two looks.
    flows.cluster.wait_until("both say it", lambda: row()["RECLAIMED"] == flows.shown()["status"]["reclaimed"])
    assert abs(full - flows.disk_bytes(node) - plan.frees_bytes) <= slack
    assert story.is_all_there()


def test_a_pod_killed_under_load_loses_and_doubles_nothing(story: Story) -> None:
    """SIGKILL amid puts: the client tries again by itself, and each content is there once."""
    flows = story.flows
    node = flows.repository.state().node
    pod = flows.pods()[node]
    contents = [secrets.token_bytes(PUT_BYTES) for _ in range(PUTS)]
    some_are_put = Event()
    put: dict[str, bytes] = {}

    with flows.connected(Retries(attempts=40)) as repository, ThreadPoolExecutor(4) as threads:

        def store(content: bytes) -> str:
            handle = repository.handles.put(content)
            put[handle] = content
            if len(put) == PUTS // 4:
                some_are_put.set()
            return handle

        storing = [threads.submit(store, content) for content in contents]
        assert some_are_put.wait(120)
        flows.cluster.kill_container(flows.namespace, pod)
        assert len({each.result() for each in storing}) == PUTS
        listed = [each.handle for each in repository.handles.all()]

    assert sorted(listed) == sorted(put)

    def restarts() -> int:
        """As the kubelet says, which says so a moment after the container serves again."""
        found = flows.cluster.get(f"pod/{pod}", flows.here)["status"]["containerStatuses"]
        return int(found[0]["restartCount"])

    flows.cluster.wait_until("it is told that it was started again", lambda: restarts() > 0)
    assert restarts() == 1
    story.handles |= put
    assert story.is_all_there()


def test_a_node_that_loses_its_power_comes_back_with_everything(story: Story) -> None:
    """Kubelet, containerd and all pods of a node die at once; when it has started again its agent has what it had."""
    flows = story.flows
    node = flows.repository.state().node

    flows.cluster.restart(node)

    flows.wait_until_ready()
    assert flows.repository.state().node == node
    assert story.is_all_there()


def test_an_upgrade_changes_a_kind_and_the_agents_and_keeps_everything(story: Story) -> None:
    """Repositories are listed with their age from now on; agents are new, and have what the old ones had."""
    flows, cluster = story.flows, story.flows.cluster
    assert "AGE" not in _headings(flows)
    newer = f"{images.image_name('agent')}-newer"
    for machine in cluster.nodes.values():
        machine.run("ctr", "--namespace=k8s.io", "images", "tag", "--force", images.image_name("agent"), newer)
    before = flows.pods()

    sets = (f"--set=agentImage={newer}", "--set=podAnnotations.story=upgraded")
    cluster.helm("upgrade", *RELEASE, CHART, "--reuse-values", *sets, "--wait", "--timeout=180s")

    assert "AGE" in _headings(flows)
    cluster.kubectl("wait", f"--for=jsonpath={IMAGE}={newer}", "daemonset/flows-ullage", flows.here, "--timeout=60s")
    cluster.kubectl("rollout", "status", "daemonset/flows-ullage", flows.here, "--timeout=180s")
    flows.wait_until_ready()
    assert set(flows.pods().values()).isdisjoint(before.values())
    assert story.is_all_there()


def _headings(flows: Flows) -> list[str]:
    return flows.cluster.kubectl("get", "contentrepositories", flows.here).splitlines()[0].split()


def test_an_image_that_does_not_start_gets_no_further_than_one_node(story: Story) -> None:
    """The other agents stay as they are, the status names the node; the wish taken back, all serve what they had."""
    flows, cluster = story.flows, story.flows.cluster
    cluster.load(images.base_archive())
    flows.apply(CLOSED, image=images.BASE_NAME)
    failing: dict[str, str] = {}

    def has_failed() -> bool:
        failing.update(_failing(flows))
        return bool(failing)

    cluster.wait_until("a pod does not start", has_failed)
    cluster.wait_until("the status says so", lambda: flows.is_("Reconciling"))
    ((failed, node),) = failing.items()
    conditions = {each["type"]: each for each in flows.shown()["status"]["conditions"]}
    assert node in conditions["Reconciling"]["message"]
    others = [pod for pod in flows.pods().values() if pod != failed]
    assert [pod for pod in others if not _is_ready(flows, pod)] == []

    flows.apply(CLOSED)

    cluster.wait_until("all pods are ready", lambda: not flows.is_("Reconciling") and not _failing(flows))
    flows.wait_until_ready()
    assert story.is_all_there()


def _is_ready(flows: Flows, pod: str) -> bool:
    conditions = flows.cluster.get(f"pod/{pod}", flows.here)["status"]["conditions"]
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)


def _failing(flows: Flows) -> dict[str, str]:
    """Pods that start again and again, and their nodes."""
    found = {}
    for pod in flows.cluster.get("pods", flows.here, "--selector=app.kubernetes.io/name=ullage-agent")["items"]:
        states = [each.get("state", {}) for each in pod["status"].get("containerStatuses", ())]
        if any(state.get("waiting", {}).get("reason") in FAILING for state in states):
            found[pod["metadata"]["name"]] = pod["spec"]["nodeName"]
    return found


def test_a_removed_release_leaves_the_data_and_one_installed_later_finds_it(story: Story) -> None:
    """`helm test` passes. The release goes after its repository and not before; directories and kinds stay, and the
    same repository is made of them again.
    """
    flows, cluster = story.flows, story.flows.cluster
    identity = flows.repository.state().repository
    cluster.helm("test", *RELEASE, "--timeout=120s")
    with pytest.raises(ClusterError):
        cluster.helm("uninstall", *RELEASE, "--wait", "--timeout=120s")
    assert cluster.get("deployment/ullage-operator", f"--namespace={SYSTEM}")["status"]["readyReplicas"] == 1

    flows.delete()
    cluster.helm("uninstall", *RELEASE, "--wait", "--timeout=120s")

    assert objects(cluster, flows.namespace) == {}
    assert "ullage" not in cluster.kubectl("get", "clusterroles,clusterrolebindings,validatingadmissionpolicies")
    assert "contentrepositories.ullage.dev" in cluster.kubectl("get", "crds")
    before = {node: flows.disk_bytes(node) for node in cluster.nodes}
    assert min(before.values()) > PUTS * PUT_BYTES

    install(cluster)
    flows.begin()

    assert {node: flows.disk_bytes(node) for node in cluster.nodes} == before
    assert flows.repository.state().repository == identity
    assert story.is_all_there()

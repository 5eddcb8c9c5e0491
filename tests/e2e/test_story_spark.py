"""Spark beside the story's repository: jobs of spark-submit and of the kubeflow operator, for which windows wait."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import images, spark
from tests.cluster.errors import ClusterError
from tests.cluster.images import image_name
from tests.cluster.operator_process import objects
from tests.cluster.release import CLOSED, OPEN
from tests.e2e import large_job, spark_job
from tests.e2e.story import Story

pytestmark = pytest.mark.timeout(2400)  # seconds; Spark's image takes minutes to build and to load

SIZE = 1 << 18
"""Of one content: larger ones would end their file."""

COUNT = 32
DROPPED = COUNT * SIZE // 2
APPLICATION_SECONDS_MAX = 600.0
HISTORY = images.ROOT / "examples/kubernetes/history.yaml"
JOBS = {"job": spark_job, "large": large_job}

LARGE_MIB = int(os.environ.get("ULLAGE_STORY_MIB", "10240"))
"""What the large job writes and reads, in contents of a MiB."""

LARGE_SECONDS_MAX = 3600.0
AS_PEOPLE_SET = {
    "spark.speculation": "true",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "30s",
}
"""Executors come and go, and slow tasks run twice. A cordoned node takes no new executor: nobody waits for it long."""


@dataclass
class Jobs:
    """The repository, and the jobs that read and write it."""

    story: Story

    def said(self, pod: str) -> dict[str, dict[str, Any]]:
        """What the job of a driver has told so far, by what it is about."""
        try:
            printed = self.story.flows.cluster.kubectl("logs", pod, self.story.flows.here)
        except ClusterError:
            return {}  # it has not begun
        told = [line.removeprefix("STORY ") for line in printed.splitlines() if line.startswith("STORY ")]
        return {each["what"]: each for each in map(json.loads, told)}

    def words(self, queue: str, until: str) -> list[str]:
        """What the job is told."""
        endpoint = f"kubernetes:{self.story.flows.namespace}/flows"
        return [endpoint, queue, until]

    def wait_until(self, what: str, holds: Callable[[], bool]) -> None:
        """With the patience that starting Spark needs."""
        self.story.flows.cluster.wait_until(what, holds, seconds_max=APPLICATION_SECONDS_MAX)

    def wait_for(self, pod: str, what: str, seconds_max: float = APPLICATION_SECONDS_MAX) -> dict[str, Any]:
        """What the job of a driver tells of it, once it does; what its pods printed if it ends before."""
        cluster, here = self.story.flows.cluster, self.story.flows.here
        ended = {"Failed", "Succeeded"}

        def is_told() -> bool:
            if what in self.said(pod):
                return True
            pods = {
                each["metadata"]["name"]: each["status"].get("phase") for each in cluster.get("pods", here)["items"]
            }
            if pods.get(pod) in ended or pods.get("submit") == "Failed":
                told = cluster.kubectl("logs", pod if pod in pods else "submit", here, "--tail=80")
                raise AssertionError(f"{pod} ended before it told of {what}\n{told}")
            return False

        cluster.wait_until(f"{pod} tells: {what}", is_told, seconds_max=seconds_max)
        return self.said(pod)[what]

    def drop_some(self) -> None:
        """Drop what a window could give back."""
        flows = self.story.flows
        flows.apply(CLOSED)
        flows.wait_until_ready()
        kept, _ = flows.half_dropped(1, COUNT, SIZE)
        self.story.handles |= kept

    def disk_bytes(self) -> int:
        """What content takes on the node of which some was dropped."""
        flows = self.story.flows
        return flows.disk_bytes(flows.repository.state().node)

    def wait_until_deferred(self, application: str) -> None:
        """The window opens, and the node waits for the application."""
        flows = self.story.flows
        flows.apply(OPEN)

        def is_deferred() -> bool:
            found = objects(flows.cluster, flows.namespace)[flows.repository.state().node]["spec"].get("deferral") or {}
            return f"{flows.namespace}/{application}" in found.get("waitsFor", ()) and flows.is_("MaintenanceDeferred")

        self.wait_until(f"the window waits for {application}", is_deferred)

    def wait_until_reclaimed(self, full: int) -> None:
        """The disk of the node has space back, and nothing that was kept is missing."""
        flows = self.story.flows
        self.wait_until("the disk has its space back", lambda: self.disk_bytes() <= full - DROPPED)
        flows.apply(CLOSED)
        flows.wait_until_ready()
        assert self.story.is_all_there()


@pytest.fixture(scope="module")
def jobs(story: Story) -> Jobs:
    """Nodes have Spark's image, and an account may run it and use the repository."""
    flows = story.flows
    flows.cluster.load(images.archive("spark"))
    texts = {name: Path(str(job.__file__)).read_text(encoding="utf-8") for name, job in JOBS.items()}
    flows.cluster.apply(*spark.spark_account(flows.namespace, **texts))
    return Jobs(story)


def test_the_window_waits_for_a_job_that_reads(jobs: Jobs) -> None:
    """spark-submit in cluster mode: the job writes, reads on each node what lies there, and reports who pins the disk.
    The window that opens meanwhile waits for its executors, and gives the space back when they are gone.
    """
    flows = jobs.story.flows
    jobs.drop_some()

    spark.begin(flows.cluster, flows.namespace, "story", jobs.words("spark", "enough"))

    assert jobs.wait_for("driver", "written")["rows"] == spark_job.ROWS
    read = jobs.wait_for("driver", "read")
    assert (read["rows"], read["bytes"]) == (spark_job.ROWS, spark_job.ROWS * spark_job.SIZE)
    assert read["beside"] == spark_job.ROWS
    assert read["local"] > spark_job.ROWS // 2
    node = flows.repository.state().node
    pinned = jobs.wait_for("driver", "report")["pinned"]
    assert pinned[f"{node}/(handles)"] >= DROPPED - SIZE
    full = jobs.disk_bytes()
    jobs.wait_until_deferred("story")
    assert jobs.disk_bytes() == full

    flows.repository.queues.define("enough")

    jobs.wait_for("driver", "ended")
    jobs.wait_until_reclaimed(full)


def test_a_cron_job_keeps_a_history_of_the_fleet(jobs: Jobs) -> None:
    """The example as it stands, with its account's rights: a run reads the events of all nodes, and skips none."""
    flows = jobs.story.flows
    jobs.story.keep(2, SIZE)
    text = HISTORY.read_text(encoding="utf-8").replace("data/flows", f"{flows.namespace}/flows")
    given = [each for each in yaml.safe_load_all(text) if each["kind"] != "PersistentVolumeClaim"]
    (cron,) = [each for each in given if each["kind"] == "CronJob"]
    pod = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    container |= {
        "image": image_name("spark"),
        "imagePullPolicy": "Never",
        "command": [*container["command"], "--json"],
    }
    (kept,) = [each for each in pod["volumes"] if each["name"] == "history"]
    kept["emptyDir"] = kept.pop("persistentVolumeClaim") and {}  # no class of volumes is here
    flows.cluster.kubectl("apply", flows.here, "--filename=-", stdin=yaml.safe_dump_all(given))

    flows.cluster.kubectl("create", "job", "history-now", "--from=cronjob/history", flows.here)

    job = ("job/history-now", flows.here)
    jobs.wait_until("its run is over", lambda: bool(flows.cluster.get(*job)["status"].get("conditions")))
    told = flows.cluster.kubectl("logs", *job)
    assert flows.cluster.get(*job)["status"].get("succeeded") == 1, told
    run = json.loads(told)
    assert (run["missing"], run["lost"]) == ([], [])
    assert run["rows"]["events"] > 0
    assert run["rows"]["space"] > 0
    flows.cluster.kubectl("delete", "cronjob", "history", flows.here)


@pytest.fixture(scope="module")
def kubeflow(jobs: Jobs) -> Jobs:
    """Its operator looks after the story's namespace."""
    spark.install_operator(jobs.story.flows.cluster, jobs.story.flows.namespace)
    return jobs


def _begin_application(jobs: Jobs, name: str, until: str) -> None:
    """A SparkApplication that reads until it is told."""
    flows = jobs.story.flows
    flows.cluster.apply(spark.application(flows.namespace, name, jobs.words(name, until)))


def _wait_until_state(jobs: Jobs, name: str, state: str) -> None:
    flows = jobs.story.flows

    def is_in_it() -> bool:
        return spark.application_state(flows.cluster, flows.namespace, name) == state

    jobs.wait_until(f"{name} is {state}", is_in_it)


def test_an_application_that_is_suspended_stands_in_nobodys_way(kubeflow: Jobs) -> None:
    """The window waits for it while it reads, and no longer than that; resumed it writes nothing twice."""
    flows = kubeflow.story.flows
    kubeflow.drop_some()
    _begin_application(kubeflow, "paused", "resumed")
    kubeflow.wait_for("paused-driver", "report")
    full = kubeflow.disk_bytes()
    kubeflow.wait_until_deferred("paused")
    name = f"{spark.APPLICATIONS}/paused"

    flows.cluster.kubectl("patch", name, flows.here, "--type=merge", '--patch={"spec": {"suspend": true}}')

    _wait_until_state(kubeflow, "paused", "SUSPENDED")
    kubeflow.wait_until_reclaimed(full)
    flows.repository.queues.define("resumed")
    flows.cluster.kubectl("patch", name, flows.here, "--type=merge", '--patch={"spec": {"suspend": false}}')
    assert kubeflow.wait_for("paused-driver", "ended")
    read = kubeflow.said("paused-driver")["read"]
    assert (read["rows"], read["beside"]) == (spark_job.ROWS, spark_job.ROWS)
    _wait_until_state(kubeflow, "paused", "COMPLETED")


def test_an_application_that_failed_stands_in_nobodys_way(kubeflow: Jobs) -> None:
    """Its object and its driver's pod stay for people to look at; the window opens all the same."""
    flows = kubeflow.story.flows
    kubeflow.drop_some()
    full = kubeflow.disk_bytes()
    _begin_application(kubeflow, "failing", "fail")
    _wait_until_state(kubeflow, "failing", "FAILED")

    def is_over() -> bool:
        found = flows.cluster.get("pod/failing-driver", flows.here)
        return str(found["status"]["phase"]) == "Failed"

    kubeflow.wait_until("its driver is over", is_over)  # its container ends a little before

    flows.apply(OPEN)

    kubeflow.wait_until_reclaimed(full)


def test_an_application_deleted_while_it_reads_leaves_nothing_behind(kubeflow: Jobs) -> None:
    """What its snapshot holds stays while it reads, though the window is open. Its pods go at once, and what was held
    is given back when nobody has renewed the snapshot for a while.
    """
    flows = kubeflow.story.flows
    kubeflow.drop_some()
    _begin_application(kubeflow, "doomed", "held")
    kubeflow.wait_for("doomed-driver", "report")
    full = kubeflow.disk_bytes()
    flows.apply(OPEN)
    flows.wait_until_ready()
    assert kubeflow.disk_bytes() == full

    flows.cluster.kubectl("delete", spark.APPLICATIONS, "doomed", flows.here, "--timeout=120s")

    kubeflow.wait_until_reclaimed(full)
    running = "--selector=spark-role in (driver,executor)"
    assert "doomed" not in flows.cluster.kubectl("get", "pods", flows.here, running)


def test_a_scheduled_application_is_waited_for_each_time_it_runs(kubeflow: Jobs) -> None:
    """Between two runs the window does its work; the application that it waits for is the run."""
    flows = kubeflow.story.flows
    kubeflow.drop_some()
    words = kubeflow.words("scheduled", "once")
    flows.cluster.apply(spark.scheduled(flows.namespace, "regular", words, "@every 20s"))

    def run() -> str:
        status = flows.cluster.get(f"{spark.SCHEDULED}/regular", flows.here).get("status", {})
        return str(status.get("lastRunName", ""))

    kubeflow.wait_until("it has been begun", lambda: run() != "")
    first = run()
    flows.cluster.kubectl(
        *("patch", f"{spark.SCHEDULED}/regular", flows.here, "--type=merge"), '--patch={"spec": {"suspend": true}}'
    )
    kubeflow.wait_for(f"{first}-driver", "report")
    full = kubeflow.disk_bytes()
    kubeflow.wait_until_deferred(first)
    flows.repository.queues.define("once")
    _wait_until_state(kubeflow, first, "COMPLETED")
    kubeflow.wait_until_reclaimed(full)
    flows.cluster.kubectl("delete", spark.SCHEDULED, "regular", flows.here, "--timeout=120s")


@pytest.mark.timeout(3 * LARGE_SECONDS_MAX)
def test_a_large_application_reads_everything_once_whatever_happens_to_its_nodes(kubeflow: Jobs) -> None:
    """Nearly all where it lies, as far as executors run there. Executors come and go, slow tasks run twice, and the
    window waits. Amid the reading one node is cordoned, and the agent of the other one killed, which loses its part of
    the snapshot: so the application is begun again, stores nothing twice and reads all of it. Between its two runs
    nothing reads, and the window need not wait.
    """
    flows = kubeflow.story.flows
    kubeflow.drop_some()
    flows.change(storage=with_room(flows.shown()["spec"]["storage"], 2 * LARGE_MIB))
    flows.apply(CLOSED)
    flows.wait_until_ready()
    words = kubeflow.words("large", str(LARGE_MIB))
    flows.cluster.apply(spark.application(flows.namespace, "large", words, "large", AS_PEOPLE_SET, retries=3))
    kubeflow.wait_for("large-driver", "amid", LARGE_SECONDS_MAX)
    here = flows.repository.state().node
    (other,) = set(flows.pods()) - {here}
    full = kubeflow.disk_bytes()
    kubeflow.wait_until_deferred("large")
    assert kubeflow.disk_bytes() == full

    flows.cluster.kubectl("cordon", other)
    flows.cluster.kill_container(flows.namespace, flows.pods()[here])

    def is_read() -> bool:
        return "read" in kubeflow.said("large-driver")

    flows.cluster.wait_until("all of it is read", is_read, seconds_max=LARGE_SECONDS_MAX)
    read = kubeflow.said("large-driver")["read"]
    flows.cluster.kubectl("uncordon", other)
    assert (read["contents"], read["distinct"], read["bytes"]) == (LARGE_MIB, LARGE_MIB, LARGE_MIB << 20)
    assert read["local"] > 0.9 * read["could_be_local"]
    _wait_until_state(kubeflow, "large", "COMPLETED")
    kubeflow.wait_until_reclaimed(full)


def with_room(storage: dict[str, Any], mebibytes: int) -> dict[str, Any]:
    """The same directories, of which each may hold so much."""
    return storage | {"containers": [each | {"capacity": f"{mebibytes}Mi"} for each in storage["containers"]]}

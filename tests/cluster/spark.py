"""Spark on the cluster's nodes: a driver and executors as pods, submitted by hand or by the kubeflow operator."""

import json
from typing import Any

from tests.cluster.images import image_name
from tests.cluster.machines import HUB
from tests.cluster.node import Cluster
from tests.cluster.tools import module_source, tool
from tests.cluster.workloads import account, made
from ullage_operator.objects import RBAC, binding

ACCOUNT = "spark"
MEMORY = "700m"
OVERHEAD = {"driver": "1536m", "executor": "1g"}
"""Beside the heap, of pods that read content, as docs/spark.md advises."""

CORES = "200m"
OPERATOR = "spark-operator"
APPLICATIONS = "sparkapplications.sparkoperator.k8s.io"
SCHEDULED = "scheduledsparkapplications.sparkoperator.k8s.io"

DRIVER = "spark-kubernetes-driver"
EXECUTOR = "spark-kubernetes-executor"
MOUNTS = [{"name": "job", "mountPath": "/job"}]
VOLUMES = [{"name": "job", "configMap": {"name": ACCOUNT}}]

ALL_EXECUTORS_FIRST = {
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
}
"""Settings: no task begins before all executors are there, on a busy machine neither."""

JOB = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
sums = spark.sparkContext.parallelize(range(10_000), 8).map(lambda n: n * n)
executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
rows = spark.read.format("ullage").option("nodes", "[]").load().count()
print(f"sum {sums.sum()} executors {executors} FlowFiles {rows}")
spark.stop()
"""
"""Sums the squares below 10,000 on whoever has come, and reads of no node: the source has to be there for that."""

ANSWER = f"sum {sum(n * n for n in range(10_000))} executors 2 FlowFiles 0"


AT_CONTENT = {
    "spark.kubernetes.driver.podTemplateFile": "/job/driver.json",
    "spark.kubernetes.executor.podTemplateFile": "/job/executor.json",
    **{f"spark.{role}.memoryOverhead": size for role, size in OVERHEAD.items()},
}
"""Settings of a job that reads and writes the repository `flows` of its namespace; see `at_content`."""


def spark_account(namespace: str, job: str = JOB) -> list[dict[str, Any]]:
    """The account whose drivers may make executors, and the job as files of a ConfigMap."""
    driver = {"containers": [{"name": DRIVER, "volumeMounts": MOUNTS}], "volumes": VOLUMES}
    templates = {
        "template.json": driver,
        "driver.json": at_content(namespace, DRIVER),
        "executor.json": at_content(namespace, EXECUTOR),
    }
    files = {name: json.dumps({"apiVersion": "v1", "kind": "Pod", "spec": spec}) for name, spec in templates.items()}
    told = made("v1", "ConfigMap", ACCOUNT, namespace, data={"job.py": job, **files})
    return [*account(ACCOUNT, namespace, "edit"), told]


def content_user(namespace: str) -> dict[str, Any]:
    """Spark's account may do with content what that of clients may."""
    bound = binding("Role", "flow", ACCOUNT, namespace)
    return made(f"{RBAC}/v1", "RoleBinding", "spark-content", namespace, **bound)


def at_content(namespace: str, container: str) -> dict[str, Any]:
    """A pod's template as docs/spark.md has it: credentials, the node's name, the folder of the agent's socket; and one
    executor a node.
    """
    node = {"name": "ULLAGE_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    token = {"serviceAccountToken": {"path": "ullage", "expirationSeconds": 3600}}
    authority = {"configMap": {"name": "flows-ullage-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}
    mounts = [
        {"name": "ullage", "mountPath": "/var/run/secrets/tokens", "readOnly": True},
        {"name": "ullage-socket", "mountPath": "/run/ullage"},
    ]
    volumes = [
        {"name": "ullage", "projected": {"sources": [token, authority]}},
        {"name": "ullage-socket", "hostPath": {"path": f"/run/ullage/{namespace}/flows"}},
    ]
    term = {"labelSelector": {"matchLabels": {"spark-role": "executor"}}, "topologyKey": "kubernetes.io/hostname"}
    is_driver = container == DRIVER
    mounts, volumes = (mounts + MOUNTS, volumes + VOLUMES) if is_driver else (mounts, volumes)
    main = {"name": container, "env": [node], "volumeMounts": mounts}
    spec: dict[str, Any] = {"containers": [main], "volumes": volumes}
    if not is_driver:
        spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return spec


def submit(cluster: Cluster, namespace: str) -> str:
    """Run the job in cluster mode with two executors, as a pod that calls spark-submit; what its pods printed."""
    begin(cluster, namespace, "squares", [], {"spark.kubernetes.driver.podTemplateFile": "/job/template.json"})
    return _finished(cluster, namespace, "driver")


def begin(cluster: Cluster, namespace: str, name: str, arguments: list[str], more: dict[str, str]) -> None:
    """The same with arguments and more settings; its pods are `submit`, which waits for the end, and `driver`."""
    settings = {
        "spark.executor.instances": "2",
        **ALL_EXECUTORS_FIRST,
        "spark.kubernetes.namespace": namespace,
        "spark.kubernetes.container.image": image_name("spark"),
        "spark.kubernetes.container.image.pullPolicy": "Never",
        "spark.kubernetes.authenticate.driver.serviceAccountName": ACCOUNT,
        "spark.kubernetes.driver.pod.name": "driver",
        "spark.kubernetes.driver.request.cores": CORES,
        "spark.kubernetes.executor.request.cores": CORES,
        "spark.driver.memory": MEMORY,
        "spark.executor.memory": MEMORY,
        **more,
    }
    words = ["/opt/spark/bin/spark-submit", f"--master=k8s://https://{HUB}:{cluster.port}", "--deploy-mode=cluster"]
    words += [f"--name={name}", *(f"--conf={name}={value}" for name, value in settings.items())]
    container = {
        "name": "submit",
        "image": image_name("spark"),
        "imagePullPolicy": "Never",
        "command": [*words, "local:///job/job.py", *arguments],
        "volumeMounts": MOUNTS,
    }
    spec = {"serviceAccountName": ACCOUNT, "restartPolicy": "Never", "containers": [container], "volumes": VOLUMES}
    cluster.apply(made("v1", "Pod", "submit", namespace, spec=spec))


def _finished(cluster: Cluster, namespace: str, driver: str) -> str:
    here = f"--namespace={namespace}"

    def phases() -> dict[str, str]:
        return {pod["metadata"]["name"]: pod["status"]["phase"] for pod in cluster.get("pods", here)["items"]}

    def ended() -> bool:
        return phases().get(driver) in {"Succeeded", "Failed"} or "Failed" in phases().values()

    cluster.wait_until("the Spark job has ended", ended, seconds_max=240)
    return "".join(cluster.kubectl("logs", pod, here) for pod in phases())


def install_operator(cluster: Cluster, namespace: str) -> None:
    """The kubeflow operator's custom resources, and its controller in a pod of the Spark image.

    The program comes from the node's disk: it is one static file, and what it runs is the image's own spark-submit.
    """
    program = tool("spark-operator")
    for crd in sorted((module_source("spark-operator") / "config" / "crd" / "bases").glob("*.yaml")):
        cluster.kubectl("apply", "--server-side", "--filename", crd)
    cluster.wait_until("the custom resources are served", cluster.serves_all_custom_resources)
    bound = binding("ClusterRole", "cluster-admin", OPERATOR, namespace)  # what it may do is not what we test
    container = {
        "name": "operator",
        "image": image_name("spark"),
        "imagePullPolicy": "Never",
        "command": ["/operator/spark-operator", "controller", "start", f"--namespaces={namespace}"],
        "volumeMounts": [{"name": "operator", "mountPath": "/operator", "readOnly": True}],
    }
    spec = {
        "serviceAccountName": OPERATOR,
        "containers": [container],
        "volumes": [{"name": "operator", "hostPath": {"path": str(program.parent)}}],
    }
    cluster.apply(
        made("v1", "ServiceAccount", OPERATOR, namespace),
        made(f"{RBAC}/v1", "ClusterRoleBinding", f"{OPERATOR}-{namespace}", **bound),
        made("v1", "Pod", OPERATOR, namespace, spec=spec),
    )
    cluster.kubectl("wait", "--for=condition=Ready", f"pod/{OPERATOR}", f"--namespace={namespace}", "--timeout=60s")


def spark_application(namespace: str) -> dict[str, Any]:
    """The same job as an object that the kubeflow operator submits."""
    driver = {"containers": [{"name": DRIVER, "volumeMounts": MOUNTS}], "volumes": VOLUMES}
    return _application("SparkApplication", namespace, "squares", _application_spec([], driver, None))


def application_at_content(namespace: str, name: str, arguments: list[str]) -> dict[str, Any]:
    """The job of `spark_account` as a SparkApplication that reads and writes the repository `flows`."""
    return _application("SparkApplication", namespace, name, _spec_at_content(namespace, arguments))


def scheduled_at_content(namespace: str, name: str, arguments: list[str], schedule: str) -> dict[str, Any]:
    """The same, begun whenever the schedule says so, one at a time."""
    template = _spec_at_content(namespace, arguments)
    spec = {"schedule": schedule, "concurrencyPolicy": "Forbid", "template": template}
    return _application("ScheduledSparkApplication", namespace, name, spec)


def _application(kind: str, namespace: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return made("sparkoperator.k8s.io/v1beta2", kind, name, namespace, spec=spec)


def _spec_at_content(namespace: str, arguments: list[str]) -> dict[str, Any]:
    spec = _application_spec(arguments, at_content(namespace, DRIVER), at_content(namespace, EXECUTOR))
    for role, size in OVERHEAD.items():
        spec[role]["memoryOverhead"] = size
    return spec


def _application_spec(arguments: list[str], driver: dict[str, Any], executor: dict[str, Any] | None) -> dict[str, Any]:
    """By the templates of both pods."""
    size = {"cores": 1, "coreRequest": CORES, "memory": MEMORY}
    return {
        "type": "Python",
        "pythonVersion": "3",
        "mode": "cluster",
        "sparkVersion": "4.0.0",
        "image": image_name("spark"),
        "imagePullPolicy": "Never",
        "mainApplicationFile": "local:///job/job.py",
        "arguments": arguments,
        "restartPolicy": {"type": "Never"},
        "sparkConf": ALL_EXECUTORS_FIRST,
        "driver": {**size, "serviceAccount": ACCOUNT, "template": {"spec": driver}},
        "executor": {**size, "instances": 2} | ({} if executor is None else {"template": {"spec": executor}}),
    }


def run_application(cluster: Cluster, namespace: str) -> tuple[str, str]:
    """The state in which the operator sees the application end, and what its pods printed."""
    cluster.apply(spark_application(namespace))
    ends = {"COMPLETED", "FAILED", "SUBMISSION_FAILED"}

    def has_ended() -> bool:
        return application_state(cluster, namespace, "squares") in ends

    cluster.wait_until("the operator sees the application end", has_ended, seconds_max=240)
    here = f"--namespace={namespace}"
    pods = cluster.kubectl("get", "pods", here, "--output=name").split()
    printed = "".join(cluster.kubectl("logs", pod, here) for pod in pods)
    return application_state(cluster, namespace, "squares"), printed


def application_state(cluster: Cluster, namespace: str, name: str) -> str:
    """What the operator says of an application."""
    found = cluster.get(f"{APPLICATIONS}/{name}", f"--namespace={namespace}")
    return str(found.get("status", {}).get("applicationState", {}).get("state", ""))

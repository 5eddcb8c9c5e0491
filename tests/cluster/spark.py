"""Spark on the cluster's nodes: a driver and executors as pods, submitted by hand or by the kubeflow operator."""

import json
from typing import Any

from tests.cluster.images import image_name
from tests.cluster.machines import HUB
from tests.cluster.node import Cluster
from tests.cluster.tools import module_source, tool

ACCOUNT = "spark"
MEMORY = "700m"
CORES = "200m"
OPERATOR = "spark-operator"

DRIVER = "spark-kubernetes-driver"
MOUNTS = [{"name": "job", "mountPath": "/job"}]
VOLUMES = [{"name": "job", "configMap": {"name": ACCOUNT}}]

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


def spark_account(namespace: str) -> list[dict[str, Any]]:
    """The account whose drivers may make executors, and the job as files of a ConfigMap."""
    inside = {"name": ACCOUNT, "namespace": namespace}
    edit = {"kind": "ClusterRole", "name": "edit", "apiGroup": "rbac.authorization.k8s.io"}
    subject = {"kind": "ServiceAccount", **inside}
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": inside}
    driver = {"containers": [{"name": DRIVER, "volumeMounts": MOUNTS}], "volumes": VOLUMES}
    template = json.dumps({"apiVersion": "v1", "kind": "Pod", "spec": driver})
    files = {"job.py": JOB, "template.json": template}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": inside},
        {**binding, "roleRef": edit, "subjects": [subject]},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": inside, "data": files},
    ]


def submit(cluster: Cluster, namespace: str) -> str:
    """Run the job in cluster mode with two executors, as a pod that calls spark-submit; what its pods printed."""
    settings = {
        "spark.executor.instances": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.kubernetes.namespace": namespace,
        "spark.kubernetes.container.image": image_name("spark"),
        "spark.kubernetes.container.image.pullPolicy": "Never",
        "spark.kubernetes.authenticate.driver.serviceAccountName": ACCOUNT,
        "spark.kubernetes.driver.pod.name": "driver",
        "spark.kubernetes.driver.podTemplateFile": "/job/template.json",
        "spark.kubernetes.driver.request.cores": CORES,
        "spark.kubernetes.executor.request.cores": CORES,
        "spark.driver.memory": MEMORY,
        "spark.executor.memory": MEMORY,
    }
    words = ["/opt/spark/bin/spark-submit", f"--master=k8s://https://{HUB}:{cluster.port}", "--deploy-mode=cluster"]
    words += ["--name=squares", *(f"--conf={name}={value}" for name, value in settings.items())]
    spec = {
        "serviceAccountName": ACCOUNT,
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "submit",
                "image": image_name("spark"),
                "imagePullPolicy": "Never",
                "command": [*words, "local:///job/job.py"],
                "volumeMounts": MOUNTS,
            }
        ],
        "volumes": VOLUMES,
    }
    metadata = {"name": "submit", "namespace": namespace}
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return _finished(cluster, namespace, "driver")


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
    rbac = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": OPERATOR, "namespace": namespace}
    role = {"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": rbac}  # what it may do is not what we test
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"{OPERATOR}-{namespace}"},
    }
    metadata = {"name": OPERATOR, "namespace": namespace}
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
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {**binding, "roleRef": role, "subjects": [subject]},
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec},
    )
    cluster.kubectl("wait", "--for=condition=Ready", f"pod/{OPERATOR}", f"--namespace={namespace}", "--timeout=60s")


def spark_application(namespace: str) -> dict[str, Any]:
    """The same job as an object that the kubeflow operator submits."""
    size = {"cores": 1, "coreRequest": CORES, "memory": MEMORY}
    return {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": {"name": "squares", "namespace": namespace},
        "spec": {
            "type": "Python",
            "pythonVersion": "3",
            "mode": "cluster",
            "sparkVersion": "4.0.0",
            "image": image_name("spark"),
            "imagePullPolicy": "Never",
            "mainApplicationFile": "local:///job/job.py",
            "restartPolicy": {"type": "Never"},
            "sparkConf": {"spark.scheduler.minRegisteredResourcesRatio": "1.0"},
            "driver": {
                **size,
                "serviceAccount": ACCOUNT,
                "template": {
                    "spec": {"containers": [{"name": DRIVER, "volumeMounts": MOUNTS}], "volumes": VOLUMES},
                },
            },
            "executor": {**size, "instances": 2},
        },
    }


def run_application(cluster: Cluster, namespace: str) -> tuple[str, str]:
    """The state in which the operator sees the application end, and what its pods printed."""
    cluster.apply(spark_application(namespace))
    name = "sparkapplication.sparkoperator.k8s.io/squares"
    ends = {"COMPLETED", "FAILED", "SUBMISSION_FAILED"}

    def state() -> str:
        status = cluster.get(name, f"--namespace={namespace}").get("status", {})
        return str(status.get("applicationState", {}).get("state", ""))

    cluster.wait_until("the operator sees the application end", lambda: state() in ends, seconds_max=240)
    here = f"--namespace={namespace}"
    pods = cluster.kubectl("get", "pods", here, "--output=name").split()
    return state(), "".join(cluster.kubectl("logs", pod, here) for pod in pods)

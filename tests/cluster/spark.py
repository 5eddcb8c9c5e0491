"""Spark on the cluster's nodes: a driver and executors as pods, submitted by hand or by the kubeflow operator."""

import json
from typing import Any

from tests.cluster.images import image_name
from tests.cluster.machines import HUB
from tests.cluster.node import Cluster
from tests.cluster.tools import TOOLS, module_source, tool
from tests.cluster.workloads import account, made
from ullage.contract import audience_of
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


def spark_account(namespace: str, **jobs: str) -> list[dict[str, Any]]:
    """The account whose drivers may make executors, and do with content what the account of clients may; and jobs, by
    their names, as files of a ConfigMap.
    """
    parts = {"driver.json": DRIVER, "executor.json": EXECUTOR}
    templates = {name: at_content(namespace, container) for name, container in parts.items()}
    files = {name: json.dumps({"apiVersion": "v1", "kind": "Pod", "spec": spec}) for name, spec in templates.items()}
    return [
        *account(ACCOUNT, namespace, "edit"),
        made(f"{RBAC}/v1", "RoleBinding", "spark-content", namespace, **binding("Role", "flow", ACCOUNT, namespace)),
        made("v1", "ConfigMap", ACCOUNT, namespace, data={f"{name}.py": text for name, text in jobs.items()} | files),
    ]


def at_content(namespace: str, container: str) -> dict[str, Any]:
    """A pod's template as docs/spark.md has it: credentials, the node's name, the folder of the agent's socket; and one
    executor a node.
    """
    node = {"name": "ULLAGE_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    audience = audience_of(namespace, "flows")
    token = {"serviceAccountToken": {"audience": audience, "path": "ullage", "expirationSeconds": 3600}}
    authority = {"configMap": {"name": "flows-ullage-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}
    mounts: list[dict[str, Any]] = [
        {"name": "ullage", "mountPath": "/var/run/secrets/tokens", "readOnly": True},
        {"name": "ullage-socket", "mountPath": "/run/ullage", "readOnly": True},
    ]
    volumes: list[dict[str, Any]] = [
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


def begin(cluster: Cluster, namespace: str, name: str, arguments: list[str]) -> None:
    """Run the job of `spark_account` in cluster mode with two executors, as a pod that calls spark-submit; its pods are
    `submit`, which waits for the end, and `driver`.
    """
    settings = {
        "spark.executor.instances": "2",
        **ALL_EXECUTORS_FIRST,
        "spark.kubernetes.namespace": namespace,
        "spark.kubernetes.container.image": image_name("spark"),
        "spark.kubernetes.container.image.pullPolicy": "Never",
        "spark.kubernetes.authenticate.driver.serviceAccountName": ACCOUNT,
        "spark.kubernetes.driver.pod.name": "driver",
    }
    for role, overhead in OVERHEAD.items():
        settings |= {
            f"spark.kubernetes.{role}.podTemplateFile": f"/job/{role}.json",
            f"spark.kubernetes.{role}.request.cores": CORES,
            f"spark.{role}.memory": MEMORY,
            f"spark.{role}.memoryOverhead": overhead,
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


def install_operator(cluster: Cluster, namespace: str) -> None:
    """The kubeflow operator's custom resources, and its controller in a pod of the Spark image.

    The program comes from the node's disk: it is one static file, and what it runs is the image's own spark-submit.
    """
    program = tool("spark-operator")
    for crd in sorted((module_source(OPERATOR, TOOLS[OPERATOR].module) / "config" / "crd" / "bases").glob("*.yaml")):
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


def application(
    namespace: str,
    name: str,
    arguments: list[str],
    job: str = "job",
    settings: dict[str, str] | None = None,
    retries: int = 0,
) -> dict[str, Any]:
    """A job of `spark_account` as an object that the kubeflow operator submits, with more settings of Spark's; if it
    fails `retries` times again.
    """
    spec = _spec(namespace, arguments)
    if retries:
        again = {"type": "OnFailure", "onFailureRetries": retries, "onFailureRetryInterval": 5}
        spec |= {"restartPolicy": again}
    spec |= {"mainApplicationFile": f"local:///job/{job}.py", "sparkConf": spec["sparkConf"] | (settings or {})}
    return _application("SparkApplication", namespace, name, spec)


def scheduled(namespace: str, name: str, arguments: list[str], schedule: str) -> dict[str, Any]:
    """The same, begun whenever the schedule says so, one at a time."""
    spec = {"schedule": schedule, "concurrencyPolicy": "Forbid", "template": _spec(namespace, arguments)}
    return _application("ScheduledSparkApplication", namespace, name, spec)


def _application(kind: str, namespace: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return made("sparkoperator.k8s.io/v1beta2", kind, name, namespace, spec=spec)


def _spec(namespace: str, arguments: list[str]) -> dict[str, Any]:
    def part(role: str, container: str) -> dict[str, Any]:
        template = {"spec": at_content(namespace, container)}
        size = {"cores": 1, "coreRequest": CORES, "memory": MEMORY, "memoryOverhead": OVERHEAD[role]}
        return {**size, "template": template}

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
        "driver": {**part("driver", DRIVER), "serviceAccount": ACCOUNT},
        "executor": {**part("executor", EXECUTOR), "instances": 2},
    }


def application_state(cluster: Cluster, namespace: str, name: str) -> str:
    """What the operator says of an application."""
    found = cluster.get(f"{APPLICATIONS}/{name}", f"--namespace={namespace}")
    return str(found.get("status", {}).get("applicationState", {}).get("state", ""))

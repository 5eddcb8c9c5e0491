"""The objects that run spec.planning: a SparkApplication where kubeflow's operator is, else a Job with spark-submit.

Both run `ullage spark plan`, which reads what each agent knows of its resource claims, and prints the plan. The Job is
one pod that plans alone: it costs what there are of resource claims, a million take seconds. The SparkApplication has
executors. Neither needs a lease, and no node waits for them.
"""

import posixpath
from typing import Final

from ullage.contract import TOKEN_FILE, audience_of, time_of
from ullage_operator import objects
from ullage_operator.node.blockers import IGNORED
from ullage_operator.objects import Object, RepositoryObject, dressed
from ullage_operator.rbac import PLANNER, planner_rules
from ullage_operator.settings import DEFAULT_PODS, PodSettings

LABEL: Final = "ullage.dev/planning"
"""On the pods of a run: its name."""

SCHEDULED: Final = "ullage.dev/scheduled"
"""Annotation of a run: for which time of the schedule it is."""

SPARK_SUBMIT: Final = "/opt/spark/bin/spark-submit"
PROGRAM: Final = "/opt/ullage-spark.py"
"""Of Spark's image: the command line `ullage`, as spark-submit takes it."""

SPARK_VERSION: Final = "4.3.0"
AUTHORITY: Final = "/etc/ullage/ca"
CREDENTIALS: Final = [{"name": "ULLAGE_CREDENTIALS", "value": f"{posixpath.dirname(TOKEN_FILE)}:{AUTHORITY}"}]
"""The folders in which Spark's sources may read a token and an authority, see docs/spark.md."""

MEMORY: Final = "1g"
MEMORY_REQUEST: Final = "1536Mi"
"""Of the Job's pod: Spark's heap, and Python's beside it."""

PARTS: Final = 8
EXECUTORS: Final = 2
CONFINED: Final = {**objects.confined(objects.SPARK_USER), "seccompProfile": {"type": "RuntimeDefault"}}
DRIVER: Final = "spark-kubernetes-driver"
EXECUTOR: Final = "spark-kubernetes-executor"


def account_name(repository: RepositoryObject) -> str:
    """As which plans are made."""
    return f"{repository.name}-ullage-planner"


def run_name(repository: RepositoryObject, scheduled_millis: int) -> str:
    """One for each minute: what is applied twice is there once. Short enough for what Spark adds to it."""
    stem = repository.name
    if len(stem) > 30:
        stem = f"{stem[:20].rstrip('-')}-{objects.digest(stem, 8)}"
    return f"{stem}-plan-{scheduled_millis // 60_000}"


def labels(repository: RepositoryObject) -> dict[str, str]:
    """Of a run and all that belongs to planning; not the agents', or their Services would lead here."""
    return {**repository.labels, "app.kubernetes.io/name": "ullage-planner"}


def account_objects(repository: RepositoryObject) -> list[Object]:
    """The account, and what it may: read from this repository, find its nodes, and make executors."""
    name = account_name(repository)
    executors = objects.binding("ClusterRole", PLANNER, name, repository.namespace)
    return [
        *repository.owned_account(name, planner_rules(repository.name)),
        repository.owned("RoleBinding", f"{name}-executors", **executors),
    ]


def run_object(
    repository: RepositoryObject,
    image: str,
    scheduled_millis: int,
    *,
    is_application: bool,
    has_authority: bool,
    pods: PodSettings = DEFAULT_PODS,
) -> Object:
    """The run for that time. `has_authority`: whom to trust is in the repository's ConfigMap."""
    name = run_name(repository, scheduled_millis)
    kind, spec_of = ("SparkApplication", _application) if is_application else ("Job", _job)
    spec = spec_of(repository, name, repository.spec.planning.image or image, pods, has_authority=has_authority)
    metadata = {"labels": labels(repository), "annotations": {SCHEDULED: time_of(scheduled_millis)}}
    return repository.owned(kind, name, metadata=metadata, spec=spec)


def arguments(repository: RepositoryObject, *, has_authority: bool) -> list[str]:
    """Of `ullage`."""
    trust = [f"--ca-file={AUTHORITY}/ca.crt"] if has_authority else []
    endpoint = f"--endpoint=kubernetes:{repository.namespace}/{repository.name}"
    told = "--summary=/dev/termination-log"
    # A node that is down keeps no other one from being planned for; the summary names it.
    policy = "--missing-nodes=skip"
    return ["spark", "plan", "--json", told, endpoint, policy, f"--token-file={TOKEN_FILE}", *trust]


def _mounts(repository: RepositoryObject, *, has_authority: bool) -> tuple[list[Object], list[Object]]:
    """Volumes and where they are mounted: the token for agents, the authority, and a place to write, for the root is
    read-only.
    """
    directory, _, path = TOKEN_FILE.rpartition("/")
    token = {"audience": audience_of(repository.namespace, repository.name), "path": path}
    volumes: list[Object] = [{"name": "scratch", "emptyDir": {}}]
    volumes.append({"name": "token", "projected": {"sources": [{"serviceAccountToken": token}]}})
    mounts: list[Object] = [{"name": "scratch", "mountPath": "/tmp"}]  # noqa: S108 - of the pod alone
    mounts.append({"name": "token", "mountPath": directory, "readOnly": True})
    if has_authority:
        volumes.append({"name": "authority", "configMap": {"name": repository.authority}})
        mounts.append({"name": "authority", "mountPath": AUTHORITY, "readOnly": True})
    return volumes, mounts


def _job(repository: RepositoryObject, name: str, image: str, pods: PodSettings, *, has_authority: bool) -> Object:
    volumes, mounts = _mounts(repository, has_authority=has_authority)
    # Spark would shuffle into two hundred parts, of which one pod has use for a few.
    settings = ("spark.ui.enabled=false", f"spark.driver.memory={MEMORY}", f"spark.sql.shuffle.partitions={PARTS}")
    command = [SPARK_SUBMIT, "--master=local[*]", *(f"--conf={setting}" for setting in settings), PROGRAM]
    container = {
        "name": "plan",
        "image": image,
        "command": [*command, *arguments(repository, has_authority=has_authority)],
        "env": CREDENTIALS,
        "resources": {"requests": {"cpu": "500m", "memory": MEMORY_REQUEST}},
        "securityContext": CONFINED,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    pod: Object = {"serviceAccountName": account_name(repository), "restartPolicy": "Never"}
    pod |= {"containers": [container], "volumes": volumes}
    seconds = max(1, int(repository.spec.planning.active_deadline) // 1000)
    template = dressed({"metadata": {"labels": {**labels(repository), LABEL: name}}, "spec": pod}, pods)
    # One that fails is told, not repeated: the schedule brings the next.
    return {"backoffLimit": 0, "activeDeadlineSeconds": seconds, "template": template}


def _application(
    repository: RepositoryObject, name: str, image: str, pods: PodSettings, *, has_authority: bool
) -> Object:
    volumes, mounts = _mounts(repository, has_authority=has_authority)

    def part(container: str) -> Object:
        confined = {"name": container, "securityContext": CONFINED, "volumeMounts": mounts, "env": CREDENTIALS}
        confined |= {"terminationMessagePolicy": "FallbackToLogsOnError"} if container == DRIVER else {}
        return {
            "cores": 1,
            "memory": MEMORY,
            "serviceAccount": account_name(repository),
            # They read what agents keep in memory: reclamation need not wait for them.
            "labels": {**pods.labels, **labels(repository), LABEL: name, IGNORED: "true"},
            "annotations": dict(pods.annotations),
            "template": {"spec": {"containers": [confined], "volumes": volumes}},
        }

    return {
        "type": "Python",
        "pythonVersion": "3",
        "mode": "cluster",
        "sparkVersion": SPARK_VERSION,
        "image": image,
        "imagePullPolicy": pods.image_pull_policy,
        "imagePullSecrets": [each["name"] for each in pods.image_pull_secrets],
        "mainApplicationFile": f"local://{PROGRAM}",
        "arguments": arguments(repository, has_authority=has_authority),
        "restartPolicy": {"type": "Never"},
        "driver": part(DRIVER),
        "executor": {**part(EXECUTOR), "instances": EXECUTORS},
    }

"""The objects that run spec.planning: a SparkApplication where kubeflow's operator is, else a Job with spark-submit.

Both run `ullage spark plan`, which reads what each agent knows of its resource claims, and prints the plan. The Job is
one pod that plans alone: it costs what there are of resource claims, a million take seconds. The SparkApplication has
executors. Neither needs a lease, and no node waits for them.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from ullage_agent.contract import TlsMode
from ullage_agent.fleet import PlanningResult
from ullage_operator import build
from ullage_operator.api import Api
from ullage_operator.desired import Object, sealed
from ullage_operator.errors import ApiError
from ullage_operator.observe import PlanningRun, PlanningSeen, Wish
from ullage_operator.rbac import PLANNER, planner_rules
from ullage_operator.spark_jobs import IGNORED
from ullage_operator.times import millis_of, text_of

LABEL: Final = "ullage.dev/planning"
"""On the pods of a run: its name."""

SCHEDULED: Final = "ullage.dev/scheduled"
"""Annotation of a run: for which time of the schedule it is."""

SPARK_SUBMIT: Final = "/opt/spark/bin/spark-submit"
PROGRAM: Final = "/opt/ullage-spark.py"
"""Of Spark's image: the command line `ullage`, as spark-submit takes it."""

SPARK_VERSION: Final = "4.3.0"
ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
AUTHORITY: Final = "/etc/ullage/ca"
MEMORY: Final = "1g"
MEMORY_REQUEST: Final = "1536Mi"
"""Of the Job's pod: Spark's heap, and Python's beside it."""

PARTS: Final = 8
EXECUTORS: Final = 2
DRIVER: Final = "spark-kubernetes-driver"
EXECUTOR: Final = "spark-kubernetes-executor"
TOLD_MAX: Final = 1024

SUCCEEDED: Final = frozenset({"COMPLETED"})
FAILED: Final = frozenset({"FAILED", "SUBMISSION_FAILED"})
"""States of a SparkApplication in which it stays."""


def account_name(wish: Wish) -> str:
    """As which plans are made."""
    return f"{wish.name}-ullage-planner"


def run_name(wish: Wish, scheduled_millis: int) -> str:
    """One for each minute: what is applied twice is there once. Short enough for what Spark adds to it."""
    stem = wish.name
    if len(stem) > 30 or "." in stem:
        stem = f"{stem[:20].replace('.', '-').rstrip('-')}-{hashlib.sha256(stem.encode()).hexdigest()[:8]}"
    return f"{stem}-plan-{scheduled_millis // 60_000}"


def labels(wish: Wish) -> dict[str, str]:
    """Of a run and all that belongs to planning; not the agents', or their Services would lead here."""
    return {**build.labels(wish), "app.kubernetes.io/name": "ullage-planner"}


def account_objects(wish: Wish) -> list[Object]:
    """The account, and what it may: read from this repository, find its nodes, and make executors."""
    name, rbac = account_name(wish), "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": name, "namespace": wish.namespace}
    made = [
        build.owned(wish, "ServiceAccount", "v1", name),
        build.owned(wish, "Role", f"{rbac}/v1", name, rules=planner_rules(wish.name)),
    ]
    for binding, kind, role in ((name, "Role", name), (f"{name}-executors", "ClusterRole", PLANNER)):
        reference = {"apiGroup": rbac, "kind": kind, "name": role}
        made.append(build.owned(wish, "RoleBinding", f"{rbac}/v1", binding, roleRef=reference, subjects=[subject]))
    return made


def run_object(wish: Wish, image: str, scheduled_millis: int, *, is_application: bool, has_authority: bool) -> Object:
    """The run for that time. `has_authority`: whom to trust is in the repository's ConfigMap."""
    assert wish.document is not None
    name = run_name(wish, scheduled_millis)
    image = wish.document.spec.planning.image or image
    if is_application:
        spec = _application(wish, name, image, has_authority=has_authority)
        made = build.owned(wish, "SparkApplication", "sparkoperator.k8s.io/v1beta2", name, spec=spec)
    else:
        spec = _job(wish, name, image, has_authority=has_authority)
        made = build.owned(wish, "Job", "batch/v1", name, spec=spec)
    made["metadata"]["labels"] = labels(wish)
    made["metadata"]["annotations"] = {SCHEDULED: text_of(scheduled_millis)}
    return sealed(made)


def arguments(wish: Wish, *, has_authority: bool) -> list[str]:
    """Of `ullage`."""
    trust = [f"--ca-file={AUTHORITY}/ca.crt"] if has_authority else []
    endpoint = f"--endpoint=kubernetes:{wish.namespace}/{wish.name}"
    told = "--summary=/dev/termination-log"
    return ["spark", "plan", "--json", told, endpoint, f"--token-file={ACCOUNT}/token", *trust]


def _mounts(wish: Wish, *, has_authority: bool) -> tuple[list[Object], list[Object]]:
    """Volumes and where they are mounted: the authority, and a place to write, for the root is read-only."""
    volumes: list[Object] = [{"name": "scratch", "emptyDir": {}}]
    mounts: list[Object] = [{"name": "scratch", "mountPath": "/tmp"}]  # noqa: S108 - of the pod alone
    if has_authority:
        volumes.append({"name": "authority", "configMap": {"name": build.authority_name(wish)}})
        mounts.append({"name": "authority", "mountPath": AUTHORITY, "readOnly": True})
    return volumes, mounts


def _confined() -> Object:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "runAsUser": build.USER,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _job(wish: Wish, name: str, image: str, *, has_authority: bool) -> Object:
    assert wish.document is not None
    volumes, mounts = _mounts(wish, has_authority=has_authority)
    # Spark would shuffle into two hundred parts, of which one pod has use for a few.
    settings = ("spark.ui.enabled=false", f"spark.driver.memory={MEMORY}", f"spark.sql.shuffle.partitions={PARTS}")
    command = [SPARK_SUBMIT, "--master=local[*]", *(f"--conf={setting}" for setting in settings), PROGRAM]
    container = {
        "name": "plan",
        "image": image,
        "command": [*command, *arguments(wish, has_authority=has_authority)],
        "resources": {"requests": {"cpu": "500m", "memory": MEMORY_REQUEST}},
        "securityContext": _confined(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    pod = {
        "serviceAccountName": account_name(wish),
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": volumes,
    }
    seconds = max(1, int(wish.document.spec.planning.active_deadline) // 1000)
    template = {"metadata": {"labels": {**labels(wish), LABEL: name}}, "spec": pod}
    # One that fails is told, not repeated: the schedule brings the next.
    return {"backoffLimit": 0, "activeDeadlineSeconds": seconds, "template": template}


def _application(wish: Wish, name: str, image: str, *, has_authority: bool) -> Object:
    volumes, mounts = _mounts(wish, has_authority=has_authority)

    def part(container: str) -> Object:
        confined = {"name": container, "securityContext": _confined(), "volumeMounts": mounts}
        confined |= {"terminationMessagePolicy": "FallbackToLogsOnError"} if container == DRIVER else {}
        return {
            "cores": 1,
            "memory": MEMORY,
            "serviceAccount": account_name(wish),
            # They read what agents keep in memory: reclamation need not wait for them.
            "labels": {**labels(wish), LABEL: name, IGNORED: "true"},
            "template": {"spec": {"containers": [confined], "volumes": volumes}},
        }

    return {
        "type": "Python",
        "pythonVersion": "3",
        "mode": "cluster",
        "sparkVersion": SPARK_VERSION,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "mainApplicationFile": f"local://{PROGRAM}",
        "arguments": arguments(wish, has_authority=has_authority),
        "restartPolicy": {"type": "Never"},
        "driver": part(DRIVER),
        "executor": {**part(EXECUTOR), "instances": EXECUTORS},
    }


def has_authority(wish: Wish, is_published: bool) -> bool:
    """Whether clients are told whom to trust; where others sign, only once their secret says it."""
    assert wish.document is not None
    return wish.document.spec.tls.mode == TlsMode.OPERATOR or is_published


async def listed(api: Api, wish: Wish) -> PlanningSeen:
    """Every run there is, and what its pod said last; what the API server refuses stops nothing but planning."""
    try:
        return await _listed(api, wish)
    except ApiError as error:
        return PlanningSeen(problem=str(error))


async def _listed(api: Api, wish: Wish) -> PlanningSeen:
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels(wish).items()))
    has_applications = await api.serves("SparkApplication")
    pods, _ = await api.list("Pod", wish.namespace, f"{selector},{LABEL}")
    said = {each["metadata"]["labels"][LABEL]: text for each in pods if (text := _last_words(each))}
    runs = []
    for kind in ("Job", "SparkApplication") if has_applications else ("Job",):
        found, _ = await api.list(kind, wish.namespace, selector)
        runs += [_run(kind, each, said) for each in found if "deletionTimestamp" not in each["metadata"]]
    return PlanningSeen(runs=tuple(runs), has_spark_applications=has_applications)


def _run(kind: str, found: Mapping[str, Any], said: Mapping[str, str]) -> PlanningRun:
    metadata, status = found["metadata"], found.get("status") or {}
    result, ended, why, pod = _of_job(found) if kind == "Job" else _of_application(status)
    name = metadata["name"]
    return PlanningRun(
        kind=kind,
        name=name,
        uid=metadata["uid"],
        scheduled_millis=millis_of(metadata["annotations"][SCHEDULED]),
        began_millis=millis_of(metadata["creationTimestamp"]),
        result=result,
        ended_millis=ended,
        message=(said.get(name, "") or why) if result != PlanningResult.RUNNING else "",
        logs=f"kubectl logs -n {metadata['namespace']} {pod or f'job/{name}'}",
    )


def _of_job(found: Mapping[str, Any]) -> tuple[PlanningResult, int | None, str, str]:
    for condition in (found.get("status") or {}).get("conditions") or ():
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            is_done = condition["type"] == "Complete"
            result = PlanningResult.SUCCEEDED if is_done else PlanningResult.FAILED
            why = f"{condition.get('reason', '')}: {condition.get('message', '')}"
            return result, millis_of(condition["lastTransitionTime"]), "" if is_done else why, ""
    return PlanningResult.RUNNING, None, "", ""


def _of_application(status: Mapping[str, Any]) -> tuple[PlanningResult, int | None, str, str]:
    state = status.get("applicationState") or {}
    pod = (status.get("driverInfo") or {}).get("podName") or "POD"
    if state.get("state") not in SUCCEEDED | FAILED:
        return PlanningResult.RUNNING, None, "", pod
    result = PlanningResult.SUCCEEDED if state["state"] in SUCCEEDED else PlanningResult.FAILED
    ended = status.get("terminationTime") or status.get("lastSubmissionAttemptTime")
    return result, millis_of(ended) if ended else None, str(state.get("errorMessage", "")), pod


def _last_words(pod: Mapping[str, Any]) -> str:
    """What the container that planned wrote as its last words."""
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        ended = (status.get("state") or {}).get("terminated")
        if ended and ended.get("message"):
            return str(ended["message"]).strip()[-TOLD_MAX:]
    return ""

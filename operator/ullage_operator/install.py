"""The objects of the operator itself, for the whole cluster: what deploy/install.yaml holds. The chart varies them."""

from typing import Any, Final

from ullage_operator.rbac import (
    OPERATOR_CLUSTER_RULES,
    OPERATOR_NAMESPACED_RULES,
    PLANNER,
    PLANNER_RULES,
    SPARK_RULES,
    admission_policy,
)
from ullage_operator.settings import Settings

Object = dict[str, Any]

NAME: Final = "ullage-operator"
NAMESPACE: Final = "ullage-system"
IMAGE: Final = "ullage-operator:latest"
LABELS: Final = {"app.kubernetes.io/name": NAME}


def install_objects() -> list[Object]:
    """Namespace, account, roles, admission policy and Deployment, in the order of their creation."""
    place = {"name": NAME, "namespace": NAMESPACE, "labels": LABELS}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME}
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
        },
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": place},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": NAME, "labels": LABELS},
            "rules": [*OPERATOR_NAMESPACED_RULES, *OPERATOR_CLUSTER_RULES, *SPARK_RULES],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": NAME, "labels": LABELS},
            "roleRef": role,
            "subjects": [subject],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": PLANNER, "labels": LABELS},
            "rules": PLANNER_RULES,
        },
        *admission_policy(),
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": place, "spec": _deployment()},
    ]


def _deployment() -> Object:
    """One replica, and Recreate: two operators would give twice as many tickets."""
    settings = Settings()
    ports = [
        {"name": "metrics", "containerPort": settings.metrics_port},
        {"name": "health", "containerPort": settings.health_port},
    ]
    probe = {"httpGet": {"path": "/healthz", "port": "health"}, "periodSeconds": 20, "failureThreshold": 3}
    container = {
        "name": "operator",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "ports": ports,
        "livenessProbe": {**probe, "initialDelaySeconds": 30},
        "readinessProbe": probe,
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    pod = {
        "serviceAccountName": NAME,
        "containers": [container],
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    return {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": LABELS},
        "template": {"metadata": {"labels": LABELS}, "spec": pod},
    }

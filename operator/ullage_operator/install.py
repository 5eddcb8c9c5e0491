"""The objects of the operator itself, for the whole cluster: what deploy/install.yaml holds. The chart varies them."""

import json
from typing import Final

from ullage_operator.objects import Object, binding, confined, document
from ullage_operator.rbac import (
    CLIENT_ROLES,
    JOB,
    JOB_RULES,
    NODE_RULES,
    OPERATOR_CLUSTER_RULES,
    OPERATOR_NAMESPACED_RULES,
    OPERATOR_OWN_RULES,
    PLANNER,
    PLANNER_RULES,
    SPARK_RULES,
    admission_policy,
)
from ullage_operator.settings import VERSION, OperatorSettings

NAME: Final = "ullage-operator"
NAMESPACE: Final = "ullage-system"
IMAGE: Final = f"ullage-operator:{VERSION}"
AGENTS: Final = "ullage-agents"
PRIORITY: Final = 1_000_000_000
"""The highest that is not the system's own: some providers refuse that class outside of kube-system."""
LABELS: Final = {"app.kubernetes.io/name": NAME}


def install_objects() -> list[Object]:
    """Namespace, account, roles, admission policy and Deployment, in the order of their creation."""
    everywhere = {"name": NAME, "labels": LABELS}
    place = {"name": NAME, "namespace": NAMESPACE, "labels": LABELS}
    rules = [*OPERATOR_NAMESPACED_RULES, *NODE_RULES, *OPERATOR_CLUSTER_RULES, *SPARK_RULES]
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    return [
        document("Namespace", {"name": NAMESPACE, "labels": restricted}),
        document("ServiceAccount", place),
        document("ClusterRole", everywhere, rules=rules),
        document("ClusterRoleBinding", everywhere, **binding("ClusterRole", NAME, NAME, NAMESPACE)),
        document("Role", place, rules=OPERATOR_OWN_RULES),
        document("RoleBinding", place, **binding("Role", NAME, NAME, NAMESPACE)),
        document("ClusterRole", {"name": PLANNER, "labels": LABELS}, rules=PLANNER_RULES),
        document("ClusterRole", {"name": JOB, "labels": LABELS}, rules=JOB_RULES),
        *(document("ClusterRole", {"name": n, "labels": LABELS}, rules=rules) for n, rules in CLIENT_ROLES.items()),
        *admission_policy(),
        document(
            "PriorityClass",
            {"name": AGENTS, "labels": LABELS},
            value=PRIORITY,
            description="Agents of Ullage: content stays on its node while other pods come and go.",
        ),
        document("Deployment", place, spec=_deployment()),
    ]


def _deployment() -> Object:
    """One replica, or as many as are asked for: one works at a time. A new one stands by before the last one ends."""
    settings = OperatorSettings()
    ports = [
        {"name": "metrics", "containerPort": settings.metrics_port},
        {"name": "health", "containerPort": settings.health_port},
    ]
    probe = {"httpGet": {"path": "/healthz", "port": "health"}, "periodSeconds": 20, "failureThreshold": 3}
    container = {
        "name": "operator",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "env": [
            {"name": "ULLAGE_OPERATOR_NAMESPACE", "value": NAMESPACE},
            {"name": "ULLAGE_OPERATOR_IDENTITY", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "ULLAGE_OPERATOR_PODS", "value": json.dumps({"priorityClassName": AGENTS})},
        ],
        "ports": ports,
        "livenessProbe": {**probe, "initialDelaySeconds": 30},
        "readinessProbe": probe,
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": confined(),
    }
    confinement = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    pod = {"serviceAccountName": NAME, "containers": [container], "securityContext": confinement}
    return {
        "replicas": 1,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "selector": {"matchLabels": LABELS},
        "template": {"metadata": {"labels": LABELS}, "spec": pod},
    }

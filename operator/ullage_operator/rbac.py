"""Who may do what: the one place for the rules of RBAC and admission. Chart and install.yaml take them from here."""

from typing import Any, Final

from ullage.contract import ROLES, Right, rules_of

READ: Final = ["get", "list", "watch"]
WRITE: Final = ["create", "patch", "delete"]

Rule = dict[str, list[str]]


def rule(group: str, resources: list[str], verbs: list[str], names: list[str] | None = None) -> Rule:
    """One rule."""
    made = {"apiGroups": [group], "resources": resources, "verbs": verbs}
    return {**made, "resourceNames": names} if names else made


AGENT_RULES: Final = [
    rule("ullage.dev", ["contentrepositorynodes"], READ),
    rule("ullage.dev", ["contentrepositorynodes/status"], ["get", "patch"]),
]
"""An agent's, in its namespace. The admission policy below narrows writing to the object of its own node."""

DELEGATOR: Final = "system:auth-delegator"
"""TokenReview and SubjectAccessReview: an agent asks who its clients are."""

PLANNER: Final = "ullage-planner"
"""The ClusterRole of who makes plans with Spark. The operator may give it away, and has none of it itself."""

PLANNER_RULES: Final = [
    rule(
        "",
        ["pods", "configmaps", "services", "persistentvolumeclaims"],
        [*READ, "create", "patch", "update", "delete", "deletecollection"],
    ),
]
"""What a driver of Spark needs in its namespace to make executors, and to remove what is left of them."""


PLANNER_RIGHTS: Final = (Right.SPACE, Right.LEASE)
"""On agents: tables of space at one moment, and neither records nor content."""


def planner_rules(repository: str) -> list[Rule]:
    """A planner's: find the nodes of a repository, and see what lies where in a snapshot of each."""
    return [
        rule("discovery.k8s.io", ["endpointslices"], ["list"]),
        *rules_of(PLANNER_RIGHTS, [repository]),
    ]


CLIENT_ROLES: Final = {f"ullage-{name}": rules_of(rights) for name, rights in ROLES.items()}
"""ClusterRoles to bind to whoever uses repositories, in a namespace or for all of them; nobody has one by default."""


OPERATOR_NAMESPACED_RULES: Final = [
    *rules_of(PLANNER_RIGHTS),  # which it gives away, and so must have
    rule("ullage.dev", ["contentrepositories"], [*READ, "patch"]),
    rule("ullage.dev", ["contentrepositories/status", "reclamationruns/status"], ["get", "patch"]),
    rule("ullage.dev", ["contentrepositories/finalizers"], ["update"]),
    rule("ullage.dev", ["reclamationruns"], READ),
    rule("ullage.dev", ["contentrepositorynodes"], [*READ, *WRITE]),
    # A role may be given only by who has it: what agents may do, the operator may too.
    rule("ullage.dev", ["contentrepositorynodes/status"], ["get", "patch"]),
    rule("", ["pods"], [*READ, "delete"]),
    rule("", ["services", "configmaps", "secrets", "serviceaccounts"], [*READ, *WRITE]),
    rule("", ["persistentvolumeclaims"], [*READ, "delete"]),
    rule("", ["events"], ["create", "patch"]),
    rule("apps", ["daemonsets", "statefulsets"], [*READ, *WRITE]),
    rule("batch", ["jobs"], [*READ, *WRITE]),
    rule("sparkoperator.k8s.io", ["sparkapplications"], [*READ, *WRITE]),
    rule("policy", ["poddisruptionbudgets"], [*READ, *WRITE]),
    rule("discovery.k8s.io", ["endpointslices"], [*READ, *WRITE]),
    rule("networking.k8s.io", ["networkpolicies"], [*READ, *WRITE]),
    rule("rbac.authorization.k8s.io", ["roles", "rolebindings"], [*READ, *WRITE]),
    rule("cert-manager.io", ["certificates"], [*READ, *WRITE]),
]
"""The operator's, in each namespace that it looks after."""

OPERATOR_CLUSTER_RULES: Final = [
    rule("", ["nodes"], READ),
    rule("rbac.authorization.k8s.io", ["clusterrolebindings"], [*READ, *WRITE]),
    rule("rbac.authorization.k8s.io", ["clusterroles"], ["bind"], [DELEGATOR, PLANNER]),
]
"""The operator's in the whole cluster: nodes have no namespace. Spark's pods run anywhere, see below."""

SPARK_RULES: Final = [
    rule("", ["pods"], READ),
    rule("sparkoperator.k8s.io", ["sparkapplications"], READ),
    rule("spark.apache.org", ["sparkapplications"], READ),
]
"""To know what runs on a node. Without them in some namespace, every node counts as busy."""


def admission_policy() -> list[dict[str, Any]]:
    """An agent may write the status of its own node's object only: its token says on which node its pod runs."""
    extra = "authentication.kubernetes.io/node-name"
    user = "request.userInfo.username"
    is_agent = f"{user}.startsWith('system:serviceaccount:') && {user}.endsWith('-ullage-agent')"
    token = f"request.userInfo.extra['{extra}'][0]"
    resources = {
        "apiGroups": ["ullage.dev"],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["contentrepositorynodes", "contentrepositorynodes/status"],
    }
    names_a_node = {
        "expression": "variables.node != ''",
        "message": "an agent needs a token that is bound to its pod and names its node",
        "reason": "Forbidden",
    }
    is_its_own = {
        "expression": "variables.node == object.spec.nodeName",
        "messageExpression": "'an agent on ' + variables.node + ' must leave the object of ' "
        "+ object.spec.nodeName + ' alone'",
        "reason": "Forbidden",
    }
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [resources]},
        "matchConditions": [{"name": "is-an-agent", "expression": is_agent}],
        "variables": [{"name": "node", "expression": f"'{extra}' in request.userInfo.extra ? {token} : ''"}],
        "validations": [names_a_node, is_its_own],
    }
    name = "ullage-agents-own-nodes"
    specs = {
        "ValidatingAdmissionPolicy": policy,
        "ValidatingAdmissionPolicyBinding": {"policyName": name, "validationActions": ["Deny"]},
    }
    version = "admissionregistration.k8s.io/v1"
    return [
        {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec} for kind, spec in specs.items()
    ]

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


JOB: Final = "ullage-spark"
"""The ClusterRole of who runs jobs of Spark on the repositories of a namespace, beside what it may do to content."""

JOB_RULES: Final = [
    rule("discovery.k8s.io", ["endpointslices"], ["list"]),
    rule("ullage.dev", ["contentrepositorynodes"], ["list"]),  # those without an agent are missed by them
    rule("", ["events"], ["create"]),  # which nodes a job went on without; it can change and read none
]
"""What a job asks Kubernetes of a fleet, and what it tells there."""


def planner_rules(repository: str) -> list[Rule]:
    """A planner's: find the nodes of a repository, and see what lies where in a snapshot of each."""
    return [*JOB_RULES, *rules_of(PLANNER_RIGHTS, [repository])]


CLIENT_ROLES: Final = {f"ullage-{name}": rules_of(rights) for name, rights in ROLES.items()}
"""ClusterRoles to bind to whoever uses repositories, in a namespace or for all of them; nobody has one by default."""


OPERATOR_NAMESPACED_RULES: Final = [
    *rules_of(PLANNER_RIGHTS),  # which it gives away, and so must have
    rule("ullage.dev", ["contentrepositories"], [*READ, "patch"]),
    rule("ullage.dev", ["contentrepositories/status", "reclamationruns/status"], ["get", "patch"]),
    rule("ullage.dev", ["contentbackups/status", "contentrestores/status"], ["get", "patch"]),
    rule("ullage.dev", ["contentbackups", "contentrestores"], READ),
    rule("ullage.dev", ["contentrepositories/finalizers"], ["update"]),
    rule("ullage.dev", ["reclamationruns"], [*READ, "delete"]),
    rule("ullage.dev", ["contentrepositorynodes"], [*READ, *WRITE]),
    # A role may be given only by who has it: what agents may do, the operator may too.
    rule("ullage.dev", ["contentrepositorynodes/status"], ["get", "patch"]),
    rule("", ["pods"], [*READ, "delete"]),
    rule("", ["services", "configmaps", "serviceaccounts"], [*READ, *WRITE]),
    rule("", ["persistentvolumeclaims"], [*READ, *WRITE]),
    rule("", ["namespaces"], ["get"]),  # whether it ends
    # To be listed: why pods of agents were refused stands nowhere else.
    rule("", ["events"], ["create", "patch", "list"]),
    rule("apps", ["daemonsets", "statefulsets"], [*READ, *WRITE]),
    rule("batch", ["jobs"], [*READ, *WRITE]),
    rule("sparkoperator.k8s.io", ["sparkapplications"], [*READ, *WRITE]),
    rule("policy", ["poddisruptionbudgets"], [*READ, *WRITE]),
    rule("discovery.k8s.io", ["endpointslices"], [*READ, *WRITE]),
    rule("networking.k8s.io", ["networkpolicies"], [*READ, *WRITE]),
    rule("rbac.authorization.k8s.io", ["roles", "rolebindings"], [*READ, *WRITE]),
    rule("rbac.authorization.k8s.io", ["clusterroles"], ["bind"], [PLANNER]),
    rule("cert-manager.io", ["certificaterequests"], [*READ, *WRITE]),
]
"""The operator's, in each namespace that it looks after. No secrets: those of others are none of its business."""

OPERATOR_OWN_RULES: Final = [
    rule("", ["secrets"], ["get", *WRITE]),
    rule("coordination.k8s.io", ["leases"], ["get", "create", "update"]),
    rule("", ["events"], ["create", "patch", "list"]),
    rule("batch", ["jobs"], ["get", "list", *WRITE]),
]
"""In its own namespace, where it keeps the keys of authorities, by name, none is listed; where its processes choose the
one that works; and where it empties directories of repositories whose namespace ends, and says what stays.
"""

NODE_RULES: Final = [rule("", ["nodes"], READ), rule("storage.k8s.io", ["storageclasses"], ["get"])]
"""In the whole cluster, always: nodes have no namespace, nor have classes, which say whether a claim may grow."""

OPERATOR_CLUSTER_RULES: Final = [
    rule("rbac.authorization.k8s.io", ["clusterrolebindings"], ["get", *WRITE]),
    rule("rbac.authorization.k8s.io", ["clusterroles"], ["bind"], [DELEGATOR]),
]
"""In the whole cluster, where it looks after all of it: it lets agents ask who their clients are. Spark's pods run
anywhere, see below.
"""

SPARK_RULES: Final = [
    rule("", ["pods"], READ),
    rule("sparkoperator.k8s.io", ["sparkapplications"], READ),
    rule("spark.apache.org", ["sparkapplications"], READ),
]
"""To know what runs on a node. Without them in some namespace, every node counts as busy."""


def admission_policy() -> list[dict[str, Any]]:
    """What RBAC cannot say: which of the objects that an agent may write is its own, and who asks for certificates."""
    extra = "authentication.kubernetes.io/node-name"
    user = "request.userInfo.username"
    is_agent = f"{user}.startsWith('system:serviceaccount:') && {user}.endsWith('-ullage-agent')"
    token = f"request.userInfo.extra['{extra}'][0]"
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
    is_of_its_repository = {
        "expression": f"{user} == 'system:serviceaccount:' + object.metadata.namespace + ':' "
        "+ object.spec.repository + '-ullage-agent'",
        "messageExpression": f"{user} + ' must leave the objects of ' + object.spec.repository + ' alone'",
        "reason": "Forbidden",
    }
    own_objects = {
        "matchConditions": [{"name": "is-an-agent", "expression": is_agent}],
        "variables": [{"name": "node", "expression": f"'{extra}' in request.userInfo.extra ? {token} : ''"}],
        "validations": [names_a_node, is_its_own, is_of_its_repository],
    }
    request = "has({0}.status) && has({0}.status.certificateRequest) ? {0}.status.certificateRequest : ''"
    before = f"oldObject == null ? '' : ({request.format('oldObject')})"
    asked_by_an_agent = {
        "expression": "variables.before == variables.after",
        "message": "only an agent asks for a certificate, and for its own",
        "reason": "Forbidden",
    }
    own_certificates = {
        "matchConditions": [{"name": "is-no-agent", "expression": f"!({is_agent})"}],
        "variables": [
            {"name": "before", "expression": before},
            {"name": "after", "expression": request.format("object")},
        ],
        "validations": [asked_by_an_agent],
    }
    return [
        *_policy("ullage-agents-own-nodes", own_objects),
        *_policy("ullage-agents-own-certificates", own_certificates),
    ]


def _policy(name: str, says: dict[str, Any]) -> list[dict[str, Any]]:
    """A policy about node objects, and its binding: the whole cluster."""
    resources = {
        "apiGroups": ["ullage.dev"],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["contentrepositorynodes", "contentrepositorynodes/status"],
    }
    specs = {
        "ValidatingAdmissionPolicy": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [resources]},
            **says,
        },
        "ValidatingAdmissionPolicyBinding": {"policyName": name, "validationActions": ["Deny"]},
    }
    version = "admissionregistration.k8s.io/v1"
    return [
        {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec} for kind, spec in specs.items()
    ]

"""The chart, as the real helm renders it."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.debian import program
from tests.cluster.tools import tool
from tests.operator.support import repository
from ullage_agent.cli.nifi_metrics import NIFI_TABLE, PREFIX as NIFI_PREFIX
from ullage_agent.service.metrics import PREFIX, TABLE, MetricKind
from ullage_operator.metrics import REGISTRY
from ullage_operator.rbac import (
    DELEGATOR,
    JOB,
    JOB_RULES,
    NODE_RULES,
    OPERATOR_CLUSTER_RULES,
    OPERATOR_NAMESPACED_RULES,
    SPARK_RULES,
    admission_policy,
)
from ullage_operator.repository.trust import certificate_names
from ullage_operator.settings import OperatorSettings, settings_from

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/ullage"
EVERYTHING = (
    *(f"metrics.{name}=true" for name in ("serviceMonitor", "prometheusRule", "dashboards")),
    *("metrics.agents[0].namespace=data", "metrics.agents[0].repository=flows"),
)


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it, whatever comes of it."""
    return subprocess.run([tool("helm"), *arguments], capture_output=True, text=True, check=False)


def rendered(*values: str) -> list[dict[str, Any]]:
    """The objects, hooks included."""
    flags = [part for value in values for part in ("--set", value)]
    result = helm("template", "ullage", str(CHART), "--namespace", "ullage-system", *flags)
    assert result.returncode == 0, result.stderr
    return [each for each in yaml.safe_load_all(result.stdout) if each]


def rules_of(objects: list[dict[str, Any]], kind: str, namespace: str | None = None) -> list[dict[str, Any]]:
    """Of the operator's role there; hooks have their own."""
    name = "ullage-system-ullage-operator"
    found = [o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name]
    return [r for o in found if o["metadata"].get("namespace") == namespace for r in o["rules"]]


def test_helm_finds_nothing_to_complain_about() -> None:
    """`helm lint --strict`."""
    result = helm("lint", "--strict", str(CHART))
    assert result.returncode == 0, result.stdout


def test_rendering_twice_gives_the_same_bytes() -> None:
    """Or an unchanged upgrade would write."""
    one, two = (helm("template", "ullage", str(CHART)).stdout for _ in range(2))
    assert one == two != ""


@pytest.mark.parametrize(
    "value",
    [
        *("image.digest=abc", "hostPathRoots={relative}", "allowedImages={a b}", "namespaces={A_b}"),
        *("uninstall.repositories=Force", "nosuch=1", "metrics.interval=soon"),
        *("agents.nosuch=1", "agents.priority=2000000000", "metrics.runbooks=docs/runbooks", "replicas=-1"),
        *("networkPolicy.from[0].ports=1", "spark.accounts[0].account=etl", "spark.accounts[0].verbs=1"),
    ],
)
def test_bad_values_are_refused_by_name(value: str) -> None:
    """The message says which."""
    result = helm("template", "ullage", str(CHART), "--set", value)
    assert result.returncode != 0
    assert re.split(r"[.=]", value)[-2] in result.stderr


def test_definitions_stay_when_the_release_goes() -> None:
    """They are those of crds/, annotated to be kept."""
    found = {o["metadata"]["name"]: o for o in rendered() if o["kind"] == "CustomResourceDefinition"}
    for path in (ROOT / "crds").glob("*.yaml"):
        source = yaml.safe_load(path.read_text(encoding="utf-8"))
        made = found.pop(source["metadata"]["name"])
        assert made["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        assert made == source
    assert found == {}
    assert not [o for o in rendered("crds.enabled=false") if o["kind"] == "CustomResourceDefinition"]


def test_rights_follow_the_namespaces() -> None:
    """Cluster-wide or by namespace, they are the rules of rbac.py."""
    everywhere = [*OPERATOR_NAMESPACED_RULES, *NODE_RULES, *OPERATOR_CLUSTER_RULES, *SPARK_RULES]
    assert rules_of(rendered(), "ClusterRole") == everywhere
    some = rendered("namespaces={a,b}", "sparkNamespaces={b,c}")
    assert rules_of(some, "ClusterRole") == NODE_RULES
    assert rules_of(some, "Role", "a") == OPERATOR_NAMESPACED_RULES
    assert rules_of(some, "Role", "b") == [*OPERATOR_NAMESPACED_RULES, *SPARK_RULES]
    assert rules_of(some, "Role", "c") == SPARK_RULES
    assert rules_of(rendered("namespaces={a}"), "Role", "a") == [*OPERATOR_NAMESPACED_RULES, *SPARK_RULES]
    policies = sorted((o for o in some if "AdmissionPolicy" in o["kind"]), key=_kind_and_name)
    assert policies == sorted(admission_policy(), key=_kind_and_name)


def _kind_and_name(found: dict[str, Any]) -> tuple[str, str]:
    return found["kind"], found["metadata"]["name"]


def test_accounts_of_spark_are_bound_where_the_repositories_are() -> None:
    """Those that are named, in their own namespace unless it is said: to one role, by one binding a namespace."""
    named = ("data", "etl", ""), ("data", "etl", "jobs"), ("more", "etl", "jobs")
    fields = ("namespace", "account", "accountNamespace")
    given = [f"spark.accounts[{i}].{f}={v}" for i, e in enumerate(named) for f, v in zip(fields, e, strict=True) if v]

    bound = {
        binding["metadata"]["namespace"]: [(each["namespace"], each["name"]) for each in binding["subjects"]]
        for binding in rendered(*given)
        if binding["kind"] == "RoleBinding" and binding["roleRef"]["name"] == JOB
    }

    assert bound == {"data": [("data", "etl"), ("jobs", "etl")], "more": [("jobs", "etl")]}
    (role,) = [o for o in rendered() if (o["kind"], o["metadata"]["name"]) == ("ClusterRole", JOB)]
    assert role["rules"] == JOB_RULES
    assert not [o for o in rendered() if o.get("roleRef", {}).get("name") == JOB]


@pytest.mark.parametrize("values", [(), ("namespaces={a}",)])
def test_secrets_are_asked_for_by_name_and_only_beside_the_operator(values: tuple[str, ...]) -> None:
    """Nowhere may it list them, or read one where repositories are."""
    roles = [o for o in rendered(*values) if o["kind"] in ("Role", "ClusterRole")]
    may = [(o["kind"], o["metadata"].get("namespace"), rule["verbs"]) for o in roles for rule in o["rules"]
           if {"secrets", "*"} & set(rule["resources"])]  # fmt: skip

    assert may == [("Role", "ullage-system", ["get", "create", "patch", "delete"])]


def test_named_namespaces_leave_no_right_elsewhere() -> None:
    """But to read nodes: of the operator, and of what runs when the release goes."""
    objects = rendered("namespaces={a,b}")
    names = ("ullage-system-ullage-operator", "ullage-system-ullage-operator-uninstall")

    found = {o["metadata"]["name"]: o for o in objects if o["kind"] == "ClusterRole" and o["metadata"]["name"] in names}
    assert {name: role["rules"] for name, role in found.items()} == {names[0]: NODE_RULES}
    hooks = [o["metadata"]["namespace"] for o in objects if o["kind"] == "Role" and o["metadata"]["name"] == names[1]]
    assert hooks == ["a", "b"]
    (reviews,) = [o for o in objects if o["kind"] == "ClusterRoleBinding" and o["roleRef"]["name"] == DELEGATOR]
    assert [each["name"] for each in reviews["subjects"]] == ["system:serviceaccounts:a", "system:serviceaccounts:b"]


def test_every_pod_may_run_in_a_restricted_namespace() -> None:
    """The operator, the hook and the test."""
    pods = [o["spec"] if o["kind"] == "Pod" else o["spec"]["template"]["spec"]
            for o in rendered() if o["kind"] in ("Pod", "Job", "Deployment")]  # fmt: skip
    assert len(pods) == 3
    for pod in pods:
        security = pod["containers"][0]["securityContext"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert (security["allowPrivilegeEscalation"], security["runAsNonRoot"]) == (False, True)
        assert security["capabilities"] == {"drop": ["ALL"]}


def test_network_policies_leave_the_port_of_metrics_open() -> None:
    """To everybody, or to those that are named and `helm test`. Hooks listen nowhere. By default there is no policy."""

    def policies(*values: str) -> dict[str, Any]:
        return {o["metadata"]["name"]: o["spec"] for o in rendered(*values) if o["kind"] == "NetworkPolicy"}

    made = rendered("networkPolicy.enabled=true")
    templates = [o["spec"]["template"] for o in made if o["kind"] in ("Deployment", "Job")]
    labels = [each["metadata"]["labels"] for each in [*templates, *(o for o in made if o["kind"] == "Pod")]]
    of_operator, of_hooks = policies("networkPolicy.enabled=true").values()
    named = "networkPolicy.from[0].namespaceSelector.matchLabels.team=watch"
    (rule,) = policies("networkPolicy.enabled=true", named)["ullage-operator"]["ingress"]

    assert policies() == {}
    assert of_operator["ingress"] == [{"ports": [{"port": "metrics", "protocol": "TCP"}]}]
    assert [each for each in labels if of_operator["podSelector"]["matchLabels"].items() <= each.items()] == labels[:1]
    assert [each for each in labels if of_hooks["podSelector"]["matchLabels"].items() <= each.items()] == labels[1:]
    assert (of_hooks["policyTypes"], "ingress" in of_hooks) == (["Ingress"], False)
    watching, testing = rule["from"]
    assert watching == {"namespaceSelector": {"matchLabels": {"team": "watch"}}}
    assert testing["podSelector"] == of_hooks["podSelector"]


def test_agents_are_scraped_as_they_are_secured() -> None:
    """Over TLS, by whom that repository's authority has signed for, with the token of whoever scrapes: nothing in the
    chart trusts anybody.
    """
    flows = ("metrics.agents[0].namespace=data", "metrics.agents[0].repository=flows")
    token = ("metrics.agents[0].token.name=scraper", "metrics.agents[0].token.key=token")

    [monitor] = [o for o in rendered(*flows, *token) if o["kind"] == "PodMonitor"]
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert monitor["metadata"]["namespace"] == "data"
    assert monitor["spec"]["selector"]["matchLabels"]["ullage.dev/repository"] == "flows"
    assert endpoint["scheme"] == "https"
    authority = {"configMap": {"name": "flows-ullage-ca", "key": "ca.crt"}}
    assert endpoint["tlsConfig"] == {"serverName": "flows-local.data.svc", "ca": authority}
    assert endpoint["tlsConfig"]["serverName"] in certificate_names(repository(), "worker-0")
    assert endpoint["authorization"] == {"credentials": {"name": "scraper", "key": "token"}}
    assert [o for o in rendered() if o["kind"] == "PodMonitor"] == []
    for path in CHART.rglob("*"):
        assert path.is_dir() or "insecure" not in path.read_text(encoding="utf-8").lower()


def test_values_reach_the_pod() -> None:
    """Digest, secrets, selectors, replicas."""
    digest = "sha256:" + "a" * 64
    objects = rendered(
        f"image.digest={digest}", "imagePullSecrets[0].name=s", "nodeSelector.a=b", "priorityClassName=p", "replicas=2"
    )
    deployment = next(o["spec"] for o in objects if o["kind"] == "Deployment")
    pod = deployment["template"]["spec"]
    assert deployment["replicas"] == 2
    assert pod["containers"][0]["image"] == f"ullage-operator@{digest}"
    assert (pod["imagePullSecrets"], pod["nodeSelector"], pod["priorityClassName"]) == (
        [{"name": "s"}],
        {"a": "b"},
        "p",
    )


def test_replicas_of_one_release_choose_among_themselves() -> None:
    """Each by its own name, by a Lease that no other release of the namespace has, and which the operator may write; a
    new one stands by before the one before it ends.
    """
    objects = rendered()
    deployment = next(o for o in objects if o["kind"] == "Deployment")
    environment = {each["name"]: each for each in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert environment["ULLAGE_OPERATOR_LEASE"]["value"] == deployment["metadata"]["name"]
    pod_name = {"fieldRef": {"fieldPath": "metadata.name"}}
    assert environment["ULLAGE_OPERATOR_IDENTITY"]["valueFrom"] == pod_name
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    [own] = [o for o in objects if (o["kind"], o["metadata"].get("namespace")) == ("Role", "ullage-system")]
    assert {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]} in (
        own["rules"]
    )


def test_what_repositories_may_name_reaches_the_operator() -> None:
    """Its own images and one directory unless somebody says more, as its settings have them."""

    def settings(*values: str) -> OperatorSettings:
        (deployment,) = [o for o in rendered(*values) if o["kind"] == "Deployment"]
        environment = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
        return settings_from({each["name"]: each["value"] for each in environment if "value" in each})

    assert (settings().images, settings().roots) == ((), OperatorSettings().roots)
    more = settings("allowedImages={a:1,b@sha256:0}", "hostPathRoots={/disks/1,/disks/2}")
    assert (more.images, more.roots) == (("a:1", "b@sha256:0"), ("/disks/1", "/disks/2"))


def test_what_pods_of_repositories_get_reaches_the_operator() -> None:
    """As its settings have it; a class of priorities is the release's own, below those that quotas keep to systems."""

    def given(*values: str) -> tuple[OperatorSettings, list[dict[str, Any]]]:
        objects = rendered(*values)
        (deployment,) = [o for o in objects if o["kind"] == "Deployment"]
        environment = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
        settings = settings_from({each["name"]: each["value"] for each in environment if "value" in each})
        return settings, [o for o in objects if o["kind"] == "PriorityClass"]

    settings, [priority] = given("agents.imagePullSecrets[0].name=s", "agents.labels.team=a", "clusterDomain=b.c")

    assert (settings.pods.image_pull_secrets, settings.pods.labels) == (({"name": "s"},), {"team": "a"})
    assert settings.cluster_domain == "b.c"
    assert settings.pods.priority_class_name == priority["metadata"]["name"]
    assert priority["value"] == 1_000_000_000
    other, none = given("agents.priorityClassName=mine")
    assert (other.pods.priority_class_name, none) == ("mine", [])


def test_runbooks_are_where_they_are_published() -> None:
    """An absolute address, if one is given; the page's path stands in each alert anyway."""
    for values, begins in ((("metrics.runbooks=https://docs.example/r/",), "https://docs.example/r/"), ((), None)):
        (rule,) = [o for o in rendered("metrics.prometheusRule=true", *values) if o["kind"] == "PrometheusRule"]
        for alert in rule["spec"]["groups"][0]["rules"]:
            told = alert["annotations"]
            assert told.get("runbook_url") == (begins and begins + Path(told["runbook"]).name)
            assert (ROOT / told["runbook"]).exists()


def test_alerts_and_dashboards_name_metrics_that_exist() -> None:
    """Those of the agent's table, of what watches a NiFi, and of the operator's registry."""
    exist = {NIFI_PREFIX + entry.name for entry in NIFI_TABLE} | {
        f"{PREFIX}{e.name}{end}"
        for e in TABLE
        for end in (("_bucket", "_sum", "_count") if e.kind is MetricKind.TIMED else ("",))
    }
    for family in REGISTRY.collect():
        ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        exist |= {family.name + end for end in ends}
    objects = rendered(*EVERYTHING)
    rules = next(o for o in objects if o["kind"] == "PrometheusRule")["spec"]["groups"][0]["rules"]
    boards = [json.loads(next(iter(o["data"].values()))) for o in objects if o["kind"] == "ConfigMap"]
    expressions = [r["expr"] for r in rules] + [t["expr"] for b in boards for p in b["panels"] for t in p["targets"]]
    named = {n for e in expressions for n in re.findall(r"\bullage_\w+", e)}
    assert len(boards) == 3
    assert len(named) > 20
    assert named <= exist


def test_dashboards_keep_the_rules() -> None:
    """Those of dashboard-linter: a data source to choose, titles, units, rates over the interval, not editable."""
    for path in (CHART / "files/dashboards").glob("*.json"):
        board = json.loads(path.read_text(encoding="utf-8"))
        assert board["editable"] is False
        variables = board["templating"]["list"]
        assert [v["name"] for v in variables] == ["datasource", "job", "instance"]
        assert all(v["refresh"] == 2 for v in variables[1:])
        for panel in board["panels"]:
            assert all(panel[key] for key in ("title", "description", "targets"))
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert panel["datasource"]["uid"] == "${datasource}"
            for target in panel["targets"]:
                assert "job" in target["expr"]
                assert ("_total{" in target["expr"]) <= ("[$__rate_interval]" in target["expr"])


def test_each_alert_has_a_runbook_and_two_cases() -> None:
    """One that fires, one that is silent; promtool runs them."""
    rules = yaml.safe_load((CHART / "files/alerts.yaml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    cases = yaml.safe_load((ROOT / "tests/chart/alerts_test.yaml").read_text(encoding="utf-8"))["tests"]
    assert len(rules) == 34
    for rule in rules:
        text = (ROOT / rule["annotations"]["runbook_url"]).read_text(encoding="utf-8")
        assert re.findall("^## (.*)", text, re.MULTILINE) == ["Meaning", "Impact", "Diagnosis", "Mitigation"]
        assert rule["expr"] in text
        asks = [c["promql_expr_test"][0] for c in cases if f'"{rule["alert"]}"' in c["promql_expr_test"][0]["expr"]]
        assert sorted(bool(a["exp_samples"]) for a in asks) == [False, True]
    result = subprocess.run(
        [program("promtool", "prometheus"), "test", "rules", str(ROOT / "tests/chart/alerts_test.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr + result.stdout

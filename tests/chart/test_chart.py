"""The chart, as the real helm renders it."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.prometheus import program
from tests.cluster.tools import tool
from ullage_agent.service.metrics import PREFIX, TABLE, MetricKind
from ullage_operator.metrics import REGISTRY
from ullage_operator.rbac import OPERATOR_CLUSTER_RULES, OPERATOR_NAMESPACED_RULES, SPARK_RULES, admission_policy

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/ullage"
EVERYTHING = tuple(f"metrics.{name}=true" for name in ("serviceMonitor", "podMonitor", "prometheusRule", "dashboards"))


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
    ["image.digest=abc", "namespaces={A_b}", "uninstall.repositories=Force", "nosuch=1", "metrics.interval=soon"],
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
    assert rules_of(rendered(), "ClusterRole") == [*OPERATOR_NAMESPACED_RULES, *OPERATOR_CLUSTER_RULES, *SPARK_RULES]
    some = rendered("namespaces={a,b}", "sparkNamespaces={b,c}")
    assert rules_of(some, "ClusterRole") == OPERATOR_CLUSTER_RULES
    assert rules_of(some, "Role", "a") == OPERATOR_NAMESPACED_RULES
    assert rules_of(some, "Role", "b") == [*OPERATOR_NAMESPACED_RULES, *SPARK_RULES]
    assert rules_of(some, "Role", "c") == SPARK_RULES
    assert [o for o in some if "AdmissionPolicy" in o["kind"]] == sorted(
        admission_policy(), key=lambda o: len(o["kind"])
    )


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


def test_agents_are_scraped_as_they_are_secured() -> None:
    """Over TLS, with the token of whoever scrapes: without one they answer nobody."""
    credentials = "metrics.agentAuthorization.credentials"
    trust = ("metrics.agentTls.ca.configMap.name=flows-ullage-ca", "metrics.agentTls.serverName=localhost")
    objects = rendered("metrics.podMonitor=true", *trust, f"{credentials}.name=scraper", f"{credentials}.key=token")

    [monitor] = [o for o in objects if o["kind"] == "PodMonitor"]
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"] == {"ca": {"configMap": {"name": "flows-ullage-ca"}}, "serverName": "localhost"}
    assert endpoint["authorization"] == {"credentials": {"name": "scraper", "key": "token"}}


def test_values_reach_the_pod() -> None:
    """Digest, secrets, selectors."""
    digest = "sha256:" + "a" * 64
    objects = rendered(
        f"image.digest={digest}", "imagePullSecrets[0].name=s", "nodeSelector.a=b", "priorityClassName=p"
    )
    deployment = next(o["spec"] for o in objects if o["kind"] == "Deployment")
    pod = deployment["template"]["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    assert pod["containers"][0]["image"] == f"ullage-operator@{digest}"
    assert (pod["imagePullSecrets"], pod["nodeSelector"], pod["priorityClassName"]) == (
        [{"name": "s"}],
        {"a": "b"},
        "p",
    )


def test_alerts_and_dashboards_name_metrics_that_exist() -> None:
    """Those of the agent's table and of the operator's registry."""
    exist = {
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
    assert len(boards) == 2
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
    assert len(rules) == 17
    for rule in rules:
        text = (ROOT / rule["annotations"]["runbook_url"]).read_text(encoding="utf-8")
        assert re.findall("^## (.*)", text, re.MULTILINE) == ["Meaning", "Impact", "Diagnosis", "Mitigation"]
        assert rule["expr"] in text
        asks = [c["promql_expr_test"][0] for c in cases if f'"{rule["alert"]}"' in c["promql_expr_test"][0]["expr"]]
        assert sorted(bool(a["exp_samples"]) for a in asks) == [False, True]
    result = subprocess.run(
        [program("promtool"), "test", "rules", str(ROOT / "tests/chart/alerts_test.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr + result.stdout

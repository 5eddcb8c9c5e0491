"""Every manifest that we give away, by kubeconform: strictly, by the schemas of the Kubernetes that the tests run on.

kubeconform fetches schemas from a site of its makers unless it is told of others. These come from the source that our
API server is built of, from our own definitions, and from those of Prometheus's operator, pinned as programs are.
"""

import copy
import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.test_chart import CHART, ROOT
from tests.chart.variants import rendered_variants
from tests.cluster.tools import module_source, tool

PROMETHEUS = "github.com/prometheus-operator/prometheus-operator"
PROMETHEUS_KINDS = ("podmonitors", "prometheusrules", "servicemonitors")
PLACE = "{{.Group}}/{{.ResourceAPIVersion}}/{{.ResourceKind}}.json"
"""Of a kind's schema, as kubeconform asks for it; the group of the core is `v1` there."""

OPEN = "x-kubernetes-preserve-unknown-fields"


def documents(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The objects in some files."""
    return [each for path in paths for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The chart in all its variants, the installation without Helm, and the examples."""
    rendered = rendered_variants(CHART, tmp_path_factory.mktemp("rendered"))
    return [*rendered, ROOT / "deploy/install.yaml", *sorted(ROOT.glob("examples/kubernetes/*.yaml"))]


@pytest.fixture(scope="module")
def given_away(paths: list[Path]) -> list[dict[str, Any]]:
    """Their objects."""
    return documents(paths)


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of them."""
    folder = tmp_path_factory.mktemp("schemas")
    for path in (module_source("kubernetes", "k8s.io/kubernetes") / "api/openapi-spec/v3").glob("*_openapi.json"):
        found = json.loads(path.read_text(encoding="utf-8")).get("components", {}).get("schemas", {})
        _write(folder, {name: _closed(schema) for name, schema in found.items()}, path.stem)
    prometheus = module_source("prometheus-operator", PROMETHEUS) / "example/prometheus-operator-crd"
    theirs = [prometheus / f"monitoring.coreos.com_{kind}.yaml" for kind in PROMETHEUS_KINDS]
    for definition in documents([*theirs, *sorted((ROOT / "crds").glob("*.yaml"))]):
        spec = definition["spec"]
        for version in spec["versions"]:
            schema = _closed(version["schema"]["openAPIV3Schema"])
            _put(folder, spec["group"], version["name"], spec["names"]["kind"], schema)
    return folder


def _write(folder: Path, every: dict[str, Any], name: str) -> None:
    """The schemas of a group and version of Kubernetes' own: one file has them all, and one a kind refers to it."""
    (folder / f"{name}.json").write_text(json.dumps({"components": {"schemas": every}}))
    for key, schema in every.items():
        for kind in schema.get("x-kubernetes-group-version-kind", ()):
            refers = {"$ref": f"../../{name}.json#/components/schemas/{key}"}
            _put(folder, kind["group"] or kind["version"], kind["version"], kind["kind"], refers)


def _put(folder: Path, group: str, version: str, kind: str, schema: dict[str, Any]) -> None:
    here = folder / group / version
    here.mkdir(parents=True, exist_ok=True)
    (here / f"{kind.lower()}.json").write_text(json.dumps(schema))


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The same, and a field that it does not name is none. Branches of anyOf and the like only add conditions."""
    closed = dict(schema)
    if "properties" in schema:
        closed["properties"] = {name: _closed(each) for name, each in schema["properties"].items()}
        if not schema.get(OPEN):
            closed.setdefault("additionalProperties", False)
    for inner in ("items", "additionalProperties"):
        if isinstance(closed.get(inner), dict):
            closed[inner] = _closed(closed[inner])
    return closed


def kubeconform(schemas: Path, *paths: Path) -> tuple[dict[str, int], str]:
    """How many were found to be what, and what is said of those that are wrong."""
    done = subprocess.run(
        [tool("kubeconform"), "-strict", "-summary", "-output=json", f"-schema-location={schemas}/{PLACE}", *paths],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    told = json.loads(done.stdout)
    return told["summary"], "\n".join(f"{each['filename']}: {each['msg']}" for each in told.get("resources") or ())


def test_every_manifest_is_what_the_api_server_says_it_must_be(
    schemas: Path, paths: list[Path], given_away: list[dict[str, Any]]
) -> None:
    """All of them are looked at, whatever their kind."""
    found, complaints = kubeconform(schemas, *paths)

    assert complaints == ""
    assert found == {"valid": len(given_away), "invalid": 0, "errors": 0, "skipped": 0}
    assert found["valid"] > 100


@pytest.mark.parametrize(
    ("kind", "path", "value", "complaint"),
    [
        ("Deployment", "spec.replica", 1, "'replica' not allowed"),
        ("Deployment", "spec.template.spec.containers.0.ports.0.containerPort", "http", "want integer"),
        ("NetworkPolicy", "spec.podSelector.labels", {}, "'labels' not allowed"),
        ("ServiceMonitor", "spec.endpoints.0.path", 1, "want string"),
        ("ContentRepository", "spec.storage.path", "/a", "'path' not allowed"),
    ],
)
def test_a_mistake_is_found(
    schemas: Path, given_away: list[dict[str, Any]], tmp_path: Path, kind: str, path: str, value: object, complaint: str
) -> None:
    """In Kubernetes' own kinds, in ours and in Prometheus's, however deep."""
    wrong = copy.deepcopy(next(each for each in given_away if each["kind"] == kind))
    *folders, last = path.split(".")
    inner: Any = wrong
    for folder in folders:
        inner = inner[int(folder) if folder.isdigit() else folder]
    inner[last] = value
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(wrong))

    found, told = kubeconform(schemas, tmp_path / "wrong.yaml")

    assert found["invalid"] == 1
    assert complaint in told

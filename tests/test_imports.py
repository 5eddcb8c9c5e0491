"""Who may import whom: that each contract of pyproject.toml catches what it is there for, and how light imports are."""

import copy
import os
import shutil
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest
from importlinter.api import read_configuration
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract

ROOT = Path(__file__).parents[1]
CONFIGURATION = read_configuration(str(ROOT / "pyproject.toml"))
CONTRACTS = {contract["id"]: contract for contract in CONFIGURATION["contracts_options"]}
KINDS = {"forbidden": ForbiddenContract, "layers": LayersContract}
SOURCES = {"ullage": "agent", "ullage_agent": "agent", "ullage_operator": "operator", "ullage_spark": "spark"}

LIGHT = {"cronsim", "msgspec", "ullage", "yaml"} | {"cython_runtime", "typing_extensions"}  # the latter two by msgspec

OF_THE_DRIVER = {"iceberg", "plan"}  # the latter is carried out over HTTP

VIOLATIONS = {  # who imports what, and must not
    "layers": [("ullage.contract.units", "ullage.wire.frames"), ("ullage.client.http", "ullage.engine.engine")],
    "nifi-layers": [("ullage.nifi.moment", "ullage.nifi.survey"), ("ullage.nifi.fields", "ullage.nifi.journal")],
    "remote-engine": [("ullage.remote.bucket", "ullage.engine.files")],
    "bucket-library": [("ullage.remote.bucket", "obstore"), ("ullage.engine.backup", "obstore")],
    "contract-layers": [("ullage.contract.fleet", "ullage.contract.windows")],
    "contract-door": [("ullage_operator.handlers", "ullage.contract.fleet")],
    "contract-libraries": [("ullage.contract.fleet", "pyarrow"), ("ullage.contract.units", "kubernetes")],
    "agent-layers": [("ullage_agent.service.host", "ullage_agent.node.tickets")],
    "agent-kubernetes": [("ullage_agent.node.objects", "kubernetes")],
    "agent-imports": [("ullage_agent.service.http.app", "ullage.engine.engine")],
    "cli-layers": [("ullage_agent.cli.output", "ullage_agent.cli.app")],
    "kubectl-layers": [("ullage_agent.kubectl.cluster", "ullage_agent.kubectl.status")],
    "api-server": [("ullage_operator.election", "aiohttp"), ("ullage_agent.node.objects", "urllib3")],
    "service-layers": [("ullage_agent.service.host", "ullage_agent.service.http.app")],
    "service-transports": [("ullage_agent.service.host", "litestar")],
    "wire-libraries": [("ullage.wire.tickets", "pyarrow"), ("ullage.wire.problems", "httpx")],
    "client": [("ullage.client.http", "ullage_agent.service.host"), ("ullage.wire.frames", "ullage.testing.faults")],
    "engine-layers": [("ullage.engine.files", "ullage.engine.wal.log")],
    "engine-libraries": [("ullage.engine.engine", "kopf"), ("ullage.engine.counters", "psutil")],
    "operator-imports": [
        ("ullage_operator.handlers", "ullage.engine.engine"),
        ("ullage_operator.handlers", "ullage.wire.frames"),
        ("ullage_operator.handlers", "ullage_agent.node.tickets"),
    ],
    "operator-layers": [("ullage_operator.node.tickets", "ullage_operator.repository.build")],
    "operator-pure": [
        ("ullage_operator.repository.decide", "ullage_operator.cluster.api"),
        ("ullage_operator.agents.pods", "aiohttp"),
    ],
    "spark-imports": [
        ("ullage_spark.plan", "ullage.engine.reclaim.policies"),
        ("pyspark_ullage", "ullage_agent.service.host"),
    ],
    "spark-layers": [("ullage_spark.fleet", "ullage_spark.writer")],
}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(
        *CONFIGURATION["session_options"]["root_packages"],
        include_external_packages=True,
        exclude_type_checking_imports=True,
        cache_dir=None,
    )


def is_kept(id: str, graph: grimp.ImportGraph, **others: object) -> bool:
    options = {**CONTRACTS[id], **others}
    contract = KINDS[options["type"]](options["name"], CONFIGURATION["session_options"], options)
    return contract.check(copy.deepcopy(graph), verbose=False).kept


@pytest.mark.parametrize("id", CONTRACTS)
def test_a_contract_catches_what_it_is_there_for(id: str, graph: grimp.ImportGraph) -> None:
    """The product keeps it, and with one of these imports more it is broken; a new one says here what it catches."""
    assert is_kept(id, graph)
    for importer, imported in VIOLATIONS[id]:
        wrong = copy.deepcopy(graph)
        assert importer in wrong.modules
        if imported not in wrong.modules:
            wrong.add_module(imported, is_squashed=True)
        wrong.add_import(importer=importer, imported=imported, line_number=1, line_contents=f"import {imported}")

        assert not is_kept(id, wrong), f"{importer} may import {imported}"


def circle_in(graph: grimp.ImportGraph, package: str) -> list[str]:
    """Modules of a package each of which imports the next, and the last one the first; empty if there are none."""
    modules = {module for module in graph.modules if module.startswith(f"{package}.")}
    imports = {module: graph.find_modules_directly_imported_by(module) & modules for module in modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_of_the_engine_import_each_other() -> None:
    """Not even for their types: a part can be read, and made, before those that build on it. One import breaks that."""
    graph = grimp.build_graph("ullage", cache_dir=None)
    assert circle_in(graph, "ullage.engine") == []

    graph.add_import(importer="ullage.engine.ledger.state", imported="ullage.engine.ledger.view")
    assert set(circle_in(graph, "ullage.engine")) == {"ullage.engine.ledger.state", "ullage.engine.ledger.view"}


def test_the_linter_reads_imports_wherever_they_stand(tmp_path: Path) -> None:
    """Run as CI runs it over sources that break two contracts, inside a function too, it fails and names both."""
    for package, folder in SOURCES.items():
        shutil.copytree(ROOT / folder / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "spark/pyspark_ullage", tmp_path / "pyspark_ullage")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with open(tmp_path / "ullage_operator/handlers.py", "a") as file:
        file.write("\n\ndef late():\n    from ullage.engine.engine import Engine as E\n    return E\n")
    with open(tmp_path / "ullage_agent/service/http/handles.py", "a") as file:
        file.write("\n\nfrom ullage.engine.ledger import ledger\n")

    run = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-logo", "--no-cache"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )

    broken = {line.partition(" BROKEN")[0] for line in run.stdout.splitlines() if " BROKEN" in line}
    assert run.returncode == 1
    assert broken == {CONTRACTS[id]["name"] for id in ("operator-imports", "agent-imports")}


@pytest.mark.parametrize("module", ["ullage.contract", "ullage_operator.repository.decide"])
def test_what_the_operator_shares_is_light(module: str) -> None:
    """Importing the contract, or what decides by it, brings in three small libraries and the clock: no Arrow."""
    program = f"import sys; before = set(sys.modules); import {module}; print(*(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    names = [name for name in run.stdout.split() if not name.startswith(("_", "ullage_operator", "ullage.contract"))]
    assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names <= LIGHT
    assert {name for name in names if name.startswith("ullage")} == {"ullage", "ullage.clock"}


def test_tasks_of_spark_load_no_client_of_http() -> None:
    """Each Python worker imports these."""
    modules = [path.stem for path in (ROOT / "spark/ullage_spark").glob("[!_]*.py") if path.stem not in OF_THE_DRIVER]
    imports = ", ".join(f"ullage_spark.{module}" for module in modules)
    run = subprocess.run(
        [sys.executable, "-c", f"import sys, {imports}; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert {"pyarrow.flight", "ullage_spark.writer"} <= set(run.stdout.split())
    assert {"httpx", "aiohttp", "ullage.client.http"}.isdisjoint(run.stdout.split())


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("ullage_agent.node.node, ullage_agent.service.server", "kubernetes"),
        ("ullage_operator.handlers", "kubernetes.client.models.v1_pod"),
        ("ullage_operator.handlers", "kubernetes.aio.client.models.v1_pod"),
    ],
)
def test_of_the_cluster_s_client_no_more_is_loaded_than_is_used(modules: str, absent: str) -> None:
    """An agent that is alone loads nothing of it, and the operator none of its thousand classes of objects."""
    program = f"import sys, {modules}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert absent not in run.stdout.split()

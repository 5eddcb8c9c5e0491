"""Whether definitions that a cluster serves fit this operator: those of this tree, changed in each way."""

from pathlib import Path
from typing import Any

import yaml

from ullage_operator.definitions import problem_of, warning_of

CRDS = Path(__file__).parents[2] / "crds"


def served() -> dict[str, Any]:
    """As the API server publishes them."""
    schemas = {}
    for file in CRDS.glob("*.yaml"):
        definition = yaml.safe_load(file.read_text())
        (version,) = definition["spec"]["versions"]
        kind = {"group": "ullage.dev", "version": "v1alpha1", "kind": definition["spec"]["names"]["kind"]}
        schemas[kind["kind"]] = {**version["schema"]["openAPIV3Schema"], "x-kubernetes-group-version-kind": [kind]}
    return {"components": {"schemas": schemas}}


def fields(found: dict[str, Any], kind: str, *path: str) -> Any:
    """The properties below a path, to be changed."""
    below = found["components"]["schemas"][kind]["properties"]
    for name in path:
        below = below[name].get("items", below[name])["properties"]
    return below


def test_those_of_this_tree_fit() -> None:
    """Every field that is written is in them, and none is there that is not known."""
    assert (problem_of(served()), warning_of(served())) == ("", "")


def test_a_field_that_is_written_and_not_served_is_named() -> None:
    """In a status, in a node's spec, below lists; the first few, and the way out."""
    found = served()
    del fields(found, "ContentRepository", "status")["outOfReach"]
    del fields(found, "ContentRepositoryNode", "spec")["finished"]
    del fields(found, "ReclamationRun", "status", "results", "report")["freedBytes"]
    del fields(found, "ReclamationRun", "status")["phase"]

    problem = problem_of(found)

    assert "older than this operator" in problem
    assert "ContentRepository.status.outOfReach, ContentRepositoryNode.spec.finished, " in problem
    assert "and 1 more: install the definitions of this version" in problem


def test_a_field_that_only_people_write_stops_nothing() -> None:
    """What is older lacks it, and what is newer has it: each is said."""
    older, newer = served(), served()
    del fields(older, "ContentRepository", "spec", "compaction")["policy"]
    fields(newer, "ContentRepository", "spec", "storage", "containers")["colour"] = {"type": "string"}

    assert (problem_of(older), problem_of(newer)) == ("", "")
    assert warning_of(older) == "definitions are older: nobody can set ContentRepository.spec.compaction.policy"
    assert "newer: repositories with ContentRepository.spec.storage.containers.colour are not" in warning_of(newer)


def test_a_kind_or_a_version_that_is_missing_is_named() -> None:
    """And which versions there are instead."""
    found = served()
    del found["components"]["schemas"]["ReclamationRun"]

    assert "lack ReclamationRun.status" in problem_of(found)
    assert "it has nothing of ullage.dev: install the definitions" in problem_of(None)
    assert "of ullage.dev it serves v1 alone" in problem_of(None, ("v1",))
    assert "or run an operator of their version" in problem_of(None, ("v1",))

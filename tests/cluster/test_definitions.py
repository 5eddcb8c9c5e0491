"""The definitions in the cluster are another version's than the operator, or its installation is gone in part: a real
API server.
"""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.cluster.fleet import Fleet
from tests.cluster.operator_process import ROOT, Operator, condition, repository
from ullage_operator.definitions import PATH
from ullage_operator.install import NAME, NAMESPACE

CRD = yaml.safe_load((ROOT / "crds" / "contentrepositories.yaml").read_text())
SYSTEM = ("--namespace", NAMESPACE)


class Version:
    """What is in the cluster of the definition of ContentRepository."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.wanted = copy.deepcopy(CRD)

    def fields(self, *path: str) -> Any:
        below = self.wanted["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        for name in path:
            below = below[name]["properties"]
        return below

    def install(self) -> None:
        """Returns once the API server publishes it."""
        self.fleet.apply(self.wanted)
        self.fleet.wait_until("it is published", lambda: self._published() == set(self.fields("status")))

    def _published(self) -> set[str]:
        schemas = json.loads(self.fleet.kubectl("get", "--raw", PATH))["components"]["schemas"]
        return set(schemas["dev.ullage.v1alpha1.ContentRepository"]["properties"]["status"]["properties"])


@pytest.fixture
def version(fleet: Fleet, operator: Operator) -> Iterator[Version]:
    """Another version's, while the test lasts. The operator looks every second whether it still fits."""
    operator.end()
    yield (changed := Version(fleet))
    operator.end()
    changed.wanted = CRD
    changed.install()
    operator.start()


def test_definitions_that_are_older_are_waited_for(
    fleet: Fleet, operator: Operator, place: str, version: Version
) -> None:
    """An operator that works ends, the next one says what is lacking and what to do, and works once it is done."""
    operator.start(ULLAGE_OPERATOR_RESYNC_SECONDS="1")
    operator.runs(place)
    gone = version.fields("status").pop("outOfReach")
    version.install()
    operator.ended()
    assert operator.is_logged("lack ContentRepository.status.outOfReach: install the definitions of this version")
    operator.start()

    def told() -> str:
        events = fleet.get("events", *SYSTEM, "--field-selector=reason=DefinitionsDoNotFit")["items"]
        return "".join(f"{each['involvedObject']['kind']}: {each['message']}" for each in events)

    operator.until("it is told", lambda: "Lease: The operator waits: the cluster's definitions are older" in told())
    version.fields("status")["outOfReach"] = gone
    version.install()

    fleet.kubectl("annotate", "contentrepository", "flows", "ullage.dev/paused=true", "--namespace", place)
    operator.until("it works", lambda: condition(fleet, place, "Paused") == "True")


def test_with_definitions_that_are_newer_it_works(
    fleet: Fleet, operator: Operator, place: str, version: Version
) -> None:
    """A repository with a field from there is refused, with what to do; what stands in a status harms nobody."""
    version.fields("spec", "storage")["colour"] = {"type": "string"}
    version.fields("status")["weather"] = {"type": "string"}
    version.install()
    operator.start()
    fleet.apply(repository(place, {"storage": {"colour": "red"}}, "newer"))
    fleet.apply(repository(place))

    operator.until("one is accepted", lambda: condition(fleet, place, "Accepted") == "True")
    operator.until("one is refused", lambda: condition(fleet, place, "Accepted", "newer") == "False")
    path = '{.status.conditions[?(@.type=="Accepted")].message}'
    words = fleet.field(path, "contentrepository/newer", place)
    assert "spec.storage.colour: unknown field: this operator" in words
    assert "remove the field, or run a newer operator" in words
    assert operator.is_logged("repositories with ContentRepository.spec.storage.colour are not accepted")
    here = ("--namespace", place)
    patch = ("--subresource=status", "--type=merge", '--patch={"status": {"weather": "fair"}}')
    fleet.kubectl("patch", "contentrepository", "flows", *here, *patch)
    fleet.kubectl("annotate", "contentrepository", "flows", "ullage.dev/paused=true", *here)
    operator.until("it goes on", lambda: condition(fleet, place, "Paused") == "True")


def test_an_operator_whose_rights_are_gone_says_so_and_goes_on_once_they_are_back(
    fleet: Fleet, operator: Operator, place: str
) -> None:
    """As where somebody has removed a part of the installation; nothing has to be restarted."""
    role = fleet.get("clusterrole", NAME)
    fleet.kubectl("delete", "clusterrole", NAME)
    operator.end()
    operator.start()
    try:
        operator.until("it is told", lambda: _refused(operator))
    finally:
        kept = {key: role["metadata"][key] for key in ("name", "labels")}
        fleet.apply({"apiVersion": role["apiVersion"], "kind": role["kind"], "metadata": kept, "rules": role["rules"]})

    fleet.apply(repository(place))
    operator.until("it works", lambda: condition(fleet, place, "Accepted") == "True")


def _refused(operator: Operator) -> bool:
    return operator.is_logged("is forbidden") and operator.is_logged('resource "contentrepositories"')

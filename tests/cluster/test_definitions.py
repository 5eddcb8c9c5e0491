"""The definitions in the cluster are another version's than the operator: a real API server."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.cluster.fleet import Fleet
from tests.cluster.operator_process import ROOT, Operator, condition
from ullage_operator.definitions import PATH
from ullage_operator.install import NAMESPACE

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

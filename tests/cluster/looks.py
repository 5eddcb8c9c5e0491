"""What the conditions of objects say, each time that a test looks at them."""

import json
from typing import Any

from tests.cluster.errors import ClusterError
from tests.cluster.fleet import Fleet
from tests.cluster.operator_process import Operator, objects, say_ready
from ullage.contract import cell_of

WORKERS = ("worker-0", "worker-1", "worker-2")

Cell = tuple[str, str, str]
"""Kind, condition and reason."""


class Looks:
    """Looks at all objects of a namespace, and keeps which cells were seen; each look holds the rules of all."""

    def __init__(self, fleet: Fleet, operator: Operator, place: str) -> None:
        self.fleet, self.operator, self.place = fleet, operator, place
        self.here = ("--namespace", place)
        self.cells: set[Cell] = set()

    def all(self) -> dict[str, Any]:
        """By name."""
        found = self.fleet.get("contentrepositories,reclamationruns,contentbackups,contentrestores", *self.here)[
            "items"
        ]
        for each in found:
            self._look(each)
        return {each["metadata"]["name"]: each for each in found}

    def _look(self, found: dict[str, Any]) -> None:
        status, generation = found.get("status") or {}, found["metadata"]["generation"]
        conditions = status.get("conditions") or ()
        for condition in conditions:
            cell = (found["kind"], condition["type"], condition["reason"])
            assert condition["status"] == cell_of(*cell).status
            assert condition["observedGeneration"] <= status["observedGeneration"] <= generation
            if condition["type"] in ("Reconciling", "Stalled"):  # others stand while something is in the way
                assert condition["observedGeneration"] == status["observedGeneration"]
            self.cells.add(cell)
        holding = {condition["type"] for condition in conditions if condition["status"] == "True"}
        assert not {"Reconciling", "Stalled"} <= holding

    def until(self, name: str, *cells: str, words: str = "") -> dict[str, Any]:
        """An object says all of these at once, as `Type Reason`; the object. `words`: in one of their messages."""
        last: dict[str, Any] = {}

        def holds() -> bool:
            last.clear()
            last.update(self.all().get(name) or {})
            said = (last.get("status") or {}).get("conditions") or ()
            found = {f"{each['type']} {each['reason']}": each.get("message", "") for each in said}
            return set(cells) <= found.keys() and words in " ".join(found[cell] for cell in cells)

        try:
            self.operator.until(f"{name} says {', '.join(cells)}", holds)
        except ClusterError as error:
            raise ClusterError(f"{error}\n{json.dumps(last.get('status'), indent=1)}") from error
        return last

    def agents(self, name: str, nodes: tuple[str, ...] = WORKERS) -> None:
        """The repository's objects are there."""
        self.operator.until(
            f"{name} has its objects", lambda: set(nodes) <= objects(self.fleet, self.place, name).keys()
        )

    def speak(self, name: str, *nodes: str, **more: Any) -> None:
        """The agents of these nodes, or of all workers, say how they are."""
        for node in nodes or WORKERS:
            say_ready(self.fleet, self.place, node, name, **more)

"""Each call of the operator to its API server goes wrong in each way: what is there at the end is the same.

A sample of all that there is, another with each `ULLAGE_SEED`; `make calls-full` goes through the rest and keeps in
`.proof/` what it has been through with this operator.
"""

import contextlib
import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ullage_operator
from tests.cluster.calls import POOL, Administrator, Case, Life, difference
from tests.cluster.fault_proxy import KINDS, FaultProxy
from tests.cluster.fleet import Fleet
from tests.cluster.operator_process import ROOT, Operator
from ullage_operator.objects import digest

SEED = int(os.environ.get("ULLAGE_SEED", "20261121"))
MINUTES = float(os.environ.get("ULLAGE_CALLS_MINUTES", "0"))
KEPT = ROOT / ".proof" / "calls.kept"
WRITES = ("PATCH", "POST", "PUT", "DELETE")


class Stage:
    """Where lives are led: an operator behind the proxy, and what there is at the end of one in which all goes well."""

    def __init__(self, fleet: Fleet, people: Administrator, operator: Operator, proxy: FaultProxy) -> None:
        self._fleet, self._people, self._operator, self._proxy = fleet, people, operator, proxy
        self.expected: dict[str, str] = {}
        self.expected = self.led()
        self.calls = list(dict.fromkeys(proxy.calls))

    def led(self, *cases: Case) -> dict[str, str]:
        """What is there at the end of a life in which these go wrong, once what must not be was looked for."""
        with self._fleet.namespace(awaits_end=False) as place:
            self._proxy.tell(place, dict(cases))
            found = Life(self._people, self._operator, self._proxy, place).lived()
        given = [node for node, _ in self._proxy.given]
        assert sorted(given) == sorted(set(given)), f"{cases}: a node got two tickets for one run: {self._proxy.given}"
        assert self._proxy.most_held == 1, f"{cases}: {self._proxy.most_held} tickets at once"
        return found

    def judged(self, *cases: Case) -> set[str]:
        """Which of the calls came at all; AssertionError if the end is not the same."""
        problem = difference(self.expected, self.led(*cases))
        assert not problem, f"{cases} lead elsewhere:\n{problem}"
        return self._proxy.struck

    def cases(self) -> list[Case]:
        """All, in the order of this seed, whichever of them this machine's timing made."""
        found = [Case(call, kind) for call in self.calls for kind in KINDS]
        return sorted(found, key=lambda case: digest([SEED, *case]))


@pytest.fixture(scope="module")
def stage(fleet: Fleet, operator: Operator) -> Iterator[Stage]:
    """With an operator of its own, while the module's waits."""
    nodes = fleet.add_nodes(2, "struck")
    fleet.kubectl("label", "nodes", *nodes, *(f"{key}={value}" for key, value in POOL.items()))
    behind: list[Operator] = []
    proxy = FaultProxy(fleet, lambda: os.kill(behind[0].pid, signal.SIGKILL))
    proxy.start()
    behind.append(Operator(fleet, server=f"http://127.0.0.1:{proxy.port}"))
    operator.end()
    behind[0].start()
    with contextlib.closing(Administrator(fleet)) as people:
        yield Stage(fleet, people, behind[0], proxy)
    behind[0].end(signal.SIGKILL)
    proxy.stop()
    fleet.kubectl("delete", "nodes", *nodes)  # other modules count them
    operator.start()


def test_calls_that_go_wrong_change_nothing(stage: Stage) -> None:
    """A write for each way, which the seed chooses, in one life; or each call in each way, as far as time goes."""
    print(f"seed {SEED}: {len(stage.calls)} calls of the operator in one life, {len(KINDS)} ways to go wrong")
    if MINUTES:
        _judge_all(stage)
        return
    chosen: dict[str, Case] = {}
    for case in stage.cases():
        if case.call.startswith(WRITES) and case.call not in {each.call for each in chosen.values()}:
            chosen.setdefault(case.kind, case)
    for case in chosen.values():
        print(": ".join(case))
    struck = stage.judged(*chosen.values())
    print(f"{len(struck)} of them came")
    assert len(struck) >= len(KINDS) - 2  # what goes wrong before may make one needless


def _judge_all(stage: Stage) -> None:
    """Those that were not judged with this operator before, whatever the seed was; says what share it covered."""
    version = hashlib.sha256()
    for path in sorted(Path(ullage_operator.__file__).parent.rglob("*.py")):
        version.update(path.read_bytes())
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    judged: dict[str, bool] = kept.get("judged", {}) if kept.get("version") == version.hexdigest() else {}
    cases, end = stage.cases(), time.monotonic() + MINUTES * 60
    for case in cases:
        name = ": ".join(case)
        if name in judged:
            continue
        if time.monotonic() > end:
            break
        print(name, flush=True)
        judged[name] = case.call in stage.judged(case)
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps({"version": version.hexdigest(), "judged": judged}, indent=1))
    met = sum(judged.get(": ".join(case), False) for case in cases)
    gone = sum(judged.get(": ".join(case)) is False for case in cases)
    share = 100 * (met + gone) // len(cases)
    print(f"seed {SEED}: {share} % of {len(cases)} cases: {met} struck, {gone} whose call did not come again")

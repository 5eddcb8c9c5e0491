"""What the operator's metrics say of a repository is what its status says."""

import asyncio

import pytest

from tests.operator.support import NOW, Server
from tests.operator.test_passes import KEY, Fleet
from ullage.contract import TABLE, time_of
from ullage_operator import metrics
from ullage_operator.errors import ApiError
from ullage_operator.objects import Object


class Refusing(Server):
    """One that refuses a DaemonSet, at first."""

    refuses = True

    async def apply(self, document: Object, subresource: str = "") -> Object:
        if self.refuses and document["kind"] == "DaemonSet":
            raise ApiError(403, "no quota is left")
        return await super().apply(document, subresource)


def told() -> dict[str, list[str]]:
    """By condition of the repository the statuses whose series is 1."""
    found: dict[str, list[str]] = {}
    for sample in next(iter(metrics.CONDITIONS.collect())).samples:
        if (sample.labels["namespace"], sample.labels["repository"]) == KEY:
            holding = found.setdefault(sample.labels["type"], [])
            holding += [sample.labels["status"]] if sample.value else []
    return found


def written(fleet: Fleet) -> dict[str, list[str]]:
    status = fleet.server.objects["ContentRepository", "data", "flows"]["status"]
    return {each["type"]: [each["status"]] for each in status["conditions"]}


def test_conditions_are_those_of_the_status_and_go_with_the_repository() -> None:
    """After a pass of which a step was refused, after one that went well, and once the repository is gone."""

    async def run() -> None:
        fleet = Fleet(2, server := Refusing(time_of(NOW)))
        await fleet.reconciler.cache.start()
        with pytest.raises(ApiError):
            await fleet.reconciler.reconcile(KEY)
        assert told() == written(fleet)
        assert told()["Stalled"] == ["True"]

        server.refuses = False
        await fleet.reconciler.reconcile(KEY)
        assert told() == written(fleet)
        assert set(told()) == {row.type for row in TABLE["ContentRepository"]}
        assert told()["Stalled"] == ["False"]

        fleet.reconciler.cache.repositories.objects = {}
        await fleet.reconciler.reconcile(KEY)
        assert told() == {}
        await fleet.reconciler.stop()

    asyncio.run(run())

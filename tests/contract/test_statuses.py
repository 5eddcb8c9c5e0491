"""Statuses as whoever may write them can write them: what cannot be is refused with its place, and read as empty."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tools.crds import schema_of
from ullage.contract import (
    BackupStatus,
    ClusterRecord,
    NodeSpec,
    NodeStatus,
    RepositoryStatus,
    RestoreStatus,
    RunStatus,
    record_of,
    status_of,
)

RECORDS: tuple[type[ClusterRecord], ...] = (
    NodeSpec,
    NodeStatus,
    RepositoryStatus,
    RunStatus,
    BackupStatus,
    RestoreStatus,
)
NO_TIMES = ("2026-02-30T00:00:00Z", "2026-01-01T24:00:01Z", "0000-01-01T00:00:00Z", "9999-99-99T99:99:99Z")
RUNNING: dict[type[ClusterRecord], dict[str, Any]] = {
    BackupStatus: {"run": "r", "scheduled": "2026-01-01T00:00:00Z", "started": "2026-01-01T00:00:00Z"},
    RestoreStatus: {"place": "s3://flows/b"},
}


def _with(schema: dict[str, Any], time: str, path: str = "") -> Iterator[tuple[str, Any]]:
    """Documents of a schema with the least that it asks for, each with this text in the place of one of its times."""
    if "[0-9]{4}-[0-9]{2}" in schema.get("pattern", ""):
        yield path, time
    if schema.get("type") == "array":
        yield from ((where, [found]) for where, found in _with(schema["items"], time, path))
    for name, below in (schema.get("properties") or {}).items():
        least = {each: _least(schema["properties"][each]) for each in schema.get("required", ())}
        yield from ((where, least | {name: found}) for where, found in _with(below, time, f"{path}.{name}"))


def _least(schema: dict[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    if "[0-9]{4}-" in schema.get("pattern", ""):
        return "2026-01-01T00:00:00Z"
    if schema.get("type") == "object":
        return {name: _least(schema["properties"][name]) for name in schema.get("required", ())}
    if schema["type"] == "array":
        return [_least(schema["items"])]
    return "a" if schema["type"] == "string" else 1


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_a_time_that_no_calendar_has_is_refused_wherever_it_stands(kind: type[ClusterRecord]) -> None:
    """The API server holds times against a pattern alone; whoever reads them later must not fail on one."""
    places = 0
    for time in NO_TIMES:
        for path, document in _with(schema_of(kind), time):
            with pytest.raises(msgspec.ValidationError, match="No calendar has") as refused:
                record_of(kind, document)
            assert path in str(refused.value).replace("[]", "")
            places += 1
    wanted = sum(1 for _ in _with(schema_of(kind), NO_TIMES[0]))
    assert places == len(NO_TIMES) * wanted
    assert wanted > 0
    for _, document in _with(schema_of(kind), "9999-12-31T23:59:59Z"):
        record_of(kind, document)


@pytest.mark.parametrize("kind", [BackupStatus, RestoreStatus])
def test_what_is_under_way_says_what_its_end_is_reckoned_by(kind: type[ClusterRecord]) -> None:
    """Of each thing that is missing; what was written by a hand must not fail the pass over everything near it."""
    whole = {"phase": "Running", **RUNNING[kind]}
    assert status_of(kind, whole)[1] == ""
    for missing in RUNNING[kind]:
        found, problem = status_of(kind, {key: value for key, value in whole.items() if key != missing})
        assert (found, "what is Running has" in problem) == (kind(), True)


def test_a_verification_under_way_is_held_to_the_same() -> None:
    """Its ticket would be refused by the API server, and with it those of all nodes."""
    whole = {"phase": "Running", "run": "r", "started": "2026-01-01T00:00:00Z", "samplePercentage": 5}
    assert status_of(BackupStatus, {"verification": whole})[1] == ""
    for missing in ("run", "started", "samplePercentage"):
        left = {key: value for key, value in whole.items() if key != missing}
        assert status_of(BackupStatus, {"verification": left})[0] == BackupStatus()
    assert status_of(BackupStatus, {"verification": whole | {"samplePercentage": 101}})[0] == BackupStatus()


def test_of_a_node_whose_status_cannot_be_read_it_is_known_that_it_has_a_repository() -> None:
    """Else its agent would make an empty one where its volume is missing. Of no other kind anything is known."""
    found, problem = status_of(NodeStatus, {"repositoryUuid": "u", "heartbeat": NO_TIMES[0], "version": "1"})
    assert (found, "No calendar has" in problem) == (NodeStatus(repository_uuid="u"), True)
    for wrong in ({"repositoryUuid": 1}, {"heartbeat": NO_TIMES[0]}, ["repositoryUuid"], "u"):
        assert status_of(NodeStatus, wrong)[0] == NodeStatus()
    assert status_of(BackupStatus, {"repositoryUuid": "u", "started": NO_TIMES[0]})[0] == BackupStatus()

"""The dashboards against Grafana's published schema, and against what is measured.

The schema is that of Grafana's own SDK, which is made from the definitions that Grafana itself uses.
"""

import copy
import enum
import json
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from ullage_agent.cli.nifi_metrics import NIFI_TABLE, PREFIX as NIFI_PREFIX
from ullage_agent.service.metrics import PREFIX, TABLE
from ullage_operator.metrics import REGISTRY

FILES = Path(__file__).parents[2] / "charts/ullage/files"
BOARDS = sorted((FILES / "dashboards").glob("*.json"))

UNSHOWN = {
    "container_resource_claims": "how many files there are tells of no trouble: their bytes are shown",
    "queues": "how many queues there are is for whoever made them",
    "queue_flow_files": "a series a queue: no bound on how many, and each owner has queues of their own to watch",
    "queue_bytes": "the same",
    "swap_files": "a detail of long queues, whose length is shown",
    "swapped_flow_files": "the same",
    "reclaim_problems_total": "each report names the files, and so does a check; docs/operations.md has a rule for it",
    "forgotten_total": "a defect of a client, which its own log tells",
    "erasure_unfinished": "whoever began it waits for its end; docs/operations.md has a rule for it",
    "remembered_answers": "bounded, and of no use to an administrator",
    "log_syncs_total": "for diagnosis, with the latency of commits, which is shown",
    "transactions_total": "the same",
    "sync_seconds": "the same",
    "read_seconds": "the same",
    "process_io_bytes_total": "what every process exporter tells",
    "provenance_waiting_bytes": "the events that wait are shown",
    "replication_shipped_bytes_total": "the lag, which matters, is shown",
    "window_opens_timestamp_seconds": "whether a window is open is shown; the next one stands in the status",
    "requests_under_way": "for diagnosis by route; errors are shown",
    "requests_held": "the same; a principal that is refused for it learns the quota",
    "requests_held_bytes": "the same",
    "requests_arriving_bytes": "the same",
    "request_seconds": "the same",
    "requests_total": "the same",
    "content_written_bytes_total": "the write amplification is shown",
    "runs_total": "no series before the first run; what runs gave back is shown",
    "skipped_nodes_total": "a job was told to skip them, and who is missing stands in the events of the repository",
    "flight_strangers_total": "no series before the first; a line of the log says so once a minute",
    "window_overrides_total": "whoever overrides asked for it, and stands in the audit log",
    "operator_reconcile_seconds": "for diagnosis; outcomes are shown",
    "operator_queue_length": "the same: it empties within a second",
    "operator_api_writes": "the same",
    "nifi_swap_files": "a detail of long queues, whose length is shown",
    "nifi_unreadable_bytes": "how many FlowFiles it concerns is shown, and the survey names them",
    "nifi_transaction": "it names the moment, and goes up as NiFi works",
    "nifi_survey_complete": "what could not be read is counted, and shown",
    "nifi_surveys_total": "whether the last one succeeded is shown, and how old it is",
}
"""Metrics that have neither panel nor alert, and why."""


def board(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def complaints(document: dict[str, Any]) -> list[str]:
    """What the schema does not know, or knows as something else."""
    register_default_plugins()
    try:
        made = Dashboard.from_json(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return [f"not a dashboard: {error!r}"]
    written = json.loads(json.dumps(made, cls=JSONEncoder))
    return [*lost(document, written, ""), *mistyped(made, Dashboard, "")]


def lost(given: Any, kept: Any, path: str) -> Iterator[str]:
    """Fields that the schema has no place for."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            if key in kept:
                yield from lost(value, kept[key], f"{path}/{key}")
            else:
                yield f"{path}/{key} is not in the schema"
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for number, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from lost(one, other, f"{path}/{number}")
    elif given != kept:
        yield f"{path}: {given!r} is read as {kept!r}"


def mistyped(value: Any, hint: Any, path: str) -> list[str]:
    """Values of another type than the schema gives them."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint in (Any, object):
        return []
    if origin is typing.Union:
        tried = [mistyped(value, part, path) for part in parts]
        return [] if [] in tried else max(tried, key=len)
    if origin is list and isinstance(value, list):
        return [each for number, one in enumerate(value) for each in mistyped(one, parts[0], f"{path}/{number}")]
    if isinstance(value, getattr(hint, "__mro__", ())[:1]) and hint.__module__.startswith("grafana_foundation_sdk"):
        fields = {} if issubclass(hint, enum.Enum) else typing.get_type_hints(hint)
        return [
            each for name, kind in fields.items() for each in mistyped(getattr(value, name), kind, f"{path}/{name}")
        ]
    return [] if is_plain(value, hint, origin, parts) else [f"{path}: {value!r} is no {hint}"]


def is_plain(value: Any, hint: Any, origin: Any, words: tuple[Any, ...]) -> bool:
    """Whether a value without fields is of its type; the SDK leaves words of a list as they are written."""
    if origin is typing.Literal:
        return value in words
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return value in {each.value for each in hint}
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else origin or hint)


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_a_dashboard_is_one_by_grafanas_schema(path: Path) -> None:
    """Every field is one that Grafana has, of its type."""
    assert complaints(board(path)) == []


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("titel",), "node"),
        (("editable",), "no"),
        (("schemaVersion",), "39"),
        (("panels", 0, "gridPos", "h"), "8"),
        (("panels", 0, "fieldConfig", "defaults", "units"), "bytes"),
        (("panels", 0, "targets", 0, "expression"), "up"),
        (("templating", "list", 0, "type"), "source"),
        (("templating", "list", 1, "refresh"), 7),
    ],
)
def test_what_grafana_does_not_know_is_found(place: tuple[Any, ...], value: object) -> None:
    """A field by another name, a value of another type, a word that is none of a list."""
    document = copy.deepcopy(board(BOARDS[0]))
    inner: Any = document
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    assert complaints(document)


def test_each_metric_is_shown_alerts_or_has_a_reason() -> None:
    """A new metric gets a panel or an alert, or says here why not; a reason goes when there is one."""
    rules = yaml.safe_load((FILES / "alerts.yaml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    panels = [panel for path in BOARDS for panel in board(path)["panels"]]
    expressions = [rule["expr"] for rule in rules] + [each["expr"] for panel in panels for each in panel["targets"]]
    expressions += [each["query"] for path in BOARDS for each in board(path)["templating"]["list"]]
    used = {
        re.sub("_(bucket|sum|count)$", "", word) for text in expressions for word in re.findall(r"\bullage_\w+", text)
    }
    words = {f"{PREFIX}{each.name}" for each in TABLE} | {NIFI_PREFIX + each.name for each in NIFI_TABLE}
    words |= {family.name for family in REGISTRY.collect()}
    unused = {word.removeprefix(PREFIX) for word in words if word not in used and f"{word}_total" not in used}
    assert unused == set(UNSHOWN)

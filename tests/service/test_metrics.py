"""Metrics of a running server: the table, the names, the values, and who may read them."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.service.running import Running, document_at, until
from ullage.contract import GoalSettings
from ullage.engine.provenance.holds import Hold
from ullage.errors import RepositoryDamaged
from ullage.wire.provenance import EventQuery
from ullage_agent.service.metrics import PREFIX, TABLE, MetricKind


def scrape(running: Running) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every value, by name and label values."""
    answer = httpx.get(f"{running.server.urls['metrics']}metrics")
    assert answer.status_code == 200, answer.text
    return {
        (sample.name.removeprefix(PREFIX), tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


@pytest.fixture
def metered(tmp_path: Path) -> Iterator[Running]:
    """A server whose metrics can be read."""
    limits = {"goal": GoalSettings(disk_to_live=1.01), "min_used_percentage": 100}
    sections = {"archive": {"enabled": False}, "compaction": limits}
    with Running(document_at(tmp_path / "r", service={"metrics_port": 0}, **sections)) as made:
        yield made


def test_names_follow_the_rules_of_prometheus() -> None:
    """Lower case, a base unit, `_total` for counters alone; labels that have few values."""
    assert len({entry.name for entry in TABLE}) == len(TABLE)
    for entry in TABLE:
        assert re.fullmatch(r"[a-z][a-z_]*", entry.name)
        assert entry.name.endswith("_total") == (entry.kind in (MetricKind.COUNTED, MetricKind.TOTAL))
        assert entry.name.endswith("_seconds") or entry.kind is not MetricKind.TIMED
        assert not re.search(r"(milli|kilo|mega|percent)", entry.name)
        assert entry.help.endswith(".")
        assert not {"claim", "resource", "uuid", "id", "flow_file", "path", "token"} & set(entry.labels)


def test_every_metric_of_the_table_is_there_once_something_happened(metered: Running) -> None:
    """None is only a promise; and none is there that the table does not name."""
    client = metered.client
    client.post("/v1/queues/q/flowfiles", content=b"x" * 3_000_000)
    client.delete("/v1/queues/q/flowfiles")
    client.post("/v1/leases", json={"duration_millis": 60_000})
    client.get("/v1/handles/none")
    engine = metered.server.host.repository.engine
    engine.provenance.holds.set("\0reader", Hold(0, 1 << 60), 0)
    client.post("/v1/reclamation/runs", json={"override": True})
    metered.server.host.repository.engine.checkpoint()
    metered.server.metrics.count("maintenance_failures_total", "none", by=0)
    until(lambda: ("runs_total", ("done",)) in scrape(metered), "the run to be counted, which comes after its end")
    with metered.server.host.repository.session() as session:
        for queue in ("kept", "q"):
            session.ingest(queue, [bytes(100_000)])
        session.commit()
    client.delete("/v1/queues/q/flowfiles")
    client.get("/v1/reclamation/plan", params={"respects_guards": True})  # by the goal, which a threshold keeps from it

    found = {re.sub("_(bucket|count|sum|created)$", "", name) for name, _ in scrape(metered)}

    missing = {entry.name for entry in TABLE} - found
    assert missing == set()
    assert {name for name in found if not name.startswith(("process_", "window"))} <= {entry.name for entry in TABLE}


def test_values_are_those_of_the_survey(metered: Running) -> None:
    """The same figures as everywhere else."""
    client = metered.client
    client.post("/v1/queues/kept/flowfiles", content=b"x" * 100_000)
    client.post("/v1/queues/dead/flowfiles", content=b"x" * 200_000)
    client.delete("/v1/queues/dead/flowfiles")
    survey = client.get("/v1/reclamation/survey").json()["containers"][0]

    found = scrape(metered)

    assert found["container_live_bytes", ("c1",)] == survey["live_bytes"]
    assert found["container_disk_bytes", ("c1",)] == survey["disk_bytes"]
    dead = sum(found["container_dead_bytes", ("c1", kind)] for kind in ("tail", "unused", "middle"))
    assert dead == survey["dead_bytes"]
    assert found["queue_flow_files", ("kept",)] == 1
    assert found["content_written_bytes_total", ()] >= 300_000
    assert found["commit_seconds_count", ()] >= 3
    assert found["ready", ()] == 1


def test_streams_have_a_backlog_and_an_oldest_unread(metered: Running) -> None:
    """Of a queue what stands there and what was taken and is not removed; of events those after what was read."""
    engine = metered.server.host.repository.engine
    for number in range(3):
        metered.client.post("/v1/queues/orders/flowfiles", content=b"x" * (number + 1))
    feed = engine.feeds.take("billing", "orders", 0, 1)
    engine.feeds.take("idle", "none", 0, 0)
    (first, second) = engine.history.query(EventQuery(limit=2)).events
    engine.provenance.holds.set("\0audit", Hold(first.sequence, 1 << 60), 0)
    oldest = min(record.queued for record in engine.queue("orders").records()) / 1_000_000  # queued before the taking

    found = scrape(metered)

    labels = {("orders", "billing"): 3, ("none", "idle"): 0, ("(events)", "audit"): engine.provenance.span()[1] - 1}
    assert {label: value for (name, label), value in found.items() if name == "stream_backlog"} == labels
    assert found["stream_oldest_unread_timestamp_seconds", ("orders", "billing")] == pytest.approx(oldest, abs=0.002)
    assert found["stream_oldest_unread_timestamp_seconds", ("(events)", "audit")] == second.millis / 1000
    assert ("stream_oldest_unread_timestamp_seconds", ("none", "idle")) not in found

    engine.feeds.done("billing", "orders", feed.through)
    assert scrape(metered)["stream_backlog", ("orders", "billing")] == 2


def test_refusals_are_counted_and_routes_are_templates(metered: Running) -> None:
    """However many paths are made up, there is one series for each route."""
    for number in range(20):
        assert metered.client.get(f"/v1/handles/{number:032x}").status_code == 404
        assert metered.client.get(f"/made/up/{number}").status_code == 404

    made_up = "requests_total", ("GET", "none", "404")
    until(lambda: scrape(metered).get(made_up, 0) >= 20, "the last one to be counted, which comes after its answer")
    found = scrape(metered)

    assert found["errors_total", ("no-such-handle",)] == 20
    assert found["requests_total", ("GET", "/v1/handles/{id}", "404")] == 20
    assert found[made_up] == 20
    assert not any("00000" in label for _, labels in found for label in labels)


def test_a_swap_file_that_is_lost_is_counted(tmp_path: Path) -> None:
    """The state has the same figure."""
    small = {"swap_threshold": 6, "swap_batch": 3}
    with Running(document_at(tmp_path / "r", service={"metrics_port": 0}, flow_file=small)) as running:
        queues = running.server.host.repository.queues
        for number in range(9):
            queues.put("q", str(number).encode())
        assert scrape(running)["unavailable_swap_files", ()] == 0
        (lost,) = (tmp_path / "r" / "swap").iterdir()
        whole = lost.read_bytes()
        lost.unlink()
        with running.server.host.repository.session() as session:
            assert len(session.get_many("q", 9)) == 6
            with pytest.raises(RepositoryDamaged):
                session.get("q")

        assert scrape(running)["unavailable_swap_files", ()] == 1
        assert running.client.get("/v1/state").json()["unavailable_swap_files"] == 1
        lost.write_bytes(whole)


def test_only_metrics_are_on_their_port(metered: Running) -> None:
    """Content cannot be reached there, nor metrics on the port of content."""
    assert httpx.get(f"{metered.server.urls['metrics']}v1/state").status_code == 404
    assert metered.client.get("/metrics").status_code == 404


@pytest.mark.parametrize("host", ["elsewhere.example", "elsewhere.example:8482", "127.0.0.1.elsewhere.example"])
def test_a_name_that_was_made_to_lead_here_gets_no_figures(metered: Running, host: str) -> None:
    """Nobody is asked for a token, so a script of that page could else read them; names of loopback are answered."""
    url = f"{metered.server.urls['metrics']}metrics"

    assert httpx.get(url, headers={"host": host}).status_code == 403
    assert httpx.get(url, headers={"host": "localhost:1"}).status_code == 200


def test_a_volume_that_is_away_is_told_and_keeps_no_figure_of_the_others(tmp_path: Path, metered: Running) -> None:
    """The page is served, and the survey says why the volume is away; content is readable when it is back."""
    handle = metered.client.post("/v1/handles", content=b"x" * 1_000).json()["handle"]
    (tmp_path / "r" / "c1").rename(tmp_path / "unmounted")
    try:
        metered.server.host.repository.engine.volumes.look()
        found = scrape(metered)
        (usage,) = metered.client.get("/v1/reclamation/survey").json()["containers"]
        refused = metered.client.get(f"/v1/handles/{handle}")
    finally:
        (tmp_path / "unmounted").rename(tmp_path / "r" / "c1")

    assert found["container_away", ("c1",)] == 1
    assert found["container_used_ratio", ("c1",)] == 0
    assert found["unavailable_contents", ()] == 1
    assert usage["volume"] == "away"
    assert "is its volume mounted?" in usage["volume_reason"]
    assert (refused.status_code, refused.json()["slug"]) == (503, "volume-away")
    metered.server.host.repository.engine.volumes.look()
    assert scrape(metered)["container_away", ("c1",)] == 0
    assert metered.client.get(f"/v1/handles/{handle}").content == b"x" * 1_000

"""Space, leases and the past over HTTP, against a running server."""

from pathlib import Path

import pytest

from tests.service.running import Running, document_at, until
from ullage_agent.contract import Duration as Time, MaintenanceOperation, Window

MB = 1 << 20
CLOSED = Window(name="never", schedule="0 0 29 2 *", duration=Time(3_600_000), operations=tuple(MaintenanceOperation))


def fragment(running: Running) -> str:
    """A large dead content beside a small live one; the live one's id."""
    items = [{"content": "eA=="}]
    kept = running.client.post("/v1/queues/kept/batch", json={"items": items}).json()["ids"][0]
    running.client.post("/v1/queues/dead/flowfiles", content=b"d" * (8 * MB))
    running.client.delete("/v1/queues/dead/flowfiles")
    return str(kept)


def ended(running: Running, id: str) -> dict[str, object]:
    """A run, once it is over."""
    until(lambda: running.client.get(f"/v1/reclamation/runs/{id}").json()["ended_millis"], "the run to end")
    found: dict[str, object] = running.client.get(f"/v1/reclamation/runs/{id}").json()
    return found


def test_a_run_gives_back_what_the_plan_says(tmp_path: Path) -> None:
    """The survey shows it before and after; the plan alone changes nothing; what lives is still there."""
    with Running(document_at(tmp_path / "r", archive={"enabled": False})) as running:
        kept = fragment(running)
        before = running.client.get("/v1/reclamation/survey").json()["containers"][0]
        plan = running.client.get("/v1/reclamation/plan", params={"policy": "CompactAll"}).json()
        still = running.client.get("/v1/reclamation/survey").json()["containers"][0]

        begun = running.client.post("/v1/reclamation/runs", json={"policy": "CompactAll", "bytes_per_second": 0})
        run = ended(running, begun.json()["id"])
        after = running.client.get("/v1/reclamation/survey").json()["containers"][0]

        assert before["dead_bytes"] >= 8 * MB
        assert plan["frees_bytes"] >= 8 * MB
        assert still == before | {"used_bytes": still["used_bytes"], "used_percentage": still["used_percentage"]}
        assert begun.status_code == 202
        assert run["problem"] is None
        assert run["report"]["freed_bytes"] >= 8 * MB  # type: ignore[index]
        assert after["dead_bytes"] < 1 * MB
        assert running.client.get("/v1/queues/kept/flowfiles").json()[0]["id"] == kept
        assert running.client.get("/v1/state").json()["last_run"]["id"] == begun.json()["id"]


def test_outside_of_the_windows_a_run_needs_an_override(tmp_path: Path) -> None:
    """Refused with the reason; overridden, it runs, and the state shows who did that."""
    sections = {"archive": {"enabled": False}, "maintenance": {"windows": (CLOSED,)}}
    with Running(document_at(tmp_path / "r", **sections)) as running:
        fragment(running)

        refused = running.client.post("/v1/reclamation/runs", json={})
        windows = running.client.get("/v1/reclamation/windows").json()
        begun = running.client.post("/v1/reclamation/runs", json={"override": True})
        run = ended(running, begun.json()["id"])

        assert (refused.status_code, refused.json()["slug"]) == (409, "window-closed")
        assert "window never" in refused.json()["detail"]
        assert not any(each["is_allowed"] for each in windows)
        assert run["report"]["freed_bytes"] >= 8 * MB  # type: ignore[index]
        shown = running.client.get("/v1/state").json()["last_override"]
        assert (shown["id"], shown["owner"], shown["overrides_windows"]) == (run["id"], "anonymous", True)


def test_a_pause_cannot_be_overridden(tmp_path: Path) -> None:
    """Whoever paused wants to look at something: nothing is given back."""
    with Running(document_at(tmp_path / "r", maintenance={"paused": True})) as running:
        refused = running.client.post("/v1/reclamation/runs", json={"override": True})

        assert (refused.status_code, refused.json()["slug"]) == (409, "window-closed")


def test_only_what_was_asked_for_is_done(tmp_path: Path) -> None:
    """A run of truncations deletes nothing."""
    with Running(document_at(tmp_path / "r", archive={"enabled": False})) as running:
        fragment(running)
        begun = running.client.post("/v1/reclamation/runs", json={"operations": ["Rewrite"]})

        done = ended(running, begun.json()["id"])["report"]["done"]  # type: ignore[index]

        assert done["delete"] == done["truncate"] == 0


def test_unknown_runs_and_policies_are_refused(running: Running) -> None:
    """404 and 400."""
    assert running.client.get("/v1/reclamation/runs/none").status_code == 404
    assert running.client.delete("/v1/reclamation/runs/none").status_code == 404
    assert running.client.get("/v1/reclamation/plan?policy=Nonesuch").status_code == 400
    assert running.client.get("/v1/reclamation/resources/99").status_code == 404


def test_the_map_of_a_file_has_no_gap(running: Running) -> None:
    """Live, dead and holes from its first byte to its last; the pages of the list are all files."""
    running.client.post("/v1/queues/a/batch", json={"items": [{"content": "eA==" * 100}] * 10})
    fragment(running)

    listed = running.client.get("/v1/reclamation/resources", params={"limit": 1}).json()
    one = running.client.get(f"/v1/reclamation/resources/{listed['resources'][0]['resource']}").json()

    at = 0
    for stretch in one["stretches"]:
        assert stretch["start"] == at
        at += stretch["length"]
    assert at == one["resource"]["length"]
    assert {stretch["kind"] for stretch in one["stretches"]} <= {"live", "dead", "hole"}


def test_leases_are_taken_renewed_released_and_revoked(running: Running) -> None:
    """And 410 once they have ended; too long a one is refused."""
    lease = running.client.post("/v1/leases", json={"duration_millis": 60_000, "purpose": "a scan"}).json()
    path = f"/v1/leases/{lease['id']}"

    assert "a scan" in running.client.get("/v1/leases").json()[0]["holder"]
    renewed = running.client.post(f"{path}/renew", json={"duration_millis": 120_000}).json()
    assert renewed["expires_millis"] > lease["expires_millis"]
    assert running.client.delete(path).json()["state"] == "released"
    assert running.client.get(path).status_code == 410
    other = running.client.post("/v1/leases", json={"duration_millis": 60_000}).json()
    assert running.client.post(f"/v1/leases/{other['id']}/revoke").status_code == 200
    assert running.client.post(f"/v1/leases/{other['id']}/renew", json={"duration_millis": 1}).status_code == 410
    assert running.client.post("/v1/leases", json={"duration_millis": 10**12}).status_code == 429
    assert running.client.post("/v1/leases", json={"duration_millis": 1, "resources": [99]}).status_code == 410


def test_the_past_is_searched_traced_read_and_replayed(running: Running) -> None:
    """From the event that dropped a FlowFile back into its queue."""
    items = [{"content": "c29tZSBjb250ZW50", "attributes": {"filename": "a.txt"}}]
    id = running.client.post("/v1/queues/in/batch", json={"items": items}).json()["ids"][0]
    session = running.client.post("/v1/queues/in/poll", json={}).json()["session"]
    running.client.post(f"/v1/sessions/{session}/commit", json={})

    events = running.client.get("/v1/provenance/events", params={"flow_file": id}).json()["events"]
    drop = next(event for event in events if event["type"] == "DROP")
    path = f"/v1/provenance/events/{drop['id']}"

    assert running.client.get(path).json() == drop
    assert running.client.get(f"{path}/content?previous=true", headers={"range": "bytes=0-3"}).content == b"some"
    assert running.client.get(f"{path}/replay").json()["is_possible"] is True
    key = {"idempotency-key": "replay"}
    replayed = running.client.post(f"{path}/replay", json={}, headers=key).json()
    assert running.client.post(f"{path}/replay", json={}, headers=key).json() == replayed
    assert [each["id"] for each in running.client.get("/v1/queues/in/flowfiles").json()] == [replayed["id"]]
    graph = running.client.get(f"/v1/provenance/lineage/{id}").json()
    assert "REPLAY" in [event["type"] for event in graph["events"]]
    assert graph["links"]


@pytest.mark.parametrize("path", ["events/0", "events/x", "events/99999999", "events/1.99", "events/9.0/content"])
def test_events_that_there_are_not_are_not_found(running: Running, path: str) -> None:
    """Whatever is asked of them."""
    assert running.client.get(f"/v1/provenance/{path}").status_code == 404


def test_why_an_event_cannot_be_replayed_is_said(running: Running) -> None:
    """Before somebody tries, and when they do."""
    running.client.post("/v1/handles", content=b"x")

    may = running.client.get("/v1/provenance/events/1/replay").json()
    refused = running.client.post("/v1/provenance/events/1/replay", json={})

    assert may["is_possible"] is False
    assert may["reason"] == "no queue"
    assert (refused.status_code, refused.json()["slug"]) == (409, "replay-refused")


def test_the_survey_says_what_leases_hold(running: Running) -> None:
    """The bytes of held files by container, and on the map which files they are; nothing after its release."""
    running.client.post("/v1/queues/kept/flowfiles", content=b"k" * MB)
    (held,) = running.client.get("/v1/reclamation/resources").json()["resources"]
    lease = running.client.post("/v1/leases", json={"duration_millis": 60_000, "resources": [held["resource"]]}).json()

    during = running.client.get("/v1/reclamation/survey").json()["containers"][0]
    (shown,) = running.client.get("/v1/reclamation/resources").json()["resources"]
    running.client.delete(f"/v1/leases/{lease['id']}").raise_for_status()
    after = running.client.get("/v1/reclamation/survey").json()["containers"][0]
    one = running.client.get(f"/v1/reclamation/resources/{held['resource']}").json()["resource"]

    assert during["leased_bytes"] == held["allocated_bytes"] >= MB
    assert (held["is_leased"], shown["is_leased"], one["is_leased"]) == (False, True, False)
    assert after["leased_bytes"] == 0


def test_each_window_says_when_it_opens_next(tmp_path: Path) -> None:
    """In the order of the document, with the last opening, and what cannot be read with its problem."""
    with Running(document_at(tmp_path / "r", maintenance={"windows": (CLOSED,)})) as running:
        (opening,) = running.client.get("/v1/reclamation/openings").json()
        now = running.client.get("/v1/state").json()["now_millis"]

        assert (opening["window"], opening["kind"], opening["is_open"]) == ("never", "Allow", False)
        assert opening["last_opened_millis"] < opening["last_closed_millis"] < now < opening["next_opens_millis"]

"""Space, leases and the past over HTTP, against a running server."""

from pathlib import Path

import pytest

from tests.service.running import Running, document_at, until
from ullage.contract import Duration as Time, MaintenanceOperation, Window

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


def test_outside_of_the_windows_a_run_needs_an_override(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused with the reason; overridden, it runs, and the state and the log show who did that; cleaning likewise."""
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
        assert running.client.post("/v1/reclamation/clean", json={}).json()["slug"] == "window-closed"
        assert running.client.post("/v1/reclamation/clean", json={"override": True}).is_success
        assert capsys.readouterr().out.count("windows overridden") == 2


def test_a_pause_cannot_be_overridden(tmp_path: Path) -> None:
    """Whoever paused wants to look at something: nothing is given back."""
    with Running(document_at(tmp_path / "r", maintenance={"paused": True})) as running:
        refused = running.client.post("/v1/reclamation/runs", json={"override": True})

        assert (refused.status_code, refused.json()["slug"]) == (409, "window-closed")


def test_the_survey_says_what_leases_hold(running: Running) -> None:
    """The bytes of held files by container, and on the map which files they are; nothing after its release. A lease
    holds what dies from then on: one that nothing has died of is rewritten at will.
    """
    running.client.post("/v1/queues/gone/flowfiles", content=b"g" * 1_000)
    running.client.post("/v1/queues/kept/flowfiles", content=b"k" * MB)
    (held,) = running.client.get("/v1/reclamation/resources").json()["resources"]
    lease = running.client.post("/v1/leases", json={"duration_millis": 60_000, "resources": [held["resource"]]}).json()
    before = running.client.get("/v1/reclamation/survey").json()["containers"][0]
    running.client.delete("/v1/queues/gone/flowfiles").raise_for_status()

    during = running.client.get("/v1/reclamation/survey").json()["containers"][0]
    (shown,) = running.client.get("/v1/reclamation/resources").json()["resources"]
    running.client.delete(f"/v1/leases/{lease['id']}").raise_for_status()
    after = running.client.get("/v1/reclamation/survey").json()["containers"][0]
    one = running.client.get(f"/v1/reclamation/resources/{held['resource']}").json()["resource"]

    assert before["leased_bytes"] == 0
    assert during["leased_bytes"] == held["allocated_bytes"] >= MB
    assert (held["is_leased"], shown["is_leased"], one["is_leased"]) == (False, True, False)
    assert after["leased_bytes"] == 0


def test_resource_claims_come_in_pages_of_their_order(running: Running) -> None:
    """Each page says where the next one begins, the last one that there is none; one that is not there is not found."""
    for _ in range(5):
        running.client.post("/v1/queues/kept/flowfiles", content=b"k" * MB)
    everything = running.client.get("/v1/reclamation/resources").json()["resources"]
    pages: list[list[int]] = []
    after: int | None = 0
    while after is not None:
        page = running.client.get("/v1/reclamation/resources", params={"after": after, "limit": 2}).json()
        pages.append([each["resource"] for each in page["resources"]])
        after = page["next"]

    indexes = [each["resource"] for each in everything]
    assert indexes == sorted(indexes)
    assert pages == [indexes[:2], indexes[2:4], indexes[4:]]
    assert running.client.get(f"/v1/reclamation/resources/{indexes[-1] + 1}").status_code == 404


def test_each_window_says_when_it_opens_next(tmp_path: Path) -> None:
    """In the order of the document, with the last opening, and what cannot be read with its problem."""
    with Running(document_at(tmp_path / "r", maintenance={"windows": (CLOSED,)})) as running:
        (opening,) = running.client.get("/v1/reclamation/openings").json()
        now = running.client.get("/v1/state").json()["now_millis"]

        assert (opening["window"], opening["kind"], opening["is_open"]) == ("never", "Allow", False)
        assert opening["last_opened_millis"] < opening["last_closed_millis"] < now < opening["next_opens_millis"]

"""Queues and remote sessions over HTTP: what a client sees that is not ours. The rest is in tests/conformance."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.service.running import Running, document_at
from ullage.contract import Quantity, QueueDefaults
from ullage_agent.service.limits import Limits


def test_what_is_polled_is_settled_with_one_request(running: Running) -> None:
    """Each FlowFile has its own fate, and the rest share one if the request says it; a repeat gets the first answer."""
    client = running.client
    ids = [client.post("/v1/queues/in/flowfiles", content=bytes([n])).json()["id"] for n in range(4)]
    polled = client.post("/v1/queues/in/poll", json={"count": 10}).json()
    before = running.repository.log.last_id
    commit = f"/v1/sessions/{polled['session']}/commit"
    changes = [
        {"ids": ids[:1], "to": "out", "relationship": "success", "set_attributes": {"seen": "yes"}},
        {"ids": ids[1:2], "to": "later", "penalty_millis": 60_000},
        {"ids": ids[2:3], "removed": True},
    ]

    unsettled = client.post(commit, json={"changes": changes[:1]})
    first, second = (client.post(commit, json={"changes": changes, "rest_to": "rest"}) for _ in range(2))

    assert [each["id"] for each in polled["flow_files"]] == ids
    assert (unsettled.status_code, unsettled.json()["slug"]) == (400, "session-misuse")
    assert first.json() == second.json() == {"id": polled["session"], "state": "committed"}
    assert ("ullage-repeated" in first.headers, second.headers["ullage-repeated"]) == (False, "true")
    assert running.repository.log.last_id == before + 4  # three queues were defined on the way
    (out,) = client.get("/v1/queues/out/flowfiles").json()
    assert (out["id"], out["attributes"]["seen"]) == (ids[0], "yes")
    assert client.get("/v1/queues/later").json()["penalized"] == 1
    assert [each["id"] for each in client.get("/v1/queues/rest/flowfiles").json()] == ids[3:]
    assert client.post("/v1/queues/nowhere/poll", json={}).status_code == 404
    session = client.post("/v1/queues/rest/poll", json={}).json()["session"]
    client.post(f"/v1/sessions/{session}/commit", json={"removes_rest": True}).raise_for_status()
    assert client.get("/v1/queues/rest").json()["flow_files"] == 0


def test_a_full_queue_asks_to_wait(tmp_path: Path) -> None:
    """429 with Retry-After, unless the put is forced; batches as well."""
    defaults = QueueDefaults(max_count=1, max_size=Quantity(0))
    with Running(document_at(tmp_path / "r", flow_file={"queue_defaults": defaults})) as running:
        put = "/v1/queues/in/flowfiles"
        running.client.post(put, content=b"1").raise_for_status()

        refused = running.client.post(put, content=b"2")
        batch = running.client.post("/v1/queues/in/batch", json={"items": [{"content": ""}]})
        forced = running.client.post(f"{put}?force=true", content=b"2")

        assert (refused.status_code, batch.status_code, forced.status_code) == (429, 429, 201)
        assert int(refused.headers["retry-after"]) > 0
        assert refused.headers["content-type"] == "application/problem+json"


def test_sessions_are_bounded(tmp_path: Path) -> None:
    """One more than allowed is told to come again."""
    with Running(document_at(tmp_path / "r"), Limits(sessions=2)) as running:
        answers = [running.client.post("/v1/sessions", json={}) for _ in range(3)]

        assert [answer.status_code for answer in answers] == [201, 201, 503]
        assert answers[2].headers["retry-after"]


def test_a_large_session_is_shown_in_turns(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are at work in between: the whole of it takes seconds, and each of many requests of one may ask for it."""
    texts = [f"{number}" * 700_000 for number in range(5)]
    items = [{"content": "", "attributes": {"text": text}} for text in texts]
    assert running.client.post("/v1/queues/in/batch", json={"items": items}).status_code == 201
    id = running.client.post("/v1/sessions", json={}).json()["session"]
    polled = running.client.post(f"/v1/sessions/{id}/poll", json={"queue": "in", "count": 9}).json()
    turns = Mock(wraps=running.server.turns.of)
    monkeypatch.setattr(running.server.turns, "of", turns)

    shown = running.client.get(f"/v1/sessions/{id}").json()["flow_files"]

    assert turns.call_count >= 4
    assert shown == polled
    assert [each["attributes"]["text"] for each in shown] == texts

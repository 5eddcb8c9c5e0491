"""Queues and remote sessions over HTTP: what a client sees that is not ours. The rest is in tests/conformance."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from tests.service.running import Running, document_at
from ullage.contract import Quantity, QueueDefaults
from ullage.engine import documents
from ullage_agent.service.access import ANONYMOUS
from ullage_agent.service.http import served
from ullage_agent.service.limits import MIB, Limits


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


@pytest.fixture
def turns(running: Running, monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Counts turns; one lasts for one step."""
    counting = Mock(wraps=running.server.turns.of)
    monkeypatch.setattr(running.server.turns, "of", counting)
    monkeypatch.setattr(served, "STEP_SECONDS", 0)
    return counting


def test_large_answers_and_many_changes_are_made_in_turns(running: Running, turns: Mock) -> None:
    """Others are at work in between: the whole takes seconds, and each of many requests of one may ask for it."""
    texts = [f"{number}" * 30_000 for number in range(9)]
    items = [{"content": "", "attributes": {"text": text}} for text in texts]
    assert running.client.post("/v1/queues/in/batch", json={"items": items}).status_code == 201
    id = running.client.post("/v1/sessions", json={}).json()["session"]

    def took(method: str, path: str, body: object = None) -> tuple[Any, int]:
        before = turns.call_count
        answer = running.client.request(method, path, json=body)
        assert answer.status_code < 300
        return answer.json(), turns.call_count - before

    listed, list_turns = took("GET", "/v1/queues/in/flowfiles")
    polled, poll_turns = took("POST", f"/v1/sessions/{id}/poll", {"queue": "in", "count": 9})
    ids = [each["id"] for each in polled]
    _, change_turns = took(
        "POST", f"/v1/sessions/{id}/changes", {"changes": [{"ids": ids, "set_attributes": {"a": ""}}]}
    )
    shown, show_turns = took("GET", f"/v1/sessions/{id}")
    settle = {"changes": [{"ids": ids, "remove_attributes": ["a"]}], "rest_to": "out"}
    _, commit_turns = took("POST", f"/v1/sessions/{id}/commit", settle)
    events, event_turns = took("GET", "/v1/provenance/events?limit=9")

    assert min(list_turns, poll_turns, change_turns, show_turns, commit_turns, event_turns) > 9
    assert listed == polled
    assert [each["attributes"]["text"] for each in shown["flow_files"]] == texts
    assert len(events["events"]) == 9


def test_no_answer_is_made_before_it_has_room(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty that were made first took gigabytes. What was done is told when there is room, to who asks with the key."""
    limits = Limits(decoded_seconds=0.05, decoded_bytes=MIB, decoded_bytes_each=MIB)
    monkeypatch.setattr(running.server.budget, "_limits", limits)
    text = {"attributes": {"text": "t" * 100_000}}
    running.client.post("/v1/queues/in/batch", json={"items": [{"content": "", **text}] * 2})
    made = [Mock(wraps=make) for make in (documents.flow_file, documents.event)]
    monkeypatch.setattr(documents, "flow_file", made[0])
    monkeypatch.setattr(documents, "event", made[1])
    key, second, third = ({"Idempotency-Key": each} for each in ("one", "two", "three"))
    id = running.client.post("/v1/sessions", json={}, headers=key).json()["session"]

    def ask() -> list[httpx.Response]:
        return [
            running.client.post(f"/v1/sessions/{id}/poll", json={"queue": "in"}, headers=second),
            running.client.post("/v1/queues/in/poll", json={}, headers=third),
            running.client.post("/v1/sessions", json={}, headers=key),
            running.client.get(f"/v1/sessions/{id}"),
            running.client.get("/v1/provenance/events"),
        ]

    with running.server.budget.take(ANONYMOUS, MIB - 10_000):
        refused = ask()
        assert [each.called for each in made] == [False, False]
    told = ask()

    assert [(each.status_code, each.json()["slug"]) for each in refused] == [(503, "busy")] * 5
    assert [each.status_code for each in told] == [201, 201, 201, 200, 200]
    (polled,), (other,) = told[0].json(), told[1].json()["flow_files"]
    assert polled["id"] != other["id"]
    assert told[2].json()["flow_files"] == told[3].json()["flow_files"] == [polled]


def test_who_extends_a_session_without_a_time_has_its_own_again(running: Running) -> None:
    """And not that of a session that is begun without one."""
    id = running.client.post("/v1/sessions", json={"visibility_seconds": 300}).json()["session"]

    assert running.client.post(f"/v1/sessions/{id}/extend", json={}).status_code == 200

    assert running.client.get(f"/v1/sessions/{id}").json()["visibility_seconds"] == 300

"""Queues and remote sessions over HTTP, against a running server."""

import base64
from pathlib import Path

from tests.service.running import Running, document_at, until
from ullage_agent.contract import Quantity, QueueDefaults
from ullage_agent.service.limits import Limits


def put(running: Running, queue: str, content: bytes, **attributes: str) -> str:
    params = {"attribute": [f"{name}={value}" for name, value in attributes.items()]}
    answer = running.client.post(f"/v1/queues/{queue}/flowfiles", content=content, params=params)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def poll(running: Running, queue: str, count: int = 10, seconds: float = 30.0) -> tuple[str, list[dict[str, object]]]:
    answer = running.client.post(f"/v1/queues/{queue}/poll", json={"count": count, "visibility_seconds": seconds})
    assert answer.status_code == 201, answer.text
    return answer.json()["session"], answer.json()["flow_files"]


def test_a_flow_file_goes_through_a_queue(running: Running) -> None:
    """Put, polled with its attributes, read, and committed away."""
    id = put(running, "in", b"some content", filename="a.txt")

    session, held = poll(running, "in")
    read = running.client.get(f"/v1/sessions/{session}/flowfiles/{id}", headers={"range": "bytes=5-"})
    done = running.client.post(f"/v1/sessions/{session}/commit", json={})

    assert [each["id"] for each in held] == [id]
    assert held[0]["attributes"]["filename"] == "a.txt"  # type: ignore[index]
    assert read.content == b"content"
    assert done.json()["state"] == "committed"
    assert running.client.get("/v1/queues/in").json()["flow_files"] == 0


def test_what_a_session_holds_nobody_else_sees(running: Running) -> None:
    """Until it rolls back: then it stands where it stood."""
    put(running, "in", b"x")
    session, _ = poll(running, "in")

    assert poll(running, "in")[1] == []
    running.client.post(f"/v1/sessions/{session}/rollback", json={})

    assert len(poll(running, "in")[1]) == 1
    assert running.client.post(f"/v1/sessions/{session}/commit", json={}).status_code == 410


def test_a_session_ends_with_its_visibility_time(running: Running) -> None:
    """A client that vanished withholds nothing for long; a heartbeat keeps what it holds."""
    id = put(running, "in", b"x")
    session, _ = poll(running, "in", seconds=0.3)
    running.client.post(f"/v1/sessions/{session}/extend", json={"visibility_seconds": 30})
    kept = running.client.get(f"/v1/sessions/{session}").json()["flow_files"]
    running.client.post(f"/v1/sessions/{session}/extend", json={"visibility_seconds": 0.01})

    until(lambda: running.client.get(f"/v1/sessions/{session}").status_code == 410, "the session to end")

    assert [each["id"] for each in kept] == [id]
    assert [each["id"] for each in poll(running, "in")[1]] == [id]


def test_a_commit_routes_changes_and_removes_in_one_transaction(running: Running) -> None:
    """Each FlowFile has its own fate; the rest share one."""
    one, two, three, four = (put(running, "in", bytes([n])) for n in range(4))
    session, _ = poll(running, "in")
    before = running.repository.log.last_id

    changes = [
        {"id": one, "to": "out", "relationship": "success", "set_attributes": {"seen": "yes"}},
        {"id": two, "to": "later", "penalty_millis": 60_000},
        {"id": three},
    ]
    answer = running.client.post(f"/v1/sessions/{session}/commit", json={"changes": changes, "rest_to": "rest"})

    assert answer.status_code == 200, answer.text
    assert running.repository.log.last_id == before + 4  # three queues were defined on the way
    out = running.client.get("/v1/queues/out/flowfiles").json()
    assert [(each["id"], each["attributes"]["seen"]) for each in out] == [(one, "yes")]
    assert running.client.get("/v1/queues/later").json()["penalized"] == 1
    assert [each["id"] for each in running.client.get("/v1/queues/rest/flowfiles").json()] == [four]


def test_content_is_made_and_replaced_in_a_session(running: Running) -> None:
    """Nobody sees any of it before the commit."""
    id = put(running, "in", b"raw")
    session, _ = poll(running, "in")
    path = f"/v1/sessions/{session}/flowfiles"

    made = running.client.post(path, content=b"derived" * 400_000, params={"parent": id}).json()
    running.client.put(f"{path}/{id}", content=b"cooked")
    seen = running.client.get(f"{path}/{made['id']}").content
    running.client.post(f"/v1/sessions/{session}/commit", json={"rest_to": "out"})
    second, held = poll(running, "out")

    assert made["parents"] == [id]
    assert seen == b"derived" * 400_000
    contents = {
        each["id"]: running.client.get(f"/v1/sessions/{second}/flowfiles/{each['id']}").content for each in held
    }
    assert contents == {id: b"cooked", made["id"]: seen}


def test_a_commit_whose_answer_was_lost_is_sent_again(running: Running) -> None:
    """The session is its own key: the second commit gets the first one's answer."""
    put(running, "in", b"x")
    session, _ = poll(running, "in")

    first = running.client.post(f"/v1/sessions/{session}/commit", json={"rest_to": "out"})
    second = running.client.post(f"/v1/sessions/{session}/commit", json={"rest_to": "out"})

    assert first.json() == second.json()
    assert second.headers["ullage-repeated"] == "true"
    assert running.client.get("/v1/queues/out").json()["flow_files"] == 1


def test_what_a_session_does_not_hold_it_cannot_settle(running: Running) -> None:
    """404 for a foreign FlowFile, 400 for one named twice; the session goes on."""
    id = put(running, "in", b"x")
    session, _ = poll(running, "in")

    foreign = running.client.post(f"/v1/sessions/{session}/commit", json={"changes": [{"id": "0" * 32}]})
    twice = running.client.post(f"/v1/sessions/{session}/commit", json={"changes": [{"id": id}, {"id": id}]})

    assert foreign.status_code == 404
    assert twice.status_code == 400
    assert running.client.post(f"/v1/sessions/{session}/commit", json={}).status_code == 200


def test_a_full_queue_asks_to_wait(tmp_path: Path) -> None:
    """429 with Retry-After, unless the put is forced; batches as well."""
    defaults = QueueDefaults(max_count=2, max_size=Quantity(0))
    with Running(document_at(tmp_path / "r", flow_file={"queue_defaults": defaults})) as running:
        put(running, "in", b"1")
        put(running, "in", b"2")

        refused = running.client.post("/v1/queues/in/flowfiles", content=b"3")
        batch = running.client.post("/v1/queues/in/batch", json={"items": [{"content": ""}]})
        forced = running.client.post("/v1/queues/in/flowfiles?force=true", content=b"3")

        assert refused.status_code == batch.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        assert refused.headers["content-type"] == "application/problem+json"
        assert forced.status_code == 201


def test_batches_are_one_transaction(running: Running) -> None:
    """All of them or none; a repeat with its key is none."""
    items = [{"content": base64.b64encode(b"x" * n).decode(), "attributes": {"n": str(n)}} for n in range(100)]
    key = {"idempotency-key": "batch"}
    running.client.put("/v1/queues/in", json={"priority": "LargestFirst"})
    before = running.repository.log.last_id

    stored = running.client.post("/v1/queues/in/batch", json={"items": items}, headers=key).json()
    again = running.client.post("/v1/queues/in/batch", json={"items": items}, headers=key).json()

    assert stored == again
    assert running.repository.log.last_id <= before + 2
    _, held = poll(running, "in", 1)
    assert held[0]["id"] == stored["ids"][99]


def test_queues_are_defined_shown_and_dropped(running: Running) -> None:
    """Settings, figures, and an empty queue in the end."""
    defined = running.client.put("/v1/queues/in", json={"count_max": 5, "expiration_millis": 1_000_000})
    put(running, "in", b"x" * 10)

    assert defined.json()["count_max"] == 5
    assert running.client.get("/v1/queues").json()[0]["size_bytes"] == 10
    assert running.client.delete("/v1/queues/in/flowfiles").json() == {"dropped": 1}
    assert running.client.get("/v1/queues/nowhere").status_code == 404
    assert running.client.post("/v1/queues/nowhere/poll", json={}).status_code == 404


def test_sessions_are_bounded(tmp_path: Path) -> None:
    """One more than allowed is told to come again."""
    with Running(document_at(tmp_path / "r"), Limits(sessions=2)) as running:
        answers = [running.client.post("/v1/sessions", json={}) for _ in range(3)]

        assert [answer.status_code for answer in answers] == [201, 201, 503]
        assert answers[2].headers["retry-after"]

"""Writes that are sent again with their idempotency key: carried out once, also over a restart."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.running import LOCAL, Running, document_at

REPEATED = "ullage-repeated"


@pytest.fixture
def restarted(tmp_path: Path) -> Iterator[Callable[[], Running]]:
    """The same repository's server; each call restarts it."""
    document = document_at(tmp_path / "r", **LOCAL)
    servers: list[Running] = []

    def start() -> Running:
        if servers:
            servers[-1].__exit__()
        servers.append(Running(document).__enter__())
        return servers[-1]

    yield start
    servers[-1].__exit__()


def key(name: str) -> dict[str, str]:
    return {"idempotency-key": name}


def test_a_lease_is_taken_once(restarted: Callable[[], Running]) -> None:
    """The same lease, to the byte, also after a restart; and after its end, when it is no use any more."""
    body = {"duration_millis": 60_000, "purpose": "a scan"}
    client = restarted().client
    client.post("/v1/handles", content=b"x")
    first = client.post("/v1/leases", json=body, headers=key("take"))
    assert first.json()["transaction"] > 0

    client = restarted().client
    again = client.post("/v1/leases", json=body, headers=key("take"))
    assert (again.status_code, again.headers[REPEATED]) == (201, "true")
    assert again.content == first.content
    assert len(client.get("/v1/leases").json()) == 1
    client.delete(f"/v1/leases/{first.json()['id']}")
    assert client.post("/v1/leases", json=body, headers=key("take")).content == first.content
    assert client.get("/v1/leases").json() == []


def test_a_lease_is_renewed_released_and_revoked_once(restarted: Callable[[], Running]) -> None:
    """A repeat gets the first answer, where without a key the second try would fail or do more."""
    client = restarted().client
    ids = [client.post("/v1/leases", json={"duration_millis": 60_000}).json()["id"] for _ in range(2)]
    actions: list[tuple[str, str, Any]] = [
        ("POST", f"/v1/leases/{ids[0]}/renew", {"duration_millis": 120_000}),
        ("DELETE", f"/v1/leases/{ids[0]}", None),
        ("POST", f"/v1/leases/{ids[1]}/revoke", None),
    ]
    first = [client.request(*action[:2], json=action[2], headers=key(str(n))) for n, action in enumerate(actions)]

    client = restarted().client
    again = [client.request(*action[:2], json=action[2], headers=key(str(n))) for n, action in enumerate(actions)]

    assert [answer.status_code for answer in first + again] == [200] * 6
    assert [answer.content for answer in again] == [answer.content for answer in first]
    assert client.post(f"/v1/leases/{ids[1]}/revoke", headers=key("other")).status_code == 410


def test_a_late_repeat_of_a_definition_changes_nothing_said_since(restarted: Callable[[], Running]) -> None:
    """The repeat shows the queue as it is now."""
    client = restarted().client
    client.put("/v1/queues/q", json={"count_max": 5}, headers=key("five"))
    client.put("/v1/queues/q", json={"count_max": 6}, headers=key("six"))

    client = restarted().client
    again = client.put("/v1/queues/q", json={"count_max": 5}, headers=key("five"))

    assert again.headers[REPEATED] == "true"
    assert again.json()["count_max"] == 6


def test_a_repeated_drop_spares_what_came_since(restarted: Callable[[], Running]) -> None:
    """Without the key it would be dropped unseen."""
    client = restarted().client
    client.post("/v1/queues/q/flowfiles", content=b"1")
    first = client.delete("/v1/queues/q/flowfiles", headers=key("drop"))
    client.post("/v1/queues/q/flowfiles", content=b"2")

    client = restarted().client
    again = client.delete("/v1/queues/q/flowfiles", headers=key("drop"))

    assert again.json() == first.json() == {"dropped": 1}
    assert client.get("/v1/queues/q").json()["flow_files"] == 1


def test_a_repeated_poll_holds_the_same(restarted: Callable[[], Running]) -> None:
    """One session, not two of which one is nobody's until its time is over; the same within a session."""
    client = restarted().client
    for number in range(4):
        client.post("/v1/queues/q/flowfiles", content=b"%d" % number)

    first, again = (client.post("/v1/queues/q/poll", json={}, headers=key("poll")).json() for _ in range(2))
    assert first["flow_files"] == again["flow_files"] != []
    assert first["session"] == again["session"]
    wanted = {"queue": "q", "count": 2}
    more = [
        client.post(f"/v1/sessions/{first['session']}/poll", json=wanted, headers=key("more")).json() for _ in range(2)
    ]
    assert more[0] == more[1]
    assert len(more[0]) == 2
    made = [
        client.post(f"/v1/sessions/{first['session']}/flowfiles", content=b"new", headers=key("make")).json()
        for _ in range(2)
    ]
    assert made[0] == made[1]
    client.post(f"/v1/sessions/{first['session']}/commit", json={"rest_to": "done"})
    assert [(queue["name"], queue["flow_files"]) for queue in client.get("/v1/queues").json()] == [
        ("done", 4),
        ("q", 1),
    ]
    assert client.post("/v1/queues/q/poll", json={}, headers=key("poll")).json()["session"] != first["session"]


def test_a_repeated_begin_of_a_run_is_the_same_run(restarted: Callable[[], Running]) -> None:
    """Whether it is over by then or not."""
    client = restarted().client
    first, again = (client.post("/v1/reclamation/runs", json={}, headers=key("run")) for _ in range(2))

    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["id"] == again.json()["id"]
    assert len(client.get("/v1/reclamation/runs").json()) == 1


def test_a_key_that_came_with_another_request_is_refused(restarted: Callable[[], Running]) -> None:
    """Told by method, path and query; and a key that is none."""
    client: httpx.Client = restarted().client
    client.put("/v1/queues/q", json={}, headers=key("k"))

    assert client.put("/v1/queues/other", json={}, headers=key("k")).json()["slug"] == "key-reused"
    assert client.post("/v1/leases", json={"duration_millis": 1}, headers=key("k")).json()["slug"] == "key-reused"
    assert client.post("/v1/queues/q/poll", json={}, headers=key("x" * 256)).status_code == 400

"""One request of a session: all of it is done or nothing, it is bounded, and it ends when nobody waits for it."""

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from tests.service.running import Running, document_at, until
from tests.service.test_hostile_clients import answer, connect
from ullage import sessionroom
from ullage.embedded import session as embedded
from ullage.interface import checks
from ullage.wire.documents import ATTRIBUTES_MAX, CONDITIONS_MAX, COUNTERS_MAX
from ullage_agent.service.http import served, sessions
from ullage_agent.service.limits import MIB, Limits

SENT = {"type": "SEND", "transit_uri": "x://there"}


class Opened:
    """A session over HTTP that has polled FlowFiles, and made one."""

    def __init__(self, client: httpx.Client, count: int = 3) -> None:
        self.client = client
        items = [{"content": "", "attributes": {"number": str(number)}} for number in range(count)]
        client.post("/v1/queues/in/batch", json={"items": items}).raise_for_status()
        self.path = f"/v1/sessions/{client.post('/v1/sessions', json={}).json()['session']}"
        self.ids = [each["id"] for each in self.ask("poll", {"queue": "in", "count": count}).json()]
        self.ids.append(self.ask("create", {}).json()["id"])

    def ask(self, verb: str, body: Any, key: str = "") -> httpx.Response:
        headers = {"Idempotency-Key": key} if key else {}
        return self.client.post(f"{self.path}/{verb}", json=body, headers=headers)

    def shown(self) -> Any:
        return self.client.get(self.path).json()["flow_files"]

    def changes(self) -> list[dict[str, Any]]:
        """One of each kind."""
        return [
            {"ids": self.ids[:1], "report": SENT, "set_attributes": {"a": "b"}, "remove_attributes": ["number"]},
            {"ids": self.ids[:1], "to": "out", "relationship": "success", "penalty_millis": 1},
            {"ids": self.ids[1:2], "removed": True},
        ]

    def told(self, id: str) -> list[str]:
        """What the events of a FlowFile are, without its creation."""
        events = self.client.get("/v1/provenance/events", params={"flow_file": id}).json()["events"]
        return sorted(event["type"] for event in events if event["type"] != "CREATE")


MISTAKES: list[dict[str, Any]] = [
    {"ids": ["nothing"], "to": "out"},
    {"ids": [], "report": {"type": "NOTHING"}},
    {"ids": [], "set_attributes": {"uuid": "mine"}},
    {"ids": [], "to": ""},
]


@pytest.mark.parametrize("verb", ["changes", "commit"])
def test_what_is_refused_has_changed_nothing(running: Running, verb: str) -> None:
    """And the same without its mistake is done once: each event, each counter and each removal."""
    for count, mistake in enumerate([*MISTAKES, None], start=1):
        opened = Opened(running.client)
        before, changes = opened.shown(), opened.changes()
        right = {"changes": changes, "counters": {"N": 5}}
        again = mistake or {"ids": opened.ids[1:2], "removed": True}
        wrong = right | {"changes": [*changes, again]}

        refused = opened.ask(verb, right if verb == "commit" and mistake is None else wrong, "one")  # leaves one unsaid
        assert refused.status_code in (400, 404)
        assert opened.shown() == before
        if verb == "changes":
            assert opened.ask("changes", right, "one").status_code == 200
            right = {}
        assert opened.ask("commit", right | {"rest_to": "rest"}).status_code == 200

        assert opened.told(opened.ids[0]) == ["ROUTE", "SEND"]
        assert opened.told(opened.ids[1]) == ["DROP"]
        assert running.client.get("/v1/state").json()["counters"] == {"N": 5 * count}


def test_what_asks_for_patience_is_sent_again_as_it_is(tmp_path: Path) -> None:
    """Others hold all room for a while, in the middle of the changes."""
    with Running(document_at(tmp_path / "r"), Limits(session_bytes=4 * MIB)) as running:
        opened, other = Opened(running.client), Opened(running.client)
        for size in (MIB // 2, 10_000):
            while other.ask("create", {"attributes": {"a": "x" * size}}).status_code == 201:
                pass
        large = {"ids": opened.ids[2:], "set_attributes": {"a": "x" * 500_000}}
        body = {"changes": [*opened.changes(), large], "counters": {"N": 5}}

        busy = [opened.ask("changes", body, "one"), opened.ask("commit", body | {"rest_to": "rest"})]
        other.ask("rollback", {})
        done = [opened.ask("changes", body, "one"), opened.ask("changes", body, "one")]
        done.append(opened.ask("commit", {"rest_to": "rest"}))

        assert [each.status_code for each in (*busy, *done)] == [503, 503, 200, 200, 200]
        assert opened.told(opened.ids[0]) == ["ROUTE", "SEND"]
        assert running.client.get("/v1/state").json()["counters"] == {"N": 5}


@pytest.mark.parametrize(
    ("verb", "body", "field"),
    [
        ("changes", {"changes": [{"ids": [], "remove_attributes": ["a"] * (ATTRIBUTES_MAX + 1)}]}, "remove_attributes"),
        ("poll", {"queue": "in", "attributes": {str(n): "" for n in range(CONDITIONS_MAX + 1)}}, "attributes"),
        ("commit", {"counters": {str(n): 1 for n in range(COUNTERS_MAX + 1)}}, "counters"),
    ],
)
def test_lists_that_are_gone_over_for_each_flow_file_are_bounded(
    running: Running, verb: str, body: Any, field: str
) -> None:
    """Two million names, for each of ten thousand FlowFiles, took three hours."""
    refused = Opened(running.client).ask(verb, body)

    assert (refused.status_code, refused.json()["slug"]) == (400, "invalid-argument")
    assert field in refused.json()["detail"]


def test_names_are_looked_at_once_and_each_flow_file_is_changed_once(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often a request names it."""
    opened = Opened(running.client)
    checked = Mock(wraps=checks.checked_removals)
    monkeypatch.setattr(embedded, "checked_removals", checked)
    change = {"ids": opened.ids * 50, "remove_attributes": ["number"], "set_attributes": {"a": "b"}}
    worked = Mock()
    monkeypatch.setattr(sessionroom.SessionRoom, "work", worked)

    assert opened.ask("changes", {"changes": [change]}).status_code == 200

    assert checked.call_count == 1
    assert worked.call_count == 2 * len(opened.ids)
    assert [("number" in each["attributes"], each["attributes"]["a"]) for each in opened.shown()] == [(False, "b")] * 4


def test_what_one_request_works_on_is_bounded(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request of a megabyte that changes one large FlowFile again and again; the next request counts anew."""
    opened = Opened(running.client)
    monkeypatch.setattr(sessionroom, "WORK_BYTES_MAX", 100_000)
    before = opened.shown()

    def change(count: int) -> httpx.Response:
        changes = [{"ids": opened.ids[:1], "set_attributes": {"a": str(number)}} for number in range(count)]
        return opened.ask("changes", {"changes": changes})

    refused = change(100)
    assert (refused.status_code, refused.json()["slug"]) == (413, "transaction-too-large")
    assert opened.shown() == before
    assert [change(20).status_code for _ in range(5)] == [200] * 5


class Gate:
    """One change in each turn, of which the first waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.go_on = threading.Event(), threading.Event()
        self.turns = 0
        apply = sessions._apply
        monkeypatch.setattr(served, "STEP_SECONDS", 0)

        def waiting(*about: Any) -> Iterator[None]:
            for step in apply(*about):
                self.turns += 1
                self.at.set()
                assert self.go_on.wait(60)
                yield step

        monkeypatch.setattr(sessions, "_apply", waiting)


def many(ids: Sequence[str]) -> list[dict[str, Any]]:
    return [{"ids": ids[:1], "report": SENT, "set_attributes": {"a": str(number)}} for number in range(500)]


@pytest.mark.parametrize("behind", [b"", b"GET /v1/state HTTP/1.1\r\nHost: localhost\r\n\r\n"])
@pytest.mark.parametrize("verb", ["changes", "commit"])
def test_work_ends_when_its_client_has_left(
    running: Running, monkeypatch: pytest.MonkeyPatch, verb: str, behind: bytes
) -> None:
    """Nobody else could end it: the session is in use. It is as it was, for whoever comes again. Also if more had come
    behind the request, and nobody reads on.
    """
    opened = Opened(running.client)
    before = opened.shown()
    gate = Gate(monkeypatch)
    body = json.dumps({"changes": many(opened.ids)}).encode()
    head = f"POST {opened.path}/{verb} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with connect(running) as sock:
        sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert gate.at.wait(60)
        sock.sendall(behind)
        assert opened.ask("rollback", {}).status_code == 409
    gate.go_on.set()

    until(lambda: opened.ask("extend", {}).status_code == 200, "the session to be there")
    until(lambda: opened.ask("changes", {}).status_code == 200, "the session to be free")
    assert gate.turns < 10
    assert opened.shown() == before
    assert opened.ask("commit", {"changes": opened.changes(), "rest_to": "rest"}).status_code == 200
    assert opened.told(opened.ids[0]) == ["ROUTE", "SEND"]


def test_a_stop_does_not_wait_for_the_end_of_such_work(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused as all else is from then on, and what the session held is in its queue."""
    opened, stopping, stop = Opened(running.client), threading.Event(), served.Served.stop

    def stops(self: served.Served) -> None:
        stop(self)
        stopping.set()

    monkeypatch.setattr(served.Served, "stop", stops)
    gate = Gate(monkeypatch)
    body = json.dumps({"changes": many(opened.ids)}).encode()
    head = f"POST {opened.path}/changes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with connect(running) as sock:
        sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert gate.at.wait(60)
        running.server.stop()
        assert stopping.wait(60)
        gate.go_on.set()
        assert answer(sock).startswith(b"HTTP/1.1 503 ")
    running.stop()

    assert gate.turns < 10

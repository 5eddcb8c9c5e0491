"""Bodies that become documents: bounded before they are decoded, counted until they are answered, and then gone."""

import gc
import json
import random
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

import ullage
from tests.service.running import Running, document_at, until
from tests.service.test_gone_clients import MB, asking
from tests.service.test_hostile_clients import connect
from ullage import Retries
from ullage.errors import RequestTooLarge
from ullage_agent.service.access import ANONYMOUS
from ullage_agent.service.http import decoding
from ullage_agent.service.http.decoding import INLINE_BYTES, ValuesIn
from ullage_agent.service.http.guard import Guard
from ullage_agent.service.limits import Limits

SIGNS = 'a,:[{"\\\n€]}'
"""What means something outside of texts, and what is written in another way within."""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    limits = Limits(decoded_bytes=40 * MB, decoded_bytes_each=40 * MB, decoded_seconds=3_600.0, body_values=10_000)
    with Running(document_at(tmp_path / "r"), limits) as made:
        yield made


def document(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.random()
    if depth > 4 or kind < 0.4:
        return "".join(chance.choice(SIGNS) for _ in range(chance.randrange(40)))
    if kind < 0.7:
        return [document(chance, depth + 1) for _ in range(chance.randrange(6))]
    return {f"{at}{document(chance, 9)}": document(chance, depth + 1) for at in range(chance.randrange(6))}


def count(found: Any) -> int:
    if isinstance(found, str):
        return 0
    inside = found.values() if isinstance(found, dict) else found
    return 1 + max(0, len(found) - 1) + len(found) * isinstance(found, dict) + sum(map(count, inside))


@pytest.mark.parametrize("piece_bytes", [2, 3, 7, 64, 4_096])
def test_what_stands_in_texts_is_not_counted(monkeypatch: pytest.MonkeyPatch, seed: int, piece_bytes: int) -> None:
    """Wherever the body is cut meanwhile."""
    monkeypatch.setattr(decoding, "SMALL_BYTES", piece_bytes)
    chance = random.Random(seed)
    for _ in range(100):
        made = document(chance)
        body, number = json.dumps(made, ensure_ascii=chance.random() < 0.5).encode(), count(made)
        exactly, too_many = ValuesIn(body, number), ValuesIn(body, number - 1)
        list(exactly.steps()), list(too_many.steps())
        exactly.require()
        with pytest.raises(RequestTooLarge):
            too_many.require()


def test_a_body_of_too_many_values_is_refused_before_it_is_decoded(running: Running) -> None:
    """A decoder keeps everybody else waiting. Whatever stands in texts is no value."""
    few = running.client.post("/v1/handles/batch", json={"items": [{"content": "", "attributes": {"a": "," * 50_000}}]})
    many = running.client.post("/v1/leases", content=b"[" + b"[]," * 10_000 + b"[]]")
    small = running.client.post("/v1/leases", content=b"[" + b"[]," * 1_000 + b"[]]")

    assert few.status_code == 201
    assert (many.status_code, many.json()["slug"]) == (413, "request-too-large")
    assert "body_values" in many.json()["detail"]
    assert (small.status_code, small.json()["detail"]) == (400, "the body: Expected `object`, got `array`")


def test_what_a_client_gathers_goes_in_requests_that_a_node_takes(tmp_path: Path) -> None:
    """By names and values too, over HTTP alone, where all that it says becomes JSON."""
    attributes = {f"name {number}": "v" for number in range(14)}
    more = {f"more {number}": "v" for number in range(30)}
    with (
        Running(document_at(tmp_path / "r")) as running,
        ullage.connect(running.url, retries=Retries(attempts=1)) as repository,
    ):
        handles = repository.handles.put_many([b"x"] * 10_000, [attributes] * 10_000)
        with repository.session() as session:
            session.ingest("in", [b"x"] * 4_000, [attributes] * 4_000)
            session.commit()
        with repository.session() as session:
            for flow_file in (found := session.get_many("in", 4_000)):
                session.put_attributes(flow_file, more)
            session.transfer(found, "out")
            session.commit()
        moved = running.client.get("/v1/queues/out").json()["flow_files"]

    assert (len(set(handles)), moved) == (10_000, 4_000)


def test_what_is_too_long_to_be_an_id_is_refused(running: Running) -> None:
    """Sixty requests with some thousand of 16 kB drove all else out of the audit log."""
    found = running.client.post("/v1/handles/batch/get", json={"ids": ["x" * 301]})

    assert (found.status_code, found.json()["slug"]) == (400, "invalid-argument")


@pytest.mark.parametrize("is_answered", [True, False])
def test_of_a_body_nothing_is_left_with_its_connection(running: Running, *, is_answered: bool) -> None:
    """Nor of what it became: connections that did nothing any more had 360 MB each, without any garbage to be found."""
    ids = [f"nothing-{number}" for number in range(4_000)]
    body = json.dumps({"ids": ids if is_answered else [*ids, 5]}).encode()
    assert len(body) > INLINE_BYTES
    head = f"POST /v1/handles/batch/get HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body) + MB}\r\n\r\n"
    request = head.encode() + body + b" " * MB

    def left_by(connections: int) -> int:
        before, _ = tracemalloc.get_traced_memory()
        with ExitStack() as stack:
            for _ in range(connections):
                sock = stack.enter_context(connect(running))
                sock.sendall(request)
                assert sock.recv(100_000).startswith(b"HTTP/1.1 200" if is_answered else b"HTTP/1.1 400")
            until(lambda: running.server.budget._total == 0, "the requests to end")
            return tracemalloc.get_traced_memory()[0] - before

    gc.disable()
    tracemalloc.start()
    try:
        left_by(4)  # what is made once
        assert left_by(16) < MB
    finally:
        tracemalloc.stop()
        gc.enable()


def test_what_a_request_takes_is_counted_beside_its_answer(running: Running) -> None:
    """It lives until the answer is taken. One that takes much does not wait for room with what it has."""
    budget = running.server.budget
    id = running.client.post("/v1/handles", content=bytes(9 * MB)).json()["id"]
    large = json.dumps({"ids": [id]}).encode() + b" " * (MB // 2)
    with asking(running, "/v1/handles/batch/get", large):
        until(lambda: budget._total > 24 * MB, "the answer to be made, with its request beside it")
    until(lambda: budget._total == 0, "the room of both to be given back")

    with budget.take(ANONYMOUS, 25 * MB):
        refused = running.client.post("/v1/handles/batch/get", content=large)
    assert (refused.status_code, refused.json()["slug"]) == (503, "busy")
    until(lambda: budget._total == 0, "all room to be given back")


def test_room_is_given_back_though_nothing_can_be_noted(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one such request would have its share until the next start."""
    noted = Mock(side_effect=OSError("the audit log is gone"))
    monkeypatch.setattr(Guard, "_note", noted)
    with suppress(httpx.HTTPError):  # an error of the service, or no answer: neither is what is looked at
        running.client.post("/v1/handles/batch/get", json={"ids": ["nothing"]})
    until(lambda: noted.called, "the request to be noted, which is done after its answer")
    monkeypatch.undo()

    until(lambda: running.server.budget._total == 0, "the room to be given back")

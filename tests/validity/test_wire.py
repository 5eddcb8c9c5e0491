"""The same over HTTP and Flight, as a client sends it that is not ours: past everything that our own would refuse."""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
from pyarrow import flight

from tests.service.running import Running, document_at
from tests.support import spec_at
from tests.validity.test_validity import MINUTES, seen
from tests.validity.wild import SIMPLE
from ullage.contract import ContentRepository, Metadata
from ullage.embedded.repository import open_embedded
from ullage.engine.engine import Engine
from ullage.uuids import format_uuid, new_uuids
from ullage.wire import operations, tickets
from ullage.wire.operation import Operation

SAMPLE = 5
"""Wild values for each field, of a bounded sample."""

WORK = [each for each in operations.OPERATIONS if each is not operations.BACK_UP]
"""All operations but the one that writes where it is told to."""

GOOD: dict[str, Any] = {
    "items": [{"content": "b25l"}],
    "sizes": [1],
    "duration_millis": 60_000,
    "queue": "in",
    "stream": "reader",
    "holder": "reader",
    "name": "flowfiles",
    "homes": {"here": {"shares": 1}},
    "slot": 0,
    "type": "RECEIVE",
    "respects_guards": True,
}


def sent(value: Any) -> bytes:
    """JSON, and what only calls itself so."""
    return json.dumps(value).encode()


def bodies(kind: Any, values: list[Any], base: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A document with one field gone wild, for each of its fields."""
    fields = msgspec.structs.fields(kind)
    for field in fields:
        needed = {each.name: GOOD[each.name] for each in fields if each.required and each.name in GOOD}
        for value in values:
            yield f"{field.name}={value!r:.60}", base | needed | {field.name: value}


def test_wild_values_in_every_document_over_http(seed: int, tmp_path: Path) -> None:
    """What is refused is refused with a status of 4xx; what is accepted is there after the next start."""
    chosen = random.Random(seed)
    document = document_at(tmp_path / "r")
    failures = []
    with Running(document) as running:
        client = running.client
        known = json.loads(client.get("/openapi.json").text)["paths"]
        for operation in WORK:
            for said, body, query in requests(operation, known, chosen):
                path = path_of(client, operation)
                headers = {"content-type": "application/json"}
                found = client.request(operation.method, path, content=body, params=query, headers=headers)
                if found.status_code >= 500:
                    failures.append(f"{operation.id} {said}: {found.status_code} {found.text:.200}")
                for session in set(re.findall(r'/sessions/([^/]+)|"session":"([^"]+)"', path + found.text[:200])):
                    client.post(f"/v1/sessions/{''.join(session)}/rollback", json={})
    assert failures == [], f"seed {seed}"
    prove(document)


def requests(
    operation: Operation[Any], known: dict[str, Any], chosen: random.Random
) -> Iterator[tuple[str, bytes | None, dict[str, str] | None]]:
    values = chosen.sample(SIMPLE, len(SIMPLE) if MINUTES else SAMPLE)
    if isinstance(operation.body, type) and issubclass(operation.body, msgspec.Struct):
        for said, body in bodies(operation.body, values, {}):
            yield said, sent(body), None
    described = known.get(operation.path, {}).get(operation.method.lower(), {})
    for parameter in described.get("parameters", ()):
        if parameter["in"] == "query":
            for value in values:
                text = str(value)[:2_000].encode(errors="replace").decode()
                yield f"?{parameter['name']}={text:.60}", None, {parameter["name"]: text}


def path_of(client: httpx.Client, operation: Operation[Any]) -> str:
    """A path in which everything is there."""
    names: dict[str, Any] = {"queue": "in", "event": "1", "resource": "1", "run": "1", "flow_file": "1", "id": "1"}
    client.post("/v1/queues/in/flowfiles", content=b"content")
    if "{session}" in operation.path:
        begun = client.post("/v1/sessions", json={}).json()
        names["session"] = begun["session"]
        if "{id}" in operation.path:
            made = client.post(f"/v1/sessions/{begun['session']}/flowfiles", json={})
            names["id"] = made.json().get("id", "1")
    elif "{lease}" in operation.path:
        names["lease"] = client.post("/v1/leases", json={"duration_millis": 60_000}).json().get("id", "1")
    elif "{id}" in operation.path:
        names["id"] = client.post("/v1/handles", content=b"content").json().get("id", "1")
    return operation.path_of(**{name: value for name, value in names.items() if f"{{{name}}}" in operation.path})


def test_wild_values_in_every_action_over_flight(seed: int, tmp_path: Path) -> None:
    """None is an error that nobody foresaw, and a staged write that was begun is one at the next start."""
    values = random.Random(seed).sample(SIMPLE, len(SIMPLE) if MINUTES else SAMPLE)
    document = document_at(tmp_path / "r", service={"flight_port": 0})
    failures = []
    with Running(document) as running, flight.connect(running.server.urls["flight"]) as client:
        running.client.post("/v1/queues/in/flowfiles", content=b"content")
        for action in tickets.ACTIONS:
            ids = {name: format_uuid(new_uuids(1)[0]) for name in ("write", "snapshot", "scan", "id")}
            named = {name: id for name, id in ids.items() if name in action.request.__struct_fields__}
            for said, body in bodies(action.request, values, named):
                if "write" in named and "write=" not in said:
                    body["write"] = format_uuid(new_uuids(1)[0])
                try:
                    list(client.do_action(flight.Action(action.name, sent(body))))
                except flight.FlightError as error:
                    if str(error).startswith("unexpected:"):
                        failures.append(f"{action.name} {said}: {error!s:.200}")
    assert failures == [], f"seed {seed}"
    prove(document)


def prove(document: Any) -> None:
    """Started again, drained, checkpointed and killed, and in a restored backup, there is the same to see."""
    first = open_embedded(None, document, create=False, maintain=False)
    before = seen(first)
    first.engine.provenance.drain()
    first.checkpoint()
    first.engine.log.abandon()
    first.engine.close()
    again = open_embedded(None, document, create=False, maintain=False)
    after = seen(again)
    assert all(lease in before["leases"] for lease in after["leases"])  # some were short
    assert after | {"leases": before["leases"]} == before
    assert again.check(deep=True).problems == ()
    root = Path(document.spec.storage.host_path.path)
    again.backup(str(root.with_name("backup")))
    again.close()
    Engine.restore_backup(str(root.with_name("backup")), target := spec_at(root.with_name("again")))
    made = ContentRepository(metadata=Metadata(name="again"), spec=target)
    restored = open_embedded(None, made, create=False, maintain=False)
    assert restored.check(deep=True).problems == ()
    found = seen(restored)
    assert all(found[what] == before[what] for what in ("handles", "contents", "flow files"))
    restored.close()

"""Content over HTTP, against a running server: put, get, ranges, digests, conditions, and repeats."""

import base64
import hashlib
import http.client
import random
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from crc32c import crc32c

from tests.service.running import Running, document_at
from ullage_agent.contract import Quantity

SIZES = (0, 1, 1_000, 256 << 10, (256 << 10) + 1, 1 << 20, (3 << 20) + 5)


def put(running: Running, content: bytes, **headers: str) -> str:
    answer = running.client.post("/v1/handles", content=content, headers=headers)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


@pytest.mark.parametrize("size", SIZES)
def test_what_was_put_is_got(running: Running, size: int) -> None:
    """Content of any size comes back as it went in, with its length, ETag and digest."""
    content = random.Random(size).randbytes(size)

    id = put(running, content)
    answer = running.client.get(f"/v1/handles/{id}")

    assert answer.content == content
    assert answer.headers["etag"] == f'"{id}"'
    if size:
        digest = base64.b64encode(crc32c(content).to_bytes(4, "big")).decode()
        assert answer.headers["repr-digest"] == f"crc32c=:{digest}:"


def test_a_body_without_a_length_is_streamed(running: Running) -> None:
    """Chunks of an unknown number become one content."""
    pieces = [random.Random(number).randbytes(300_000) for number in range(8)]

    def body() -> Iterator[bytes]:
        yield from pieces

    answer = running.client.post("/v1/handles", content=body())

    assert answer.json()["size"] == 2_400_000
    assert running.client.get(f"/v1/handles/{answer.json()['id']}").content == b"".join(pieces)


@pytest.mark.parametrize(
    ("header", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=10-", 10, 700_000),
        ("bytes=-5", 699_995, 700_000),
        ("bytes=262000-262200", 262_000, 262_201),
        ("bytes=5-9999999", 5, 700_000),
        ("bytes=-9999999", 0, 700_000),
    ],
)
def test_a_range_is_just_that_range(running: Running, header: str, start: int, end: int) -> None:
    """First and last byte, suffixes, and ranges that reach beyond the end."""
    content = random.Random(7).randbytes(700_000)
    id = put(running, content)

    answer = running.client.get(f"/v1/handles/{id}", headers={"range": header})

    assert answer.status_code == 206
    assert answer.content == content[start:end]
    assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/700000"


@pytest.mark.parametrize("header", ["bytes=0-1,5-6", "lines=1-2", "bytes=-", "bytes=9-3", "bytes=x-y"])
def test_other_ranges_are_answered_with_everything(running: Running, header: str) -> None:
    """As RFC 9110 allows."""
    id = put(running, b"0123456789")

    answer = running.client.get(f"/v1/handles/{id}", headers={"range": header})

    assert (answer.status_code, answer.content) == (200, b"0123456789")


def test_a_range_beyond_the_end_is_refused(running: Running) -> None:
    """416, with the size there is."""
    id = put(running, b"0123456789")

    answer = running.client.get(f"/v1/handles/{id}", headers={"range": "bytes=10-"})

    assert answer.status_code == 416
    assert answer.headers["content-range"] == "bytes */10"
    assert answer.json()["slug"] == "range"


def test_conditions_spare_the_content(running: Running) -> None:
    """A known ETag gets 304; If-Range with another one gets everything."""
    id = put(running, b"0123456789")

    assert running.client.get(f"/v1/handles/{id}", headers={"if-none-match": f'"{id}"'}).status_code == 304
    part = {"range": "bytes=1-2", "if-range": f'"{id}"'}
    assert running.client.get(f"/v1/handles/{id}", headers=part).content == b"12"
    part["if-range"] = '"other"'
    assert running.client.get(f"/v1/handles/{id}", headers=part).content == b"0123456789"


def test_head_says_what_get_would(running: Running) -> None:
    """The same headers and no body."""
    id = put(running, b"0123456789")

    answer = running.client.head(f"/v1/handles/{id}")

    assert answer.headers["content-length"] == "10"
    assert answer.content == b""


@pytest.mark.parametrize("header", ["repr-digest", "content-digest"])
@pytest.mark.parametrize("size", [10, 3 << 20])
def test_a_wrong_digest_stores_nothing(running: Running, header: str, size: int) -> None:
    """The right one does; unknown algorithms are passed over."""
    content = random.Random(size).randbytes(size)
    right = base64.b64encode(hashlib.sha256(content).digest()).decode()

    id = put(running, content, **{header: f"md5=:AAAA:, sha-256=:{right}:"})
    refused = running.client.post("/v1/handles", content=content + b"x", headers={header: f"sha-256=:{right}:"})
    garbled = running.client.post("/v1/handles", content=content, headers={header: "sha-256=whatever"})

    assert refused.json()["slug"] == "digest-mismatch"
    assert garbled.status_code == 400
    assert [each["id"] for each in running.client.get("/v1/handles").json()["handles"]] == [id]


def test_attributes_come_in_headers_and_query(running: Running) -> None:
    """JSON in a header can say everything, the query is for people; both are bounded."""
    answer = running.client.post(
        "/v1/handles",
        content=b"x",
        params={"attribute": ["a=b", "sum=1+1=2"]},
        headers={"ullage-attributes": '{"filename": "r\\u00e9sum\\u00e9.txt"}'},
    )
    attributes = running.client.get(f"/v1/handles/{answer.json()['id']}/head").json()["attributes"]

    assert {name: attributes[name] for name in ("a", "sum", "filename")} == {
        "a": "b",
        "sum": "1+1=2",
        "filename": "résumé.txt",
    }
    for wrong in ({"ullage-attributes": "[1]"}, {"ullage-attributes": "{"}, {"ullage-attributes": '{"uuid": "x"}'}):
        assert running.client.post("/v1/handles", content=b"x", headers=wrong).status_code == 400
    assert running.client.post("/v1/handles?attribute=nothing", content=b"x").status_code == 400


def test_a_repeat_with_its_key_stores_nothing_twice(running: Running) -> None:
    """The first answer comes back, and says that it is a repeat; another request with the key is refused."""
    key = {"idempotency-key": "one"}

    first = running.client.post("/v1/handles", content=b"x" * 100, headers=key)
    second = running.client.post("/v1/handles", content=b"x" * 100, headers=key)
    other = running.client.post("/v1/handles?ttl=1h", content=b"x" * 100, headers=key)

    assert first.json() == second.json()
    assert second.headers["ullage-repeated"] == "true"
    assert "ullage-repeated" not in first.headers
    assert other.status_code == 422
    assert len(running.client.get("/v1/handles").json()["handles"]) == 1


def test_handles_are_deleted_undeleted_and_gone(running: Running) -> None:
    """404 for what never was, 410 for what was deleted; each change can be repeated with its key."""
    id = put(running, b"x")
    key = {"idempotency-key": "delete it"}

    assert running.client.delete(f"/v1/handles/{id}", headers=key).json()["state"] == "deleted"
    assert running.client.delete(f"/v1/handles/{id}", headers=key).json()["state"] == "deleted"
    assert running.client.delete(f"/v1/handles/{id}").status_code == 410
    assert running.client.get(f"/v1/handles/{id}").json()["slug"] == "handle-deleted"
    assert running.client.post(f"/v1/handles/{id}/undelete").json()["state"] == "live"
    assert running.client.get(f"/v1/handles/{id}").content == b"x"
    assert running.client.get(f"/v1/handles/{'0' * 32}").status_code == 404
    assert running.client.get("/v1/handles/..%2f..%2fetc%2fpasswd").status_code == 404


def test_a_handle_of_another_node_is_not_looked_for_here(running: Running) -> None:
    """421 names the node; with this node's name, or without any, it is found."""
    id = put(running, b"x")

    assert running.client.get(f"/v1/handles/{id}@here").content == b"x"
    assert running.client.get(f"/v1/handles/{id}@there").status_code == 421


def test_batches_are_stored_and_read_at_once(running: Running) -> None:
    """Base64 in JSON; what is missing is named, not left out."""
    items = [{"content": base64.b64encode(bytes([n]) * n).decode(), "attributes": {"n": str(n)}} for n in range(5)]

    stored = running.client.post("/v1/handles/batch", json={"items": items, "ttl": "1h"}).json()
    found = running.client.post("/v1/handles/batch/get", json={"ids": [*stored["ids"], "0" * 32]}).json()

    assert [base64.b64decode(each["content"]) for each in found[:5]] == [bytes([n]) * n for n in range(5)]
    assert found[5]["problem"] == "no-such-handle"
    head = running.client.get(f"/v1/handles/{stored['ids'][3]}/head").json()
    assert head["attributes"]["n"] == "3"
    assert head["expires_millis"] > 0


def test_handles_are_listed_in_pages(running: Running) -> None:
    """By id, each once."""
    stored = running.client.post("/v1/handles/batch", json={"items": [{"content": "eA=="}] * 25}).json()["ids"]
    seen: list[str] = []
    after: str | None = ""

    while after is not None:
        page = running.client.get("/v1/handles", params={"after": after, "limit": 7}).json()
        seen += [each["id"] for each in page["handles"]]
        after = page["next"]

    assert seen == sorted(stored)


def test_content_above_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """By its announced length, or as soon as it is more; nothing is stored."""
    with Running(document_at(tmp_path / "r", service={"max_request_bytes": Quantity(2_000_000)})) as running:
        announced = running.client.post("/v1/handles", content=b"x" * 2_000_001)
        streamed = running.client.post("/v1/handles", content=iter([b"x" * 500_000] * 5))

        assert announced.status_code == streamed.status_code == 413
        assert put(running, b"x" * 2_000_000)
        assert len(running.client.get("/v1/handles").json()["handles"]) == 1


def test_a_client_that_waits_to_continue_is_told_before_it_sends(running: Running) -> None:
    """100 for what is welcome; the answer at once for what is not."""
    split = urlsplit(running.url)
    assert split.hostname is not None

    def ask(path: str) -> tuple[int, int]:
        connection = http.client.HTTPConnection(split.hostname or "", split.port)
        connection.putrequest("POST", path)
        connection.putheader("Content-Length", "5")
        connection.putheader("Expect", "100-continue")
        connection.endheaders()
        sock = connection.sock
        first = sock.recv(65_536)
        status = int(first.split()[1])
        if status == 100:
            sock.sendall(b"12345")
            rest = sock.recv(65_536)
            connection.close()
            return 100, int(rest.split()[1])
        connection.close()
        return status, status

    assert ask("/v1/handles") == (100, 201)
    assert ask("/v1/handles?attribute=wrong") == (400, 400)

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
from ullage.contract import Quantity

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
    assert answer.json()["slug"] == "range-not-satisfiable"


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

"""Every refusal, against a running server with TLS and tokens: no token, a wrong one, an expired one, a
foreign certificate; and certificates and tokens that change while it serves.
"""

import os
import re
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.certificates import Authority
from tests.service.running import document_at, until
from tests.service.secured import Secured
from ullage.contract import AuthMode, TlsMode
from ullage_agent.service.errors import CannotListen
from ullage_agent.service.server import Server


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    made = Secured(tmp_path)
    with made.running:
        yield made


def test_every_resource_of_the_document_is_closed_without_a_token(secured: Secured) -> None:
    """But for the two that watchers ask: nothing was forgotten."""
    with secured.client() as client:
        document = client.get("/openapi.json").json()
        open_to_all = {
            path
            for path, item in document["paths"].items()
            for method in item
            if client.request(method, re.sub("{[a-z_]+}", "1", path)).status_code != 401
        }

    assert open_to_all == {"/healthz", "/readyz"}


def test_another_scheme_is_no_token(secured: Secured) -> None:
    """Basic authentication is refused like nobody."""
    with secured.client() as client:
        assert client.get("/v1/state", headers={"authorization": "Basic dXNlcjpwYXNz"}).status_code == 401


def test_a_client_refuses_a_foreign_certificate(secured: Secured, tmp_path: Path) -> None:
    """Whoever trusts another authority does not talk to this server; nor does it speak without TLS."""
    context = ssl.create_default_context(cafile=Authority(tmp_path / "theirs").certificate)
    url = secured.url()

    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{url}/healthz", verify=context)
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{url.replace('https', 'http')}/healthz")


def test_a_new_certificate_is_used_without_a_dropped_connection(secured: Secured) -> None:
    """Connections that stand go on; new ones get the new certificate. Half a pair changes nothing."""
    with secured.client("space:get") as before:
        assert before.get("/v1/state").status_code == 200
        serial = secured.serial()
        key = (secured.tls / "tls.key").read_bytes()
        (secured.tls / "tls.key").write_text("half a key")
        assert secured.refuses()
        assert secured.serial() == serial
        (secured.tls / "tls.key").write_bytes(key)

        assert secured.renew() == secured.serial() != serial
        assert before.get("/v1/state").status_code == 200


def test_a_token_that_is_taken_away_no_longer_works(secured: Secured) -> None:
    """Within a second or two of the file's change, on connections that stand as well."""
    with secured.client("space:get") as client:
        assert client.get("/v1/state").status_code == 200
        fresh = secured.token_file.with_name("fresh")
        fresh.write_text("# nobody\n")
        os.replace(fresh, secured.token_file)

        until(lambda: client.get("/v1/state").status_code == 401, "the token to be forgotten")


def test_a_session_belongs_to_whoever_began_it(secured: Secured) -> None:
    """Another principal is told what it would be told of a session that never was."""
    with secured.client("content:delete") as client, secured.client("all") as other:
        session = client.post("/v1/sessions", json={}).json()["session"]

        assert other.get(f"/v1/sessions/{session}").status_code == 410


def test_metrics_ask_for_a_token_with_their_right(secured: Secured) -> None:
    """As spec.auth.metrics has it by default; and no token stands in them."""
    url = f"{secured.url('metrics')}/metrics"
    answers = []
    for token in ("", "ullage_nobody", "but metrics:get", "metrics:get"):
        with secured.client(token) as client:
            answers.append(client.get(url))

    assert [answer.status_code for answer in answers] == [401, 401, 403, 200]
    assert not any(token in answer.text for token in secured.tokens.values() for answer in answers)


def test_without_a_certificate_nothing_is_served(tmp_path: Path) -> None:
    """The message says what to do; the repository was not touched."""
    document = document_at(tmp_path / "r", tls={"mode": TlsMode.OPERATOR}, auth={"mode": AuthMode.TOKEN_FILE})

    with pytest.raises(CannotListen, match="say None for both"):
        Server(lambda: document, makes=True).run()

    assert not (tmp_path / "r").exists()

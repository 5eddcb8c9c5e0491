"""Pages of other sites, in the browser of somebody who runs a service without tokens."""

import httpx
import pytest

from tests.service.running import Running

PUT = "/v1/handles"


def posted(running: Running, **headers: str) -> httpx.Response:
    return httpx.post(f"{running.url}{PUT}", content=b"x", headers=headers)


@pytest.mark.parametrize("origin", ["http://elsewhere.example", "http://127.0.0.1:1", "null", "http://["])
def test_a_page_of_another_site_changes_nothing(running: Running, origin: str) -> None:
    """A form needs nobody's leave to post; it cannot hide where it comes from."""
    refused = posted(running, origin=origin)

    assert refused.status_code == 403
    assert "may change nothing" in refused.json()["detail"]
    assert running.server.host.repository.engine.check().orphans == ()
    assert list(running.server.host.repository.engine.ledger.flow_files()) == []


def test_the_page_of_the_service_itself_may(running: Running) -> None:
    """Its origin is the host that it asks."""
    assert posted(running, origin=running.url).status_code < 300


@pytest.mark.parametrize("host", ["elsewhere.example", "elsewhere.example:8480", "127.0.0.1.elsewhere.example"])
def test_a_name_that_was_made_to_lead_here_is_not_answered(running: Running, host: str) -> None:
    """Reading included: a script that was loaded from that name could see the answer."""
    assert httpx.get(f"{running.url}/v1/state", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:8480", "127.0.0.1:1", "[::1]:8480"])
def test_the_names_of_loopback_are_answered(running: Running, host: str) -> None:
    """Also through a tunnel, whose port is another."""
    assert httpx.get(f"{running.url}/v1/state", headers={"host": host}).status_code == 200

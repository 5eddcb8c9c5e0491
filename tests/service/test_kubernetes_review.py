"""Access by the cluster's word, against an API server that answers reviews over TLS."""

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Authority
from tests.support import ManualClock
from ullage.contract import Right
from ullage.errors import AccessUnknown, Forbidden, Unauthenticated
from ullage_agent.service.access import Principal
from ullage_agent.service.errors import CannotListen
from ullage_agent.service.kubernetes import GRACE_SECONDS, KEPT_SECONDS, ApiServer, KubernetesReview

POD_TOKEN = "the pod's own"


class Cluster:
    """An API server that knows users by token, and what they may do."""

    def __init__(self, directory: Path) -> None:
        self.users = {"good": ("alice", ["team"])}
        self.allowed = {("alice", "content", "get")}
        self.asked: list[dict[str, Any]] = []
        self.status = 201
        self.authority = Authority(directory)
        self.authority.issue(directory)
        self.authority_path = self.authority.certificate
        (directory / "token").write_text(POD_TOKEN)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        self.api = ApiServer(
            f"https://127.0.0.1:{self.server.server_port}", str(directory / "token"), str(directory / "ca.crt")
        )

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def answer(self, path: str, spec: dict[str, Any]) -> dict[str, Any]:
        if path.endswith("tokenreviews"):
            user = self.users.get(spec["token"])
            if user is None:
                return {"authenticated": False, "error": "no such token"}
            return {
                "authenticated": True,
                "user": {"username": user[0], "uid": "u-1", "groups": user[1], "extra": {"node": ["n"]}},
            }
        about = spec["resourceAttributes"]
        return {"allowed": (spec["user"], about["subresource"], about["verb"]) in self.allowed}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                document = json.loads(self.rfile.read(int(self.headers["content-length"])))
                cluster.asked.append(document["spec"] | {"by": self.headers["authorization"]})
                body = json.dumps({"status": cluster.answer(self.path, document["spec"])}).encode()
                self.send_response(cluster.status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                """Nobody reads it."""

        return Handler


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


def test_the_cluster_says_who_and_what(cluster: Cluster) -> None:
    """The review names the object that is served, and is signed with the pod's own token."""
    review = KubernetesReview(cluster.api, "data", "flows", ManualClock())

    who = review.authenticate("good")
    review.authorize(who, Right.READ)

    assert who == Principal("alice", ("team",), uid="u-1", extra=(("node", ("n",)),))
    assert cluster.asked[0]["by"] == f"Bearer {POD_TOKEN}"
    asked = cluster.asked[1]
    assert (asked["groups"], asked["uid"], asked["extra"]) == (["team"], "u-1", {"node": ["n"]})
    assert cluster.asked[1]["resourceAttributes"] == {
        "group": "ullage.dev",
        "resource": "contentrepositories",
        "subresource": "content",
        "verb": "get",
        "namespace": "data",
        "name": "flows",
    }


def test_unknown_tokens_and_missing_permissions_are_refused(cluster: Cluster) -> None:
    """401 for the former, 403 for the latter; neither quotes the token."""
    review = KubernetesReview(cluster.api, "data", "flows", ManualClock())

    with pytest.raises(Unauthenticated):
        review.authenticate(None)
    with pytest.raises(Unauthenticated) as caught:
        review.authenticate("secret")
    with pytest.raises(Forbidden, match="alice"):
        review.authorize(review.authenticate("good"), Right.RECLAIM)

    assert "secret" not in str(caught.value)


def test_answers_are_kept_for_a_short_while(cluster: Cluster) -> None:
    """One review for many requests; a revoked token lives on for half a minute at most."""
    clock = ManualClock()
    review = KubernetesReview(cluster.api, "data", "flows", clock)
    for _ in range(10):
        review.authorize(review.authenticate("good"), Right.READ)
    assert len(cluster.asked) == 2

    cluster.users.clear()
    clock.advance(KEPT_SECONDS + 1)

    with pytest.raises(Unauthenticated):
        review.authenticate("good")


def test_what_was_allowed_still_is_while_the_api_server_is_away(cluster: Cluster) -> None:
    """For some minutes; and nobody new gets in."""
    clock = ManualClock()
    review = KubernetesReview(cluster.api, "data", "flows", clock)
    who = review.authenticate("good")
    review.authorize(who, Right.READ)

    cluster.status = 500
    clock.advance(KEPT_SECONDS + 1)

    assert review.authenticate("good") == who
    review.authorize(who, Right.READ)
    with pytest.raises(AccessUnknown):
        review.authenticate("other")
    clock.advance(GRACE_SECONDS)
    with pytest.raises(AccessUnknown):
        review.authenticate("good")


def test_an_api_server_with_a_foreign_certificate_is_not_asked(cluster: Cluster, tmp_path: Path) -> None:
    """Whoever stands in its place learns no token."""
    Authority(tmp_path / "theirs").certificate.replace(tmp_path / "ca.crt")
    review = KubernetesReview(cluster.api, "data", "flows", ManualClock())

    with pytest.raises(AccessUnknown, match="SSLCertVerificationError"):
        review.authenticate("good")

    assert cluster.asked == []


def test_outside_of_a_cluster_there_is_nobody_to_ask() -> None:
    """The message says what to do instead."""
    with pytest.raises(CannotListen, match="TokenFile"):
        ApiServer.of_this_pod({})
    with pytest.raises(CannotListen, match="no https URL"):
        ApiServer("http://x", "", "")
    ApiServer.of_this_pod({"KUBERNETES_SERVICE_HOST": "::1"})

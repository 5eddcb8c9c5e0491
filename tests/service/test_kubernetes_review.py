"""Access by the cluster's word, against an API server that answers reviews over TLS."""

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.certificates import Authority
from tests.support import ManualClock
from ullage.contract import Right, audience_of
from ullage.errors import AccessUnknown, Forbidden, TooManyTokens, Unauthenticated
from ullage.wire.problems import problem_of
from ullage_agent.service.access import Principal
from ullage_agent.service.errors import CannotListen
from ullage_agent.service.flight.calls import STATUSES
from ullage_agent.service.http.answers import headers_of
from ullage_agent.service.kubernetes import GRACE_SECONDS, KEPT_SECONDS, ApiServer, KubernetesReview
from ullage_agent.service.patience import REVIEWS, SECONDS_A_REVIEW, Patience

POD_TOKEN = "the pod's own"
AUDIENCE = "ullage.dev/data/flows"


def token_for(name: str, audience: object = AUDIENCE) -> str:
    """As the API server makes them, but for the signature, of which only the cluster can tell whether it is good."""
    parts = ({"alg": "RS256"}, {"aud": audience, "sub": name})
    return ".".join(base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in parts) + ".x"


GOOD, SECRET, OTHER = (token_for(name) for name in ("good", "secret", "other"))


class Cluster:
    """An API server that knows users by token, and what they may do."""

    def __init__(self, directory: Path) -> None:
        self.users = {GOOD: ("alice", ["team"])}
        self.knows_audiences = True
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
        # It looks so often whether it shall end.
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
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
            audiences = {"audiences": spec["audiences"]} if self.knows_audiences else {}
            known = {"username": user[0], "uid": "u-1", "groups": user[1], "extra": {"node": ["n"]}}
            return {**audiences, "authenticated": True, "user": known}
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

    who = review.authenticate(GOOD)
    review.authorize(who, Right.READ)

    assert who == Principal("alice", ("team",), uid="u-1", extra=(("node", ("n",)),))
    assert cluster.asked[0]["by"] == f"Bearer {POD_TOKEN}"
    assert cluster.asked[0]["audiences"] == [AUDIENCE] == [audience_of("data", "flows")]
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
        review.authenticate(SECRET)
    with pytest.raises(Forbidden, match="alice"):
        review.authorize(review.authenticate(GOOD), Right.RECLAIM)

    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "token",
    [
        *("", "good", "a.b", "a.b.c.d", "a.\u00fc.c", "..", "a.bnVsbA.c", "a.WzFd.c"),
        *map(partial(token_for, "good"), (None, 7, {}, [7], [], "", "https://kubernetes.default.svc")),
        *map(partial(token_for, "good"), ("ullage.dev/data/other", "ullage.dev/other/flows", f"{AUDIENCE}/")),
    ],
)
def test_a_token_for_somebody_else_costs_no_review(cluster: Cluster, token: str) -> None:
    """One for the API server, for another repository, or no token at all: refused with the audience that it lacks."""
    review = KubernetesReview(cluster.api, "data", "flows", ManualClock())
    cluster.users[token] = ("alice", [])

    with pytest.raises(Unauthenticated, match=f"made for the audience {AUDIENCE}"):
        review.authenticate(token)

    assert cluster.asked == []


def test_an_answer_that_names_no_audience_vouches_for_nobody(cluster: Cluster) -> None:
    """Somebody who does not know of audiences has looked at none: the token may be anybody's."""
    review = KubernetesReview(cluster.api, "data", "flows", ManualClock())
    cluster.knows_audiences = False

    with pytest.raises(Unauthenticated):
        review.authenticate(GOOD)


def test_one_of_several_audiences_is_enough(cluster: Cluster) -> None:
    """A token may be made for more than one repository."""
    review = KubernetesReview(cluster.api, "data", "flows", ManualClock())
    token = token_for("both", ["ullage.dev/data/other", AUDIENCE])
    cluster.users[token] = ("alice", [])

    assert review.authenticate(token).name == "alice"


def test_two_thousand_wrong_tokens_make_few_reviews(cluster: Cluster) -> None:
    """Each of them another one, well-formed and for this repository; a good client beside them notices nothing, from
    another address or from the same.
    """
    clock = ManualClock()
    review = KubernetesReview(cluster.api, "data", "flows", clock)
    review.authenticate(GOOD, "10.0.0.9")
    for number in range(2_000):
        with pytest.raises(Unauthenticated):
            review.authenticate(token_for(f"wrong-{number}"), "10.0.0.9")
    assert len(cluster.asked) == 1 + REVIEWS

    with pytest.raises(TooManyTokens, match=r"too many bearer tokens .* came from 10\.0\.0\.9: wait 6 seconds") as told:
        review.authenticate(OTHER, "10.0.0.9")
    problem = problem_of(told.value)
    assert (problem.status, headers_of(problem)["Retry-After"]) == (429, "6")
    assert STATUSES[problem.status] == grpc.StatusCode.UNAVAILABLE
    clock.advance(KEPT_SECONDS + 1)
    assert review.authenticate(GOOD, "10.0.0.9").name == "alice"
    cluster.users[OTHER] = ("bob", [])
    assert review.authenticate(OTHER, "10.0.0.10").name == "bob"


def test_good_tokens_and_a_silent_api_server_cost_a_client_nothing(cluster: Cluster) -> None:
    """However many there are: only what nobody vouches for is counted."""
    review = KubernetesReview(cluster.api, "data", "flows", ManualClock())
    tokens = [token_for(f"good-{number}") for number in range(3 * REVIEWS)]
    cluster.status = 500
    for token in tokens:
        with pytest.raises(AccessUnknown):
            review.authenticate(token, "10.0.0.9")
    cluster.status = 201
    cluster.users = dict.fromkeys(tokens, ("alice", []))

    assert {review.authenticate(token, "10.0.0.9").name for token in tokens} == {"alice"}


def test_a_peer_that_waited_may_try_again() -> None:
    """One more in six seconds, ten at most; of IPv6 a network is one peer."""
    clock = ManualClock()
    patience = Patience(clock)

    def taken(peer: str) -> int:
        for count in range(REVIEWS + 1):
            try:
                patience.take(peer)
            except Unauthenticated:
                return count
        raise AssertionError("without end")

    assert (taken("a"), taken("a"), taken("b")) == (REVIEWS, 0, REVIEWS)
    clock.advance(2 * SECONDS_A_REVIEW)
    assert taken("a") == 2
    clock.advance(1e6)
    assert taken("a") == REVIEWS
    assert (taken("2001:db8::1"), taken("2001:db8::ffff:2"), taken("2001:db8:0:1::1")) == (REVIEWS, 0, REVIEWS)


def test_answers_are_kept_for_a_short_while(cluster: Cluster) -> None:
    """One review for many requests; a revoked token lives on for half a minute at most."""
    clock = ManualClock()
    review = KubernetesReview(cluster.api, "data", "flows", clock)
    for _ in range(10):
        review.authorize(review.authenticate(GOOD), Right.READ)
    assert len(cluster.asked) == 2

    cluster.users.clear()
    clock.advance(KEPT_SECONDS + 1)

    with pytest.raises(Unauthenticated):
        review.authenticate(GOOD)


def test_what_was_allowed_still_is_while_the_api_server_is_away(cluster: Cluster) -> None:
    """For some minutes; and nobody new gets in."""
    clock = ManualClock()
    review = KubernetesReview(cluster.api, "data", "flows", clock)
    who = review.authenticate(GOOD)
    review.authorize(who, Right.READ)

    cluster.status = 500
    clock.advance(KEPT_SECONDS + 1)

    assert review.authenticate(GOOD) == who
    review.authorize(who, Right.READ)
    with pytest.raises(AccessUnknown):
        review.authenticate(OTHER)
    clock.advance(GRACE_SECONDS)
    with pytest.raises(AccessUnknown):
        review.authenticate(GOOD)


def test_an_api_server_with_a_foreign_certificate_is_not_asked(cluster: Cluster, tmp_path: Path) -> None:
    """Whoever stands in its place learns no token."""
    Authority(tmp_path / "theirs").certificate.replace(tmp_path / "ca.crt")
    review = KubernetesReview(cluster.api, "data", "flows", ManualClock())

    with pytest.raises(AccessUnknown, match="SSLCertVerificationError"):
        review.authenticate(GOOD)

    assert cluster.asked == []


def test_outside_of_a_cluster_there_is_nobody_to_ask() -> None:
    """The message says what to do instead."""
    with pytest.raises(CannotListen, match="TokenFile"):
        ApiServer.of_this_pod({})
    with pytest.raises(CannotListen, match="no https URL"):
        ApiServer("http://x", "", "")
    ApiServer.of_this_pod({"KUBERNETES_SERVICE_HOST": "::1"})

"""What is made of cert-manager's answers: a certificate is taken over only if it is what was asked for."""

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.operator.support import NOW, changed, fleet, node
from tests.operator.test_certificates import asking, named
from ullage_operator.authority import CertificateAuthority
from ullage_operator.certificates import LEAF_LIFE, renewed, rotated
from ullage_operator.observation import Observation
from ullage_operator.repository.signing import PATIENCE_MILLIS, RETRY_MILLIS, signing_request_of
from ullage_operator.repository.trust import certificate_names, host_label, next_trust_millis, trusted

BEGAN = datetime.fromtimestamp(NOW / 1000, UTC)
ISSUER = rotated(CertificateAuthority(), BEGAN, "an issuer")
NODE = "node-0"


def seen_with(request: str, certificate: str | None = None, later: timedelta = timedelta()) -> Observation:
    objects = {NODE: node(NODE, certificate=certificate, certificate_request=request)}
    now = NOW + int(later.total_seconds() * 1000)
    return fleet(1, {"tls": {"mode": "CertManager"}}, objects=objects, now_millis=now)


def names() -> list[str]:
    return certificate_names(fleet(1).repository, host_label(NODE))


def signed(request: str, *hosts: str, when: datetime = BEGAN) -> str:
    return renewed(ISSUER, "", request, when, NODE, hosts or names())


def answered(seen: Observation, certificate: str = "", **condition: str) -> Observation:
    """The same, after cert-manager has said that of the one request that is wanted."""
    (name,) = trusted(seen).signing_asked
    status: dict[str, Any] = {"conditions": [condition] if condition else []}
    if certificate:
        status["certificate"] = base64.b64encode(certificate.encode()).decode()
    found = {"metadata": {"name": name, "uid": "u", "creationTimestamp": f"{BEGAN:%Y-%m-%dT%H:%M:%SZ}"}}
    made = (signing_request_of({**found, "status": status}),)
    return trusted(changed(seen, signing_requests=made))


@pytest.fixture
def request_text() -> str:
    return asking(NODE, named(*names()))


def test_what_was_asked_for_is_taken_over(request_text: str) -> None:
    """And then nothing is wanted any more."""
    certificate = signed(request_text)

    after = answered(seen_with(request_text), certificate)

    assert (after.certificates, after.refused_certificates) == ({NODE: certificate}, {})
    assert trusted(seen_with(request_text, certificate)).signing_asked == {}


@pytest.mark.parametrize("what", ["other names", "another key", "a time that is over", "no certificate"])
def test_what_was_not_asked_for_is_refused(request_text: str, what: str) -> None:
    """The agent keeps what it has, and the repository says why."""
    wrong = {
        "other names": signed(request_text, "node-1.flows-nodes.data.svc"),
        "another key": signed(asking(NODE, named(*names()))),
        "a time that is over": signed(request_text, when=BEGAN - 2 * LEAF_LIFE),
        "no certificate": "nonsense",
    }[what]

    after = answered(seen_with(request_text), wrong)

    assert after.certificates == {}
    assert "the issuer signed another key" in after.refused_certificates[NODE]


@pytest.mark.parametrize(
    "condition",
    [
        {"type": "Denied", "status": "True", "reason": "policy", "message": "not here"},
        {"type": "InvalidRequest", "status": "True", "reason": "policy", "message": "not here"},
        {"type": "Ready", "status": "False", "reason": "Failed", "message": "not here"},
    ],
)
def test_a_refusal_is_told_and_asked_about_again_after_an_hour(request_text: str, condition: dict[str, str]) -> None:
    """In cert-manager's words; until then the refused request stays, for people to read."""
    first = answered(seen_with(request_text), **condition)
    hour = timedelta(milliseconds=RETRY_MILLIS)
    later = answered(seen_with(request_text, later=hour), **condition)

    assert first.refused_certificates[NODE].endswith(": not here")
    assert len(first.signing_asked) == 1
    assert (later.signing_asked, len(later.refused_certificates)) == ({}, 1)


def test_an_answer_that_does_not_come_is_told(request_text: str) -> None:
    """Once it is late, with what it waits for."""
    waits = {"type": "Ready", "status": "False", "reason": "Pending", "message": "no such issuer"}
    late = timedelta(milliseconds=PATIENCE_MILLIS)

    assert answered(seen_with(request_text), **waits).refused_certificates == {}
    told = answered(seen_with(request_text, later=late), **waits).refused_certificates
    assert told == {NODE: "Pending: no such issuer"}


def test_a_certificate_that_is_spent_serves_until_another_has_come(request_text: str) -> None:
    """Another request is made for it."""
    old = signed(request_text)
    late = LEAF_LIFE * 3 / 4

    before = trusted(seen_with(request_text, old, late))
    new = signed(request_text, when=BEGAN + late)
    after = answered(seen_with(request_text, old, late), new)

    assert (before.certificates, len(before.signing_asked)) == ({NODE: old}, 1)
    assert before.signing_asked.keys().isdisjoint(trusted(seen_with(request_text)).signing_asked)
    assert after.certificates == {NODE: new}


def test_what_somebody_wrote_in_its_place_is_no_certificate(request_text: str) -> None:
    """One is asked for, and nothing ends."""
    seen = trusted(seen_with(request_text, "written by hand"))

    assert (seen.certificates, len(seen.signing_asked)) == ({}, 1)
    assert next_trust_millis(seen, tuple(seen.certificates.values())) is not None


def test_a_request_for_other_names_is_not_passed_on() -> None:
    """An agent that was taken over gets no certificate of another node."""
    request = asking(NODE, named("node-1.flows-nodes.data.svc"))

    seen = trusted(seen_with(request))

    assert (seen.certificates, seen.signing_asked) == ({}, {})

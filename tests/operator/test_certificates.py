import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from tests.operator.support import repository
from ullage_operator.repository.build import certificate_names
from ullage_operator.repository.certificates import CertificateSet, kept_of, next_rotation, rotated, secrets_of

NOW = datetime(2026, 3, 1, tzinfo=UTC)
HOSTS = ["*.flows-nodes.data.svc", "localhost"]


def at(kept: CertificateSet, when: datetime) -> CertificateSet:
    return rotated(kept, when, "data/flows", HOSTS)


def test_nothing_is_done_until_it_is_due() -> None:
    """The same certificates until two thirds of the leaf's life are over, then a new leaf of the same authority."""
    first = at(CertificateSet(), NOW)
    due = next_rotation(first)

    assert at(first, due - timedelta(seconds=1)) is first
    renewed = at(first, due)
    assert renewed.leaf != first.leaf
    assert renewed.authority == first.authority


def test_an_authority_is_published_before_it_signs() -> None:
    """Every leaf is signed by an authority that clients have had in their bundle for a day."""
    kept, now = at(CertificateSet(), NOW), NOW
    published: dict[str, datetime] = {}
    end = NOW + timedelta(days=3650)
    while now < end:
        for pem in kept.bundle.split("-----END CERTIFICATE-----\n")[:-1]:
            published.setdefault(pem, now)
        signer = kept.authority.split("-----END CERTIFICATE-----\n")[0]
        assert published[signer] == NOW or now - published[signer] >= timedelta(days=1)
        leaf, authority = (x509.load_pem_x509_certificate(pem.encode()) for pem in (kept.leaf, kept.authority))
        leaf.verify_directly_issued_by(authority)
        assert leaf.not_valid_after_utc > now
        assert authority.not_valid_after_utc > now
        now = max(next_rotation(kept), now + timedelta(hours=1))
        kept = at(kept, now)

    assert len(published) > 1


def test_other_names_need_another_leaf() -> None:
    """A certificate that does not name the services is renewed at once."""
    kept = at(CertificateSet(), NOW)

    other = rotated(kept, NOW, "data/flows", [*HOSTS, "more.example"])

    assert other.leaf != kept.leaf


def test_what_is_kept_reads_back_equal() -> None:
    """Through the data of both secrets."""
    kept = at(CertificateSet(), NOW)

    assert kept_of(*secrets_of(kept)) == kept


@pytest.mark.parametrize(
    "name",
    [
        *("flows-local", "flows-local.data", "flows-local.data.svc", "flows-local.data.svc.cluster.local"),
        *("w1.flows-nodes.data", "w1.flows-nodes.data.svc", "w1.flows-nodes.data.svc.cluster.local", "localhost"),
    ],
)
def test_an_agent_may_be_called_by_any_name_that_leads_to_it(name: str, tmp_path: Path) -> None:
    """A handshake with the names as a pod's resolver completes them."""
    assert answers_to(name, tmp_path)


@pytest.mark.parametrize(
    "name", ["flows-local.other", "flows-local.other.svc", "w1.flows-nodes.other.svc", "w1.flows-nodes"]
)
def test_an_agent_is_not_taken_for_one_of_another_namespace(name: str, tmp_path: Path) -> None:
    """Names of others, and a star too close to the root, which no library takes."""
    assert not answers_to(name, tmp_path)


def answers_to(name: str, home: Path) -> bool:
    """Whether a client that trusts the repository's authority takes its agent for this one."""
    kept = rotated(CertificateSet(), datetime.now(UTC), "data/flows", certificate_names(repository()))
    chain, key = home / "tls.crt", home / "tls.key"
    chain.write_text(kept.leaf)
    key.write_text(kept.leaf_key)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(chain, key)
    asking = ssl.create_default_context(cadata=kept.bundle)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(down, up, server_hostname=name)
    server = serving.wrap_bio(up, down, server_side=True)
    for side in (client, server):
        with pytest.raises(ssl.SSLWantReadError):
            side.do_handshake()
    try:
        client.do_handshake()
    except ssl.SSLCertVerificationError:
        return False
    return True

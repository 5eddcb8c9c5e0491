from datetime import UTC, datetime, timedelta

from cryptography import x509

from ullage_operator.certificates import Kept, kept_of, next_rotation, rotated, secrets_of

NOW = datetime(2026, 3, 1, tzinfo=UTC)
HOSTS = ["*.flows-nodes.data.svc", "localhost"]


def at(kept: Kept, when: datetime) -> Kept:
    return rotated(kept, when, "data/flows", HOSTS)


def test_nothing_is_done_until_it_is_due() -> None:
    """The same certificates until two thirds of the leaf's life are over, then a new leaf of the same authority."""
    first = at(Kept(), NOW)
    due = next_rotation(first)

    assert at(first, due - timedelta(seconds=1)) is first
    renewed = at(first, due)
    assert renewed.leaf != first.leaf
    assert renewed.authority == first.authority


def test_an_authority_is_published_before_it_signs() -> None:
    """Every leaf is signed by an authority that clients have had in their bundle for a day."""
    kept, now = at(Kept(), NOW), NOW
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
    kept = at(Kept(), NOW)

    other = rotated(kept, NOW, "data/flows", [*HOSTS, "more.example"])

    assert other.leaf != kept.leaf


def test_what_is_kept_reads_back_equal() -> None:
    """Through the data of both secrets."""
    kept = at(Kept(), NOW)

    assert kept_of(*secrets_of(kept)) == kept

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from tests.operator.support import decided, fleet, node, repository
from ullage_operator.authority import KEYS, CertificateAuthority
from ullage_operator.certificates import (
    LEAF_LIFE,
    expiry,
    next_rotation,
    renewed,
    require_names,
    rotated,
    spent_at,
)
from ullage_operator.observation import Observation
from ullage_operator.repository.trust import authority_objects, authority_of, certificate_names, host_label, trusted

NOW = datetime(2026, 3, 1, tzinfo=UTC)
HOSTS = ["w1.flows-nodes.data.svc", "localhost"]


def at(kept: CertificateAuthority, when: datetime) -> CertificateAuthority:
    return rotated(kept, when, "data/flows")


def key_and_request(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | None = None) -> tuple[str, str]:
    """As an agent makes them, with names that it would like to have."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody else")])
    )
    wish = x509.SubjectAlternativeName([x509.DNSName("w2.flows-nodes.data.svc")])
    request = builder.add_extension(wish, critical=False).sign(key, hashes.SHA256())
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return key.private_bytes(*form).decode(), request.public_bytes(serialization.Encoding.PEM).decode()


def signed(kept: CertificateAuthority, request: str, when: datetime = NOW, certificate: str = "") -> str:
    return renewed(kept, certificate, request, when, "data/flows w1", HOSTS)


def test_nothing_is_done_until_it_is_due() -> None:
    """The same certificate until two thirds of its life are over, then a new one of the same authority and key."""
    kept = at(CertificateAuthority(), NOW)
    _, request = key_and_request()
    first = signed(kept, request)
    due = spent_at(first)

    assert at(kept, due) is kept
    assert signed(kept, request, due - timedelta(seconds=1), first) == first
    assert expiry(signed(kept, request, due, first)) > expiry(first)


def test_an_authority_is_published_before_it_signs() -> None:
    """Every leaf is signed by an authority that clients have had in their bundle for a day, and still have."""
    kept, now = at(CertificateAuthority(), NOW), NOW
    _, request = key_and_request()
    leaf = signed(kept, request, now)
    published: dict[str, datetime] = {}
    end = NOW + timedelta(days=3650)
    while now < end:
        bundle = kept.bundle.split("-----END CERTIFICATE-----\n")[:-1]
        for pem in bundle:
            published.setdefault(pem, now)
        signer = kept.authority.split("-----END CERTIFICATE-----\n")[0]
        assert published[signer] == NOW or now - published[signer] >= timedelta(days=1)
        certificate = x509.load_pem_x509_certificate(leaf.encode())
        authorities = [x509.load_pem_x509_certificate(f"{pem}-----END CERTIFICATE-----\n".encode()) for pem in bundle]
        assert any(_is_signed_by(certificate, each) for each in authorities)
        assert certificate.not_valid_after_utc > now
        now = max(min(next_rotation(kept), spent_at(leaf)), now + timedelta(hours=1))
        kept = at(kept, now)
        leaf = signed(kept, request, now, leaf)

    assert len(published) > 1


def _is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, InvalidSignature):  # another's name, or another's key
        return False
    return True


def test_of_what_is_asked_for_only_the_key_is_taken() -> None:
    """Names are the operator's to give: the request's own count for nothing."""
    _, request = key_and_request()
    certificate = x509.load_pem_x509_certificate(signed(at(CertificateAuthority(), NOW), request).encode())

    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == HOSTS
    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert certificate.public_key() == x509.load_pem_x509_csr(request.encode()).public_key()


def test_other_names_or_another_key_need_another_certificate() -> None:
    """At once; and what somebody wrote in its place is replaced."""
    kept = at(CertificateAuthority(), NOW)
    _, request = key_and_request()
    first = signed(kept, request)

    assert renewed(kept, first, request, NOW, "x", [*HOSTS, "more.example"]) != first
    assert signed(kept, key_and_request()[1], certificate=first) != first
    assert expiry(signed(kept, request, certificate="nonsense")) == NOW + LEAF_LIFE


def test_a_request_that_proves_no_key_gets_nothing() -> None:
    """One whose signature is another's, of a weak or foreign kind of key, or none at all."""
    kept = at(CertificateAuthority(), NOW)
    _, request = key_and_request()
    body = request.splitlines()
    forged = "\n".join([*body[:-2], body[-2][::-1], body[-1]])
    weak = key_and_request(rsa.generate_private_key(public_exponent=65537, key_size=1024))[1]
    other_curve = key_and_request(ec.generate_private_key(ec.SECP384R1()))[1]

    for wrong in (forged, weak, other_curve, "", "nonsense", request[:300]):
        with pytest.raises(ValueError, match="signing request cannot be used"):
            signed(kept, wrong)


def test_what_is_kept_reads_back_equal() -> None:
    """Through the secret, which lies beside the operator and not where the repository is."""
    seen = authorized(fleet(1))

    secret, published = authority_objects(seen, "system")

    assert authority_of(secret) == seen.authority
    assert set(secret["data"]) == set(KEYS)
    assert (secret["metadata"]["namespace"], published["metadata"]["namespace"]) == ("system", "data")
    assert "PRIVATE" not in str(published)


def authorized(seen: Observation) -> Observation:
    return msgspec.structs.replace(seen, authority=at(CertificateAuthority(), NOW))


def test_every_node_gets_a_certificate_of_its_own() -> None:
    """Of the key that its agent made, for its own names; who has not asked has none."""
    requests = [key_and_request()[1] for _ in range(2)]
    nodes = {f"node-{n}": node(f"node-{n}", certificate_request=request) for n, request in enumerate(requests)}
    seen = authorized(fleet(3, objects={**nodes, "node-2": node("node-2")}))

    specs = decided(trusted(seen)).nodes

    assert specs["node-2"].certificate is None
    names = []
    for number, request in enumerate(requests):
        certificate = x509.load_pem_x509_certificate((specs[f"node-{number}"].certificate or "").encode())
        assert certificate.public_key() == x509.load_pem_x509_csr(request.encode()).public_key()
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names.append({name for name in found.get_values_for_type(x509.DNSName) if "-nodes." in name})
    assert names[0].isdisjoint(names[1])
    assert all("*" not in name for each in names for name in each)


def test_a_bad_request_leaves_what_there_is() -> None:
    """A compromised agent takes nothing but its own certificate away, and stops nobody."""
    _, request = key_and_request()
    asked = {"node-0": "nonsense", "node-1": request}
    objects = {name: node(name, certificate_request=text) for name, text in asked.items()}
    seen = authorized(fleet(2, objects=objects))

    specs = decided(trusted(seen)).nodes

    assert specs["node-0"].certificate is None
    assert specs["node-1"].certificate is not None


@pytest.mark.parametrize("mode", ["Secret", "None"])
def test_where_others_sign_nothing_is_signed(mode: str) -> None:
    """Though an agent asks."""
    spec = {"tls": {"mode": mode}} | ({"auth": {"mode": "None"}} if mode == "None" else {})
    seen = authorized(fleet(1, spec, objects={"node-0": node("node-0", certificate_request=key_and_request()[1])}))

    assert decided(trusted(seen)).nodes["node-0"].certificate is None


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
    "name",
    [
        *("flows-local.other", "flows-local.other.svc", "w1.flows-nodes.other.svc", "w1.flows-nodes"),
        *("w2.flows-nodes.data", "w2.flows-nodes.data.svc", "w2.flows-nodes.data.svc.cluster.local"),
    ],
)
def test_an_agent_is_not_taken_for_another(name: str, tmp_path: Path) -> None:
    """Names of other namespaces, and of the other nodes of its repository: what a stolen key is good for."""
    assert not answers_to(name, tmp_path)


def answers_to(name: str, home: Path) -> bool:
    """Whether a client that trusts the repository's authority takes the agent of w1 for this one."""
    now = datetime.now(UTC)
    kept = rotated(CertificateAuthority(), now, "data/flows")
    key, request = key_and_request()
    leaf = renewed(kept, "", request, now, "data/flows w1", certificate_names(repository(), host_label("w1")))
    (home / "tls.crt").write_text(leaf)
    (home / "tls.key").write_text(key)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(home / "tls.crt", home / "tls.key")
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


def asking(common_name: str, *extensions: x509.ExtensionType) -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def named(*hosts: str) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])


def test_a_request_that_is_passed_on_asks_for_the_node_s_names_and_nothing_else() -> None:
    """Others sign what the request says: names of another node, an address, the rights of an authority are refused."""
    require_names(asking("w1", named(*HOSTS)), "w1", HOSTS)

    address = x509.SubjectAlternativeName([*named(*HOSTS), x509.UniformResourceIdentifier("spiffe://other")])
    authority = x509.BasicConstraints(ca=True, path_length=None)
    for bad in (
        asking("w2", named(*HOSTS)),
        asking("w1"),
        asking("w1", named(HOSTS[0])),
        asking("w1", named(*HOSTS, "w2.flows-nodes.data.svc")),
        asking("w1", address),
        asking("w1", named(*HOSTS), authority),
        "nonsense",
    ):
        with pytest.raises(ValueError, match="signing request"):
            require_names(bad, "w1", HOSTS)

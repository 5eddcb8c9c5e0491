"""Certificates that cert-manager signs: one CertificateRequest for each agent's request, and what came of it. Pure.

agent       makes a key ── asks in its node object's status, for the names in its spec ───────── serves with it
operator                       checks these names, and passes the request on ── copies the answer into the spec
cert-manager                                      has the repository's issuer sign it
"""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import structlog

from ullage.contract import PEM_MAX, millis_of
from ullage_operator.certificates import LEAF_LIFE, believed, fits, readable, require_names
from ullage_operator.objects import Object, RepositoryObject, digest
from ullage_operator.observation import NodeObject, Observation, SigningRequest

ASK_MILLIS: Final = 2_000
"""How often it is looked for an answer: the kind may come and go with cert-manager, so it is not followed."""

PATIENCE_MILLIS: Final = 60_000
"""How long a request may wait before its repository says for what."""

RETRY_MILLIS: Final = 3_600_000
"""After which a refused request is made anew, as cert-manager does with its own. Who deletes it has it at once."""


def signing_request_of(found: Mapping[str, Any]) -> SigningRequest:
    """From what the API server says."""
    metadata, status = found["metadata"], found.get("status") or {}
    problem, waits = "", ""
    for each in status.get("conditions") or ():
        said = f"{each.get('reason') or each['type']}: {each.get('message') or 'no more is said'}"
        if each["type"] in ("Denied", "InvalidRequest") and each["status"] == "True":
            problem = problem or said
        elif each["type"] == "Ready" and each["status"] == "False":
            is_over = each.get("reason") in ("Failed", "Denied")
            problem, waits = (problem or said, waits) if is_over else (problem, said)
    return SigningRequest(
        name=metadata["name"],
        uid=metadata["uid"],
        created_millis=millis_of(metadata["creationTimestamp"]),
        certificate=_text(status.get("certificate")),
        authority=_text(status.get("ca")),
        problem=problem,
        waits=waits,
    )


def _text(data: str | None) -> str:
    """Of bytes as JSON has them; empty for what is no text."""
    try:
        return base64.b64decode(data or "", validate=True).decode("ascii")
    except ValueError:  # an issuer that answers so has given nothing
        return ""


class Signing(msgspec.Struct, frozen=True, kw_only=True):
    """`certificates`: by node, as they shall be; `asked`: requests that are to be there, by name, with what is asked;
    `refused`: by node, why it has no certificate, in cert-manager's words.
    """

    certificates: dict[str, str]
    asked: dict[str, str]
    refused: dict[str, str]


def signing(seen: Observation, names: Mapping[str, tuple[str, ...]]) -> Signing:
    """`names`: those that the agent of each node may have."""
    made = {each.name: each for each in seen.signing_requests}
    found = Signing(certificates={}, asked={}, refused={})
    for node, each in seen.objects.items():
        before, request = readable(each.spec.certificate), each.status.certificate_request
        if before:
            found.certificates[node] = before
        if (
            not request
            or not _may_be_passed_on(node, request, names[node])
            or _fits(seen, before, request, names[node])
        ):
            continue
        name = _name(seen.repository, each, request)
        answer = made.get(name)
        refusal = "" if answer is None else _refusal(seen, answer, request, names[node])
        if refusal:
            found.refused[node] = refusal
        elif answer is not None and answer.certificate:
            found.certificates[node] = answer.certificate
        if not refusal or answer is None or seen.now_millis - answer.created_millis < RETRY_MILLIS:
            found.asked[name] = request
    return found


def _name(repository: RepositoryObject, found: NodeObject, request: str) -> str:
    """One for each request and renewal: with another certificate than before it is another."""
    return f"{repository.node_name(found.spec.node_name, 'cert-')}-{digest([request, found.spec.certificate], 12)}"


def _may_be_passed_on(node: str, request: str, names: tuple[str, ...]) -> bool:
    try:
        require_names(request, node, names)
    except ValueError as error:  # whoever asks like that gets nothing, and stops nobody else
        structlog.get_logger("trust").warning("no certificate", node=node, problem=str(error))
        return False
    return True


def _fits(seen: Observation, certificate: str, request: str, names: tuple[str, ...]) -> bool:
    now = datetime.fromtimestamp(seen.now_millis / 1000, UTC)
    return bool(certificate) and fits(certificate, request, now, names)


def _refusal(seen: Observation, answer: SigningRequest, request: str, names: tuple[str, ...]) -> str:
    if answer.problem:
        return answer.problem
    if not answer.certificate:
        is_late = seen.now_millis - answer.created_millis >= PATIENCE_MILLIS
        return (answer.waits or "cert-manager has not answered") if is_late else ""
    if len(answer.certificate) > PEM_MAX:
        return f"the issuer's chain has more than {PEM_MAX} characters"
    if not _fits(seen, answer.certificate, request, names):
        return "the issuer signed another key, other names, or for a time that is over"
    return ""


def signing_objects(seen: Observation) -> list[Object]:
    """What cert-manager is asked, by the issuer that is named like the repository; and the ConfigMap for clients, if
    the issuer says whom to trust, and nobody else keeps one of that name.
    """
    repository = seen.repository
    issuer = {"name": f"{repository.name}-ullage", "kind": "Issuer", "group": "cert-manager.io"}
    common = {
        "issuerRef": issuer,
        "duration": f"{int(LEAF_LIFE.total_seconds()) // 3600}h0m0s",
        "usages": ["digital signature", "server auth"],
    }
    objects = [
        repository.owned(
            "CertificateRequest", name, spec={**common, "request": base64.b64encode(text.encode()).decode()}
        )
        for name, text in sorted(seen.signing_asked.items())
    ]
    if seen.published is not None:
        told = [each.authority for each in seen.signing_requests if each.authority]
        bundle = believed([seen.published, *told], list(seen.certificates.values()))
        if bundle:
            objects.append(repository.owned("ConfigMap", repository.authority, data={"ca.crt": bundle}))
    return objects

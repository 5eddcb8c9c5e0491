"""Batches of contents that become handles, whatever transport brings them: one append, one transaction, one sync."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

import msgspec

from ullage_agent.engine.answers import Once
from ullage_agent.engine.model import UUID_BYTES, Lifetime, Operation, parse_uuid
from ullage_agent.engine.repository import Repository
from ullage_agent.service.access import Principal
from ullage_agent.service.errors import BadRequest

KEY_CHARACTERS_MAX: Final = 255


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """How contents are to be kept. `attributes` are for all of them, or one mapping each."""

    attributes: dict[str, str] | list[dict[str, str]] = {}
    ttl_millis: int = 0
    lifetime: Lifetime = Lifetime.DEFAULT
    key: str | None = None


class Writes(Protocol):
    """A content that comes piece by piece."""

    def write(self, data: bytes) -> None: ...


def store_batch(repository: Repository, principal: Principal, contents: list[bytes], terms: Terms) -> list[bytes]:
    """All of them or none; their uuids, 16 bytes each. A repeat of the same key gets the first answer."""
    lengths = ",".join(map(str, map(len, contents)))

    def store(once: Once) -> bytes:
        answer = b""

        def also(ids: list[str]) -> Sequence[Operation]:
            nonlocal answer
            answer = b"".join(map(parse_uuid, ids))
            return once.remember(answer)

        repository.handles.put_many(contents, terms.attributes, terms.ttl_millis, terms.lifetime, also)
        return answer

    return _split(_once(repository, principal, terms, lengths, store))


def store_stream(
    repository: Repository, principal: Principal, write_to: Callable[[Writes], None], terms: Terms
) -> bytes:
    """One content of any size, which `write_to` writes; its uuid. Without a first answer, `write_to` is called once."""
    if not isinstance(terms.attributes, dict):
        raise BadRequest("one content has one mapping of attributes")
    attributes = terms.attributes

    def store(once: Once) -> bytes:
        put = repository.handles.begin(terms.lifetime)
        try:
            write_to(put)
        except BaseException:
            put.abandon()
            raise
        return parse_uuid(put.commit(attributes, terms.ttl_millis, lambda ids: once.remember(parse_uuid(ids[0]))))

    return _once(repository, principal, terms, "stream", store)


def _once(
    repository: Repository, principal: Principal, terms: Terms, about: str, store: Callable[[Once], bytes]
) -> bytes:
    require_sound(terms)
    entered: AbstractContextManager[Once] = repository.answers.once(
        None if terms.key is None else _digest(principal.name, terms.key),
        _digest("put", about, str(terms.ttl_millis), str(int(terms.lifetime)), repr(terms.attributes)),
    )
    with entered as once:
        return store(once) if once.first is None else once.first


def require_sound(terms: Terms) -> None:
    """BadRequest for a key or attributes that there cannot be."""
    key = terms.key
    if key is not None and not (0 < len(key) <= KEY_CHARACTERS_MAX and key.isascii() and key.isprintable()):
        raise BadRequest(f"an idempotency key is 1 to {KEY_CHARACTERS_MAX} printable ASCII characters")
    mappings = [terms.attributes] if isinstance(terms.attributes, dict) else terms.attributes
    if any("uuid" in mapping for mapping in mappings):
        raise BadRequest("the attribute uuid belongs to the record and cannot be set")


def _digest(*parts: str) -> bytes:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()


def _split(joined: bytes) -> list[bytes]:
    return [joined[at : at + UUID_BYTES] for at in range(0, len(joined), UUID_BYTES)]

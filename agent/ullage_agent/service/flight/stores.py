"""Where the contents of a DoPut go: they become handles at once, or are staged until their write is committed."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from ullage_agent.engine.model import Lifetime, StagedWrite, WriteState, format_uuid, parse_uuid
from ullage_agent.engine.repository import Repository
from ullage_agent.service.access import Principal
from ullage_agent.service.batches import Terms, Writes, require_sound, store_batch, store_stream
from ullage_agent.service.errors import BadRequest, Forbidden
from ullage_agent.service.flight.forms import Put, WriteShown, WriteWish

Attributes = dict[str, str] | list[dict[str, str]]

FIND, BEGIN, PREPARE, COMMIT, ABORT = "write-find", "write-begin", "write-prepare", "write-commit", "write-abort"
ACTIONS = {
    FIND: "the state of a staged write; body of all five: JSON with write, a uuid of your choice",
    BEGIN: "begin a staged write, or find it as it is; also queue, ttl_millis, lasts_millis",
    PREPARE: "promise to commit; also attempts: how many transactions each has staged",
    COMMIT: "show what it was prepared for; also attempts, the same, and decision",
    ABORT: "forget it all, unless it is committed",
}


class Store(Protocol):
    """Takes the contents of one stream, a transaction after the other; answers their uuids."""

    def batch(self, contents: list[bytes], attributes: Attributes) -> list[bytes]: ...

    def stream(self, write_to: Callable[[Writes], None], attributes: dict[str, str]) -> bytes: ...


class Handles:
    """Each transaction makes handles. With a key each has one of its own, the same when the stream is sent again."""

    def __init__(self, repository: Repository, principal: Principal, command: Put) -> None:
        self._repository = repository
        self._principal = principal
        self._terms = Terms(ttl_millis=command.ttl_millis, lifetime=Lifetime(command.lifetime))
        self._key = command.key
        self._transactions = 0

    def batch(self, contents: list[bytes], attributes: Attributes) -> list[bytes]:
        return store_batch(self._repository, self._principal, contents, self._next_terms(attributes))

    def stream(self, write_to: Callable[[Writes], None], attributes: dict[str, str]) -> bytes:
        return store_stream(self._repository, self._principal, write_to, self._next_terms(attributes))

    def _next_terms(self, attributes: Attributes) -> Terms:
        key = None if self._key is None else f"{self._key}/{self._transactions}"
        self._transactions += 1
        return msgspec.structs.replace(self._terms, attributes=attributes, key=key)


class StagedContents:
    """Each transaction is one of an attempt, by its number: a stream that is sent again stores nothing twice."""

    def __init__(self, repository: Repository, principal: Principal, command: Put) -> None:
        if command.key is not None or command.write is None or command.attempt is None:
            raise BadRequest("a staged put has a write and an attempt, and no key: its attempt is its key")
        self._staging = repository.staging
        self._write, self._attempt = _uuid(command.write, "write"), _uuid(command.attempt, "attempt")
        self._lifetime = Lifetime(command.lifetime)
        self._transactions = 0
        _require_own(repository, principal, self._write)

    def batch(self, contents: list[bytes], attributes: Attributes) -> list[bytes]:
        require_sound(Terms(attributes=attributes))
        number = self._next()
        return self._staging.stage(self._write, self._attempt, number, contents, attributes, self._lifetime)

    def stream(self, write_to: Callable[[Writes], None], attributes: dict[str, str]) -> bytes:
        require_sound(Terms(attributes=attributes))
        (uuid,) = self._staging.stage_stream(self._write, self._attempt, self._next(), write_to, attributes)
        return uuid

    def _next(self) -> int:
        self._transactions += 1
        return self._transactions - 1


def store_of(repository: Repository, principal: Principal, command: Put) -> Store:
    """What a command asks for."""
    is_staged = command.write is not None or command.attempt is not None
    return (StagedContents if is_staged else Handles)(repository, principal, command)


def act_on_write(repository: Repository, principal: Principal, action: str, wish: WriteWish) -> WriteShown:
    """One of `ACTIONS`."""
    staging, id = repository.staging, _uuid(wish.write, "write")
    _require_own(repository, principal, id)
    attempts = {_uuid(attempt, "attempt"): count for attempt, count in wish.attempts.items()}
    found: StagedWrite | None
    if action == BEGIN:
        found = staging.begin(
            id, principal.name, queue=wish.queue, ttl_millis=wish.ttl_millis, lasts_millis=wish.lasts_millis
        )
    elif action == PREPARE:
        found = staging.prepare(id, attempts)
    elif action == COMMIT:
        found = staging.commit(id, attempts, wish.decision.encode())
    else:
        if action == ABORT:
            staging.abort(id)
        found = staging.find(id)
    if found is None:
        return WriteShown(write=format_uuid(id), state="unknown")
    return WriteShown(
        write=format_uuid(id),
        state=WriteState(found.state).name.lower(),
        expires_millis=found.expires_millis,
        decision=found.decision.decode(),
    )


def _require_own(repository: Repository, principal: Principal, id: bytes) -> None:
    found = repository.staging.find(id)
    if found is not None and found.owner != principal.name:
        raise Forbidden(f"staged write {format_uuid(id)} is somebody else's")


def _uuid(text: str, what: str) -> bytes:
    try:
        return parse_uuid(text)
    except ValueError as error:
        raise BadRequest(f"{what}: {error}") from error

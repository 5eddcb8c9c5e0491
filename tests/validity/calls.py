"""Every field of every call of the interface, found in its signatures: a new one is tried without being named here."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ullage import Repository
from ullage.enums import EventType
from ullage.interface.handles import Handles
from ullage.interface.leases import Leases
from ullage.interface.provenance import Provenance
from ullage.interface.queues import Queues
from ullage.interface.reclamation import Reclamation
from ullage.interface.reporter import Reporter
from ullage.interface.session import Session
from ullage.wire.provenance import EventQuery
from ullage.wire.space import RunRequest

NOT_DATA = {"self", "on_progress", "also"}
NOT_CALLS = {"close", "commit", "rollback"}
"""Without a field, or the end of all calls."""


class Field(NamedTuple):
    """One parameter of one call."""

    part: str
    call: str
    name: str


@dataclass
class World:
    """What good values are about."""

    repository: Repository
    handle: str
    lease: str
    run: str
    session: Any = None
    flow_file: Any = None

    def renew(self) -> None:
        """A session for the next call, and a FlowFile in it."""
        self.session = self.repository.session()
        self.flow_file = self.session.write(self.session.create(), b"content")

    def target(self, part: str) -> Any:
        return {
            "repository": self.repository,
            "session": self.session,
            "reporter": self.session.provenance,
        }.get(part) or getattr(self.repository, part)

    def good(self, part: str, call: str, name: str) -> Any:
        """A value that a parameter without a default can have."""
        known: dict[str, Callable[[], Any]] = {
            "flow_file": lambda: "0" if part == "provenance" else self.flow_file,
            "flow_files": lambda: [self.flow_file],
            "handle": lambda: self.handle,
            "handles": lambda: [self.handle],
            "lease": lambda: self.lease,
            "name": lambda: "in",
            "queue": lambda: "in",
            "content": lambda: b"content",
            "contents": lambda: [b"one", b"two"],
            "attributes": lambda: {"a": "b"},
            "names": lambda: ["a"],
            "sizes": lambda: [1],
            "delta": lambda: 1,
            "ttl_millis": lambda: 60_000,
            "duration_millis": lambda: 60_000,
            "type": lambda: EventType.RECEIVE,
            "transit_uri": lambda: "https://example.org/",
            "namespace": lambda: "orders",
            "identifier": lambda: "4711",
            "relationship": lambda: "success",
            "details": lambda: "a duplicate",
            "event": lambda: 1,
            "index": lambda: 1,
            "request": lambda: RunRequest(respects_guards=True),
            "id": lambda: self.run if part == "reclamation" else self.handle,
            "ids": lambda: [self.handle],
            "destination": lambda: "copy",
            "source": lambda: "copy",
            "container": lambda: "c1",
        }
        return known[name]()


PARTS: dict[str, type[Any]] = {
    "handles": Handles,
    "queues": Queues,
    "leases": Leases,
    "provenance": Provenance,
    "reclamation": Reclamation,
    "repository": Repository,
    "session": Session,
    "reporter": Reporter,
}


def fields() -> Iterator[Field]:
    """All of them, in the order of their definition."""
    for part, kind in PARTS.items():
        for call, made in inspect.getmembers(kind, inspect.isfunction):
            if not call.startswith("_") and call not in NOT_CALLS:
                for name in inspect.signature(made).parameters:
                    if name not in NOT_DATA:
                        yield Field(part, call, name)


def arguments(world: World, field: Field, value: Any) -> dict[str, Any]:
    """Good values for what the call needs, and the wild one."""
    made = getattr(PARTS[field.part], field.call)
    given: dict[str, Any] = {}
    for name, parameter in inspect.signature(made).parameters.items():
        if name not in NOT_DATA and parameter.default is parameter.empty:
            given[name] = world.good(field.part, field.call, name)
    return given | {field.name: value}


def documents(value: Any) -> Iterator[Any]:
    """Documents that a program fills in itself, with one field gone wild."""
    for name in EventQuery.__struct_fields__:
        yield EventQuery(**{name: value})
    for name in RunRequest.__struct_fields__:
        yield RunRequest(**{name: value})

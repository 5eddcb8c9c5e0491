"""Records as objects of the API server: read, written, named, and with their times and conditions. Pure."""

import hashlib
import re
from collections.abc import Iterable
from datetime import datetime
from functools import cache, lru_cache
from typing import Any, Final, TypeVar, get_args, get_type_hints

import msgspec

from ullage.clock import moment_of
from ullage.contract.conditions import Condition, cell_of
from ullage.contract.settings import DNS_SUBDOMAIN, GROUP, ClusterRecord, Time

Kind = TypeVar("Kind", bound=ClusterRecord)

HAS_REPOSITORY: Final = "repositoryUuid"
"""The field of a node's status that says so."""


def record_of(kind: type[Kind], document: Any) -> Kind:
    """A record from what the API server sent; msgspec.ValidationError if it is none, or says a time that no calendar
    has: the API server holds times against a pattern, which lets 2026-02-30 through.
    """
    record = msgspec.convert(document, kind)
    _require_times(record, "$")
    return record


def status_of(kind: type[Kind], document: Any) -> tuple[Kind, str]:
    """What a status says, and why it cannot be read, empty if it can: then it counts as an empty one. Whoever may write
    statuses may write a time that no calendar has, or a run under way that never began: nothing else shall be left
    alone because of that.

    Of a node's one thing is known all the same, that it has a repository: where one is, none is made or brought back.
    """
    try:
        return record_of(kind, document or {}), ""
    except msgspec.ValidationError as error:
        known = document.get(HAS_REPOSITORY) if isinstance(document, dict) else None
        is_known = isinstance(known, str) and HAS_REPOSITORY in kind.__struct_encode_fields__
        return msgspec.convert({HAS_REPOSITORY: known} if is_known else {}, kind), str(error)


def _require_times(record: ClusterRecord, where: str) -> None:
    times, below = _parts(type(record))
    for name, encoded in times:
        if (time := getattr(record, name)) is not None:
            try:
                millis_of(time)
            except ValueError:
                raise msgspec.ValidationError(f"No calendar has {time} - at `{where}.{encoded}`") from None
    for name, encoded in below:
        value = getattr(record, name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, ClusterRecord):
                _require_times(each, f"{where}.{encoded}")


@cache
def _parts(kind: type[ClusterRecord]) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """The fields of a record that are times, and those that hold records, each with its name in documents."""
    hints = get_type_hints(kind, include_extras=True)
    fields = tuple(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    times = tuple(field for field in fields if Time in (hints[field[0]], *get_args(hints[field[0]])))
    return times, tuple(field for field in fields if _holds_records(hints[field[0]]))


def _holds_records(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, ClusterRecord):
        return True
    return any(_holds_records(each) for each in get_args(hint))


def document_of(record: ClusterRecord) -> dict[str, Any]:
    """A record as the API server takes it in an apply: without what is null, and without objects of which nothing is
    left, since one that lost its last field would become null itself.
    """
    document: dict[str, Any] = _without_none(msgspec.to_builtins(record))
    return document


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _without_none(below) for key, below in value.items() if below is not None}
        return {key: below for key, below in kept.items() if below != {}}
    if isinstance(value, list | tuple):
        return [_without_none(each) for each in value]
    return value


TIMES_MAX: Final = 1024
"""Times whose meaning is remembered. Whole seconds: the heartbeats of thousands of nodes are some hundred of them."""


@lru_cache(maxsize=TIMES_MAX)
def time_of(millis: int) -> str:
    """Milliseconds since 1970 as Kubernetes writes them: RFC 3339 in UTC, whole seconds, `2026-03-01T01:00:00Z`."""
    return moment_of(millis).strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache(maxsize=TIMES_MAX)
def millis_of(time: str) -> int:
    """Milliseconds since 1970 of such a time; ValueError for one that no calendar has, which `record_of` refuses."""
    return int(datetime.fromisoformat(time).timestamp() * 1000)


TOKEN_FILE: Final = "/var/run/secrets/tokens/ullage"  # noqa: S105 - a path
"""Where a pod has the token that it shows to agents: one that the kubelet made for their audience, and renews."""


def audience_of(namespace: str, repository: str) -> str:
    """For whom a token must have been made so that the agents of this repository take it.

    One that was made for the API server is good for everything that its account may do in the cluster, so no agent
    should ever see one; and what is made for one repository is of no use with another.
    """
    return f"{GROUP}/{namespace}/{repository}"


Fact = tuple[str, str, str]
"""A condition's type, its reason, and its message."""


def conditions_of(
    kind: str, facts: Iterable[Fact], before: Iterable[Condition], generation: int, now: str
) -> tuple[Condition, ...]:
    """Conditions of an object of this kind that say these facts, of which the table knows each; one that holds as it
    did `before` keeps the time since when.
    """
    known = {condition.type: condition for condition in before}
    made = []
    for type, reason, message in facts:
        status = cell_of(kind, type, reason).status
        old = known.get(type)
        since = old.last_transition_time if old is not None and old.status == status else now
        made.append(
            Condition(
                type=type,
                status=status,
                reason=reason,
                message=message[:4096],
                observed_generation=generation,
                last_transition_time=since,
            )
        )
    return tuple(made)


def object_name(repository: str, node: str) -> str:
    """The name of a ContentRepositoryNode: both names, with a digest where they are long or could be confused.

    `a` on `b.c` and `a.b` on `c` differ, because a repository's name ends at the first `--`.
    """
    name = f"{repository}--{node}"
    if len(name) <= 253 and "--" not in repository and re.fullmatch(DNS_SUBDOMAIN, name):
        return name
    return f"{repository[:100].rstrip('-.')}--{hashlib.sha256(f'{repository}/{node}'.encode()).hexdigest()[:32]}"

"""Whether the cluster's definitions of our kinds fit this operator. They are there once in a cluster, and installations
come, go and are upgraded on their own: the definitions may be missing, older or newer.

What is older refuses a whole object for one field that it does not know, a status first of all, so that an operator
would work and could not say how. It waits instead, and says for what. What is newer it works with: of a repository that
has a field from there Accepted is False.

They are read as the API server publishes them to everybody: reading the definitions themselves would take a right.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import structlog
from msgspec import inspect

from ullage.contract import (
    API_VERSION,
    GROUP,
    BackupSpec,
    BackupStatus,
    ContentRepositorySpec,
    NodeSpec,
    NodeStatus,
    RepositoryStatus,
    RestoreSpec,
    RestoreStatus,
    RunSpec,
    RunStatus,
)
from ullage_operator.cluster.api import ApiClient
from ullage_operator.election import lease_reference
from ullage_operator.errors import ApiError, OperatorError
from ullage_operator.objects import Object, event_object
from ullage_operator.settings import VERSION, OperatorSettings

POLL_SECONDS: Final = 5.0
"""How often it is looked whether they fit by now."""

NAMED_MAX: Final = 3
"""Fields that are named in words."""

PATH: Final = f"/openapi/v3/apis/{API_VERSION}"

KINDS: Final[dict[str, tuple[type, type]]] = {
    "ContentRepository": (ContentRepositorySpec, RepositoryStatus),
    "ContentRepositoryNode": (NodeSpec, NodeStatus),
    "ReclamationRun": (RunSpec, RunStatus),
    "ContentBackup": (BackupSpec, BackupStatus),
    "ContentRestore": (RestoreSpec, RestoreStatus),
}
"""Spec and status of each."""

WRITTEN: Final = (
    *("ContentRepository.status", "ContentRepositoryNode"),
    *("ReclamationRun.status", "ContentBackup.status", "ContentRestore.status"),
)
"""What operator and agents write; the rest is people's."""

CHOICES: Final = (
    "install the definitions of this version (`helm upgrade` of the release that has them, with crds.enabled, or the "
    "files crds/ of its source)"
)


def problem_of(served: Object | None, others: tuple[str, ...] = ()) -> str:
    """Why this operator cannot work with what is served, and the way out; empty if it can. `others`: versions of the
    group that are served.
    """
    if served is None:
        found = f"of {GROUP} it serves {', '.join(others)} alone" if others else f"it has nothing of {GROUP}"
        newer = ", or run an operator of their version" if others else ""
        return f"the cluster does not serve {API_VERSION}, {found}: {CHOICES}{newer}"
    lacking = [path for path in _lacking(served) if path.startswith(WRITTEN)]
    if not lacking:
        return ""
    more = f" and {len(lacking) - NAMED_MAX} more" if len(lacking) > NAMED_MAX else ""
    named = ", ".join(lacking[:NAMED_MAX])
    return f"the cluster's definitions are older than this operator ({VERSION}), and lack {named}{more}: {CHOICES}"


def warning_of(served: Object) -> str:
    """What of the definitions fits this operator in part only; empty if all does."""
    lacking, foreign = [*_lacking(served)], [*_foreign(served)]
    words = [f"definitions are older: nobody can set {', '.join(lacking[:NAMED_MAX])}"] if lacking else []
    if foreign:
        words.append(f"definitions are newer: repositories with {', '.join(foreign[:NAMED_MAX])} are not accepted")
    return "; ".join(words)


def _lacking(served: Object) -> Iterator[str]:
    """Fields of ours that are not served, by path."""
    schemas = _schemas(served)
    for kind, parts in KINDS.items():
        below = (schemas.get(kind) or {}).get("properties") or {}
        for name, part in zip(("spec", "status"), parts, strict=True):
            for path, is_ours, is_theirs in _compared(part, below.get(name) or {}, f"{kind}.{name}"):
                if is_ours and not is_theirs:
                    yield path


def _foreign(served: Object) -> Iterator[str]:
    """Fields of a repository's spec that are served, and are not ours."""
    spec = ((_schemas(served).get("ContentRepository") or {}).get("properties") or {}).get("spec") or {}
    for path, is_ours, is_theirs in _compared(ContentRepositorySpec, spec, "ContentRepository.spec"):
        if is_theirs and not is_ours:
            yield path


def _schemas(served: Object) -> dict[str, Object]:
    """By kind."""
    found = {}
    for schema in ((served.get("components") or {}).get("schemas") or {}).values():
        for named in schema.get("x-kubernetes-group-version-kind") or ():
            if named["group"] == GROUP:
                found[named["kind"]] = schema
    return found


def _compared(kind: type, schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, bool, bool]]:
    """Each field, whether we have it and whether it is served; below one that is not both nothing more."""
    yield from _walked(inspect.type_info(kind), schema, path)


def _walked(info: inspect.Type, schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, bool, bool]]:
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    match info:
        case inspect.Metadata():
            yield from _walked(info.type, schema, path)
        case inspect.UnionType():
            for each in info.types:
                yield from _walked(each, schema, path)
        case inspect.VarTupleType() | inspect.ListType():
            yield from _walked(info.item_type, schema.get("items") or {}, path)
        case inspect.StructType():
            ours = {field.encode_name: field.type for field in info.fields}
            theirs: Mapping[str, Any] = schema.get("properties") or {}
            for name in sorted({*ours, *theirs}):
                yield f"{path}.{name}", name in ours, name in theirs
                if name in ours and name in theirs:
                    yield from _walked(ours[name], theirs[name], f"{path}.{name}")


class Definitions:
    """Those of the cluster, looked at now and then."""

    def __init__(self, api: ApiClient, settings: OperatorSettings, clock: Callable[[], int]) -> None:
        self._api = api
        self._settings = settings
        self._clock = clock
        self.problem = ""
        """Why they do not fit; empty if they do."""

        self._log = structlog.get_logger("definitions")

    async def fitting(self) -> None:
        """Wait until they fit. Whoever looks for the reason finds it in the log, at `/healthz`, and in an event about
        the operator's Lease.
        """
        while True:
            if await self._fit():
                return
            await asyncio.sleep(POLL_SECONDS)

    async def misfit(self) -> str:
        """Look now and then until they do not fit any more; why."""
        while True:
            await asyncio.sleep(self._settings.resync_seconds)
            if not await self._fit():
                return self.problem

    async def _fit(self) -> bool:
        before = self.problem
        try:
            served = await self._served()
            self.problem = problem_of(served, () if served is not None else await self._versions())
            if self.problem and self.problem != before:
                self._log.error("definitions do not fit", problem=self.problem)
                await self._tell()
            elif not before and served is not None and (warning := warning_of(served)):
                self._log.warning("definitions fit in part", problem=warning)
        except OperatorError as error:  # an API server that keeps them to itself says later what it does not take
            self._log.warning("definitions not looked at", problem=str(error))
            return isinstance(error, ApiError) and error.status == 403
        return not self.problem

    async def _served(self) -> Object | None:
        return await self._api.found(PATH)

    async def _versions(self) -> tuple[str, ...]:
        found = await self._api.found(f"/apis/{GROUP}") or {}
        return tuple(each["version"] for each in found.get("versions") or ())

    async def _tell(self) -> None:
        words = f"The operator waits: {self.problem}."
        try:
            about = await lease_reference(self._api, self._settings)
            event = event_object(about, ("Warning", "DefinitionsDoNotFit", words[:1024]), self._clock())
            await self._api.apply(event)
        except OperatorError as error:
            self._log.warning("event not recorded", problem=str(error))

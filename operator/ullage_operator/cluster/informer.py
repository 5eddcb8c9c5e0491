"""Stores that follow the objects of one kind: list once, then watch; list again when the watch lost its place."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from ullage_operator.cluster.api import ApiClient
from ullage_operator.errors import ApiError, OperatorError
from ullage_operator.objects import Object

REFUSED: Final = (403, 404)
"""Answers that stay the same until somebody gives a right, or installs what is missing."""

RETRY_SECONDS: Final = 1.0
RETRY_SECONDS_MAX: Final = 30.0

Key = tuple[str, str]
Changed = Callable[[Object], None]


class Informer:
    """The objects of a kind, by namespace and name, as last heard of. `problem` while they cannot be followed."""

    def __init__(
        self,
        api: ApiClient,
        kind: str,
        *,
        namespaces: Iterable[str | None] = (None,),
        labels: str = "",
        keep: Callable[[Object], Object] = lambda found: found,
        on_change: Changed = lambda _: None,
        tells_answers: bool = True,
    ) -> None:
        """`on_change` gets what is new, and what is gone. `tells_answers`: also what `put` has brought before."""
        self._api = api
        self._kind = kind
        self._labels = labels
        self._keep = keep
        self._on_change = on_change
        self._tells_answers = tells_answers
        self._namespaces = tuple(dict.fromkeys(namespaces))  # one that is named twice is listed once
        self._versions: dict[str | None, str] = {}
        self.objects: dict[Key, Object] = {}
        """All of them."""

        self.listed = asyncio.Event()
        """Set once everything was listed."""

        self.answered = asyncio.Event()
        """Set once everything was listed, or a list was refused."""

        self._problems: dict[str | None, OperatorError] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._log = structlog.get_logger("informer").bind(kind=kind)

    @property
    def problem(self) -> str:
        """Why what is here may be old; empty if it is not."""
        return "; ".join(map(str, self._problems.values()))

    @property
    def refusal(self) -> str:
        """The same, where that stays so until somebody does something, as where a right is missing; else empty."""
        return "; ".join(str(each) for each in self._problems.values() if _is_refusal(each))

    @property
    def has_ended(self) -> bool:
        """Whether it follows no longer, by a bug: what is here stays as it was, and nobody would know."""
        return any(task.done() for task in self._tasks)

    def start(self) -> None:
        """Begin to follow."""
        self._tasks = [asyncio.create_task(self._follow(namespace)) for namespace in self._namespaces]

    async def stop(self) -> None:
        """Follow no longer."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def put(self, found: Object) -> None:
        """An answer to our own write, or what kopf was told, before the watch brings it.

        One that the watch has passed already is old: what changed since, or that the object is gone, came before it.

            we write          ──▶ API server: version 7
            controller writes ──▶ API server: version 9
            watch             ◀── 7, 9
            answer            ◀── 7               kept, it would hide 9 until something else changes
        """
        key = _key(found)
        seen = self._versions.get(found["metadata"].get("namespace")) or self._versions.get(None, "0")
        held = _version(self.objects[key]) if key in self.objects else "0"
        # Versions of one kind are numbers in order (KEP-5504).
        if int(_version(found)) > max(int(seen), int(held)):
            self.objects[key] = self._keep(found)

    async def _follow(self, namespace: str | None) -> None:
        wait = RETRY_SECONDS
        while True:
            try:
                version = await self._relist(namespace)
                self._problems.pop(namespace, None)
                wait = RETRY_SECONDS
                await self._watch(namespace, version)
            except OperatorError as error:
                if isinstance(error, ApiError) and error.status == 410:
                    continue  # etcd has compacted the version that the watch stood at: nothing is wrong, list again
                self._problems[namespace] = error
                if _is_refusal(error):
                    self.answered.set()
                self._log.warning("not followed", namespace=namespace, problem=str(error))
                await asyncio.sleep(wait)
                wait = min(2 * wait, RETRY_SECONDS_MAX)

    async def _relist(self, namespace: str | None) -> str:
        found, version = await self._api.list(self._kind, namespace, self._labels)
        before = {key: kept for key, kept in self.objects.items() if namespace in (None, key[0])}
        for each in found:
            self.objects[_key(each)] = kept = self._keep(each)
            old = before.pop(_key(each), None)
            if old is None or _version(old) != _version(each):
                self._on_change(kept)
        for gone in before:
            self._on_change(self.objects.pop(gone))
        self._versions[namespace] = version
        if len(self._versions) == len(self._namespaces):
            self.listed.set()
            self.answered.set()
        return version

    async def _watch(self, namespace: str | None, version: str) -> None:
        while True:
            async for event, found in self._api.watch(self._kind, version, namespace, self._labels):
                version = self._versions[namespace] = _version(found)
                if event == "BOOKMARK":
                    continue
                kept = self._keep(found)
                before = self.objects.get(_key(found))
                if event == "DELETED":
                    self.objects.pop(_key(found), None)
                else:
                    self.objects[_key(found)] = kept
                    if not self._tells_answers and before is not None and _version(before) == version:
                        continue
                self._on_change(kept)


def _is_refusal(error: OperatorError) -> bool:
    return isinstance(error, ApiError) and error.status in REFUSED


def _key(found: Object) -> Key:
    metadata = found["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _version(found: Object) -> str:
    return str(found["metadata"]["resourceVersion"])

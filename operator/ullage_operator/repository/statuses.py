"""What the operator writes into statuses, and tells in events. One that is refused holds up no other.

A status is applied, which takes back what is ours and leaves what others wrote beside it: a time that no calendar has,
or more conditions than there is room for. Where that is so, all of it goes and ours is written anew.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import structlog

from ullage.contract import (
    API_VERSION,
    BackupStatus,
    RepositoryStatus,
    RestoreStatus,
    RunStatus,
    document_of,
    status_of,
)
from ullage_operator import objects
from ullage_operator.cluster.api import ApiClient
from ullage_operator.errors import ApiError, OperatorError, is_changed, is_invalid
from ullage_operator.objects import Object
from ullage_operator.observation import BackupObject, RestoreObject, RunObject
from ullage_operator.repository.cache import InformerCache
from ullage_operator.repository.conditions import Event, news
from ullage_operator.settings import OperatorSettings

Status = RepositoryStatus | RunStatus | BackupStatus | RestoreStatus
Asked = RunObject | BackupObject | RestoreObject

AGAIN_MILLIS: Final = 10_000
"""How soon a status that was refused is written again. Its object may be too large for any, as whoever made it wants
it, so this is not to keep anybody busy.
"""

REMEMBERED_MAX: Final = 10_000
"""Events, so that the same is not told again and again. After so many all are forgotten: some are told once more."""


class StatusWriter:
    """Writes statuses and events; answers go into the cache before the watch brings them."""

    def __init__(self, api: ApiClient, cache: InformerCache, settings: OperatorSettings) -> None:
        self._api = api
        self._settings = settings
        self._stores = {
            "ReclamationRun": cache.runs,
            "ContentBackup": cache.backups,
            "ContentRestore": cache.restores,
            "ContentRepository": cache.repositories,
        }
        self._told: dict[tuple[str, str, str], int] = {}
        self._log = structlog.get_logger("apply")

    async def put(self, about: Object, status: Status, *, is_unreadable: bool) -> None:
        """`about`: the object, with its namespace. ApiError with 404 if it is gone."""
        kind, metadata = about["kind"], {key: about[key] for key in ("name", "namespace")}
        document = objects.document(kind, metadata, status=document_of(status))
        found: Object | None = None
        if not is_unreadable:
            try:
                found = await self._api.apply(document, "status")
            except ApiError as error:
                if not is_invalid(error):
                    raise
        if found is None or status_of(type(status), found.get("status")) != (status, ""):
            await self._api.clear_status(kind, metadata)
            found = await self._api.apply(document, "status")
        self._stores[kind].put(found)

    async def put_asked(
        self, namespace: str, now_millis: int, asked: Iterable[Asked], statuses: Mapping[str, Status]
    ) -> int | None:
        """What is told of each that has a new status, by its name. When to try again, because one was refused; None if
        none was: of that object nothing is told meanwhile, and everything else goes on.
        """
        again = None
        for each in asked:
            if (status := statuses.get(each.name, each.status)) == each.status:
                continue
            kind = each.KIND
            named = {"apiVersion": API_VERSION, "kind": kind, "name": each.name, "uid": each.uid}
            about = {**named, "namespace": namespace}
            try:
                await self.put(about, status, is_unreadable=bool(each.trouble))
            except ApiError as error:
                if not is_changed(error):  # else it is gone, and the next pass has seen that
                    self._log.warning("status refused", kind=kind, name=each.name, problem=str(error))
                again = now_millis + AGAIN_MILLIS
                continue
            for event in news(kind, each.status.conditions, status.conditions):
                await self.tell(about, event, now_millis)
        return again

    async def tell(self, about: Object, event: Event, now_millis: int) -> None:
        """A Kubernetes Event, the same again only after a while. They are news, never state: a failure to write one is
        logged, and no more.
        """
        repeat_millis = self._settings.event_seconds * 1000
        _, reason, message = event
        key = (about["uid"], reason, message)
        if now_millis - self._told.get(key, -repeat_millis) < repeat_millis:
            return
        if len(self._told) >= REMEMBERED_MAX:
            self._told.clear()
        self._told[key] = now_millis
        try:
            await self._api.apply(objects.event_object(about, event, now_millis))
        except OperatorError as error:
            self._log.warning("event not recorded", problem=str(error), reason=reason)

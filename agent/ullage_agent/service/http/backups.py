"""Backups, and looking at those that there are: each begins at once, and is asked how far it is. `/v1/backup`."""

import os
from typing import Annotated, NamedTuple

from litestar.params import QueryParameter

from ullage.beneath import names_below
from ullage.errors import InvalidArgument
from ullage.interface.buckets import SCHEME, Bucket
from ullage.wire import operations
from ullage.wire.upkeep import BackupGeneration, BackupProgress
from ullage_agent.service.backupplaces import allowed_bucket
from ullage_agent.service.http.resources import Asked, answers, serves

BackupSource = Annotated[str, QueryParameter(min_length=1, max_length=4_096)]


class AllowedPlace(NamedTuple):
    """Where a client may have backups written and read; below `within` no link is followed."""

    at: str | Bucket
    within: str = ""

    @property
    def name(self) -> str:
        """What the audit log has."""
        return self.at.url if isinstance(self.at, Bucket) else self.at


def _place(asked: Asked, said: str) -> AllowedPlace:
    """What a client names, if the settings allow it. InvalidArgument."""
    service = asked.served.host.spec.service
    if said.startswith(SCHEME):
        return AllowedPlace(allowed_bucket(service.backup_buckets, said))
    folder = service.backup_directory
    if not os.path.isabs(said):
        raise InvalidArgument(f"{said}: say the path of the directory from its root on")
    if not folder:
        raise InvalidArgument("spec.service.backupDirectory names no folder, so this service has no backups there")
    if names_below(said, folder) is None:
        raise InvalidArgument(f"{said} is not in {folder}, where spec.service.backupDirectory has backups go")
    return AllowedPlace(os.path.normpath(said), folder)


@serves(operations.BACK_UP)
def back_up(asked: Asked) -> BackupProgress:
    place = _place(asked, asked.data.destination)
    asked.served.audit.warning("backup", owner=asked.owner, destination=place.name)
    return asked.repository.begin_backup(place.at, keep=asked.data.keep, within=place.within, key=asked.key)


@serves(operations.VERIFY_BACKUP)
def verify(asked: Asked) -> BackupProgress:
    place = _place(asked, asked.data.source)
    asked.served.audit.warning("backup verified", owner=asked.owner, source=place.name)
    return asked.repository.begin_verification(place.at, asked.data, within=place.within, key=asked.key)


@serves(operations.LIST_GENERATIONS)
def generations(asked: Asked, source: BackupSource) -> list[BackupGeneration]:
    place = _place(asked, source)
    return asked.repository.generations(place.at, within=place.within)


@serves(operations.STOP_BACKUP)
def stop(asked: Asked) -> BackupProgress:
    asked.served.audit.warning("backup stopped", owner=asked.owner, run=asked["run"])
    return asked.repository.stop_backup(asked["run"])


runs = answers(operations.LIST_BACKUPS, lambda asked: asked.repository.backup_runs())
run = answers(operations.GET_BACKUP, lambda asked: asked.repository.backup_run(asked["run"]))

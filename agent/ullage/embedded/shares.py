"""Shares in buckets: finding one, the points that it can be restored to, and a repository made of it."""

import os
from typing import NamedTuple

import msgspec

from ullage.embedded.backupplaces import place_of_share
from ullage.embedded.partialrestoring import WantedRecords, partial_report, records_beside, restore_some_shipped
from ullage.embedded.repository import open_embedded
from ullage.embedded.restoreddocument import document_of
from ullage.engine.backupplace import MANIFEST as BACKUP_MANIFEST
from ullage.engine.files import OsFiles
from ullage.engine.opening import RepositoryIdentity
from ullage.engine.registers import PendingErasure, RestoredMoment
from ullage.engine.shipping.pinning import pinned
from ullage.engine.shipping.restoredbase import begun_restoration
from ullage.engine.shipping.shareplace import EPOCH, MANIFEST, SharePlace
from ullage.engine.shipping.sharerestoring import (
    ShareToRestore,
    identity_in,
    restore_points,
    restore_share,
    share_to_restore,
)
from ullage.engine.wal.serde import SerDe
from ullage.errors import InvalidArgument, NotABackup
from ullage.interface.buckets import SCHEME, Bucket, checked_bucket
from ullage.interface.repository import Bytes
from ullage.uuids import parse_uuid
from ullage.wire.upkeep import BackupReport, CheckReport, PartialRestoration, SharePoint


class FoundShare(NamedTuple):
    """A share: where it lies, and whose it is."""

    place: SharePlace
    share: str


def share_at(source: str | os.PathLike[str] | Bucket) -> FoundShare | None:
    """The share that lies at a place, or the only one below it; None if there is none. InvalidArgument: there are
    several.
    """
    if not isinstance(source, Bucket):
        if not os.fspath(source).startswith(SCHEME):
            return None
        source = Bucket(url=os.fspath(source))
    bucket = checked_bucket(source)
    place = place_of_share(bucket)
    names = place.names()
    if BACKUP_MANIFEST in names:
        return None
    if EPOCH in names and MANIFEST in names:
        return FoundShare(place, bucket.prefix.rpartition("/")[2])
    found = [name for name in names if _is_uuid(name)]
    if len(found) > 1:
        raise InvalidArgument(
            f"{bucket.url} holds {len(found)} shares: say which, {bucket.url}/{found[0]} or another of {found[1:]}"
        )
    return share_at(msgspec.structs.replace(bucket, url=f"{bucket.url}/{found[0]}")) if found else None


def _is_uuid(name: str) -> bool:
    try:
        parse_uuid(name)
    except ValueError:
        return False
    return True


def share_in(source: str | os.PathLike[str] | Bucket) -> FoundShare:
    """As `share_at`. NotABackup: there is none."""
    found = share_at(source)
    if found is None:
        raise NotABackup(f"{source.url if isinstance(source, Bucket) else source} holds no share")
    return found


def points_of(source: str | os.PathLike[str] | Bucket) -> list[SharePoint]:
    """The points that a share can be restored to, oldest first. NotABackup: there is none."""
    found = share_in(source)
    return [
        SharePoint(number=each.number, last_id=each.transaction, millis=each.millis)
        for each in restore_points(found.place, found.share, SerDe())
    ]


def restore_replicated(
    found: FoundShare,
    root: str | os.PathLike[str],
    containers: dict[str, str],
    point: int | None,
    on_progress: Bytes | None,
    to_erase: PendingErasure | None = None,
) -> BackupReport:
    """Make a repository of a share, as `ullage.restore` promises, for it to be checked."""
    asked = share_to_restore(found.place, found.share, point, begun_restoration(OsFiles(), os.path.abspath(root)))
    return made_of_share(asked, identity_in(asked), root, containers, on_progress, to_erase)


def checked_deeply(
    identity: RepositoryIdentity,
    root: str | os.PathLike[str],
    containers: dict[str, str],
    on_progress: Bytes | None,
) -> CheckReport:
    """What a deep check finds in a repository that was made just now."""
    with open_embedded(None, document_of(identity, root, containers), create=False, maintain=False) as repository:
        return repository.check(deep=True, on_progress=on_progress)


def made_of_share(
    asked: ShareToRestore,
    identity: RepositoryIdentity,
    root: str | os.PathLike[str],
    containers: dict[str, str],
    on_progress: Bytes | None,
    to_erase: PendingErasure | None = None,
) -> BackupReport:
    """Make a repository of a share, with this identity. Its start reads in the background what lies there."""
    document = document_of(identity, root, containers)
    done = 0

    def told(length: int) -> None:
        nonlocal done
        done += length
        if on_progress is not None:
            on_progress(done, done)  # how much it is in all nobody knows before the end

    return restore_share(OsFiles(), asked, identity, document.spec, told, to_erase)


def restore_some_replicated(
    found: FoundShare,
    root: str,
    wanted: WantedRecords,
    point: int | None,
    on_progress: Bytes | None,
    containers: dict[str, str],
) -> PartialRestoration:
    """What `ullage.restore_some` promises, of a share."""
    asked = share_to_restore(found.place, found.share, point)
    identity = identity_in(asked)
    document = document_of(identity, root, containers)
    with pinned(asked.place, asked.share, asked.base, asked.through), records_beside(root) as scratch:
        made, number = restore_some_shipped(
            asked,
            identity,
            document.spec,
            # Of which transaction the point is only its log tells: of before an erasure is what begins before it.
            wanted.as_of(RestoredMoment(identity.repository, asked.base.transaction, asked.base.millis)),
            document_of(identity, scratch, {}).spec,
            on_progress or (lambda _done, _total: None),
        )
    return partial_report(document, number, made, on_progress)

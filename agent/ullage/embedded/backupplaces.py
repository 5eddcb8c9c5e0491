"""Where a backup goes or comes from, as people say it: the path of a directory, or a bucket."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from ullage.engine.backupdirectory import DirectoryPlace
from ullage.engine.backupplace import BackupPlace
from ullage.engine.files import OsFiles
from ullage.interface.buckets import SCHEME, Bucket, checked_bucket
from ullage.interface.checks import checked_place

if TYPE_CHECKING:
    from ullage.remote.share import BucketShare


def place_of_backup(said: str | os.PathLike[str] | Bucket) -> str | BackupPlace:
    """What the engine takes: the path as it was said, or the bucket's place. InvalidArgument, UnknownPlugin."""
    if not isinstance(said, Bucket):
        said = checked_place(said)
        if not said.startswith(SCHEME):
            return said
    from ullage.remote.bucket import BucketPlace

    return BucketPlace(checked_bucket(said))


def place_of_share(bucket: Bucket, found: Callable[[], Bucket] | None = None) -> "BucketShare":
    """Where a share lies; `found` as BucketShare has it. InvalidArgument, UnknownPlugin."""
    from ullage.remote.share import BucketShare

    return BucketShare(checked_bucket(bucket), found)


def place_to_read(said: str | os.PathLike[str] | Bucket, within: str = "") -> BackupPlace:
    """The place of a backup that is looked at; no link below the folder `within` is followed."""
    place = place_of_backup(said)
    return DirectoryPlace(OsFiles(), os.path.abspath(place), within) if isinstance(place, str) else place


def name_of_place(said: str | os.PathLike[str] | Bucket) -> str:
    """What people call it; nothing of how a bucket is reached."""
    return said.url if isinstance(said, Bucket) else checked_place(said)

"""Backups that a service writes and looks at: each begins at once, and is asked how far it is until it has ended."""

import os
from contextlib import suppress
from typing import Final

from ullage.client.link import NodeLink
from ullage.client.retries import NEVER
from ullage.errors import InvalidArgument, UllageError
from ullage.interface.buckets import Bucket
from ullage.interface.checks import checked_place
from ullage.interface.repository import Bytes
from ullage.wire import operations
from ullage.wire.problems import error_of_slug
from ullage.wire.upkeep import BackupProgress

FIRST_SECONDS: Final = 0.05
LONGEST_SECONDS: Final = 1.0
"""How long it waits before it asks again; in between it doubles."""


def named_place(said: str | os.PathLike[str] | Bucket) -> str:
    """A place as a service is told it."""
    if isinstance(said, Bucket):
        if said != Bucket(url=said.url):
            raise InvalidArgument(
                "how a service reaches a bucket spec.service.backupBuckets says: name it by its URL alone"
            )
        said = said.url
    return checked_place(said)


def ended(link: NodeLink, run: BackupProgress, on_progress: Bytes | None) -> BackupProgress:
    """The same run once it is over; errors are what it met. One whose end nobody waits for any more is stopped."""
    seconds = FIRST_SECONDS
    try:
        while True:
            if on_progress is not None:
                on_progress(run.bytes_done, run.bytes)
            if run.ended_millis is not None:
                break
            link.retries.sleep(seconds)
            seconds = min(LONGEST_SECONDS, seconds * 2)
            run = link.ask(operations.GET_BACKUP, run=run.id)
    except UllageError:  # the service does not answer, or does not know it any more
        raise
    except BaseException:
        with suppress(UllageError):  # the caller is told of what happened here
            link.ask(operations.STOP_BACKUP, run=run.id, retries=NEVER)
        raise
    if run.problem is not None:
        raise error_of_slug(run.slug or "", run.problem)
    return run

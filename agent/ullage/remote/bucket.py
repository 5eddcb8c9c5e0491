"""A backup in a bucket (docs/storage.md, "Backup").

    list | put, under names of this run's own | put manifest in the place of the one that was read | delete
                                                    ^ commit point

Two writers never put one name, and of two that read the same manifest one publishes: the other gets BackupOvertaken and
removes nothing. What the winner removes it had listed before it published; so it removes nothing of a writer that began
after it, however late its requests arrive.
"""

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from ullage.engine.backupplace import CONTENT, FLAT_DIRECTORIES, MANIFEST, PINS, Put, is_put, new_suffix
from ullage.engine.pins import PIN_SECONDS, pin_held
from ullage.errors import BackupOvertaken, BucketRefused, BucketUnavailable, ContentMissing
from ullage.interface.buckets import Bucket
from ullage.remote.objects import Conflict, ObjectNotThere, Objects
from ullage.remote.parts import IN_FLIGHT_BYTES, PARALLEL, put_measured

PIECE_BYTES: Final = 4 << 20
"""What is fetched at a time; each is in memory twice for a moment."""

LANES: Final = 16
"""Files that are, as long as they are small: what a small one costs is the wait for an answer."""


class BucketPlace:
    """The prefix of a bucket, for one backup or one restoration."""

    lanes = LANES
    in_flight_bytes = IN_FLIGHT_BYTES

    def __init__(self, bucket: Bucket) -> None:
        self._objects = Objects(bucket)
        self.name = self._objects.at("")
        self.suffix = new_suffix()
        self._tag: str | None = None
        self._held: dict[str, int] | None = None
        self._own: set[str] = set()

    def manifest(self) -> bytes | None:
        found = self._objects.get(MANIFEST)
        self._tag = None if found is None else found.tag
        return None if found is None else found.data

    def names(self) -> list[str]:
        return self._objects.names()

    def held(self) -> dict[str, int]:
        if self._held is None:
            self._held = {}
            for directory in (CONTENT, *FLAT_DIRECTORIES):
                self._held |= self._objects.lengths(directory)
        return self._held

    @contextmanager
    def writing(self) -> Iterator[None]:
        yield  # who else writes is found out when it publishes

    def prepare(self) -> None:
        self.held()
        if self._tag is None:
            self._require_conditions()

    def put(self, path: str, pieces: Iterable[bytes], length: int = 0) -> Put:
        self._own.add(path)
        measured = put_measured(self._objects, path, pieces, length)
        return Put(measured.length, measured.crc)

    def settle(self, paths: Collection[str]) -> None:
        """Nothing: what was put has its name."""

    def read(self, path: str, offset: int, count: int) -> bytes:
        try:
            return self._objects.get_range(path, offset, offset + count)
        except ObjectNotThere:
            return b""

    def pieces(self, path: str, length: int) -> Iterator[bytes]:
        if length <= PIECE_BYTES:  # nothing to have a pool for
            if length:
                yield self._piece(path, 0, length)
            return
        ranges = ((start, min(start + PIECE_BYTES, length)) for start in range(0, length, PIECE_BYTES))
        with ThreadPoolExecutor(PARALLEL, "bucket") as pool:
            coming: list[Future[bytes]] = []
            try:
                for start, end in ranges:
                    coming.append(pool.submit(self._piece, path, start, end))
                    if len(coming) == PARALLEL:
                        yield coming.pop(0).result()
                while coming:
                    yield coming.pop(0).result()
            finally:
                for each in coming:
                    each.cancel()

    def publish(self, manifest: bytes, paths: Collection[str]) -> None:
        try:
            self._objects.put_if(MANIFEST, manifest, self._tag)
        except (Conflict, BucketUnavailable) as error:
            # An answer that was lost makes a second request of one that was carried out.
            found = self._objects.get(MANIFEST)
            if found is not None and found.data == manifest:
                return
            if isinstance(error, BucketUnavailable):
                raise
            raise BackupOvertaken(
                f"{self._objects.at(MANIFEST)} is not what it was when this backup began: somebody else wrote one to "
                "the same place meanwhile, which counts. Give each repository a prefix of its own, or try again"
            ) from None

    @contextmanager
    def pinned(self, manifest: bytes) -> Iterator[None]:
        key = f"{PINS}/{secrets.token_hex(8)}"
        with pin_held(lambda: self._objects.put(key, manifest), lambda: self._objects.delete([key])):
            yield

    def remove_unlisted(self, listed: Collection[str], listed_in: Callable[[bytes], Collection[str]]) -> None:
        # After the commit point: whoever reads what it dropped pinned that before, and whoever pins it now looks once
        # more, and sees that it is dropped. By the server's clock, for theirs may be wrong.
        now = self._objects.changed(MANIFEST)
        needed, expired = set(listed), list[str]()
        for key, changed in self._objects.changes(PINS).items():
            if now - changed > timedelta(seconds=PIN_SECONDS):
                expired.append(key)
            elif found := self._objects.get(key):
                needed.update(listed_in(found.data))
        self._objects.delete({*filter(is_put, self.held()), *self._own, *expired} - needed)

    def _piece(self, path: str, start: int, end: int) -> bytes:
        try:
            data = self._objects.get_range(path, start, end)
        except ObjectNotThere:
            raise ContentMissing(f"{self._objects.at(path)} is missing: use another backup") from None
        if len(data) != end - start:
            raise ContentMissing(f"{self._objects.at(path)} ends at {start + len(data)}, before its end")
        return data

    def _require_conditions(self) -> None:
        """Of a server that takes no notice of a condition two writers would both have published. BucketRefused."""
        key = f"{FLAT_DIRECTORIES[0]}/probe{self.suffix}"
        self._objects.put(key, b"1")
        try:
            for tag in (None, '"0"'):
                try:
                    self._objects.put_if(key, b"2", tag)
                except Conflict:  # as it should be
                    continue
                raise BucketRefused(
                    f"the server of {self.name} takes no notice of If-None-Match and If-Match: two backups could "
                    "replace each other there. Use one that does, or a directory"
                )
        finally:
            self._objects.delete([key])

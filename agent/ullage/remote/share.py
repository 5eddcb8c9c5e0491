"""A share in a bucket: what `ullage.engine.shipping` asks of its place, by `Objects`."""

import secrets
import threading
from collections.abc import Callable, Collection, Iterable

from ullage.engine.shipping.shareplace import PROBES, SharedObject, Taken
from ullage.interface.buckets import Bucket
from ullage.remote.objects import Conflict, ObjectNotThere, Objects, require_obstore
from ullage.remote.parts import put_measured


class BucketShare:
    """The prefix of a bucket, for one share."""

    def __init__(self, bucket: Bucket, found: Callable[[], Bucket] | None = None) -> None:
        """`found` says how it is reached whenever it is opened: with the first request, and with the next one after
        `close`. UnknownPlugin; requests raise InvalidArgument for files that can't be read.
        """
        require_obstore(bucket)
        self._found = found or (lambda: bucket)
        self._objects: Objects | None = None
        self._opening = threading.Lock()
        self.name = bucket.url.rstrip("/")

    def close(self) -> None:
        """The next request opens it anew: with the authorities and credentials that there are then."""
        with self._opening:
            self._objects = None

    def get(self, key: str) -> SharedObject | None:
        found = self._opened().get(key)
        return None if found is None else SharedObject(found.data, found.tag)

    def put_new(self, key: str, data: bytes) -> None:
        self._put_if(key, data, None)

    def put_over(self, key: str, data: bytes, tag: str) -> None:
        self._put_if(key, data, tag)

    def put_pieces(self, key: str, pieces: Iterable[bytes], length: int) -> None:
        put_measured(self._opened(), key, pieces, length)

    def read(self, key: str, start: int, end: int) -> bytes:
        try:
            return self._opened().get_range(key, start, end)
        except ObjectNotThere:
            return b""

    def names(self) -> list[str]:
        return self._opened().names()

    def lengths(self, directory: str) -> dict[str, int]:
        return self._opened().lengths(directory)

    def ages(self, directory: str) -> dict[str, float]:
        changes = self._opened().changes(directory)
        if not changes:
            return {}
        # The server's clock is asked by a put, since ours may be wrong.
        key = f"{PROBES}/{secrets.token_hex(8)}"
        self._opened().put(key, b"now")
        now = self._opened().changed(key)
        self._opened().delete([key])
        return {key: (now - changed).total_seconds() for key, changed in changes.items()}

    def delete(self, keys: Collection[str]) -> None:
        self._opened().delete(keys)

    def _put_if(self, key: str, data: bytes, tag: str | None) -> None:
        try:
            self._opened().put_if(key, data, tag)
        except Conflict as error:
            raise Taken(str(error)) from None

    def _opened(self) -> Objects:
        with self._opening:  # a probe asks from many threads at once
            if self._objects is None:
                self._objects = Objects(self._found())
            return self._objects

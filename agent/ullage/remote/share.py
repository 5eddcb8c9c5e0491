"""A share in a bucket: what `ullage.engine.shipping` asks of its place, by `Objects`."""

import secrets
from collections.abc import Collection, Iterable

from ullage.engine.shipping.shareplace import PROBES, SharedObject, Taken
from ullage.interface.buckets import Bucket
from ullage.remote.objects import Conflict, ObjectNotThere, Objects
from ullage.remote.parts import put_measured


class BucketShare:
    """The prefix of a bucket, for one share."""

    def __init__(self, bucket: Bucket) -> None:
        self._objects = Objects(bucket)
        self.name = self._objects.at("")

    def get(self, key: str) -> SharedObject | None:
        found = self._objects.get(key)
        return None if found is None else SharedObject(found.data, found.tag)

    def put_new(self, key: str, data: bytes) -> None:
        self._put_if(key, data, None)

    def put_over(self, key: str, data: bytes, tag: str) -> None:
        self._put_if(key, data, tag)

    def put_pieces(self, key: str, pieces: Iterable[bytes], length: int) -> None:
        put_measured(self._objects, key, pieces, length)

    def read(self, key: str, start: int, end: int) -> bytes:
        try:
            return self._objects.get_range(key, start, end)
        except ObjectNotThere:
            return b""

    def names(self) -> list[str]:
        return self._objects.names()

    def lengths(self, directory: str) -> dict[str, int]:
        return self._objects.lengths(directory)

    def ages(self, directory: str) -> dict[str, float]:
        changes = self._objects.changes(directory)
        if not changes:
            return {}
        # The server's clock is asked by a put, since ours may be wrong.
        key = f"{PROBES}/{secrets.token_hex(8)}"
        self._objects.put(key, b"now")
        now = self._objects.changed(key)
        self._objects.delete([key])
        return {key: (now - changed).total_seconds() for key, changed in changes.items()}

    def delete(self, keys: Collection[str]) -> None:
        self._objects.delete(keys)

    def _put_if(self, key: str, data: bytes, tag: str | None) -> None:
        try:
            self._objects.put_if(key, data, tag)
        except Conflict as error:
            raise Taken(str(error)) from None

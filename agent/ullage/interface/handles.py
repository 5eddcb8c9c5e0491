"""Handles: content that stands in no queue, stored and fetched by id."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Final

from ullage.enums import Lifetime
from ullage.interface.checks import checked_attributes, checked_batch, checked_key, checked_lifetime, checked_number
from ullage.interface.values import AnyContent, Attributes, CheckedAttributes
from ullage.streams import ContentStream, batches
from ullage.wire.content import HandleHead, HandlePage

PAGE_MAX: Final = 1_000
"""Handles of one page."""


class Handles(ABC):
    """All handles of a repository. Thread-safe.

    A handle is a text: a uuid, and behind an `@` the node that stores it where a service does. It can be read until it
    is deleted or its time to live is over. A deleted one keeps its bytes for `spec.compaction.deletedRetention`, and
    can be brought back as long; an expired one cannot.

    >>> handle = repository.handles.put(b"content", {"filename": "a.txt"})
    >>> repository.handles.get(handle)
    b'content'

    All methods that name a handle raise HandleNotFound for one that was never stored, or was purged, and HandleDeleted
    for one that was deleted or has expired. A remote repository goes to the node that a handle names, if it was told
    how to find it (`ullage.connect`); else it raises Elsewhere.
    """

    def put(
        self,
        content: AnyContent,
        attributes: Attributes | None = None,
        *,
        ttl_millis: int = 0,
        lifetime: Lifetime = Lifetime.DEFAULT,
        key: str | None = None,
    ) -> str:
        """Store one content of any size; its handle. Durable when this returns.

        Files and pieces are stored as they come, in bounded memory. After `ttl_millis` it expires; 0: never.
        `lifetime` says how long the content is expected to live: what dies together should lie together. A put that is
        repeated with the same `key` (1 to 255 printable ASCII characters) stores nothing and returns the first handle.
        DiskFull and BackPressure if there is no room; KeyReused for a key that came with another put (of
        contents that are read piece by piece only what is said of them is compared, of a batch over HTTP its length).

        >>> with open("notes.txt", "w+b") as file:
        ...     handle = repository.handles.put(file, ttl_millis=60_000)
        """
        found = checked_attributes(attributes)
        checked_number(ttl_millis, "ttl_millis", 0)
        lifetime, key = checked_lifetime(lifetime), checked_key(key)
        if isinstance(content, bytes):
            return self._put_batch([content], found, ttl_millis, lifetime, key)[0]
        return self._put_stream(content, found, ttl_millis, lifetime, key)

    def put_many(
        self,
        contents: Sequence[bytes],
        attributes: Attributes | Sequence[Attributes] | None = None,
        *,
        ttl_millis: int = 0,
        lifetime: Lifetime = Lifetime.DEFAULT,
        key: str | None = None,
    ) -> list[str]:
        """Store contents in as few transactions as their sizes allow; their handles, in order.

        `attributes` are for all of them, or one mapping each; the rest is as in `put`. A batch of up to 10,000 contents
        and 32 MiB is one transaction: all of it is there or nothing. InvalidArgument if contents and attributes do not
        come in equal numbers.

        >>> len(repository.handles.put_many([b"one", b"two"], {"source": "example"}))
        2
        """
        found, mappings = checked_batch(contents, attributes)
        checked_number(ttl_millis, "ttl_millis", 0)
        lifetime, key = checked_lifetime(lifetime), checked_key(key)
        handles: list[str] = []
        for number, (start, end) in enumerate(self._parts(found, mappings)):
            part = mappings[start:end] if isinstance(mappings, list) else mappings
            handles += self._put_batch(found[start:end], part, ttl_millis, lifetime, _key_of_part(key, number))
        return handles

    def _parts(self, contents: list[bytes], _attributes: CheckedAttributes) -> Iterator[tuple[int, int]]:
        """The bounds of what is stored at a time."""
        return batches(contents, self._batch_bytes)

    def get(self, handle: str, *, include_deleted: bool = False) -> bytes:
        """A whole content. `include_deleted` as in `stream`.

        >>> repository.handles.get(repository.handles.put(b"content"))
        b'content'
        """
        with self.stream(handle, include_deleted=include_deleted) as content:
            return content.read()

    @abstractmethod
    def get_many(self, handles: Sequence[str]) -> list[bytes]:
        """Whole contents, in order; faster than one by one. Raises for the first that is not to be had.

        >>> repository.handles.get_many(repository.handles.put_many([b"one", b"two"]))
        [b'one', b'two']
        """

    @abstractmethod
    def stream(
        self, handle: str, start: int = 0, size: int | None = None, *, include_deleted: bool = False
    ) -> ContentStream:
        """The content, or `size` bytes of it from `start` on, in bounded memory; a remote one goes on after a break.

        With `include_deleted`, also that of a handle that was deleted or has expired, while its bytes are there.
        RangeNotSatisfiable for a range beyond the end; ContentMissing, ContentCorrupt where the disk has lost it: never
        fewer bytes, and never wrong ones.

        >>> with repository.handles.stream(repository.handles.put(b"content"), 3) as content:
        ...     content.read()
        b'tent'
        """

    @abstractmethod
    def head(self, handle: str) -> HandleHead:
        """Size, attributes and dates; also of a handle that was deleted or has expired and is not purged yet.

        >>> repository.handles.head(repository.handles.put(b"content")).size
        7
        """

    @abstractmethod
    def page(self, after: str = "", limit: int = 100) -> HandlePage:
        """Up to `limit` (1 to 1,000) handles in the order of their ids, from behind `after` on, deleted ones included.

        There are fewer, with a `next`, where their attributes are large. RepositoryDamaged behind the last one if there
        are others that cannot be read.

        >>> first = repository.handles.page(limit=10)
        >>> rest = first.next and repository.handles.page(after=first.next)
        """

    def all(self) -> Iterator[HandleHead]:
        """All handles in the order of their ids, deleted ones included; what is stored meanwhile may be missing.
        RepositoryDamaged at the end if there are others that cannot be read.

        >>> [head.size for head in repository.handles.all() if not head.deleted_millis]
        []
        """
        after: str | None = ""
        while after is not None:
            page = self.page(after, 1_000)
            yield from page.handles
            after = page.next

    @abstractmethod
    def delete(self, handle: str) -> None:
        """Delete a handle. Its bytes stay until its retention is over.

        >>> repository.handles.delete(repository.handles.put(b"content"))
        """

    @abstractmethod
    def undelete(self, handle: str) -> None:
        """Bring a deleted handle back. HandleNotFound once its retention is over; HandleNotDeleted if it lives.

        >>> handle = repository.handles.put(b"content")
        >>> repository.handles.delete(handle)
        >>> repository.handles.undelete(handle)
        """

    @abstractmethod
    def set_ttl(self, handle: str, ttl_millis: int) -> HandleHead:
        """Let a handle expire so many milliseconds from now, whatever was said before; 0: never.

        >>> repository.handles.set_ttl(repository.handles.put(b"content"), 0).expires_millis
        0
        """

    @property
    @abstractmethod
    def _batch_bytes(self) -> int:
        """Content of one transaction."""

    @abstractmethod
    def _put_batch(
        self, contents: list[bytes], attributes: CheckedAttributes, ttl_millis: int, lifetime: Lifetime, key: str | None
    ) -> list[str]:
        """Store contents in one transaction, or one content of any size; their handles."""

    @abstractmethod
    def _put_stream(
        self, content: AnyContent, attributes: dict[str, str], ttl_millis: int, lifetime: Lifetime, key: str | None
    ) -> str:
        """Store one content that comes piece by piece; its handle."""


def _key_of_part(key: str | None, number: int) -> str | None:
    """The key of one transaction of a put that takes several. The first has the put's own.

    A digest, because a number behind the key made one that was too long, which was refused when the first transaction
    was stored already, or one that somebody gave to another put.
    """
    if key is None or number == 0:
        return key
    return hashlib.sha256(f"{key}\n{number}".encode()).hexdigest()

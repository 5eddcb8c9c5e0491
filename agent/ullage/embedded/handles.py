"""Handles over the engine's store of them."""

from collections.abc import Sequence

from ullage.contract import QueueUse
from ullage.embedded.acting import Acting
from ullage.embedded.content import HandlePut, ReadableContent, known_crc
from ullage.embedded.once import AlsoUuids, Keys, Operations, nothing_else
from ullage.embedded.rows import LazyRows, record_answer_bytes
from ullage.engine import documents
from ullage.engine.handles import HandleStore
from ullage.engine.paging import page, record_bytes
from ullage.enums import Lifetime
from ullage.errors import RepositoryDamaged
from ullage.interface.checks import checked_number, checked_part, checked_texts, own_id
from ullage.interface.handles import PAGE_MAX, Handles
from ullage.interface.values import AnyContent, CheckedAttributes
from ullage.streams import ContentStream, pieces_of
from ullage.uuids import format_uuids, parse_handle, split_uuids
from ullage.wire.content import HandleHead, HandlePage


class EmbeddedHandles(Handles):
    """`node` is what handles carry behind their `@`; empty: nothing."""

    _batch_bytes = 32 << 20
    """Large enough to make a transaction's sync cheap, small enough for one file."""

    def __init__(self, store: HandleStore, keys: Keys, node: str, acting: Acting) -> None:
        self._store = store
        self._keys = keys
        self._node = node
        self._acting = acting

    def get_many(self, handles: Sequence[str]) -> list[bytes]:
        return [self.get(handle) for handle in checked_texts(handles, "a handle")]

    def store(
        self,
        contents: list[bytes],
        attributes: CheckedAttributes,
        *,
        ttl_millis: int = 0,
        lifetime: Lifetime = Lifetime.DEFAULT,
        key: str | None = None,
        also: AlsoUuids = nothing_else,
    ) -> list[bytes]:
        """Store one batch in one transaction, all of it or nothing; the uuids."""
        self._acting.require(QueueUse.WRITE)
        with self._keys.once(key, "put", attributes, ttl_millis, lifetime, contents=contents) as once:
            if once.first is not None:
                return list(split_uuids(once.first))

            def remembered(uuids: list[bytes]) -> Operations:
                return [*also(uuids), *once.remember(b"".join(uuids))]

            return self._store.store(contents, attributes, ttl_millis, lifetime, remembered, self._acting.by)

    def begin(self, lifetime: Lifetime = Lifetime.DEFAULT) -> HandlePut:
        """A content that comes piece by piece, from one thread or several that take turns."""
        self._acting.require(QueueUse.WRITE)
        return self._store.begin(lifetime, self._acting.by)

    def readable(self, handle: str, *, include_deleted: bool = False) -> ReadableContent:
        """The content, before it is opened."""
        self._acting.require(QueueUse.READ)
        id = own_id(handle, self._node)
        record = self._store.head(id) if include_deleted else self._store.record(parse_handle(id))

        def opened(start: int, size: int, blocks: int) -> ContentStream:
            return self._store.get(id, start, size, blocks=blocks, includes_deleted=include_deleted)

        crc = known_crc(record.claim, record.start, record.size)
        return ReadableContent(record.size, record.id, crc, opened)

    def stream(
        self, handle: str, start: int = 0, size: int | None = None, *, include_deleted: bool = False
    ) -> ContentStream:
        self._acting.require(QueueUse.READ)
        start, size = checked_part(start, size)
        return self._store.get(own_id(handle, self._node), start, size, includes_deleted=include_deleted)

    def head(self, handle: str) -> HandleHead:
        self._acting.require(QueueUse.READ)
        return documents.handle_head(self._store.head(own_id(handle, self._node)), self._node)

    def page(self, after: str = "", limit: int = 100) -> HandlePage:
        rows, following = self.rows(after, limit)
        return HandlePage(handles=list(rows), next=following)

    def rows(self, after: str = "", limit: int = 100) -> tuple[LazyRows[HandleHead], str | None]:
        """What a page has, of which each document is made when it is asked for; and what comes next.

        Behind the last of them comes an error, RepositoryDamaged, if there are others that cannot be read: whoever
        mirrors a list would take them for deleted.
        """
        self._acting.require(QueueUse.READ)
        checked_number(limit, "limit", 1, PAGE_MAX)
        start = parse_handle(own_id(after, self._node)) if after else b""
        records, has_more = page(self._store.page(start, limit + 1), limit, record_bytes)
        if not has_more:
            try:
                self._store.require_all()
            except RepositoryDamaged:
                if not records:
                    raise
                has_more = True
        rows = LazyRows(records, lambda record: documents.handle_head(record, self._node), record_answer_bytes)
        return rows, records[-1].id if has_more else None

    def delete(self, handle: str, *, also: Operations = ()) -> None:
        self._acting.require(QueueUse.DELETE)
        self._store.delete(own_id(handle, self._node), also, self._acting.by)

    def undelete(self, handle: str, *, also: Operations = ()) -> None:
        self._acting.require(QueueUse.DELETE)
        self._store.undelete(own_id(handle, self._node), also, self._acting.by)

    def set_ttl(self, handle: str, ttl_millis: int, *, also: Operations = ()) -> HandleHead:
        self._acting.require(QueueUse.DELETE)
        id = own_id(handle, self._node)
        checked_number(ttl_millis, "ttl_millis", 0)
        self._store.set_ttl(id, ttl_millis, also)
        return self.head(id)

    def _put_batch(
        self, contents: list[bytes], attributes: CheckedAttributes, ttl_millis: int, lifetime: Lifetime, key: str | None
    ) -> list[str]:
        uuids = self.store(contents, attributes, ttl_millis=ttl_millis, lifetime=lifetime, key=key)
        return list(map(self._named, format_uuids(uuids)))

    def _put_stream(
        self, content: AnyContent, attributes: dict[str, str], ttl_millis: int, lifetime: Lifetime, key: str | None
    ) -> str:
        with self._keys.once(key, "put", attributes, ttl_millis, lifetime) as once:
            if once.first is not None:
                return self._named(once.first.decode())
            put = self.begin(lifetime)
            try:
                for piece in pieces_of(content):
                    put.write(piece)
            except BaseException:
                put.abandon()
                raise
            return self._named(put.commit(attributes, ttl_millis, lambda made: once.remember(made.encode())))

    def _named(self, id: str) -> str:
        return f"{id}@{self._node}" if self._node else id

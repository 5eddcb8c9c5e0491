"""Handles of a remote repository: it takes the fastest path there is, and goes where a handle lives.

A write is repeated over the path on which it began, with its key, so that it is carried out once.
"""

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from ullage.client.http import items_of, json_batches, of_each
from ullage.client.link import NodeLink, name_of, new_key
from ullage.client.node import Node, Resolver
from ullage.client.retries import NEVER
from ullage.enums import Lifetime
from ullage.errors import ContentCorrupt, ContentMissing, Elsewhere, HandleNotFound, NotReachable, RequestTooLarge
from ullage.interface.checks import checked_number, checked_part, checked_text
from ullage.interface.handles import PAGE_MAX, Handles
from ullage.interface.values import AnyContent, CheckedAttributes
from ullage.streams import ContentStream, pieces_of
from ullage.wire import operations
from ullage.wire.content import HandleBatch, HandleHead, HandleIds, HandlePage
from ullage.wire.frames import FRAME_BYTES_MAX
from ullage.wire.problems import error_of_slug

BATCH_BYTES: Final = FRAME_BYTES_MAX - (1 << 20)
"""Content of one put: what fits into a frame beside attributes, and a good size for all paths."""

JSON_BYTES: Final = 8 << 20
"""Content of one put over HTTP, where bytes become base64."""

MANY: Final = 16
"""From so many contents on a Flight stream is faster than HTTP."""


class RemoteHandles(Handles):
    """Those of one node, and of others that a resolver knows."""

    def __init__(self, link: NodeLink, resolver: Resolver | None) -> None:
        self._link = link
        self._resolver = resolver
        self._lock = threading.Lock()
        self._others: dict[str, NodeLink] = {}

    def close(self) -> None:
        """Close the connections to other nodes."""
        for other in self._others.values():
            other.close()

    def get(self, handle: str, *, include_deleted: bool = False) -> bytes:
        link, id = self._found(handle)
        if include_deleted or link.socket is None:
            return _over_http(link, id, include_deleted=include_deleted)
        return _get_all(link, [id])[0]

    def get_many(self, handles: Sequence[str]) -> list[bytes]:
        contents: dict[int, bytes] = {}
        by_link: dict[NodeLink, list[tuple[int, str]]] = {}
        for item, handle in enumerate(handles):
            link, id = self._found(handle)
            by_link.setdefault(link, []).append((item, id))
        for link, items in by_link.items():
            contents.update(zip((item for item, _ in items), _get_all(link, [id for _, id in items]), strict=True))
        return [contents[item] for item in range(len(handles))]

    def stream(
        self, handle: str, start: int = 0, size: int | None = None, *, include_deleted: bool = False
    ) -> ContentStream:
        start, size = checked_part(start, size)
        link, id = self._found(handle)
        local = link.socket
        if include_deleted or local is None:
            return link.stream(operations.GET_HANDLE, start, size, {"deleted": include_deleted}, id=id)
        raw = uuid.UUID(id).bytes
        return link.resumed(start, size, lambda at, count: local.open(raw, at, count))

    def head(self, handle: str) -> HandleHead:
        link, id = self._found(handle)
        return link.ask(operations.DESCRIBE_HANDLE, id=id)

    def page(self, after: str = "", limit: int = 100) -> HandlePage:
        checked_number(limit, "limit", 1, PAGE_MAX)
        return self._link.ask(
            operations.LIST_HANDLES, query={"after": checked_text(after, "a handle").partition("@")[0], "limit": limit}
        )

    def delete(self, handle: str) -> None:
        link, id = self._found(handle)
        link.ask(operations.DELETE_HANDLE, id=id)

    def undelete(self, handle: str) -> None:
        link, id = self._found(handle)
        link.ask(operations.UNDELETE_HANDLE, id=id)

    def set_ttl(self, handle: str, ttl_millis: int) -> HandleHead:
        link, id = self._found(handle)
        checked_number(ttl_millis, "ttl_millis", 0)
        return link.ask(operations.SET_HANDLE_TTL, query={"ttl": f"{ttl_millis}ms"}, id=id)

    def _parts(self, contents: list[bytes], attributes: CheckedAttributes) -> Iterator[tuple[int, int]]:
        link = self._link
        if link.socket is None and (link.flight is None or len(contents) < MANY):
            return json_batches(contents, attributes, JSON_BYTES)
        return super()._parts(contents, attributes)

    @property
    def _batch_bytes(self) -> int:
        return JSON_BYTES if self._link.socket is None and self._link.flight is None else BATCH_BYTES

    def _put_batch(
        self, contents: list[bytes], attributes: CheckedAttributes, ttl_millis: int, lifetime: Lifetime, key: str | None
    ) -> list[str]:
        link = self._link
        local, flight = link.socket, link.flight if len(contents) >= MANY else None
        if len(contents) == 1 and (local is None or len(contents[0]) > BATCH_BYTES):
            # Bytes as they are, rather than base64, or more than a frame takes.
            (mapping,) = of_each(contents, attributes)
            return [self._put_stream(contents[0], mapping, ttl_millis, lifetime, key)]
        key = key or new_key()
        if local is not None:
            found = link.retries.run(lambda: local.put_many(contents, attributes, ttl_millis, key, int(lifetime)))
        elif flight is not None:
            mappings = of_each(contents, attributes)
            found = link.retries.run(lambda: flight.put(contents, mappings, ttl_millis, key, int(lifetime)))
        else:
            body = HandleBatch(items=items_of(contents, attributes), ttl=f"{ttl_millis}ms", lifetime=name_of(lifetime))
            stored = link.ask(operations.PUT_HANDLES, body, key=key)
            return [f"{id}@{stored.node}" for id in stored.ids]
        return [self._named(each) for each in found]

    def _put_stream(
        self, content: AnyContent, attributes: dict[str, str], ttl_millis: int, lifetime: Lifetime, key: str | None
    ) -> str:
        key = key or new_key()
        if (local := self._link.socket) is None:
            query = {"ttl": f"{ttl_millis}ms", "lifetime": name_of(lifetime)}
            return self._link.send(operations.PUT_HANDLE, content, attributes=attributes, query=query, key=key).handle
        retries = self._link.retries if isinstance(content, bytes) else NEVER
        pieces: Iterable[bytes] = [content] if isinstance(content, bytes) else pieces_of(content)
        raw = retries.run(lambda: local.put_stream(pieces, attributes, ttl_millis, key, int(lifetime)))
        return self._named(raw)

    def _found(self, handle: str) -> tuple[NodeLink, str]:
        """Whoever speaks to the handle's node, and its uuid."""
        id, _, name = checked_text(handle, "a handle").partition("@")
        try:
            id = str(uuid.UUID(id))
        except ValueError as error:
            raise HandleNotFound(f"{handle!r} is not a handle") from error
        return (self._link if not name or name == self._link.name else self._other(name, handle)), id

    def _other(self, name: str, handle: str) -> NodeLink:
        if self._resolver is None:
            raise Elsewhere(f"handle {handle}: this is {self._link.name}, and there is no resolver to ask")
        with self._lock:
            if name not in self._others:
                self._others[name] = NodeLink(_resolved(self._resolver, name, handle), self._link.retries, name)
            return self._others[name]

    def _named(self, raw: bytes) -> str:
        """A handle as it goes over the network."""
        return f"{uuid.UUID(bytes=raw)}@{self._link.name}"


def _resolved(resolver: Mapping[str, Node] | Callable[[str], Node], name: str, handle: str) -> Node:
    try:
        return resolver(name) if callable(resolver) else resolver[name]
    except KeyError as error:
        raise NotReachable(f"handle {handle}: no node {name} is known") from error


def _over_http(link: NodeLink, id: str, *, include_deleted: bool = False) -> bytes:
    """A whole content, as the service reads it."""
    path = operations.GET_HANDLE.path_of(id=id)
    return link.retries.run(lambda: link.http.content(path, {"deleted": include_deleted}))


def _get_all(link: NodeLink, ids: Sequence[str]) -> list[bytes]:
    """Whole contents of one node."""
    local, flight = link.socket, link.flight if len(ids) >= MANY else None
    if local is not None:
        try:
            return local.read_all([uuid.UUID(id).bytes for id in ids])
        except (ContentCorrupt, ContentMissing):
            # The service names whose content it is, and from then on knows that it can't be read.
            return [_over_http(link, id) for id in ids]
    if flight is not None:
        return link.retries.run(lambda: flight.get_many(ids))
    try:
        found = link.ask(operations.GET_HANDLES, HandleIds(ids=list(ids)))
    except RequestTooLarge:
        return [_over_http(link, id) for id in ids]
    contents = []
    for each in found:
        if each.content is None:
            raise error_of_slug(each.problem or "unexpected", f"handle {each.id}")
        contents.append(each.content)
    return contents

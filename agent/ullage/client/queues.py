"""Queues of a remote repository, over HTTP."""

from collections.abc import Callable
from typing import Any

from ullage.client.http import items_of
from ullage.client.link import NodeLink
from ullage.interface.checks import checked_number, checked_queue, checked_text, queue_settings
from ullage.interface.queues import LISTED_MAX, Queues
from ullage.interface.values import AnyContent, CheckedAttributes
from ullage.wire import operations
from ullage.wire.queues import FlowFile, FlowFileBatch, QueueStatus


class RemoteQueues(Queues):
    """Those of one node."""

    def __init__(self, link: NodeLink) -> None:
        self._link = link

    def all(self) -> list[QueueStatus]:
        return self._link.ask(operations.LIST_QUEUES)

    def find(self, name: str) -> QueueStatus:
        return self._link.ask(operations.GET_QUEUE, queue=checked_text(name, "a queue's name"))

    def define(self, name: str, **settings: Any) -> QueueStatus:
        return self._link.ask(operations.DEFINE_QUEUE, queue_settings(**settings), queue=checked_queue(name))

    def remove(self, name: str) -> None:
        self._link.ask(operations.REMOVE_QUEUE, queue=checked_text(name, "a queue's name"))

    def flow_files(self, name: str, limit: int = 100, skip: int = 0) -> list[FlowFile]:
        query = {"limit": checked_number(limit, "limit", 1, LISTED_MAX), "skip": checked_number(skip, "skip", 0)}
        return self._link.ask(operations.LIST_FLOW_FILES, query=query, queue=checked_text(name, "a queue's name"))

    def drop(self, name: str, *, on_progress: Callable[[int], None] | None = None) -> int:
        return self._link.ask(operations.DROP_FLOW_FILES, queue=checked_text(name, "a queue's name")).dropped

    def _put(self, name: str, content: AnyContent, attributes: dict[str, str], force: bool, key: str | None) -> str:
        return self._link.send(
            operations.PUT_FLOW_FILE,
            content,
            attributes=attributes,
            query={"force": force},
            key=key,
            queue=name,
        ).id

    def _put_many(
        self, name: str, contents: list[bytes], attributes: CheckedAttributes, force: bool, key: str | None
    ) -> list[str]:
        body = FlowFileBatch(items=items_of(contents, attributes))
        query = {"force": force}
        return self._link.ask(operations.PUT_FLOW_FILES, body, query=query, key=key, queue=name).ids

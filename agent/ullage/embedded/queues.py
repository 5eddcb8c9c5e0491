"""Queues over the engine's manager of them."""

from collections.abc import Callable
from typing import Any

import msgspec

from ullage.contract import FEED_PREFIX, NO_QUEUE, QueueUse
from ullage.embedded.acting import Acting
from ullage.embedded.content import QueuePut
from ullage.embedded.once import AlsoIds, Keys, Operations, nothing_else
from ullage.embedded.rows import LazyRows, flow_file_rows
from ullage.engine import documents
from ullage.engine.engine import Engine
from ullage.engine.flowfile.manager import QueueManager
from ullage.engine.flowfile.queues import FlowFileQueue
from ullage.engine.paging import page, record_bytes
from ullage.engine.session import ProcessSession
from ullage.errors import QuotaReached
from ullage.interface.checks import checked_number, checked_queue, checked_text, queue_settings
from ullage.interface.queues import LISTED_MAX, Queues
from ullage.interface.values import AnyContent, CheckedAttributes
from ullage.streams import pieces_of
from ullage.wire.queues import FlowFile, QueueStatus

COMPONENT = "queues"
"""Who puts into a queue without a session, as provenance events tell it."""


def require_puts(queues: QueueManager, acting: Acting, queue: str) -> None:
    """Forbidden if they may not put anything into it; QuotaReached if it would be one more than they may make."""
    acting.require(QueueUse.WRITE, queue)
    require_own_room(queues, acting, queue)


def require_own_room(queues: QueueManager, acting: Acting, queue: str) -> None:
    """QuotaReached if there is no such queue, and they have made as many as one may. Handles stand in none, and streams
    have a quota of their own.
    """
    if acting.queues_max is None or queue == NO_QUEUE or queues.known(queue) is not None:
        return
    made = sum(q.definition.owner == acting.by and not q.name.startswith(FEED_PREFIX) for q in queues.all())
    if made >= acting.queues_max:
        raise QuotaReached.of(acting.owner, f"made {made} queues", "queues_each", "remove some that are empty")


class EmbeddedQueues(Queues):
    """All queues of one engine."""

    def __init__(self, engine: Engine, keys: Keys, acting: Acting) -> None:
        self._engine = engine
        self._keys = keys
        self._acting = acting

    def all(self) -> list[QueueStatus]:
        self._engine.forgotten.give_back()
        queues, sees = self._engine.queues.all(), self._acting.queues.allows
        return [documents.queue_status(queue) for queue in queues if sees(QueueUse.READ, queue.name)]

    def find(self, name: str) -> QueueStatus:
        self._engine.forgotten.give_back()
        return documents.queue_status(self._found(name, QueueUse.READ))

    def define(self, name: str, *, also: Operations = (), **settings: Any) -> QueueStatus:
        name = checked_queue(name)
        self._acting.require(QueueUse.DELETE, name)
        asked = msgspec.structs.asdict(queue_settings(**settings))
        require_own_room(self._engine.queues, self._acting, name)
        if self._engine.queues.known(name) is None:
            asked["owner"] = self._acting.by
        return documents.queue_status(self._engine.queues.define(name, also=also, **asked))

    def remove(self, name: str, *, also: Operations = ()) -> None:
        name = checked_text(name, "a queue's name")
        self._acting.require(QueueUse.DELETE, name)
        self._engine.queues.remove(name, also)

    def flow_files(self, name: str, limit: int = 100, skip: int = 0) -> list[FlowFile]:
        return list(self.rows(name, limit, skip))

    def rows(self, name: str, limit: int = 100, skip: int = 0) -> LazyRows[FlowFile]:
        """`flow_files`, of which each document is made when it is asked for."""
        checked_number(limit, "limit", 1, LISTED_MAX)
        checked_number(skip, "skip", 0)
        queue = self._found(name, QueueUse.READ)
        records, _ = page(self._engine.flow_files.listed(queue, skip, limit), limit, record_bytes)
        return flow_file_rows(records)

    def drop(
        self,
        name: str,
        *,
        on_progress: Callable[[int], None] | None = None,
        also: Callable[[int], Operations] = nothing_else,
    ) -> int:
        # A large queue takes several transactions: of a drop that a crash cut short, the repeat does the rest.
        count = self._engine.queues.drop(self._found(name, QueueUse.DELETE), on_progress, self._acting.by)
        if operations := also(count):
            self._engine.committer.commit(operations, creates=False)
        return count

    def begin(self, name: str, attributes: dict[str, str], *, force: bool = False) -> QueuePut:
        """A FlowFile whose content comes piece by piece."""
        name = checked_queue(name)
        require_puts(self._engine.queues, self._acting, name)
        return QueuePut(self._session(), name, attributes, force=force)

    def store(
        self,
        name: str,
        contents: list[bytes],
        attributes: CheckedAttributes,
        force: bool = False,
        key: str | None = None,
        also: AlsoIds = nothing_else,
    ) -> list[str]:
        """Put contents into a queue in one transaction; their ids, in order."""
        name = checked_queue(name)
        require_puts(self._engine.queues, self._acting, name)
        asked = self._keys.once(key, "queue", name, attributes, contents=contents)
        with asked as once, self._session() as session:
            if once.first is not None:
                return once.first.decode().split(",")
            if not force:
                session.require_room(name)
            ids = [record.id for record in session.ingest(name, contents, attributes)]
            session.commit([*also(ids), *once.remember(",".join(ids).encode())])
            return ids

    def _found(self, name: str, use: QueueUse) -> FlowFileQueue:
        """Forbidden before it says whether there is one."""
        name = checked_text(name, "a queue's name")
        self._acting.require(use, name)
        return self._engine.queues.find(name)

    def _session(self) -> ProcessSession:
        return self._engine.session(COMPONENT, self._acting.by, tenant=self._acting.by)

    _put_many = store

    def _put(self, name: str, content: AnyContent, attributes: dict[str, str], force: bool, key: str | None) -> str:
        if isinstance(content, bytes):
            return self.store(name, [content], attributes, force, key)[0]
        with self._keys.once(key, "queue", name, attributes) as once:
            if once.first is not None:
                return once.first.decode()
            made = self.begin(name, attributes, force=force)
            try:
                for piece in pieces_of(content):
                    made.write(piece)
                made.commit(once.remember(made.id.encode()))
            finally:
                made.abandon()
            return made.id

"""Queues: where FlowFiles wait, in an order."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ullage.interface.checks import checked_attributes, checked_batch, checked_key, checked_queue
from ullage.interface.values import AnyContent, Attributes, CheckedAttributes
from ullage.wire.queues import FlowFile, QueueStatus

LISTED_MAX: Final = 1_000
"""FlowFiles that one look at a queue shows."""


class Queues(ABC):
    """All queues of a repository. Thread-safe. What is taken out of a queue is taken by a `Session`.

    >>> repository.queues.define("orders", priority="PriorityAttribute", priority_attribute="urgency").count_max
    10000
    >>> repository.queues.put("orders", b"12 casks", {"urgency": "1"}) in [
    ...     order.id for order in repository.queues.flow_files("orders")
    ... ]
    True

    All methods that name a queue raise QueueNotFound for one that there is not, but for `define`, `put` and
    `put_many`, which make it.
    """

    @abstractmethod
    def all(self) -> list[QueueStatus]:
        """All queues by name, with their settings and what is in them.

        >>> [queue.name for queue in repository.queues.all()]
        []
        """

    @abstractmethod
    def find(self, name: str) -> QueueStatus:
        """One queue.

        >>> repository.queues.define("inbox").name == repository.queues.find("inbox").name
        True
        """

    @abstractmethod
    def define(
        self,
        name: str,
        *,
        priority: str | None = None,
        priority_attribute: str | None = None,
        count_max: int | None = None,
        bytes_max: int | None = None,
        expiration_millis: int | None = None,
    ) -> QueueStatus:
        """Make a queue, or change the settings that are given of one that is there; the others stay.

        A new queue has `spec.flowFile.queueDefaults` for what is not given. `priority` is one of `QueuePriority`.
        `count_max` and `bytes_max` are where writers are asked to wait, `expiration_millis` the age at which FlowFiles
        cease to exist; 0: no limit, never. InvalidArgument for settings that cannot be.

        >>> repository.queues.define("inbox", count_max=5).is_full
        False
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a queue that is empty. QueueNotEmpty while FlowFiles stand in it, held ones included.

        A session that transfers a FlowFile to it brings it back, as it was, with its commit.

        >>> repository.queues.remove(repository.queues.define("inbox").name)
        """

    @abstractmethod
    def flow_files(self, name: str, limit: int = 100, skip: int = 0) -> list[FlowFile]:
        """Up to `limit` (1 to 1,000) FlowFiles in the queue's order, from behind the first `skip` on; they stay there.

        Those that a session holds are left out. For swapped ones their files are read. There are fewer where
        their attributes are large: only a page without any is the end.

        >>> id = repository.queues.put("inbox", b"look")
        >>> [one.size for one in repository.queues.flow_files("inbox")]
        [4]
        """

    def all_flow_files(self, name: str) -> Iterator[FlowFile]:
        """All of them, in pages: where others take some meanwhile, one may be passed over.

        >>> ids = repository.queues.put_many("inbox", [b"one", b"two"])
        >>> [one.id for one in repository.queues.all_flow_files("inbox")] == ids
        True
        """
        skip = 0
        while page := self.flow_files(name, LISTED_MAX, skip):
            yield from page
            skip += len(page)

    @abstractmethod
    def drop(self, name: str, *, on_progress: Callable[[int], None] | None = None) -> int:
        """Remove all FlowFiles of a queue that no session holds; how many. Their content is dead from then on.

        Many go in several transactions; of an embedded repository `on_progress` is told how many are gone.

        >>> id = repository.queues.put("inbox", b"in vain")
        >>> repository.queues.drop("inbox")
        1
        """

    def put(
        self,
        name: str,
        content: AnyContent,
        attributes: Attributes | None = None,
        *,
        force: bool = False,
        key: str | None = None,
    ) -> str:
        """Store one content of any size as a FlowFile of a queue; its id. Durable when this returns.

        BackPressure while the queue is full, unless it is forced. A put that is repeated with the same `key` (1 to 255
        printable ASCII characters) stores nothing and returns the first id. DiskFull; KeyReused.

        >>> id = repository.queues.put("inbox", b"content", {"filename": "a.txt"})
        """
        return self._put(checked_queue(name), content, checked_attributes(attributes), force, checked_key(key))

    def put_many(
        self,
        name: str,
        contents: Sequence[bytes],
        attributes: Attributes | Sequence[Attributes] | None = None,
        *,
        force: bool = False,
        key: str | None = None,
    ) -> list[str]:
        """The same for many contents (up to 10,000), in one transaction: all of them or none; their ids, in order.

        `attributes` are for all of them, or one mapping each. InvalidArgument if they do not come in equal numbers.

        >>> len(repository.queues.put_many("inbox", [b"one", b"two"]))
        2
        """
        found, mappings = checked_batch(contents, attributes)
        name, key = checked_queue(name), checked_key(key)
        return self._put_many(name, found, mappings, force, key) if found else []

    @abstractmethod
    def _put(
        self, name: str, content: AnyContent, attributes: dict[str, str], force: bool, key: str | None, /
    ) -> str: ...

    @abstractmethod
    def _put_many(
        self, name: str, contents: list[bytes], attributes: CheckedAttributes, force: bool, key: str | None, /
    ) -> list[str]: ...

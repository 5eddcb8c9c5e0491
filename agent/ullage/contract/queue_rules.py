"""Rules of `spec.auth.queues`: who may do what in which queues, beside having the right to it."""

import enum
from collections.abc import Iterable
from typing import Annotated, Final

from msgspec import Meta

from ullage.contract.settings import Settings

FEED_PREFIX: Final = "stream:"
"""Of the names of queues in which FlowFiles wait for a stream: `stream:<stream>:<queue>`."""

NO_QUEUE: Final = ""
"""Where handles stand: only a rule without a prefix is about them."""

GROUP_PREFIX: Final = "group:"
"""Of a group's name, where a principal's could stand."""

Who = Annotated[str, Meta(min_length=1, max_length=512)]


class QueueUse(enum.StrEnum):
    """What is done in a queue. To take FlowFiles out of it is to read and to delete."""

    READ = "read"
    WRITE = "write"
    DELETE = "delete"


class QueueRule(Settings, frozen=True, kw_only=True):
    """Who may do what in queues whose names begin alike."""

    prefix: Annotated[str, Meta(max_length=256)]
    """How the names of the queues begin. Of several rules that fit, the longest prefix decides alone. An empty one is
    about all queues that no other rule is about, and about handles."""

    read: tuple[Who, ...] = ()
    """Who may see FlowFiles and read their content: names of principals, `group:` and a group's name, or `*` for
    everybody who has the right. None is nobody."""

    write: tuple[Who, ...] = ()
    """Who may put FlowFiles there."""

    delete: tuple[Who, ...] = ()
    """Who may take FlowFiles out, drop them, and change or remove the queues."""


class QueueAccess:
    """What the rules leave to one principal. Immutable."""

    def __init__(self, rules: Iterable[QueueRule] = (), name: str = "", groups: Iterable[str] = ()) -> None:
        me = {"*", *(f"{GROUP_PREFIX}{group}" for group in groups)}
        if not name.startswith(GROUP_PREFIX):  # an identity provider may call somebody so, who would be in the group
            me.add(name)
        left = [(rule.prefix, {use for use in QueueUse if not me.isdisjoint(getattr(rule, use))}) for rule in rules]
        self._left = sorted(left, key=lambda each: len(each[0]), reverse=True)
        # Asked for each content of a batch.
        self._everywhere = set(QueueUse).intersection(*(uses for _, uses in left))

    def allows(self, use: QueueUse, queue: str) -> bool:
        """Whether this may be done in a queue, or with handles for `NO_QUEUE`. What waits for a stream stands, for the
        rules, in the queue from which it was taken.
        """
        if self._left and queue.startswith(FEED_PREFIX):
            queue = queue.split(":", 2)[-1]
        return next((use in uses for prefix, uses in self._left if queue.startswith(prefix)), True)

    def allows_everywhere(self, use: QueueUse) -> bool:
        """Whether no rule forbids this anywhere."""
        return use in self._everywhere

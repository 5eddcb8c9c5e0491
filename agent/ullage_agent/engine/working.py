"""A FlowFile in the hands of a session: what it was, what it is, and the least that has to be logged of it."""

from collections.abc import Sequence

from ullage_agent.engine.flowfile.queues import FlowFileQueue
from ullage_agent.engine.model import NO_ATTRIBUTES, Content, FlowFile, Update, pack_attributes, unpack_attributes

NOT_INHERITED = ("alternate.identifier", "discard.reason")
"""Attributes that say something of one FlowFile only."""


class Working:
    """One FlowFile in a session: as it was (None: created here), as it is, and where it is to go."""

    __slots__ = (
        "content",
        "current",
        "is_removed",
        "original",
        "penalty_millis",
        "removed",
        "set",
        "source",
        "target",
    )

    def __init__(self, original: FlowFile | None, current: FlowFile, source: FlowFileQueue | None) -> None:
        self.original = original
        self.current = current
        self.source = source
        self.target: FlowFileQueue | None = None
        self.set: dict[str, str] = {}
        self.removed: set[str] = set()
        self.content: Content | None = None
        self.is_removed = False
        self.penalty_millis = 0


def update_of(working: Working, queue: int, position: int) -> Update:
    """Only what changed: one attribute of a hundred costs one attribute."""
    assert working.original is not None
    content = working.content
    original = working.original
    if content is not None and (content.claim, content.start, content.size) == (
        original.claim,
        original.start,
        original.size,
    ):
        content = None
    return Update(
        original.uuid,
        None if queue == original.queue else queue,
        position,
        content,
        pack_attributes(working.set) if working.set else None,
        tuple(working.removed),
    )


def common_attributes(parents: Sequence[FlowFile]) -> dict[str, str]:
    """What a FlowFile inherits: all of one parent's attributes, of several those on which they agree."""
    if not parents or all(parent.attributes == NO_ATTRIBUTES for parent in parents):
        return {}
    common = unpack_attributes(parents[0].attributes)
    for parent in parents[1:]:
        other = unpack_attributes(parent.attributes)
        common = {name: value for name, value in common.items() if other.get(name) == value}
    return {name: value for name, value in common.items() if name not in NOT_INHERITED}

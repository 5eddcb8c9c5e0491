"""What the documents of all subjects share. Sizes are bytes; times are milliseconds, and moments count from 1970.

Requests are strict, so that a mistyped field is refused instead of ignored. In answers unknown fields are ignored: a
newer node may say more.
"""

import ast
import inspect
import sys
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

COUNT_MAX = 1 << 62
"""Of bytes, records and milliseconds: with the time of day it still is a moment of 64 bits."""

NAME_CHARACTERS_MAX = 255
TEXT_BYTES_MAX = 64 << 10
"""Details, addresses and identifiers are for people and searches; more is content."""

DEMARCATOR_BYTES_MAX = 1 << 10
"""It is stored between any two of ten thousand contents that a request merges."""

ATTRIBUTES_BYTES_MAX = 4 << 20
"""Of one FlowFile or handle, packed: updates add up over many transactions, and a snapshot must hold the sum."""

ATTRIBUTES_MAX = 10_000
"""Of one FlowFile or handle. The interpreter decodes a mapping in one go and lets no other thread work meanwhile: so
many take 3 ms, less than the 5 ms for which it leaves a thread at work anyway. 150,000, in the same bytes as a long
text, took 50 ms, and twenty sessions full of them kept everybody else waiting for seconds.
"""

CONDITIONS_MAX = 32
"""Attributes by which a poll chooses: it looks for each of them in each FlowFile. A route needs two or three."""

COUNTERS_MAX = 1_000
"""Counters that one session adjusts; a processor has a handful."""

ID_CHARACTERS_MAX = 300
"""A uuid, `@`, and the name of a node: what is longer is none, and would stand in every line of the audit log."""

GENERATIONS_MAX = 1_000
EVENTS_MAX = 10_000
"""Of one page, or of one lineage."""

Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Millis = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
"""A duration that lasts."""

Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]
Label = Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]
"""A name, or none."""

Id = Annotated[str, Meta(max_length=ID_CHARACTERS_MAX)]
"""Of a handle or FlowFile, with the name of its node or without."""

Text = Annotated[str, Meta(max_length=TEXT_BYTES_MAX)]

LifetimeName = Literal["short", "default", "long"]
"""How long content is expected to live: what dies together should lie together."""


class ActionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What an action on one thing made of it."""

    id: str
    """The uuid of the handle, session or lease; the name of the queue."""

    state: Literal["live", "deleted", "open", "committed", "rolled back", "released", "revoked", "removed"]
    """What it is now."""


def field_texts(described: type) -> dict[str, str]:
    """What stands below each field of a class, by the field's name: pages and schemas say it again."""
    tree = _source(described.__module__)
    return _texts(next(each for each in ast.walk(tree) if getattr(each, "name", "") == described.__name__))


def module_texts(module: str) -> dict[str, str]:
    """What stands below each name that a module gives to something."""
    return _texts(_source(module))


def _texts(tree: ast.AST) -> dict[str, str]:
    found: dict[str, str] = {}
    for field, text in pairwise(getattr(tree, "body", ())):
        targets = [field.target] if isinstance(field, ast.AnnAssign) else getattr(field, "targets", [None])
        target = targets[0]
        if isinstance(target, ast.Name) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[target.id] = " ".join(str(text.value.value).split())
    return found


@lru_cache
def _source(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(sys.modules[module]))

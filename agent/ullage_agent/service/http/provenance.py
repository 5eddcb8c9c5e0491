"""The past: search, one event with its content, lineage, replay. `/v1/provenance`."""

from inspect import Parameter
from typing import Annotated, Any, get_type_hints

import msgspec
from litestar.params import QueryParameter

from ullage.embedded.content import ReadableContent
from ullage.embedded.rows import LazyRows
from ullage.enums import LineageDirection
from ullage.wire import operations
from ullage.wire.documents import GENERATIONS_MAX
from ullage.wire.provenance import Event, EventPage, EventQuery, Lineage, Replayability, ReplayResult
from ullage_agent.service.http.bodies import pair_of
from ullage_agent.service.http.resources import Asked, Page, answers, gives, serves
from ullage_agent.service.http.rows import RowsAnswer

Depth = Annotated[int, QueryParameter(ge=0, le=GENERATIONS_MAX)]

LISTS = {"types", "related", "attributes"}
"""Conditions that are said as often as needed; all others stand in the query as they stand in the document."""


def _condition(name: str, kind: Any) -> Parameter:
    for meta in getattr(kind, "__metadata__", ()):
        kind = Annotated[kind.__origin__, QueryParameter(ge=meta.ge, le=meta.le)]
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=getattr(EventQuery(), name))


KINDS = get_type_hints(EventQuery, include_extras=True).items()


@serves(operations.SEARCH_EVENTS, query=[_condition(name, kind) for name, kind in KINDS if name not in LISTS])
def search(
    asked: Asked,
    type: list[str] | None = None,
    related: list[str] | None = None,
    attribute: list[str] | None = None,
    **conditions: Any,
) -> RowsAnswer:
    attributes = dict(map(pair_of, attribute or ()))
    query = EventQuery(types=type or [], related=related or [], attributes=attributes, **conditions)
    return _with_events(*asked.repository.provenance.search_rows(query))


@gives(operations.GET_EVENT_CONTENT, blocks=True)
def content(asked: Asked, previous: bool = False) -> ReadableContent:
    return asked.repository.provenance.readable(asked["event"], previous=previous)


@serves(operations.CHECK_REPLAY)
def may_replay(asked: Asked, queue: str = "") -> Replayability:
    return asked.repository.provenance.replayability(asked["event"], queue)


@serves(operations.REPLAY_EVENT, once=True)
def replay(asked: Asked) -> ReplayResult:
    return asked.repository.provenance.replay(asked["event"], asked.data.queue, also=asked.remember)


@serves(operations.TRACE_LINEAGE)
def lineage(
    asked: Asked, way: LineageDirection = LineageDirection.BOTH, depth: Depth = 100, limit: Page = 1_000
) -> RowsAnswer:
    found = asked.repository.provenance.lineage_rows(asked["flow_file"], way=way, depth=depth, limit=limit)
    return _with_events(*found)


def _with_events(page: EventPage | Lineage, rows: LazyRows[Event]) -> RowsAnswer:
    return RowsAnswer(rows, lambda encoded: msgspec.structs.replace(page, events=encoded))


event = answers(operations.GET_EVENT, lambda asked: asked.repository.provenance.event(asked["event"]))

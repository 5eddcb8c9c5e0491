"""`/metrics` on a port of its own, with a policy of its own: whoever may read figures need not reach content."""

import asyncio
from typing import Any

from litestar.types import Receive, Scope, Send

from ullage.errors import Forbidden, NotFound, UllageError
from ullage.wire.needs import REFUSALS, SCRAPING
from ullage.wire.problems import problem_of
from ullage_agent.service.access import Authenticator, Principal, authorize_all, bearer
from ullage_agent.service.audit import Audit, reason_of
from ullage_agent.service.http.answers import answer
from ullage_agent.service.http.guard import foreign
from ullage_agent.service.metrics import Metrics

TEXT = b"text/plain; version=0.0.4; charset=utf-8"


class Scrape:
    """An ASGI application that answers GET /metrics, one at a time: a look costs a survey."""

    def __init__(
        self, metrics: Metrics, authenticator: Authenticator | None, audit: Audit, *, is_encrypted: bool
    ) -> None:
        """Without an authenticator nobody is asked who they are. `is_encrypted`: browsers ask for a certificate of the
        name that they think they ask, so that no other site's name leads here.
        """
        self._is_open = authenticator is None and not is_encrypted
        self._metrics = metrics
        self._authenticator = authenticator
        self._audit = audit
        self._one = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request: Any = scope
        client = (request.get("client") or ("",))[0]
        known: list[Principal] = []
        try:
            if request["path"] != "/metrics" or request["method"] not in ("GET", "HEAD"):
                raise NotFound("only GET /metrics is answered here")
            headers = dict(request["headers"])
            if reason := foreign(request["method"], headers, is_open=self._is_open):
                raise Forbidden(reason)
            await asyncio.to_thread(self._admit, headers.get(b"authorization"), client, known)
            async with self._one:
                body = await asyncio.to_thread(self._metrics.text)
            await answer(send, 200, TEXT, body)
        except UllageError as error:
            if isinstance(error, REFUSALS):
                who = known[0].name if known else ""
                self._audit.note(
                    who=who, via="metrics", peer=client, operation="GET /metrics", allowed=False, why=reason_of(error)
                )
            problem = problem_of(error)
            await answer(send, problem.status, b"text/plain; charset=utf-8", problem.detail.encode() + b"\n")

    def _admit(self, header: bytes | None, client: str, known: list[Principal]) -> None:
        """Whoever is known by then is put into `known`, also if they may not."""
        if self._authenticator is not None:
            token = bearer(None if header is None else header.decode("latin-1"))
            known.append(self._authenticator.authenticate(token, client))
            authorize_all(self._authenticator, known[0], SCRAPING)

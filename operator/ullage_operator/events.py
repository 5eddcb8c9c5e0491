"""Kubernetes Events, told once: the same again only after a while. They are news, never state."""

import hashlib
from typing import Any

import structlog

from ullage_operator.api import MANAGER, Api
from ullage_operator.errors import OperatorError
from ullage_operator.times import text_of

REMEMBERED_MAX = 10_000


class Teller:
    """Remembers what it told."""

    def __init__(self, api: Api, repeat_seconds: int) -> None:
        self._api = api
        self._repeat_millis = repeat_seconds * 1000
        self._told: dict[tuple[str, str, str], int] = {}

    async def tell(self, about: dict[str, Any], now_millis: int, news: tuple[str, str, str]) -> None:
        """One event about an object; a failure to tell it is logged, and no more."""
        kind, reason, message = news
        key = (about["uid"], reason, message)
        if now_millis - self._told.get(key, -self._repeat_millis) < self._repeat_millis:
            return
        if len(self._told) >= REMEMBERED_MAX:
            self._told.clear()
        self._told[key] = now_millis
        digest = hashlib.sha256(repr((*key, now_millis)).encode()).hexdigest()[:16]
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{about['name']}.{digest}"[:253], "namespace": about["namespace"]},
            "involvedObject": about,
            "reason": reason,
            "message": message,
            "type": kind,
            "count": 1,
            "firstTimestamp": text_of(now_millis),
            "lastTimestamp": text_of(now_millis),
            "source": {"component": MANAGER},
            "reportingComponent": MANAGER,
        }
        try:
            await self._api.create(event)
        except OperatorError as error:
            structlog.get_logger("events").warning("event not told", problem=str(error), reason=reason)

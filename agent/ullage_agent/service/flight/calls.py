"""One call over Flight: who makes it, and what the audit log is to say of it."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from pyarrow import flight

from ullage.contract import Right
from ullage.embedded.bulk import ContentSink
from ullage.errors import Forbidden, UllageError
from ullage.interface.values import CheckedAttributes
from ullage.uuids import format_uuid
from ullage.wire.needs import is_audited
from ullage.wire.problems import problem_of
from ullage_agent.service.access import Principal
from ullage_agent.service.audit import IDS_MAX, Audit

ACCESS: Final = "access"
"""The middleware that knows who makes a call."""


class Admitted(flight.ServerMiddleware):  # type: ignore[misc]
    """Who makes this call."""

    def __init__(self, principal: Principal) -> None:
        self.principal = principal


class FlightCall:
    """See the module's text. What is put into its fields meanwhile stands in its line."""

    def __init__(self, audit: Audit, context: Any, rights: Sequence[Right], name: str, about: bytes) -> None:
        self.principal: Principal = context.get_middleware(ACCESS).principal
        self.rights = rights
        self.ids: Sequence[str] = []
        self.bytes = 0
        self.is_stream = False
        """What the call answers comes when it has ended, and is noted then."""

        self._audit = audit
        self._peer = context.peer()
        self._name = name
        self._about = (about or b"").decode(errors="replace")

    @contextmanager
    def noted(self, *, is_begin: bool = False) -> Iterator[None]:
        """Leave a line at the end, of what is to leave one."""
        try:
            yield
        except BaseException as error:
            if is_audited(self.rights) or isinstance(error, Forbidden):
                slug = problem_of(error).slug if isinstance(error, UllageError) else type(error).__name__
                self._note(allowed=False, why=f"{slug}: {error}")
            raise
        if is_audited(self.rights) and not (is_begin and self.is_stream):
            self._note(allowed=True)

    def _note(self, **said: Any) -> None:
        self._audit.note(
            who=self.principal.name,
            via="Flight",
            peer=self._peer,
            operation=self._name,
            about=self._about,
            ids=self.ids,
            bytes=self.bytes,
            **said,
        )


class CountedSink:
    """A sink whose contents are counted, and named, in the line of their call."""

    def __init__(self, sink: ContentSink, call: FlightCall) -> None:
        self._sink = sink
        self._call = call
        self._ids: list[str] = []
        call.ids = self._ids

    def batch(self, contents: list[bytes], attributes: CheckedAttributes) -> list[bytes]:
        """See `ContentSink`."""
        stored = self._sink.batch(contents, attributes)
        self._count(stored, sum(map(len, contents)))
        return stored

    def stream(self, pieces: Iterable[bytes], attributes: dict[str, str]) -> bytes:
        """See `ContentSink`."""
        stored = self._sink.stream(self._counted(pieces), attributes)
        self._count([stored], 0)
        return stored

    def _counted(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._call.bytes += len(piece)
            yield piece

    def _count(self, stored: Sequence[bytes], size: int) -> None:
        self._call.bytes += size
        self._ids += map(format_uuid, stored[: max(0, IDS_MAX + 1 - len(self._ids))])

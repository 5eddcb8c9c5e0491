"""What the audit log is to say of a call over Flight."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ullage.contract import Right
from ullage.embedded.bulk import ContentSink
from ullage.interface.values import CheckedAttributes
from ullage.wire.needs import REFUSALS, is_audited
from ullage_agent.service.audit import IDS_MAX, Audit, Ids, reason_of
from ullage_agent.service.flight.calls import CallEnded, FlightCall


class Note:
    """The line of one call. What is put into its fields while the call lasts stands in it."""

    def __init__(self, audit: Audit, call: FlightCall, name: str) -> None:
        self.operation = name
        self.rights: Sequence[Right] = ()
        self.about = b""
        self.ids: Ids = []
        self.bytes = 0
        self._audit = audit
        self._call = call
        self.whole: Note | None = None
        self.has_parts = False
        self.told: BaseException | None = None
        """Why a part has failed: its line says so already."""

    def part(self, about: bytes) -> "Note":
        """Of an operation by itself within the call. What the call did beside its parts stands in the call's line."""
        part = Note(self._audit, self._call, self.operation)
        part.rights, part.about, part.whole = self.rights, about, self
        self.has_parts = True
        return part

    def count(self, size: int) -> None:
        """So many bytes more have gone to the client, or come from it."""
        self.bytes += size

    @contextmanager
    def left(self) -> Iterator[None]:
        """Leave the line at the end, of what is to leave one."""
        try:
            yield
        except CallEnded:
            self._leave_rest("the client ended it")
            raise
        except BaseException as error:
            if error is not self.told:
                why = reason_of(error) if isinstance(error, Exception) else type(error).__name__
                self._leave(allowed=False, why=why, is_certain=isinstance(error, REFUSALS))
            if self.whole is not None:
                self.whole.told = error
            raise
        self._leave_rest()

    def _leave_rest(self, why: str = "") -> None:
        """The line of what went well, unless everything stands in those of its parts."""
        if not self.has_parts or self.bytes or self.ids:
            self._leave(allowed=True, why=why)

    def _leave(self, *, is_certain: bool = False, **said: Any) -> None:
        if is_certain or is_audited(self.rights):
            self._audit.note(
                who=self._call.principal.name,
                via="Flight",
                peer=self._call.peer,
                operation=self.operation,
                about=self.about.decode(errors="replace"),
                ids=self.ids,
                bytes=self.bytes,
                **said,
            )


class CountedSink:
    """A sink whose contents are counted, and named, in the line of their call."""

    def __init__(self, sink: ContentSink, note: Note) -> None:
        self._sink = sink
        self._note = note
        self._ids: list[bytes] = []
        note.ids = self._ids

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
            self._note.count(len(piece))
            yield piece

    def _count(self, stored: Sequence[bytes], size: int) -> None:
        self._note.count(size)
        self._ids += stored[: max(0, IDS_MAX + 1 - len(self._ids))]

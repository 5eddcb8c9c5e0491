"""What a session was before the request under way, which is refused as a whole or carried out as a whole."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy

from ullage.engine.provenance.reporter import ProvenanceReporter
from ullage.engine.working import Working
from ullage.sessionroom import SessionRoom


class Undoing:
    """That of one session; nothing is kept unless a request is under way."""

    def __init__(self, room: SessionRoom, reporter: ProvenanceReporter) -> None:
        self._room = room
        self._reporter = reporter
        self._before: dict[bytes, Working] | None = None

    def note(self, working: Working) -> None:
        """A FlowFile is looked up, and may be changed."""
        before = self._before
        if before is not None and working.current.uuid not in before:
            before[working.current.uuid] = copy(working)

    def forget(self) -> None:
        """The session is empty, and stays so."""
        self._before = None

    @contextmanager
    def as_a_whole(self, workings: dict[bytes, Working], counters: dict[str, int]) -> Iterator[None]:
        """See `ProcessSession.as_a_whole`, of which these are what it holds and counts."""
        before = self._before = {}
        count, counted, reports = len(workings), dict(counters), len(self._reporter.pending)
        mark = self._room.begin_request()
        try:
            yield
        except BaseException:
            if self._before is before:
                workings.update(before)
                for uuid in list(workings)[count:]:  # nobody would know of those that were created
                    del workings[uuid]
                counters.clear()
                counters.update(counted)
                self._reporter.forget_from(reports)
                self._room.go_back(mark)
            raise
        finally:
            self._before = None
            self._room.end_request()

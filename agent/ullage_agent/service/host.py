"""One open repository with its maintenance, from one ContentRepository document. It knows no transport.

start    open (or make) the repository, begin its maintenance
reload   take over what an open repository can change; refuse the rest by name, and change nothing then
stop     end maintenance, publish a checkpoint, release the lock
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ullage_agent.contract import ContentRepository, ContentRepositorySpec, dump
from ullage_agent.engine.clock import Clock, SystemClock
from ullage_agent.engine.errors import NotARepository, SessionMisuse
from ullage_agent.engine.files import Files
from ullage_agent.engine.maintenance import Maintenance
from ullage_agent.engine.repository import Repository
from ullage_agent.service.errors import ReloadRefused
from ullage_agent.windows import Calendar

LIVE: Final = (
    "archive",
    "claims",
    "compaction",
    "flowFile.checkpointInterval",
    "flowFile.checkpointLogSize",
    "flowFile.queueDefaults",
    "flowFile.walMaxBytes",
    "leases",
    "maintenance",
    "service.maxRequestBytes",
    "truncation",
)
"""Fields of the spec that can change while the repository is open, with all that lies below them."""

FIXED: Final = ("compaction.deletedRetention", "compaction.outputSize")
"""Exceptions below those: when a handle goes is decided when it is deleted, and outputs may be half written."""

Failure = Callable[[str, Exception], None]


class Host:
    """See the module's text. Thread-safe; `repository` is open between `start` and `stop`."""

    def __init__(
        self,
        document: ContentRepository,
        *,
        clock: Clock | None = None,
        files: Files | None = None,
        on_failure: Failure = lambda _task, _error: None,
    ) -> None:
        self.document = document
        self.clock = clock or SystemClock()
        self._files = files
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._repository: Repository | None = None
        self._maintenance: Maintenance | None = None

    @property
    def spec(self) -> ContentRepositorySpec:
        return self.document.spec

    @property
    def repository(self) -> Repository:
        """The open repository."""
        assert self._repository is not None, "the host was not started, or is stopped"
        return self._repository

    @property
    def is_open(self) -> bool:
        return self._repository is not None

    @property
    def is_ready(self) -> bool:
        """Whether commits can succeed: open, and not stopped by a failure."""
        return self._repository is not None and self._repository.log.is_running

    @property
    def failures(self) -> list[tuple[str, Exception]]:
        """What maintenance could not do lately, newest last."""
        return [] if self._maintenance is None else list(self._maintenance.failures)

    def start(self, *, makes: bool = False) -> None:
        """Open and recover; with `makes` an empty repository is made where there is none. Raises as the engine does."""
        with self._lock:
            try:
                repository = Repository.open(self.spec, self._files, self.clock)
            except NotARepository:
                if not makes:
                    raise
                Repository.initialize(self.spec, self._files, self.clock)
                repository = Repository.open(self.spec, self._files, self.clock)
            self._repository = repository
            repository.reclamation.permission = Calendar(self.spec.maintenance).permission
            self._maintain(repository)

    def reload(self, document: ContentRepository) -> tuple[str, ...]:
        """Take over a changed document; the paths that changed. ReloadRefused, nothing done, if one of them can't."""
        with self._lock:
            changed = tuple(changed_fields(self.document, document))
            if refused := [path for path in changed if not is_live(path)]:
                raise ReloadRefused(
                    f"{', '.join(refused)}: cannot change while the repository is open; restart to apply it. Nothing "
                    "else of the new settings was applied either"
                )
            if changed and self._repository is not None:
                try:
                    self._repository.adopt(document.spec)
                except SessionMisuse as error:
                    raise ReloadRefused(f"{error}; nothing of the new settings was applied") from error
                if document.spec.maintenance != self.spec.maintenance:  # it takes back what the old windows granted
                    self._repository.reclamation.permission = Calendar(document.spec.maintenance).permission
                self._end_maintenance()
                self._maintain(self._repository)
            self.document = document
            return changed

    def stop(self) -> None:
        """End maintenance, checkpoint so that the next start has nothing to replay, close. Safe to call twice."""
        with self._lock:
            self._end_maintenance()
            repository, self._repository = self._repository, None
        if repository is None:
            return
        try:
            if repository.log.is_running:
                repository.checkpoint()
        finally:
            repository.close()

    def _maintain(self, repository: Repository) -> None:
        self._maintenance = Maintenance(repository, self._on_failure)
        self._maintenance.start()

    def _end_maintenance(self) -> None:
        maintenance, self._maintenance = self._maintenance, None
        if maintenance is not None:
            maintenance.stop()


def is_live(path: str) -> bool:
    """Whether the field can change while the repository is open."""
    return _lies_in(path, LIVE) and not _lies_in(path, FIXED)


def changed_fields(before: ContentRepository, after: ContentRepository) -> Iterator[str]:
    """The fields in which two documents differ, below `spec`; a list counts as one field."""
    if before.metadata != after.metadata:
        yield "metadata"
    yield from _differences(dump(before)["spec"], dump(after)["spec"], "")


def _differences(before: Mapping[str, Any], after: Mapping[str, Any], path: str) -> Iterator[str]:
    for name in sorted({*before, *after}):
        one, other = before.get(name), after.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            yield from _differences(one, other, f"{path}{name}.")
        elif one != other:
            yield f"{path}{name}"


def _lies_in(path: str, fields: tuple[str, ...]) -> bool:
    return any(path == field or path.startswith(f"{field}.") for field in fields)

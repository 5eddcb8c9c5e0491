"""One open repository with its maintenance, from one ContentRepository document. It knows no transport.

start    open (or make) the repository, begin its maintenance
reload   take over what an open repository can change; refuse the rest by name, and change nothing then
stop     end maintenance, publish a checkpoint, release the lock
"""

import gc
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ullage.clock import Clock
from ullage.contract import (
    Calendar,
    ContentRepository,
    ContentRepositorySpec,
    MaintenanceSettings,
    PermissionFor,
    dump,
    needs_no_restart,
)
from ullage.embedded.repository import EmbeddedRepository, Files, open_embedded
from ullage.errors import UnknownPlugin
from ullage_agent.service.errors import ReloadRefused

Failure = Callable[[str, Exception], None]
PermissionOf = Callable[[MaintenanceSettings], PermissionFor]
"""Who says when reclamation may run: the windows, or in a cluster also tickets."""


def windows_alone(maintenance: MaintenanceSettings) -> PermissionFor:
    """What holds outside of a cluster."""
    return Calendar(maintenance).permission


class Host:
    """See the module's text. Thread-safe; `repository` is open between `start` and `stop`."""

    def __init__(
        self,
        document: ContentRepository,
        *,
        node: str = "",
        clock: Clock | None = None,
        files: Files | None = None,
        on_failure: Failure = lambda _task, _error: None,
        permission: PermissionOf = windows_alone,
    ) -> None:
        self.document = document
        self.clock = clock or Clock()
        self._node = node
        self._files = files
        self._on_failure = on_failure
        self._permission = permission
        self._lock = threading.Lock()
        self._repository: EmbeddedRepository | None = None
        self.settings_problem = ""
        """Why the latest settings can't be read or obeyed by this program, as whoever reloads them found; empty if they
        can."""

    @property
    def spec(self) -> ContentRepositorySpec:
        return self.document.spec

    @property
    def repository(self) -> EmbeddedRepository:
        """The open repository."""
        assert self._repository is not None, "the host was not started, or is stopped"
        return self._repository

    @property
    def is_open(self) -> bool:
        return self._repository is not None

    @property
    def is_ready(self) -> bool:
        """Whether commits can succeed: open, not stopped by a failure, and nobody else has the repository or may have
        it. One that can only be read is not ready: a Service leads to it for everything, or not at all.
        """
        return self._repository is not None and self._repository.is_ready and self._repository.acting.right.is_given

    def start(self, *, makes: bool = False) -> None:
        """Open and recover; with `makes` an empty repository is made where there is none. Raises as the engine does."""
        with self._lock:
            self._repository = open_embedded(
                None,
                self.document,
                create=makes,
                maintain=True,
                on_failure=self._on_failure,
                permission=self._permission(self.spec.maintenance),
                node=self._node,
                files=self._files,
                clock=self.clock,
            )
            # What was loaded stays. With a million FlowFiles a full collection, in which no thread runs, takes 45 ms
            # more without this: the slowest of 300 batches of updates then 55 ms, else 15. Only the process may say so.
            gc.freeze()

    def reload(self, document: ContentRepository) -> tuple[str, ...]:
        """Take over a changed document; the paths that changed. ReloadRefused, nothing done, if one of them can't."""
        with self._lock:
            changed = tuple(changed_fields(self.document, document))
            if refused := [path for path in changed if not needs_no_restart(path)]:
                raise ReloadRefused(
                    f"{', '.join(refused)}: cannot change while the repository is open; restart to apply it. Nothing "
                    "else of the new settings was applied either"
                )
            if changed and self._repository is not None:
                settings = document.spec.maintenance
                permission = None if settings == self.spec.maintenance else self._permission(settings)
                try:
                    self._repository.adopt(document.spec, permission)
                except UnknownPlugin as error:
                    raise ReloadRefused(f"{error}; nothing of the new settings was applied") from error
            self.document = document
            return changed

    def stop(self) -> None:
        """End maintenance, checkpoint so that the next start has nothing to replay, close. Safe to call twice."""
        with self._lock:
            repository, self._repository = self._repository, None
        if repository is not None:
            try:
                repository.close()
            finally:
                gc.unfreeze()  # or a process that starts again would keep every repository it had


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

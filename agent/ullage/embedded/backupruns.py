"""Backups that are written or looked at: how far each is, who asked for it, and what came of the last ones.

Whoever has the repository open works in their own thread, as long as it takes; a service gives each a thread of its
own, answers at once, and is asked how far it is.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal, TypeVar

import msgspec

from ullage.clock import Clock
from ullage.engine.backuptally import Progress, Tally
from ullage.engine.model import format_uuid, new_uuids
from ullage.engine.uninterrupted import uninterrupted
from ullage.errors import BackupStopped, KeyReused, NotFound, RunUnderWay, UllageError
from ullage.wire.problems import problem_of
from ullage.wire.upkeep import BackupProgress, BackupReport, BackupVerification

Result = TypeVar("Result", bound=BackupReport | BackupVerification)
Work = Callable[[Progress], BackupReport | BackupVerification]
BackupAction = Literal["write", "verify"]

BACKUPS_KEPT: Final = 20
"""What has ended and is remembered."""


class BackupRun:
    """One: in `progress` how far it is."""

    def __init__(self, progress: BackupProgress, key: str | None) -> None:
        self.progress = progress
        self.key = key
        self.error: BaseException | None = None
        self.stop = threading.Event()
        self.over = threading.Event()

    @property
    def outcome(self) -> str:
        """Done, stopped or failed, once it is over."""
        return "done" if self.error is None else "stopped" if isinstance(self.error, BackupStopped) else "failed"

    def note(self, **known: object) -> None:
        """What is known now; the thread that carries it out says it."""
        self.progress = msgspec.structs.replace(self.progress, **known)

    def reach(self, tally: Tally) -> None:
        """It is so far. BackupStopped: it is to go no further."""
        self.note(**tally._asdict())
        if self.stop.is_set():
            raise BackupStopped(
                f"this was stopped with {tally.files_done:,} of {tally.files:,} files done: of a backup the last one "
                "counts, and the next goes on where this one was"
            )


class BackupRuns:
    """Those of a repository that go on, and the last ones. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: list[BackupRun] = []
        self._threads: dict[BackupAction, threading.Thread] = {}
        self._listeners: list[Callable[[BackupRun], None]] = []

    def hear(self, listener: Callable[[BackupRun], None]) -> None:
        """From now on it is told of each that has ended."""
        self._listeners.append(listener)

    def here(self, action: BackupAction, owner: str, place: str, work: Callable[[Progress], Result]) -> Result:
        """Carry one out in this thread; errors are those of the work."""
        with self._lock:
            run = self._add(action, owner, place, None)
        return self._carry_out(run, work)

    @uninterrupted  # or one that nobody carries out may be under way for ever
    def begin(self, action: BackupAction, owner: str, place: str, work: Work, key: str | None = None) -> BackupRun:
        """Start one, or find the one that was started with this key. RunUnderWay: another one of its kind goes on."""
        with self._lock:
            for run in self._runs if key is not None else ():
                if (run.progress.owner, run.key) == (owner, key):
                    if (run.progress.action, run.progress.place) != (action, place):
                        raise KeyReused(f"idempotency key {key} was used for {run.progress.id}, which is another run")
                    return run
            for run in self._runs:
                found = run.progress
                if found.action == action and not run.over.is_set():
                    raise RunUnderWay(
                        f"{'a backup to' if action == 'write' else 'a verification of'} {found.place} is under way, "
                        f"{found.id} of {found.owner}: wait, or stop it"
                    )
            run = self._add(action, owner, place, key)

            def carry_out() -> None:
                with suppress(Exception):  # it is kept in the run, where whoever asked finds it
                    self._carry_out(run, work)

            thread = threading.Thread(target=carry_out, name=f"ullage-backup-{action}", daemon=True)
            try:
                thread.start()  # RuntimeError: there are too many
            except RuntimeError:
                self._runs.remove(run)
                raise
            self._threads[action] = thread
            return run

    def all(self) -> list[BackupRun]:
        """Those that are remembered, oldest first."""
        with self._lock:
            return list(self._runs)

    def find(self, id: str) -> BackupRun:
        """One of them; NotFound."""
        for run in self.all():
            if run.progress.id == id:
                return run
        raise NotFound(f"there is no backup run {id}: only the last few are remembered, and none beyond a restart")

    def close(self) -> None:
        """Stop what goes on after the file that is under way, and wait for what has a thread of its own."""
        for run in self.all():
            run.stop.set()
        for thread in list(self._threads.values()):
            thread.join()

    def _add(self, action: BackupAction, owner: str, place: str, key: str | None) -> BackupRun:
        progress = BackupProgress(
            id=format_uuid(new_uuids(1)[0]),
            action=action,
            owner=owner,
            place=place,
            began_millis=self._clock.now_millis(),
        )
        run = BackupRun(progress, key)
        ended = [each for each in self._runs if each.over.is_set()]
        for each in ended[: max(0, len(ended) - BACKUPS_KEPT + 1)]:
            self._runs.remove(each)
        self._runs.append(run)
        return run

    def _carry_out(self, run: BackupRun, work: Callable[[Progress], Result]) -> Result:
        try:
            result = work(run.reach)
            run.note(**{"report" if isinstance(result, BackupReport) else "found": result})
            return result
        except BaseException as error:
            run.error = error
            # What went wrong unforeseen is only named: it may tell more than it should.
            text = str(error) if isinstance(error, UllageError) else type(error).__name__
            run.note(problem=text, slug=problem_of(error).slug if isinstance(error, Exception) else "unexpected")
            raise
        finally:
            run.note(ended_millis=self._clock.now_millis())
            run.over.set()
            for listener in self._listeners:
                listener(run)

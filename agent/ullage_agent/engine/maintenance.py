"""What a repository does on its own: checkpoints, cleaning, truncation, expiration and purging, each when it is due.

`run_due` does everything that is due now and can be driven by any scheduler, or by a test's clock; `start` drives it
from a thread. A failure is kept in `failures` and handed to `on_failure`; the task is tried again when it is next due.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from ullage_agent.engine.repository import Repository

EXPIRATION_FREQUENCY_SECONDS = 60.0
"""How often expired FlowFiles and handles are looked for; polls find expired ones by themselves."""

SWAP_FREQUENCY_SECONDS = 60.0
"""How often swapping out is tried again where it failed; each arrival in such a queue tries it too."""

TICK_SECONDS = 1.0
"""How often the thread looks whether something is due."""

FAILURES_KEPT = 100
"""Failures remembered, newest last."""


@dataclass(slots=True)
class Task:
    """One periodic duty."""

    name: str
    frequency_seconds: float
    run: Callable[[], object]
    due: float
    failed: bool = False


class Maintenance:
    """The periodic work of one open repository."""

    def __init__(self, repository: Repository, on_failure: Callable[[str, Exception], None] | None = None) -> None:
        spec = repository.spec
        now = repository.clock.monotonic()
        self._repository = repository
        self._on_failure = on_failure
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.failures: list[tuple[str, Exception]] = []
        plan = [
            ("checkpoint", spec.flow_file.checkpoint_interval.seconds, self._checkpoint),
            ("clean", spec.archive.cleanup_frequency.seconds, repository.reclamation.clean),
            ("truncate", spec.truncation.frequency.seconds, repository.reclamation.truncate),
            ("swap", SWAP_FREQUENCY_SECONDS, repository.queues.swap_out_all),
            ("expire", EXPIRATION_FREQUENCY_SECONDS, repository.queues.expire),
            ("purge", EXPIRATION_FREQUENCY_SECONDS, repository.handles.purge),
            ("provenance", TICK_SECONDS, repository.provenance.step),
            ("index", TICK_SECONDS, repository.history.index_step),
        ]
        self._tasks = [Task(name, frequency, run, now + frequency) for name, frequency, run in plan]

    def run_due(self) -> list[str]:
        """Run what is due and return the names; a checkpoint is also due when the log has grown past its size.

        Not so after one that failed: writing a whole snapshot every second would not help a full disk.
        """
        now = self._repository.clock.monotonic()
        ran: list[str] = []
        for task in self._tasks:
            if now >= task.due or (task.name == "checkpoint" and not task.failed and self._is_log_large()):
                task.due = now + task.frequency_seconds
                ran.append(task.name)
                self._run(task)
        return ran

    def start(self) -> None:
        """Run what is due from a thread of its own, until `stop`; may be started again after it."""
        if self._thread is not None:
            return
        self._stop.clear()
        self._thread = threading.Thread(target=self._loop, name="ullage-maintenance", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the task it is in."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _loop(self) -> None:
        while not self._stop.wait(TICK_SECONDS):
            self.run_due()

    def _run(self, task: Task) -> None:
        task.failed = True
        try:
            task.run()
        except Exception as error:  # noqa: BLE001 - a task that fails in an unforeseen way must not end the others
            self.failures.append((task.name, error))
            del self.failures[:-FAILURES_KEPT]
            if self._on_failure is not None:
                self._on_failure(task.name, error)
        else:
            task.failed = False

    def _checkpoint(self) -> None:
        """Nothing new since the last one: no checkpoint."""
        if self._repository.log.last_id > self._repository.log.snapshot_id:
            self._repository.checkpoint()

    def _is_log_large(self) -> bool:
        return self._repository.log.log_bytes >= self._repository.spec.flow_file.checkpoint_log_size

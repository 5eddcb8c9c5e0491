"""What a repository does on its own: checkpoints, cleaning, truncation, compaction, expiration, each when it is due.

`run_due` does everything that is due now and can be driven by any scheduler, or by a test's clock; `start` drives it
from two threads: one for compaction, which may take hours, and one for all that must not wait for it. A failure is kept
in `failures` and handed to `on_failure`; the task is tried again when it is next due.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

from ullage.contract import CompactionTrigger
from ullage.engine.engine import Engine
from ullage.engine.ledger.blockruns import STEP_BYTES
from ullage.engine.reclaim.goalkeeper import LOOK_SECONDS
from ullage.engine.reclaim.returns import TaskTime
from ullage.errors import NodeFenced

EXPIRATION_FREQUENCY_SECONDS = 60.0
"""How often expired FlowFiles and handles are looked for; polls find expired ones by themselves."""

SWAP_FREQUENCY_SECONDS = 60.0
"""How often swapping out is tried again where it failed; each arrival in such a queue tries it too."""

REMEMBERED_MILLIS = 86_400_000
"""Age at which a snapshot is written anew where nothing happens."""

TICK_SECONDS = 1.0
"""How often the thread looks whether something is due."""

FAILURES_KEPT = 100
"""Failures remembered, newest last."""


@dataclass(slots=True)
class Task:
    """One periodic duty. `behind` is by how many seconds the latest of its runs began late, or ended where none takes
    long, and the time between two looks at what is due.
    """

    name: str
    frequency_seconds: float
    run: Callable[[], object]
    due: float
    is_heavy: bool = False
    failed: bool = False
    is_running: bool = False
    behind: float = TICK_SECONDS


class MaintenanceRunner:
    """The periodic work of one open repository; `failures` are the tasks that failed lately, newest last."""

    def __init__(self, repository: Engine, on_failure: Callable[[str, Exception], None] | None = None) -> None:
        spec = repository.spec
        now = repository.clock.monotonic()
        self._repository = repository
        self._on_failure = on_failure
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self.failures: list[tuple[str, Exception]] = []
        plan: list[tuple[str, float, Callable[[], object]]] = [
            ("checkpoint", spec.flow_file.checkpoint_interval.seconds, self._checkpoint),
            ("clock", EXPIRATION_FREQUENCY_SECONDS, repository.clock.look),
            ("clean", spec.archive.cleanup_frequency.seconds, repository.reclamation.clean),
            ("truncate", spec.truncation.frequency.seconds, repository.reclamation.truncate),
            ("volumes", TICK_SECONDS, repository.volumes.look),
            ("forgotten", TICK_SECONDS, repository.forgotten.tend),
            ("swap", SWAP_FREQUENCY_SECONDS, repository.queues.swap_out_all),
            ("expire", EXPIRATION_FREQUENCY_SECONDS, repository.queues.expire),
            ("proof", TICK_SECONDS, repository.proof.step),
            ("swap proof", TICK_SECONDS, repository.swap_proof.step),
            ("orphans", EXPIRATION_FREQUENCY_SECONDS, repository.reclamation.tend_orphans),
            ("purge", EXPIRATION_FREQUENCY_SECONDS, self._purge),
            ("provenance", TICK_SECONDS, repository.provenance.step),
            ("index", TICK_SECONDS, repository.provenance.index_step),
            ("merge", TICK_SECONDS, self._merge),
            ("pack", TICK_SECONDS, repository.ledger.pack),
        ]
        self._tasks = [Task(name, frequency, run, now + frequency) for name, frequency, run in plan]
        # Also at start: what died before the last end may be much.
        often = LOOK_SECONDS if spec.compaction.goal.is_set else spec.compaction.check_frequency.seconds
        self._tasks.append(Task("compact", often, self._compact, now, is_heavy=True))
        repository.account.times = self.times

    def times(self) -> dict[str, TaskTime]:
        """When each task is due, in milliseconds since 1970, and how often: for who asks when dead bytes come back."""
        clock = self._repository.clock
        ahead = clock.now_millis() - clock.monotonic() * 1000
        return {
            task.name: TaskTime(
                math.floor(task.due * 1000 + ahead),
                max(1, round(task.frequency_seconds * 1000)),
                math.ceil(task.behind * 1000),
                task.is_running,
            )
            for task in self._tasks
        }

    def run_due(self, *, is_heavy: bool | None = None) -> list[str]:
        """Run what is due and return the names; a checkpoint is also due when the log has grown past its size.

        Not so after one that failed: writing a whole snapshot every second would not help a full disk. `is_heavy`
        chooses among the tasks; None: all.
        """
        now = self._repository.clock.monotonic()
        ran: list[str] = []
        for task in self._tasks:
            if is_heavy is not None and task.is_heavy != is_heavy:
                continue
            if now >= task.due or (task.name == "checkpoint" and not task.failed and self._is_log_large()):
                was_due = task.due
                task.due = now + task.frequency_seconds
                ran.append(task.name)
                self._run(task, was_due)
        return ran

    def start(self) -> None:
        """Run what is due from threads of its own, until `stop`; may be started again after it."""
        if self._threads:
            return
        self._stop.clear()
        for name, is_heavy in (("ullage-maintenance", False), ("ullage-compaction", True)):
            thread = threading.Thread(target=self._loop, args=(is_heavy,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """End the threads after the tasks they are in; a compaction stops at its next step."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._threads = []
        if self._repository.account.times == self.times:
            self._repository.account.times = dict  # from now on nothing happens by itself

    def renewed(self) -> "MaintenanceRunner":
        """The same for the settings that are in force now, begun; this one is over."""
        self.stop()
        renewed = MaintenanceRunner(self._repository, self._on_failure)
        renewed.start()
        return renewed

    def _loop(self, is_heavy: bool) -> None:
        while not self._stop.wait(TICK_SECONDS):
            self.run_due(is_heavy=is_heavy)

    def _run(self, task: Task, due: float) -> None:
        task.failed = task.is_running = True
        clock = self._repository.clock
        behind = max(0.0, clock.monotonic() - due)
        try:
            task.run()
        except NodeFenced:
            pass  # nothing expires here any more, and no space is short of that: who was fenced is told elsewhere, once
        except Exception as error:  # noqa: BLE001 - a task that fails in an unforeseen way must not end the others
            with self._lock:
                self.failures.append((task.name, error))
                del self.failures[:-FAILURES_KEPT]
            if self._on_failure is not None:
                self._on_failure(task.name, error)
            _forget_frames(error)
        else:
            task.failed = False
            if not task.is_heavy:
                behind = max(0.0, clock.monotonic() - due)
        finally:
            task.is_running = False
            task.behind = max(behind + TICK_SECONDS, task.behind)

    def _compact(self) -> None:
        """As spec.compaction allows; `stop` takes the ticket back."""
        ticket = self._repository.reclamation.ticket(is_revoked=self._stop.is_set)
        self._repository.compactor.run(CompactionTrigger.PERIODIC, ticket)

    def _merge(self) -> None:
        """A step of it, which reads and writes; compaction has the same disk's rest."""
        rate = int(self._repository.spec.compaction.bytes_per_second)
        count = max(1, rate // 2) if rate else STEP_BYTES
        if not self._repository.spaces.blocks.merge_step(count):
            self._repository.spaces.handles.merge_step(count)

    def _purge(self) -> None:
        self._repository.leases.purge()
        self._repository.idempotency.forget()
        self._repository.handles.purge()
        self._repository.staging.expire()
        self._repository.feeds.expire()

    def _checkpoint(self) -> None:
        """Nothing new since the last one: no checkpoint, but for one a day, which says what time it is: the next start
        would not believe the clock if nothing had been committed for a month.
        """
        log = self._repository.log
        age = self._repository.clock.now_millis() - log.snapshot_millis
        is_full = self._repository.ledger.blocks.is_large  # with what reads have worked out
        if log.last_id > log.snapshot_id or is_full or age >= REMEMBERED_MILLIS:
            self._repository.checkpoint()

    def _is_log_large(self) -> bool:
        """Or what leaves memory fills its share of it: a checkpoint takes it out."""
        repository = self._repository
        is_large = repository.log.log_bytes >= repository.spec.flow_file.checkpoint_log_size
        return is_large or repository.ledger.answers.is_large or repository.ledger.blocks.is_large


def _forget_frames(error: BaseException | None) -> None:
    """What is kept of a failure is its words: its frames would keep all that they know, shards of the index too, whose
    files are closed when nobody knows them any more.
    """
    seen: set[BaseException] = set()  # one that was raised again can be its own context
    while error is not None and error not in seen:
        seen.add(error)
        error.__traceback__ = None
        error = error.__cause__ or error.__context__

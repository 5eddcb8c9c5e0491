"""The audit log: one JSON line for whatever read content, changed or deleted something, administered, or was refused.

    audit/audit.jsonl                     what is written now
    audit/audit-<millis>-<n>.jsonl        what was before, up to a number of files; the oldest goes first
    audit/unknown.jsonl, unknown-...      the same of those that nobody knows, in as few files as there can be

A stranger who is refused again and again would drive what everybody else did out of files that they shared.

Lines are handed over without waiting, and written by a thread. What cannot be written waits, and once too much waits,
lines are lost: that is counted, logged, and said in the log itself as soon as it can be written again.
"""

import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol, cast

import msgspec

from ullage.clock import Clock, moment_of
from ullage.contract import AuditSettings
from ullage.errors import UllageError
from ullage.uuids import format_uuids
from ullage.wire.documents import ID_CHARACTERS_MAX
from ullage.wire.problems import problem_of

FOLDER: Final = "audit"
"""In the repository's root."""

KNOWN: Final = "audit"
UNKNOWN: Final = "unknown"
"""The names of the two series of files: of principals, and of whoever is none."""

UNKNOWN_FILES_MAX: Final = 2
"""Of the second one: what strangers wanted in the last hours."""

WAITING_MAX: Final = 100_000
"""Lines that wait to be written, some 50 MB: a disk that is full for a while loses none of a usual load."""

WRITTEN_MAX: Final = 1_000
"""Lines that are written at a time: what the lock is held for meanwhile is less than a millisecond."""

GATHER_SECONDS: Final = 0.05
"""How long a line waits for others: written one by one they took as much time of the process as small reads did."""

SYNC_SECONDS: Final = 1.0
"""How often lines are synced: with each they would compete with the commits for the disk. A process that is killed
loses none that was written, only a machine may.
"""

RETRY_SECONDS: Final = 1.0
"""How long after a failure it is tried again."""

IDS_MAX: Final = 1_000
"""Ids that stand in a line; of more the number is told."""

REFUSED_MAX: Final = 20
"""Lines a second of what one who asks, or one address, is refused: a flood of them would drive what others did out of
the files, and be seen as well by how many there were.
"""

TEXT_MAX: Final = 2_000
"""Characters of a text: a client chooses how long a path is, or the name of an action."""


Ids = Sequence[str] | Sequence[bytes]
"""As texts, or as the uuids that they are."""


class AuditLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What somebody did, or wanted to do."""

    time: str
    """When it had ended, in UTC."""

    who: str
    """The principal; empty if nobody is known."""

    via: str
    """The transport."""

    peer: str = msgspec.field(default="", name="from")
    """From where: an address, or a process of this machine."""

    operation: str
    """As docs/security.md lists it."""

    about: str = ""
    """The path and query, or the document that was sent."""

    ids: list[str] = []
    """Uuids that it was about, or that it made: at most a thousand."""

    ids_left_out: int = 0

    bytes: int = 0
    """Content that was read or stored."""

    allowed: bool
    """False: refused, or failed."""

    why: str = ""
    """The slug of the refusal, and its text."""


def reason_of(error: Exception) -> str:
    """What stands in `why`."""
    slug = problem_of(error).slug if isinstance(error, UllageError) else type(error).__name__
    return f"{slug}: {error}"


class Audit(Protocol):
    """Takes lines."""

    def note(self, **said: Any) -> None:
        """Fields of a line but its time. It never waits for a disk."""
        ...


class Unaudited:
    """Where spec.audit is off."""

    def note(self, **said: Any) -> None:
        return

    def settle(self) -> None:
        return

    def close(self) -> None:
        return


class AuditLog:
    """See the module's text. Thread-safe."""

    def __init__(
        self,
        root: str,
        file_bytes_max: int,
        files_max: int,
        clock: Clock,
        on_loss: Callable[[int, Exception | None], None] = lambda _count, _error: None,
    ) -> None:
        """OSError if the folder cannot be made. `on_loss` is told of a failure with 0, and of lines that were lost."""
        self._folder = Path(root) / FOLDER
        self._file_bytes_max = file_bytes_max
        self._files_max = files_max
        self._clock = clock
        self._on_loss = on_loss
        self._waiting: deque[AuditLine] = deque()
        self._lost = 0
        self._is_over = self._is_urgent = False
        self._changed = threading.Condition()
        self._refused: Counter[tuple[str, str, str]] = Counter()
        self._refused_second = 0
        self._second = (-1, "")
        self._rotations = self._tries = 0
        self._synced = clock.monotonic()
        self._folder.mkdir(mode=0o750, exist_ok=True)
        for name in (KNOWN, UNKNOWN):
            _end_line(self._folder / f"{name}.jsonl")
        self._thread = threading.Thread(target=self._work, name="ullage-audit", daemon=True)
        self._thread.start()

    def note(self, **said: Any) -> None:
        """See `Audit.note`."""
        now = self._clock.now_millis()
        line = _line(self._time_of(now), **said)
        with self._changed:
            if line.allowed or self._admits(line, now // 1_000):
                self._hand_over(line)

    def _time_of(self, millis: int) -> str:
        """As ISO 8601 has it. The seconds are worked out once for all lines of one: of a put of one content it was a
        fiftieth of the processor's time.
        """
        second, rest = divmod(millis, 1_000)
        known, text = self._second
        if known != second:
            text = moment_of(second * 1_000).strftime("%Y-%m-%dT%H:%M:%S")
            self._second = second, text
        return f"{text}.{rest:03}+00:00"

    def settle(self) -> None:
        """Return when what was noted is written, or when writing it has failed."""
        with self._changed:
            tries = self._tries
            self._is_urgent = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not (self._waiting or self._lost) or self._tries > tries)
            self._is_urgent = False

    def close(self) -> None:
        """Write what waits, once more; what cannot be written then is lost, and told."""
        with self._changed:
            self._tell_left_out()
            self._is_over = True
            self._changed.notify_all()
        self._thread.join()
        if left := len(self._waiting) + self._lost:
            self._on_loss(left, None)

    def _hand_over(self, line: AuditLine) -> None:
        if len(self._waiting) < WAITING_MAX:
            self._waiting.append(line)
        else:
            self._lost += 1
        if len(self._waiting) in (1, WRITTEN_MAX):  # else it waits for more already, or is awake
            self._changed.notify_all()

    def _admits(self, refusal: AuditLine, second: int) -> bool:
        """Whether it is one of the first of its second; how many others there were is told when a later one comes."""
        if second != self._refused_second:
            self._tell_left_out()
            self._refused_second = second
        self._refused[refusal.who, refusal.via, refusal.peer] += 1
        return self._refused[refusal.who, refusal.via, refusal.peer] <= REFUSED_MAX

    def _tell_left_out(self) -> None:
        refused, self._refused = self._refused, Counter()
        for (who, via, peer), count in refused.items():
            if count > REFUSED_MAX:
                time = self._time_of(self._refused_second * 1_000)
                why = f"{count - REFUSED_MAX} more in this second"
                self._hand_over(_line(time, who=who, via=via, peer=peer, operation="refusals", allowed=False, why=why))

    def _work(self) -> None:
        while self._has_work():
            try:
                self._write()
            except OSError as error:
                self._on_loss(0, error)
                with self._changed:
                    self._tries += 1
                    self._changed.notify_all()
                    if self._is_over:
                        return
                    self._changed.wait_for(lambda: self._is_over, RETRY_SECONDS)

    def _has_work(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._lost or self._is_over)
            self._changed.wait_for(
                lambda: self._is_over or self._is_urgent or len(self._waiting) >= WRITTEN_MAX, GATHER_SECONDS
            )
            return bool(self._waiting or self._lost)

    def _write(self) -> None:
        """What waits of one series, in the order in which it came; a line counts as written once all of it is."""
        with self._changed:
            taken, lost = list(islice(self._waiting, WRITTEN_MAX)), self._lost
        name = UNKNOWN if taken and not taken[0].who else KNOWN
        lines = [line for line in taken if (name == KNOWN) == bool(line.who)]
        left = [line for line in taken if (name == KNOWN) != bool(line.who)]
        texts = [msgspec.json.encode(line) + b"\n" for line in lines]
        if lost:
            told = _line(lines[-1].time if lines else "", who="", via="", operation="audit", allowed=False)
            texts.append(msgspec.json.encode(msgspec.structs.replace(told, why=f"{lost} lines were lost")) + b"\n")
        self._append(name, texts, self._files_max if name == KNOWN else UNKNOWN_FILES_MAX)
        with self._changed:
            for _ in taken:
                self._waiting.popleft()
            self._waiting.extendleft(reversed(left))
            self._lost -= lost
            self._changed.notify_all()
        if lost:
            self._on_loss(lost, None)

    def _append(self, name: str, texts: list[bytes], files_max: int) -> None:
        path = self._folder / f"{name}.jsonl"
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
        try:
            size = os.fstat(descriptor).st_size
            try:
                _write_all(descriptor, b"".join(texts))
                if self._is_over or self._clock.monotonic() - self._synced >= SYNC_SECONDS:
                    os.fsync(descriptor)
                    self._synced = self._clock.monotonic()
            except OSError:
                os.ftruncate(descriptor, size)  # half of them would stand there twice once they are written again
                raise
            if os.fstat(descriptor).st_size >= self._file_bytes_max:
                self._rotate(name, path, files_max)
        finally:
            os.close(descriptor)

    def _rotate(self, name: str, path: Path, files_max: int) -> None:
        self._rotations += 1
        path.rename(self._folder / f"{name}-{self._clock.now_millis():015}-{self._rotations:06}.jsonl")
        earlier = sorted(self._folder.glob(f"{name}-*.jsonl"))
        for old in earlier[: max(0, len(earlier) - files_max + 1)]:
            old.unlink()


def audit_log_of(
    settings: AuditSettings, root: str, clock: Clock, on_loss: Callable[[int, Exception | None], None]
) -> AuditLog | Unaudited:
    """What the settings want, begun."""
    if not settings.enabled:
        return Unaudited()
    return AuditLog(root, int(settings.max_file_size), settings.max_files, clock, on_loss)


def lines_of(root: str) -> Iterator[AuditLine]:
    """Every line that is there, oldest first; what is no line, because a crash cut it off, is passed over."""
    series = (_lines_of_series(Path(root) / FOLDER, name) for name in (KNOWN, UNKNOWN))
    return merge(*series, key=lambda line: line.time)


def _lines_of_series(folder: Path, name: str) -> Iterator[AuditLine]:
    for path in [*sorted(folder.glob(f"{name}-*.jsonl")), folder / f"{name}.jsonl"]:
        try:
            file = path.open("rb")
        except FileNotFoundError:
            continue  # nothing was noted yet, or it was the oldest and had to go
        with file:
            for text in file:
                try:
                    yield msgspec.json.decode(text, type=AuditLine)
                except msgspec.DecodeError:  # a line that a full disk or a kill cut off
                    continue


def _line(time: str, *, operation: str, ids: Ids = (), about: str = "", why: str = "", **said: Any) -> AuditLine:
    shown = _texts(ids[:IDS_MAX])
    about, why = about[:TEXT_MAX], why[:TEXT_MAX]
    return AuditLine(
        time=time,
        operation=operation[:TEXT_MAX],
        ids=shown,
        ids_left_out=len(ids) - len(shown),
        about=about,
        why=why,
        **said,
    )


def _texts(ids: Ids) -> list[str]:
    if ids and isinstance(ids[0], bytes):
        return format_uuids(cast(Sequence[bytes], ids))
    return [id[:ID_CHARACTERS_MAX] for id in cast(Sequence[str], ids)]


def _end_line(path: Path) -> None:
    """What a crash cut off is a line of its own, or the next one would be lost with it."""
    try:
        with path.open("rb+") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
    except FileNotFoundError:
        return  # nothing was written yet


def _write_all(descriptor: int, text: bytes) -> None:
    left = memoryview(text)
    while left:
        left = left[os.write(descriptor, left) :]

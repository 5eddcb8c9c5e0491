"""A small log for tests: its state is a set of numbers, its directory can be closed, crashed, copied and damaged."""

import shutil
import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support import ManualClock
from ullage_agent.engine.clock import Clock
from ullage_agent.engine.files import Files, OsFiles
from ullage_agent.engine.model import NO_ATTRIBUTES, Delete, FlowFile, Operation
from ullage_agent.engine.wal.loading import RestoreReport
from ullage_agent.engine.wal.log import LogSettings, WriteAheadLog
from ullage_agent.engine.wal.restore import read_frames
from ullage_agent.engine.wal.serde import MsgpackSerDe, SerDe, Transaction

REPOSITORY = "6f0c1c3e-0000-4000-8000-000000000003"


def note(number: int, text: bytes = NO_ATTRIBUTES) -> FlowFile:
    """A record that stands for one number."""
    return FlowFile(number.to_bytes(16), 1, None, 0, 0, 0, 0, number, text)


class Notes:
    """What the log is the log of: numbers, and the ids of the transactions that came by themselves."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.records: dict[bytes, FlowFile] = {}
        self.applied: list[int] = []
        self.loaded = 0
        self.views = 0
        self.fails_with: BaseException | None = None

    @property
    def numbers(self) -> set[int]:
        """Which numbers there are."""
        return {int.from_bytes(uuid) for uuid in self.records}

    def require_applicable(self, operations: Sequence[Operation]) -> None:
        """Notes take anything."""

    def apply(self, transaction: int, millis: int, operations: Sequence[Operation]) -> None:
        if self.fails_with is not None:
            raise self.fails_with
        with self.lock:
            self.applied.append(transaction)
            self._take(operations)

    def load(self, operations: list[Operation]) -> None:
        self.loaded += len(operations)
        self._take(operations)

    def freeze(self) -> list[list[Operation]]:
        with self.lock:
            self.views += 1
            operations: list[Operation] = list(self.records.values())
        return [operations[at : at + 2] for at in range(0, len(operations), 2)]

    def release(self) -> None:
        self.views -= 1

    def _take(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            if isinstance(operation, FlowFile):
                assert operation.uuid not in self.records, "applied twice"
                self.records[operation.uuid] = operation
            elif isinstance(operation, Delete):
                del self.records[operation.uuids]


class SecondSerDe:
    """The version after the engine's, whose encoding is another one: compressed."""

    name = MsgpackSerDe.name
    version = MsgpackSerDe.version + 1

    def __init__(self) -> None:
        self._first = MsgpackSerDe()

    def encode(self, millis: int, operations: Sequence[Operation]) -> bytes:
        return zlib.compress(self._first.encode(millis, operations))

    def decode(self, payload: bytes, version: int) -> Transaction:
        return self._first.decode(payload if version < self.version else zlib.decompress(payload), version)

    def encode_block(self, operations: Sequence[Operation]) -> bytes:
        return zlib.compress(self._first.encode_block(operations))

    def decode_block(self, payload: bytes, version: int) -> list[Operation]:
        return self._first.decode_block(payload if version < self.version else zlib.decompress(payload), version)


class ForeignSerDe(MsgpackSerDe):
    name = "somebody-else's"


class Commit:
    """A commit under way in another thread."""

    def __init__(self, commit: Callable[[], int]) -> None:
        self.id = 0
        self.error: BaseException | None = None
        self._commit = commit
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_answered(self) -> bool:
        """Whether the caller was told anything yet."""
        return not self._thread.is_alive()

    def result(self) -> int:
        """Wait for the answer: the id, or the error raised here."""
        self._thread.join(60)
        assert not self._thread.is_alive(), "deadlock"
        if self.error is not None:
            raise self.error
        return self.id

    def _run(self) -> None:
        try:
            self.id = self._commit()
        except BaseException as error:  # noqa: BLE001 - raised by `result`, in the thread of the test
            self.error = error


class Logbook:
    """One directory, and the log that is open in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.log: WriteAheadLog
        self.state: Notes
        self._open: list[WriteAheadLog] = []

    def new(
        self,
        files: Files | None = None,
        *,
        partitions: int = 1,
        interval_seconds: float = 0.0,
        serde: SerDe | None = None,
        clock: Clock | None = None,
    ) -> WriteAheadLog:
        """A log over a fresh state, not restored."""
        self.path.mkdir(exist_ok=True)
        self.state = Notes()
        self.log = WriteAheadLog(
            files or OsFiles(),
            str(self.path),
            REPOSITORY,
            self.state,
            serde or MsgpackSerDe(),
            clock or self.clock,
            LogSettings(partitions, interval_seconds),
        )
        self._open.append(self.log)
        return self.log

    def open(
        self,
        files: Files | None = None,
        *,
        partitions: int = 1,
        interval_seconds: float = 0.0,
        serde: SerDe | None = None,
        clock: Clock | None = None,
        before_serving: Callable[[RestoreReport], None] | None = None,
    ) -> RestoreReport:
        """Restore what the directory holds into a fresh state."""
        log = self.new(files, partitions=partitions, interval_seconds=interval_seconds, serde=serde, clock=clock)
        return log.restore(before_serving)

    def append(self, *numbers: int) -> int:
        """One transaction that nobody has synced yet."""
        return self.log.append([note(number) for number in numbers], self.clock.now_millis())

    def append_written(self, *numbers: int) -> int:
        """One transaction that was written, as by a leader that died before its sync."""
        id = self.append(*numbers)
        for partition in self.log._partitions:
            partition.write_out()
        return id

    def commit(self, *numbers: int) -> int:
        """One durable transaction."""
        id = self.append(*numbers)
        self.log.wait_durable(id)
        return id

    def commit_each(self, first: int, last: int) -> None:
        """One durable transaction for each number."""
        for number in range(first, last + 1):
            self.commit(number)

    def start(self, *numbers: int) -> "Commit":
        """Commit in a thread of its own."""
        return Commit(lambda: self.commit(*numbers))

    def crash(self) -> None:
        """End as a killed process does."""
        self.log.abandon()

    def close(self) -> None:
        """Release whatever is still open."""
        for log in self._open:
            log.abandon()

    def discard(self) -> None:
        """Release and remove everything: a test that makes a hundred copies should not fill the disk."""
        self.close()
        shutil.rmtree(self.path)

    def copy_to(self, path: Path) -> "Logbook":
        """The directory as it is now, as a crash at this moment would leave it."""
        shutil.copytree(self.path, path)
        return Logbook(path)

    def files(self) -> list[str]:
        """All files, relative to the directory."""
        return sorted(str(path.relative_to(self.path)) for path in self.path.rglob("*") if path.is_file())

    def logs(self, partition: int = 0) -> list[Path]:
        """A partition's log files."""
        return sorted((self.path / f"partition-{partition}").glob("*.wal"))


def frames(path: Path) -> list[tuple[int, int, int]]:
    """Offset, length and id of each frame of a log file, in order; its header is what lies before the first."""
    file = OsFiles().open(str(path))
    try:
        return [(offset, 40 + header.length, header.id) for offset, header, _ in read_frames(file, _header_bytes(path))]
    finally:
        file.close()


def _header_bytes(path: Path) -> int:
    return 16 + int.from_bytes(path.read_bytes()[8:12], "little")


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Turn one bit over."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def cut(path: Path, length: int) -> None:
    """Shorten a file."""
    with path.open("r+b") as file:
        file.truncate(length)


def trim(path: Path) -> None:
    """Cut off what is reserved behind the last frame, so that a file is quickly copied."""
    offset, length, _ = frames(path)[-1]
    cut(path, offset + length)


def blank(path: Path, first: int, last: int) -> None:
    """Replace a range by the zeros of blocks that were reserved and never written."""
    with path.open("r+b") as file:
        file.seek(first)
        file.write(bytes(last - first))


def together(*work: Callable[[], object]) -> None:
    """Do all of it at the same time, each in its thread; the first error is raised here."""
    errors: list[BaseException] = []

    def run(part: Callable[[], object]) -> None:
        try:
            part()
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread of the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=(part,), daemon=True) for part in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "deadlock"
    if errors:
        raise errors[0]

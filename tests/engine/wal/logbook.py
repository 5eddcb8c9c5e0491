"""A small log for tests: its state is a set of numbers, its directory can be closed, crashed, copied and damaged."""

import shutil
import threading
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec

from tests.support import ManualClock, cut
from tests.threads import begin
from ullage.clock import Clock
from ullage.engine.files import Files, OsFiles
from ullage.engine.model import NO_ATTRIBUTES, Delete, FlowFileRecord, Operation
from ullage.engine.wal.format import LogHeader, salt_number
from ullage.engine.wal.log import WriteAheadLog
from ullage.engine.wal.restore import RestoreReport, read_frames
from ullage.engine.wal.serde import SerDe, Transaction
from ullage.engine.wal.snapshot import write_first_snapshot
from ullage.engine.wal.state import RecordDirectory

REPOSITORY = "6f0c1c3e-0000-4000-8000-000000000003"


def note(number: int, text: bytes = NO_ATTRIBUTES) -> FlowFileRecord:
    """A record that stands for one number."""
    return FlowFileRecord(number.to_bytes(16), 1, None, 0, 0, 0, 0, number, text)


class Notes:
    """What the log is the log of: numbers, and the ids of the transactions that came by themselves."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.records: dict[bytes, FlowFileRecord] = {}
        self.applied: list[int] = []
        self.loaded = 0
        self.views = 0
        self.snapshots = 0
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

    is_careful = False

    def replay(self, transaction: int, millis: int, operations: Sequence[Operation]) -> None:
        self.apply(transaction, millis, operations)

    def replay_each(self, transaction: int, millis: int, found: Sequence[Any], place: str) -> None:
        raise NotImplementedError

    def load(self, operations: list[Operation]) -> None:
        self.loaded += len(operations)
        self._take(operations)

    def end_load(self) -> None:
        """Nothing is beside the blocks."""

    def end_replay(self, last_id: int) -> bool:
        return False

    def freeze(self) -> list[list[Operation]]:
        with self.lock:
            self.views += 1
            operations: list[Operation] = list(self.records.values())
        return [operations[at : at + 2] for at in range(0, len(operations), 2)]

    def release(self) -> None:
        self.views -= 1

    def published(self) -> None:
        self.snapshots += 1

    def _take(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            if isinstance(operation, FlowFileRecord):
                assert operation.uuid not in self.records, "applied twice"
                self.records[operation.uuid] = operation
            elif isinstance(operation, Delete):
                del self.records[operation.uuids]


class SecondSerDe(SerDe):
    """The version after the engine's, whose encoding is another one: compressed."""

    version = SerDe.version + 1

    def encode(self, millis: int, operations: Sequence[Operation]) -> bytes:
        return zlib.compress(super().encode(millis, operations))

    def decode(self, payload: bytes, version: int) -> Transaction:
        return super().decode(payload if version < self.version else zlib.decompress(payload), version)

    def encode_block(self, operations: Sequence[Operation]) -> bytes:
        return zlib.compress(super().encode_block(operations))

    def decode_block(self, payload: bytes, version: int) -> list[Operation]:
        return super().decode_block(payload if version < self.version else zlib.decompress(payload), version)


class ForeignSerDe(SerDe):
    name = "somebody-else's"


class Logbook:
    """One directory, and the log that is open in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.on_full: Callable[[], object] = bool
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
        place = RecordDirectory(files or OsFiles(), str(self.path), REPOSITORY, serde or SerDe())
        if not self.path.exists():
            self.path.mkdir()
            write_first_snapshot(place, 0)
        self.state = Notes()
        self.log = WriteAheadLog(
            place,
            self.state,
            clock or self.clock,
            partitions,
            interval_seconds,
            self.on_full,
        )
        self._open.append(self.log)
        return self.log

    def open(
        self, files: Files | None = None, *, before_serving: Callable[[RestoreReport], None] | None = None, **how: Any
    ) -> RestoreReport:
        """Restore what the directory holds into a fresh state."""
        return self.new(files, **how).restore(before_serving)

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

    def killed(self, last: int, *, partitions: int = 1) -> None:
        """A process that was killed after so many durable transactions."""
        self.open(partitions=partitions)
        self.commit_each(1, last)
        self.crash()

    def closed(self, last: int, *, partitions: int = 1) -> None:
        """The same, closed cleanly."""
        self.open(partitions=partitions)
        self.commit_each(1, last)
        self.log.close()

    def start(self, *numbers: int) -> Future[int]:
        """Commit in a thread of its own."""
        return begin(lambda: self.commit(*numbers))

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
        found = read_frames(file, _header_bytes(path), salt_number(log_header(path).salt))
        return [(offset, 40 + header.length, header.id) for offset, header, _ in found]
    finally:
        file.close()


def log_header(path: Path) -> LogHeader:
    """What a log file says of itself."""
    return msgspec.msgpack.decode(path.read_bytes()[16 : _header_bytes(path)], type=LogHeader)


def _header_bytes(path: Path) -> int:
    return 16 + int.from_bytes(path.read_bytes()[8:12], "little")


def trim(path: Path) -> None:
    """Cut off what is reserved behind the last frame, so that a file is quickly copied."""
    offset, length, _ = frames(path)[-1]
    cut(path, offset + length)


def blank(path: Path, first: int, last: int) -> None:
    """Replace a range by the zeros of blocks that were reserved and never written."""
    with path.open("r+b") as file:
        file.seek(first)
        file.write(bytes(last - first))

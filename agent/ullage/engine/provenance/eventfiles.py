"""Writing and reading event files: Parquet, through `Files` like everything else on disk."""

from __future__ import annotations

import io
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from crc32c import crc32c

from ullage.engine.arrow import pa, pc, pq
from ullage.engine.beside import Beside
from ullage.engine.files import COPY_BYTES, File, Files, length_of, make_directories
from ullage.engine.oserrors import unreadable
from ullage.engine.provenance.columns import (
    BOUNDED,
    DICTIONARIES,
    ROW_GROUP_BYTES,
    ROW_GROUP_ROWS,
    from_table,
    schema,
    to_batch,
)
from ullage.engine.provenance.events import EventId, ProvenanceEvent
from ullage.engine.provenance.manifest import EventFile
from ullage.engine.provenance.series import Series, chunks
from ullage.engine.wal.state import UNUSABLE
from ullage.errors import ProvenanceDamaged

SUFFIX = ".parquet"
OPEN_FILES_MAX = 64
"""Event files kept open with their footers read: a search touches the newest ones again and again."""

OPEN_GROUPS_MAX = 2_000
"""Row groups of all of them: the footer takes 30 kB of memory for each, 60 MB in all."""


class Written(NamedTuple):
    """An event file in memory, and the times its events span."""

    data: memoryview
    millis_min: int
    millis_max: int


def encode(series: Iterable[Series], queue_name: Callable[[int], str], *, compress: bool) -> Written:
    """Build a whole event file, a row group at a time. Each is compressed while the next one is made."""
    sink = pa.BufferOutputStream()
    times: list[int] = []
    with _writing(sink, compress=compress) as writer, Beside[None]() as beside:
        for chunk in chunks(series, ROW_GROUP_ROWS, ROW_GROUP_BYTES):
            millis = [each.told.millis for each in chunk]
            # Not the first and the last: wall time jumps, and orders nothing.
            times += (min(millis), max(millis))
            # Compressing gives the interpreter away, so the next row group is made meanwhile.
            beside.begin(partial(writer.write_batch, to_batch(chunk, queue_name)))
    return Written(memoryview(sink.getvalue()), min(times), max(times))


def encode_tables(tables: Iterable[pa.Table], *, compress: bool) -> memoryview:
    """Build a whole event file of row groups that another one has, as they are or changed."""
    sink = pa.BufferOutputStream()
    with _writing(sink, compress=compress) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=table.num_rows)
    return memoryview(sink.getvalue())


def _writing(sink: pa.BufferOutputStream, *, compress: bool) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        sink,
        schema(),
        compression="zstd" if compress else "none",
        use_dictionary=DICTIONARIES,
        write_page_checksum=True,
        write_statistics=BOUNDED,
    )


def why_untellable(series: Iterable[Series], queue_name: Callable[[int], str]) -> str:
    """Why these events make no rows, whatever becomes of them in a file; empty where they do."""
    try:
        for chunk in chunks(series, ROW_GROUP_ROWS, ROW_GROUP_BYTES):
            to_batch(chunk, queue_name)
    except UNUSABLE as error:
        return str(error) or type(error).__name__
    return ""


class EventFiles:
    """The directories of event files of one repository. Thread-safe."""

    def __init__(self, files: Files, root: str, directories: Sequence[str]) -> None:
        self._files = files
        self._root = root
        self._directories = directories
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _ParquetFile] = OrderedDict()

    def path(self, file: EventFile) -> str:
        return os.path.join(self._root, file.directory, file.name)

    def directory_for(self, number: int) -> str:
        """Stripes files over the directories."""
        return self._directories[number % len(self._directories)]

    def write(self, directory: str, name: str, data: memoryview) -> None:
        """Write a file and make it and its name durable. What a failure leaves is removed, or later replaced."""
        parent = os.path.join(self._root, directory)
        make_directories(self._files, parent)  # if it is there, its name may still not be durable
        path = os.path.join(parent, name)
        if self._files.exists(path):  # the leftover of a rollover that failed
            self._files.unlink(path)
        file = self._files.create(path)
        try:
            for at in range(0, len(data), COPY_BYTES):
                file.write(data[at : at + COPY_BYTES], at)
            file.sync()
            self._files.sync_directory(parent)
        except BaseException:
            with suppress(OSError):  # the error that led here counts; an unlisted file is removed at the next start
                self._files.unlink(path)
            raise
        finally:
            file.close()

    def remove(self, gone: Sequence[EventFile]) -> None:
        """Unlink files that the manifest lists no more. One that a crash brings back is removed at the next start."""
        for file in gone:
            self.forget(file)
            if self._files.exists(self.path(file)):
                self._files.unlink(self.path(file))

    def sync_names(self) -> None:
        """Make it durable which files there are: one that was removed does not come back after a crash."""
        for directory in self._directories:
            parent = os.path.join(self._root, directory)
            if self._files.exists(parent):
                self._files.sync_directory(parent)

    def forget(self, file: EventFile) -> None:
        """Close a file that nobody is expected to read again soon."""
        with self._lock:
            held = self._open.pop(self.path(file), None)
        if held is not None:
            held.close()

    def paths(self) -> list[str]:
        """All event files there are, listed or not."""
        found = []
        for directory in self._directories:
            parent = os.path.join(self._root, directory)
            with suppress(FileNotFoundError, NotADirectoryError):  # never made, or something else lies there
                names = self._files.list_directory(parent)
                found += [os.path.join(parent, name) for name in names if name.endswith(SUFFIX)]
        return found

    def remove_unlisted(self, listed: Iterable[EventFile]) -> None:
        """Leftovers of rollovers and removals that were cut short: their events are in the log, or gone on purpose."""
        known = {self.path(file) for file in listed}
        for path in self.paths():
            if path not in known:
                with suppress(IsADirectoryError):  # somebody's: it holds no events
                    self._files.unlink(path)

    def starts(self, file: EventFile) -> Sequence[int]:
        """The first row of each row group, and last the number of rows; ProvenanceDamaged names a file that fails."""
        with self._naming(file), self._lock:
            return self._opened(file).starts

    def unpacked_bytes(self, file: EventFile) -> Sequence[int]:
        """About what each row group takes in memory, as its footer has it; as `starts`."""
        with self._naming(file), self._lock:
            footer = self._opened(file).parquet.metadata
            return [footer.row_group(group).total_byte_size for group in range(footer.num_row_groups)]

    def read(self, file: EventFile, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        """A row group, or these columns of it; as `starts`."""
        with self._naming(file), self._lock:  # one reader at a time moves the file's position
            return self._opened(file).parquet.read_row_group(group, columns=columns, use_threads=False)

    def columns(self, file: EventFile, group: int, names: Sequence[str]) -> pa.Table:
        """These columns of a row group, in this order and of the types that they have in every event file; as
        `starts`, also if it has others: their names have no checksum.
        """
        target = pa.schema([schema().field(name) for name in names])
        with self._naming(file):
            return self.read(file, group, names).select(names).cast(target)

    def scan(self, file: EventFile, columns: Sequence[str] | None = None) -> Iterator[tuple[int, pa.Table]]:
        """Row groups with the sequence number of their first row; as `read`."""
        for group, start in enumerate(self.starts(file)[:-1]):
            yield file.first_sequence + start, self.read(file, group, columns)

    def events(self, file: EventFile, table: pa.Table) -> list[ProvenanceEvent]:
        """The events of whole rows. ProvenanceDamaged if they are none: the names of columns have no checksum."""
        with self._naming(file):
            return from_table(table)

    @contextmanager
    def _naming(self, file: EventFile) -> Iterator[None]:
        """Whatever a damaged file makes of what is read from it, ProvenanceDamaged names it."""
        try:
            yield
        except (OSError, pa.ArrowException, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ProvenanceDamaged(
                f"{self.path(file)}: events {file.first_sequence} to {file.last_sequence} cannot be read: {error}; "
                "mount its volume, or restore the file from a backup"
            ) from error

    def sequence_of(self, file: EventFile, id: EventId) -> int | None:
        """The sequence number of the event with this id, if the file holds it."""
        for start, table in self.scan(file, ["transaction", "ordinal"]):
            is_it = pc.and_(pc.equal(table["transaction"], id.transaction), pc.equal(table["ordinal"], id.ordinal))
            for row in pc.indices_nonzero(is_it).to_pylist():
                return start + int(row)
        return None

    def is_whole(self, file: EventFile) -> bool:
        """Whether it is there, as long as it was written."""
        return length_of(self._files, self.path(file)) == file.bytes

    def verify(self, file: EventFile) -> str:
        """What is wrong with a file: nothing, or a problem in words. Reads every byte."""
        path = self.path(file)
        crc = length = 0
        try:
            with closing(self._files.open(path)) as opened:
                while piece := opened.read(COPY_BYTES, length):
                    crc = crc32c(piece, crc)
                    length += len(piece)
        except OSError as error:
            return f"{path} {unreadable(error)}: events {file.first_sequence} to {file.last_sequence} cannot be read"
        if (length, crc) != (file.bytes, file.crc):
            return f"{path}: {length} bytes do not match the manifest ({file.bytes} bytes)"
        return ""

    def close(self) -> None:
        with self._lock:
            held, self._open = self._open, OrderedDict()
        for file in held.values():
            file.close()

    def _opened(self, file: EventFile) -> _ParquetFile:
        path = self.path(file)
        found = self._open.get(path)
        if found is None:
            found = self._open[path] = _ParquetFile(self._files.open(path), file.events)
            groups = sum(each.parquet.num_row_groups for each in self._open.values())
            # The footer stays in memory as long as the file is open.
            while len(self._open) > OPEN_FILES_MAX or (groups > OPEN_GROUPS_MAX and len(self._open) > 1):
                oldest = self._open.popitem(last=False)[1]
                groups -= oldest.parquet.num_row_groups
                oldest.close()
        else:
            self._open.move_to_end(path)
        return found


class _ParquetFile:
    """A Parquet file over an engine's `File`."""

    def __init__(self, file: File, events: int) -> None:
        """ValueError if its row groups are not those of so many events: a footer has no checksum."""
        self._file = file
        try:
            self.parquet: pq.ParquetFile = pq.ParquetFile(
                pa.PythonFile(_Seekable(file), mode="r"), page_checksum_verification=True
            )
            self.starts = _starts(self.parquet.metadata, events)
        except BaseException:
            file.close()
            raise

    def close(self) -> None:
        self.parquet.close(force=True)
        self._file.close()


def _starts(footer: pq.FileMetaData, events: int) -> list[int]:
    """Where a row is follows from these numbers alone, so they have to be those of the columns, and of all events."""
    # No checksum covers the footer, and a number that is wrong by one would show the wrong event.
    groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
    rows = [group.num_rows for group in groups]
    if sum(rows) != events or any(group.column(0).num_values != group.num_rows for group in groups) or min(rows) < 1:
        raise ValueError(f"its row groups have {rows} rows, which are not those of {events} events")
    return list(accumulate(rows, initial=0))


class _Seekable(io.RawIOBase):
    """What pyarrow needs of a file: a position, which the engine's positional `File` has not."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._length = file.size().length
        self._at = 0

    def read(self, count: int = -1) -> bytes:
        data = self._file.read(self._length - self._at if count < 0 else count, self._at)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = (0, self._at, self._length)[whence] + offset
        return self._at

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

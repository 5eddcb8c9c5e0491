"""Rows of a history on their way into files: a file a day, in bounded memory; and days whose small files become one."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import IO, Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ullage_spark.histories import HistoryFile, HistoryTable

DAY: Final = "day"

GROUP_BYTES: Final = 8 << 20
"""Of a row group: what a day that is being written keeps in memory."""

FILE_BYTES: Final = 256 << 20
"""A file of this size is left as it is: a day may have several."""

SMALL_FILES: Final = 16
"""So many small files may a day that goes on have."""

READ_ROWS: Final = 4_096
"""Of a file that is merged, at a time: rows with large attributes have some KiB."""


class DayFiles:
    """Files of one table, made of rows with the column `time`; nothing of it shows until the files are committed.

    The column `day` comes first: the date of `time` in UTC. Rows without a time have the first day that there is. For
    one thread. Use `close` or `drop`.
    """

    def __init__(self, table: HistoryTable, schema: pa.Schema, time: str = "time") -> None:
        self._table = table
        self._schema = schema
        self._time = time
        self._open: dict[str, DayFile] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Rows in the schema, but for the day."""
        days = pc.fill_null(batch.column(self._time).cast(pa.date32()), pa.scalar(0, pa.int32()).cast(pa.date32()))
        dated = pa.RecordBatch.from_arrays([days, *batch.columns], schema=self._schema)
        for day in pc.unique(days):
            if (name := day.as_py().isoformat()) not in self._open:
                self._open[name] = DayFile(self._table, self._schema, name)
            self._open[name].write(dated.filter(pc.equal(days, day)))

    def close(self) -> list[HistoryFile]:
        """The files, whole."""
        return [file.close() for file in self._open.values()]

    def drop(self) -> None:
        """Leave nothing."""
        for file in self._open.values():
            file.drop()


class DayFile:
    """A file of a day that is being written, with rows in the whole schema. Use `close` or `drop`."""

    def __init__(self, table: HistoryTable, schema: pa.Schema, day: str) -> None:
        self._table, self._schema, self._day = table, schema, day
        self._path, self._file = table.create(day)
        self._counted = _Counted(self._file)
        self._writer = pq.ParquetWriter(self._counted, schema, compression="zstd")
        self._kept: list[pa.RecordBatch] = []
        self._kept_bytes = 0
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._kept.append(batch)
        self._kept_bytes += batch.nbytes
        self._rows += batch.num_rows
        if self._kept_bytes >= GROUP_BYTES:
            self._flush()

    @property
    def bytes(self) -> int:
        return self._counted.bytes + self._kept_bytes

    def close(self) -> HistoryFile:
        if self._kept:
            self._flush()
        self._writer.close()
        self._file.close()
        return HistoryFile(path=self._path, day=self._day, rows=self._rows, bytes=self._counted.bytes)

    def drop(self) -> None:
        with suppress(OSError):  # a full disk, which is why it is dropped
            self._writer.close()  # or the collector would, behind the file's back
        self._file.close()
        self._table.drop(self._path)

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._kept, self._schema), row_group_size=1 << 20)
        self._kept, self._kept_bytes = [], 0


Files = TypeVar("Files", DayFile, DayFiles)


@contextmanager
def or_nothing(files: Files) -> Iterator[Files]:
    """What is being written, of which nothing is left if something goes wrong."""
    try:
        yield files
    except BaseException:
        files.drop()
        raise


class _Counted:
    """A file that says how much was written to it: some cannot tell."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.bytes = 0

    def write(self, data: Any) -> int:
        self._file.write(data)
        size = memoryview(data).nbytes
        self.bytes += size
        return size

    def flush(self) -> None:
        """Whoever commits the file syncs it."""


def compacted(table: HistoryTable, schema: pa.Schema, today: str) -> int:
    """Merge the small files of each day that is over, and of `today` if there are many; how many were merged.

    Each day is a commit of its own, which changes no row and no state.
    """
    small: dict[str, list[HistoryFile]] = defaultdict(list)
    for file in table.files():
        if file.bytes < FILE_BYTES:
            small[file.day].append(file)
    merged = 0
    for day, files in sorted(small.items()):
        if len(files) > (SMALL_FILES if day >= today else 1):
            merged += len(files)
            table.commit(table.state, _merged(table, schema, day, files), files)
    return merged


def _merged(table: HistoryTable, schema: pa.Schema, day: str, files: Sequence[HistoryFile]) -> list[HistoryFile]:
    made: list[HistoryFile] = []
    open_file: DayFile | None = None
    try:
        for batch in rows_of(table, files):
            if open_file is not None and open_file.bytes >= FILE_BYTES:
                made.append(open_file.close())
                open_file = None
            open_file = open_file or DayFile(table, schema, day)
            open_file.write(batch)
    except BaseException:
        if open_file is not None:
            open_file.drop()
        for file in made:
            table.drop(file.path)
        raise
    return [*made, *([] if open_file is None else [open_file.close()])]


def rows_of(
    table: HistoryTable, files: Sequence[HistoryFile], columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """All rows of files that were committed, some at a time."""
    for file in files:
        with closing(table.open(file)) as source, pq.ParquetFile(source) as parquet:
            yield from parquet.iter_batches(READ_ROWS, columns=columns)

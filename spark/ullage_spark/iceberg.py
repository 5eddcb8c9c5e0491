"""A history as tables of Iceberg, in any catalog that pyiceberg knows: an extra of its own.

Files are written as Parquet and then appended by a transaction that sets the state too, as the table's property
`ullage.state`: there it outlives the expiry of snapshots, and maintenance by other engines. A commit whose table has
changed since it was opened is refused, not tried again: the other one may have read the same rows. What a killed run
had written and not committed is an orphan file, as Iceberg's own upkeep removes them.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from typing import IO, Any, Final

import msgspec
import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from ullage_spark.errors import SparkSourceError
from ullage_spark.histories import HistoryFile, State

EPOCH: Final = date(1970, 1, 1)
STATE: Final = "ullage.state"
PROPERTIES: Final = {"commit.retry.num-retries": "0", "write.metadata.delete-after-commit.enabled": "true"}


class IcebergTable:
    """One table."""

    def __init__(self, table: Table) -> None:
        self._table = table

    @property
    def id(self) -> str:
        return str(self._table.metadata.table_uuid)

    @property
    def location(self) -> str:
        return str(self._table.location())

    @property
    def state(self) -> State:
        return msgspec.json.decode(self._table.properties.get(STATE, "{}"), type=dict[str, Any])

    def files(self) -> Sequence[HistoryFile]:
        return [
            HistoryFile(path=path, day=_day_of(file), rows=file.record_count, bytes=file.file_size_in_bytes)
            for path, file in self._data_files().items()
        ]

    def address(self, file: HistoryFile) -> str:
        return file.path

    def create(self, day: str) -> tuple[str, IO[bytes]]:
        provider = self._table.location_provider()
        path = provider.new_data_location(f"day={day}/{uuid.uuid4()}.parquet")
        return path, self._table.io.new_output(path).create()

    def open(self, file: HistoryFile) -> Any:
        return self._table.io.new_input(file.path).open()

    def commit(self, state: State, added: Sequence[HistoryFile], removed: Sequence[HistoryFile] = ()) -> None:
        table = self._table
        there = self._data_files() if removed else {}
        with _refused_if_changed(table), table.transaction() as transaction:
            transaction.set_properties({STATE: msgspec.json.encode(state).decode()})
            update = transaction.update_snapshot()
            with update.overwrite() if removed else update.fast_append() as files:
                for file in removed:
                    files.delete_data_file(there[file.path])
                for file in added:
                    made = parquet_file_to_data_file(table.io, transaction.table_metadata, file.path)
                    files.append_data_file(made)

    def drop(self, path: str) -> None:
        self._table.io.delete(path)

    def _data_files(self) -> dict[str, DataFile]:
        return {task.file.file_path: task.file for task in self._table.scan().plan_files()}


def _day_of(file: DataFile) -> str:
    day = file.partition[0]
    return (EPOCH + timedelta(days=day) if isinstance(day, int) else day).isoformat()


@contextmanager
def _refused_if_changed(table: Table) -> Iterator[None]:
    try:
        yield
    except CommitFailedException as error:
        raise SparkSourceError(f"another process writes to the history's table {'.'.join(table.name())}") from error


def iceberg_tables(where: str, schemas: Mapping[str, pa.Schema]) -> Iterator[tuple[str, IcebergTable]]:
    """Those of `CATALOG/NAMESPACE`, made where there are none. SparkSourceError if that names none."""
    name, _, namespace = where.partition("/")
    if not name or not namespace:
        raise SparkSourceError(f"{where!r} names no history in Iceberg: iceberg:CATALOG/NAMESPACE does")
    try:
        catalog = load_catalog(name)
    except ValueError as error:
        raise SparkSourceError(f"catalog {name}: {error}") from error
    catalog.create_namespace_if_not_exists(namespace)
    for table, schema in schemas.items():
        identifier = f"{namespace}.{table}"
        if not catalog.table_exists(identifier):
            _make(catalog, identifier, schema)
        yield table, IcebergTable(catalog.load_table(identifier))


def _make(catalog: Catalog, identifier: str, schema: pa.Schema) -> None:
    """Whole, or not at all."""
    with catalog.create_table_transaction(identifier, schema, properties=PROPERTIES) as transaction:
        with transaction.update_spec() as spec:
            spec.add_identity("day")
        # By it columns are found in files that have no ids.
        mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
        transaction.set_properties({"schema.name-mapping.default": mapping})

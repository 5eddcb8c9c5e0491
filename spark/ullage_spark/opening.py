"""A source that hands a function the contents of the rows that it reads, in the task that reads them.

The function travels in the source's class, which a program registers with its session: options are no way for it, for
they come from whoever may write SQL, and to unpickle what they hold is to run it.
"""

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from ullage_spark.addresses import FleetNode
from ullage_spark.carried import opened
from ullage_spark.opener import ContentUse, Opener
from ullage_spark.reader import TableReader, bounded, shaped
from ullage_spark.tables import arrow_schema, schema_asked, schema_of


class OpeningReader(TableReader):
    """Of FlowFiles: a function says what becomes of rows and contents."""

    def __init__(self, options: Mapping[str, str], schema: StructType, how: ContentUse) -> None:
        self._how = how
        super().__init__(options, schema)

    def _asked_for(self) -> StructType:
        # What the function makes has columns of its own.
        return schema_asked(schema_of(self._settings), self._settings.table)

    def _made(self, node: FleetNode, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Neither rows nor contents pass the JVM."""
        opener = Opener(self._settings, {node.name: node}, self._how)
        target = arrow_schema(self._schema)
        for made in opener.run(rows):
            yield from bounded(shaped(made, target), self._settings.batch_bytes)


def opening_source(how: ContentUse) -> type[DataSource]:
    """A source of a name of its own, for `spark.dataSource.register`."""
    name_of_it = f"ullage_{uuid4().hex}"

    class OpeningSource(DataSource):
        """See the module's text."""

        def __reduce__(self) -> tuple[Any, ...]:
            # By value: no module has this class.
            return opened, (cloudpickle.dumps((type(self), self.__dict__)),)  # type: ignore[no-untyped-call]

        @classmethod
        def name(cls) -> str:
            return name_of_it

        def reader(self, schema: StructType) -> DataSourceReader:
            return OpeningReader(self.options, schema, how)

    return OpeningSource

"""The data source `ullage`, where PySpark looks for it: it imports every module `pyspark_*` to find a `DefaultSource`.

One such module that cannot be imported breaks the look-up of all sources, so this one imports nothing but PySpark; the
rest comes when the source is used.
"""

from collections.abc import MutableMapping
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """`spark.read.format("ullage")`, and `write`, `readStream` and `writeStream`. Options: docs/spark.md."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    def __reduce__(self) -> tuple[Any, ...]:
        from ullage_spark.carried import carried  # noqa: PLC0415 - see above

        return carried(self)

    @classmethod
    def name(cls) -> str:
        return "ullage"

    def schema(self) -> StructType:
        """Of the table and the columns that the options name."""
        from ullage_spark.tables import declared  # noqa: PLC0415
        from ullage_spark.workers import begin_planning  # noqa: PLC0415

        begin_planning()
        return declared(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from ullage_spark.pushdown import PushingReader  # noqa: PLC0415
        from ullage_spark.reader import TableReader  # noqa: PLC0415
        from ullage_spark.settings import ReadOptions  # noqa: PLC0415
        from ullage_spark.tables import options_of  # noqa: PLC0415

        options = options_of(self.options, schema, ReadOptions)
        # PySpark refuses any reader that takes filters, unless its session is set to push them.
        return (PushingReader if ReadOptions.of(options).pushdown else TableReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from ullage_spark.feed import QueueReader  # noqa: PLC0415
        from ullage_spark.settings import FollowOptions  # noqa: PLC0415
        from ullage_spark.stream import EventReader, WholeEventReader  # noqa: PLC0415
        from ullage_spark.tables import options_of  # noqa: PLC0415
        from ullage_spark.versions import HAS_LIMITS  # noqa: PLC0415

        options = options_of(self.options, schema, FollowOptions)
        if FollowOptions.of(options).table != "provenance":
            return QueueReader(options, schema)
        return (EventReader if HAS_LIMITS else WholeEventReader)(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from ullage_spark.settings import WriteOptions  # noqa: PLC0415
        from ullage_spark.tables import options_of  # noqa: PLC0415
        from ullage_spark.writer import ContentBatchWriter  # noqa: PLC0415

        return ContentBatchWriter(options_of(self.options, schema, WriteOptions), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from ullage_spark.settings import SinkOptions  # noqa: PLC0415
        from ullage_spark.tables import options_of  # noqa: PLC0415
        from ullage_spark.writer import ContentStreamWriter  # noqa: PLC0415

        return ContentStreamWriter(options_of(self.options, schema, SinkOptions), schema)

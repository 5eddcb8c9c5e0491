"""Content of the rows of any DataFrame, opened inside the task that uses it."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from ullage_spark.errors import SparkSourceError
from ullage_spark.fleet import discover
from ullage_spark.opener import FOUND_BY, GROUP_BYTES, ContentUse, Opener, Use, use_of
from ullage_spark.settings import SourceOptions, as_options


def with_content(
    df: DataFrame,
    use: Use,
    schema: StructType | str,
    *,
    skips_missing: bool = False,
    group_bytes: int = GROUP_BYTES,
    as_files: bool = False,
    **options: Any,
) -> DataFrame:
    """Call `use(rows, contents)` for each few rows of a DataFrame with the columns of `flowfiles`, and give on what it
    returns, of `schema`: a record batch, or an iterator of several.

    Contents are verified. They are bytes, or with `as_files` each a `ContentFile`, which is good until `use` has
    returned, or its iterator has ended: one beyond `group_bytes` comes alone, and is read as it is asked for, in
    constant memory. One that is gone fails the task, or with `skips_missing` is None. `df` is best read at a snapshot,
    which holds what it shows. Options: those of the source that name the fleet and its credentials.
    """
    how = use_of(use, skips_missing=skips_missing, group_bytes=group_bytes, as_files=as_files)
    return opened(df, how, schema, options)


def opened(df: DataFrame, how: ContentUse, schema: StructType | str, options: Mapping[str, Any]) -> DataFrame:
    """The same, as it is to be done."""
    if missing := [column for column in FOUND_BY if column not in df.columns]:
        raise SparkSourceError(f"content is found by {', '.join(missing)}: select these columns too")
    settings = SourceOptions.of(as_options(options))
    opener = Opener(settings, {node.name: node for node in discover(settings)}, how)
    return df.mapInArrow(lambda batches: opener.run(batches), schema)  # noqa: PLW0108 - pickled by value

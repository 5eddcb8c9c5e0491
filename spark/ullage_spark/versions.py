"""What a version of PySpark has of what this source builds on, from 4.0 on; nothing else here asks for one.

    4.1   filters, and writers of streams that take Arrow
    4.2   streams that are told how far they have read, and how much a batch may have; zones of times

Classes that the one at hand has not stand here as `Lacking`, so that modules can be imported whatever they name of it.
"""

from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from pyspark import __version__
from pyspark.sql import datasource
from pyspark.sql.pandas.types import to_arrow_schema

from ullage_spark.errors import SparkSourceError

HAS_FILTERS: Final = hasattr(datasource, "Filter")
HAS_ARROW_STREAMS: Final = hasattr(datasource, "DataSourceStreamArrowWriter")
HAS_LIMITS: Final = find_spec("pyspark.sql.streaming.datasource") is not None
IN_UTC: Final[dict[str, Any]] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
"""For `to_arrow_schema`: versions without the argument know no other zone."""


class Lacking:
    """Nothing is an instance of it."""


if TYPE_CHECKING or HAS_FILTERS:
    from pyspark.sql.datasource import (
        EqualTo as EqualTo,
        Filter as Filter,
        GreaterThan as GreaterThan,
        GreaterThanOrEqual as GreaterThanOrEqual,
        In as In,
        IsNotNull as IsNotNull,
        IsNull as IsNull,
        LessThan as LessThan,
        LessThanOrEqual as LessThanOrEqual,
        Not as Not,
        StringContains as StringContains,
        StringEndsWith as StringEndsWith,
        StringStartsWith as StringStartsWith,
    )
else:
    EqualTo = Filter = GreaterThan = GreaterThanOrEqual = In = IsNotNull = IsNull = LessThan = LessThanOrEqual = Lacking
    Not = StringContains = StringEndsWith = StringStartsWith = Lacking

if TYPE_CHECKING or HAS_ARROW_STREAMS:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as DataSourceStreamArrowWriter
else:
    # The workers of 4.0 look for no other class before they hand Arrow to a writer, of a stream too.
    DataSourceStreamArrowWriter = datasource.DataSourceArrowWriter

if TYPE_CHECKING or HAS_LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadLimit as ReadLimit,
        ReadMaxRows as ReadMaxRows,
        SupportsTriggerAvailableNow as SupportsTriggerAvailableNow,
    )
else:
    ReadLimit = ReadMaxRows = SupportsTriggerAvailableNow = Lacking


def lacks(what: str, since: str, instead: str) -> SparkSourceError:
    """What is said of something that only newer versions have."""
    return SparkSourceError(f"{what} needs PySpark {since} or newer, and this is {__version__}: use that, or {instead}")

"""The option `where`: a predicate on a table's columns, which nodes evaluate (`ullage.wire.where` has its notation).

Which node a row is of no node needs to look at: of each node that part is settled before it is asked, and one whose
rows it leaves out is not asked at all.
"""

from functools import cache
from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from ullage.errors import InvalidArgument
from ullage.wire.matching import holds, kind_of
from ullage.wire.predicates import EVERY, ColumnKind, Constant, Leaf, Predicate, columns_in, settled
from ullage.wire.where import parse
from ullage_spark.errors import SparkSourceError
from ullage_spark.tables import COLUMNS, NODE, arrow_schema, columns_of

NOTHING: Final = (Constant(False), Constant(None))
"""Predicates that choose no row."""


class Where:
    """A predicate on the rows of a table as Spark sees them."""

    def __init__(self, table: str, text: str) -> None:
        """SparkSourceError says in a paragraph where it is wrong."""
        try:
            self.predicate = parse(text, kinds_of(table), table)
        except InvalidArgument as error:
            raise SparkSourceError(f"option {error}") from error
        self.columns = columns_in(self.predicate)

    def at(self, node: str) -> Predicate:
        """What is left to say of a node's rows; one of `NOTHING`: none of them are chosen."""

        def decide(leaf: Leaf) -> bool | None:
            found: bool | None = holds(leaf, lambda _: pa.array([node]), 1)[0].as_py()
            return found

        return settled(self.predicate, NODE, decide)

    def reads(self, node: str) -> bool:
        """Whether any of a node's rows may be chosen."""
        return self.at(node) not in NOTHING

    def chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Its rows for which it is true, where no node has evaluated it."""
        if self.predicate == EVERY:
            return batch
        return batch.filter(holds(self.predicate, batch.column, batch.num_rows))


@cache
def kinds_of(table: str) -> dict[str, ColumnKind]:
    """The columns of a table, as Spark sees them; SparkSourceError if there is none of the name."""
    columns_of(table)
    fields = arrow_schema(StructType([StructField(*each) for each in COLUMNS[table].items()]))
    return {field.name: kind_of(field.type) for field in fields}

"""Ullage for Spark: read, write, analyse and plan over a fleet of nodes. docs/spark.md tells how.

with snapshot(spark, endpoint="grpc+tls://node-1.example:8481") as moment:
    moment.table("flowfiles").groupBy("node", "queue").sum("size").show()
"""

from ullage_spark.catalog import register as register
from ullage_spark.content import with_content as with_content
from ullage_spark.errors import ContentUnreadable as ContentUnreadable, SparkSourceError as SparkSourceError
from ullage_spark.pushdown import pushes_filters as pushes_filters
from ullage_spark.snapshots import FleetSnapshot as FleetSnapshot, snapshot as snapshot
from ullage_spark.sources import contents_from as contents_from

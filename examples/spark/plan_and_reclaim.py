"""Plan and reclaim: where does a gigabyte of copying give most back, and then give it back.

    spark-submit examples/spark/plan_and_reclaim.py NODES [--run]

NODES is a JSON list of nodes with name, flight and url (docs/spark.md), or an endpoint.
"""

import sys
from typing import Any

from pyspark.sql import SparkSession, functions as F

from ullage_spark import snapshot
from ullage_spark.plan import Budget, carry_out, reclamation_plan

GIB = 1 << 30


def main(nodes: str, run: str = "") -> None:
    """Plan over all disks; with --run the nodes carry it out under their windows, and one whose window is closed says
    so.
    """
    options: dict[str, Any] = {"nodes" if nodes.startswith("[") else "endpoint": nodes}
    spark = SparkSession.builder.appName("ullage-plan").getOrCreate()
    with snapshot(spark, holds=False, **options) as moment:
        windows = moment.table("windows")
        plan = reclamation_plan(moment.table("resource_claims"), Budget(copied_bytes=GIB), windows=windows).cache()
        totals = plan.groupBy("node", "container", "action").agg(
            F.count("*").alias("resource_claims"),
            F.sum("frees_bytes").alias("frees"),
            F.sum("copies_bytes").alias("copies"),
            F.first("may_start").alias("now"),
        )
        totals.orderBy("node", "container", "action").show()
        if run == "--run":
            for done in carry_out(plan, **options):
                if done.run is None:
                    print(f"{done.node}: {done.refusal}")
                else:
                    print(f"{done.node}: {done.run.problem or f'{done.run.freed_bytes} bytes given back'}")


if __name__ == "__main__":
    main(*sys.argv[1:])

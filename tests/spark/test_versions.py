"""What older versions of PySpark lack: without a JVM, and without them."""

import json
import subprocess
import sys
from pathlib import Path

from pyspark_ullage import DefaultSource
from tests.spark.fleet import Fleet
from ullage_spark.stream import WholeEventReader

ROOT = Path(__file__).parents[2]

AS_OF_4_0 = """
import sys
from pyspark.sql import datasource
from pyspark.sql.pandas import types

OF_4_0 = {
    "CaseInsensitiveDict", "DataSource", "DataSourceArrowWriter", "DataSourceReader", "DataSourceRegistration",
    "DataSourceStreamReader", "DataSourceStreamWriter", "DataSourceWriter", "InputPartition",
    "SimpleDataSourceStreamReader", "WriterCommitMessage",
}
newer = [name for name, found in vars(datasource).items() if getattr(found, "__module__", "") == datasource.__name__]
for name in set(newer) - OF_4_0:
    delattr(datasource, name)
sys.modules["pyspark.sql.streaming.datasource"] = None
whole = types.to_arrow_schema
types.to_arrow_schema = lambda schema: whole(schema, timezone="UTC")
"""
"""What is there of sources in 4.0, the oldest version that is promised; later tests of the process see no more."""

USE = """
import importlib
from pyspark_ullage import DefaultSource

for name in sys.argv[1:]:
    importlib.import_module(f"ullage_spark.{name}")

def made(kind, **options):
    source = DefaultSource({"endpoint": "grpc://x:1", **options})
    try:
        print(type(getattr(source, kind)(source.schema())).__name__)
    except Exception as error:
        print(error)

made("reader")
made("reader", pushdown="true")
made("streamReader", table="provenance")
made("streamReader", table="provenance", MAXEVENTS="5")
made("streamReader", table="provenance", missingNodes="skip")
made("streamReader", queue="in", application="it")
"""


def test_what_4_0_lacks_is_asked_for_by_nobody_and_told() -> None:
    """Each module can be imported, reads and streams are made, and the rest says which version has it."""
    modules = [path.stem for path in (ROOT / "spark/ullage_spark").glob("[!_]*.py")]
    ran = subprocess.run([sys.executable, "-c", AS_OF_4_0 + USE, *modules], capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stderr
    told = ran.stdout.splitlines()
    assert (told[0], told[2]) == ("TableReader", "WholeEventReader")
    expected = {
        1: ("option pushdown", "4.1", "option where"),
        3: ("option maxEvents", "4.2", "leave it out"),
        4: ("option missingNodes=skip of a stream", "4.2", "all nodes are waited for"),
        5: ("a stream that consumes a queue", "4.2", "table=provenance"),
    }
    for at, (what, since, instead) in expected.items():
        assert told[at].startswith(f"{what} needs PySpark {since} or newer, and this is "), told[at]
        assert instead in told[at]


def reader(fleet: Fleet) -> WholeEventReader:
    """As the source makes it of a PySpark before 4.2."""
    options = {"endpoint": fleet.endpoint, "table": "provenance"}
    return WholeEventReader(options, DefaultSource(options).schema())


def test_a_stream_that_is_told_nothing_goes_on_where_it_was(fleet: Fleet) -> None:
    """All that waits is a batch, after one that was planned before; a node that has left the fleet keeps its place."""
    start = reader(fleet).initialOffset()
    fleet.fill(1, 3)
    left = {"gone": {"repository": "another", "sequence": 5}}
    planned = {name: {**place, "sequence": 2} for name, place in start.items()}
    again = reader(fleet)

    parts = again.partitions({**start, **left}, {**planned, **left})
    end = again.latestOffset()

    assert [(part.after, part.through) for part in parts] == [(0, 2)] * 2  # type: ignore[attr-defined]
    assert end == {**left, **reader(fleet).latestOffset()}
    rest = again.partitions({**planned, **left}, end)
    assert {part.node.name: part.through for part in rest} == {  # type: ignore[attr-defined]
        name: end[name]["sequence"] for name in "ab"
    }
    assert json.dumps(again.latestOffset()) == json.dumps(end)

"""The page of recipes, word for word: each program on it runs, one after the other, and does what its heading says. Of
`make spark-full`: a minute and more, which CI has not.
"""

import io
import re
import zipfile
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from tests.spark.conftest import ROOT
from tests.spark.fleet import Fleet

PAGE: Final = ROOT / "docs" / "spark-recipes.md"


def test_every_recipe_runs_as_it_stands(spark: SparkSession, fleet: Fleet, tmp_path: Path) -> None:
    """Files come in, are worked on, found, copied and shipped, each once."""
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as inside:
        inside.writestr("inner", "inside")
    contents = {"one": b"first", "two": b"second " * 1_000, "three.zip": archive.getvalue()}
    for name, content in contents.items():
        (incoming / name).write_bytes(content)
    names: dict[str, Any] = {"spark": spark, "endpoint": fleet.endpoint, "folder": str(tmp_path)}

    programs = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    for program in programs:
        exec(program, names)

    sums = {row["queue"]: row["sum(size)"] for row in names["total"]}
    assert sums["orders"] == sum(map(len, contents.values()))
    assert names["missing"] == []
    assert spark.read.parquet(f"{tmp_path}/shipped").count() == len(contents)
    back = spark.sql("SELECT size FROM ullage_flows.flowfiles WHERE queue = 'back'").collect()
    assert sorted(row["size"] for row in back) == sorted(map(len, contents.values()))
    spark.sql("DROP DATABASE ullage_flows CASCADE")

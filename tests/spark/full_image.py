"""The entrypoint of Spark's image, as the driver's pod begins it. Of `make spark-full`: each start is a JVM, for which
CI has no time.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pyspark
import pytest

from tests.spark.conftest import ROOT

SECONDS_MAX: Final = 120.0
JOB: Final = """
import os
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
rows = spark.sparkContext.parallelize([0])
print("TOLD", rows.map(lambda _: str(os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED"))).collect())
"""


@pytest.mark.parametrize(
    ("line", "told"), [("", "True"), ("spark.python.unix.domain.socket.enabled false\n", "None")], ids=["unsaid", "off"]
)
def test_a_driver_speaks_to_python_over_a_unix_socket_unless_the_application_says_otherwise(
    line: str, told: str, tmp_path: Path
) -> None:
    """Its properties come as a file, as Spark mounts them into the pod."""
    job, properties = tmp_path / "job.py", tmp_path / "spark.properties"
    job.write_text(JOB)
    properties.write_text(f"spark.master local[1]\nspark.ui.enabled false\n{line}")
    given = {
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }

    done = subprocess.run(
        [ROOT / "deploy" / "spark-entrypoint", "driver", "--properties-file", properties, job],
        env=os.environ | given,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )

    assert f"TOLD ['{told}']" in done.stdout, done.stderr[-3_000:]

"""A Spark that starts in half the processor's time, made of links to the one that is installed.

    <cache>/spark/<key>/bin, jars, sbin         links to PySpark's own
                        python/lib/pyspark.zip  a folder of that name
                        classes.jsa             classes as the JVM has them in memory

Spark's Python workers import PySpark from its archive, of which Python keeps no bytecode: each of six kinds of them
took 1.4 seconds to compile it anew. And half of what a JVM does until its first job ends is to read and verify classes.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark

from tests.cluster.cache import cache_root, locked

INSTALLED = Path(pyspark.__file__).parent

TRAINING = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
rows = spark.createDataFrame([(1, "a")], "a int, b string").mapInArrow(lambda batches: batches, "a int, b string")
rows.write.parquet(__import__("sys").argv[1])
spark.read.parquet(__import__("sys").argv[1]).groupBy("b").count().collect()
spark.sql("select 1 where 1 in (select 1)").collect()
spark.stop()
"""
"""A job of what most jobs need: the classes that it loads are those that are kept."""

TRAINING_SECONDS_MAX = 600.0
"""It takes fifteen."""


def spark_home(jvm_options: str) -> Path:
    """Where it is; made first, unless the cache has the one for this PySpark, this Java and these options."""
    java = subprocess.run(["java", "-version"], capture_output=True, check=True).stderr
    what = (pyspark.__version__, str(INSTALLED), sys.executable, str(INSTALLED.stat().st_mtime_ns), jvm_options)
    key = hashlib.sha256("\0".join(what).encode() + java + Path(__file__).read_bytes()).hexdigest()[:16]
    home = cache_root() / "spark" / key
    with locked(home.with_suffix(".lock")):
        whole = home / "whole"
        if not whole.exists():
            shutil.rmtree(home, ignore_errors=True)
            _link(home)
            _train(home, jvm_options)
            whole.touch()
    return home


def options_of(home: Path) -> str:
    """Of a JVM that takes the kept classes. Where it can't it says nothing of it: the launcher's output is parsed."""
    return f"-XX:SharedArchiveFile={home / 'classes.jsa'} -Xshare:auto -Xlog:disable"


def _link(home: Path) -> None:
    libraries = home / "python" / "lib"
    libraries.mkdir(parents=True)
    for name in ("bin", "jars", "sbin"):
        (home / name).symlink_to(INSTALLED / name)
    for archive in (INSTALLED / "python" / "lib").iterdir():
        package = INSTALLED.with_name("py4j") if archive.name.startswith("py4j") else INSTALLED
        (libraries / archive.name).mkdir()
        (libraries / archive.name / package.name).symlink_to(package)


def _train(home: Path, jvm_options: str) -> None:
    archived = f"--driver-java-options '-XX:ArchiveClassesAtExit={home / 'classes.jsa'} -Xlog:disable' pyspark-shell"
    given = {"SPARK_HOME": str(home), "JDK_JAVA_OPTIONS": jvm_options, "PYSPARK_SUBMIT_ARGS": archived}
    scratch = home.with_suffix(".training")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    subprocess.run(
        [sys.executable, "-c", TRAINING, str(scratch / "rows")],
        env=os.environ | given | {"PYSPARK_PYTHON": sys.executable},
        cwd=scratch,
        check=True,
        timeout=TRAINING_SECONDS_MAX,
    )
    shutil.rmtree(scratch)

"""One Spark session for all tests, and fleets of real agents on loopback."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.service.running import process
from tests.service.test_kill import free_port
from tests.spark.fleet import Fleet, Mixed, fleet_at
from tests.spark.home import options_of, spark_home
from ullage.client.flight import FlightClient
from ullage_spark import fleet as asking

ROOT = Path(__file__).parents[2]
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Of every JVM here: programs of seconds end before better compiled code and collectors of many threads pay off."""


@pytest.fixture(scope="session", autouse=True)
def _environment() -> None:
    """Python workers import from this tree, whatever the environment holds; JVMs start quickly."""
    paths = [str(ROOT / name) for name in ("agent", "spark", ".")]
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    home = spark_home(JVM_OPTIONS)
    os.environ["SPARK_HOME"] = str(home)
    os.environ["JDK_JAVA_OPTIONS"] = f"{JVM_OPTIONS} {options_of(home)}"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2]: tasks run in Python workers of their own, as on executors."""
    scratch = tmp_path_factory.mktemp("spark")
    made = (
        SparkSession.builder.master("local[2]")
        .appName("ullage-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.codegen.wholeStage", "false")  # a plan runs once here: compiling it takes longer
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.python.unix.domain.socket.enabled", "true")  # over TCP each task waits 40 ms to begin
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.execution.pyspark.udf.faulthandler.enabled", "true")
        .config("spark.python.worker.faulthandler.enabled", "true")
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def _own_session(request: pytest.FixtureRequest) -> None:
    """PySpark finds sources to write with only where the session is the thread's own, and a connection to the JVM that
    was lost and made again is another thread there: see test_traps.
    """
    if "spark" in request.fixturenames:
        request.getfixturevalue("spark").createDataFrame([], "a int")


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Two agents, `a` and `b`, on empty repositories; what they leave is checked when the test ends."""
    with fleet_at(tmp_path, "a", "b") as made:
        yield made


@pytest.fixture
def mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mixed]:
    """Both are asked for a second before they count as missing, and may take two to answer beside other tests."""
    monkeypatch.setattr(asking, "MISSING_SECONDS", 1.0)
    monkeypatch.setattr(asking, "ANSWER_SECONDS", 2.0)
    port = free_port()
    directory = tmp_path / "other"
    directory.mkdir()
    with fleet_at(tmp_path, "a") as fleet, process(directory, service={"flight_port": port}) as other:
        other.start()
        with FlightClient(f"grpc://127.0.0.1:{port}") as client:
            list(client.put_many([[b"there"] * 3]))
        fleet.repository("a").handles.put_many([b"here"] * 2)
        yield Mixed(fleet, other, port)

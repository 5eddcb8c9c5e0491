"""Spark's Thrift server, as a tool that speaks JDBC meets it: Hive's own client types what the command prints. Of `make
spark-full`: a server and a client are two JVMs, which CI has no minute for.
"""

import os
import re
import subprocess
import threading
from collections import deque
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Final

import pyspark
import pytest
from click.testing import CliRunner

from tests.service.test_kill import free_port
from tests.spark.fleet import Fleet
from ullage_agent.cli.app import app

BIN: Final = Path(pyspark.__file__).parent / "bin"
SERVER: Final = "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2"
LISTENS: Final = "HiveThriftServer2 started"
CLIENT_SECONDS_MAX: Final = 300.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of one that has just begun, for JDBC."""
    port = free_port()
    words: list[str | Path] = [BIN / "spark-submit", "--master", "local[2]", "--class", SERVER]
    for name, value in {
        "spark.driver.host": "127.0.0.1",
        "spark.hadoop.hive.server2.thrift.bind.host": "127.0.0.1",
        "spark.hadoop.hive.server2.thrift.port": str(port),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={tmp_path}/metastore;create=true",
        "spark.log.level": "INFO",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.ui.enabled": "false",
    }.items():
        words += ["--conf", f"{name}={value}"]
    with subprocess.Popen(
        [*words, "spark-internal"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as started:
        assert started.stderr is not None
        reading = threading.Thread(target=deque, args=(started.stderr, 0))
        try:
            told = list(takewhile(lambda line: LISTENS not in line, started.stderr))
            assert started.poll() is None, "".join(told[-40:])
            reading.start()  # it stands still where nobody reads what it says
            yield f"jdbc:hive2://127.0.0.1:{port}"
        finally:
            started.terminate()
            started.wait()
            reading.join()


def test_a_client_of_the_thrift_server_reads_and_writes_the_tables(server: str, fleet: Fleet, tmp_path: Path) -> None:
    """They are made by one connection, and there for the next one."""
    fleet.fill(3, 5)
    printed = CliRunner().invoke(app, ["spark", "tables", "-e", fleet.endpoint, "--repository", "flows"])
    assert printed.exit_code == 0, printed.output

    def asked(text: str) -> list[str]:
        script = tmp_path / "asked.sql"
        script.write_text(text, encoding="utf-8")
        words: list[str | Path] = [
            BIN / "beeline",
            "-u",
            server,
            "--silent=true",
            "--outputformat=csv2",
            "--showHeader=false",
        ]
        done = subprocess.run(
            [*words, "-f", script],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            timeout=CLIENT_SECONDS_MAX,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return re.findall("<(.*?)>", done.stdout)  # beside it Hive's client repeats what it read

    asked(printed.stdout)
    asked("INSERT INTO ullage_flows.put WITH (queue 'written') SELECT X'61', map('k', 'v');\n")

    queues = "SELECT concat('<', queue, ' ', sum(flowfiles), '>') FROM ullage_flows.queues GROUP BY queue ORDER BY 1;\n"
    assert asked(queues) == ["in 18", "out 18", "written 1"]
    assert fleet.drained("written") == [b"a"]

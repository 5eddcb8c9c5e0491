"""The programs of examples/spark, one after the other over one fleet, as a data engineer would run them."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from examples.spark import analyse, ingest, plan_and_reclaim
from tests.spark.fleet import Fleet


def test_ingest_analyse_plan_and_reclaim(
    spark: SparkSession, fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files become FlowFiles once, their words are counted in place, and what died is given back under the windows."""
    fleet.rest()
    source = tmp_path / "source"
    source.mkdir()
    for number in range(20):
        (source / f"{number}.txt").write_text("ullage " * 3 + f"word{number % 4} " * 2, encoding="utf-8")
    for _ in range(2):
        ingest.main(fleet.endpoint, str(source), "texts", "first ingest")
    names = sorted(record.attribute_map()["filename"] for record in fleet.records().values())
    assert names == sorted(f"{number}.txt" for number in range(20))

    analyse.main(fleet.endpoint, "texts")
    shown = capsys.readouterr().out
    assert "|ullage|   60|" in shown
    assert "| word0|   10|" in shown

    for name in fleet.agents:
        repository = fleet.repository(name)
        with repository.session() as session:
            session.ingest("texts", [b"x" * (1 << 20)] * 3)
            session.commit()
        repository.queues.drop(repository.queue("texts"))
    fleet.seal()
    fleet.close_windows("b")
    before = dead_bytes(fleet)
    plan_and_reclaim.main(fleet.nodes, "--run")
    said = capsys.readouterr().out
    assert "a: " in said
    assert "window night" in next(line for line in said.splitlines() if line.startswith("b: "))
    assert dead_bytes(fleet)["a"] < before["a"]
    assert dead_bytes(fleet)["b"] == before["b"]


def dead_bytes(fleet: Fleet) -> dict[str, int]:
    """By node."""
    surveys = {name: fleet.repository(name).reclamation.survey() for name in fleet.agents}
    return {name: survey.containers[0].dead_bytes for name, survey in surveys.items()}

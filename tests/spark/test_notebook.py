"""The notebook of examples/spark: its cells, one after the other, over a week whose figures are known."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pyarrow as pa
import pytest

from tests.support import ManualClock
from ullage_spark.dayfiles import DayFiles
from ullage_spark.history import SCHEMAS, TIMES, written

NOTEBOOK = Path(__file__).parents[2] / "examples/spark/fleet_week.ipynb"
GIB = 1 << 30
FIRST = datetime(2026, 11, 16, 1, tzinfo=UTC)


def keep(where: str, table: str, rows: list[dict[str, Any]]) -> None:
    """As a history has them."""
    with written(where, ManualClock()) as tables:
        files = DayFiles(tables[table], SCHEMAS[table], TIMES[table])
        files.write(pa.RecordBatch.from_pylist(rows, pa.schema(list(SCHEMAS[table])[1:])))
        tables[table].commit({}, files.close())


def look(node: str, time: datetime, queue: str, size: str, gib: float) -> dict[str, Any]:
    age = "under a day" if size else ""
    names = {"node": node, "time": time, "container": "c1", "queue": queue, "age": age, "size": size}
    return {**names, "flowfiles": 1, "live_bytes": GIB, "pinned_bytes": int(gib * GIB), "files": 1}


def a_week(where: str) -> None:
    """Nine days of two nodes. Of each day the later look counts, and of the nine days the last seven."""
    space: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    for day in range(9):
        for number, node in enumerate("ab"):
            for hours, factor in ((0, 100), (12, 1)):
                time = FIRST + timedelta(days=day, hours=hours)
                space.append(look(node, time, "orders", "under 1 MiB", factor * (day + 1)))
                space.append(look(node, time, "bills", "under 64 KiB", factor * 0.5))
                space.append(look(node, time, "(nothing lives in it)", "", factor * 2))
            ended = FIRST + timedelta(days=day, minutes=number)
            names = {"node": node, "run": f"{node}{day}", "owner": "", "reason": "clean: window nightly is open"}
            figures = {"steps_done": 1, "freed_bytes": 3 * GIB, "copied_bytes": GIB // 2}
            runs.append({**names, "began_time": ended, "ended_time": ended, **figures})
    keep(where, "space", space)
    keep(where, "runs", runs)


def test_a_fleets_week_is_drawn_from_its_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three pictures, whose figures are those of the history, and what they come to in words."""
    mpl.use("Agg")
    a_week(str(tmp_path))
    monkeypatch.setenv("ULLAGE_HISTORY", str(tmp_path))
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells)
    found: dict[str, Any] = {}
    titles = []
    for cell in cells:
        exec(compile("".join(cell["source"]), str(NOTEBOOK), "exec"), found)
        titles += [found["plt"].figure(number).axes[0].get_title() for number in found["plt"].get_fignums()]
        found["plt"].close("all")

    assert titles == [
        "Dead bytes by the queue that pins them",
        "Dead bytes by the age and size of what pins them",
        "Given back, by what allowed it",
    ]
    assert found["dead"]["orders"].tolist() == [2.0 * (day + 1) for day in range(2, 9)]
    assert found["beside"].loc["under a day"].to_dict() == {"under 1 MiB": 18.0, "under 64 KiB": 1.0}
    assert found["given"]["clean: window nightly is open"].tolist() == [6.0] * 7
    assert capsys.readouterr().out.splitlines() == [
        "23.0 GiB are dead, 19.0 of them pinned; most by orders",
        "42.0 GiB were given back in 14 runs, for 7.0 GiB copied",
    ]

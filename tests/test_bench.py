import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import bars
from bench.__main__ import CASES
from bench.exponents import slope
from bench.graph import draw
from bench.table import Results, Row, Target, read_results, results_file, with_summary, write_docs

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def rows_of(tmp_path: Path, *cases: str) -> list[dict[str, Any]]:
    """What a small run of these cases measured."""
    document = tmp_path / "table.json"
    result = bench(*cases, "--size", "tiny", "--dir", str(tmp_path), "--json", str(document))
    assert result.returncode == 0, result.stderr
    rows: list[dict[str, Any]] = json.loads(document.read_text(encoding="utf-8"))["rows"]
    return rows


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, list[dict[str, object]]], Path]:
    """The printed table, the JSON and the place of a run of two cases."""
    place = tmp_path_factory.mktemp("bench")
    document = place / "table.json"
    work = place / "work"
    work.mkdir()
    arguments = ("--quick", "--size", "tiny", "--dir", str(work), "--json", str(document))
    result = bench("content-batches", "updates-slow-disk", *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout, json.loads(document.read_text(encoding="utf-8")), work


def test_the_table_has_ratios_with_spread_target_and_verdict(
    measured: tuple[str, dict[str, list[dict[str, object]]], Path],
) -> None:
    """Each row says what was compared, the least, median and largest ratio, the target, and whether it was met."""
    table, _, _ = measured

    line = next(line for line in table.splitlines() if "1,000 claims of 1 KB a commit" in line)

    _, case, what, against, spread, target, met, medians, _ = [cell.strip() for cell in line.split("|")]
    assert (case, what, against) == ("content", "1,000 claims of 1 KB a commit", "writev + fdatasync")
    least, median, largest = [float(part) for part in spread.removesuffix(" x").split(" - ")]
    assert 0 < least <= median <= largest
    assert target == ">= 0.70"
    assert met in ("yes", "NO")
    assert "peer" in medians


def test_the_json_holds_every_round(measured: tuple[str, dict[str, list[dict[str, object]]], Path]) -> None:
    """The JSON has the same rows as the table, with the ratio of each round."""
    _, document, _ = measured

    rows = document["rows"]

    assert [row["case"] for row in rows] == ["content", "content", "updates", "updates"]
    assert all(isinstance(row["values"], list) and len(row["values"]) == 3 for row in rows)


def test_reclamation_is_measured(tmp_path: Path) -> None:
    """The cases of reclamation run; what counts bytes rather than time holds at any size."""
    rows = rows_of(tmp_path, "reclaim-story", "reclaim-copying", "reclaim-growth")
    timed = ("rewriting", "exponent", "after 1%")
    met = {row["what"]: row["met"] for row in rows if not any(each in str(row["what"]) for each in timed)}

    assert len(rows) == 27
    assert set(met.values()) == {None, True}


def test_a_run_leaves_nothing_behind(measured: tuple[str, dict[str, list[dict[str, object]]], Path]) -> None:
    """The directory that a run worked in is as empty as before."""
    _, _, work = measured

    assert list(work.iterdir()) == []


def test_what_is_put_over_each_transport_is_measured(tmp_path: Path) -> None:
    """The node starts in its own process, and each path has its row."""
    rows = rows_of(tmp_path, "agent-puts", "agent-single-puts", "agent-large-puts")

    told = " ".join(row["what"] for row in rows)
    assert all(f"puts of {size}" in told for size in ("1 KB", "100 KB", "10 MB", "4 MiB"))
    assert {row["against"] for row in rows} == {"the engine, called", "a socket that only receives"}
    assert {row["target"]["value"] for row in rows if row["target"]} == {0.6}


def test_what_is_read_over_each_transport_is_measured(tmp_path: Path) -> None:
    """The same of what comes out."""
    rows = rows_of(tmp_path, "agent-reads", "agent-large")

    told = " ".join(row["what"] for row in rows)
    assert all(f"reads of {size}" in told for size in ("1 KB", "100 KB", "10 MB", "4 MiB"))
    assert "pread, thrown away" in {row["against"] for row in rows}
    assert 0.8 in {row["target"]["value"] for row in rows if row["target"] and row["unit"] == "x"}


def test_what_clients_cost_a_node_and_one_another_is_measured(tmp_path: Path) -> None:
    """Memory holds at any size: slow readers and strangers stay below what is promised for them."""
    cases = [case for case in CASES if case.startswith("agent-") and not case.endswith(("puts", "reads", "large"))]
    rows = rows_of(tmp_path, *cases)

    memory = [row for row in rows if row["unit"] == "MiB" and row["target"]]
    assert len(memory) == 8
    assert all(row["met"] for row in memory)


def test_an_unknown_case_is_named_with_those_there_are() -> None:
    """A misspelt case ends with status 2 and the list of cases, before anything is measured."""
    result = bench("recoverey")

    assert result.returncode == 2
    assert "recoverey" in result.stderr
    assert "recovery" in result.stderr


def test_the_page_says_what_the_json_beside_it_holds() -> None:
    """Each table of docs/performance.md is what its JSON makes of it, and the page stays one that is read."""
    tables = re.findall("<!-- (.*): begin -->", PAGE.read_text(encoding="utf-8"))

    assert sorted(tables) == sorted(file.stem for file in PAGE.with_suffix("").iterdir())
    for table in tables:
        shown = with_summary(PAGE, table, read_results(results_file(PAGE, table)))
        assert shown == PAGE.read_text(encoding="utf-8"), f"{table}: written by hand, or its JSON was"
    assert PAGE.stat().st_size < 44_000


def test_chosen_cases_replace_their_own_rows_only(tmp_path: Path) -> None:
    """A run of some cases leaves the other rows and tables as they are; a run of all replaces the table."""
    document = tmp_path / "page.md"
    other = "<!-- other: begin -->\ntheirs\n<!-- other: end -->"
    document.write_text(f"{other}\n<!-- bench: begin -->\n<!-- bench: end -->\nbelow\n", encoding="utf-8")
    first = [Row("content", "reads", "pread", (2.0,)), Row("updates", "one", "disk", (3.0,), target=Target(4))]
    write_docs(document, "bench", first, "1 core", is_all=True)

    write_docs(document, "bench", [Row("content", "reads", "pread", (5.0,))], "1 core", is_all=False)
    write_docs(document, "bench", [Row("content", "writes", "disk", (7.0,))], "1 core", is_all=False)
    for theirs in ("1.13", "1.14"):
        row = Row("space", "disk / live", f"a peer: {theirs}", (1.0,))
        write_docs(document, "bench", [row], "1 core", is_all=False)

    rows = read_results(results_file(document, "bench")).rows
    assert [(row.case, row.what, row.against, row.median) for row in rows] == [
        ("content", "reads", "pread", 5.0),
        ("content", "writes", "disk", 7.0),
        ("updates", "one", "disk", 3.0),
        ("space", "disk / live", "a peer: 1.14", 1.0),
    ]
    text = document.read_text(encoding="utf-8")
    assert "| one | disk | 3.00 x | **>= 4.00** |" in text
    assert "writes" not in text
    write_docs(document, "bench", first[:1], "1 core", is_all=True)
    text = document.read_text(encoding="utf-8")
    assert "updates" not in text
    assert text.startswith(other)
    assert text.endswith("\nbelow\n")


def test_rows_of_two_machines_are_not_mixed(tmp_path: Path) -> None:
    """Rows that stay were measured where the new ones were, or the table is refused: ratios hold for one machine."""
    document = tmp_path / "page.md"
    document.write_text("<!-- bench: begin -->\n<!-- bench: end -->\n", encoding="utf-8")
    write_docs(document, "bench", [Row("content", "reads", "pread", (2.0,))], "1 core", is_all=True)
    before = {path: path.read_bytes() for path in (document, results_file(document, "bench"))}

    with pytest.raises(ValueError, match="are not of 2 cores"):
        write_docs(document, "bench", [Row("updates", "one", "disk", (3.0,))], "2 cores", is_all=False)

    assert {path: path.read_bytes() for path in before} == before


def test_placement_is_measured(tmp_path: Path) -> None:
    """Every way to pack content ends with little more on disk than lives, and copies less than was put."""
    rows = rows_of(tmp_path, "placement-outputs")

    copied = [row["values"] for row in rows if "bytes copied" in row["what"]]

    assert len(copied) == 3
    assert all(0 <= value < 1 for values in copied for value in values)


def test_growth_is_measured(tmp_path: Path) -> None:
    """Each main operation has its exponent, fitted through three sizes, and the costs it was fitted through."""
    rows = rows_of(tmp_path, "growth")

    operations = {row["what"].partition(",")[0] for row in rows}

    assert operations >= {"get", "survey", "plan", "rewrite", "backup", "checkpoint", "open"}
    assert all(row["medians"].count(",") == 2 for row in rows)


def test_the_exponent_is_fitted_through_all_sizes() -> None:
    """0: a thing costs the same however many there are; 1: ten times as many make each ten times as dear."""
    assert slope({10: 2.0, 100: 2.0, 1_000: 2.0}) == pytest.approx(0)
    assert slope({10: 1.0, 100: 10.0, 1_000: 100.0}) == pytest.approx(1)
    assert slope({10: 1.0, 100: 1.0, 1_000: 100.0}) == pytest.approx(1)


def test_space_over_time_is_drawn() -> None:
    """A line for each kind of overwrites, in its colour, between the axes."""
    image = draw([("one", [1.0, 1.4, 1.4, 1.3], "#1f6fb4"), ("other", [1.0, 1.9, 2.5], "#c8552b")])

    colours = {image.getpixel((x, y)) for x in range(image.width) for y in range(image.height)}

    assert {(0x1F, 0x6F, 0xB4), (0xC8, 0x55, 0x2B)} <= colours


def test_bars_tell_what_was_met(tmp_path: Path) -> None:
    """A colour each for a target that was met, one that was not, and none; figures in a unit of their own stay out."""
    rows = [
        Row("content", "writes", "NiFi", (2.0, 3.0, 4.0), target=Target(2), medians="1.00 us, peer 3.00 us"),
        Row("content", "reads", "NiFi", (0.5, 0.5, 0.5)),
        Row("space", "disk / live", "NiFi: 1,139", (1.4, 1.4, 1_200), "", Target(1.05, is_ceiling=True)),
        Row("pauses", "longest", "", (30.0, 30.0, 30.0), "ms"),
    ]
    file = tmp_path / "rows.json"
    file.write_text(Results("a machine", tuple(rows)).as_json(), encoding="utf-8")

    image = bars.draw(read_results(file).rows)

    colours = {image.getpixel((x, y)) for x in range(image.width) for y in range(image.height)}
    assert {tuple(bytes.fromhex(colour[1:])) for colour in (bars.MET, bars.MISSED, bars.PLAIN)} <= colours
    assert read_results(file) == Results("a machine", tuple(rows))
    assert image.height < bars.draw([*rows, Row("pauses", "ratio", "NiFi", (1.0,))]).height

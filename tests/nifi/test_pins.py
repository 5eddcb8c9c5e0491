import itertools
import json
import os
import random
import re
import subprocess
import sys
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from tests.nifi.example import (
    FAILURES,
    LONG_AGO,
    MIB,
    NOW_MILLIS,
    TO_FILES,
    TO_KAFKA,
    example,
    write_content,
    write_flow,
    write_nifi,
)
from tests.nifi.samples import NAMES, Told, home_of_sample, truth, unpacked
from tests.nifi.test_survey import LATER_MILLIS, path_of
from tests.nifi.written import Written
from tests.support import ManualClock
from ullage.nifi.contents import ClaimFile
from ullage.nifi.flowfiles import NiFiFlowFile
from ullage.nifi.home import home_of
from ullage.nifi.pins import FreeingSet, PinPlan
from ullage.nifi.surveying import pins_of_nifi
from ullage_agent.cli.app import app

FULL = "ULLAGE_NIFI_FULL" in os.environ
DOCS = Path(__file__).parents[2] / "docs" / "nifi.md"
WIDTH = 130
SETTLED = 1

MEASURED = """
import atexit, sys, time

def told():
    peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:"))
    print(peak, time.process_time(), file=sys.stderr)

atexit.register(told)
from ullage_agent.cli import main
main()
"""
"""The command line, which tells at its end how many KiB of memory and seconds of a processor it had."""


def ullage(*arguments: object, expect: int = 0) -> Result:
    result = CliRunner(env={"COLUMNS": str(WIDTH)}).invoke(app, ["nifi", *map(str, arguments)])
    assert result.exit_code == expect, result.output
    return result


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is when the example was looked at."""
    monkeypatch.setattr("ullage.clock.Clock", lambda: ManualClock(NOW_MILLIS))


@pytest.fixture
def nifi(tmp_path: Path) -> Path:
    example(tmp_path / "nifi")
    return tmp_path / "nifi"


def plan_of(files: dict[str, tuple[int, list[tuple[str, int, int]]]], truncated_above: int | None = None) -> PinPlan:
    """Of files with their sizes and FlowFiles: queue, start and size of each."""
    flowfiles = [
        NiFiFlowFile(queue, file, start, size, 0, None, start)
        for file, (_, held) in files.items()
        for queue, start, size in held
    ]
    facts = {file: ClaimFile(size, size, SETTLED) for file, (size, _) in files.items()}
    return PinPlan(flowfiles, facts, LATER_MILLIS, truncated_above)


@pytest.mark.parametrize("name", NAMES)
def test_each_file_is_pinned_by_the_flowfiles_that_nifi_has_in_it(name: str, tmp_path: Path) -> None:
    """With the names, queue and place of each; what comes back of a queue is what no other queue holds."""
    place = unpacked(name, tmp_path)
    held: dict[str, list[Told]] = defaultdict(list)
    for each in truth(place):
        if each.file:
            held[each.file].append(each)

    found = pins_of_nifi(home_of_sample(place), ManualClock(LATER_MILLIS))

    assert {pin.file for pin in found.plan.pins} == held.keys()
    for pin in found.plan.pins:
        assert pin.size == path_of(place, pin.file).stat().st_size
        holders = [
            ((each.attributes or {})["uuid"], each.queue, each.start, each.size) for each in found.plan.holders(pin)
        ]
        assert sorted(holders) == sorted((each.uuid, each.queue, each.start, each.size) for each in held[pin.file])
    for queue in found.plan.queues({}):
        alone = [file for file, all_of_them in held.items() if {each.queue for each in all_of_them} == {queue.name}]
        assert (queue.whole_files, queue.whole) == (
            len(alone),
            sum(path_of(place, file).stat().st_size for file in alone),
        )


def fewest(plan: PinPlan, goal: int, *, tails: bool) -> int | None:
    """By trying everything."""
    best = None
    levels = [[(0, 0), *([(pin.tail, pin.tail_flowfiles)] if tails and pin.tail else []), (pin.size, pin.flowfiles)]
              for pin in plan.pins]  # fmt: skip
    for choice in itertools.product(*levels):
        if sum(size for size, _ in choice) >= goal:
            count = sum(flowfiles for _, flowfiles in choice)
            best = count if best is None else min(best, count)
    return best


def check_set(plan: PinPlan, found: FreeingSet, *, tails: bool) -> None:
    """What it says of itself follows from the FlowFiles that it names."""
    assert found.freed == sum(each.freed for each in found.files)
    assert found.flowfiles == sum(each.flowfiles for each in found.files)
    for each in found.files:
        leaving = list(plan.leaving(each))
        stays = [flowfile for flowfile in plan.holders(each.pin) if flowfile not in leaving]
        assert len(leaving) == each.flowfiles
        if each.is_whole:
            assert (each.freed, stays) == (each.pin.size, [])
        else:
            assert tails
            start = max(flowfile.claim_start for flowfile in plan.holders(each.pin))
            assert all(flowfile.claim_start < start for flowfile in stays)
            assert each.freed == each.pin.size - start


@pytest.mark.parametrize("tails", [False, True])
def test_the_set_that_frees_is_as_small_as_it_says(tails: bool, seed: int) -> None:
    """Against everything that could be chosen: never fewer than it says are needed, and the fewest where it says so."""
    chance = random.Random(seed)
    smallest = 0
    for _ in range(300):
        files: dict[str, tuple[int, list[tuple[str, int, int]]]] = {}
        for number in range(chance.randrange(1, 7)):
            starts = sorted(chance.sample(range(40), chance.randrange(1, 6)))
            held = [("queue", start, chance.randrange(1, 20)) for start in starts]
            files[f"default/1/1-{number}"] = (chance.randrange(40, 100), held)
        plan = plan_of(files, 4)
        total = sum(size for size, _ in files.values())
        goal = chance.randrange(1, total + 30)

        found = plan.free(goal, tails=tails)

        check_set(plan, found, tails=tails)
        best = fewest(plan, goal, tails=tails)
        assert found.is_enough == (best is not None) == (goal <= total)
        if best is not None:
            assert found.at_least <= best <= found.flowfiles
            smallest += found.is_smallest
        else:
            assert found.freed == total
    assert smallest > 100


def test_room_is_sought_where_few_flowfiles_hold_much() -> None:
    """Not where much is dead: a file of many FlowFiles needs them all to leave."""
    plan = plan_of(
        {
            "default/1/1-1": (1_000, [("queue", start, 1) for start in range(10)]),
            "default/1/1-2": (500, [("queue", 0, 0)]),
            "default/1/1-3": (300, [("queue", 0, 300)]),
        }
    )

    assert [each.pin.file for each in plan.free(800, tails=False).files] == ["default/1/1-2", "default/1/1-3"]
    assert plan.free(400, tails=False).files[0].pin.size == 500
    assert plan.free(250, tails=False).flowfiles == 1


def test_what_the_goal_is_reached_without_stays() -> None:
    """The best one comes first, and is superfluous once a larger one is there."""
    plan = plan_of(
        {
            "default/1/1-1": (10, [("queue", 0, 1)]),
            "default/1/1-2": (100, [("queue", start, 1) for start in range(11)]),
        }
    )

    found = plan.free(100, tails=False)

    assert ([each.pin.file for each in found.files], found.flowfiles) == (["default/1/1-2"], 11)


def test_a_tail_is_what_nifi_cuts_off() -> None:
    """From where the last content begins, once no FlowFile needs any part of it, if it is longer than NiFi asks."""
    files = {"default/1/1-1": (5_000, [("one", 0, 100), ("one", 100, 100), ("two", 200, 4_000)])}
    parts = [("one", 0, 100), ("two", 200, 2_000), ("one", 2_200, 2_000)]

    found = plan_of(files, 3_999).free(4_000, tails=True)
    assert [(each.freed, each.flowfiles, each.is_whole) for each in found.files] == [(4_800, 1, False)]
    assert {queue.name: (queue.whole, queue.tails) for queue in plan_of(files, 3_999).queues({})} == {
        "one": (0, 0),
        "two": (0, 4_800),
    }
    for above in (4_000, None):
        assert [each.is_whole for each in plan_of(files, above).free(4_000, tails=True).files] == [True]
    of_one_content = [
        NiFiFlowFile(queue, "default/1/1-1", start, size, 0, None, min(start, 200)) for queue, start, size in parts
    ]
    plan = PinPlan(of_one_content, {"default/1/1-1": ClaimFile(5_000, 0, SETTLED)}, LATER_MILLIS, 3_999)
    assert (plan.pins[0].tail, plan.pins[0].tail_flowfiles) == (4_800, 2)
    assert [queue.tails for queue in plan.queues({})] == [0, 0]


@pytest.mark.parametrize(
    ("properties", "above"),
    [
        ({}, 51_200),
        ({"nifi.content.claim.max.appendable.size": "10 KB"}, 10_240),
        ({"nifi.content.claim.max.appendable.size": "1 mb"}, 1_000_000),
        ({"nifi.content.claim.max.appendable.size": "much"}, 51_200),
        ({"nifi.content.claim.truncation.enabled": "false"}, None),
    ],
)
def test_nifis_own_settings_say_what_it_cuts_off(properties: dict[str, str], above: int | None) -> None:
    """The less of a million bytes and of what it appends to a file."""
    named = {"nifi.flowfile.repository.directory": "f", "nifi.content.repository.directory.default": "c"}

    assert home_of(named | properties, "/").truncated_above == above


def test_files_that_nifi_may_be_writing_to_are_not_counted_on(nifi: Path, now: None) -> None:
    """Somebody's content may be in them that no FlowFile has yet."""
    everything = json.loads(ullage("pins", nifi, "--free", "1Ti", "--json").stdout)["freeing"]
    write_content(nifi, f"default/6/{LONG_AGO}-6", 15 * MIB, written_millis=NOW_MILLIS - 60_000)

    result = ullage("pins", nifi, "--free", "1Ti")

    assert not everything["is_enough"]
    assert "1.0 TiB can't be freed" in result.stdout
    assert "Left out: 1 file with 15.0 MiB" in result.stdout
    document = json.loads(ullage("pins", nifi, "--free", "1Ti", "--json").stdout)
    assert everything["freed"] - document["freeing"]["freed"] == 15 * MIB
    (leaving,) = json.loads(ullage("pins", nifi, "--free", "13Mi", "--json").stdout)["freeing"]["files"]
    assert leaving["file"] == f"default/5/{LONG_AGO}-5"


def blocks() -> dict[str, str]:
    """The commands of docs/nifi.md that it shows the output of, and that output."""
    found = re.findall(
        r"^    ullage nifi ([^\n]*)\n\n```text\n(.*?)```", DOCS.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    return {command.partition("#")[0].strip(): output for command, output in found}


def test_the_manual_shows_what_is_printed(nifi: Path, tmp_path: Path, now: None) -> None:
    """Of a NiFi that the tests write."""
    shown = blocks()

    assert [command.split()[0] for command in shown] == ["survey", "pins", "pins", "plan", "import"]
    for command, output in shown.items():
        name, conf, *rest = command.split()
        assert conf == "/opt/nifi/nifi-current"
        target = str(tmp_path / "ullage")
        printed = ullage(name, nifi, *(target if word == "/data/ullage" else word for word in rest)).stdout
        printed = printed.replace(target, "/data/ullage")
        assert [line.rstrip() for line in printed.splitlines()] == output.splitlines()


def test_programs_get_the_whole_set_that_frees(nifi: Path, now: None) -> None:
    """And of the files, as many FlowFiles as they asked for."""
    options = ("--json", "--free", "130Mi", "--files", 1, "--flowfiles", 2)

    found: dict[str, Any] = json.loads(ullage("pins", nifi, *options).stdout)

    assert [len(file["held_by"]) for file in found["files"]] == [1]
    assert found["freeing"]["flowfiles"] == sum(len(file["flowfiles"]) for file in found["freeing"]["files"])
    assert len(found["freeing"]["files"]) > 1
    (holder,) = found["files"][0]["held_by"]
    assert holder["filename"] == "order-0006.done"
    assert (holder["queue"], holder["queue_identifier"]) == ("Ingest / PutS3 -> funnel", FAILURES)


def test_parquet_has_a_row_for_each_flowfile(nifi: Path, tmp_path: Path, now: None) -> None:
    """With its file, and whether it is one of those that have to leave."""
    path = tmp_path / "pins.parquet"

    ullage("pins", nifi, "--free", "20Mi", "--parquet", path)

    rows = pq.read_table(path).to_pylist()
    assert len(rows) == 88
    assert {row["queue_identifier"] for row in rows} == {FAILURES, TO_KAFKA, TO_FILES}
    leaving = [row for row in rows if row["leaves"]]
    assert sum(row["file_size"] for row in leaving) >= 20 * MIB
    assert {row["filename"] for row in leaving} == {"order-0005.done", "order-0006.done"}
    assert leaving[0]["queued"].timestamp() * 1_000 + leaving[0]["waiting_millis"] == NOW_MILLIS
    assert "is there already" in ullage("pins", nifi, "--parquet", path, expect=2).stderr


class Page(HTMLParser):
    """What a browser makes of a page: elements with their attributes, and the texts in them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(2)'>",
    "</td></table><iframe src=//evil.example>",
    "&lt;b&gt;",
    "\x1b[2J\x07 \u202ecod.exe",
    "größe \N{GRINNING FACE}",
)


def test_a_page_shows_hostile_names_as_text_and_loads_nothing(tmp_path: Path, now: None) -> None:
    """Whoever can send a file to NiFi chooses its name."""
    place, path = tmp_path / "nifi", tmp_path / "pins.html"
    flowfiles = [
        Written(number, name, "default/1/1-1", 0, 1, LONG_AGO, {"uuid": name, "filename": name})
        for number, name in enumerate(HOSTILE)
    ]
    write_nifi(place, flowfiles, len(flowfiles))
    write_content(place, "default/1/1-1", MIB)

    ullage("pins", place, "--html", path, "--free", 1, "--flowfiles", 10)

    text = path.read_text("utf-8")
    page = Page(text)
    assert page.tags == {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "h2",
        "h3",
        "p",
        "table",
        "tr",
        "th",
        "td",
    }
    assert {name for name, _ in page.attributes} == {"lang", "charset", "http-equiv", "content", "name", "class"}
    for name in HOSTILE[:4]:
        assert name in page.texts
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]|https?:|url\(", text)
    shown = ullage("pins", place, "--flowfiles", 10).stdout
    assert "\x1b" not in shown
    assert "\u202e" not in shown


def test_what_could_not_be_read_ends_with_its_own_code(tmp_path: Path) -> None:
    """The files may have more FlowFiles."""
    place = unpacked(NAMES[0], tmp_path)
    home = home_of_sample(place)
    min((place / "flowfile_repository" / "swap").iterdir()).unlink()
    containers = [word for item in home.containers.items() for word in ("--content-repository", "=".join(item))]

    result = ullage("pins", "--flowfile-repository", home.flowfiles, *containers, expect=11)

    assert "may have more of them" in result.stderr


def test_options_that_make_no_sense_are_refused(nifi: Path) -> None:
    """Before anything is read."""
    assert "--tails goes with --free" in ullage("pins", nifi, "--tails", expect=2).stderr
    assert "a byte at least" in ullage("pins", nifi, "--free", 0, expect=2).stderr


def test_a_million_flowfiles_take_bounded_memory_and_time(tmp_path: Path) -> None:
    """Outside the full target, a fiftieth of them: the bound for each, and for what comes with Python and Arrow."""
    count = 1_000_000 if FULL else 20_000
    place = tmp_path / "nifi"

    def flowfiles() -> Any:
        for number in range(count):
            file, place_in_it = divmod(number, 100)
            identifier = f"default/{file % 1024}/{LONG_AGO}-{file}"
            names = {
                "uuid": f"{number:032x}----",
                "filename": f"{number:030}.csv",
                "path": "./",
                "mime.type": "text/csv",
            }
            names |= {"kafka.topic": "orders", "kafka.offset": str(number), "record.count": "100"}
            yield Written(number, TO_KAFKA, identifier, place_in_it * 1_000_000, 1_000, LONG_AGO, names)

    write_nifi(place, flowfiles(), count)
    write_flow(place)
    for file in range(count // 100):
        path = place / "content_repository" / str(file % 1024) / f"{LONG_AGO}-{file}"
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.truncate(path, 100_000_000)
    command = ["pins", str(place), "--free", "500Gi", "--parquet", str(tmp_path / "pins.parquet"), "--json"]

    done = subprocess.run(
        [sys.executable, "-c", MEASURED, "nifi", *command],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )

    peak, seconds = int(done.stderr.split()[0]) << 10, float(done.stderr.split()[1])
    print(f"{count:,} FlowFiles: {seconds:.1f} s, {peak >> 20} MiB")
    assert peak < (200 << 20) + count * 800
    assert seconds < 60
    assert pq.read_metadata(tmp_path / "pins.parquet").num_rows == count

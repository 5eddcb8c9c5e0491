"""`make nifi-full`: seeded repositories of NiFi's own classes against what they held, and what NiFi has of them once
they were reclaimed, or their survivors brought together; surveys beside a busy NiFi.

ULLAGE_SEED is where the seeds begin, ULLAGE_NIFI_SAMPLES how many repositories there are, of all versions together;
NIFI_SRC names a checkout of a NiFi release besides those in Maven Central. Needs a JDK and Maven. What was judged with
these sources is not judged again, so that the next call goes on; ULLAGE_NIFI_MINUTES ends it between two cases. Each
eighth seed is stopped at each call of a reclaim, and of a rewrite; NiFi judges some of these.
"""

import hashlib
import json
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import ullage.nifi
from bench.harness import SOURCES
from tests.nifi.diagnosed import check_at_work
from tests.nifi.judged import JudgedSample, check_events, check_reclaim, check_stops
from tests.nifi.samples import RELEASES, command, home_of_sample, told, told_of
from tests.nifi.test_reclaim import live_of_sample
from tests.nifi.test_rewrite import held
from tests.nifi.test_survey import LATER_MILLIS, live_of, sizes, survey
from ullage.clock import Clock
from ullage.nifi.moment import NiFiMoment
from ullage.nifi.survey import NiFiSurvey
from ullage.nifi.surveying import survey_nifi

KEPT = Path("build") / "nifi-full.json"
SURVEYS = 200
SURVEYS_MORE = 40
"""Of each further version: what it has written grows, and so does the time that each takes."""

STOPPED = 8
"""Of so many seeds the reclaim of one is stopped at each of its calls."""

JUDGED_STOPS = 8
DIAGNOSED = 20
"""After one of so many surveys beside it NiFi is asked for its diagnostics."""

FLOWFILES = 10_000
"""About what a busy NiFi holds."""


def check_sample(place: Path) -> None:
    """FlowFiles and uses of the disk are what the program that wrote them says."""
    home = home_of_sample(place)
    with closing(NiFiMoment(home.flowfiles, attributes=True)) as moment:
        moment.read()
        moment.read_swaps()
        assert told_of(list(moment.flowfiles())) == told(place)
        assert moment.damages == []
    found = survey(home, LATER_MILLIS).space
    marked, files = live_of(place), sizes(place)
    live, held = sum(map(sum, marked.values())), sum(map(len, marked.values()))
    assert (found.live, found.size, found.files) == (live, sum(files.values()), len(files))
    assert found.dead_middles + found.dead_tails == held - live


def check_beside(java: list[str], place: Path, seed: int, surveys: int, flowfiles: int) -> tuple[int, int, int]:
    """Surveys while NiFi works, one after the other: each is right about the transaction that it names. Some more say
    what its diagnostics tell, while it stands still.

    Returns how many transactions happened, how many FlowFiles there were at the most, and how many surveys saw NiFi
    work in their own time.
    """
    place.mkdir()
    for name in ("flowfile_repository/journals", "content_repository", "content_second"):
        (place / name).mkdir(parents=True)
    at_work = [*java, str(place), str(seed), "busy", str(flowfiles)]
    busy = subprocess.Popen(
        at_work, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    found: list[NiFiSurvey] = []
    try:
        while len(found) < surveys:
            assert busy.poll() is None, "NiFi ended"
            latest = survey_nifi(home_of_sample(place), Clock())
            if found or latest.flowfiles >= flowfiles * 3 // 4:
                found.append(latest)
                if len(found) % DIAGNOSED == 1:
                    assert check_at_work(busy, home_of_sample(place)).files
    finally:
        busy.kill()
        busy.communicate()
    log = {}
    for line in (place / "log.tsv").read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):  # the last one is torn by the kill
            transaction, count, size = map(int, line.split("\t"))
            log[transaction] = (count, size)
    for each in found:
        assert each.damages == [], each.damages
        assert (each.missing, each.missing_bytes) == (0, 0), each
        if each.transaction in log:  # the last one may have been killed before it was noted
            assert (each.flowfiles, sum(queue.size for queue in each.queues)) == log[each.transaction], each
    assert len({each.transaction for each in found} - log.keys()) <= 1
    return len(log), max(each.flowfiles for each in found), sum(each.is_in_use for each in found)


def check_seed(java: list[str], seed: int) -> str:
    """What NiFi wrote is read as it was, and is as it was for NiFi when it was reclaimed, and when it was rewritten."""
    with sample_of(java, seed) as sample:
        sample.restore()
        check_sample(sample.place)
        flowfiles = len(live_of_sample(sample.place))
        freed, more = check_reclaim(sample), check_reclaim(sample, is_rewriting=True)
        return f"{flowfiles} FlowFiles as they were written, and after {freed:,} and {more:,} bytes came back"


def check_stopped(java: list[str], seed: int, *, is_rewriting: bool) -> str:
    """The same, where it was stopped at each of its calls."""
    with sample_of(java, seed) as sample:
        sample.restore()
        live = sorted(held(sample.home), key=repr)

        def check() -> None:
            assert sorted(held(sample.home), key=repr) == live

        stops = check_stops(sample, check, JUDGED_STOPS, random.Random(seed), is_rewriting=is_rewriting)
        return f"{stops} times stopped"


@contextmanager
def sample_of(java: list[str], seed: int) -> Iterator[JudgedSample]:
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shared) as scratch:
        yield JudgedSample(java, Path(scratch) / "nifi", seed, ("killed", "stopped")[seed % 2])


def check_set_aside(java: list[str]) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        check_events(java, Path(scratch) / "nifi")
    return "events that were set aside stay aside"


def check_busy(java: list[str], seed: int, surveys: int) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        happened, most, amid = check_beside(java, Path(scratch) / "nifi", seed, surveys, FLOWFILES)
    seen = f"{happened:,} transactions, up to {most:,} FlowFiles"
    return f"{surveys} surveys, none wrong, {amid} of them amid its work; {seen}"


def cases() -> Iterator[tuple[str, Callable[[], str]]]:
    """By name; those of one seed together, behind those that take all of a NiFi."""
    first = int(os.environ.get("ULLAGE_SEED") or 1)
    samples = int(os.environ.get("ULLAGE_NIFI_SAMPLES") or 100)
    source = os.environ.get("NIFI_SRC")
    versions = [
        command(None),
        *(command(None, release) for release in RELEASES),
        *([command(source)] if source else []),
    ]
    for version, java in versions:
        surveys = SURVEYS if java == versions[0][1] else SURVEYS_MORE
        yield f"NiFi {version}, busy, seed {first}", partial(check_busy, java, first, surveys)
    if source:
        yield f"NiFi {versions[-1][0]}, events", partial(check_set_aside, versions[-1][1])
    for seed in range(first, first + -(-samples // len(versions))):
        for version, java in versions:
            yield f"NiFi {version}, seed {seed}", partial(check_seed, java, seed)
            if seed % STOPPED == 0:
                for how in (False, True):
                    name = f"NiFi {version}, seed {seed}, {'rewrite' if how else 'reclaim'} stopped at each call"
                    yield name, partial(check_stopped, java, seed, is_rewriting=how)


def main() -> None:
    """Those that were not judged with these sources before; the first thing that is wrong ends it."""
    version = hashlib.sha256()
    for path in (*sorted(Path(ullage.nifi.__file__).parent.glob("*.py")), *sorted(SOURCES.rglob("*.java"))):
        version.update(path.read_bytes())
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    judged: dict[str, str] = kept.get("judged", {}) if kept.get("version") == version.hexdigest() else {}
    minutes = float(os.environ.get("ULLAGE_NIFI_MINUTES") or 0)
    end = time.monotonic() + minutes * 60
    found = list(cases())
    for name, check in found:
        if name in judged:
            continue
        if minutes and time.monotonic() > end:
            break
        judged[name] = check()
        print(f"{name}: {judged[name]}", flush=True)
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps({"version": version.hexdigest(), "judged": judged}, indent=1))
    done = sum(name in judged for name, _ in found)
    print(f"{100 * done // len(found)} % of {len(found)} cases, none wrong")


if __name__ == "__main__":
    main()

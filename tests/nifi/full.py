"""`make nifi-full`: seeded repositories of NiFi's own classes against what they held, and what NiFi has of them once
they were reclaimed; surveys beside a busy NiFi.

ULLAGE_SEED is where the seeds begin, ULLAGE_NIFI_SAMPLES how many there are of each version; NIFI_SRC names a checkout
of a NiFi release besides the one in Maven Central. Needs a JDK and Maven. `--busy` leaves the seeded ones out. A
reclaim of every tenth one is stopped at each of its calls; NiFi judges some of these.
"""

import os
import random
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from tests.nifi.judged import JudgedSample, check_events, check_reclaim, check_stops
from tests.nifi.samples import command, home_of_sample, told, told_of
from tests.nifi.test_reclaim import live_of_sample
from tests.nifi.test_survey import LATER_MILLIS, live_of, sizes, survey
from ullage.clock import Clock
from ullage.nifi.moment import NiFiMoment
from ullage.nifi.survey import NiFiSurvey
from ullage.nifi.surveying import survey_nifi

SURVEYS = 200
STOPPED = 10
"""Of so many seeds the reclaim of one is stopped at each of its calls."""

JUDGED_STOPS = 8
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
    """Surveys while NiFi works, one after the other: each is right about the transaction that it names.

    Returns how many transactions happened, how many FlowFiles there were at the most, and how many surveys saw NiFi
    work in their own time.
    """
    place.mkdir()
    for name in ("flowfile_repository/journals", "content_repository", "content_second"):
        (place / name).mkdir(parents=True)
    busy = subprocess.Popen([*java, str(place), str(seed), "busy", str(flowfiles)], stderr=subprocess.DEVNULL)
    found: list[NiFiSurvey] = []
    try:
        while len(found) < surveys:
            assert busy.poll() is None, "NiFi ended"
            latest = survey_nifi(home_of_sample(place), Clock())
            if found or latest.flowfiles >= flowfiles * 3 // 4:
                found.append(latest)
    finally:
        busy.kill()
        busy.wait()
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
    """What NiFi wrote is read as it was, and is as it was for NiFi when it was reclaimed."""
    with tempfile.TemporaryDirectory() as scratch:
        sample = JudgedSample(java, Path(scratch) / "nifi", seed, ("killed", "stopped")[seed % 2])
        sample.restore()
        check_sample(sample.place)
        live = live_of_sample(sample.place)
        told = f"{len(live)} FlowFiles as they were written, and after {check_reclaim(sample):,} bytes came back"
        if seed % STOPPED:
            return told

        def held() -> None:
            assert live_of_sample(sample.place) == live

        stops = check_stops(sample, held, JUDGED_STOPS, random.Random(seed))
        return f"{told}; {stops} times it was stopped before"


def main() -> None:
    """Both, with each version of NiFi that there is; the first thing that is wrong ends it."""
    first = int(os.environ.get("ULLAGE_SEED") or 1)
    samples = 0 if "--busy" in sys.argv else int(os.environ.get("ULLAGE_NIFI_SAMPLES") or 50)
    for source in sorted({"", os.environ.get("NIFI_SRC", "")}):
        version, java = command(source or None)
        for seed in range(first, first + samples):
            print(f"NiFi {version}, seed {seed}: {check_seed(java, seed)}", flush=True)
        if source and samples:
            with tempfile.TemporaryDirectory() as scratch:
                check_events(java, Path(scratch) / "nifi")
            print(f"NiFi {version}: events that were set aside stay aside", flush=True)
        with tempfile.TemporaryDirectory() as scratch:
            happened, most, amid = check_beside(java, Path(scratch) / "nifi", first, SURVEYS, FLOWFILES)
        print(
            f"NiFi {version}, busy: {SURVEYS} surveys, none wrong, {amid} of them amid its work; {happened:,} "
            f"transactions, up to {most:,} FlowFiles",
            flush=True,
        )


if __name__ == "__main__":
    main()

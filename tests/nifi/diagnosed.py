"""What NiFi's own diagnostics tell of its repositories, held against a survey of the same moment.

bench/nifi/harness/Diagnostics.java asks NiFi's classes as the task of `bin/nifi.sh diagnostics --verbose` does.
"""

import subprocess
from collections import Counter
from collections.abc import Iterable
from itertools import takewhile
from typing import NamedTuple

from tests.support import ManualClock
from ullage.nifi.home import NiFiHome
from ullage.nifi.survey import NiFiSurvey
from ullage.nifi.surveying import survey_nifi

LATER_MILLIS = 4_000_000_000_000
"""When every file has long been settled."""

LISTED = 100_000
"""Files that a survey names: all of them."""

ATTEMPTS = 20
"""To find a moment in which NiFi, which stands still, moves no file to its archive."""


class DiagnosedFile(NamedTuple):
    """A file of the content repository. `queues`: which hold it; `flowfiles` of them in memory, and `swaps`."""

    size: int
    claimants: int
    queues: set[str]
    flowfiles: int
    swaps: set[str]


class Diagnosed(NamedTuple):
    """All that they tell. `swaps`: how many FlowFiles a swap file has, and their bytes; `archived`: files."""

    files: dict[str, DiagnosedFile]
    swaps: dict[str, tuple[str, int, int]]
    archived: int
    orphans: set[str]


def diagnosed(lines: Iterable[str]) -> Diagnosed:
    """As Diagnostics.java writes it; other lines are passed over."""
    found = Diagnosed({}, {}, 0, set())
    for line in lines:
        kind, *fields = line.rstrip("\n").split("\t")
        if kind == "#file":
            holders = [each.partition("=")[::2] for each in fields[3:]]
            found.files[fields[0]] = DiagnosedFile(
                int(fields[1]),
                int(fields[2]),
                {queue for queue, _ in holders},
                sum(int(what) for _, what in holders if what.isdecimal()),
                {what for _, what in holders if not what.isdecimal()},
            )
        elif kind == "#swap":
            found.swaps[fields[0]] = (fields[1], int(fields[2]), int(fields[3]))
        elif kind == "#archive":
            found = found._replace(archived=found.archived + int(fields[1]))
        elif kind == "#orphan":
            found.orphans.add(fields[0])
    return found


def check_survey(found: NiFiSurvey, told: Diagnosed) -> None:
    """Files, bytes, and who holds what are the same. `found` names all files, and was made when all were settled."""
    space, files = found.space, told.files
    held = {name: file for name, file in files.items() if file.queues}
    assert (space.files, space.foreign, told.orphans) == (len(files) + told.archived, 0, set())
    assert space.size - space.archive == sum(file.size for file in files.values())
    assert space.dead_files == sum(file.size for name, file in files.items() if name not in held)
    assert space.live + space.dead_middles + space.dead_tails == sum(file.size for file in held.values())
    retained: Counter[str] = Counter()
    alone: Counter[str] = Counter()
    for file in held.values():
        retained.update(file.queues)
        if len(file.queues) == 1:
            alone[min(file.queues)] += file.size
    assert {each.identifier: each.files for each in found.queues if each.files} == retained
    assert {each.identifier: each.alone for each in found.queues if each.alone} == {**alone}
    for each in found.files:
        file = files[each.file]
        assert (each.size, {*each.queues}, each.flowfiles) == (file.size, file.queues, file.claimants), each
    in_memory = sum(file.flowfiles for file in held.values())
    swapped = sum(count for _, count, _ in told.swaps.values())
    assert in_memory <= sum(file.claimants for file in held.values()) <= in_memory + swapped <= found.flowfiles
    for hold in found.queues:
        of_queue = [(count, size) for queue, count, size in told.swaps.values() if queue == hold.identifier]
        assert hold.flowfiles >= sum(count for count, _ in of_queue)
        assert hold.size >= sum(size for _, size in of_queue)


def check_at_work(nifi: "subprocess.Popen[str]", home: NiFiHome) -> Diagnosed:
    """The same of a NiFi that runs, and stands still meanwhile: what it tells before and after the survey is alike."""
    assert nifi.stdin is not None
    try:
        for _ in range(ATTEMPTS):
            before = _ask(nifi)
            found = survey_nifi(home, ManualClock(LATER_MILLIS), LISTED)
            if before == (told := _ask(nifi)):
                check_survey(found, told)
                return told
        raise AssertionError("NiFi moved files all the time")
    finally:
        if nifi.poll() is None:
            nifi.stdin.write("\n")
            nifi.stdin.flush()


def _ask(nifi: "subprocess.Popen[str]") -> Diagnosed:
    assert nifi.stdin is not None
    assert nifi.stdout is not None
    nifi.stdin.write("tell\n")
    nifi.stdin.flush()
    lines = list(takewhile(lambda line: line != "#end\n", iter(nifi.stdout.readline, "")))
    assert nifi.poll() is None, "NiFi ended"
    return diagnosed(lines)

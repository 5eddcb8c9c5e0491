"""Bringing together what is left of a stopped NiFi's files, and taking that back, on real files."""

from pathlib import Path

import pytest

from tests.nifi.samples import NAMES as SAMPLES, home_of_sample, unpacked
from tests.nifi.stopped import allocated, of_nifi, path_of
from tests.support import ManualClock
from ullage.nifi.changes import Changes
from ullage.nifi.flowfiles import NiFiFlowFile
from ullage.nifi.home import NiFiHome
from ullage.nifi.moment import NiFiMoment
from ullage.nifi.reclaiming import NiFiReclaimer, ReclaimOutcome, ReclaimReport
from ullage.nifi.reclaimplan import Replays

NOW_MILLIS = 1_800_000_000_000


def rewrite(home: NiFiHome, copies: Path | str = "", changes: Changes | None = None) -> ReclaimReport:
    reclaimer = NiFiReclaimer(home, ManualClock(NOW_MILLIS), changes, is_assured=True)
    return reclaimer.reclaim(Replays.REFUSE, str(copies), is_rewriting=True)


def undo(home: NiFiHome, changes: Changes | None = None) -> ReclaimReport:
    return NiFiReclaimer(home, ManualClock(NOW_MILLIS), changes, is_assured=True).undo()


def flowfiles_of(home: NiFiHome) -> list[NiFiFlowFile]:
    moment = NiFiMoment(home.flowfiles, attributes=True)
    try:
        moment.read()
        moment.read_swaps()
        assert moment.damages == []
        return list(moment.flowfiles())
    finally:
        moment.close()


def held(home: NiFiHome) -> list[tuple[str, int, dict[str, str] | None, bytes]]:
    """All that each FlowFile is, with its bytes instead of their place, in the order in which NiFi's queues have it."""
    found = []
    for each in sorted(flowfiles_of(home), key=in_queue):
        data = b""
        if each.size:
            with path_of(home, each.file).open("rb") as file:
                file.seek(each.start)
                data = file.read(each.size)
            assert len(data) == each.size
        found.append((each.queue, each.queued_millis, each.attributes, data))
    return found


def in_queue(flowfile: NiFiFlowFile) -> tuple[str, str, str, str, int, int, str]:
    """As NiFi's QueuePrioritizer compares; but FlowFiles of one content have their own order."""
    container, section, identifier = (flowfile.file or "//").split("/")
    return (
        *(flowfile.queue, identifier, container, section, flowfile.claim_start, flowfile.start),
        str((flowfile.attributes or {}).get("uuid", flowfile.size)),
    )


def live_bytes(home: NiFiHome) -> int:
    spans: dict[str, set[tuple[int, int]]] = {}
    for each in flowfiles_of(home):
        spans.setdefault(each.file, set()).add((each.start, each.start + each.size))
    live = 0
    for found in spans.values():
        end = 0
        for begin, stop in sorted(found):
            live += max(0, stop - max(begin, end))
            end = max(end, stop)
    return live


def archived(home: NiFiHome) -> int:
    folders = [path for root in home.containers.values() for path in Path(root).glob("*/archive/*")]
    return sum(path.stat().st_blocks * 512 for path in folders)


@pytest.mark.parametrize("name", SAMPLES)
def test_survivors_are_brought_together_and_taken_back(name: str, tmp_path: Path) -> None:
    """Of what NiFi wrote: each FlowFile is as before, a twentieth more than lives is taken, and undo has every byte."""
    place = unpacked(name, tmp_path)
    home = home_of_sample(place)
    home = NiFiHome(home.flowfiles, home.containers, provenance=(), appendable=50_000)
    (tmp_path / "copies").mkdir()
    before, everything, had = held(home), of_nifi(home), allocated(home)

    report = rewrite(home, tmp_path / "copies")

    assert held(home) == before
    assert report.outcome is ReclaimOutcome.DONE
    assert (report.passed_over, report.short) == ([], "")
    assert report.moved > 0
    assert allocated(home) - archived(home) <= 1.05 * live_bytes(home)
    assert had - allocated(home) == report.freed
    assert rewrite(home, tmp_path / "copies").outcome is ReclaimOutcome.NOTHING
    undo(home)
    assert of_nifi(home) == everything

"""What NiFi's own classes, unmodified, say of a repository that was reclaimed: they open it as NiFi does as it starts.

A repository is judged where it was written, since NiFi's journals name files by their whole paths, and opening it
changes it: so it is put back from a copy each time.
"""

import random
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.nifi.diagnosed import LATER_MILLIS, LISTED, check_survey, diagnosed
from tests.nifi.samples import home_of_sample, write_events, write_sample
from tests.nifi.stopped import allocated, everything, stopped_nifi
from tests.nifi.stopping import Killed, StoppedChanges
from tests.nifi.test_rewrite import archived
from tests.support import ManualClock
from ullage.nifi.changes import Changes
from ullage.nifi.home import NiFiHome
from ullage.nifi.reclaiming import NiFiReclaimer
from ullage.nifi.reclaimplan import Replays
from ullage.nifi.surveying import survey_nifi

NOW_MILLIS = LATER_MILLIS
APPENDABLE_BYTES = 50_000
"""As Sample.java and Judge.java have it."""

SIZE = 7
"""Which of the fields behind its queue says how long a FlowFile is."""

SPARE = 1.05
"""Of the disk that is taken, for each live byte, once survivors were brought together."""


class JudgedSample:
    """A sample that NiFi's classes wrote, and what they say of its FlowFiles: in order, with attributes and digests."""

    def __init__(self, java: Sequence[str], place: Path, seed: int, ending: str) -> None:
        self.place = place
        self._java = [*java[:-1], "harness.Judge", "--ordered"]
        self._model = place.with_name("model")
        write_sample(java, place, seed, ending)
        place.rename(self._model)
        self.restore()
        self.verdict = self.judge()
        assert not [line for line in self.verdict if "short" in line or "unreadable" in line], self.verdict

    @property
    def home(self) -> NiFiHome:
        found = home_of_sample(self.place)
        return NiFiHome(found.flowfiles, found.containers, provenance=(), appendable=APPENDABLE_BYTES)

    def restore(self) -> None:
        """As it was when it was written."""
        shutil.rmtree(self.place, ignore_errors=True)
        # Not shutil.copytree: thousands of empty sections make it slow.
        subprocess.run(["cp", "-a", "--sparse=never", str(self._model), str(self.place)], check=True)

    def reclaim(self, changes: Changes | None = None, *, is_rewriting: bool = False) -> int:
        """The bytes that came back."""
        reclaimer = NiFiReclaimer(self.home, ManualClock(NOW_MILLIS), changes, is_assured=True)
        report = reclaimer.reclaim(Replays.REFUSE, "", is_rewriting=is_rewriting)
        assert (report.passed_over, report.short) == ([], "")
        return report.freed

    def ratio(self) -> float:
        """Bytes of disk for each live one, without the archive."""
        space = survey_nifi(self.home, ManualClock(NOW_MILLIS)).space
        return (space.allocated - archived(self.home)) / space.live

    def judge(self) -> list[str]:
        """What NiFi has, once it has started. It was changed by that.

        A survey before says what NiFi's diagnostics tell, and has as many FlowFiles in each queue.
        """
        survey = survey_nifi(self.home, ManualClock(NOW_MILLIS), LISTED)
        command = [*self._java, str(self.place)]
        told = subprocess.run(command, check=True, timeout=120, capture_output=True, text=True).stdout.splitlines()
        self.diagnosed = diagnosed(told)
        check_survey(survey, self.diagnosed)
        flowfiles = [line for line in told if not line.startswith(("#", "="))]
        queues: dict[str, list[int]] = defaultdict(list)
        for line in flowfiles:
            queue, *numbers = line.split("\t")
            queues[queue].append(int(numbers[SIZE]))
        held = {queue: (len(sizes), sum(sizes)) for queue, sizes in queues.items()}
        assert {each.identifier: (each.flowfiles, each.size) for each in survey.queues} == held
        return flowfiles


def check_reclaim(sample: JudgedSample, *, is_rewriting: bool = False) -> int:
    """NiFi opens it afterwards and has every FlowFile as before. Returns the bytes that came back."""
    sample.restore()
    before = allocated(sample.home)
    freed = sample.reclaim(is_rewriting=is_rewriting)
    assert before - allocated(sample.home) == freed > 0
    assert not is_rewriting or sample.ratio() <= SPARE, sample.ratio()
    assert sample.judge() == sample.verdict
    return freed


def check_events(java: Sequence[str], place: Path) -> None:
    """NiFi begins anew where its events were set aside, and leaves those alone; an undo brings them back."""
    home = stopped_nifi(place)
    (events,) = map(Path, home.provenance or ())
    shutil.rmtree(events)
    write_events(java, events)
    (place / "copies").mkdir()
    before = everything(events)
    reclaimer = NiFiReclaimer(home, ManualClock(NOW_MILLIS))
    (aside,) = reclaimer.reclaim(Replays.REFUSE, str(place / "copies")).set_aside
    kept = {path.removeprefix(aside): what for path, what in everything(aside).items()}
    assert kept == {path.removeprefix(str(events)): what for path, what in before.items()}
    write_events(java, events)
    assert {path.removeprefix(aside): what for path, what in everything(aside).items()} == kept
    for path in events.iterdir():
        if str(path) != aside:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    reclaimer.undo()
    assert everything(events) == before


def check_stops(
    sample: JudgedSample, held: Callable[[], object], judged: int, chance: random.Random, *, is_rewriting: bool = False
) -> int:
    """A reclaim that is killed at any call, and finished: `held` each time, and NiFi's word on some of them."""
    sample.restore()
    counted = StoppedChanges()
    sample.reclaim(counted, is_rewriting=is_rewriting)
    chosen = set(chance.sample(range(len(counted.calls)), min(judged, len(counted.calls))))
    for number in range(len(counted.calls)):
        sample.restore()
        try:
            sample.reclaim(StoppedChanges(number, is_done=bool(number % 2)), is_rewriting=is_rewriting)
        except Killed:
            held()
        else:
            raise AssertionError(number)
        if number in chosen and number % 3:  # NiFi may be started before it is finished, too
            assert sample.judge() == sample.verdict, number
            continue
        sample.reclaim(is_rewriting=is_rewriting)
        held()
        if number in chosen:
            assert sample.judge() == sample.verdict, number
    return len(counted.calls)

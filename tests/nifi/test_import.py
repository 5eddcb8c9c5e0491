"""An import has what NiFi has, and whatever interrupts it, nothing comes twice and nothing is lost.

NiFi's own classes write the repositories and say what is in them.
"""

import os
import random
from pathlib import Path

import pytest

from bench.harness import HarnessFailed
from tests.nifi.imported import Standing, bring, opened, standing, stored_bytes, told_by_nifi
from tests.nifi.judged import JudgedSample
from tests.nifi.samples import command
from ullage.errors import UllageError
from ullage.nifi import importplan
from ullage.nifi.home import NiFiHome
from ullage.testing.crashing import Call, CrashFiles

SEED = int(os.environ.get("ULLAGE_SEED") or 1)
CRASHES = 400 if "ULLAGE_NIFI_FULL" in os.environ else 4


class Written:
    """A repository of NiFi's, and what NiFi has of it."""

    def __init__(self, java: list[str], place: Path) -> None:
        sample = JudgedSample(java, place, 2, "killed")
        self.home: NiFiHome = sample.home
        self.told: list[Standing] = told_by_nifi(sample, java)


@pytest.fixture(scope="module")
def written(module_in_memory: Path) -> Written:
    """Two containers, swap files, an overflow, clones and splits, empty contents, long and strange attributes."""
    try:
        java = command(None)[1]
    except HarnessFailed as error:  # no Maven, or no way to its packages: nothing that could be judged by
        pytest.skip(str(error))
    return Written(java, module_in_memory / "nifi")


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small repository takes many transactions."""
    monkeypatch.setattr(importplan, "BATCH_FLOWFILES", 40)


@pytest.mark.usefixtures("small_batches")
def test_an_import_has_every_flowfile_in_its_place(written: Written, tmp_path: Path) -> None:
    """With its uuid, dates, attributes and bytes, in NiFi's order; and what FlowFiles share is stored once."""
    with opened(root=tmp_path / "target") as repository:
        report = bring(repository, written.home)

        assert standing(repository) == sorted(written.told, key=lambda each: each.queue)
        assert (report.imported, report.before, report.left_out) == (len(written.told), 0, [])
        assert report.is_complete
        assert stored_bytes(repository) == report.stored < report.size == sum(each.size for each in written.told)
        assert repository.check(deep=True).problems == ()


@pytest.mark.usefixtures("small_batches")
def test_the_second_call_brings_nothing(written: Written, tmp_path: Path) -> None:
    """Also when the first FlowFiles have gone their way since, and it says what it did before."""
    with opened(root=tmp_path / "target") as repository:
        bring(repository, written.home)
        (first, *_) = repository.queues.all()
        repository.queues.drop(first.name)
        before = standing(repository)

        report = bring(repository, written.home)

        assert standing(repository) == before
        assert (report.imported, report.before) == (0, len(written.told))


class Crashed(BaseException):
    """The machine is gone: nobody catches this."""


@pytest.mark.usefixtures("small_batches")
def test_a_crash_at_any_call_is_gone_on_from(written: Written) -> None:
    """Whatever of the disk's pending changes arrived: the next call brings the rest, each FlowFile once, each content
    once. Queues are long enough for swap files.
    """
    counted = CrashFiles()
    with opened(counted, swaps=True) as repository:
        bring(repository, written.home)
        calls = counted.calls
    chance = random.Random(SEED)
    for number in sorted(chance.sample(range(1, calls), min(CRASHES, calls - 1))):
        files = CrashFiles()

        def crash(call: Call, last: int = number) -> None:
            if call.number >= last:
                raise Crashed(call)

        files.before = crash
        try:
            repository = opened(files, swaps=True)
            bring(repository, written.home)
        except (Crashed, UllageError):  # what fell into a commit has an error of its own
            pass
        images = list(files.crash_point().images(chance.randrange(1 << 30), torn=True))
        for image in chance.sample(images, min(2, len(images))):
            with opened(CrashFiles(image), swaps=True) as again:
                report = bring(again, written.home)
                assert standing(again) == sorted(written.told, key=lambda each: each.queue), number
                assert report.imported + report.before == len(written.told)
                assert stored_bytes(again) == report.stored, number  # clones refer to what came before the crash
                assert again.check(deep=True).problems == (), number

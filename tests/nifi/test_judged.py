"""NiFi's own classes open what was reclaimed, and tell what they have; `make nifi-full` does it a hundred times."""

from pathlib import Path

import pytest

from bench.harness import HarnessFailed
from tests.nifi.diagnosed import LISTED, check_survey
from tests.nifi.full import check_beside
from tests.nifi.judged import JudgedSample, check_reclaim
from tests.nifi.samples import RELEASES, command
from tests.nifi.test_survey import survey


def nifi(release: str = "") -> list[str]:
    """What runs NiFi's classes; they are fetched and compiled at the first time."""
    try:
        return command(None, release)[1]
    except HarnessFailed as error:  # no Maven, or no way to its packages: nothing that could be judged by
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def java() -> list[str]:
    return nifi()


@pytest.fixture(scope="module")
def sample(java: list[str], module_in_memory: Path) -> JudgedSample:
    """Of two containers, swap files, an overflow, clones and splits, an archive."""
    return JudgedSample(java, module_in_memory / "nifi", 3, "killed")


def test_a_survey_has_the_totals_of_nifis_own_diagnostics(sample: JudgedSample) -> None:
    """Each file with its size and who refers to it, in memory and in swap files; and the archive."""
    sample.restore()
    told = sample.diagnosed

    check_survey(survey(sample.home, listed=LISTED), told)

    holders = [file.queues for file in told.files.values()]
    assert max(map(len, holders)) > 1
    assert any(file.swaps and file.flowfiles for file in told.files.values())
    assert min(len(told.swaps), told.archived) > 0


def test_nifi_has_every_flowfile_after_a_reclaim(sample: JudgedSample) -> None:
    """In order, with all attributes and every byte, and a survey has the totals of its diagnostics then.

    Whether holes are punched, or survivors brought together as well, so that a twentieth more than lives is taken.
    """
    freed = check_reclaim(sample)

    assert check_reclaim(sample, is_rewriting=True) > freed > 0
    assert len(sample.verdict) > 100


def test_the_oldest_nifi_has_every_flowfile_after_a_rewrite(in_memory: Path) -> None:
    """1.16: its records and swap files are read and written as those of NiFi 2."""
    sample = JudgedSample(nifi(RELEASES[0]), in_memory / "nifi", 4, "stopped")

    assert check_reclaim(sample, is_rewriting=True) > 0
    assert len(sample.verdict) > 100


def test_surveys_beside_a_nifi_at_work_are_right_about_their_moments(java: list[str], in_memory: Path) -> None:
    """A few of a small one, which tells its diagnostics as well; `make nifi-full` has 200 of some 10,000 FlowFiles."""
    happened, _, amid = check_beside(java, in_memory / "nifi", 1, 4, 1_000)

    assert happened > 0
    assert amid > 0  # NiFi went on while they looked

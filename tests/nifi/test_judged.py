"""NiFi's own classes open what was reclaimed; `make nifi-full` has them do it a hundred times."""

from pathlib import Path

import pytest

from bench.harness import HarnessFailed
from tests.nifi.full import check_beside
from tests.nifi.judged import JudgedSample, check_reclaim
from tests.nifi.samples import command


@pytest.fixture(scope="session")
def java() -> list[str]:
    """What runs NiFi's classes; they are fetched and compiled at the first time."""
    try:
        return command(None)[1]
    except HarnessFailed as error:  # no Maven, or no way to its packages: nothing that could be judged by
        pytest.skip(str(error))


def test_nifi_has_every_flowfile_after_a_reclaim(java: list[str], in_memory: Path) -> None:
    """In order, with all attributes and every byte: of two containers, swap files, an overflow, clones and splits.

    Whether holes are punched, or survivors brought together as well, so that a twentieth more than lives is taken.
    """
    sample = JudgedSample(java, in_memory / "nifi", 3, "killed")

    freed = check_reclaim(sample)

    assert check_reclaim(sample, is_rewriting=True) > freed > 0
    assert len(sample.verdict) > 100


def test_surveys_beside_a_nifi_at_work_are_right_about_their_moments(java: list[str], in_memory: Path) -> None:
    """A few of a small one; `make nifi-full` has 200 of some 10,000 FlowFiles."""
    happened, _, amid = check_beside(java, in_memory / "nifi", 1, 4, 1_000)

    assert happened > 0
    assert amid > 0  # NiFi went on while they looked

"""The order in which an import lists FlowFiles: each rule of NiFi's QueuePrioritizer, where all before it are even."""

import random
import uuid
from pathlib import Path
from typing import Final

import pytest

from tests.nifi.written import Written, checkpoint_of, journal_header, swap_file_of
from ullage.nifi.flowfiles import NUMBERS, FlowFileDetails, NiFiFlowFile
from ullage.nifi.home import NiFiHome
from ullage.nifi.importplan import FIRST_IN, NEWEST, OLDEST, order_of, plan_import

NOTHING: Final = ""


def flowfile(
    id: int,
    file: str = "default/1/170-1",
    claim_start: int = 0,
    start: int = 0,
    *,
    queued: tuple[int, int] = (0, 0),
    lineage: tuple[int, int] = (0, 0),
) -> NiFiFlowFile:
    """Dates with the numbers that NiFi gives to what comes in one millisecond."""
    details = FlowFileDetails(NUMBERS.pack(id, 0, *lineage, queued[1]), b"")
    return NiFiFlowFile("q", file, start, 1, queued[0], None, claim_start, details)


@pytest.mark.parametrize(
    ("prioritizers", "expected"),
    [
        pytest.param([], [flowfile(3), flowfile(7), flowfile(20)], id="by NiFi's number at last, as a number"),
        pytest.param(
            [], [flowfile(9, start=5), flowfile(1, start=40)], id="by the content in what was written at once"
        ),
        pytest.param(
            [],
            [flowfile(9, claim_start=5, start=90), flowfile(1, claim_start=40, start=40)],
            id="by the beginning of what was written at once",
        ),
        pytest.param(
            [],
            [flowfile(9, NOTHING), flowfile(8, "b/2/170-1"), flowfile(7, "a/1/170-10"), flowfile(1, "a/1/170-2")],
            id="without content first, then by the name of the file as a text",
        ),
        pytest.param(
            [],
            [flowfile(9, "a/2/170-1"), flowfile(8, "a/3/170-1"), flowfile(7, "b/1/170-1")],
            id="in files of one name by container, then by section",
        ),
        pytest.param(
            [FIRST_IN],
            [flowfile(9, start=50, queued=(1, 2)), flowfile(8, start=9, queued=(1, 10)), flowfile(1, queued=(2, 0))],
            id="queued in one millisecond",
        ),
        pytest.param(
            [OLDEST],
            [flowfile(9, start=50, lineage=(1, 2)), flowfile(8, start=9, lineage=(1, 10)), flowfile(1, lineage=(2, 0))],
            id="begun in one millisecond",
        ),
        pytest.param(
            [NEWEST],
            [flowfile(9, start=50, lineage=(2, 0)), flowfile(8, start=9, lineage=(1, 10)), flowfile(1, lineage=(1, 2))],
            id="the newest of one millisecond first",
        ),
        pytest.param(
            [OLDEST, NEWEST, FIRST_IN],
            [flowfile(9, lineage=(1, 1), queued=(1, 0)), flowfile(1, lineage=(1, 1), queued=(2, 0))],
            id="by the next prioritizer where one has no preference",
        ),
    ],
)
def test_each_rule_decides_where_those_before_it_do_not(prioritizers: list[str], expected: list[NiFiFlowFile]) -> None:
    """Whatever the order in which they are found."""
    found = list(expected)
    for seed in range(10):
        random.Random(seed).shuffle(found)

        assert sorted(found, key=order_of(prioritizers, "q", [])) == expected


def test_swapped_flowfiles_follow_those_in_memory_in_the_order_of_their_files(tmp_path: Path) -> None:
    """The oldest file first, by the number in its name; in each as in memory, whatever the others have."""
    queue = str(uuid.UUID(int=1))
    swaps = {f"{millis}-{queue}-{uuid.uuid4()}.swap": ids for millis, ids in ((10, (2, 1)), (9, (4, 3)), (100, (5,)))}
    for name in ("journals", "swap"):
        (tmp_path / name).mkdir()
    for name, ids in swaps.items():
        (tmp_path / "swap" / name).write_bytes(swap_file_of(queue, [_written(id, queue) for id in ids]))
    in_memory = [_written(id, queue) for id in (7, 6)]
    (tmp_path / "checkpoint").write_bytes(checkpoint_of(1, in_memory, [f"/nifi/swap/{name}" for name in swaps]))
    (tmp_path / "journals" / "2.journal").write_bytes(journal_header())

    plan = plan_import(NiFiHome(str(tmp_path), {}), lambda attributes: "")

    assert [row.details.id for row in plan.rows if row.details is not None] == [6, 7, 3, 4, 1, 2, 5]


def _written(id: int, queue: str) -> Written:
    return Written(id, queue, attributes={"uuid": str(uuid.UUID(int=id))})

"""Of all who write a share, only one's words count: every run of two and three writers against a simulated bucket."""

from collections.abc import Callable

import pytest

from tests.proof.figures import note
from tests.shipping.explored import Bucket, Program, Replayed, Request, Still, explore, is_epoch
from ullage.engine.shipping.logobject import LogBatch, LogObjectHeader, decode_log_header
from ullage.engine.shipping.logreader import read_log
from ullage.engine.shipping.logwriter import LogWriter
from ullage.engine.shipping.shareplace import LOG, ShareWriter, Taken, log_name
from ullage.engine.wal.serde import SerDe
from ullage.errors import BucketUnavailable, RepositoryDamaged

SHARE = "00000000-0000-0000-0000-000000000001"
SERDE = SerDe()
TRIES = 2


def writing(number: int, batches: int) -> Program:
    """One that takes the log over, then puts so many batches, each of one transaction behind what it has read."""

    def run(place: Replayed, told: list[bytes]) -> None:
        writer = LogWriter.begin(place, SHARE, f"node-{number}", SERDE, f"{number:016x}")
        told.append(b"fence %d" % number)
        for batch in range(batches):
            put(writer, LogBatch(1, 0, [b"%d of %d" % (batch, number)]))
            told.append(b"%d of %d" % (batch, number))

    return run


def put(writer: LogWriter, batch: LogBatch) -> None:
    for tries in range(1, TRIES + 1):
        try:
            writer.append(batch)
        except BucketUnavailable:
            if tries == TRIES:
                raise
        else:
            return


def counting(objects: dict[str, bytes]) -> list[tuple[int, bytes]]:
    """What counts of the log, by epoch. Numbers of transactions are none of this test's business."""
    found: list[tuple[int, bytes]] = []
    epoch = 0
    for number, name in enumerate(sorted(name for name in objects if name.startswith(LOG)), 1):
        header, end = decode_log_header(objects[name], SHARE, number, name)  # by its number: none is missing
        if header.epoch < epoch:
            continue
        epoch = header.epoch
        writer = b"%d" % int(header.nonce, 16)
        found.append((epoch, b"fence " + writer if header.is_fence else objects[name][end + 4 :]))
    return found


def holds(objects: dict[str, bytes], told: list[list[bytes]]) -> None:
    """What a writer was told is there counts, once and in its order, and nobody else's behind its successor's."""
    counts = [said for _, said in counting(objects)]
    for each in told:
        at = [counts.index(said) for said in each]
        assert at == sorted(at), (told, counts)
        assert all(counts.count(said) == 1 for said in each), (told, counts)


def test_what_a_writer_was_told_counts_whoever_takes_over_and_whatever_becomes_of_puts() -> None:
    """Two writers in every order, with every fault twice; three with one."""
    two = explore([writing(1, 2), writing(2, 1)], holds, faults=2)
    three = explore([writing(1, 1), writing(2, 1), writing(3, 0)], holds, faults=0)

    note(fence_states=two.states + three.states)
    assert two.ends > 100
    assert three.ends > 100


def is_log(request: Request) -> bool:
    return request.key.startswith(LOG)


def is_fence(request: Request) -> bool:
    return is_log(request) and header_of(request).is_fence


def header_of(request: Request) -> LogObjectHeader:
    return decode_log_header(request.data, SHARE, int(request.key[-20:]), request.key)[0]


@pytest.mark.parametrize(
    ("ignores", "programs"),
    [
        # Of two the log alone would do; of three one may come back with an epoch below the one that counts.
        (is_epoch, [writing(1, 1), writing(2, 0), writing(3, 0)]),
        (is_fence, [writing(1, 2), writing(2, 1)]),
        (lambda request: is_log(request) and not header_of(request).is_fence, [writing(1, 2), writing(2, 1)]),
    ],
    ids=["epoch", "fence", "batch"],
)
def test_each_condition_is_needed(ignores: Callable[[Request], bool], programs: list[Program]) -> None:
    """With a bucket that takes no notice of one of them, somebody's word is lost."""
    with pytest.raises((AssertionError, ValueError, RepositoryDamaged)):
        explore(programs, holds, 0, Bucket(ignores))


def test_a_writer_that_fell_asleep_between_epoch_and_fence_must_look_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its fence, behind its successor's batches, would let it write what is void."""
    monkeypatch.setattr(LogWriter, "require_epoch", lambda _: None)
    with pytest.raises((AssertionError, ValueError)):
        explore([writing(1, 1), writing(2, 1)], holds, faults=0)


@pytest.mark.parametrize("is_believed", [True, False], ids=["a success", "a failure"])
def test_what_is_in_the_way_must_be_read(is_believed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that is taken may be taken by the same put: neither answer is right without a look."""

    def put_unread(writer: LogWriter, data: bytes) -> bool:
        try:
            writer._place.put_new(log_name(writer.number), data)
        except Taken:
            return is_believed
        return True

    monkeypatch.setattr(LogWriter, "_put", put_unread)
    with pytest.raises((AssertionError, ValueError)):
        explore([writing(1, 2), writing(2, 1)], holds, faults=1)


def test_a_batch_that_may_be_there_is_given_again() -> None:
    """Another one in its place could be put under the next number, and the first come late."""
    writer = LogWriter(Unreachable(), SHARE, ShareWriter(1, "0" * 16), SERDE, 1)
    with pytest.raises(BucketUnavailable):
        writer.append(LogBatch(1, 0, [b"a"]))
    with pytest.raises(ValueError, match="may be there"):
        writer.append(LogBatch(1, 0, [b"a"]))


class Unreachable(Still):
    """A bucket that is gone."""

    def __init__(self) -> None:
        super().__init__({})

    def put_new(self, key: str, data: bytes) -> None:
        raise BucketUnavailable(f"{key}: nobody answers")


def test_a_log_that_lacks_an_object_is_not_read_on() -> None:
    """What stands behind a hole may not be what was meant."""
    whole: dict[str, bytes] = {}
    explore([writing(1, 2)], lambda objects, _: whole.update(objects), faults=0)
    names = sorted(name for name in whole if name.startswith(LOG))

    found = list(read_log(Still({name: whole[name] for name in names[:2]}), SHARE, SERDE))
    del whole[names[1]]

    assert [each.payloads for each in found] == [[], [b"0 of 1"]]
    with pytest.raises(RepositoryDamaged, match="is missing"):
        list(read_log(Still(whole), SHARE, SERDE))

"""Torn, damaged and invented files: each parser reads what there is or says what keeps it, in bounded memory."""

import os
import random
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.nifi.samples import NAMES, told, told_of, unpacked
from tests.nifi.test_moment import journal_of, repository
from tests.nifi.written import (
    Written,
    checkpoint_of,
    created,
    journal_header,
    overflowed,
    swap_file_of,
    transaction_of,
)
from ullage.nifi.checkpoint import read_checkpoint
from ullage.nifi.fields import DEPTH_MAX, FIELDS_MAX, long_text, read_schema
from ullage.nifi.flowfiles import FlowFileMap, NiFiFlowFile
from ullage.nifi.journal import Journal
from ullage.nifi.moment import NiFiMoment
from ullage.nifi.pieces import LONGEST_BYTES, PieceReader
from ullage.nifi.swapfile import read_swap_file
from ullage.nifi.trouble import LISTED_MAX, NiFiDamage, NotSurveyable, TornFile, Unparsable
from ullage_agent.cli.nifi_damages import say_damages

KILLED = next(name for name in NAMES if name.endswith("killed"))
FULL = "ULLAGE_NIFI_FULL" in os.environ
CHANGES = 5_000 if FULL else 60
STEP = 1 if FULL else 37
MEMORY_BYTES_MAX = 32 << 20
"""The longest record of a sample has 70 KB, and a piece a MiB."""


def parse_checkpoint(path: Path) -> FlowFileMap:
    found = FlowFileMap()
    with path.open("rb") as file:
        read_checkpoint(PieceReader(file.fileno(), path.stat().st_size), found, attributes=True)
    return found


def parse_journal(path: Path) -> tuple[FlowFileMap, list[NiFiDamage]]:
    found = FlowFileMap()
    with closing(Journal(str(path.parent), path.name, attributes=True)) as journal:
        journal.reach()
        journal.read(found)
        return found, journal.damages


def parse_swap(path: Path) -> list[NiFiFlowFile]:
    return list(read_swap_file(str(path), attributes=True))


def swap_of(place: Path) -> Path:
    return min((repository(place) / "swap").iterdir())


def overflow_of(place: Path) -> Path:
    (overflow,) = (repository(place) / "journals").glob("overflow-*/*")
    return overflow


def cuts(length: int) -> Iterator[int]:
    yield from range(0, length, STEP)
    yield from range(max(0, length - 20), length)


def test_a_journal_torn_anywhere_is_some_moment_of_its_past(tmp_path: Path) -> None:
    """Transactions happen whole and in order: what is read grows with the file, and says no more than it had."""
    place = unpacked(KILLED, tmp_path)
    path = journal_of(place)
    whole = path.read_bytes()
    moments: list[frozenset[int]] = []

    for length in cuts(len(whole)):
        path.write_bytes(whole[:length])
        found, damages = parse_journal(path)
        assert damages == []
        moment = frozenset(found.flowfiles)
        if not moments or moments[-1] != moment:
            moments.append(moment)

    assert len(moments) == len(set(moments))
    assert 3 <= len(moments) <= 5


def test_a_swap_file_torn_anywhere_gives_the_flowfiles_before_that(tmp_path: Path) -> None:
    """And says that it is torn."""
    place = unpacked(KILLED, tmp_path)
    path = swap_of(place)
    whole, all_of_them = path.read_bytes(), parse_swap(path)

    for length in cuts(len(whole)):
        path.write_bytes(whole[:length])
        found: list[NiFiFlowFile] = []
        with pytest.raises(TornFile):
            found.extend(read_swap_file(str(path), attributes=True))
        assert found == all_of_them[: len(found)]


@pytest.mark.parametrize("torn", [overflow_of, lambda place: repository(place) / "checkpoint"])
def test_what_is_torn_is_told_and_what_is_not_is_read(torn: Callable[[Path], Path], tmp_path: Path) -> None:
    """Of the checkpoint and of an overflow file, which are never torn unless something went wrong."""
    place = unpacked(KILLED, tmp_path)
    path = torn(place)
    whole = path.read_bytes()

    for part in range(1, 8):
        path.write_bytes(whole[: len(whole) * part // 8 - 11])  # 80 records of one length: an eighth is ten of them
        with closing(NiFiMoment(str(repository(place)), attributes=True)) as moment:
            moment.read()
            moment.read_swaps()
            found = told_of(list(moment.flowfiles()))
            assert [damage.loses_flowfiles for damage in moment.damages] == [True]
            assert 0 < len(set(found) & set(told(place))) < len(told(place))


def changed(whole: bytes, chance: random.Random) -> bytes:
    """Bits flipped, lengths raised, parts removed, doubled or moved."""
    data = bytearray(whole)
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = chance.randrange(len(data))
        match chance.randrange(6):
            case 0 | 1:
                data[at] ^= 1 << chance.randrange(8)
            case 2:
                data[at : at + 4] = chance.choice(
                    (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\x10\0\0")
                )
            case 3:
                del data[at : at + chance.randrange(1, 50)]
            case 4:
                data[at:at] = data[at : at + chance.randrange(1, 200)]
            case _:
                data[at : at + 2] = chance.choice((b"\xff\xff", b"\0\0", b"\0\1"))
    return bytes(data)


@pytest.mark.parametrize("kind", ["checkpoint", "journal", "swap", "overflow"])
def test_changed_bytes_are_read_or_refused(kind: str, tmp_path: Path, seed: int) -> None:
    """Nothing else is raised, and memory stays bounded."""
    place = unpacked(KILLED, tmp_path)
    place_of: dict[str, Callable[[Path], Path]] = {
        "checkpoint": lambda place: repository(place) / "checkpoint",
        "journal": journal_of,
        "swap": swap_of,
        "overflow": overflow_of,
    }
    parsers: dict[str, Callable[[Path], object]] = {
        "checkpoint": parse_checkpoint,
        "journal": parse_journal,
        "swap": parse_swap,
        "overflow": lambda _: parse_journal(journal_of(place)),
    }
    path = place_of[kind](place)
    whole = path.read_bytes()
    chance = random.Random(seed)
    outcomes = {"read": 0, "refused": 0}
    tracemalloc.start()

    for _ in range(CHANGES if kind != "overflow" else CHANGES // 6):
        data = changed(whole, chance)
        path.write_bytes(data)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        try:
            parsers[kind](path)
            outcomes["read"] += 1
        except (TornFile, Unparsable, NotSurveyable):
            outcomes["refused"] += 1
        assert tracemalloc.get_traced_memory()[1] - before < MEMORY_BYTES_MAX

    tracemalloc.stop()
    assert outcomes["read"] > 0


def test_a_record_that_states_a_wild_length_takes_bounded_memory(tmp_path: Path) -> None:
    """Although the file, which is sparse, has as much: no NiFi writes a record of so many bytes."""
    place = unpacked(KILLED, tmp_path)
    path = journal_of(place)
    whole = path.read_bytes()
    first = whole.index(struct.pack(">Bq", 64, int(path.stem)))
    path.write_bytes(whole[:first] + struct.pack(">Bqi", 64, int(path.stem), 2**31 - 1) + b"\1")
    os.truncate(path, 4 << 30)
    swap = swap_of(place)
    swap.write_bytes(swap.read_bytes().replace(b"\0\0\0\4uuid", b"\x7f\xff\xff\xffuuid", 1))
    os.truncate(swap, 4 << 30)
    tracemalloc.start()

    _, (damage,) = parse_journal(path)
    with pytest.raises(Unparsable, match="longer than"):
        parse_swap(swap)

    assert "2,147,483,647 bytes" in damage.what
    assert tracemalloc.get_traced_memory()[1] < 4 * LONGEST_BYTES
    tracemalloc.stop()


@pytest.mark.parametrize(
    "wrong",
    [
        (b"Record ID\0\x0aField Type\0\x06String\0\x04LONG", b"Record ID\0\x0aField Type\0\x06String\0\x06STRING"),
        (b"\0\x0bEXACTLY_ONE", b"\0\x0bEXACTLY_TWO"),
        (b"\0\x07COMPLEX", b"\0\x07SIMPLEX"),
        (b"\0\x0cSubFieldList", b"\0\x0cSuperFieldLi"),
        (b"\0\x0aField Name", b"\0\x0aField Game"),
    ],
)
def test_a_schema_that_no_nifi_writes_is_refused(wrong: tuple[bytes, bytes], tmp_path: Path) -> None:
    """Records that follow it would be read as what they are not."""
    path = repository(unpacked(KILLED, tmp_path)) / "checkpoint"
    whole = path.read_bytes()
    assert wrong[0] in whole
    path.write_bytes(whole.replace(*wrong, 1))

    with pytest.raises(Unparsable):
        parse_checkpoint(path)


@pytest.mark.parametrize(
    "path",
    [
        "/nifi/journals/overflow-0/0a\0",
        "/nifi/journals/overflow-0/0a\0/0b",
        "/nifi/journals/overflow-0\0/0a",
        "overflow-0/../secret",
        "/nifi/journals/../secret",
        "/nifi/journals/overflow-0/..",
        "/nifi/journals/overflow-0/",
        "/nifi/journals/overflow-0/" + "a" * 300,
        "",
    ],
)
def test_an_overflow_file_that_is_named_wildly_is_told_and_none_is_read(path: str, tmp_path: Path) -> None:
    """Whatever lies there: NUL ends a name for the system, and what leads elsewhere is not NiFi's."""
    (tmp_path / "journals" / "overflow-0").mkdir(parents=True)
    for name in ("secret", "journals/secret", "journals/overflow-0/0a"):
        (tmp_path / name).write_bytes(created(Written(1, "queue")))
    journal = tmp_path / "journals" / "0.journal"
    second = transaction_of(1, created(Written(2, "queue")))
    journal.write_bytes(journal_header() + transaction_of(0, overflowed(path)) + second)

    found, (damage,) = parse_journal(journal)

    assert list(found.flowfiles) == [2]
    assert damage.loses_flowfiles


VERSIONS: dict[str, tuple[bytes, Callable[[Path], object]]] = {
    "checkpoint": (checkpoint_of(7, []), parse_checkpoint),
    "1.journal": (journal_header(), parse_journal),
}


@pytest.mark.parametrize("name", VERSIONS)
@pytest.mark.parametrize("version", [0, 2, -1])
def test_another_version_of_a_file_is_refused(name: str, version: int, tmp_path: Path) -> None:
    """What it says may mean something else."""
    whole, parse = VERSIONS[name]
    at = 2 + int.from_bytes(whole[:2])
    (tmp_path / name).write_bytes(whole[:at] + struct.pack(">i", version) + whole[at + 4 :])

    with pytest.raises(NotSurveyable, match=f"version {version}"):
        parse(tmp_path / name)


@pytest.mark.parametrize(
    "form",
    [
        struct.pack(">i", FIELDS_MAX + 1),
        struct.pack(">ii", 1, 17) + b"\0\1a\0\6String\0\1a" * 17,
        (struct.pack(">ii", 1, 1) + b"\0\x09SubFields\0\x0cSubFieldList") * (DEPTH_MAX + 2) + struct.pack(">i", 0),
    ],
)
def test_a_schema_larger_than_any_of_nifis_is_refused(form: bytes) -> None:
    """Before all of it is read, and before Python's stack is full."""
    with pytest.raises(Unparsable, match=r"larger than any|unknown elements"):
        read_schema(form, 0)


def test_a_journal_whose_schema_is_of_another_length_is_damaged(tmp_path: Path) -> None:
    """What follows would be read from somewhere else."""
    head = journal_header()
    at = head.index(struct.pack(">i", 2), 60) + 4
    length = int.from_bytes(head[at : at + 4])
    assert at + 4 + length == len(head)
    journal = tmp_path / "1.journal"
    journal.write_bytes(head[:at] + struct.pack(">i", length - 1) + head[at + 4 :] + b"\x7f")

    _, (damage,) = parse_journal(journal)

    assert "another length" in damage.what


def test_a_journal_full_of_damage_is_told_in_a_few_lines(tmp_path: Path) -> None:
    """The first ones, and how many more: two million filled a terminal, and 400 MB."""
    journal = tmp_path / "0.journal"
    count = LISTED_MAX + 1_000
    journal.write_bytes(journal_header() + b"".join(transaction_of(number, b"\x09") for number in range(count)))

    _, damages = parse_journal(journal)

    assert len(damages) == LISTED_MAX + 1
    assert damages[-1].what.startswith(f"1,000 more, the last: transaction {count - 1:,} ")
    assert all(damage.loses_flowfiles for damage in damages)


def test_a_damage_is_one_line_whatever_its_file_is_called(capfd: pytest.CaptureFixture[str]) -> None:
    """A checkpoint that is damaged names swap files as it likes."""
    say_damages([NiFiDamage("swap/a\nullage: all is well", "it is missing", loses_flowfiles=True)])

    assert len(capfd.readouterr().err.splitlines()) == 1


def test_nothing_is_read_behind_the_end_of_a_journal(tmp_path: Path) -> None:
    """NiFi marks it when it begins the next one, and reads no further itself."""
    journal = tmp_path / "0.journal"
    whole = journal_header() + transaction_of(0, created(Written(1, "queue")))
    behind = transaction_of(1, created(Written(2, "queue")))
    journal.write_bytes(whole + b"\x7f" + behind)

    found, damages = parse_journal(journal)

    assert (list(found.flowfiles), damages) == ([1], [])


def test_no_byte_beyond_the_end_that_was_fixed_is_read(tmp_path: Path) -> None:
    """The file grows: what is there then is of another moment."""
    path = tmp_path / "file"
    path.write_bytes(bytes(10))

    def taken(data: bytes, at: int) -> tuple[bytes, int]:
        if len(data) < at + 6:
            raise IndexError
        return data[at : at + 6], at + 6

    with path.open("rb") as file:
        pieces = PieceReader(file.fileno(), 4)
        with pytest.raises(TornFile):
            pieces.take(taken)
        pieces.reach(6)
        assert pieces.take(taken) == bytes(6)
        assert pieces.is_at_end


def test_a_negative_length_is_refused() -> None:
    """It would lead back to where it was read, again and again; so is a negative number of fields."""
    with pytest.raises(Unparsable, match="negative length"):
        long_text(struct.pack(">i", -4), 0)
    with pytest.raises(Unparsable, match="negative number"):
        read_schema(struct.pack(">i", -1), 0)


@pytest.mark.parametrize(
    "wild",
    [
        Written(1, "queue", "default/../x", 0, 5),
        Written(1, "queue", "../1/x", 0, 5),
        Written(1, "queue", "default/1/", 0, 5),
        Written(1, "queue", "default/1/x\0", 0, 5),
        Written(1, "queue", "default/1/x", -1, 5),
        Written(1, "queue", "default/1/x", 0, -5),
    ],
)
def test_a_flowfile_whose_content_leads_elsewhere_is_damage(wild: Written, tmp_path: Path) -> None:
    """Out of its folder, or before its file: sizes are asked of names, and added up."""
    journal = tmp_path / "0.journal"
    records = transaction_of(0, created(wild)) + transaction_of(1, created(Written(2, "queue")))
    journal.write_bytes(journal_header() + records)

    found, (damage,) = parse_journal(journal)

    assert list(found.flowfiles) == [2]
    assert damage.what.startswith("transaction 0 has ")


def test_a_checkpoint_refers_to_no_other_file(tmp_path: Path) -> None:
    """Only journals overflow."""
    path = tmp_path / "checkpoint"
    whole = checkpoint_of(7, [Written(1, "queue")])
    path.write_bytes(whole.replace(created(Written(1, "queue")), overflowed("journals/overflow-0/0a")))

    with pytest.raises(Unparsable, match="reference to another file"):
        parse_checkpoint(path)


def test_a_swap_file_of_another_beginning_is_refused(tmp_path: Path) -> None:
    """One that is encrypted, or of a NiFi before 1.1, begins otherwise."""
    path = tmp_path / "1-queue.swap"
    path.write_bytes(b"SWAB" + swap_file_of("queue", [Written(1, "queue")])[4:])

    with pytest.raises(Unparsable, match="another beginning"):
        parse_swap(path)

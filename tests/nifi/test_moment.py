import shutil
from contextlib import closing
from pathlib import Path

import pytest

from tests.nifi.samples import NAMES, told, told_of, truth, unpacked
from tests.nifi.written import Written, checkpoint_of, created, deleted, journal_header, transaction_of
from ullage.nifi.fields import text
from ullage.nifi.flowfiles import FlowFileMap, FlowFileUpdate, NiFiFlowFile
from ullage.nifi.moment import NiFiMoment
from ullage.nifi.trouble import NiFiDamage, NotSurveyable, Unparsable

KILLED = next(name for name in NAMES if name.endswith("killed"))
LATER = next(name for name in NAMES if name.endswith("stopped"))


def repository(place: Path) -> Path:
    return place / "flowfile_repository"


def journal_of(place: Path) -> Path:
    (journal,) = (repository(place) / "journals").glob("*.journal")
    return journal


def read(place: Path) -> tuple[list[tuple[str, str, str, int, int, int, int]], list[NiFiDamage]]:
    with closing(NiFiMoment(str(repository(place)), attributes=True)) as moment:
        moment.read()
        moment.read_swaps()
        moment.tell_missing()
        return told_of(list(moment.flowfiles())), moment.damages


@pytest.mark.parametrize("name", NAMES)
def test_what_nifi_wrote_is_read_as_nifi_held_it(name: str, tmp_path: Path) -> None:
    """Queue, place, size, time and attributes of each FlowFile, in memory, in overflow and in swap files."""
    place = unpacked(name, tmp_path)

    found, damages = read(place)

    assert found == told(place)
    assert {each.where for each in truth(place)} == {"queued", "swapped"}
    assert list((repository(place) / "journals").glob("overflow-*/*"))
    assert damages == []


@pytest.mark.parametrize("name", NAMES)
def test_attributes_are_read_whatever_is_in_them(name: str, tmp_path: Path) -> None:
    """Text beyond the basic plane, NUL, nothing, and more than 65,535 bytes."""
    place = unpacked(name, tmp_path)

    with closing(NiFiMoment(str(repository(place)), attributes=True)) as moment:
        moment.read()
        moment.read_swaps()
        all_of_them = [each.attributes or {} for each in moment.flowfiles()]

    strange = [each for each in all_of_them if "größe \N{GRINNING FACE}" in each]
    assert {(each["größe \N{GRINNING FACE}"], each["long"]) for each in strange} == {("N\0L", "y" * 70_000)}
    assert [each["empty"] for each in all_of_them if "empty" in each] == [""]


def test_a_moment_follows_what_nifi_writes(tmp_path: Path) -> None:
    """A transaction that is not whole has not happened; once it is whole, it has."""
    place = unpacked(KILLED, tmp_path)
    journal = journal_of(place)
    whole = journal.read_bytes()
    journal.write_bytes(whole[: len(whole) - 5])

    with closing(NiFiMoment(str(repository(place)), attributes=True)) as moment:
        moment.read()
        before = moment.transaction
        journal.write_bytes(whole)
        has_moved = moment.advance()
        moment.read_swaps()

        assert (has_moved, moment.transaction) == (True, before + 1)
        assert told_of(list(moment.flowfiles())) == told(place)
        assert not moment.advance()


def test_a_checkpoint_that_overtakes_the_reading_is_read_instead(tmp_path: Path) -> None:
    """It has removed journals that were never opened: the moment is a later one, of the files that there are now."""
    place, later = unpacked(KILLED, tmp_path), unpacked(LATER, tmp_path)
    with closing(NiFiMoment(str(repository(place)), attributes=True)) as moment:
        moment.read()
        moment.read_swaps()
        (repository(later) / "journals" / journal_of(later).name).rename(repository(later) / "journals" / "29.journal")
        shutil.rmtree(repository(place))
        repository(later).rename(repository(place))

        moment.advance()
        moment.read_swaps()

        assert told_of(list(moment.flowfiles())) == told(later)


def test_a_partial_checkpoint_that_is_alone_is_whole(tmp_path: Path) -> None:
    """NiFi removes the old one before it gives the new one its name."""
    place = unpacked(KILLED, tmp_path)
    (repository(place) / "checkpoint").rename(repository(place) / "checkpoint.partial")

    assert read(place) == (told(place), [])


def test_a_partial_checkpoint_beside_the_whole_one_is_left_alone(tmp_path: Path) -> None:
    """It was being written."""
    place = unpacked(KILLED, tmp_path)
    (repository(place) / "checkpoint.partial").write_bytes(b"half of")

    assert read(place) == (told(place), [])


def test_an_empty_checkpoint_is_none_and_what_only_it_had_is_told(tmp_path: Path) -> None:
    """NiFi passes over it, and removes the content of the FlowFiles that it had."""
    place = unpacked(KILLED, tmp_path)
    (repository(place) / "checkpoint").write_bytes(b"")

    found, (damage,) = read(place)

    assert found
    assert len(found) < len(told(place))
    assert damage.what == f"transactions 0 to {int(journal_of(place).stem) - 1} are in no file"


def test_a_missing_overflow_file_is_told(tmp_path: Path) -> None:
    """NiFi itself starts without it, and removes the content of what it lost."""
    place = unpacked(KILLED, tmp_path)
    (overflow,) = (repository(place) / "journals").glob("overflow-*/*")
    overflow.unlink()

    found, (damage,) = read(place)

    assert damage.file == f"{overflow.parent.name}/{overflow.name}"
    assert damage.loses_flowfiles
    assert len(told(place)) - len(found) == 80


def test_a_missing_swap_file_is_told(tmp_path: Path) -> None:
    """Everything else is read."""
    place = unpacked(KILLED, tmp_path)
    swap = min((repository(place) / "swap").iterdir())
    swap.unlink()

    found, (damage,) = read(place)

    assert damage.file == f"swap/{swap.name}"
    assert damage.loses_flowfiles
    assert set(found) < set(told(place))


def test_a_damaged_swap_file_stays_told_when_everything_else_is_read_anew(tmp_path: Path) -> None:
    """Swap files are read once: NiFi never changes one."""
    place = unpacked(KILLED, tmp_path)
    swap = min((repository(place) / "swap").iterdir())
    swap.write_bytes(swap.read_bytes()[:-9])

    with closing(NiFiMoment(str(repository(place)))) as moment:
        for _ in range(2):
            moment.read()
            moment.read_swaps()

            assert [damage.file for damage in moment.damages] == [f"swap/{swap.name}"]


def test_a_missing_journal_is_told(tmp_path: Path) -> None:
    """NiFi does not look whether one transaction follows the other."""
    place = unpacked(KILLED, tmp_path)
    first = int(journal_of(place).stem)
    journal_of(place).rename(repository(place) / "journals" / "999.journal")

    _, damages = read(place)

    assert [damage.what for damage in damages] == [f"transactions {first} to 998 are in no file"]


def test_journals_are_read_by_their_numbers(tmp_path: Path) -> None:
    """Not by their names, in whose order 10 comes before 9: what goes in the second one came in the first one."""
    (tmp_path / "journals").mkdir()
    for number, records in (
        (8, created(Written(1, "queue")) + created(Written(2, "queue"))),
        (9, deleted(1)),
        (10, created(Written(3, "queue"))),
        (11, deleted(3)),
    ):
        whole = journal_header() + transaction_of(number, records) + b"\x7f"
        (tmp_path / "journals" / f"{number}.journal").write_bytes(whole)
    (tmp_path / "checkpoint").write_bytes(checkpoint_of(7, []))

    with closing(NiFiMoment(str(tmp_path))) as moment:
        moment.read()

        assert (moment.damages, moment.transaction, len(list(moment.flowfiles()))) == ([], 11, 1)


def test_a_journal_that_a_checkpoint_has_is_not_read_again(tmp_path: Path) -> None:
    """It is about to be removed: a number that is in the checkpoint makes it one."""
    place = unpacked(KILLED, tmp_path)
    journal_of(place).rename(repository(place) / "journals" / "3.journal")
    behind = read(place)
    journal_of(place).unlink()

    assert behind == read(place)
    assert behind[1] == []


def test_what_happens_to_swap_files_is_followed() -> None:
    """They are written, renamed, read back and removed."""
    found = FlowFileMap()
    flowfile = NiFiFlowFile("queue", "", 0, 0, 1)

    def swaps_after(action: str, swap: str, former: str = "", flowfile: NiFiFlowFile | None = None) -> set[str]:
        found.apply([FlowFileUpdate(action, 1, flowfile, swap, former)])
        return set(found.swaps)

    found.apply([FlowFileUpdate("CREATE", 1, flowfile, "", "")])
    assert (swaps_after("SWAP_OUT", "a"), found.flowfiles) == ({"a"}, {})
    assert swaps_after("SWAP_FILE_RENAMED", "b", "a") == {"b"}
    assert (swaps_after("SWAP_IN", "b", flowfile=flowfile), found.flowfiles) == (set(), {1: flowfile})
    assert swaps_after("SWAP_OUT", "c") == {"c"}
    assert swaps_after("SWAP_FILE_DELETED", "c") == set()


def test_names_are_read_as_java_wrote_them() -> None:
    """NUL in two bytes, and what lies beyond the basic plane in two halves of three bytes each."""
    assert text(b"\0\x09a\xc0\x80\xed\xa0\xbd\xed\xb8\x80...", 0) == ("a\0\N{GRINNING FACE}", 11)
    with pytest.raises(Unparsable):
        text(b"\0\1\xff", 0)


def test_zeros_behind_a_journal_are_its_end_and_anything_else_is_damage(tmp_path: Path) -> None:
    """A power failure leaves zeros."""
    place = unpacked(KILLED, tmp_path)
    whole = journal_of(place).read_bytes()

    journal_of(place).write_bytes(whole + bytes(3_000_000))
    assert read(place) == (told(place), [])

    journal_of(place).write_bytes(whole + bytes(3_000_000) + b"\1")
    found, (damage,) = read(place)
    assert found == told(place)
    assert damage.file == journal_of(place).name


def test_a_damaged_transaction_is_told_and_those_behind_it_are_read(tmp_path: Path) -> None:
    """Its length is stated, so the next one is found: here all that happened after is there."""
    place = unpacked(KILLED, tmp_path)
    whole = bytearray(journal_of(place).read_bytes())
    whole[whole.rindex(b"CREATE") + 1] = 0xFF  # in the last transaction that creates FlowFiles in the journal itself
    journal_of(place).write_bytes(whole)

    found, (damage,) = read(place)

    assert damage.what.startswith(f"transaction {journal_of(place).stem} has ")
    lost = set(told(place)) - set(found)
    assert 0 < len(lost) <= 5


def test_encryption_is_refused_by_name(tmp_path: Path) -> None:
    """The class that wrote the records says so."""
    place = unpacked(KILLED, tmp_path)
    checkpoint = repository(place) / "checkpoint"
    plain = b"\0\x41org.apache.nifi.controller.repository.SchemaRepositoryRecordSerde"
    encrypted = b"\0\x4aorg.apache.nifi.controller.repository.EncryptedSchemaRepositoryRecordSerde"
    checkpoint.write_bytes(checkpoint.read_bytes().replace(plain, encrypted))

    with pytest.raises(NotSurveyable, match="encrypted"):
        read(place)


def test_newer_formats_are_refused(tmp_path: Path) -> None:
    """Their records may mean something else."""
    place = unpacked(KILLED, tmp_path)
    whole = bytearray(journal_of(place).read_bytes())
    serde = b"SchemaRepositoryRecordSerde"
    whole[whole.index(serde) + len(serde) + 3] = 9
    journal_of(place).write_bytes(whole)

    with pytest.raises(NotSurveyable, match="version 9"):
        read(place)


def test_what_is_no_repository_is_refused(tmp_path: Path) -> None:
    """As is the log that NiFi kept before 1.6, and could still be told to keep until 2.0."""
    with pytest.raises(NotSurveyable, match="no directory"):
        NiFiMoment(str(tmp_path / "nowhere"))
    (tmp_path / "snapshot").touch()
    with pytest.raises(NotSurveyable, match="MinimalLockingWriteAheadLog"):
        NiFiMoment(str(tmp_path))

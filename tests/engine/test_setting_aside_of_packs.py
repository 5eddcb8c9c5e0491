"""A handle in a pack that no start can use, and a pack that is none: all others come back, and are salvaged."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.support import Workshop, careless_log as careless_log, claim_of, spec_at
from ullage.engine.engine import Engine
from ullage.engine.model import HandlePack, parse_uuid
from ullage.engine.packs import NO_HANDLES, ends_of, place_of, records_of, with_more
from ullage.engine.salvaging import salvage
from ullage.errors import RepositoryDamaged

COUNT = 300

Harm = Callable[[HandlePack, bytes], HandlePack]


def of_row(change: Callable[[bytes], bytes]) -> Harm:
    """A pack with other bytes in one row."""

    def harm(pack: HandlePack, uuid: bytes) -> HandlePack:
        index, ends = place_of(pack, uuid), ends_of(pack)
        start, end = ends[index - 1] if index else 0, ends[index]
        rows = pack.rows[:start] + change(pack.rows[start:end]) + pack.rows[end:]
        assert len(rows) == len(pack.rows)
        return msgspec.structs.replace(pack, rows=rows)

    return harm


def with_record(**wild: object) -> Harm:
    """A pack in which one record has a value that no decoder takes."""

    def harm(pack: HandlePack, uuid: bytes) -> HandlePack:
        records = records_of(pack)
        return with_more(
            msgspec.structs.replace(NO_HANDLES, bits=pack.bits),
            [msgspec.structs.replace(each, **wild) if each.uuid == uuid else each for each in records],
        )

    return harm


HARMS: dict[str, Harm] = {
    "bytes that are no msgpack": of_row(lambda row: row[:1] + b"\xc1" + row[2:]),
    "another kind of array": of_row(lambda row: b"\x9b" + row[1:]),
    "a text that is none": of_row(lambda row: row.replace(b"\xa4kind", b"\xa4\xff\xfe\xfd\xfc")),
    "a number beyond 63 bits": with_record(size=1 << 63),
    "a negative number": with_record(expires_millis=-1),
    "nothing for a number": with_record(queued=None),
    "half a parent": with_record(parents=bytes(8)),
}


@pytest.fixture
def filled(workshop: Workshop) -> tuple[Engine, dict[str, bytes]]:
    """Handles at rest, with what each holds."""
    repository = workshop.make(archive={"enabled": False})
    contents = [b"%d" % number for number in range(COUNT)]
    ids = repository.handles.put_many(contents, {"kind": "kept"})
    repository.ledger.records.pack(0)
    repository.ledger.pack()
    return repository, dict(zip(ids, contents, strict=True))


def harmed(repository: Engine, id: str, harm: Harm) -> None:
    """What some writer made of the pack in which a handle stands."""
    uuid = parse_uuid(id)
    packed = repository.ledger.records._packed[uuid[0]]
    packs = packed.packs
    at = packs.index(packed.pack_of(uuid))
    packed._packs[at] = harm(packs[at], uuid)


def found_in(repository: Engine) -> dict[str, bytes]:
    return {record.id: repository.handles.get(record.id).read() for record in repository.handles.page(b"", 2 * COUNT)}


@pytest.mark.parametrize("what", HARMS)
def test_a_row_that_cannot_be_used_costs_its_own_handle(
    workshop: Workshop, filled: tuple[Engine, dict[str, bytes]], what: str
) -> None:
    """It is kept with its bytes and the reason, and what it may point at is in use until a person gives it up."""
    repository, contents = filled
    id = next(iter(contents))
    claim = claim_of(repository.ledger.records.find(parse_uuid(id)))  # type: ignore[arg-type]
    harmed(repository, id, HARMS[what])
    repository.checkpoint()
    workshop.kill()

    for how in ("none", "clean"):
        repository = workshop.open() if how == "none" else workshop.restart(how)
        (aside,) = repository.set_aside.listed(10)
        assert aside.uuids == parse_uuid(id)
        assert "of block at offset" in aside.place
        assert repository.ledger.set_aside.may_mean(claim.resource)
        assert found_in(repository) == {other: data for other, data in contents.items() if other != id}
    assert repository.set_aside.drop([each.id for each in repository.set_aside.listed(10)]) == 1


@pytest.mark.parametrize("part", ["uuids", "ends", "rows"])
def test_a_pack_that_is_none_costs_what_is_in_it(
    workshop: Workshop, filled: tuple[Engine, dict[str, bytes]], part: str
) -> None:
    """Nobody can tell whose row is whose: it is kept as a whole, names its handles, and holds all there was before."""
    repository, contents = filled
    id = next(iter(contents))
    pack = repository.ledger.records._packed[parse_uuid(id)[0]].pack_of(parse_uuid(id))
    there = [record.id for record in records_of(pack)]
    harmed(repository, id, lambda pack, _: msgspec.structs.replace(pack, **{part: getattr(pack, part) + b"?"}))
    repository.checkpoint()
    workshop.kill()

    for ending in ("", "clean"):
        repository = workshop.restart(ending) if ending else workshop.open()
        (aside,) = repository.set_aside.listed(10)
        assert part == "uuids" or aside.uuids == b"".join(map(parse_uuid, there))
        assert aside.held_through > 0
        assert found_in(repository) == {other: data for other, data in contents.items() if other not in there}


def test_a_pack_that_does_not_decode_at_all_costs_what_is_in_it(
    workshop: Workshop, filled: tuple[Engine, dict[str, bytes]], careless_log: None
) -> None:
    """As any record of which a field has the wrong type."""
    repository, contents = filled
    id = next(iter(contents))
    pack = repository.ledger.records._packed[parse_uuid(id)[0]].pack_of(parse_uuid(id))
    there = [record.id for record in records_of(pack)]
    harmed(repository, id, lambda pack, _: msgspec.structs.replace(pack, bits=-1))
    repository.checkpoint()
    workshop.kill()

    repository = workshop.open()

    (aside,) = repository.set_aside.listed(10)
    assert aside.uuids == pack.uuids
    assert found_in(repository) == {other: data for other, data in contents.items() if other not in there}


def snapshot_of(workshop: Workshop) -> Path:
    return workshop.path / "flowfile" / "snapshot"


def test_a_damaged_byte_in_a_pack_stops_the_start(workshop: Workshop, filled: tuple[Engine, dict[str, bytes]]) -> None:
    """The block has a checksum, as every block: nothing is set aside on the strength of what it does not prove."""
    repository, contents = filled
    repository.checkpoint()
    workshop.kill()
    whole = snapshot_of(workshop).read_bytes()
    at = whole.index(parse_uuid(next(iter(contents))))
    snapshot_of(workshop).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])

    with pytest.raises(RepositoryDamaged, match=r"block of .* is damaged"):
        workshop.open()

    snapshot_of(workshop).write_bytes(whole)
    assert found_in(workshop.open()) == contents


def test_a_salvage_takes_what_a_pack_still_says(
    workshop: Workshop, filled: tuple[Engine, dict[str, bytes]], tmp_path: Path
) -> None:
    """All handles of blocks that are proved, but for the row that can't be used."""
    repository, contents = filled
    id, *others = contents
    harmed(repository, id, HARMS["bytes that are no msgpack"])
    repository.checkpoint()
    workshop.kill()

    report = salvage(str(workshop.path), spec_at(tmp_path / "new"))

    assert report.handles == len(others)
    with Engine.open(spec_at(tmp_path / "new")) as salvaged:
        assert found_in(salvaged) == {other: contents[other] for other in others}
    workshop.open()


def test_a_backup_has_the_contents_of_packed_handles(
    workshop: Workshop, filled: tuple[Engine, dict[str, bytes]], tmp_path: Path
) -> None:
    """Also of a file that is written to still: what reaches farthest in it stands in a pack."""
    repository, contents = filled
    contents |= {repository.handles.put(data): data for data in (b"first", b"second")}
    repository.ledger.records.pack(0)
    opened = [entry for entry in repository.ledger.entries() if not entry.claim.sealed]
    assert max(entry.resident_bound - entry.claim.length for entry in opened) > 0

    repository.backup(str(tmp_path / "backup"))

    Engine.restore_backup(str(tmp_path / "backup"), spec_at(tmp_path / "restored"))
    with Engine.open(spec_at(tmp_path / "restored")) as restored:
        assert found_in(restored) == contents

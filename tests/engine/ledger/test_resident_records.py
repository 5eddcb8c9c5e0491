"""Handles that rest are packed: whoever looks at them finds what stood there before, in a third of the memory."""

import random
import tracemalloc
from collections.abc import Callable
from threading import Lock
from typing import Any

import msgspec
import pytest

from tests.support import Workshop
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.packed import BYTES_MAX, ROWS_MAX, PackedHandles
from ullage.engine.ledger.resident import LOADED_MAX, UNPACKED_MIN, ResidentRecords
from ullage.engine.maintenance import MaintenanceRunner
from ullage.engine.model import (
    HANDLE_QUEUE,
    NO_ATTRIBUTES,
    ContentClaim,
    FlowFileRecord,
    Operation,
    ResourceClaim,
    new_uuids,
    parse_uuid,
)
from ullage.engine.packs import NO_HANDLES, place_of, with_more
from ullage.errors import HandleNotFound, RepositoryDamaged


def handle(choose: random.Random, number: int, shard: int | None = None, **more: Any) -> FlowFileRecord:
    """Some handle, of a few shards only, so that these are divided."""
    uuid = bytes([choose.choice([0, 7, 255]) if shard is None else shard]) + choose.randbytes(15)
    attributes = msgspec.msgpack.encode({"filename": f"f{number}.bin", "path": "./a/b", "mime.type": "text/plain"})
    claim = ContentClaim(1 + number // 1_000, number % 1_000 * 16, 16, choose.getrandbits(32))
    moment = 1_700_000_000_000 + number
    record = FlowFileRecord(uuid, HANDLE_QUEUE, claim, 0, 16, moment, moment, 1_000 * moment, attributes)
    return msgspec.structs.replace(record, **more)


def no_swap(name: str) -> Any:
    raise AssertionError(name)


def create(records: ResidentRecords, *added: FlowFileRecord) -> None:
    """As the ledger does it."""
    for record in added:
        records.objects[record.uuid[0]][record.uuid] = record


def packed_count(records: ResidentRecords) -> int:
    return len(records) - sum(map(len, records.objects))


def test_records_are_what_was_put_there_however_they_stand(seed: int) -> None:
    """Created, changed, removed and packed in any order; some can't be packed, and some stand in a queue."""
    choose = random.Random(seed)
    lock = Lock()
    records, model = ResidentRecords(lock), dict[bytes, FlowFileRecord]()
    unlike: list[dict[str, Any]] = [
        {},
        {},
        {"queue": 5},
        {"claim": None, "size": 0},
        {"attributes": msgspec.msgpack.encode({"long": "x" * (1 << 17)})},
        {"parents": bytes(16 * 70)},
        {"expires_millis": 17, "deleted_millis": 18, "start": 3, "parents": b"p" * 32, "attributes": NO_ATTRIBUTES},
    ]
    for number in range(3 * 3 * ROWS_MAX):
        record = handle(choose, number, **choose.choice(unlike))
        model[record.uuid] = record
        create(records, record)
        deed = choose.random()
        if deed < 0.02:
            records.pack(choose.choice([0, 0, 20]))
        elif deed < 0.2:
            changed = msgspec.structs.replace(
                choose.choice(list(model.values())), **{"size": 4, **choose.choice(unlike)}
            )
            model[changed.uuid] = changed
            records.replace(changed)
        elif deed < 0.3:
            gone = choose.choice(list(model))
            assert records.remove(gone) == model.pop(gone)
            assert records.remove(gone) is None
    records.pack(0)

    assert packed_count(records) > ROWS_MAX
    assert len(records) == len(model)
    assert {record.uuid: record for record in records} == model
    assert all(records.find(uuid) == record and uuid in records for uuid, record in model.items())
    assert not any(uuid in records or records.find(uuid) for uuid in new_uuids(1_000))
    long = [uuid for uuid, record in model.items() if len(record.attributes) + len(record.parents) > BYTES_MAX]
    assert long
    assert all(uuid in records.objects[uuid[0]] for uuid in long)
    with lock:
        assert list(records.problems()) == []
        kept = records.kept()
    listed = list(kept)
    assert (len(kept), {record.uuid: record for record in listed}) == (len(model), model)
    for _ in range(50):
        start = choose.randrange(len(listed))
        assert kept[start] == listed[start]
        stop = start + choose.randrange(400)
        assert kept[start:stop] == listed[start:stop]
    handles = sorted(uuid for uuid, record in model.items() if record.queue == HANDLE_QUEUE)
    assert [record.uuid for record in records.handles_behind(b"")] == handles
    for after in (choose.choice(handles), bytes(16), choose.randbytes(16), b"\xff" * 16):
        assert [each.uuid for each in records.handles_behind(after)] == [uuid for uuid in handles if uuid > after]


def test_two_uuids_side_by_side_are_no_third_one() -> None:
    """A uuid is looked for in a row of them: where the end of one and the beginning of the next look like it, too."""
    choose = random.Random(1)
    first, second = (handle(choose, number) for number in range(2))
    between = first.uuid[8:] + second.uuid[:8]
    third = msgspec.structs.replace(second, uuid=between)
    pack = with_more(NO_HANDLES, [first, second])

    assert (place_of(pack, between), place_of(pack, second.uuid)) == (-1, 1)
    assert place_of(with_more(pack, [third]), between) == 2
    packed = PackedHandles()
    packed.add([first, second])
    assert packed.find(between) is None
    packed.add([third])
    assert packed.find(between) == third


def test_a_handle_that_was_just_found_is_what_it_is_by_now() -> None:
    """Who looks it up again is spared the work, but never sees what it was."""
    record = handle(random.Random(1), 1, shard=7)
    changed = msgspec.structs.replace(record, deleted_millis=7)
    records, packed = ResidentRecords(Lock()), PackedHandles()
    create(records, record)
    records.pack(0)
    assert [packed.find(bytes(16)), records.find(record.uuid), records.find(record.uuid)] == [None, record, record]

    records.replace(changed)
    assert records.find(record.uuid) == changed
    records.pack(0)
    assert records.find(record.uuid) == changed
    records.remove(record.uuid)
    assert records.find(record.uuid) is None
    create(records, record)
    records.pack(0)
    assert records.find(record.uuid) == record


class Busy(dict[bytes, FlowFileRecord]):
    """A shard in which something happens right behind a look."""

    def __init__(self, deeds: list[Callable[[], object]]) -> None:
        super().__init__()
        self.deeds = deeds

    def get(self, uuid: bytes, default: Any = None) -> Any:
        found = super().get(uuid, default)
        if self.deeds:
            self.deeds.pop(0)()
        return found


@pytest.mark.parametrize("looks", [0, 1])
@pytest.mark.parametrize("moves", [1, 2, 3])
def test_a_record_that_moves_is_found(looks: int, moves: int) -> None:
    """Looked for among objects while it is packed, changed by the time that it is looked for among packed ones.

    look: no object | changed: an object again | look: not packed |: it was there all the time
    """
    records = ResidentRecords(Lock())
    record, other = (handle(random.Random(number), number, shard=7) for number in range(2))
    create(records, record, other)
    records.pack(0)

    def move() -> None:
        for number in range(moves):
            if number % 2:
                records.pack(0)
            else:
                records.replace(record)

    records.objects[7] = Busy([*[lambda: None] * looks, move])

    assert records.find(record.uuid) == record


class Turns:
    """A lock, before whose next taking something else happens."""

    def __init__(self) -> None:
        self.deeds: list[Callable[[], object]] = []

    def __enter__(self) -> None:
        if self.deeds:
            self.deeds.pop(0)()

    def __exit__(self, *_: object) -> None:
        pass


def test_what_changes_while_it_is_being_packed_stays_changed() -> None:
    """Between the moment in which handles are listed and the one in which they move, they belong to everybody.

    pack: listed | changed, removed | pack: moved
    """
    turns = Turns()
    records = ResidentRecords(turns)
    same, changed, gone = (handle(random.Random(number), number, shard=0) for number in range(3))
    create(records, same, changed, gone)
    newer = msgspec.structs.replace(changed, deleted_millis=7)

    def change() -> None:
        records.replace(newer)
        records.remove(gone.uuid)

    turns.deeds = [lambda: None, change]

    assert records.pack(1) == 1
    assert [records.find(each.uuid) for each in (same, changed, gone)] == [same, newer, None]
    assert (len(records), packed_count(records)) == (2, 1)


def test_what_was_kept_stays_as_it_was() -> None:
    """Changes, removals and further packing do not touch what a snapshot holds, and it tells what it alone keeps."""
    choose = random.Random(5)
    records = ResidentRecords(Lock())
    create(records, *(handle(choose, number) for number in range(1_000)))
    records.pack(0)
    kept = records.kept()
    before = list(kept)
    assert records.kept_alone_bytes(kept) == 0

    for record in before[:500]:
        records.remove(record.uuid)
    for record in before[500:]:
        records.replace(msgspec.structs.replace(record, deleted_millis=9))
    create(records, *(handle(choose, number) for number in range(5_000)))
    records.pack(0)

    assert list(kept) == before
    assert records.kept_alone_bytes(kept) > 1_000 * 60


def test_a_packed_handle_takes_a_third_of_the_memory() -> None:
    """Of 3 attributes, with the map that finds it."""

    def bytes_of(*, is_packed: bool) -> int:
        choose = random.Random(3)
        records = ResidentRecords(Lock())
        tracemalloc.start()
        for number in range(4_000):
            create(records, msgspec.msgpack.decode(msgspec.msgpack.encode(handle(choose, number)), type=FlowFileRecord))
        if is_packed:
            records.pack(0)
        taken = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return taken

    assert bytes_of(is_packed=True) < 0.4 * bytes_of(is_packed=False)


def test_what_is_in_use_of_a_file_takes_little_once_it_is_sealed() -> None:
    """Not before: what is being written would be a map again with the next content."""
    choose = random.Random(4)
    ledger = Ledger(no_swap)
    ledger.records.end_start()
    file = ResourceClaim(1, "c1", 1)
    tracemalloc.start()
    ledger.apply(1, 1, [file, *(handle(choose, number) for number in range(900))])
    taken: list[int] = []
    for operation in (file, msgspec.structs.replace(file, sealed=True, length=900 * 16)):
        ledger.apply(2, 2, [operation])
        ledger.records.pack(0)
        ledger.pack()
        taken.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()

    assert taken[0] - taken[1] > 900 * 60
    entry = ledger.entry(1)
    assert entry is not None
    assert (entry.claimants, entry.live_bytes, entry.resident_bound) == (900, 900 * 16, 900 * 16)


def snapshot_of(count: int) -> list[list[Operation]]:
    """Blocks of a snapshot with so many handles."""
    choose = random.Random(count)
    found = [handle(choose, number, expires_millis=int(number % 100 == 7)) for number in range(count)]
    resources: list[Operation] = [ResourceClaim(1 + number, "c1", 1) for number in range(1 + count // 1_000)]
    blocks: list[list[Operation]] = [[*found[at : at + 1_000]] for at in range(0, count, 1_000)]
    return [resources, *blocks]


def test_a_start_packs_what_it_brings_back() -> None:
    """So that it takes no more memory than what comes of it; and none is taken in twice, packed or not."""
    ledger = Ledger(no_swap)
    blocks = snapshot_of(LOADED_MAX + 2_000)
    for block in blocks:
        ledger.load(block)

    assert packed_count(ledger.records) >= LOADED_MAX
    found = [record for block in blocks for record in block if isinstance(record, FlowFileRecord)]
    restored = list(ledger.records.restored())
    assert len(restored) < 3_000
    assert {record.uuid for record in found if record.expires_millis} <= {record.uuid for record in restored}
    rested = [record.queued for record in found if ledger.records.is_packed(record.uuid)]
    assert ledger.records.queued_max == max(rested)
    for twice in (blocks[1][5], blocks[-1][5]):
        with pytest.raises(RepositoryDamaged, match="is created twice"):
            ledger.load([msgspec.structs.replace(twice)])


@pytest.mark.parametrize("how", ["none", "clean", "crash"])
def test_handles_that_rest_are_what_they_were(workshop: Workshop, how: str) -> None:
    """Maintenance packs them: they are read, changed, listed and purged as ever, before and after a start."""
    repository = workshop.make(compaction={"deleted_retention": 10_000})
    contents = [b"%d" % number for number in range(256 * UNPACKED_MIN * 3 // 2)]
    with repository.ledger.lock:
        assert packed_count(repository.ledger.records) == 0
    upkeep = MaintenanceRunner(repository)
    ids: dict[str, bytes] = {}
    for at in range(0, len(contents), 8_000):
        some = contents[at : at + 8_000]
        ids |= zip(repository.handles.put_many(some, {"a": "b"}), some, strict=True)
    workshop.clock.advance(2)
    upkeep.run_due()
    assert packed_count(repository.ledger.records) > len(contents) // 2
    repository.checkpoint()
    repository = workshop.restart(how)
    assert packed_count(repository.ledger.records) > len(contents) // 3

    deleted, undeleted, dying, forgotten, *_ = chosen = sorted(ids)[:: len(ids) // 40]
    repository.handles.delete(deleted)
    repository.handles.delete(undeleted)
    repository.handles.undelete(undeleted)
    repository.handles.set_ttl(dying, 5_000)
    repository.ledger.records.pack(0)
    assert repository.handles.head(deleted).deleted_millis
    repository.checkpoint()
    repository = workshop.restart(how)
    workshop.clock.advance(12)
    assert repository.handles.purge() == 2
    assert repository.handles.forget([parse_uuid(forgotten)], "not needed") == 1

    for id in (deleted, dying, forgotten):
        del ids[id]
        with pytest.raises(HandleNotFound):
            repository.handles.head(id)
    assert {id: repository.handles.get(id).read() for id in chosen if id in ids}.items() <= ids.items()
    assert repository.handles.head(undeleted).attribute_map()["a"] == "b"
    listed: list[str] = []
    while page := repository.handles.page(parse_uuid(listed[-1]) if listed else b"", 1_000):
        listed += [record.id for record in page]
    assert listed == sorted(ids)
    assert repository.check().problems == ()

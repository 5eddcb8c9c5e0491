"""FlowFiles and handles that are in memory, by uuid: as objects, or packed, as handles are that have rested a while.

    created, changed -> object -> `pack` -> packed
                          ^-- changed --------'

A record is in one of both, or for a moment, while it moves, in both, so that nobody misses it. There are 256 shards, so
that a checkpoint copies them one by one.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence, Set as AbstractSet
from contextlib import AbstractContextManager
from heapq import merge
from itertools import accumulate, chain
from operator import attrgetter
from typing import Final, overload

from ullage.engine.ledger.coldhandles import ColdPart, PassOver
from ullage.engine.ledger.packed import LastFound, PackedHandles, PackedRow, Show, behind, is_packable
from ullage.engine.model import HANDLE_QUEUE, UUID_BYTES, FlowFileRecord, HandlePack, format_uuid, split_uuids
from ullage.engine.packs import PackRows, is_whole, records_of

SHARDS: Final = 256
"""A power of two, so that a uuid's first byte names its shard."""

UNPACKED_MIN: Final = 64
"""Handles that come to a shard before any are packed: 6 MB in all shards."""

UNPACKED_SHARE: Final = 32
"""Or this part of those that are packed, if that is more: then a pack is copied for several of them at once."""

LOADED_MAX: Final = 10_000
"""Records of a snapshot after which handles are packed: a start takes no more memory than what it brings back."""

PACKED_AT_ONCE: Final = 500
"""Handles that are packed while everybody waits: a millisecond."""

REFERENCE_BYTES: Final = 8
RECORD_BYTES: Final = 500
"""Of a record that is an object, without its attributes, measured."""

SAMPLED: Final = 200
"""Records that are looked at to tell how many a snapshot alone keeps: a tenth of a millisecond, whatever it holds."""

_by_uuid = attrgetter("uuid")
_has_rows = attrgetter("uuids")


Part = list[FlowFileRecord] | HandlePack | ColdPart


class KeptRecords(Sequence[FlowFileRecord]):
    """Records as they were at one moment, in parts: objects, which are shared with whoever has them, packs, and runs on
    the disk. Of these rows count that are no handles any more: a slice leaves them out, and is the shorter for it.
    RepositoryDamaged where a run cannot be read.
    """

    def __init__(self, parts: Iterable[Part]) -> None:
        self.parts = list(parts)
        counts = (len(part) if isinstance(part, list) else part.size for part in self.parts)
        self._ends = list(accumulate(counts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[FlowFileRecord]:
        return chain.from_iterable(map(_each_of, self.parts))

    def readable(self, pass_over: PassOver) -> Iterator[FlowFileRecord]:
        """Those that can be read; `pass_over` is told what cannot."""
        for part in self.parts:
            yield from part.records(0, None, pass_over) if isinstance(part, ColdPart) else _records_of(part)

    @property
    def packs(self) -> list[HandlePack]:
        """Of the packed ones."""
        return [part for part in self.parts if isinstance(part, HandlePack)]

    @property
    def objects(self) -> list[list[FlowFileRecord]]:
        """The others."""
        return [part for part in self.parts if isinstance(part, list)]

    @property
    def references(self) -> int:
        """How many there are to them."""
        return sum(map(len, self.objects)) + len(self.parts)

    @overload
    def __getitem__(self, index: int) -> FlowFileRecord: ...

    @overload
    def __getitem__(self, index: slice) -> list[FlowFileRecord]: ...

    def __getitem__(self, index: int | slice) -> FlowFileRecord | list[FlowFileRecord]:
        """One, or some in a row."""
        if isinstance(index, int):
            return self[index : index + 1][0]
        start, stop, _ = index.indices(len(self))
        found: list[FlowFileRecord] = []
        for number in range(bisect_right(self._ends, start), len(self.parts)):
            begins = self._ends[number - 1] if number else 0
            if begins >= stop:
                break
            part = self.parts[number]
            if isinstance(part, ColdPart):
                found += part.records(max(0, start - begins), stop - begins)
            else:
                found += _records_of(part)[max(0, start - begins) : stop - begins]
        return found


class ResidentRecords:
    """Changed under the ledger's lock. Who looks one up needs none."""

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self._lock = lock
        self.objects: list[dict[bytes, FlowFileRecord]] = [{} for _ in range(SHARDS)]
        """Those that are not packed."""

        last = LastFound()
        self._packed: list[PackedHandles] = [PackedHandles(last) for _ in range(SHARDS)]
        self.is_starting = True
        """Whether records come back that were made before: none may be there twice."""

        self.queued_max = 0
        """The last place in a queue that handles had which a start has packed."""

        self._ending: list[bytes] = []
        """Those of them that have an end."""

        self._loaded = 0
        self._resting = [0] * SHARDS
        """How many objects were left when handles of a shard were packed."""

        self.moves = 0
        """Raised whenever a packed or cold record becomes an object, before it is packed or cold no more."""

    def __len__(self) -> int:
        return sum(map(len, self.objects)) + self.packed_count

    @property
    def references(self) -> int:
        """How many `kept` would have."""
        return sum(map(len, self.objects)) + sum(len(packed) for packed in self._packed)

    def find(self, uuid: bytes) -> FlowFileRecord | None:
        """A record; of a packed one a new object each time."""
        number = uuid[0]
        record = self.objects[number].get(uuid)
        packed = self._packed[number]
        if record is not None or not packed.count:
            return record
        # | no object | changed, and an object again | not packed |: it was there all the time
        while True:
            moves = self.moves
            record = self.objects[number].get(uuid) or packed.find(uuid)
            if record is not None or moves == self.moves:
                return record

    def __contains__(self, uuid: bytes) -> bool:
        """Called under the lock."""
        return uuid in self.objects[uuid[0]] or self.is_packed(uuid)

    def is_packed(self, uuid: bytes) -> bool:
        """Whether a record is there, and no object; called under the lock."""
        return uuid in self._packed[uuid[0]]

    def replace(self, record: FlowFileRecord) -> None:
        """Another state of one that is there."""
        uuid = record.uuid
        objects = self.objects[uuid[0]]
        was_packed = uuid not in objects
        objects[uuid] = record
        if was_packed:
            self.moves += 1
            self._packed[uuid[0]].remove(uuid)

    def remove(self, uuid: bytes) -> FlowFileRecord | None:
        """Forget a record, and return it; None: there is none."""
        record = self.objects[uuid[0]].pop(uuid, None)
        if record is None and (record := self._packed[uuid[0]].find(uuid)) is not None:
            self._packed[uuid[0]].remove(uuid)
        return record

    def warm(self, record: FlowFileRecord) -> None:
        """A cold handle is an object from now on."""
        self.objects[record.uuid[0]][record.uuid] = record
        self.moves += 1

    def let_go(self, pack: HandlePack, rows: Sequence[PackedRow], held: AbstractSet[bytes], show: Show) -> None:
        """See `PackedHandles.let_go`."""
        self._packed[rows[0][0][0]].let_go(pack, rows, held, show)

    @property
    def packed_count(self) -> int:
        """How many handles are packed."""
        return sum(packed.count for packed in self._packed)

    def put_back(self, pack: HandlePack, rows: PackRows) -> bool:
        """Take in a pack of a snapshot, which has these rows; False: it has to be taken in row by row."""
        uuids = rows.uuids
        least, greatest = min(uuids), max(uuids)
        number = least[0]
        if number != greatest[0] or len(set(uuids)) < len(uuids) or not self.objects[number].keys().isdisjoint(uuids):
            return False
        if not self._packed[number].put_back(pack, least, greatest):
            return False
        has_ends = any(rows.expires_millis) or any(rows.deleted_millis)  # looked for in a tenth of the time
        ends = zip(uuids, rows.expires_millis, rows.deleted_millis, strict=True) if has_ends else ()
        self._note_packed(rows.queued, ends)
        return True

    def note_loaded(self, count: int) -> None:
        """So many records of a snapshot were taken in."""
        self._loaded += count
        if self._loaded >= LOADED_MAX:
            self._loaded = 0
            self.pack()

    def end_start(self) -> None:
        """All that was made before is there."""
        self.is_starting = False
        self._ending = []
        for packed in self._packed:
            packed.join_small()

    def restored(self) -> Iterator[FlowFileRecord]:
        """What a start has brought back, but for packed handles that have no end."""
        for number in range(SHARDS):
            with self._lock:
                objects = list(self.objects[number].values())
            yield from objects
        found = map(self.find, filter(self.is_packed, self._ending))
        yield from (record for record in found if record is not None)

    def pack(self, least: int | None = None) -> int:
        """Pack handles of shards to which so many have come, or as many as are worth it; how many were packed. Whoever
        changes records meanwhile waits for `PACKED_AT_ONCE` of them.
        """
        return sum(self._pack_shard(number) for number in range(SHARDS) if self._is_due(number, least))

    def _is_due(self, number: int, least: int | None) -> bool:
        count = len(self.objects[number])
        resting = self._resting[number] = min(self._resting[number], count)
        if least is None:
            least = max(UNPACKED_MIN, self._packed[number].count // UNPACKED_SHARE)
        return count - resting >= least

    def _pack_shard(self, number: int) -> int:
        objects, packed = self.objects[number], self._packed[number]
        with self._lock:
            found = list(objects.values())
        found = list(filter(is_packable, found))
        count = 0
        for at in range(0, len(found), PACKED_AT_ONCE):
            with self._lock:
                some = [each for each in found[at : at + PACKED_AT_ONCE] if objects.get(each.uuid) is each]
                packed.add(some)  # first: who finds no object looks here
                for record in some:
                    del objects[record.uuid]
            if self.is_starting and some:
                ends = ((record.uuid, record.expires_millis, record.deleted_millis) for record in some)
                self._note_packed([record.queued for record in some], ends)
            count += len(some)
        self._resting[number] = len(objects)
        return count

    def _note_packed(self, queued: Sequence[int], ends: Iterable[tuple[bytes, int, int]]) -> None:
        self.queued_max = max(self.queued_max, *queued)
        self._ending += [uuid for uuid, expires, deleted in ends if expires or deleted]

    def keep(self, number: int) -> list[list[FlowFileRecord] | HandlePack]:
        """The parts of a shard as it is now; called under the lock."""
        return [list(self.objects[number].values()), *filter(_has_rows, self._packed[number].packs)]

    def kept(self) -> KeptRecords:
        """All of them as they are now; called under the lock."""
        return KeptRecords(part for number in range(SHARDS) for part in self.keep(number))

    def kept_alone_bytes(self, kept: KeptRecords) -> int:
        """About what those take that stand here no more, or not like that. Whether some are still the same says how
        many are.
        """
        count = sum(map(len, kept.objects))
        stride, at, seen = max(1, count // SAMPLED), 0, list[FlowFileRecord]()
        for objects in kept.objects:
            seen += objects[at::stride]
            at = (at - len(objects)) % stride
        gone = [RECORD_BYTES + len(each.attributes) for each in seen if self.find(each.uuid) is not each]
        packs = kept.packs
        looked_at = packs[:: max(1, len(packs) // SAMPLED)]
        others = [_bytes_of(pack) for pack in looked_at if self._pack_like(pack) is not pack]
        bits = sum(len(part.gone) for part in kept.parts if isinstance(part, ColdPart))
        return bits + _scaled(gone, len(seen), count) + _scaled(others, len(looked_at), len(packs))

    def _pack_like(self, pack: HandlePack) -> HandlePack:
        first = pack.uuids[:UUID_BYTES]
        return self._packed[first[0]].pack_of(first)

    def problems(self) -> Iterator[str]:
        """What contradicts what; called under the lock."""
        for objects, packed in zip(self.objects, self._packed, strict=True):
            places = {uuid: pack for pack in packed.packs for uuid in split_uuids(pack.uuids)}
            if len(places) != packed.count or not all(map(is_whole, packed.packs)):
                yield f"{len(places)} handles are packed in a shard that counts {packed.count}, or some rows are cut"
            for uuid, pack in places.items():
                if uuid in objects or packed.pack_of(uuid) is not pack:
                    yield f"handle {format_uuid(uuid)} is packed elsewhere, or not only packed"

    def __iter__(self) -> Iterator[FlowFileRecord]:
        """All of them; shard by shard, each as it is at a moment."""
        for number in range(SHARDS):
            with self._lock:
                kept = self.keep(number)
            for part in kept:
                yield from _records_of(part)

    def handles_behind(self, uuid: bytes) -> Iterator[FlowFileRecord]:
        """Handles in the order of uuids from behind this one on, or all; shard by shard, each as it is at a moment."""
        for number in range(uuid[0] if uuid else 0, SHARDS):
            with self._lock:
                objects, packs = list(self.objects[number].values()), self._packed[number].packs
            lately = (each for each in objects if each.queue == HANDLE_QUEUE and each.uuid > uuid)
            start = uuid if uuid[:1] == bytes([number]) else b""
            yield from merge(sorted(lately, key=_by_uuid), behind(packs, start), key=_by_uuid)


def _each_of(part: Part) -> Iterable[FlowFileRecord]:
    return part.records() if isinstance(part, ColdPart) else _records_of(part)


def _records_of(part: list[FlowFileRecord] | HandlePack) -> list[FlowFileRecord]:
    return records_of(part) if isinstance(part, HandlePack) else part


def _bytes_of(pack: HandlePack) -> int:
    return len(pack.uuids) + len(pack.ends) + len(pack.rows)


def _scaled(sizes: Sequence[int], seen: int, count: int) -> int:
    """The sum of all, where of some that were looked at these have these sizes."""
    return sum(sizes) * count // max(1, seen)

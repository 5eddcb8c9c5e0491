"""Handles as they stand in memory once they rest: packed, in a third of what a record takes as an object.

The uuids of one shard are divided by their next bits, and those that begin alike share a pack (packs.py) of up to some
256 rows. Who changes a row puts another pack in its place, and whoever holds the old one, as a snapshot does, has all
that it held. A uuid is random, so that packs fill evenly.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence, Set as AbstractSet
from operator import attrgetter
from typing import Final

import msgspec

from ullage.engine.model import HANDLE_QUEUE, UUID_BYTES, FlowFileRecord, HandlePack, split_uuids
from ullage.engine.packs import (
    ANY_HANDLE,
    BEFORE_ROW,
    BEFORE_UUID,
    NO_HANDLES,
    PREFIX_BITS,
    divided,
    ends_of,
    joined,
    only,
    place_of,
    prefix_of,
    records_of,
    row_at,
    with_more,
    without,
)

ROWS_MAX: Final = 256
"""Rows of a pack, on average, at which a shard has more packs: a change of one row copies them all."""

GROWTH_BITS: Final = 3
"""Of uuids, by which each pack is divided then: rows move seldom, and one of 32 rows costs 5 bytes a row more."""

ROWS_MIN: Final = 16
"""Of a pack, on average, below which a start joins packs: many were removed since they were divided."""

BITS_MAX: Final = 15
"""By which a pack of a snapshot may say that its shard is divided: enough for two thousand million handles, and a list
of packs takes 256 KiB then.
"""

BYTES_MAX: Final = 1 << 10
"""A record that has more of attributes and parents stays an object: what that takes more is little then, and a pack
stays small.
"""

Show = Callable[[Sequence[int]], None]

PackedRow = tuple[bytes, bytes]
"""A uuid, and the row that it has in a pack."""

_decode = msgspec.msgpack.Decoder(FlowFileRecord).decode

_by_uuid = attrgetter("uuid")


def is_packable(record: FlowFileRecord) -> bool:
    """Whether a record is one of those that are packed."""
    return record.queue == HANDLE_QUEUE and len(record.attributes) + len(record.parents) <= BYTES_MAX


class LastFound:
    """The handle that was looked up last, and the pack in which it stood: a change looks it up three times, and as long
    as it stands in that pack it is the same.
    """

    __slots__ = ("it",)

    def __init__(self) -> None:
        self.it = HandlePack(), ANY_HANDLE


class PackedHandles:
    """The packed handles of one shard. Changed under the ledger's lock; who looks one up needs none."""

    def __init__(self, last: LastFound | None = None) -> None:
        """`last` may belong to several shards."""
        self.count = 0
        self._packs = [NO_HANDLES]
        self._last = last or LastFound()

    @property
    def packs(self) -> list[HandlePack]:
        """All of them in the order of their uuids: a copy, of this moment."""
        return list(self._packs)

    def __len__(self) -> int:
        """How many packs there are."""
        return len(self._packs)

    def find(self, uuid: bytes) -> FlowFileRecord | None:
        """The record of a packed handle: written out, since each read of a content begins here."""
        packs = self._packs
        pack = packs[int.from_bytes(uuid[1:8], "big") >> PREFIX_BITS + 1 - len(packs).bit_length()]
        last_pack, record = self._last.it
        if pack is last_pack and record.uuid == uuid:
            return record
        at = pack.uuids.find(uuid)
        if at % UUID_BYTES and (at := UUID_BYTES * place_of(pack, uuid)) < 0:
            return None
        ends, index = ends_of(pack), at // UUID_BYTES
        start = ends[index - 1] if index else 0
        record = _decode(b"".join((BEFORE_UUID, uuid, BEFORE_ROW, pack.rows[start + 1 : ends[index]])))
        self._last.it = pack, record
        return record

    def __contains__(self, uuid: bytes) -> bool:
        return self.count > 0 and place_of(self.pack_of(uuid), uuid) >= 0

    def pack_of(self, uuid: bytes) -> HandlePack:
        """The pack in which a handle would be."""
        packs = self._packs
        return packs[prefix_of(uuid) >> _shift(packs)]

    def add(self, records: Sequence[FlowFileRecord]) -> None:
        """Pack records, none of which is there."""
        while self.count + len(records) > ROWS_MAX * len(self._packs):
            # Another list: who holds no lock has packs of which the number says how many bits divide them.
            self._packs = [part for pack in self._packs for part in divided(pack, GROWTH_BITS)]
        packs, shift, from_bytes = self._packs, _shift(self._packs), int.from_bytes
        groups: defaultdict[int, list[FlowFileRecord]] = defaultdict(list)
        for record in records:
            groups[from_bytes(record.uuid[1:8], "big") >> shift].append(record)
        changed = {number: with_more(packs[number], group) for number, group in groups.items()}
        for number, pack in changed.items():  # where memory runs out before this, nothing has changed
            packs[number] = pack
        self.count += len(records)

    def remove(self, uuid: bytes) -> None:
        """Forget one that is there."""
        packs = self._packs
        number = prefix_of(uuid) >> _shift(packs)
        packs[number] = without(packs[number], place_of(packs[number], uuid))
        self.count -= 1

    def let_go(self, pack: HandlePack, rows: Sequence[PackedRow], held: AbstractSet[bytes], show: Show) -> None:
        """Forget those of these rows of a pack which stand here as they did then, and are not held. `show` is told
        their places among `rows` first: who looks for one that is packed no more finds it elsewhere.
        """
        at = prefix_of(rows[0][0]) >> _shift(self._packs)
        uuids = [uuid for uuid, _ in rows]
        if self._packs[at] is pack and held.isdisjoint(uuids):
            show(range(len(rows)))
            leaving = set(uuids)
            self._packs[at] = only(pack, [uuid not in leaving for uuid in split_uuids(pack.uuids)])
            self.count -= len(rows)
            return
        for place, (uuid, row) in enumerate(rows):
            current = self.pack_of(uuid)
            index = place_of(current, uuid)
            if index >= 0 and uuid not in held and row_at(current, index) == row:
                show([place])
                self.remove(uuid)

    def put_back(self, pack: HandlePack, least: bytes, greatest: bytes) -> bool:
        """Put a pack of a snapshot where it stood, whose uuids lie between these two of one shard. False: something
        else is there, or they are not what it says.
        """
        packs = self._packs
        if not self.count and pack.bits <= BITS_MAX:
            packs = [msgspec.structs.replace(NO_HANDLES, bits=pack.bits)] * (1 << pack.bits)
        shift = _shift(packs)
        number = prefix_of(least) >> shift
        if packs[number].bits != pack.bits or packs[number].uuids or prefix_of(greatest) >> shift != number:
            return False
        packs[number] = pack
        self._packs = packs
        self.count += pack.size
        return True

    def join_small(self) -> None:
        """Have fewer packs, if so few rows are left that a pack takes more than they do. Nobody looks meanwhile."""
        step = 1 << GROWTH_BITS
        while len(self._packs) >= step and self.count < ROWS_MIN * len(self._packs):
            self._packs = [joined(self._packs[at : at + step]) for at in range(0, len(self._packs), step)]


def behind(packs: Sequence[HandlePack], uuid: bytes) -> Iterator[FlowFileRecord]:
    """The records of a shard's packs whose uuids come behind this one of the same shard, in order; b"": all."""
    for pack in packs[prefix_of(uuid) >> _shift(packs) if uuid else 0 :]:
        yield from sorted((each for each in records_of(pack) if each.uuid > uuid), key=_by_uuid)


def _shift(packs: Sequence[HandlePack]) -> int:
    """How many bits of a prefix are behind those that divide a shard into so many packs."""
    return PREFIX_BITS + 1 - len(packs).bit_length()

"""Handles as they stand in memory once they rest: packed, in a third of what a record takes as an object.

The uuids of one shard are divided by their next bits, and those that begin alike share a pack of up to some 256 rows:

    uuids   16 bytes each, in no order | lengths of the rows, u16 each | rows: the record as msgpack, behind its uuid

A pack is never changed: who changes a row puts another pack in its place, and whoever holds the old one, as a
snapshot does, has all that it held. A uuid is random, so that packs fill evenly.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from ullage.engine.model import HANDLE_QUEUE, NO_ATTRIBUTES, UUID_BYTES, FlowFileRecord

ROWS_MAX: Final = 256
"""Rows of a pack, on average, at which a shard has more packs: a change of one row copies them all."""

GROWTH_BITS: Final = 3
"""Of uuids, by which each pack is divided then: rows move seldom, and one of 32 rows costs 5 bytes a row more."""

BYTES_MAX: Final = 1 << 10
"""A record that has more of attributes and parents stays an object: what that takes more is little then, and a pack
stays small.
"""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(FlowFileRecord).decode

_ANY = FlowFileRecord(bytes(UUID_BYTES), HANDLE_QUEUE, None, 0, 0, 0, 0, 0, NO_ATTRIBUTES)
_HEAD: Final = _encode(_ANY)[: _encode(_ANY).index(_ANY.uuid)]
"""What stands before the uuid of every record."""

_ROW_AT: Final = len(_HEAD) + UUID_BYTES

_PREFIX_BITS: Final = 56
"""Of a uuid, behind the byte that names its shard: those that may divide it."""

_LENGTH: Final = "H"

_by_uuid = attrgetter("uuid")


def is_packable(record: FlowFileRecord) -> bool:
    """Whether a record is one of those that are packed."""
    return record.queue == HANDLE_QUEUE and len(record.attributes) + len(record.parents) <= BYTES_MAX


class HandlePack(NamedTuple):
    """Handles whose uuids begin alike; see the module's text."""

    uuids: bytes = b""
    lengths: bytes = b""
    rows: bytes = b""

    @property
    def size(self) -> int:
        """How many rows there are."""
        return len(self.uuids) // UUID_BYTES

    @property
    def nbytes(self) -> int:
        """What it takes in memory, about."""
        return len(self.uuids) + len(self.lengths) + len(self.rows)

    def is_whole(self) -> bool:
        """Whether every uuid has a row."""
        lengths = memoryview(self.lengths).cast(_LENGTH)
        return len(lengths) == self.size and sum(lengths) == len(self.rows)

    def place(self, uuid: bytes) -> int:
        """The number of its row; -1: there is none."""
        at = self.uuids.find(uuid)
        while at > 0 and at % UUID_BYTES:  # the end of one and the beginning of another look like it
            at = self.uuids.find(uuid, at + 1)
        return at // UUID_BYTES

    def encoded(self) -> list[msgspec.Raw]:
        """All of them, as a block of a snapshot has them."""
        return [msgspec.Raw(_HEAD + uuid + row) for uuid, row in self._split()]

    def records(self) -> list[FlowFileRecord]:
        """All of them."""
        return [_decode(_HEAD + uuid + row) for uuid, row in self._split()]

    def with_more(self, records: Sequence[FlowFileRecord]) -> "HandlePack":
        """The same and these, none of which it has."""
        rows = [_encode(record)[_ROW_AT:] for record in records]
        uuids = b"".join([self.uuids, *[record.uuid for record in records]])
        return HandlePack(uuids, self.lengths + array(_LENGTH, map(len, rows)).tobytes(), b"".join([self.rows, *rows]))

    def without(self, index: int) -> "HandlePack":
        """The same but for one row."""
        lengths = array(_LENGTH, self.lengths)
        start = sum(lengths[:index])
        end = start + lengths.pop(index)
        at = UUID_BYTES * index
        return HandlePack(
            self.uuids[:at] + self.uuids[at + UUID_BYTES :], lengths.tobytes(), self.rows[:start] + self.rows[end:]
        )

    def divided(self, shift: int) -> "list[HandlePack]":
        """Its rows by the last bits of their prefixes above `shift`."""
        sides: list[tuple[list[bytes], list[bytes]]] = [([], []) for _ in range(1 << GROWTH_BITS)]
        for uuid, row in self._split():
            uuids, rows = sides[_prefix(uuid) >> shift & (1 << GROWTH_BITS) - 1]
            uuids.append(uuid)
            rows.append(row)
        return [
            HandlePack(b"".join(uuids), array(_LENGTH, map(len, rows)).tobytes(), b"".join(rows))
            for uuids, rows in sides
        ]

    def _split(self) -> Iterator[tuple[bytes, bytes]]:
        """The uuid and the row of each."""
        uuids, rows, at, start = self.uuids, self.rows, 0, 0
        for length in memoryview(self.lengths).cast(_LENGTH):
            yield uuids[at : at + UUID_BYTES], rows[start : start + length]
            at += UUID_BYTES
            start += length


class PackedHandles:
    """The packed handles of one shard. Changed under the ledger's lock; who looks one up needs none."""

    def __init__(self) -> None:
        self.count = 0
        self._packs = [HandlePack()]

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
        pack = packs[int.from_bytes(uuid[1:8], "big") >> _PREFIX_BITS + 1 - len(packs).bit_length()]
        uuids, lengths, rows = pack
        at = uuids.find(uuid)
        if at % UUID_BYTES and (at := UUID_BYTES * pack.place(uuid)) < 0:
            return None
        each = memoryview(lengths).cast(_LENGTH)
        index = at // UUID_BYTES
        start = sum(each[:index])
        return _decode(_HEAD + uuid + rows[start : start + each[index]])

    def __contains__(self, uuid: bytes) -> bool:
        return self.count > 0 and self.pack_of(uuid).place(uuid) >= 0

    def pack_of(self, uuid: bytes) -> HandlePack:
        """The pack in which a handle would be."""
        packs = self._packs
        return packs[_prefix(uuid) >> _shift(packs)]

    def add(self, records: Sequence[FlowFileRecord]) -> None:
        """Pack records, none of which is there."""
        while self.count + len(records) > ROWS_MAX * len(self._packs):
            # Another list: who holds no lock has packs of which the number says how many bits divide them.
            shift = _shift(self._packs) - GROWTH_BITS
            self._packs = [part for pack in self._packs for part in pack.divided(shift)]
        packs, shift, from_bytes = self._packs, _shift(self._packs), int.from_bytes
        groups: defaultdict[int, list[FlowFileRecord]] = defaultdict(list)
        for record in records:
            groups[from_bytes(record.uuid[1:8], "big") >> shift].append(record)
        changed = {number: packs[number].with_more(group) for number, group in groups.items()}
        for number, pack in changed.items():  # where memory runs out before this, nothing has changed
            packs[number] = pack
        self.count += len(records)

    def remove(self, uuid: bytes) -> None:
        """Forget one that is there."""
        packs = self._packs
        number = _prefix(uuid) >> _shift(packs)
        packs[number] = packs[number].without(packs[number].place(uuid))
        self.count -= 1


def behind(packs: Sequence[HandlePack], uuid: bytes) -> Iterator[FlowFileRecord]:
    """The records of a shard's packs whose uuids come behind this one of the same shard, in order; b"": all."""
    for pack in packs[_prefix(uuid) >> _shift(packs) if uuid else 0 :]:
        yield from sorted((each for each in pack.records() if each.uuid > uuid), key=_by_uuid)


def _prefix(uuid: bytes) -> int:
    return int.from_bytes(uuid[1:8], "big")


def _shift(packs: Sequence[HandlePack]) -> int:
    """How many bits of a prefix are behind those that divide a shard into so many packs."""
    return _PREFIX_BITS + 1 - len(packs).bit_length()

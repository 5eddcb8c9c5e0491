"""What docs/storage.md says of runs of claims, and what it calls damage: see `tests.storage_reader`."""

import struct
from collections.abc import Iterator


class Damaged(Exception):
    """The files are not what docs/storage.md describes."""


def claims_in(rows: list[tuple[bytes, bytes]]) -> Iterator[tuple[int, list[int]]]:
    """What a run of claims says: rows of the run of handles, each with the fields of a ContentClaim."""
    require(rows[-1][0] == b"\xff" * 16, "the last row of a run of claims")
    found = 0
    for key, value in rows[:-1]:
        high, first = struct.unpack(">QQ", key)
        (count,) = struct.unpack_from("<I", value)
        width = "I" if len(value) == 4 + 16 * count else "Q"
        columns = struct.unpack(f"<{2 * count}{width}{2 * count}I", value[4:])
        offsets, lengths, crcs, places = (columns[at : at + count] for at in range(0, 4 * count, count))
        require(offsets[0] == first and list(offsets) == sorted(offsets), "offsets of a run of claims")
        for offset, length, crc, place in zip(offsets, lengths, crcs, places, strict=True):
            yield (high >> 48 << 20) + place, [high & (1 << 48) - 1, offset, length, crc]
        found += count
    require(rows[-1][1] == struct.pack("<Q", found), "how many claims there are")


def require(is_so: bool, what: str) -> None:
    """Damaged, unless it is so."""
    if not is_so:
        raise Damaged(what)

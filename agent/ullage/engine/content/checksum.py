"""CRC-32C of content: one for the whole claim, and one for each 256 KiB block of a claim larger than a block.

A range read verifies every block it touches, so that reading a kilobyte of a gigabyte neither trusts unverified bytes
nor reads all of them. A claim of up to one block is its own block.
"""

import struct

from crc32c import crc32c

from ullage.engine.model import BLOCK_BYTES


class Hasher:
    """Takes content in pieces of any size; memory grows by 4 bytes a block."""

    def __init__(self) -> None:
        self.crc = 0
        self.length = 0
        self._blocks: list[int] = []
        self._block = 0
        self._block_bytes = 0

    def update(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        self.crc = crc32c(view, self.crc)
        self.length += len(view)
        while len(view) > 0:
            part = view[: BLOCK_BYTES - self._block_bytes]
            self._block = crc32c(part, self._block)
            self._block_bytes += len(part)
            view = view[len(part) :]
            if self._block_bytes == BLOCK_BYTES:
                self._close_block()

    def block_crcs(self) -> bytes | None:
        """The packed block CRCs, or None for content of at most one block. Ends the hashing."""
        if self._block_bytes:
            self._close_block()
        if len(self._blocks) < 2:
            return None
        return struct.pack(f"<{len(self._blocks)}I", *self._blocks)

    def _close_block(self) -> None:
        self._blocks.append(self._block)
        self._block = 0
        self._block_bytes = 0


def block_crc(crcs: bytes, number: int) -> int:
    """The CRC of one block."""
    crc: int = struct.unpack_from("<I", crcs, 4 * number)[0]
    return crc

"""What is written, in a few bytes: the same for the same contents, in whatever order, and however split up."""

import hashlib
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa

from ullage.wire.schemas import PUT_ATTRIBUTES, PUT_CONTENT, PUT_CONTINUES
from ullage_spark.carried import Carried

DIGEST_BYTES: Final = 16
MODULUS: Final = 1 << 8 * DIGEST_BYTES


class Fingerprint(Carried):
    """A sum of the contents' digests: sums of parts add up to that of the whole, and what comes twice counts twice.

    It tells mistakes apart, such as yesterday's rows under today's name, and is no proof against who looks for two sets
    of rows that have the same.
    """

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0
        self._open: Any = None  # of a content that goes on in the next row

    @property
    def text(self) -> str:
        """It, for a document."""
        return self.sum.to_bytes(DIGEST_BYTES, "big").hex()

    def add(self, other: "Fingerprint") -> None:
        """The other part's rows too."""
        self.count += other.count
        self.sum = (self.sum + other.sum) % MODULUS

    def seeing(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches; what is taken of them is added."""
        for batch in batches:
            self._see(batch)
            yield batch
        self._open = None  # no content goes on beyond a partition

    def _see(self, batch: pa.RecordBatch) -> None:
        contents = batch.column(PUT_CONTENT)
        has_attributes = PUT_ATTRIBUTES in batch.schema.names
        attributes = batch.column(PUT_ATTRIBUTES).to_pylist() if has_attributes else [None] * batch.num_rows
        for content, pairs, goes_on in zip(contents, attributes, continuing(batch), strict=True):
            # Their size stands before the attributes: no row's can be taken for the beginning of its content.
            said = msgspec.json.encode(sorted(pairs or ()))
            digest = self._open or hashlib.blake2b(len(said).to_bytes(8, "big") + said, digest_size=DIGEST_BYTES)
            if content.is_valid:
                digest.update(content.as_buffer())
            self._open = digest if goes_on else None
            if not goes_on:
                self.count += 1
                self.sum = (self.sum + int.from_bytes(digest.digest(), "big")) % MODULUS


def continuing(batch: pa.RecordBatch) -> list[bool]:
    """Of each row whether the next one goes on with its content."""
    if PUT_CONTINUES not in batch.schema.names:
        return [False] * batch.num_rows
    return [bool(each) for each in batch.column(PUT_CONTINUES).to_pylist()]

"""What rows are written, in a few bytes: the same for the same rows, in whatever order, and however split up."""

import hashlib
from collections.abc import Iterator
from typing import Final

import msgspec
import pyarrow as pa

from ullage.wire.schemas import PUT_ATTRIBUTES, PUT_CONTENT
from ullage_spark.carried import Carried

DIGEST_BYTES: Final = 16
MODULUS: Final = 1 << 8 * DIGEST_BYTES


class Fingerprint(Carried):
    """A sum of the rows' digests: sums of parts add up to that of the whole, and a row that comes twice counts twice.

    It tells mistakes apart, such as yesterday's rows under today's name, and is no proof against who looks for two sets
    of rows that have the same.
    """

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0

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

    def _see(self, batch: pa.RecordBatch) -> None:
        contents = batch.column(PUT_CONTENT)
        has_attributes = PUT_ATTRIBUTES in batch.schema.names
        attributes = batch.column(PUT_ATTRIBUTES).to_pylist() if has_attributes else [None] * batch.num_rows
        total = 0
        for content, pairs in zip(contents, attributes, strict=True):
            # Their size stands before the attributes: no row's can be taken for the beginning of its content.
            said = msgspec.json.encode(sorted(pairs or ()))
            digest = hashlib.blake2b(len(said).to_bytes(8, "big") + said, digest_size=DIGEST_BYTES)
            if content.is_valid:
                digest.update(content.as_buffer())
            total += int.from_bytes(digest.digest(), "big")
        self.count += batch.num_rows
        self.sum = (self.sum + total) % MODULUS

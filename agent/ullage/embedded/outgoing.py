"""Record batches whose contents are not copied into them: whoever sends one copies each content once, into its message.

An Arrow array of contents is one buffer, so making one copies every content; sending the batch then copies them again.
Here Arrow is given their lengths alone, over memory that is never touched. It writes a batch's buffers without looking
into them, so that the sender can put the contents themselves in the place of that one. Measured with contents of
100 KB: it takes a fifth of the processor time of the whole read.
"""

import mmap
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

import pyarrow as pa

CONTENT_BYTES: Final = 1 << 20
"""Content of a batch: so much that a core's own cache still has what was read when it is copied into the message, and
so little that a slow reader, who holds three of them, costs little memory.
"""

_ABSENT: Final = pa.py_buffer(mmap.mmap(-1, 64 << 20))
"""Address space, not memory: no page of it is ever read or written. A row has at most a MiB, a batch one row more than
`CONTENT_BYTES`.
"""


class OutgoingBatch(NamedTuple):
    """A batch to be sent: `contents` belong where its buffer of contents is. A plain batch has none."""

    batch: pa.RecordBatch
    contents: Sequence[bytes | memoryview] = ()

    def filled(self, parts: Sequence[Any]) -> list[Any]:
        """What Arrow has written of the batch, with the contents in their place."""
        if not self.contents:
            return list(parts)
        found: list[Any] = []
        for part in parts:
            found += self.contents if _is_absent(part) else (part,)
        return found


def absent(contents: Sequence[bytes | memoryview | None], type: pa.DataType) -> pa.Array:
    """An array of their lengths: only to be sent with `OutgoingBatch`, since no byte of it is there."""
    nulls = None
    if None in contents:
        nulls = pa.array([content is not None for content in contents]).buffers()[1]
    offsets = array("i", accumulate(map(len, (content or b"" for content in contents)), initial=0))
    assert offsets[-1] <= _ABSENT.size, f"a batch of {offsets[-1]} bytes of content is too large"
    return pa.Array.from_buffers(type, len(contents), [nulls, pa.py_buffer(offsets), _ABSENT.slice(0, offsets[-1])])


def _is_absent(part: Any) -> bool:
    return bool(pa.py_buffer(part).address == _ABSENT.address)


def content_chunks(rows: Iterator[tuple[Any, ...]], content: int, rows_max: int) -> Iterator[list[tuple[Any, ...]]]:
    """As many rows as make a batch of content, which is at this place of each."""
    chunk: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row[content] or b"")
        if size >= CONTENT_BYTES or len(chunk) >= rows_max:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk

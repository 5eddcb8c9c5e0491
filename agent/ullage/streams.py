"""Content as it is read: a stream of pieces that were verified before they are handed out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import IO, Any, Final, Self

PIECE_BYTES: Final = 1 << 20

BATCH_CONTENTS: Final = 10_000
"""What one transaction takes, beside a bound of bytes."""

AnyContent = bytes | bytearray | memoryview | IO[bytes] | Iterable[bytes]
"""Content to be stored: bytes, an open binary file that is read to its end, or pieces."""


class Closable(ABC):
    """What `with` closes at the end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Let go of everything. Safe to call twice."""


class ContentStream(Closable):
    """One content, or a range of it, as a file that is read once from its beginning to its end.

    Iterating yields pieces of up to a few MiB; `read` gives as many bytes as are asked for. `size` is the number of
    bytes in all. Until it is closed, or read to its end, the bytes stay where they are, so use it as a context manager:

    >>> handle = repository.handles.put(b"a few bytes")
    >>> with repository.handles.stream(handle) as content:
    ...     content.size, content.read(5), content.read()
    (11, b'a few', b' bytes')
    """

    _is_released = True  # until it has been made, there is nothing to release

    def __init__(
        self,
        pieces: Iterator[bytes],
        size: int,
        release: Callable[[], None],
        when_forgotten: Callable[["ContentStream"], None] | None = None,
    ) -> None:
        """`release` is called once, at the end or when it is closed; `when_forgotten` if it is collected before: it
        takes no lock, as the same thread may hold it.
        """
        self.size = size
        self._pieces = pieces
        self._release = release
        self._when_forgotten = when_forgotten
        self._rest = b""
        self._failure: BaseException | None = None
        self._is_closed = self._is_released = False

    def __iter__(self) -> Iterator[bytes]:
        self._require_open()
        if self._rest:
            rest, self._rest = self._rest, b""
            yield rest
        while piece := self._next():
            yield piece

    def read(self, count: int = -1) -> bytes:
        """Up to `count` bytes, all that are left for -1; empty at the end. ValueError once it is closed.

        >>> with repository.handles.stream(repository.handles.put(b"content")) as content:
        ...     content.read(3), content.read(), content.read()
        (b'con', b'tent', b'')
        """
        self._require_open()
        if count < 0:
            return b"".join(self)
        parts: list[bytes] = []
        while count > 0:
            if not self._rest:
                self._rest = self._next()
                if not self._rest:
                    break
            part, self._rest = self._rest[:count], self._rest[count:]
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Let go of the bytes. Safe to call twice.

        >>> repository.handles.stream(repository.handles.put(b"content")).close()
        """
        self._is_closed = True
        self._failure = None  # its frames know this stream
        self._let_go()

    def _next(self) -> bytes:
        """The next piece; empty at the end. After an error that error, and no end that comes too early."""
        if self._failure is not None:
            raise self._failure
        try:
            for piece in self._pieces:
                if piece:
                    return piece
        except BaseException as error:
            self._failure = error
            raise
        self._let_go()
        return b""

    def _let_go(self) -> None:
        if not self._is_released:
            self._is_released = True
            self._release()

    def __del__(self) -> None:
        if not self._is_released and self._when_forgotten is not None:
            self._when_forgotten(self)

    def _require_open(self) -> None:
        if self._is_closed:
            raise ValueError("read of a closed content stream")


def pieces_of(content: AnyContent) -> Iterator[bytes]:
    """What is to be stored, piece by piece. TypeError, before any of it is taken for stored, for what is not bytes."""
    if isinstance(content, bytes | bytearray | memoryview):
        yield bytes(content)
        return
    found: Any = content  # whatever a program passes that no type checker has seen
    read = getattr(found, "read", None)
    if read is None and (isinstance(found, str) or not isinstance(found, Iterable)):
        raise TypeError(f"content is bytes, a file opened with 'rb', or pieces of bytes, not {_kind(found)}")
    for piece in found if read is None else iter(lambda: read(PIECE_BYTES), b""):
        if not isinstance(piece, bytes | bytearray | memoryview):
            source = "a piece of a content" if read is None else "what the file reads"
            raise TypeError(f"{source} is bytes, not {_kind(piece)}")
        yield bytes(piece)


def _kind(found: object) -> str:
    return "text: encode it first" if isinstance(found, str) else type(found).__name__


def batches(contents: Sequence[bytes], bytes_max: int, more: Iterable[int] = repeat(0)) -> Iterator[tuple[int, int]]:
    """The bounds of parts that each fit into one transaction, of at most so many bytes unless one content has more;
    `more` is what each counts beside its own.
    """
    start, size = 0, 0
    for at, (content, beside) in enumerate(zip(contents, more, strict=False)):
        counted = len(content) + beside
        if at > start and (size + counted > bytes_max or at - start >= BATCH_CONTENTS):
            yield start, at
            start, size = at, 0
        size += counted
    if start < len(contents):
        yield start, len(contents)

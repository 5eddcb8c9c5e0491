"""What a session may hold in memory, where that is bounded: FlowFiles, and all that is said of them until the commit.

A program that has the repository open bounds itself. Of a session for somebody else everything counts that stays while
it lasts: a request of a megabyte that sets an attribute on ten thousand FlowFiles made ten gigabytes of it.

    take     before something is held; room comes in steps, for which whoever lends it is asked
    clear    the session is empty again, and all of the room is given back
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from ullage.errors import TransactionTooLarge, UllageError

BYTES_MAX: Final = 32 << 20
"""Of one session: four times what its one transaction may have."""

WORK_BYTES_MAX: Final = 8 << 30
"""Of attributes that one request works on, as they are in memory, each time that it changes them: 250 times all that
a session may hold. Some ten seconds, for which a request of a megabyte could else ask an hour.
"""

STEP_BYTES: Final = 1 << 20

FREE_BYTES: Final = 64 << 10
"""What each session has without asking: some fifty FlowFiles, as most hold fewer."""

NOTE_BYTES: Final = 200
"""Of an attribute that was changed, a counter, a report or an answer that is remembered, beside its texts."""


def text_bytes(text: str) -> int:
    """What a text takes in memory, at most. Not what Python says: that grows when the text is first encoded."""
    return len(text) if text.isascii() else 4 * len(text)


class SessionRoom:
    """That of one session. `granted` may be read by any thread."""

    def __init__(self, grant: Callable[[int], None] | None = None, bytes_max: int = BYTES_MAX) -> None:
        """`grant` raises if there are not so many bytes more. None: nothing is bounded."""
        self._grant = grant
        self._bytes_max = bytes_max
        self._held = 0
        self._work: int | None = None
        self.granted = FREE_BYTES

    @property
    def is_bounded(self) -> bool:
        """Whether anybody counts."""
        return self._grant is not None

    def take(self, size: int) -> None:
        """So many bytes more are held, or fewer. TransactionTooLarge, or what `grant` raises: nothing has changed."""
        if self._grant is None:
            return
        held = self._held + size
        if size > 0 and held > self._bytes_max:
            raise TransactionTooLarge(
                f"this session would hold {held} bytes of FlowFiles and their attributes in memory, at most "
                f"{self._bytes_max} are allowed: commit in parts, and keep large values as content"
            )
        while held > self.granted:
            self._grant(STEP_BYTES)
            self.granted += STEP_BYTES
        self._held = held

    def count(self, size: int) -> None:
        """So many bytes more are held already, or fewer, beyond all bounds: nothing else is until there is room."""
        if self._grant is not None:
            self._held += size
            while self._held > self.granted:
                self.granted += STEP_BYTES

    def take_first(self, sizes: Iterable[int]) -> int:
        """Take room for as many as there is room for; how many, or more where nothing is bounded. What `take` raises if
        there is none for the first.
        """
        if self._grant is None:
            return sys.maxsize  # thousands are polled at a time: none is looked at for nothing
        count = 0
        for size in sizes:
            try:
                self.take(size)
            except UllageError:
                if not count:
                    raise
                break
            count += 1
        return count

    @contextmanager
    def taking(self, sizes: Iterable[int]) -> Iterator[None]:
        """Room for all of them, which is given back if what is to be held does not come to be."""
        size = 0 if self._grant is None else sum(sizes)
        self.take(size)
        try:
            yield
        except BaseException:
            self.take(-size)
            raise

    def work(self, size: int) -> None:
        """The request under way works on so many bytes more. TransactionTooLarge."""
        if self._work is None:
            return
        self._work += size
        if self._work > WORK_BYTES_MAX:
            raise TransactionTooLarge(
                f"the changes of one request work on more than {WORK_BYTES_MAX} bytes of attributes: send them in parts"
            )

    def begin_request(self) -> tuple[int, int]:
        """What is held before it, for `go_back`."""
        self._work = 0
        return self._held, self.granted

    def end_request(self) -> None:
        """What is worked on is not counted any more."""
        self._work = None

    def go_back(self, mark: tuple[int, int]) -> None:
        """What has been held since then is not held."""
        self._held, self.granted = mark

    def clear(self) -> None:
        """Nothing is held any more."""
        self._held, self.granted = 0, FREE_BYTES

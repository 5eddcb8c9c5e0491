"""Threads whose errors fail the test."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

JOIN_SECONDS = 60
"""Longer than any healthy test waits."""


@contextmanager
def in_thread(*works: Callable[[], object]) -> Iterator[None]:
    """Run the works, a thread each, beside the body; wait for them at its end and raise what they raised."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(JOIN_SECONDS)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]

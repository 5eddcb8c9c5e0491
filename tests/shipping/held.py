"""A share's place in memory, which keeps conditions; and one that fails when it is told to."""

import threading
from collections.abc import Callable, Collection, Iterable

import pytest

from tests.shipping.explored import tag_of
from ullage.engine.shipping.shareplace import SharedObject, Taken
from ullage.engine.shipping.shipper import Shipper
from ullage.errors import BucketUnavailable


def held_rounds(monkeypatch: pytest.MonkeyPatch) -> threading.Lock:
    """Whoever has it keeps every shipper between two rounds: what is committed meanwhile is on its node alone."""
    step, lock = Shipper.step, threading.Lock()

    def locked(shipper: Shipper) -> None:
        with lock:
            step(shipper)

    monkeypatch.setattr(Shipper, "step", locked)
    return lock


class HeldShare:
    """See the module's text. `fault` is asked before each request, by its kind and key, and may raise."""

    name = "s3://held"

    def __init__(self, objects: dict[str, bytes] | None = None) -> None:
        self.objects = {} if objects is None else objects
        self.fault: Callable[[str, str], None] = lambda _kind, _key: None
        self.age_seconds = 0.0
        self.requests: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        """Of what is there: a condition and its put are one step, as in a bucket."""

    def get(self, key: str) -> SharedObject | None:
        self._asked("get", key)
        data = self.objects.get(key)
        return None if data is None else SharedObject(data, tag_of(data))

    def put_new(self, key: str, data: bytes) -> None:
        self._asked("put", key)
        with self._lock:
            if key in self.objects:
                raise Taken
            self.objects[key] = data
        self._asked("was put", key)

    def put_over(self, key: str, data: bytes, tag: str) -> None:
        self._asked("put", key)
        with self._lock:
            if key not in self.objects or tag_of(self.objects[key]) != tag:
                raise Taken
            self.objects[key] = data
        self._asked("was put", key)

    def put_pieces(self, key: str, pieces: Iterable[bytes], length: int) -> None:
        self._asked("put", key)
        data = b"".join(pieces)
        assert key not in self.objects, f"{key} was put twice"
        self.objects[key] = data
        self._asked("was put", key)

    def read(self, key: str, start: int, end: int) -> bytes:
        self._asked("read", key)
        return self.objects.get(key, b"")[start:end]

    def names(self) -> list[str]:
        return sorted({key.partition("/")[0] for key in self.objects})

    def lengths(self, directory: str) -> dict[str, int]:
        self._asked("list", directory)
        return {key: len(data) for key, data in self.objects.items() if key.startswith(f"{directory}/")}

    def ages(self, directory: str) -> dict[str, float]:
        return dict.fromkeys(self.lengths(directory), self.age_seconds)

    def delete(self, keys: Collection[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)

    def _asked(self, kind: str, key: str) -> None:
        self.requests.append((kind, key))
        self.fault(kind, key)


def gone(_kind: str, key: str) -> None:
    """A bucket that does not answer."""
    raise BucketUnavailable(f"{key}: nobody answers")

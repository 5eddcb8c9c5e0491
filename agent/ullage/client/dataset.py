"""Contents of a node as a dataset of a training loop: by number, through descriptors of the node's own disk.

It is what PyTorch calls a map-style dataset, and needs nothing of PyTorch:

    dataset = ContentDataset("/var/run/ullage/ullage.sock", handles, decode=parse)
    loader = torch.utils.data.DataLoader(dataset, batch_size=256, shuffle=True, num_workers=8)
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

from ullage.client.proof import Identity
from ullage.client.socket import SocketClient
from ullage.streams import Closable
from ullage.uuids import parse_handle
from ullage.wire.frames import UUID_BYTES

T = TypeVar("T")

AHEAD: Final = 256
"""Contents that are asked for at a time by who takes all of them in order."""

AHEAD_BYTES: Final = 64 << 20
"""The same in bytes, as far as those before it tell how large the next ones are."""


class ContentDataset(Closable, Generic[T]):
    """Contents of handles, in the order in which they are given: `len`, `[number]`, `[from:to]`, and iteration.

    Each process that it is forked or pickled into has a connection of its own. `decode` makes of the bytes what an item
    is. 16 bytes of memory a content. HandleNotFound for a text that is no handle; when a content is read, the errors of
    `SocketClient.read_all`.
    """

    def __init__(
        self,
        path: str,
        handles: Iterable[str],
        *,
        token: str | None = None,
        identity: Identity | None = None,
        decode: Callable[[bytes], T] = bytes,  # type: ignore[assignment]
    ) -> None:
        self._path = path
        self._token = token
        self._identity = identity
        self._decode = decode
        self._uuids = b"".join(parse_handle(handle.partition("@")[0]) for handle in handles)
        self._client: SocketClient | None = None
        self._process = 0

    def __len__(self) -> int:
        return len(self._uuids) // UUID_BYTES

    def __getitem__(self, at: int | slice) -> Any:
        """One item, or those of a slice as a list. IndexError beyond the end."""
        if isinstance(at, slice):
            return self.__getitems__(range(*at.indices(len(self))))
        return self.__getitems__([at])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[T]:
        """Several at once, as PyTorch's loader asks for the items of a batch: one question to the node."""
        return [self._decode(content) for content in self._contents(numbers)]

    def __iter__(self) -> Iterator[T]:
        begin, count = 0, 1
        while begin < len(self):
            found = self._contents(range(begin, min(begin + count, len(self))))
            begin += len(found)
            count = max(1, min(2 * count, AHEAD, AHEAD_BYTES // max(1, *map(len, found))))
            while found:  # each is forgotten as it is handed out
                yield self._decode(found.pop(0))

    def close(self) -> None:
        """Give back what is held; the next item connects anew."""
        client, self._client = self._client, None
        if client is not None and self._process == os.getpid():
            client.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_client": None, "_process": 0}

    def _contents(self, numbers: Sequence[int]) -> list[bytes]:
        return self._connected().read_all([self._uuid(number) for number in numbers])

    def _uuid(self, number: int) -> bytes:
        place = number + len(self) if number < 0 else number
        if not 0 <= place < len(self):
            raise IndexError(f"content {number} of a dataset of {len(self)}")
        return self._uuids[place * UUID_BYTES : (place + 1) * UUID_BYTES]

    def _connected(self) -> SocketClient:
        # A child of a fork shares its parent's connection: two that ask over one would take each other's answers.
        if self._client is not None and self._process != os.getpid():
            self._client.leave_to_parent()
            self._client = None
        if self._client is None:
            self._client = SocketClient(self._path, self._token, identity=self._identity)
            self._process = os.getpid()
        return self._client

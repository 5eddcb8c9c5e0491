"""Where `ullage put --url` puts things: queues and handles of a running service."""

from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Final

from ullage_agent.cli.output import Bar
from ullage_agent.cli.sources import BATCH_FILES, Source, Stored, Target

if TYPE_CHECKING:
    from ullage_agent.client import Client

BATCH_BYTES: Final = 3 << 20
"""Content of one request: what a retry has to send again."""

PIECE_BYTES: Final = 1 << 20


class _Served(Target):
    """Small files share a transaction."""

    def __init__(self, client: "Client", queue: str | None, progress: Bar) -> None:
        super().__init__(queue, progress)
        self.client = client
        self._batch: list[tuple[Source, dict[str, str], bytes]] = []
        self._bytes = 0

    def add(self, source: Source, attributes: dict[str, str], data: bytes | IO[bytes]) -> None:
        if not isinstance(data, bytes):
            self.flush()
            self.commits += 1
            size, pieces = _measured(data)
            self.stored.append(Stored(self.stream(pieces, attributes), source.path, size[0]))
            return
        if self._batch and (len(self._batch) >= BATCH_FILES or self._bytes + len(data) > BATCH_BYTES):
            self.flush()
        self._batch.append((source, attributes, data))
        self._bytes += len(data)

    def flush(self) -> None:
        if not self._batch:
            return
        batch, self._batch, self._bytes = self._batch, [], 0
        uuids = self.many([data for _, _, data in batch], [attributes for _, attributes, _ in batch])
        self.commits += 1
        self.stored.extend(
            Stored(uuid, source.path, len(data)) for uuid, (source, _, data) in zip(uuids, batch, strict=True)
        )

    def many(self, contents: list[bytes], attributes: list[dict[str, str]]) -> list[str]:
        raise NotImplementedError

    def stream(self, pieces: Iterator[bytes], attributes: dict[str, str]) -> str:
        raise NotImplementedError


class ServedQueue(_Served):
    """A queue of the service."""

    def __init__(self, client: "Client", queue: str, force: bool, progress: Bar) -> None:
        super().__init__(client, queue, progress)
        self._name = queue
        self._force = force

    def many(self, contents: list[bytes], attributes: list[dict[str, str]]) -> list[str]:
        return self.client.queues.put_many(self._name, contents, attributes, force=self._force)

    def stream(self, pieces: Iterator[bytes], attributes: dict[str, str]) -> str:
        return self.client.queues.put(self._name, pieces, attributes, force=self._force).id


class ServedHandles(_Served):
    """Handles of the service, which carry its node's name."""

    def __init__(self, client: "Client", ttl_millis: int, progress: Bar) -> None:
        super().__init__(client, None, progress)
        self._ttl_millis = ttl_millis

    def many(self, contents: list[bytes], attributes: list[dict[str, str]]) -> list[str]:
        return self.client.put_many(contents, attributes, self._ttl_millis)

    def stream(self, pieces: Iterator[bytes], attributes: dict[str, str]) -> str:
        return self.client.put(pieces, attributes, self._ttl_millis)


def _measured(file: IO[bytes]) -> tuple[list[int], Iterator[bytes]]:
    """Its pieces, and how many bytes of them were read so far."""
    size = [0]

    def pieces() -> Iterator[bytes]:
        while piece := file.read(PIECE_BYTES):
            size[0] += len(piece)
            yield piece

    return size, pieces()

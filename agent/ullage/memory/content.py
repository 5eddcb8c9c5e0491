"""Content until the process ends: each resource claim is a run of bytes in memory."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from ullage.engine.content.claims import StripedStore, WritableClaim
from ullage.engine.content.containers import Container
from ullage.engine.content.protocol import IntentOutcome, Orphan
from ullage.engine.files import DiskUsage, File, FileSize
from ullage.engine.model import Action, ResourceClaim
from ullage.engine.parts import RepositoryParts
from ullage.errors import ContentMissing


class MemoryFile:
    """See `File`. One serves all its readers; nothing is ever released but by the last of them."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._data.extend(bytes(max(0, offset - len(self._data))))
        self._data[offset : offset + len(data)] = data

    def write_vector(self, buffers: Sequence[bytes | memoryview], offset: int) -> None:
        self.write(b"".join(buffers), offset)

    def read(self, count: int, offset: int) -> bytes:
        return bytes(self._data[offset : offset + count])

    def read_into(self, buffers: Sequence[memoryview], offset: int) -> int:
        begin = offset
        for buffer in buffers:
            data = self.read(len(buffer), offset)
            buffer[: len(data)] = data
            offset += len(data)
        return offset - begin

    def sync(self) -> None:
        """It is as durable as it gets."""

    def truncate(self, length: int) -> None:
        del self._data[length:]

    def size(self) -> FileSize:
        return FileSize(len(self._data), len(self._data))

    def is_at(self, path: str) -> bool:
        return True

    def is_cached(self, offset: int) -> bool:
        return True

    def hint(self, offset: int, count: int) -> None:
        """There is no kernel to be told, no block to be reserved, and no hole to be made."""

    allocate = start_writeback = expect_reads = drop_cache = punch = hint

    def close(self) -> None:
        """It stays."""


class MemoryContainer(Container):
    """A share of this machine's memory."""

    def volume(self) -> DiskUsage:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return DiskUsage(total, max(0, total - self.bytes_used))

    def device(self) -> int:
        return 0


class MemoryContentStore(StripedStore[MemoryContainer]):
    """See `ContentStore`. Thread-safe."""

    is_volatile = True

    def __init__(self, parts: RepositoryParts, reserve_indexes: Callable[[int], None]) -> None:
        storage = parts.spec.storage
        containers = [
            MemoryContainer(each.name, storage.host_path.path, each.capacity, evacuates=each.evacuate)
            for each in storage.containers
        ]
        super().__init__(containers, parts, reserve_indexes)
        self._kept: dict[int, MemoryFile] = {}

    def prepare(self, known: Mapping[str, str], forgotten: Collection[str] = ()) -> None:
        """There is nothing to make."""

    def make(self, name: str) -> None:
        """None is ever unmade."""

    def look_at_volumes(self) -> None:
        """Memory is there as long as the process is."""

    def sync(self, writable: WritableClaim) -> None:
        """It is as durable as it gets."""

    def sync_output(self, output: WritableClaim) -> None:
        output.file.truncate(output.offset)

    def path_of(self, claim: ResourceClaim) -> str:
        return f"{claim.name} in memory"

    def length_of(self, claim: ResourceClaim) -> int | None:
        file = self._kept.get(claim.index)
        return None if file is None else file.size().length

    @contextmanager
    def reading(self, claim: ResourceClaim) -> Iterator[File]:
        file = self._kept.get(claim.index)
        if file is None:
            raise ContentMissing(f"resource claim {claim.index} is missing: its bytes were in memory")
        yield file

    def open_descriptor(self, claim: ResourceClaim) -> int:
        """Of a copy: what lives in the claim will not change, and what does is not the reader's."""
        with self.reading(claim) as file:
            descriptor = os.memfd_create(claim.name)
            with open(descriptor, "wb", closefd=False) as copy:
                copy.write(file.read(file.size().length, 0))
            return descriptor

    def carry_out(self, intents: Sequence[ResourceClaim]) -> list[IntentOutcome | OSError]:
        return [self._change(intent) for intent in intents]

    def seal(self, claim: ResourceClaim) -> ResourceClaim:
        length = self.length_of(claim)
        length = claim.length if length is None else length
        return msgspec.structs.replace(claim, sealed=True, length=length, generation=claim.generation + 1)

    @property
    def left_behind(self) -> int:
        return 0

    def orphans(self, recorded: Callable[[int], ResourceClaim | None]) -> list[Orphan]:
        return []

    def make_durable(self, orphans: Iterable[Orphan]) -> None:
        """There are none."""

    def grow_reserve(self) -> None:
        """Removing takes no memory."""

    def spend_reserve(self) -> None:
        """There is none."""

    def _make(self, claim: ResourceClaim, container: MemoryContainer) -> tuple[File, str]:
        file = self._kept[claim.index] = MemoryFile()
        return file, self.path_of(claim)

    def _remove_file(self, writable: WritableClaim) -> None:
        del self._kept[writable.claim.index]

    def _change(self, intent: ResourceClaim) -> IntentOutcome:
        file = self._kept.get(intent.index)
        if intent.intent in (Action.DELETE, Action.REWRITE):
            self._kept.pop(intent.index, None)
        elif file is None:
            return IntentOutcome.MISSING
        elif intent.intent == Action.PUNCH:
            return IntentOutcome.IMPOSSIBLE
        elif intent.intent == Action.TRUNCATE:
            file.truncate(intent.intent_length)
        return IntentOutcome.DONE

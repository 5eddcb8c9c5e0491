"""The provenance repository that is ours: event files (store.py), found through an index (index.py)."""

from collections.abc import Callable, Iterator

import msgspec

from ullage.engine.parts import RepositoryParts
from ullage.engine.provenance.events import EventId, ProvenanceEvent
from ullage.engine.provenance.index import ProvenanceIndex
from ullage.engine.provenance.manifest import EventFile
from ullage.engine.provenance.query import Page, event_at, possible
from ullage.engine.provenance.scan import EventColumns, scan
from ullage.engine.provenance.search import search
from ullage.engine.provenance.store import ProvenanceStore
from ullage.errors import EventNotFound
from ullage.wire.provenance import EventQuery


class FileProvenanceRepository(ProvenanceStore):
    """See `ProvenanceRepository`. Thread-safe."""

    is_volatile = False

    def __init__(self, parts: RepositoryParts, durable: Callable[[], int], queue_name: Callable[[int], str]) -> None:
        super().__init__(parts, durable, queue_name)
        self._index: ProvenanceIndex | None = None

    def query(self, query: EventQuery) -> Page:
        return search(self, self._opened_index(), query)

    def columns(self, query: EventQuery) -> Iterator[EventColumns]:
        query, index = possible(query), self._opened_index()
        # Of a type there are so many events that to look each of them up takes longer than to read its column.
        rare = msgspec.structs.replace(query, types=[])
        return scan(self, None if index is None else index.lookup(rare), query)

    def find(self, id: EventId) -> ProvenanceEvent:
        manifest, newest = self.snapshot()
        for numbered in newest:
            if numbered.told.transaction == id.transaction and id.ordinal < numbered.told.events:
                return event_at(self.query, numbered.first_sequence + id.ordinal)
        for file in manifest.files:
            if file.first_id <= id.transaction <= file.last_id:
                sequence = self.event_files.sequence_of(file, id)
                if sequence is not None:
                    return event_at(self.query, sequence)
        raise EventNotFound(f"provenance event {id} does not exist, or was removed by retention")

    def index_step(self) -> int:
        index = self._opened_index()
        return 0 if index is None else index.step()

    def rewrite(self, anew: Callable[[EventFile], memoryview | None]) -> int:
        index = self._opened_index()

        def forgotten(file: EventFile) -> memoryview | None:
            data = anew(file)
            # Before the file is replaced: after a crash between the two nothing would say that its terms are to go.
            if data is not None and index is not None:
                index.forget(file)
            return data

        return super().rewrite(forgotten)

    def close(self) -> None:
        super().close()
        if self._index is not None:
            self._index.close()
            self._index = None

    def _opened_index(self) -> ProvenanceIndex | None:
        """Opened once there have been event files: without them there is nothing to index, or to forget."""
        if self._index is None and self.manifest.next_sequence > 1:
            self._index = ProvenanceIndex(self._files, self._directory, self, self._settings, self._clock)
        return self._index

"""The index: tantivy shards over event files, made in the background and dropped whole.

    <root>/provenance/index/<first sequence>/     tantivy's own files, and `covers.json`: what the shard covers

Nothing depends on it. A shard that is missing, damaged, of other settings, or not what `covers.json` says is removed
and made again from the event files, which answer queries meanwhile. So nothing here has to be durable, and tantivy may
write its directory by itself: the one part of the engine that does not go through `Files`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from ullage_agent.contract import IndexedField, Provenance as ProvenanceSettings
from ullage_agent.engine.clock import Clock
from ullage_agent.engine.errors import ProvenanceDamaged
from ullage_agent.engine.files import Files, read_file, replace_file
from ullage_agent.engine.provenance.documents import INDEXED_COLUMNS, TEXTS, documents, schema
from ullage_agent.engine.provenance.manifest import EventFile, Manifest
from ullage_agent.engine.provenance.store import ProvenanceStore

if TYPE_CHECKING:
    import pyarrow as pa

    from ullage_agent.engine.provenance.query import FileLookup, Query

INDEX = "index"
COVERS = "covers.json"

WRITER_BYTES = 64 << 20
"""Memory of one shard's writer while it indexes; tantivy wants at least 15 MB."""

STEP_SECONDS = 1.0
"""How long one step goes on indexing: maintenance has other duties."""


class Covers(msgspec.Struct, frozen=True, kw_only=True):
    """What a shard holds: events of the sequence in [`first`, `through`], and the settings it was made with."""

    repository: str
    fields: tuple[str, ...]
    attributes: tuple[str, ...]
    first: int
    through: int
    documents: int
    bytes: int


class ProvenanceIndex:
    """The shards of one repository. Thread-safe; one step at a time."""

    def __init__(
        self, files: Files, directory: str, store: ProvenanceStore, settings: ProvenanceSettings, clock: Clock
    ) -> None:
        """`directory` is where `Files.scratch_directory` lets a library write; see `open_index`."""
        self._files = files
        self._directory = directory
        self._store = store
        self._settings = settings
        self._clock = clock
        self._step_lock = threading.Lock()
        self._shards: list[_Shard] | None = None

    def step(self) -> int:
        """Index for a while what is not indexed yet, and drop shards whose events are gone; returns how many events."""
        failures: list[ProvenanceDamaged] = []
        indexed = 0
        with self._step_lock:
            shards = self._opened()
            manifest = self._store.manifest
            self._drop_old(shards, manifest)
            until = self._clock.monotonic() + STEP_SECONDS
            for file in manifest.files:
                try:
                    while self._clock.monotonic() <= until and (count := self._index_next(shards, file, until)):
                        indexed += count
                except ProvenanceDamaged as error:  # one file must not keep the others from being indexed
                    if file in self._store.manifest.files:
                        failures.append(error)
        if failures:
            raise failures[0]
        return indexed

    @property
    def covered(self) -> int:
        """How many events are indexed."""
        with self._step_lock:
            return sum(shard.covers.documents for shard in self._opened())

    def lookup(self, query: Query, count: int) -> FileLookup | None:
        """See `query.Lookup`."""
        if not self._can_help(query):
            return None
        if self._shards is None:
            with self._step_lock:
                self._opened()
        return _Lookup(tuple(self._shards or ()), query, count, is_whole=_is_whole(query, self._settings)).candidates

    def close(self) -> None:
        """Forget the shards; what is indexed stays on disk."""
        with self._step_lock:
            self._shards = None

    def _can_help(self, query: Query) -> bool:
        """Whether the index narrows this query down: by any one of the things it knows."""
        fields = self._settings.indexed_fields
        asked = [name for name, value in query.texts() if value] + (["filename"] if query.filename else [])
        known = {TEXTS[field] for field in fields if field in TEXTS}
        return (
            bool(known.intersection(asked))
            or (bool(query.types) and IndexedField.EVENT_TYPE in fields)
            or (bool(query.related) and IndexedField.FLOW_FILE_UUID in fields)
            or any(name in self._settings.indexed_attributes for name, _ in query.attributes)
        )

    def _opened(self) -> list[_Shard]:
        """The shards on disk that are what they should be; the others are removed."""
        if self._shards is None:
            found = []
            for name in sorted(self._files.list_directory(self._directory)):
                shard = _Shard.open(self._files, os.path.join(self._directory, name), self._settings)
                if shard is not None and shard.covers.repository == self._store.repository:
                    found.append(shard)
                else:
                    self._files.remove_scratch(os.path.join(self._directory, name))
            self._shards = found
        return self._shards

    def _drop_old(self, shards: list[_Shard], manifest: Manifest) -> None:
        """Shards all of whose events retention has removed; and, rebuilt from then on, any that lost its directory."""
        for shard in list(shards):
            if shard.covers.through <= manifest.removed_through or not self._files.exists(shard.path):
                shards.remove(shard)
                self._files.remove_scratch(shard.path)

    def _index_next(self, shards: list[_Shard], file: EventFile, until: float) -> int:
        """Index the next row groups of a file that no shard covers; 0 if all of it is."""
        shard = next((s for s in shards if s.covers.first <= file.first_sequence <= s.covers.through), None)
        at = file.first_sequence if shard is None else max(shard.covers.through + 1, file.first_sequence)
        if at > file.last_sequence:
            return 0
        if shard is None:
            shard = next((s for s in shards if self._continues(s, file)), None)
        if shard is None:
            shard = _Shard.make(self._files, self._directory, self._store.repository, self._settings, at)
            shards.append(shard)
            shards.sort(key=lambda each: each.covers.first)
        try:
            count = shard.add(self._tables(file, at, until), file)
        except BaseException:  # it may hold some of them now, and would hold them twice
            shards.remove(shard)
            self._files.remove_scratch(shard.path)
            raise
        return count

    def _tables(self, file: EventFile, at: int, until: float) -> Iterator[pa.Table]:
        """Row groups of a file from the one on that begins with an event, as many as there is time for and one at
        least: they share a commit.
        """
        group_rows = self._store.event_files.group_rows(file)
        group, last = (at - file.first_sequence) // group_rows, (file.events - 1) // group_rows
        while True:
            ((_, table),) = self._store.event_files.scan(file, INDEXED_COLUMNS, [group])
            yield table
            group += 1
            if group > last or self._clock.monotonic() > until:
                return

    def _continues(self, shard: _Shard, file: EventFile) -> bool:
        """Whether a file is the next one of a shard that is not full; a run of lost events between them is fine."""
        before = [other for other in self._store.manifest.files if other.first_sequence < file.first_sequence]
        follows = bool(before) and before[-1].last_sequence == shard.covers.through
        return follows and shard.covers.bytes + file.bytes <= self._settings.index_shard_size


class _Lookup:
    """One query's searches: a shard is searched once for all of its event files, as far as a page reaches."""

    def __init__(self, shards: tuple[_Shard, ...], query: Query, count: int, *, is_whole: bool) -> None:
        self._shards = shards
        self._query = query
        self._count = count
        self._is_whole = is_whole
        self._first, self._last = 1, 0
        self._hits: list[int] = []

    def candidates(self, file: EventFile) -> tuple[list[int], int] | None:
        """See `query.FileLookup`."""
        for shard in self._shards:
            covers = shard.covers
            if covers.first <= file.first_sequence <= covers.through:
                covered = min(covers.through, file.last_sequence)
                if not self._first <= file.first_sequence <= covered <= self._last and not self._search(
                    shard, covers, file.first_sequence, covered
                ):
                    return None
                return [hit for hit in self._hits if file.first_sequence <= hit <= covered], covered
        return None

    def _search(self, shard: _Shard, covers: Covers, first: int, last: int) -> bool:
        """Search for a file's events and, in the query's order, those after them; False if the shard fails.

        A search that is cut off at a page's worth knows all events up to its last hit. Conditions that the index does
        not know thin the candidates out, so that a page may need all of them: then one file at a time.
        """
        if self._is_whole and self._query.newest_first:
            first = covers.first
        elif self._is_whole:
            last = covers.through
        hits = shard.search(self._query, first, last, self._count if self._is_whole else None)
        if hits is None:
            return False
        self._first, self._last, self._hits = first, last, hits
        if self._is_whole and len(hits) == self._count:
            if self._query.newest_first:
                self._first = hits[-1]
            else:
                self._last = hits[-1]
        return True


class _Shard:
    """One tantivy index."""

    def __init__(self, files: Files, path: str, settings: ProvenanceSettings, covers: Covers, index: Any) -> None:
        self.path = path
        self.covers = covers
        self._files = files
        self._settings = settings
        self._index = index

    @classmethod
    def make(cls, files: Files, directory: str, repository: str, settings: ProvenanceSettings, first: int) -> _Shard:
        import tantivy  # noqa: PLC0415 - opening a repository does not wait for it

        path = os.path.join(directory, f"{first:020d}")
        files.remove_scratch(path)
        files.make_directory(path)
        covers = Covers(
            repository=repository,
            fields=tuple(settings.indexed_fields),
            attributes=settings.indexed_attributes,
            first=first,
            through=first - 1,
            documents=0,
            bytes=0,
        )
        return cls(files, path, settings, covers, tantivy.Index(schema(), path=path))

    @classmethod
    def open(cls, files: Files, path: str, settings: ProvenanceSettings) -> _Shard | None:
        """None for one that is damaged, unfinished or of other settings."""
        import tantivy  # noqa: PLC0415 - opening a repository does not wait for it

        try:
            covers = msgspec.json.decode(read_file(files, os.path.join(path, COVERS)), type=Covers)
            index = tantivy.Index.open(path)
            count = index.searcher().num_docs
        except (OSError, ValueError, msgspec.MsgspecError):
            return None
        wanted = (tuple(settings.indexed_fields), settings.indexed_attributes)
        if (covers.fields, covers.attributes) != wanted or count != covers.documents:
            return None
        return cls(files, path, settings, covers, index)

    def add(self, tables: Iterable[pa.Table], file: EventFile) -> int:
        """Index rows of a file that follow those that are covered; returns how many.

        A crash before the last line makes the shard anew.
        """
        writer = self._index.writer(heap_size=WRITER_BYTES, num_threads=1)
        count, through = 0, self.covers.through
        for table in tables:
            for document in documents(table, self._settings):
                writer.add_document(document)
            count += table.num_rows
            through = table["sequence"][-1].as_py()
        writer.commit()
        writer.wait_merging_threads()
        self._index.reload()
        covers = msgspec.structs.replace(
            self.covers,
            through=through,
            documents=self.covers.documents + count,
            bytes=self.covers.bytes + file.bytes * count // file.events,
        )
        replace_file(self._files, os.path.join(self.path, COVERS), msgspec.json.encode(covers))
        self.covers = covers
        return count

    def search(self, query: Query, first: int, last: int, count: int | None) -> list[int] | None:
        """Sequence numbers in [first, last] that the indexed conditions leave, in the query's order.

        At most `count`, None: all. The answer is None if the shard fails.
        """
        first = max(first, query.after + 1)
        last = last if query.before is None else min(last, query.before - 1)
        if first > last:
            return []
        # A range visits every event in it, so one that excludes nothing is left out. While events are being added,
        # the shard may show some beyond `last`, in whose place others were cut off.
        is_all = first <= self.covers.first and last >= self.covers.through
        hits = self._hits(query, None if is_all else (first, last), count)
        if is_all and hits is not None and any(hit > last for hit in hits):
            hits = self._hits(query, (first, last), count)
        return hits

    def _hits(self, query: Query, between: tuple[int, int] | None, count: int | None) -> list[int] | None:
        import tantivy  # noqa: PLC0415 - opening a repository does not wait for it

        known = self._index.schema
        must = [tantivy.Query.term_query(known, name, value) for name, value in _terms(query, self._settings)]
        if query.types and IndexedField.EVENT_TYPE in self._settings.indexed_fields:
            must.append(tantivy.Query.term_set_query(known, "type", [type.name for type in query.types]))
        if query.related and IndexedField.FLOW_FILE_UUID in self._settings.indexed_fields:
            must.append(tantivy.Query.term_set_query(known, "related", list(query.related)))
        sequences = [] if between is None else [("sequence", *between)]
        for name, low, high in [*sequences, *_ranges(query)]:
            must.append(tantivy.Query.range_query(known, name, tantivy.FieldType.Unsigned, low, high))
        wanted = tantivy.Query.boolean_query([(tantivy.Occur.Must, each) for each in must])
        order = tantivy.Order.Desc if query.newest_first else tantivy.Order.Asc
        limit = max(1, self.covers.documents if count is None else count)
        try:
            searcher = self._index.searcher()
            hits = searcher.search(wanted, limit, count=False, order_by_field="sequence", order=order).hits
        except (OSError, ValueError):
            return None  # lost or damaged under our hands: the event file answers, and the next step makes it anew
        return [sequence for sequence, _ in hits]


def open_index(
    files: Files, provenance_directory: str, store: ProvenanceStore, settings: ProvenanceSettings, clock: Clock
) -> ProvenanceIndex | None:
    """The index of a repository, or None where no library can write beside `Files` (files in memory)."""
    directory = files.scratch_directory(os.path.join(provenance_directory, INDEX))
    return None if directory is None else ProvenanceIndex(files, directory, store, settings, clock)


def _terms(query: Query, settings: ProvenanceSettings) -> list[tuple[str, str]]:
    """The query's conditions that the index knows."""
    known = {TEXTS[field] for field in settings.indexed_fields if field in TEXTS}
    terms = [(name, value) for name, value in query.texts() if value and name in known]
    if query.filename and "filename" in known:
        terms.append(("filename", query.filename))
    indexed = settings.indexed_attributes
    terms += [("attribute", f"{name}={value}") for name, value in query.attributes if name in indexed]
    return terms


def _is_whole(query: Query, settings: ProvenanceSettings) -> bool:
    """Whether the index knows every condition, so that its first hits are the answer's first events."""
    fields = settings.indexed_fields
    asked = sum(bool(value) for _, value in query.texts()) + bool(query.filename) + len(query.attributes)
    has_types = not query.types or IndexedField.EVENT_TYPE in fields
    has_related = not query.related or IndexedField.FLOW_FILE_UUID in fields
    return has_types and has_related and asked == len(_terms(query, settings))


def _ranges(query: Query) -> list[tuple[str, int | None, int | None]]:
    """The query's bounds of time and size, those included."""
    until = None if query.until_millis is None else query.until_millis - 1
    ranges = [("time", query.since_millis, until), ("size", query.size_min, query.size_max)]
    return [(name, low, high) for name, low, high in ranges if low is not None or high is not None]

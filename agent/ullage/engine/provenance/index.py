"""The index: shards over event files, made in the background, merged as they become many, and dropped whole.

    <root>/provenance/index/<first>-<last>.terms      see shard.py

Nothing depends on it. A shard that is missing, damaged or of other settings is removed and made again from the event
files, which answer queries meanwhile. So nothing here has to be durable, or in any order.

    merging 1-100, 101-200:   write 1-200 | unlink 1-100 | unlink 101-200
    a crash anywhere: what another shard covers as well is removed at the next start, what is not whole too
"""

from __future__ import annotations

import errno
import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice, pairwise

from ullage.clock import Clock
from ullage.contract import ProvenanceSettings
from ullage.engine.arrow import pa
from ullage.engine.files import Files
from ullage.engine.provenance.manifest import EventFile, ProvenanceManifest
from ullage.engine.provenance.shard import (
    SUFFIX,
    Condition,
    Shard,
    ShardHeader,
    Span,
    merged_keys,
    name_of,
    write_shard,
)
from ullage.engine.provenance.store import ProvenanceStore
from ullage.engine.provenance.terms import INDEXED_COLUMNS, conditions, keys_of
from ullage.engine.runs.blockcache import BlockCache
from ullage.engine.runs.sorted_run import RunDamaged
from ullage.engine.runs.tiers import mergeable
from ullage.errors import ProvenanceDamaged
from ullage.wire.provenance import EventQuery

INDEX = "index"

STEP_SECONDS = 1.0
"""How long one step goes on indexing: maintenance has other duties. One event file is finished in any case."""

SHARD_EVENTS_MAX = 1 << 20
"""Events of a merged shard: a row has 32 bits, and what is damaged is made anew in some seconds."""

CACHE_BYTES = 8 << 20
"""Blocks of shards that are kept in memory: what the searches of a lineage, one after the other, look at again."""

FEW = 64
"""Candidates of a shard that a query keeps: as many as it has for a FlowFile, or an attribute's rare value."""


def mergeable_spans(spans: Sequence[Span], bytes_max: int) -> slice | None:
    """Which neighbours should be one shard, as many as can be; None: none."""
    events = list(accumulate((span.events for span in spans), initial=0))
    size = list(accumulate((span.bytes for span in spans), initial=0))

    def fits(start: int, end: int) -> bool:
        return events[end] - events[start] <= SHARD_EVENTS_MAX and size[end] - size[start] <= bytes_max

    return mergeable([span.events for span in spans], fits)


FileLookup = Callable[[EventFile], Iterator[int] | None]
"""For one event file the sequence numbers of candidates, in the query's order. None: no help with this file."""

NO_CANDIDATES: Iterator[int] = iter(())
"""What a lookup may return for the many files that hold none: they are passed by."""


class ProvenanceIndex:
    """The shards of one repository. Thread-safe; one step at a time."""

    def __init__(
        self,
        files: Files,
        provenance_directory: str,
        store: ProvenanceStore,
        settings: ProvenanceSettings,
        clock: Clock,
    ) -> None:
        self._files = files
        self._directory = os.path.join(provenance_directory, INDEX)
        self._store = store
        self._settings = settings
        self._clock = clock
        self._cache: BlockCache[memoryview] = BlockCache(CACHE_BYTES)
        self._step_lock = threading.Lock()
        self._shards: tuple[Shard, ...] | None = None
        self._damaged: set[Shard] = set()
        self._is_prepared = False

    def step(self) -> int:
        """Index for a while what is not indexed yet, and drop shards whose events are gone; returns how many events."""
        failures: list[ProvenanceDamaged] = []
        indexed = 0
        with self._step_lock:
            self._prepare()
            manifest = self._store.manifest
            self._drop_old(manifest)
            firsts = [file.first_sequence for file in manifest.files]
            until = self._clock.monotonic() + STEP_SECONDS
            for file in self._uncovered(manifest):
                if self._clock.monotonic() > until:
                    break
                try:
                    self._index(file)
                    indexed += file.events
                    self._merge(firsts)
                except ProvenanceDamaged as error:  # one file must not keep the others from being indexed
                    if file in self._store.manifest.files:
                        failures.append(error)
        if failures:
            raise failures[0]
        return indexed

    def forget(self, file: EventFile) -> None:
        """Drop, durably, what is indexed of a file whose events are about to change; a later step makes it anew."""
        with self._step_lock:
            shard = _shard_of(self._opened(), _firsts_of(self._opened()), file)
            if shard is not None:
                self._replace([shard], [])
            if self._files.exists(self._directory):
                self._files.sync_directory(self._directory)

    def lookup(self, query: EventQuery) -> FileLookup | None:
        """Begin to answer a query. None: no help."""
        asked = conditions(query, self._settings)
        if not asked:
            return None
        if self._shards is None:
            try:
                with self._step_lock:
                    self._opened()
            except OSError:
                return None
        shards = tuple(shard for shard in self._shards or () if shard not in self._damaged)
        return _Lookup(shards, query, asked, self._damaged).candidates

    def close(self) -> None:
        """Forget the shards; what is indexed stays on disk."""
        with self._step_lock:
            self._shards = None

    def _opened(self) -> tuple[Shard, ...]:
        """The shards on disk that are what they should be, in order."""
        if self._shards is None:
            opened = [Shard.open(self._files, path, self._cache) for path in self._paths()]
            mine = [shard for shard in opened if shard is not None and self._is_mine(shard.head)]
            kept: list[Shard] = []
            for shard in sorted(mine, key=lambda shard: (shard.span.first, -shard.span.last)):
                if not kept or shard.span.first > kept[-1].span.last:  # else a merged one covers it
                    kept.append(shard)
            self._shards = tuple(kept)
        return self._shards

    def _paths(self) -> list[str]:
        if not self._files.exists(self._directory):
            return []
        names = self._files.list_directory(self._directory)
        return [os.path.join(self._directory, name) for name in names if name.endswith(SUFFIX)]

    def _prepare(self) -> None:
        """Before the first shard is written: the directory is there, and in it nothing but shards."""
        if not self._is_prepared:
            self._files.make_directory(self._directory)
            known = {shard.path for shard in self._opened()}
            for path in self._paths():
                if path not in known:
                    self._files.unlink(path)
            self._is_prepared = True

    def _uncovered(self, manifest: ProvenanceManifest) -> list[EventFile]:
        """The event files that are not indexed."""
        shards = self._opened()
        firsts = _firsts_of(shards)
        return [file for file in manifest.files if _shard_of(shards, firsts, file) is None]

    def _head(self, span: Span) -> ShardHeader:
        settings = self._settings
        return ShardHeader(
            repository=self._store.repository,
            fields=tuple(settings.indexed_fields),
            attributes=settings.indexed_attributes,
            span=span,
        )

    def _is_mine(self, head: ShardHeader) -> bool:
        """Whether a shard is this repository's, made with these settings."""
        mine = self._head(head.span)
        return (head.repository, head.fields, head.attributes) == (mine.repository, mine.fields, mine.attributes)

    def _drop_old(self, manifest: ProvenanceManifest) -> None:
        """Shards all of whose events retention has removed, and those that are damaged or lost."""
        damaged, self._damaged = self._damaged, set()
        gone = [
            shard
            for shard in self._opened()
            if shard in damaged or shard.span.last <= manifest.removed_through or not self._files.exists(shard.path)
        ]
        self._replace(gone, [])

    def _index(self, file: EventFile) -> None:
        span = Span(file.first_sequence, file.last_sequence, file.events, file.bytes)
        self._replace([], [self._written(span, self._keys(file))])

    def _keys(self, file: EventFile) -> Iterator[tuple[str, list[pa.Array]]]:
        """The keys of all events of a file in order, a field at a time."""
        fields: dict[str, list[pa.Array]] = {}
        try:
            for first, table in self._store.event_files.scan(file, INDEXED_COLUMNS):
                for field, keys in keys_of(table, self._settings, first - file.first_sequence):
                    fields.setdefault(field, []).append(keys)
        finally:
            # Left open, each rollover held a descriptor more until the bound was reached: an hour-long soak showed it.
            self._store.event_files.forget(file)
        for field, keys in fields.items():
            yield field, [pa.concat_arrays(keys).sort()]

    def _merge(self, files: Sequence[int]) -> None:
        """Merge neighbours until no more are worth it; `files` are the first sequences of all event files."""
        while True:
            for shards in _runs(self._opened(), files):
                run = mergeable_spans([shard.span for shard in shards], int(self._settings.index_shard_size))
                if run is not None:
                    self._merge_into_one(shards[run])
                    break
            else:
                return

    def _merge_into_one(self, shards: Sequence[Shard]) -> None:
        spans = [shard.span for shard in shards]
        span = Span(
            spans[0].first, spans[-1].last, sum(span.events for span in spans), sum(span.bytes for span in spans)
        )
        try:
            self._replace(shards, [self._written(span, merged_keys(shards))])
        except RunDamaged:  # which one is not worth finding out
            self._replace(shards, [])

    def _written(self, span: Span, keys: Iterable[tuple[str, Iterable[pa.Array]]]) -> Shard:
        path = os.path.join(self._directory, name_of(span))
        write_shard(self._files, path, self._head(span), keys)
        shard = Shard.open(self._files, path, self._cache)
        if shard is None:  # no damage of what was indexed: the disk fails, and the next step begins again
            raise OSError(errno.EIO, "does not read back", path)
        return shard

    def _replace(self, gone: Sequence[Shard], new: Sequence[Shard]) -> None:
        """Queries that have begun go on with the files they have open."""
        shards = [shard for shard in self._opened() if shard not in gone]
        self._shards = tuple(sorted((*shards, *new), key=lambda shard: shard.span.first))
        # After the new one is there: a crash in between leaves two that cover the same, and the next open keeps the
        # larger.
        for shard in gone:
            if self._files.exists(shard.path):
                self._files.unlink(shard.path)


class _Lookup:
    """One query's searches."""

    def __init__(
        self, shards: tuple[Shard, ...], query: EventQuery, conditions: Sequence[Condition], damaged: set[Shard]
    ) -> None:
        self._shards = shards
        self._firsts = _firsts_of(shards)
        self._query = query
        self._conditions = conditions
        self._damaged = damaged
        self._found: dict[Shard, list[int]] = {}

    def candidates(self, file: EventFile) -> Iterator[int] | None:
        """A `FileLookup`."""
        shard = _shard_of(self._shards, self._firsts, file)
        if shard is None or shard in self._damaged:
            return None
        first, last = file.first_sequence, file.last_sequence
        try:
            found = self._first_of(shard)
        except RunDamaged:
            return None
        if len(found) > FEW:
            return self._search(shard, first, last)
        here = [sequence for sequence in found if first <= sequence <= last]
        return iter(here) if here else NO_CANDIDATES

    def _first_of(self, shard: Shard) -> list[int]:
        """The first candidates of a whole shard: where they are few, it is not searched for each event file again."""
        found = self._found.get(shard)
        if found is None:
            span = shard.span
            found = self._found[shard] = list(islice(self._search(shard, span.first, span.last), FEW + 1))
        return found

    def _search(self, shard: Shard, low: int, high: int) -> Iterator[int]:
        """Sequence numbers in [low, high], in the query's order. RunDamaged, as `Shard.search`."""
        query, first = self._query, shard.span.first
        low = max(low, query.after + 1) - first
        high = (high if query.before is None else min(high, query.before - 1)) - first
        if low > high:
            return
        try:
            for row in shard.search(self._conditions, low, high, newest_first=query.newest_first):
                yield first + row
        except RunDamaged:
            self._damaged.add(shard)  # the next step makes it anew
            raise


def _firsts_of(shards: Iterable[Shard]) -> list[int]:
    return [shard.span.first for shard in shards]


def _shard_of(shards: Sequence[Shard], firsts: Sequence[int], file: EventFile) -> Shard | None:
    """The shard that covers a file; `firsts` are `_firsts_of` the shards, made once for many files."""
    at = bisect_right(firsts, file.first_sequence) - 1
    return shards[at] if at >= 0 and file.last_sequence <= shards[at].span.last else None


def _runs(shards: Sequence[Shard], files: Sequence[int]) -> Iterator[Sequence[Shard]]:
    """Shards without an event file between them, by the first sequences of those."""
    start = 0
    for at, (before, after) in enumerate(pairwise(shards), start=1):
        if bisect_right(files, before.span.last) != bisect_left(files, after.span.first):
            yield shards[start:at]
            start = at
    yield shards[start:]

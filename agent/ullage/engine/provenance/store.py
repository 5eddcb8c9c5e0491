"""The provenance repository: events from the moment they are durable until their retention ends.

    commit                         rollover                                        retention
    log (or snapshot), tail  ----> event file written, synced | manifest replaced  ----> manifest replaced | unlinked
                                                                ^ commit point           ^ commit point

The log takes the job of NiFi's rolling group of journals: events ride in the transactions that cause them, so there is
nothing to lose or to double between the two. A snapshot carries the events that are in no event file yet, so that the
log before it may go (recorded.py). An error at rollover leaves the events where they are.

Nothing here runs by itself: `step` does what is due, and `MaintenanceRunner` calls it.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from ullage.contract import OnFull
from ullage.engine.files import discard_partial, make_directories
from ullage.engine.keepers import Keepers
from ullage.engine.model import Operation
from ullage.engine.parts import RepositoryParts
from ullage.engine.provenance.eventfiles import SUFFIX, EventFiles, Written, encode, why_untellable
from ullage.engine.provenance.events import ProvenanceEvent, RecordedTransaction, size_of
from ullage.engine.provenance.holds import Holds, Retained, expired
from ullage.engine.provenance.manifest import (
    EventFile,
    LostEvents,
    ManifestFile,
    ProvenanceManifest,
    without,
)
from ullage.engine.provenance.series import expand, series_of
from ullage.engine.provenance.tail import Numbered, Tail
from ullage.engine.wal.state import UNUSABLE
from ullage.errors import FormatTooNew, RepositoryDamaged

PROVENANCE = "provenance"
MANIFEST = "manifest"
EVENTS = "provenance/events"

PATIENCE = 2
"""Rollovers' worth of events in memory at which a writer does the rollover itself: whoever maintains is behind."""

FILE_EVENTS_MAX = 50_000
"""Events of one file, but for the last transaction's: to show one event of it its footer has to be read, a millisecond
where it lists 25 row groups.
"""


class InheritedFile(NamedTuple):
    """An event file of another repository, with its bytes. Its directory says nothing here."""

    file: EventFile
    data: memoryview

    @property
    def first_sequence(self) -> int:
        return self.file.first_sequence


Inherited = InheritedFile | LostEvents | Numbered


class ProvenanceStore:
    """Thread-safe. `tail` are the events that are in none of the `event_files` yet, `holds` what readers want still;
    `failure` is why the last drain for a checkpoint did not succeed, None if it did. `manifest` is the one that counts.
    """

    def __init__(self, parts: RepositoryParts, durable: Callable[[], int], queue_name: Callable[[int], str]) -> None:
        """Events of transactions up to `durable()` may move to event files."""
        files, root, settings = parts.files, parts.spec.storage.host_path.path, parts.spec.provenance
        directories = parts.spec.storage.provenance_directories or (EVENTS,)
        self._files = files
        self._settings = settings
        self._clock = parts.clock
        self.queue_name = queue_name
        self._directory = os.path.join(root, PROVENANCE)
        self._place = ManifestFile(files, os.path.join(self._directory, MANIFEST), parts.repository)
        self.event_files = EventFiles(files, root, directories)
        # Reentrant: a backup keeps everything still, and makes the checkpoint that drains.
        self._drain_lock = threading.RLock()
        self._keepers = Keepers(self._drain_lock)
        self.holds = Holds()
        manifest = self._place.read()
        self._is_new = manifest is None
        self.manifest = manifest or self._place.new(0)
        self._attempted: ProvenanceManifest | None = None
        self.tail = Tail(self.manifest.drained, self.manifest.next_sequence)
        self._durable = durable
        self._waiting_since: float | None = None
        self._rollovers = 0
        self._is_closed = False
        self.failure: Exception | None = None
        self._keep_aside: Callable[[RecordedTransaction, str], None]

    def set_aside_by(self, keep: Callable[[RecordedTransaction, str], None]) -> None:
        """From now on a transaction whose events cannot be told is handed to `keep`, with the reason, and passed over
        once that has returned: it keeps the transaction durably.
        """
        self._keep_aside = keep

    @property
    def repository(self) -> str:
        """The uuid of the repository."""
        return self._place.repository

    def start(self, last_id: int) -> None:
        """Once the log is restored: begin a manifest where there is none yet, and remove leftovers.

        RepositoryDamaged if there should be one: without it nobody knows which events the files and the log share.
        """
        if not self._is_new:
            self.event_files.remove_unlisted(self.manifest.files)
            discard_partial(self._place.files, self._place.path)
            return
        if self.tail.events or self.event_files.paths():
            raise RepositoryDamaged(
                f"{self._place.path} is missing, but there are provenance events: mount its volume, or restore it from "
                "a backup; nothing was removed"
            )
        if self._settings.enabled:
            make_directories(self._files, self._directory)
            self._replace(self._place.new(last_id))
            self._is_new = False

    def step(self) -> None:
        """What is due by now: a rollover, and the end of some events' retention."""
        if self._is_due():
            self.drain()
        self.retain()

    def take(self, id: int, millis: int, operations: Sequence[Operation]) -> None:
        self.tail.take(id, millis, operations)

    def undrained(self) -> list[RecordedTransaction]:
        return self.tail.told()

    def waiting(self) -> tuple[int, int]:
        return self.tail.events, self.tail.bytes

    def span(self) -> tuple[int, int]:
        manifest, newest = self.snapshot()
        return manifest.removed_through + 1, newest[-1].last_sequence if newest else manifest.next_sequence - 1

    def drain(self) -> int:
        """Move every durable event to event files; returns how many. An error leaves the rest in the log.

        write file | sync it and its name | replace manifest | forget
                                            ^ commit point
        a crash before it: the file is not listed, the events are read from the log again and get the same numbers
        a crash after it: they are in the file, and the log's are passed by
        """
        with self._drain_lock:
            if self._is_closed:
                return 0
            self._be_certain()
            self.tail.settle(self._durable())
            moved = 0
            while run := self._next_run():
                moved += self._move(run)
            # Also where something is left: on a busy node something always is, and each second would make a file of
            # its own.
            self._waiting_since = None  # what has come meanwhile waits from now on
            self.failure = None
        return moved

    def try_drain(self) -> None:
        """Drain for a checkpoint, whose snapshot carries what could not be drained; `failure` says why."""
        try:
            self.drain()
            self._renew_manifest()
        except Exception as error:  # noqa: BLE001 - whatever ails a rollover, no snapshot may fail for it
            self.failure = error

    def inherit(self, found: Iterable[Inherited]) -> int:
        """Begin with the events of another repository, whose transactions were numbered below ours; returns how many.

        They come in order, no number left out. For a repository that nobody else has open yet, whose events these are
        to come before: an error leaves a part of them.
        """
        with self._drain_lock:
            is_begun = False
            for each in found:
                if not is_begun:
                    first, is_begun = each.first_sequence, True
                    empty = self._place.new(0)
                    self._go_on(msgspec.structs.replace(empty, removed_through=first - 1, next_sequence=first))
                if isinstance(each, Numbered):
                    self.tail.take(each.told.transaction, each.told.millis, each.told.operations)
                    continue
                if self.tail.events:
                    self.drain()
                if isinstance(each, LostEvents):
                    lost, following = (*self.manifest.lost, each), each.first_sequence + each.events
                    self._go_on(msgspec.structs.replace(self.manifest, lost=lost, next_sequence=following))
                else:
                    self._go_on(self._with_file(each))
            self.drain()
            self._replace(self.manifest)
            return sum(file.events for file in self.manifest.files)

    def _go_on(self, manifest: ProvenanceManifest) -> None:
        """After these events, which count once a manifest is written."""
        self.manifest = manifest
        self.tail = Tail(manifest.drained, manifest.next_sequence)

    def _with_file(self, found: InheritedFile) -> ProvenanceManifest:
        directory = self.event_files.directory_for(self._rollovers)
        self._rollovers += 1
        self.event_files.write(directory, found.file.name, found.data)
        file = msgspec.structs.replace(found.file, directory=directory)
        files, following = (*self.manifest.files, file), file.last_sequence + 1
        return msgspec.structs.replace(self.manifest, files=files, drained=file.last_id, next_sequence=following)

    def admit(self) -> None:
        """A writer helps to drain where so many events wait in memory; where that fails, it obeys `onFull`."""
        limits = self._settings.rollover_events, self._settings.rollover_size
        if self.tail.events < PATIENCE * limits[0] and self.tail.bytes < PATIENCE * limits[1]:
            return
        try:
            self.drain()
        except Exception:
            if self._settings.on_full != OnFull.DROP:
                raise
            self._drop()

    def still(self) -> AbstractContextManager[object]:
        """Nothing moves to event files meanwhile, but by this thread: they and the next snapshot agree."""
        return self._drain_lock

    def keeping(self) -> AbstractContextManager[None]:
        """No event file is removed meanwhile."""
        return self._keepers.keeping()

    @property
    def place(self) -> str | None:
        """The manifest's path; None where there is none yet."""
        return None if self._is_new else self._place.path

    def retain(self) -> int:
        """Remove the event files whose retention has ended; returns how many. Never the newest events."""
        with self._drain_lock:
            if self._keepers or self._is_closed:
                return 0
            now = self._clock.now_millis()
            files = self.manifest.files
            kept = [Retained(file.millis_max, file.bytes, file.last_sequence) for file in files]
            total = sum(file.bytes for file in files)
            count = expired(kept, total, self._settings, now, self.holds.wanted_after(now))
            if not count:
                return 0
            self._be_certain()
            # The manifest first: a listed file that is gone is damage, an unlisted one only a leftover.
            self._replace(without(self.manifest, count))
            self.event_files.remove(files[:count])
            return count

    def rewrite(self, anew: Callable[[EventFile], memoryview | None]) -> int:
        """Put other bytes in the place of event files; returns of how many. Each holds as many events as before, with
        the same numbers, in row groups of the same length; `anew` says None of a file that stays.

        write the new file, sync | replace manifest | unlink the old one
                                 ^ commit point: a crash leaves a leftover, on the one side or the other
        """
        with self._drain_lock:
            self._be_certain()
            count = 0
            for file in self.manifest.files:
                data = anew(file)
                if data is not None:
                    self._rewrite(file, data)
                    count += 1
            # Also where nothing was left to do: a crash may have come between the unlinking and this.
            self.event_files.sync_names()
            return count

    def _rewrite(self, file: EventFile, data: memoryview) -> None:
        name = _other_name(file.name)
        self.event_files.write(file.directory, name, data)
        new = msgspec.structs.replace(file, name=name, bytes=len(data), crc=crc32c(data))
        files = tuple(new if each is file else each for each in self.manifest.files)
        self._replace(msgspec.structs.replace(self.manifest, files=files))
        self.event_files.remove([file])

    def snapshot(self) -> tuple[ProvenanceManifest, list[Numbered]]:
        """The event files, and the durable transactions that are not in them: together all events, none twice."""
        self.tail.settle(self._durable())
        newest = self.tail.numbered()  # first, or a rollover in between would hide what it moves
        manifest = self.manifest
        return manifest, [numbered for numbered in newest if numbered.first_sequence >= manifest.next_sequence]

    def expand(self, numbered: Numbered) -> Iterator[ProvenanceEvent]:
        """The events of a transaction that is not in an event file yet."""
        return expand(numbered.told, numbered.first_sequence, self.queue_name)

    def problems(self, *, deep: bool) -> list[str]:
        """What `check` has to say: event files that are missing or, with `deep`, changed, as the manifest may be."""
        found = self._manifest_problems() if deep else []
        for file in self.manifest.files:
            path = self.event_files.path(file)
            if deep:
                found.append(self.event_files.verify(file))
            elif not self.event_files.is_whole(file):
                found.append(f"{path} is missing, or has not the {file.bytes} bytes it was written with")
        return [problem for problem in found if problem]

    def _manifest_problems(self) -> list[str]:
        way_out = "memory still has it: `ullage checkpoint` writes it anew, before the repository is closed"
        with self._drain_lock:
            try:
                found = self._place.read()
            except (RepositoryDamaged, FormatTooNew, OSError) as error:
                return [f"{error}; {way_out}"]
            if found is None and not self._is_new:
                return [f"{self._place.path} is missing: mount its volume, or restore it from a backup"]
            if found is not None and found not in (self.manifest, self._attempted):
                return [f"{self._place.path} is not the one that was written last; {way_out}"]
        return []

    def _renew_manifest(self) -> None:
        """Write it again where it does not read back: else the next start stops at it, and only a rollover replaces it.

        A missing one is left alone: its volume may be away, and one in its place would belie that.
        """
        with self._drain_lock:
            if self._is_closed:
                return
            self._be_certain()
            try:
                self._place.read()
            except RepositoryDamaged:
                self._replace(self.manifest)

    def close(self) -> None:
        """Release what is open, once a rollover that is under way is done: nothing is written any more. Events that are
        not in an event file stay in the log.
        """
        with self._drain_lock:
            self._is_closed = True
            self.event_files.close()

    def _is_due(self) -> bool:
        self.tail.settle(self._durable())
        if not self.tail.numbered():
            return False
        now = self._clock.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        settings = self._settings
        return (
            now - self._waiting_since >= settings.rollover_time.seconds
            or self.tail.events >= settings.rollover_events
            or self.tail.bytes >= settings.rollover_size
        )

    def _next_run(self) -> list[Numbered]:
        """The transactions of the next event file."""
        run: list[Numbered] = []
        events = size = 0
        events_max = min(FILE_EVENTS_MAX, self._settings.rollover_events)
        for numbered in self.tail.numbered():
            if events >= events_max or size >= self._settings.rollover_size:
                break
            run.append(numbered)
            events += numbered.told.events
            size += size_of(numbered.told)
        return run

    def _move(self, run: list[Numbered]) -> int:
        """Move the events of the first transactions of a run to an event file; returns how many events.

        One whose events cannot be told would keep all behind it from ever being drained, and in the end writers from
        writing: what comes before it is moved, then it is set aside and passed over. Any other failure is raised.
        """
        try:
            written = encode(
                (series for numbered in run for series in series_of(*numbered)),
                self.queue_name,
                compress=self._settings.compress_on_rollover,
            )
        except UNUSABLE:
            for at, numbered in enumerate(run):
                if reason := why_untellable(series_of(*numbered), self.queue_name):
                    return self._move(run[:at]) if at else self._pass_over(numbered, reason)
            raise
        self._settle(run, files=(*self.manifest.files, self._written(run, written)))
        return sum(numbered.told.events for numbered in run)

    def _pass_over(self, numbered: Numbered, reason: str) -> int:
        """Set a transaction's events aside; none is moved.

        set aside, durable | manifest passes it over
                           ^ a crash here: the next rollover comes to the same record, and the ledger has it once
        """
        self._keep_aside(numbered.told, f"its events cannot be told: {reason}")
        lost = LostEvents(numbered.first_sequence, numbered.told.events)
        self._settle([numbered], lost=(*self.manifest.lost, lost))
        return 0

    def _written(self, run: list[Numbered], written: Written) -> EventFile:
        """Write an event file, for the manifest to list."""
        first = run[0].first_sequence
        directory = self.event_files.directory_for(self._rollovers)
        name = f"{first:020d}{SUFFIX}"
        # Durable under its name before the manifest lists it: from then on the log may go.
        self.event_files.write(directory, name, written.data)
        self._rollovers += 1
        return EventFile(
            directory=directory,
            name=name,
            first_sequence=first,
            events=run[-1].last_sequence - first + 1,
            first_id=run[0].told.transaction,
            last_id=run[-1].told.transaction,
            millis_min=written.millis_min,
            millis_max=written.millis_max,
            bytes=len(written.data),
            crc=crc32c(written.data),
        )

    def _drop(self) -> None:
        """Give up the events that find no room; their numbers are reported as lost ever after."""
        with self._drain_lock:
            self.tail.settle(self._durable())
            run = self.tail.numbered()
            if not run:
                return
            self._be_certain()
            first = run[0].first_sequence
            lost = LostEvents(first, run[-1].last_sequence - first + 1)
            self._settle(run, lost=(*self.manifest.lost, lost))

    def _settle(self, run: list[Numbered], **listed: object) -> None:
        """The commit point of a rollover, and what follows from it: the run's events are `listed`, or lost."""
        drained, next_sequence = run[-1].told.transaction, run[-1].last_sequence + 1
        self._replace(msgspec.structs.replace(self.manifest, drained=drained, next_sequence=next_sequence, **listed))
        self.tail.forget(len(run))

    def _replace(self, manifest: ProvenanceManifest) -> None:
        self._attempted = self._attempted or manifest
        self._place.write(manifest)
        self.manifest, self._attempted = manifest, None

    def _be_certain(self) -> None:
        """After a replacement that failed, whose rename the disk may have all the same: put the last good one there.

        Else: the disk's lists file 7 | the next rollover writes 7 anew, with more events | killed | 7 is not what the
        disk's manifest says, and the log's events were passed by.
        """
        if self._attempted is not None:
            self._replace(self.manifest)


def _other_name(name: str) -> str:
    """Of what takes a file's place: it can't have the name of one that is listed, nor one that a rollover may give."""
    first, _, number = name.removesuffix(SUFFIX).partition("-")
    return f"{first}-{int(number or 0) + 1}{SUFFIX}"

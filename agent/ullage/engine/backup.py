"""Backup of a repository that goes on working, and its restoration (docs/storage.md, "Backup").

    hold reclamation | checkpoint | copy what is not there yet | sync | rename manifest | remove what it lacks
                                                                        ^ commit point
    a crash before it: the last backup counts, and none of its files was touched; what was copied and noted (see
    `backupresume`) is there for the next run; after it: leftovers are unlisted

Bytes that the ledger names never change, so only the moment needs care: the checkpoint's snapshot says what belongs
to it, and nothing is given back until that is copied. Files of a backup are never written again: a resource claim
whose generation, length or holes differ gets another file, and so does an event file with another checksum: the
volume may have been put back as it was, and numbers are used again then.
"""

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from typing import Final

import msgspec
from crc32c import crc32c

from ullage.beneath import LeadsOut
from ullage.engine.backupcontent import ContentGatherer
from ullage.engine.backupcopies import Copier, CopyDamages, holds, put_file
from ullage.engine.backupdirectory import DirectoryPlace, read_pieces
from ullage.engine.backupfiles import (
    BACKUP_FORMAT,
    RUNS_DIRECTORIES,
    BackupFile,
    BackupManifest,
    encode_manifest,
    is_run,
    lies_in,
)
from ullage.engine.backupgenerations import FollowedManifest, followed_at, listed_by, remove_unneeded, with_older
from ullage.engine.backupplace import CONTENT, FLAT_DIRECTORIES, GENERATIONS, MANIFEST, PINS, BackupPlace, is_put
from ullage.engine.backupresume import BEGINNING, NotedCopies, files_there, note_begin, was_begun
from ullage.engine.backupswaps import swap_sources
from ullage.engine.backuptally import Progress
from ullage.engine.committer import Committer
from ullage.engine.content.availability import Damage
from ullage.engine.content.containers import LOST_AND_FOUND
from ullage.engine.content.store import FileContentStore
from ullage.engine.documents import (
    unavailable_content,
    unavailable_run,
    unavailable_swap_file,
)
from ullage.engine.files import PARTIAL_SUFFIX
from ullage.engine.flowfile.queues import PassedOver
from ullage.engine.flowfile_repository import FLOWFILE
from ullage.engine.ledger.keyspaces import KeySpaces
from ullage.engine.ledger.runfiles import RUNS, run_name
from ullage.engine.ledger.swap import SwapFiles
from ullage.engine.model import (
    Action,
    FlowFileRecord,
    HandlePack,
    Operation,
    Relocation,
    ResourceClaim,
    RunFile,
    SetAside,
    SwapOut,
)
from ullage.engine.opening import RepositoryIdentity
from ullage.engine.packs import rows_of
from ullage.engine.parts import RepositoryParts
from ullage.engine.provenance.store import PROVENANCE, ProvenanceStore
from ullage.engine.reclaim.compactor import Compactor
from ullage.engine.registers import merged, read_register, register_path
from ullage.engine.repositories import ContentStore, ProvenanceRepository
from ullage.engine.unavailable import UnavailableContents
from ullage.engine.wal.records import RecordReader, record_pieces
from ullage.engine.wal.snapshot import SNAPSHOT, SNAPSHOT_MAGIC, SnapshotHeader
from ullage.errors import DirectoryNotEmpty, InvalidArgument
from ullage.wire.unavailable import LISTED_MAX, UnavailableContent
from ullage.wire.upkeep import BackupReport, Keep

LATER: Final = re.compile(re.escape(f"{FLOWFILE}/{SNAPSHOT}-") + r"(?!1\.)")
"""Snapshots of all generations but the first."""


class Backup:
    """Writes backups of one open repository; one at a time. Sessions may commit meanwhile."""

    def __init__(
        self,
        parts: RepositoryParts,
        content: ContentStore,
        swap_files: SwapFiles,
        provenance: ProvenanceRepository,
        committer: Committer,
        compactor: Compactor,
        gatherer: ContentGatherer,
        unavailable: UnavailableContents,
        spaces: KeySpaces,
        queue_name: Callable[[int], str],
    ) -> None:
        self._files = parts.files
        self._root = parts.spec.storage.host_path.path
        self._serde = parts.serde
        self._clock = parts.clock
        self._content = content
        self._swap_files = swap_files
        # What is kept elsewhere is not copied.
        self._events = provenance if isinstance(provenance, ProvenanceStore) else None
        self._committer = committer
        self._compactor = compactor
        self._gatherer = gatherer
        self._unavailable = unavailable
        self._spaces = spaces
        self._queue_name = queue_name
        self._lock = threading.Lock()

    def write(
        self,
        identity: RepositoryIdentity,
        destination: str | BackupPlace,
        on_progress: Progress,
        within: str = "",
        keep: Keep | None = None,
    ) -> BackupReport:
        """Bring the backup in a directory or another place up to date, or begin one; `on_progress` is told what is
        copied and to copy.

        Until it returns, nothing dead is given back. DirectoryNotEmpty: it holds something else; InvalidArgument: it
        lies in the repository, or another package or memory keeps content or FlowFiles. An error leaves the last backup
        as it was. Content that can't be read is none: the report names what the backup lacks, and what it keeps of the
        last one because it can't be read any more.

        `keep` says which generations stay from now on, this one included; as it was said before if it is None.

        No link is followed below `within`, which is the directory if it is empty: InvalidArgument where one lies.
        """
        if isinstance(destination, str):
            self._require_apart(destination)
            destination = DirectoryPlace(self._files, destination, within)
        content = self._copied_content(identity)
        with self._lock, _following_no_links(), destination.writing():
            return self._write(identity, content, destination, on_progress, keep)

    def _write(
        self,
        identity: RepositoryIdentity,
        content: FileContentStore,
        place: BackupPlace,
        on_progress: Progress,
        keep: Keep | None,
    ) -> BackupReport:
        with self._keeping():
            followed, is_begun = _standing(place, identity)
            previous = None if followed is None else followed.manifest
            had = files_there(place, identity.repository, previous)
            erased = read_register(self._files, register_path(self._root))  # damaged: told before anything is put
            place.prepare()
            if not is_begun:
                note_begin(place, identity.repository)
            sequence = 1 if previous is None else previous.sequence + 1
            (snapshot, header, named), (events, event_sources) = self._write_moment(place, sequence)
            doubted = {each.summary.name for each, _ in self._unavailable.passed_over(LISTED_MAX)}
            swaps = swap_sources(self._files, self._swap_files, named.swaps, named.set_aside, had, doubted, sequence)
            sources = [*swaps.sources, *self._run_sources(named), *self._sources(content, named), *event_sources]
            # What lies there under the same path has the same bytes: no file of a backup is written twice.
            kept = [
                msgspec.structs.replace(file, crc=had[file.path].crc, suffix=had[file.path].suffix)
                for _, file in sources
                if file.path in had
            ]
            missing = [(source, file) for source, file in sources if file.path not in had]
            before = {file.resource: file.lies_at for file in had.values() if file.container}
            noted = NotedCopies(place, identity.repository, previous)
            copier = Copier(self._files, self._gatherer, place, sequence, before, noted)
            copied = copier.copy_all(missing, on_progress)
            damages = copier.damages
            self._note_damaged_runs(damages, named, copied)
            files = (*copied, *kept)
            manifest = BackupManifest(
                format=BACKUP_FORMAT,
                identity=identity,
                sequence=sequence,
                created_millis=self._clock.now_millis(),
                last_id=header.last_id,
                snapshot=snapshot,
                swaps=tuple(file for file in files if not file.container and not file.directory),
                contents=tuple(file for file in files if file.container),
                provenance=(*(file for file in files if file.directory and not is_run(file)), *events),
                runs=tuple(file for file in files if is_run(file)),
                erased=merged(() if previous is None else previous.erased, erased),
            )
            manifest = with_older(place, followed, manifest, keep)
            place.publish(encode_manifest(manifest), listed_by(manifest))
        # After the commit point: what the last backup alone had was still its own until then.
        remove_unneeded(place, manifest)
        kept_damages = self._named_kept(sources, had, {claim.index for claim in named.claims if claim.unproved})
        return BackupReport(
            last_id=header.last_id,
            generation=sequence,
            generations=1 + len(manifest.older),
            copied_files=len(copied),
            copied_bytes=sum(file.length for file in copied),
            kept_files=len(kept),
            kept_bytes=sum(file.length for file in kept),
            lost=(*self._named(damages.lost), *self._named_swaps(swaps.unreadable), *damages.beside[:LISTED_MAX]),
            saved=(*self._named(damages.saved), *kept_damages, *self._named_swaps(swaps.saved)),
            damaged_files=sum(
                (damages.files, len({each.path for each in kept_damages}), len(swaps.unreadable), len(swaps.saved))
            ),
        )

    def _named(self, damages: dict[tuple[int, int], Damage]) -> tuple[UnavailableContent, ...]:
        found = self._unavailable.having(damages, LISTED_MAX)
        return tuple(unavailable_content(each, self._queue_name) for each in found)

    def _named_kept(
        self, sources: list[tuple[str, BackupFile]], had: Mapping[str, BackupFile], marked: set[int]
    ) -> list[UnavailableContent]:
        """What is damaged in files that the last backup copied whole. Of these only what is gone, cut or `marked`, in
        which a read may have met damage before, is read again.
        """
        copied = {file.resource for _, file in sources if file.container and file.path in had}
        for source, file in sources:
            if file.resource in copied and (file.resource in marked or not holds(self._files, source, file.length)):
                self._gatherer.damaged(file.resource)  # notes what it finds
        known = self._unavailable.listed(LISTED_MAX)
        return [unavailable_content(each, self._queue_name) for each in known if each.damage.file in copied]

    def _named_swaps(self, swaps: list[tuple[PassedOver, str]]) -> Iterator[UnavailableContent]:
        for found, path in swaps[:LISTED_MAX]:
            yield unavailable_swap_file(found, path, self._queue_name)

    def _copied_content(self, identity: RepositoryIdentity) -> FileContentStore:
        """What is to be copied: files. InvalidArgument where the repository keeps its own in another way."""
        others = [f"spec.{at} is {name!r}" for at, name in identity.implementations.items() if "provenance" not in at]
        if others or not isinstance(self._content, FileContentStore):
            raise InvalidArgument(f"a backup copies files of our own kind, and this has others: {', '.join(others)}")
        return self._content

    def _require_apart(self, destination: str) -> None:
        inside = [self._root, *(container.path for container in self._content.containers.values())]
        if any(lies_in(destination, place) for place in inside):
            raise InvalidArgument(
                f"{destination} lies in the repository: choose a directory elsewhere, best on another disk"
            )

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        """While this lasts, no file that a snapshot may name is given back."""
        keeping_events = nullcontext() if self._events is None else self._events.keeping()
        with (
            self._compactor.held("a backup is under way"),
            keeping_events,
            self._committer.keeping_swaps(),
            self._spaces.keeping(),
        ):
            yield

    def _write_moment(
        self, place: BackupPlace, sequence: int
    ) -> tuple[tuple[BackupFile, SnapshotHeader, "_Named"], tuple[list[BackupFile], list[tuple[str, BackupFile]]]]:
        """The snapshot and the manifest of event files, of one moment: events that moved between the two would be in
        neither, or in both.
        """
        with nullcontext() if self._events is None else self._events.still():
            self._committer.checkpoint()
            return self._write_snapshot(place, sequence), self._write_provenance(place, sequence)

    def _write_snapshot(self, place: BackupPlace, sequence: int) -> tuple[BackupFile, SnapshotHeader, "_Named"]:
        """The repository's snapshot without its log's places, verified on the way, and what it names."""
        named = _Named()
        path = os.path.join(FLOWFILE, f"{SNAPSHOT}-{sequence}")
        source = os.path.join(self._root, FLOWFILE, SNAPSHOT)
        with closing(RecordReader(self._files, source, SNAPSHOT_MAGIC, SnapshotHeader, self._serde)) as reader:
            serde = {"serde": self._serde.name, "serde_version": self._serde.version}
            # No places in a log: a backup has none, and the one that is begun beside it numbers its files from 1.
            header = msgspec.structs.replace(reader.header, **serde, next_sequences={})
            pieces = record_pieces(SNAPSHOT_MAGIC, header, named.noting(reader.blocks()), self._serde)
            file = put_file(place, BackupFile(path=path, length=0, crc=0, name=SNAPSHOT), pieces)
        return file, header, named

    def _write_provenance(
        self, place: BackupPlace, sequence: int
    ) -> tuple[list[BackupFile], list[tuple[str, BackupFile]]]:
        """The manifest of event files, copied while nothing moves to them, and the files that it lists."""
        store = self._events
        source = None if store is None else store.place
        if store is None or source is None:
            return [], []
        name = os.path.basename(source)
        path = os.path.join(PROVENANCE, f"{name}-{sequence}")
        length = self._files.size(source).length
        file = BackupFile(path=path, length=length, crc=0, name=name, directory=PROVENANCE)
        manifest = put_file(place, file, read_pieces(self._files, source, length))
        sources = [
            (
                store.event_files.path(file),
                BackupFile(
                    path=os.path.join(PROVENANCE, f"{file.name}-{file.crc:08x}"),
                    length=file.bytes,
                    crc=0,
                    name=file.name,
                    directory=file.directory,
                ),
            )
            for file in store.manifest.files
        ]
        return [manifest], sources

    def _run_sources(self, named: "_Named") -> Iterator[tuple[str, BackupFile]]:
        """The runs that a snapshot lists. Another run of a number has another checksum, and so another path."""
        for run in named.runs:
            kept_as = os.path.join(RUNS, f"{run.space}-{run.number}-{run.crc:08x}")
            directory = RUNS_DIRECTORIES[run.space]
            yield (
                self._spaces.path(run),
                BackupFile(path=kept_as, length=run.length, crc=0, name=run_name(run.number), directory=directory),
            )

    def _note_damaged_runs(self, damages: CopyDamages, named: "_Named", copied: list[BackupFile]) -> None:
        """What of the runs that were copied just now cannot be read: the copy is as they are."""
        new = {(file.directory, file.name) for file in copied}
        for run in named.runs:
            name = run_name(run.number)
            if (RUNS_DIRECTORIES[run.space], name) in new and (found := self._spaces.damages_in(run)):
                damages.files += 1
                damages.beside += [unavailable_run(self._spaces.path(run), name, run.length, each) for each in found]

    def _sources(self, content: FileContentStore, named: "_Named") -> list[tuple[str, BackupFile]]:
        """Each file to have in the backup, with where it is now."""
        sources: list[tuple[str, BackupFile]] = []
        for claim in named.claims:
            container = content.container_of(claim)
            path = container.current_path(claim)
            if claim.index in named.moved:
                continue  # its content lies in an output; a file that is left of it is about to go
            if claim.intent == Action.DELETE and not self._files.exists(path):
                continue
            length = named.length_of(claim)
            kept_as = f"{claim.name}-{claim.generation}-{length}{_marks(claim)}"
            file = BackupFile(
                path=os.path.join(CONTENT, claim.container, kept_as),
                length=length,
                crc=0,
                name=claim.name,
                container=claim.container,
                resource=claim.index,
                is_archived=path == container.archive_path(claim),
            )
            sources.append((path, file))
        return sources


class _Named:
    """What a snapshot names: resource claims, how far FlowFiles reach into them, and swap files."""

    def __init__(self) -> None:
        self.claims: list[ResourceClaim] = []
        self.swaps: list[SwapOut] = []
        self.runs: list[RunFile] = []
        self.set_aside: list[SetAside] = []
        self.moved: set[int] = set()
        self._ends: dict[int, int] = {}

    def noting(self, blocks: Iterator[list[Operation]]) -> Iterator[list[Operation]]:
        """The blocks as they come, looked at in passing."""
        for block in blocks:
            for operation in block:
                if isinstance(operation, FlowFileRecord | HandlePack | SwapOut):
                    self._note_reach(operation)
                else:
                    self._note(operation)
            yield block

    def _note(self, operation: Operation) -> None:
        if isinstance(operation, ResourceClaim):
            self.claims.append(operation)
        elif isinstance(operation, RunFile):
            self.runs.append(operation)
        elif isinstance(operation, SetAside):
            self.set_aside.append(operation)
        elif isinstance(operation, Relocation):
            self.moved.add(operation.source)

    def _note_reach(self, operation: FlowFileRecord | HandlePack | SwapOut) -> None:
        if isinstance(operation, HandlePack):
            for resource, offset, length, _ in filter(None, rows_of(operation).claims):
                self._reach(resource, offset + length)
        elif isinstance(operation, SwapOut):
            self.swaps.append(operation)
            for share in operation.shares:
                self._reach(share.resource, share.end)
        elif operation.claim is not None:
            self._reach(operation.claim.resource, operation.claim.end)

    def length_of(self, claim: ResourceClaim) -> int:
        """What belongs to the backup. An open resource claim's length was recorded when it was new: it reaches further
        by now, to the end of its last claim.
        """
        if claim.intent == Action.TRUNCATE:
            return min(claim.length, claim.intent_length)
        return claim.length if claim.sealed else max(claim.length, self._ends.get(claim.index, 0))

    def _reach(self, resource: int, end: int) -> None:
        self._ends[resource] = max(self._ends.get(resource, 0), end)


@contextmanager
def _following_no_links() -> Iterator[None]:
    """Whoever can plant one where backups lie would have the repository's process write or read elsewhere."""
    try:
        yield
    except LeadsOut as error:
        raise InvalidArgument(
            f"a link lies where the backup goes, on the way to {error.filename}: remove it"
        ) from error


def _followed(place: BackupPlace, identity: RepositoryIdentity) -> FollowedManifest | None:
    followed = followed_at(place)
    if followed is not None and (found := followed.manifest.identity.repository) != identity.repository:
        raise DirectoryNotEmpty(f"{place.name} holds a backup of repository {found}")
    return followed


def _standing(place: BackupPlace, identity: RepositoryIdentity) -> tuple[FollowedManifest | None, bool]:
    """The backup that lies there, if one does, and whether a run was begun. DirectoryNotEmpty."""
    names = place.names()  # first: another writer may publish at any moment
    followed = _followed(place, identity)
    if followed is not None:
        return followed, True
    try:
        return None, _is_begun(place, identity, names)
    except DirectoryNotEmpty:
        # no manifest | another writer publishes its first run, and with that takes its mark away | notes, no mark
        followed = _followed(place, identity)
        if followed is None:
            raise
        return followed, True


def _is_begun(place: BackupPlace, identity: RepositoryIdentity, names: Iterable[str]) -> bool:
    """Of a place without a manifest, with these names in it: whether a first run of this repository was cut short
    there; False: nothing lies there. DirectoryNotEmpty: it is somebody else's, or a backup whose list was moved away.
    """
    ours = {CONTENT, *FLAT_DIRECTORIES, PINS, MANIFEST + PARTIAL_SUFFIX, LOST_AND_FOUND}
    held = place.held()
    foreign = [*(name for name in names if name not in ours), *(path for path in sorted(held) if not is_put(path))]
    if foreign:
        raise DirectoryNotEmpty(f"{place.name} is not empty ({foreign[0]}), and no backup: choose another place")
    # A first run that was cut short leaves files without a manifest too, but neither of these: to go on there would
    # remove generations that were whole until somebody moved the manifest away.
    if later := [path for path in sorted(held) if path.startswith(f"{GENERATIONS}/") or LATER.match(path)]:
        raise DirectoryNotEmpty(
            f"{place.name} holds generations of a backup ({later[-1]}) without {MANIFEST}, which lists them: put that "
            f"back, or copy the newest file of {GENERATIONS} to {MANIFEST}, or choose another place"
        )
    is_begun = was_begun(place, held, identity.repository)
    if others := [path for path in sorted(held) if not is_begun and not BEGINNING.fullmatch(path)]:
        raise DirectoryNotEmpty(
            f"{place.name} holds files of a backup ({others[0]}) without {MANIFEST}, which lists them, and this "
            "repository did not begin it: put that back, or choose another place"
        )
    return is_begun


def _marks(claim: ResourceClaim) -> str:
    """What tells the file from one of the same generation and length with other holes. Generations are counted, so a
    volume that is put back as it was, and goes on with another history, has both: what the one punched the other reads.
    """
    holes = (claim.holes, claim.intent_holes)
    return f"-holes-{crc32c(holes[1], crc32c(holes[0])):08x}" if any(holes) else ""

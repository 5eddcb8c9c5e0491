"""Backup of a repository that goes on working, and its restoration (docs/storage.md, "Backup").

    hold reclamation | checkpoint | copy what the last backup has not | sync | rename manifest | remove what it lacks
                                                                               ^ commit point
    a crash before it: the last backup counts, and none of its files was touched; after it: leftovers are unlisted

Bytes that the ledger names never change, so only the moment needs care: the checkpoint's snapshot says what belongs
to it, and nothing is given back until that is copied. Files of a backup are never written again: a resource claim
whose generation, length or holes differ gets another file, and so does an event file with another checksum: the
volume may have been put back as it was, and numbers are used again then.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext

import msgspec
from crc32c import crc32c

from ullage.beneath import LeadsOut
from ullage.engine.backupcontent import ContentGatherer, copy_file, crc_of
from ullage.engine.backupfiles import (
    BACKUP_FORMAT,
    MANIFEST,
    RUNS_DIRECTORIES,
    BackupFile,
    BackupManifest,
    all_files,
    encode_manifest,
    is_run,
    lies_in,
    read_manifest,
)
from ullage.engine.backupswaps import swap_sources
from ullage.engine.committer import Committer
from ullage.engine.content.availability import Damage
from ullage.engine.content.store import FileContentStore
from ullage.engine.documents import (
    unavailable_content,
    unavailable_event_file,
    unavailable_run,
    unavailable_swap_file,
)
from ullage.engine.files import PARTIAL_SUFFIX, Files, make_directories, replace_file
from ullage.engine.flowfile.queues import PassedOver
from ullage.engine.flowfile_repository import FLOWFILE
from ullage.engine.ledger.blockrows import BLOCKS_SPACE
from ullage.engine.ledger.keyspaces import KeySpaces
from ullage.engine.ledger.runfiles import RUNS, run_name
from ullage.engine.ledger.swap import SwapFiles
from ullage.engine.model import Action, FlowFileRecord, Operation, Relocation, ResourceClaim, RunFile, SetAside, SwapOut
from ullage.engine.opening import SWAP, RepositoryIdentity
from ullage.engine.parts import RepositoryParts
from ullage.engine.provenance.store import PROVENANCE, ProvenanceStore
from ullage.engine.reclaim.compactor import Compactor
from ullage.engine.repositories import ContentStore, ProvenanceRepository
from ullage.engine.unavailable import UnavailableContents
from ullage.engine.wal.records import RecordReader, write_records
from ullage.engine.wal.snapshot import SNAPSHOT, SNAPSHOT_MAGIC, SnapshotHeader
from ullage.errors import ContentMissing, DirectoryNotEmpty, InvalidArgument
from ullage.wire.unavailable import LISTED_MAX, UnavailableContent
from ullage.wire.upkeep import BackupReport

CONTENT = "content"

Progress = Callable[[int, int], None]


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
        self, identity: RepositoryIdentity, destination: str, on_progress: Progress, within: str = ""
    ) -> BackupReport:
        """Bring the backup in `destination` up to date, or begin one; `on_progress` gets bytes copied and to copy.

        Until it returns, nothing dead is given back. DirectoryNotEmpty: it holds something else; InvalidArgument: it
        lies in the repository, or another package or memory keeps content or FlowFiles. An error leaves the last backup
        as it was. Content that can't be read is none: the report names what the backup lacks, and what it keeps of the
        last one because it can't be read any more.

        No link is followed below `within`, which is the destination if it is empty: InvalidArgument where one lies.
        """
        self._require_apart(destination)
        content = self._copied_content(identity)
        with self._lock, self._following_no_links(within or destination):
            return self._write(identity, content, destination, on_progress)

    def _write(
        self, identity: RepositoryIdentity, content: FileContentStore, destination: str, on_progress: Progress
    ) -> BackupReport:
        with self._keeping():
            previous = _previous(self._files, destination, identity)
            make_directories(self._files, destination)
            sequence = 1 if previous is None else previous.sequence + 1
            (snapshot, header, named), (events, event_sources) = self._write_moment(destination, sequence)
            had = {} if previous is None else {file.path: file for file in all_files(previous)}
            doubted = {each.summary.name for each, _ in self._unavailable.passed_over(LISTED_MAX)}
            swaps = swap_sources(self._files, self._swap_files, named.swaps, named.set_aside, had, doubted, sequence)
            sources = [*swaps.sources, *self._run_sources(named), *self._sources(content, named), *event_sources]
            # What the last backup has under the same path has the same bytes: no file of one is written twice.
            kept = [msgspec.structs.replace(file, crc=had[file.path].crc) for _, file in sources if file.path in had]
            missing = [(source, file) for source, file in sources if file.path not in had]
            before = {file.resource: file.path for file in (previous.contents if previous is not None else ())}
            damages = _Damages()
            copied = self._copy_all(destination, sequence, missing, before, damages, on_progress)
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
            )
            # Names before the manifest that lists them: its rename is the commit point.
            for directory in sorted({os.path.dirname(file.path) for file in all_files(manifest)}):
                self._files.sync_directory(os.path.join(destination, directory))
            replace_file(self._files, os.path.join(destination, MANIFEST), encode_manifest(manifest))
        # After the commit point: what the last backup alone had was still its own until then.
        self._remove_unlisted(destination, manifest)
        kept_damages = self._named_kept(sources, had, {claim.index for claim in named.claims if claim.unproved})
        return BackupReport(
            last_id=header.last_id,
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
            if file.resource in copied and (file.resource in marked or not self._holds(source, file.length)):
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
    def _following_no_links(self, folder: str) -> Iterator[None]:
        """Whoever can plant one where backups lie would have the repository's process write or read elsewhere."""
        files = self._files
        self._files = files.without_links_below(folder)
        try:
            yield
        except LeadsOut as error:
            raise InvalidArgument(
                f"a link lies where the backup goes, on the way to {error.filename}: remove it"
            ) from error
        finally:
            self._files = files

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        """While this lasts, no file that a snapshot may name is given back."""
        keeping_events = nullcontext() if self._events is None else self._events.keeping()
        with self._compactor.held(), keeping_events, self._committer.keeping_swaps(), self._spaces.keeping():
            yield

    def _write_moment(
        self, destination: str, sequence: int
    ) -> tuple[tuple[BackupFile, SnapshotHeader, "_Named"], tuple[list[BackupFile], list[tuple[str, BackupFile]]]]:
        """The snapshot and the manifest of event files, of one moment: events that moved between the two would be in
        neither, or in both.
        """
        with nullcontext() if self._events is None else self._events.still():
            self._committer.checkpoint()
            return self._write_snapshot(destination, sequence), self._write_provenance(destination, sequence)

    def _write_snapshot(self, destination: str, sequence: int) -> tuple[BackupFile, SnapshotHeader, "_Named"]:
        """The repository's snapshot without its log's places, verified on the way, and what it names."""
        named = _Named()
        directory = os.path.join(destination, FLOWFILE)
        make_directories(self._files, directory)
        name = f"{SNAPSHOT}-{sequence}"
        path = os.path.join(directory, name)
        source = os.path.join(self._root, FLOWFILE, SNAPSHOT)
        with closing(RecordReader(self._files, source, SNAPSHOT_MAGIC, SnapshotHeader, self._serde)) as reader:
            serde = {"serde": self._serde.name, "serde_version": self._serde.version}
            # No places in a log: a backup has none, and the one that is begun beside it numbers its files from 1.
            header = msgspec.structs.replace(reader.header, **serde, next_sequences={})
            blocks = named.noting(reader.blocks())
            length = write_records(self._files, path, SNAPSHOT_MAGIC, header, blocks, self._serde)
        crc = crc_of(self._files, path, length)
        return BackupFile(path=os.path.join(FLOWFILE, name), length=length, crc=crc, name=SNAPSHOT), header, named

    def _write_provenance(
        self, destination: str, sequence: int
    ) -> tuple[list[BackupFile], list[tuple[str, BackupFile]]]:
        """The manifest of event files, copied while nothing moves to them, and the files that it lists."""
        store = self._events
        source = None if store is None else store.place
        if store is None or source is None:
            return [], []
        directory = os.path.join(destination, PROVENANCE)
        make_directories(self._files, directory)
        name = os.path.basename(source)
        path = os.path.join(PROVENANCE, f"{name}-{sequence}")
        target = os.path.join(destination, path)
        if self._files.exists(target):  # of a backup that was cut short
            self._files.unlink(target)
        length = self._files.size(source).length
        crc = copy_file(self._files, source, target, length)
        manifest = BackupFile(path=path, length=length, crc=crc, name=name, directory=PROVENANCE)
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

    def _copy_all(
        self,
        destination: str,
        sequence: int,
        copies: Sequence[tuple[str, BackupFile]],
        before: dict[int, str],
        damages: "_Damages",
        on_progress: Progress,
    ) -> list[BackupFile]:
        """Copy each source to its file; the files, with their checksums. `before`: what the last backup has of resource
        claims. What can't be read is noted in `damages`.
        """
        total = sum(file.length for _, file in copies)
        done = 0
        copied: list[BackupFile] = []
        for directory in sorted({os.path.dirname(file.path) for _, file in copies}):
            make_directories(self._files, os.path.join(destination, directory))
        for source, file in copies:
            damaged = self._gatherer.damaged(file.resource) if file.container else {}
            if damaged or (file.container and not self._holds(source, file.length)):
                # Under a name of its own: the one of a whole copy stays free for the day when the file is mended.
                partial = msgspec.structs.replace(file, path=f"{file.path}-{sequence}")
                target = os.path.join(destination, partial.path)
                earlier = os.path.join(destination, before[file.resource]) if file.resource in before else None
                found = self._gatherer.gather(self._files, file.resource, source, earlier, target, file.length, damaged)
                damages.add(found.lost, found.saved)
                if found.is_written:
                    copied.append(msgspec.structs.replace(partial, crc=crc_of(self._files, target, file.length)))
            else:
                try:
                    crc = copy_file(self._files, source, os.path.join(destination, file.path), file.length)
                except ContentMissing as error:
                    if not file.directory:
                        raise
                    damages.add_beside(source, file, error)  # a restored repository goes on without them
                    continue
                copied.append(msgspec.structs.replace(file, crc=crc))
            done += file.length
            on_progress(done, total)
        return copied

    def _holds(self, path: str, length: int) -> bool:
        return self._files.exists(path) and self._files.size(path).length >= length

    def _remove_unlisted(self, destination: str, manifest: BackupManifest) -> None:
        listed = {file.path for file in all_files(manifest)}
        for path in _found(self._files, destination):
            if path not in listed:
                self._files.unlink(os.path.join(destination, path))


class _Damages:
    """What could not be read while a backup was written, by resource claim and offset."""

    def __init__(self) -> None:
        self.files = 0
        self.lost: dict[tuple[int, int], Damage] = {}
        self.saved: dict[tuple[int, int], Damage] = {}
        self.beside: list[UnavailableContent] = []

    def add_beside(self, source: str, file: BackupFile, error: ContentMissing) -> None:
        """One more file of events, or run."""
        if file.directory == RUNS_DIRECTORIES[BLOCKS_SPACE]:
            return  # nothing is lost: what it held is worked out again
        self.files += 1
        named = unavailable_run if is_run(file) else unavailable_event_file
        self.beside.append(named(source, file.name, file.length, error))

    def add(self, lost: dict[tuple[int, int], Damage], saved: dict[tuple[int, int], Damage]) -> None:
        """Of one more file."""
        self.files += 1
        self.lost.update(lost)
        self.saved.update(saved)


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
                if isinstance(operation, FlowFileRecord) and operation.claim is not None:
                    self._reach(operation.claim.resource, operation.claim.end)
                elif isinstance(operation, ResourceClaim):
                    self.claims.append(operation)
                elif isinstance(operation, RunFile):
                    self.runs.append(operation)
                elif isinstance(operation, SetAside):
                    self.set_aside.append(operation)
                elif isinstance(operation, Relocation):
                    self.moved.add(operation.source)
                elif isinstance(operation, SwapOut):
                    self.swaps.append(operation)
                    for share in operation.shares:
                        self._reach(share.resource, share.end)
            yield block

    def length_of(self, claim: ResourceClaim) -> int:
        """What belongs to the backup. An open resource claim's length was recorded when it was new: it reaches further
        by now, to the end of its last claim.
        """
        if claim.intent == Action.TRUNCATE:
            return min(claim.length, claim.intent_length)
        return claim.length if claim.sealed else max(claim.length, self._ends.get(claim.index, 0))

    def _reach(self, resource: int, end: int) -> None:
        self._ends[resource] = max(self._ends.get(resource, 0), end)


def _previous(files: Files, destination: str, identity: RepositoryIdentity) -> BackupManifest | None:
    if not files.exists(destination):
        return None
    if files.exists(os.path.join(destination, MANIFEST)):
        manifest = read_manifest(files, destination)
        if manifest.identity.repository != identity.repository:
            raise DirectoryNotEmpty(f"{destination} holds a backup of repository {manifest.identity.repository}")
        return manifest
    ours = {CONTENT, FLOWFILE, RUNS, SWAP, PROVENANCE, MANIFEST + PARTIAL_SUFFIX}
    if foreign := [name for name in files.list_directory(destination) if name not in ours]:
        raise DirectoryNotEmpty(f"{destination} is not empty ({foreign[0]}), and no backup: choose another directory")
    return None


def _marks(claim: ResourceClaim) -> str:
    """What tells the file from one of the same generation and length with other holes. Generations are counted, so a
    volume that is put back as it was, and goes on with another history, has both: what the one punched the other reads.
    """
    holes = (claim.holes, claim.intent_holes)
    return f"-holes-{crc32c(holes[1], crc32c(holes[0])):08x}" if any(holes) else ""


def _found(files: Files, destination: str) -> Iterator[str]:
    """All files in the directories of a backup, relative to it."""
    for directory in (FLOWFILE, RUNS, SWAP, PROVENANCE):
        if files.exists(os.path.join(destination, directory)):
            yield from (
                os.path.join(directory, name) for name in files.list_directory(os.path.join(destination, directory))
            )
    content = os.path.join(destination, CONTENT)
    for container in files.list_directory(content) if files.exists(content) else ():
        for name in files.list_directory(os.path.join(content, container)):
            yield os.path.join(CONTENT, container, name)

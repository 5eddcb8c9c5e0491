"""The content repository that is ours: one file for each resource claim, in the sections of directories on volumes.

Where files are needed again and again, the next ones are made ahead, empty: up to 16 of a container and a lifetime
class, whose names one sync of their directory makes durable. No record names them; a close removes them, and after a
crash they are orphans of no length.

    16 created, directory synced | content, file synced, frame | content, file synced, frame | ...

Orphans are content files that no record names, left by a crash before their first commit. A start never removes one
(NiFi does, and with a lost FlowFile repository that is all content). They are surveyed, and only
`Reclaimer.adopt_orphans` takes them up: as sealed resource claims without claimants, which then go the way of
everything dead, through the archive.

Adopted is only what a transaction that never came left for certain: the name is one that this repository would have
given, in the section where it would have put it, and its index was reserved in the log when this process started, or
is one whose file this process tried to remove in vain. So neither files being written now, nor the content of a ledger
that was lost, are ever taken for orphans.
"""

import errno
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress

import msgspec

from ullage.engine.byteranges import unpack_ranges
from ullage.engine.content.claims import RUN, StripedStore, WritableClaim
from ullage.engine.content.containers import (
    ARCHIVE,
    HERE,
    Container,
    ContainerDirectory,
    directories_of,
)
from ullage.engine.content.failures import lost, not_tried
from ullage.engine.content.openfiles import OpenFiles
from ullage.engine.content.protocol import IntentOutcome, Orphan
from ullage.engine.content.reserve import CONTENT_RESERVE_BYTES, Reserve
from ullage.engine.files import COPY_BYTES, File, length_of
from ullage.engine.model import Action, Lifetime, ResourceClaim
from ullage.engine.oserrors import NO_DIRECTORY, NO_SUCH_PLACE, SyncNotTried, is_disk_full
from ullage.engine.parts import RepositoryParts
from ullage.engine.wal.format import FORMAT_VERSION
from ullage.errors import ContentWriteFailed, DiskFull, ForeignContainer
from ullage.holes import cannot_punch


class FileContentStore(StripedStore[ContainerDirectory]):
    """See `ContentStore`. Thread-safe."""

    is_volatile = False

    def __init__(self, parts: RepositoryParts, reserve_indexes: Callable[[int], None]) -> None:
        super().__init__(directories_of(parts.files, parts.spec), parts, reserve_indexes)
        self._files = parts.files
        self._repository = parts.repository
        self._root, self._sections = parts.spec.storage.host_path.path, parts.spec.storage.sections
        self._spares: defaultdict[tuple[str, int], list[WritableClaim]] = defaultdict(list)
        self._made: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._open_files = OpenFiles(parts.files)
        self._left_behind: set[int] = set()
        self._returns = 0

    @property
    def left_behind(self) -> int:
        # What an earlier process left on a volume that was away at the start is seen when it is back.
        return len(self._left_behind) + self._returns

    def prepare(self, known: Mapping[str, str], forgotten: Collection[str] = ()) -> None:
        for name in self.containers.keys() & set(forgotten) - known.keys():
            self.forget(name)
        for name in sorted(known.keys() - self.containers.keys()):
            path = os.path.join(self._root, known[name])
            self.containers[name] = ContainerDirectory(self._files, name, path, None, self._sections, evacuates=True)
        for container in self.containers.values():
            container.is_forgotten = container.name in forgotten
            if container.name not in known:
                try:
                    self.make(container.name)
                except (OSError, ForeignContainer) as error:
                    if not known:
                        raise
                    container.unmade = str(error)  # it holds nothing yet, and stops no start
        self.look_at_volumes()

    def make(self, name: str) -> None:
        container = self.containers[name]
        container.create(self._repository, FORMAT_VERSION)

    def close(self) -> None:
        super().close()
        self._open_files.close()

    def look_at_volumes(self) -> None:
        for container in self.containers.values():
            self._look_at(container)

    def _look_at(self, container: ContainerDirectory, error: OSError | None = None) -> bool:
        """See whether a container's volume is there; whether it is. `error` is what an operation on it has met."""
        was, now = container.condition, container.look(self._repository)
        if now == HERE and error is not None and error.errno == errno.EROFS:
            now = container.read_only()
        container.condition = now
        if now.state != was.state:
            with self._lock:
                self.away = frozenset(each.name for each in self.containers.values() if not each.is_available)
                self._returns += container.is_available
            # Another filesystem may be there now: what it holds is read from it, and its names are made durable anew.
            self._open_files.forget_container(container.name)
            container.forget_directories()
            self._lose_writables(container)
        return container.is_available

    def _lose_writables(self, container: ContainerDirectory) -> None:
        gone: list[WritableClaim] = []
        with self._lock:
            for writable in self._active.values():
                writable.is_lost |= writable.container is container
            for (name, _), spares in self._spares.items():
                if name == container.name:
                    gone += spares
                    spares.clear()
        for spare in gone:
            self._end(spare)

    def _has_lost(self, container: Container, error: OSError) -> bool:
        return not self._look_at(self.containers[container.name], error) or error.errno == errno.EROFS

    def sync(self, writable: WritableClaim) -> None:
        container = writable.container
        try:
            self._sync(writable)
            if writable.is_lost:
                raise lost(writable, container.condition.reason)
        except SyncNotTried as error:
            raise not_tried(writable.path, error) from error
        except OSError as error:
            if self._is_elsewhere(writable, error):
                raise lost(writable, container.condition.reason) from error
            # The kernel may have dropped the pages and call them clean: this container's word is worth nothing
            # until a restart reads what the disk holds.
            writable.failed = True
            raise self._poisoned(writable.container, writable.path, error) from error

    def sync_output(self, output: WritableClaim) -> None:
        try:
            if output.file.size().length > output.offset:  # of a source that did not read back
                output.file.truncate(output.offset)
            self._sync(output)
        except OSError as error:
            if not (is_disk_full(error) or isinstance(error, SyncNotTried) or self._is_elsewhere(output, error)):
                output.container.failure = error
            raise
        if output.is_lost:
            raise lost(output, output.container.condition.reason)

    def path_of(self, claim: ResourceClaim) -> str:
        return self.container_of(claim).current_path(claim)

    def is_there(self, claim: ResourceClaim) -> bool:
        return self._look_at(self.container_of(claim))

    def length_of(self, claim: ResourceClaim) -> int | None:
        return length_of(self._files, self.path_of(claim))

    def reading(self, claim: ResourceClaim) -> AbstractContextManager[File]:
        return self._open_files.reading(claim, self.container_of(claim))

    def open_descriptor(self, claim: ResourceClaim) -> int:
        return self._open_files.descriptor(claim, self.container_of(claim))

    def carry_out(self, intents: Sequence[ResourceClaim]) -> list[IntentOutcome | OSError]:
        outcomes: list[IntentOutcome | OSError] = []
        changed: list[tuple[str, ...]] = []
        containers = {intent.container: self.container_of(intent) for intent in intents}
        is_there = {name: self._look_at(container) for name, container in containers.items()}
        for intent in intents:
            try:
                if not is_there[intent.container]:
                    outcomes.append(IntentOutcome.LATER)
                    changed.append(())
                    continue
                outcome, directories = self._change(intent)
                outcomes.append(outcome)
                changed.append(directories)
            except OSError as error:
                is_later = self._has_lost(self.container_of(intent), error)
                outcomes.append(IntentOutcome.LATER if is_later else error)
                changed.append(())
        failed = self._sync_all({directory for directories in changed for directory in directories})
        # Again: a file that was not there because its volume went away meanwhile is not freed.
        is_there = {name: self._look_at(container) for name, container in containers.items()}
        for at, directories in enumerate(changed):
            if not is_there[intents[at].container]:
                outcomes[at] = IntentOutcome.LATER
                continue
            if errors := [failed[directory] for directory in directories if directory in failed]:
                outcomes[at] = errors[0]
                if not isinstance(errors[0], SyncNotTried):
                    # As with content: after a failed sync only a restart can tell what the disk holds.
                    self.container_of(intents[at]).failure = errors[0]
        return outcomes

    def _sync_all(self, directories: Collection[str]) -> dict[str, OSError]:
        """One sync for all names of a directory: a mass deletion waits for the disk once, not once a file. The errors,
        by directory.
        """
        failed: dict[str, OSError] = {}
        for directory in sorted(directories):
            try:
                self._files.sync_directory(directory)
            except OSError as error:
                if error.errno not in NO_DIRECTORY:  # what lies in a section's place has no name of ours
                    failed[directory] = error
        return failed

    def seal(self, claim: ResourceClaim) -> ResourceClaim:
        length = claim.length
        # One that is lost is sealed as it was: reads of it and `check` say so.
        with suppress(FileNotFoundError), closing(self._files.open(self.path_of(claim), writable=True)) as file:
            length = file.size().length
            file.sync()  # or a crash could make it shorter than its seal
        return msgspec.structs.replace(claim, sealed=True, length=length, generation=claim.generation + 1)

    def orphans(self, recorded: Callable[[int], ResourceClaim | None]) -> list[Orphan]:
        """A walk over every section of every container whose volume is there."""
        found: list[Orphan] = []
        for container in list(self.containers.values()):
            if not self._look_at(container):
                continue
            try:
                paths = container.content_files()
            except OSError:
                if self._look_at(container):
                    raise
                continue  # it went away meanwhile; it is looked through when it is back
            orphans = (self._orphan(container, path, recorded) for path in paths)
            found += [orphan for orphan in orphans if orphan is not None]
        return found

    def make_durable(self, orphans: Iterable[Orphan]) -> None:
        """Sync what was found, and the names that lead to it: who left it there may have been killed before that.

        The bytes are written once more before: after a sync that failed, in this process or the last one, the kernel
        holds pages that it calls clean and the disk never got.
        """
        directories: set[str] = set()
        for orphan in orphans:
            with closing(self._files.open(orphan.path, writable=True)) as file:
                for offset in range(0, orphan.length, COPY_BYTES):
                    data = file.read(min(COPY_BYTES, orphan.length - offset), offset)
                    if data != bytes(len(data)):  # a file that somebody made long would be filled, and its disk with it
                        file.write(data, offset)
                file.sync()
            directory, top = os.path.dirname(orphan.path), self.containers[orphan.container].path
            while directory != top:
                directories.add(directory)
                directory = os.path.dirname(directory)
            directories.add(top)
        for directory in sorted(directories):
            self._files.sync_directory(directory)

    def grow_reserve(self) -> None:
        self._on_each_reserve(lambda reserve: reserve.grow(CONTENT_RESERVE_BYTES))

    def spend_reserve(self) -> None:
        self._on_each_reserve(Reserve.spend)

    def _on_each_reserve(self, change: Callable[[Reserve], bool]) -> None:
        """Of the containers whose volumes can be written: another volume may be where one should be."""
        for container in list(self.containers.values()):
            if not self._look_at(container) or container.condition != HERE:
                continue
            try:
                change(Reserve(self._files, container.path))
            except OSError as error:
                if not self._has_lost(container, error):
                    raise

    def _sync(self, writable: WritableClaim) -> None:
        """The bytes, then the name that leads to them; of a file made ahead the name is durable already."""
        writable.file.sync()
        if not writable.name_synced:  # without this a power loss leaves a frame that names a file without a name
            self._files.sync_directory(os.path.dirname(writable.path))
            writable.is_lost |= not self._is_in_place(writable)
            writable.name_synced = True

    def _is_in_place(self, writable: WritableClaim) -> bool:
        """Whether its volume is there, and the file on it.

        volume away | file made at the mount point | volume back, which hides it | synced, and the volume is there
        """
        container = self.containers[writable.container.name]
        is_there = container.is_available and container.is_as_proved()
        return (is_there or self._look_at(container)) and writable.file.is_at(writable.path)

    def _is_elsewhere(self, writable: WritableClaim, error: OSError) -> bool:
        """Whether its volume is away, so that no sync of it was tried, and none failed."""
        return error.errno in NO_SUCH_PLACE and not self._look_at(self.containers[writable.container.name])

    def _poisoned(self, container: Container, path: str, error: OSError) -> ContentWriteFailed:
        container.failure = error
        return ContentWriteFailed(
            f"{path} could not be synced ({error}): container {container.name} stops writing until the repository is "
            "reopened"
        )

    def _make(self, claim: ResourceClaim, container: ContainerDirectory) -> tuple[File, str]:
        path = container.live_path(claim)
        try:
            container.ensure_directory(os.path.dirname(path))
            return self._files.create(path), path
        except OSError as error:
            self._look_at(container, error)
            if is_disk_full(error):
                raise DiskFull(f"no room to create {path}: nothing was committed; free space and retry") from error
            raise ContentWriteFailed(f"content file {path} could not be created: {error}") from error

    def _remove_file(self, writable: WritableClaim) -> None:
        is_left = writable.is_lost  # it may be on the volume that is away
        try:
            self._files.unlink(writable.path)
        except OSError as error:
            is_left |= not isinstance(error, FileNotFoundError)
        if is_left:  # no record names it, so it is an orphan now, to be surveyed and adopted
            self._left_behind.add(writable.claim.index)

    def _make_room(self, container: ContainerDirectory, length: int) -> bool:
        """Checked before the copying begins; the reserve is there for it."""
        if not self._look_at(container):
            return False
        if self._files.usage(container.path).free_bytes >= length:
            return True
        Reserve(self._files, container.path).spend()
        return self._files.usage(container.path).free_bytes >= length

    def _create(self, container: ContainerDirectory, lifetime: Lifetime) -> WritableClaim:
        """A new file; once there have been some, one that was made ahead."""
        kind = container.name, lifetime
        with self._lock:
            if self._spares[kind]:
                return self._spares[kind].pop()
            count = min(max(1, self._made[kind]), RUN)
        if not self._look_at(container):  # another one may have taken its place: nothing is written to that
            raise ContentWriteFailed(f"no content file could be created: {container.condition.reason}")
        made = self._make_some(container, lifetime, count)
        with self._lock:
            self._made[kind] += len(made)
            self._spares[kind] += made[1:]
        return made[0]

    def _make_some(self, container: ContainerDirectory, lifetime: Lifetime, count: int) -> list[WritableClaim]:
        """Up to `count` new files. Of a single one the writer syncs the name, after the bytes: that costs less."""
        made: list[WritableClaim] = []
        try:
            for index in self._indexes.take(count):
                try:
                    made.append(self._opened(self._new_claim(index, container, lifetime), container))
                except (DiskFull, ContentWriteFailed):
                    if not made:
                        raise
                    break  # nobody waits for this one: whoever needs it is told, if it fails then too
            if len(made) > 1:
                self._sync_names(container, made)
        except BaseException:
            for writable in made:
                self._end(writable)
            raise
        return made

    def _sync_names(self, container: ContainerDirectory, made: list[WritableClaim]) -> None:
        directory = os.path.dirname(made[0].path)  # of all: their indexes are of one section
        try:
            self._files.sync_directory(directory)
        except SyncNotTried as error:
            raise not_tried(directory, error) from error
        except OSError as error:
            if self._is_elsewhere(made[0], error):
                raise lost(made[0], container.condition.reason) from error
            raise self._poisoned(container, directory, error) from error
        if not all(map(self._is_in_place, made)):  # by now another one may have taken its place
            raise lost(made[0], container.condition.reason)
        for writable in made:  # only now: a failed sync must not let a writer believe in its name
            writable.name_synced = True

    def _empty_pool(self) -> list[WritableClaim]:
        idle = super()._empty_pool()
        with self._lock:
            for spares in self._spares.values():
                idle += spares
                spares.clear()
        return idle

    def _change(self, intent: ResourceClaim) -> tuple[IntentOutcome, tuple[str, ...]]:
        """What an intent says, and the directories whose names it changed."""
        if intent.intent in (Action.TRUNCATE, Action.PUNCH):
            return self._change_in_place(intent), ()
        if intent.intent == Action.ARCHIVE:
            return self._archive(intent)
        path = self.path_of(intent)
        # Not there: a crash came between the unlink and its result, and the intent is finished for the second time. Or
        # somebody put a directory there: it stays, as no byte of it is ours.
        with suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
            self._files.unlink(path)
        # After the unlink, or a reader between the two would open it again: a descriptor that is kept holds the blocks.
        self._open_files.forget(intent.index)
        # Synced in any case, for the unlink of the process before may not be: unless its section was never made.
        directory = os.path.dirname(path)
        return IntentOutcome.DONE, (directory,) if self._files.exists(directory) else ()

    def _change_in_place(self, intent: ResourceClaim) -> IntentOutcome:
        try:
            file = self._files.open(self.path_of(intent), writable=True)
        except FileNotFoundError:
            return IntentOutcome.MISSING
        with closing(file):
            if intent.intent == Action.PUNCH:
                try:
                    for hole in unpack_ranges(intent.intent_holes):
                        file.punch(hole.offset, hole.length)
                except OSError as error:
                    if not cannot_punch(error):
                        raise
                    return IntentOutcome.IMPOSSIBLE
            elif file.size().length > intent.intent_length:  # else cut by a process that did not live to say so
                file.truncate(intent.intent_length)
            # In both cases: reported as freed means freed for good, and a crash could still bring the bytes back.
            try:
                file.sync()
            except OSError as error:
                self.container_of(intent).failure = error
                raise
        return IntentOutcome.DONE

    def _archive(self, intent: ResourceClaim) -> tuple[IntentOutcome, tuple[str, ...]]:
        container = self.container_of(intent)
        source, target = container.live_path(intent), container.archive_path(intent)
        directories = os.path.dirname(source), os.path.dirname(target)
        self._spending_reserve(container, lambda: container.ensure_directory(directories[1]))
        # Neither there nor here: lost. Here already: a crash came after the rename, whose names may not be durable yet.
        if self._files.exists(source):
            self._spending_reserve(container, lambda: self._files.rename(source, target))
        elif not self._files.exists(target):
            return IntentOutcome.MISSING, ()
        return IntentOutcome.DONE, directories

    def _spending_reserve(self, container: ContainerDirectory, change: Callable[[], None]) -> None:
        """A new directory or name may need a block, and a full disk must not keep us from emptying it."""
        try:
            change()
        except OSError as error:
            if not is_disk_full(error) or not Reserve(self._files, container.path).spend():
                raise
            change()

    def _orphan(
        self, container: ContainerDirectory, path: str, recorded: Callable[[int], ResourceClaim | None]
    ) -> Orphan | None:
        claim = container.claim_at(path)
        if claim is not None and self._is_known(container, claim, path, recorded):
            return None
        try:
            size = self._files.size(path)
        except FileNotFoundError:
            # Unlinked, or moved to the archive, since the directory was listed.
            return None
        if not size.is_file:
            return None  # somebody's directory: no content of ours
        is_ours = (
            claim is not None
            and (claim.index <= self.inherited_ceiling or claim.index in self._left_behind)
            and recorded(claim.index) is None
        )
        is_archived = os.path.basename(os.path.dirname(path)) == ARCHIVE
        return Orphan(path, container.name, size.length, size.allocated_bytes, claim if is_ours else None, is_archived)

    def _is_known(
        self,
        container: ContainerDirectory,
        claim: ResourceClaim,
        path: str,
        recorded: Callable[[int], ResourceClaim | None],
    ) -> bool:
        """Whether a record names this file, or somebody writes it.

        The ledger last: a session's file is in it before it leaves the session's hands, so that one which was neither
        being written at the first look nor recorded at the second one is nobody's. First, because most are there.
        """

        def is_recorded() -> bool:
            found = recorded(claim.index)
            return found is not None and found.container == container.name and container.current_path(found) == path

        if is_recorded():
            return True
        with self._lock:
            writable = self._active.get(claim.index)
        return (writable is not None and writable.path == path) or is_recorded()

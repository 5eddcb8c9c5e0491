"""Gives the disk of a stopped NiFi its dead bytes back, and takes that back again.

Nothing is changed that was not written down before (`intent`), and copied before where that was asked for (`copies`).
Whatever interrupts it, the next call finishes it, or takes it back. No byte that lives is read or written: a hole is
punched in dead blocks, a file is cut behind its last byte that stays, a file of which nothing stays goes.

Provenance events may name what is dead, and NiFi, which looks only whether there is such a file, would take the zeros
of a hole for content. So either what they name stays, or the events go out of NiFi's sight first, and come back last.
"""

import enum
import errno
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Final

import msgspec

from ullage.clock import Clock
from ullage.errors import DiskFull
from ullage.nifi.changes import Changes
from ullage.nifi.contents import BLOCK_BYTES
from ullage.nifi.copies import KeptCopies, drop, folder_of, keep
from ullage.nifi.home import NiFiHome
from ullage.nifi.intent import NAME, IntentFolder, MovedEntry, ReclaimIntent, Stage
from ullage.nifi.reclaimplan import FileStep, NiFiReclaimPlan, Replays, SeenFile, plan_reclaim
from ullage.nifi.running import RepositoryState, refuse_in_use, state_of
from ullage.nifi.seeing import see_nifi
from ullage.nifi.spans import common, merged
from ullage.nifi.trouble import NiFiDamage, NiFiInUse, NothingToUndo, NotSurveyable

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


STEPS_UNSEEN: Final = 64
"""Between two looks whether NiFi was started. One that is finds nothing changed that it has a use for."""


class ReclaimOutcome(enum.StrEnum):
    """What a call did."""

    NOTHING = "nothing"
    DONE = "done"
    FINISHED = "finished"
    UNDONE = "undone"


class UntouchedFile(msgspec.Struct, frozen=True):
    """A file that was left as it is, and why."""

    file: str
    why: str


class ReclaimReport(msgspec.Struct):
    """What was done. `freed`: bytes that came back, or that were taken again, as the filesystem counts them.

    `copies`: the folder with what files lost; `set_aside`: folders with provenance events that NiFi does not see.
    `plan` where there was one.
    """

    outcome: ReclaimOutcome
    files: int = 0
    freed: int = 0
    copies: str = ""
    set_aside: list[str] = []
    passed_over: list[UntouchedFile] = []
    damages: list[NiFiDamage] = []
    plan: NiFiReclaimPlan | None = None


class NiFiReclaimer:
    """Of one NiFi, which is stopped."""

    def __init__(
        self, home: NiFiHome, clock: Clock, changes: Changes | None = None, *, is_assured: bool = False
    ) -> None:
        """`is_assured`: someone said that no NiFi runs here, where only that can be known; see `refuse_in_use`."""
        self._home = home
        self._clock = clock
        self._changes = changes or Changes()
        self._is_assured = is_assured
        self._intents = IntentFolder(home.flowfiles, self._changes)

    def reclaim(self, replays: Replays, copies: str) -> ReclaimReport:
        """Give back what is dead; `copies`: a folder elsewhere that gets it first; empty: nobody keeps it.

        What an earlier call left half done is finished instead, whatever is asked now. NiFiInUse; NotSurveyable;
        DiskFull: there is no room for the intent, or for the copies, and nothing was changed.
        """
        refuse_in_use(self._home, is_assured=self._is_assured)
        state = state_of(self._home.flowfiles)
        match self._intents.find():
            case (Stage.UNDOING, intent):
                return self._put_all_back(intent, Stage.UNDOING, state)
            case (Stage.CHANGING, intent) if intent.is_of(state):
                return self._finish(intent)
            case (Stage.CHANGING, _):  # NiFi was started since: it has its own view of what is there by now
                self._intents.remove(Stage.CHANGING)
            case (Stage.COPYING, intent):
                self._discard(intent)
        seen, damages = see_nifi(self._home, self._clock, replays)
        plan = plan_reclaim(seen, [name for name, path in self._home.containers.items() if not self._can_punch(path)])
        if not plan.steps:
            return ReclaimReport(ReclaimOutcome.NOTHING, damages=damages, plan=plan)
        intent = self._intent(plan, copies, state)
        _refuse_unchangeable(intent)
        self._prepare(intent)
        report = self._change(intent, ReclaimReport(ReclaimOutcome.DONE, damages=damages, plan=plan))
        self._intents.move(Stage.CHANGING, Stage.DONE)
        return report

    def undo(self) -> ReclaimReport:
        """Take the last reclaim back, as if it had never been. NothingToUndo; NiFiInUse; DiskFull: call it again."""
        refuse_in_use(self._home, is_assured=self._is_assured)
        found = self._intents.find()
        if found is None:
            raise NothingToUndo("nothing was reclaimed here, or it was taken back already")
        stage, intent = found
        if stage is Stage.COPYING:
            self._discard(intent)
            return ReclaimReport(ReclaimOutcome.UNDONE)
        return self._put_all_back(intent, stage, state_of(self._home.flowfiles))

    def _containers(self) -> dict[str, str]:
        return {name: os.path.abspath(path) for name, path in self._home.containers.items()}

    def _can_punch(self, path: str) -> bool:
        return os.path.isdir(path) and self._changes.can_punch(path)

    def _intent(self, plan: NiFiReclaimPlan, copies: str, state: RepositoryState) -> ReclaimIntent:
        owners = {}
        for step in plan.steps:
            if step.is_deleted:
                container, _, below = step.file.partition("/")
                found = os.lstat(os.path.join(self._home.containers[container], below))
                owners[step.file] = (found.st_uid, found.st_gid, found.st_mode & 0o7777)
        return ReclaimIntent(
            id=f"{plan.millis}-{secrets.token_hex(4)}",
            millis=plan.millis,
            replays=plan.replays,
            copies=os.path.abspath(copies) if copies else "",
            containers=self._containers(),
            state=list(state.files),
            steps=plan.steps,
            set_aside=[
                MovedEntry(directory, name)
                for directory in map(os.path.abspath, plan.set_aside)
                for name in sorted(os.listdir(directory))
                if not name.startswith(NAME)
            ],
            owners=owners,
        )

    def _prepare(self, intent: ReclaimIntent) -> None:
        """Write the intent down, and copy what it takes away; then, not before, something may be changed."""
        with _room(f"{self._home.flowfiles} has no room to write down what is to be done: make some, a MiB will do"):
            self._intents.write(intent, Stage.COPYING if intent.copies else Stage.CHANGING)
        if not intent.copies:
            return
        try:
            with _room(
                f"{intent.copies} has no room for the copies: {sum(each.freed for each in intent.steps):,} bytes"
            ):
                keep(intent, self._changes)
        except (OSError, DiskFull):
            self._discard(intent)
            raise
        self._intents.move(Stage.COPYING, Stage.CHANGING)

    def _discard(self, intent: ReclaimIntent) -> None:
        """Nothing was changed yet: only copies may have been made."""
        drop(intent, self._changes)
        self._intents.remove(Stage.COPYING)

    def _finish(self, intent: ReclaimIntent) -> ReclaimReport:
        """What an earlier call began: each step is held against what lives now, before it is done."""
        seen, damages = see_nifi(self._home, self._clock, intent.replays)
        if intent.containers != self._containers():
            raise NotSurveyable("what was begun can't be finished: it was begun with other directories")
        if seen.doubts:
            raise NotSurveyable(f"what was begun can't be finished: {seen.doubts[0]}")
        known = {file.file: file for file in seen.files}
        report = self._change(intent, ReclaimReport(ReclaimOutcome.FINISHED, damages=damages), known)
        self._intents.move(Stage.CHANGING, Stage.DONE)
        return report

    def _change(
        self, intent: ReclaimIntent, report: ReclaimReport, known: Mapping[str, SeenFile] | None = None
    ) -> ReclaimReport:
        """All steps. `known`: some may have been done already, and this is what lives."""
        report.copies = folder_of(intent) if intent.copies else ""
        report.set_aside = self._set_aside(intent)
        folders = set()
        for number, step in enumerate(intent.steps):
            if number % STEPS_UNSEEN == 0 and not intent.is_of(state_of(self._home.flowfiles)):
                raise NiFiInUse("NiFi was started meanwhile: what was not done yet stays as it is")
            path = intent.path_of(step)
            try:
                if known is not None and _lives(step, known.get(step.file)):
                    raise _Unlike("something in it is alive by now")
                report.freed += self._do(path, step, is_new=known is None)
            except (OSError, _Unlike) as error:
                report.passed_over.append(UntouchedFile(step.file, str(error)))
            else:
                report.files += 1
                folders.add(os.path.dirname(path))
        for folder in sorted(folders):
            self._changes.sync_folder(folder)
        return report

    def _do(self, path: str, step: FileStep, *, is_new: bool) -> int:
        """One step; the bytes that came back. _Unlike: this is not the file that was planned for."""
        if not is_new and step.is_deleted and not os.path.lexists(path):
            return 0
        descriptor = self._changes.open(path)
        try:
            found = os.fstat(descriptor)
            _refuse_unlike(step, found, is_new=is_new)
            if step.is_deleted:
                self._changes.unlink(path)
                return found.st_blocks * BLOCK_BYTES
            for begin, end in step.holes:
                self._changes.punch(descriptor, begin, end)
            if step.cut is not None:
                self._changes.truncate(descriptor, step.cut)
            self._changes.date(descriptor, step.modified_ns)
            self._changes.sync(descriptor)
            return (found.st_blocks - os.fstat(descriptor).st_blocks) * BLOCK_BYTES
        finally:
            os.close(descriptor)

    def _set_aside(self, intent: ReclaimIntent) -> list[str]:
        """Provenance events go out of NiFi's sight. Durable when this returns."""
        folders = sorted({entry.directory for entry in intent.set_aside})
        for directory in folders:
            self._changes.make_folder(os.path.join(directory, intent.aside))
            self._changes.sync_folder(directory)
        for entry in intent.set_aside:
            self._move(entry, entry.directory, os.path.join(entry.directory, intent.aside))
        self._sync_aside(intent, folders)
        return [os.path.join(directory, intent.aside) for directory in folders]

    def _bring_back(self, intent: ReclaimIntent) -> None:
        folders = sorted({entry.directory for entry in intent.set_aside})
        for entry in intent.set_aside:
            self._move(entry, os.path.join(entry.directory, intent.aside), entry.directory)
        self._sync_aside(intent, folders)
        for directory in folders:
            self._changes.remove_folder(os.path.join(directory, intent.aside))

    def _sync_aside(self, intent: ReclaimIntent, folders: list[str]) -> None:
        for directory in folders:
            for folder in (directory, os.path.join(directory, intent.aside)):
                if os.path.isdir(folder):
                    self._changes.sync_folder(folder)

    def _move(self, entry: MovedEntry, before: str, after: str) -> None:
        """One that an earlier call moved is there already."""
        if os.path.lexists(os.path.join(before, entry.name)):
            self._changes.rename(os.path.join(before, entry.name), os.path.join(after, entry.name))

    def _put_all_back(self, intent: ReclaimIntent, stage: Stage, state: RepositoryState) -> ReclaimReport:
        if not intent.is_of(state):
            if stage is Stage.UNDOING:  # NiFi has its own view of what is there by now
                self._intents.remove(stage)
            raise NothingToUndo("NiFi was started since: what it has done with its files can't be told from here")
        if not intent.copies:
            raise NothingToUndo("this was reclaimed for good: nobody has what was in the files")
        try:
            copies = KeptCopies(intent)
        except (OSError, msgspec.DecodeError) as error:
            raise NothingToUndo(f"the copies in {folder_of(intent)} can't be read: {error}") from error
        with closing(copies):
            if stage is not Stage.UNDOING:
                self._intents.move(stage, Stage.UNDOING)
            report = ReclaimReport(ReclaimOutcome.UNDONE, copies=folder_of(intent))
            for step in intent.steps:
                try:
                    with _room("there is no room for what comes back: make some, and undo again"):
                        report.freed += self._put_back(intent, step, copies, is_new=stage is not Stage.UNDOING)
                except (OSError, _Unlike) as error:
                    report.passed_over.append(UntouchedFile(step.file, str(error)))
                else:
                    report.files += 1
        if report.passed_over:  # events might name what is not back
            report.set_aside = sorted({os.path.join(each.directory, intent.aside) for each in intent.set_aside})
        else:
            self._bring_back(intent)
        self._intents.remove(Stage.UNDOING)
        return report

    def _put_back(self, intent: ReclaimIntent, step: FileStep, copies: KeptCopies, *, is_new: bool) -> int:
        """What one file lost; the bytes that it takes again."""
        if not copies.is_whole(step):
            raise _Unlike("its copy is damaged")
        path = intent.path_of(step)
        if step.is_deleted:
            if is_new and os.path.lexists(path):
                _refuse_unlike(step, os.lstat(path), is_new=True)
                return 0  # it was not deleted yet
            descriptor = self._changes.create(path, 0o600)
        else:
            descriptor = self._changes.open(path)
        try:
            found = os.fstat(descriptor)
            if not step.is_deleted:
                _refuse_unlike(step, found, is_new=False)
            self._changes.truncate(descriptor, step.size)
            for at, piece in copies.pieces(step):
                self._changes.write(descriptor, piece, at)
            if step.is_deleted:
                self._changes.own(descriptor, *intent.owners[step.file])
            self._changes.date(descriptor, step.modified_ns)
            self._changes.sync(descriptor)
            if step.is_deleted:
                self._changes.sync_folder(os.path.dirname(path))
            return (os.fstat(descriptor).st_blocks - found.st_blocks) * BLOCK_BYTES
        finally:
            os.close(descriptor)


class _Unlike(Exception):
    """This is not what was planned for, or what is wanted back is not there."""


def _refuse_unlike(step: FileStep, found: os.stat_result, *, is_new: bool) -> None:
    """_Unlike if a file is not the one that was seen. One that a step was begun with may have been cut already."""
    sizes = {step.size} if is_new or step.cut is None else {step.size, step.cut}
    is_same = found.st_ino == step.inode and found.st_size in sizes and found.st_nlink == 1
    if not is_same or (is_new and found.st_mtime_ns != step.modified_ns):
        raise _Unlike("it changed since it was looked at")


def _refuse_unchangeable(intent: ReclaimIntent) -> None:
    """PermissionError before the first change: events would be out of sight for nothing."""
    for path in map(intent.path_of, intent.steps):
        if not (os.access(path, os.W_OK) and os.access(os.path.dirname(path), os.W_OK)):
            raise PermissionError(errno.EACCES, "may not be changed: run this as NiFi's user or as root", path)
    for directory in {entry.directory for entry in intent.set_aside}:
        if not os.access(directory, os.W_OK):
            raise PermissionError(errno.EACCES, "may not be changed: run this as NiFi's user or as root", directory)


def _lives(step: FileStep, known: SeenFile | None) -> bool:
    """Whether a step would take something away that must stay."""
    if known is None:
        return False
    stays = merged([*known.live, *known.named])
    return bool(common(step.gone, stays)) or (step.is_deleted and known.is_held)


@contextmanager
def _room(why: str) -> Iterator[None]:
    """DiskFull with this reason where the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DiskFull(why) from error
        raise

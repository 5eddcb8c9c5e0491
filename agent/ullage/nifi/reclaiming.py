"""Gives the disk of a stopped NiFi its dead bytes back, and takes that back again.

Nothing is changed that was not written down before (`intent`), and copied before where that was asked for (`copies`).
Whatever interrupts it, the next call finishes it, or takes it back. No byte that lives is read or written: a hole is
punched in dead blocks, a file is cut behind its last byte that stays, a file of which nothing stays goes. A rewrite
goes further: survivors are copied to new files, the FlowFile repository names these, and then the old ones go.

Provenance events may name what is dead, and NiFi, which looks only whether there is such a file, would take the zeros
of a hole for content. So either what they name stays, or the events go out of NiFi's sight first, and come back last.
"""

import enum
import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final, NamedTuple

import msgspec

from ullage.clock import Clock
from ullage.errors import DiskFull
from ullage.nifi.building import build_rewrite
from ullage.nifi.changes import Changes, Durability
from ullage.nifi.copies import KeptCopies, drop, folder_of, keep
from ullage.nifi.filesteps import Unlike, allocated, put_back, refuse_alive, take_away
from ullage.nifi.home import NiFiHome
from ullage.nifi.intent import NAME, IntentFolder, MovedEntry, ReclaimIntent, Stage
from ullage.nifi.reclaimplan import FileStep, NiFiReclaimPlan, Replays, SeenFile, plan_reclaim
from ullage.nifi.rewriteplan import RewritePlan, plan_rewrite
from ullage.nifi.rooms import is_taken, rooms_of
from ullage.nifi.running import RepositoryState, refuse_in_use, state_of
from ullage.nifi.seeing import see_nifi
from ullage.nifi.switching import Switch
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

    `moved`: bytes of survivors that were brought together, in `new` files; `short`: why not all were. `copies`: folders
    with what files lost; `set_aside`: folders with provenance events that NiFi does not see. `plan` if there was one.
    """

    outcome: ReclaimOutcome
    files: int = 0
    freed: int = 0
    moved: int = 0
    new: int = 0
    short: str = ""
    copies: list[str] = []
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
        self._changes.keep_inside([home.flowfiles, *home.containers.values(), *(home.provenance or ())])
        self._is_assured = is_assured
        self._intents = IntentFolder(home.flowfiles, self._changes)
        self._done: set[str] = set()

    def reclaim(self, replays: Replays, copies: str, *, is_rewriting: bool = False) -> ReclaimReport:
        """Give back what is dead; `copies`: a folder elsewhere that gets it first; empty: nobody keeps it.

        `is_rewriting`: and then bring together what is left of files. What an earlier call left half done is finished
        first, however that was asked for. NiFiInUse; NotSurveyable; DiskFull: there is no room for the intent, or for
        the copies, and what was done before stays done.
        """
        refuse_in_use(self._home, is_assured=self._is_assured)
        state = state_of(self._home.flowfiles)
        report = ReclaimReport(ReclaimOutcome.NOTHING)
        ask = _Asked(replays, copies, self._series(copies, state) if is_rewriting else secrets.token_hex(4))
        match self._intents.find():
            case (Stage.UNDOING, _):
                return self._undo(state)
            case (Stage.CHANGING, intent) if intent.is_of(state):
                self._finish(intent, report)
                if not is_rewriting:
                    return report
                ask = ask._replace(series=intent.series)
            case (Stage.CHANGING, _):  # NiFi was started since: it has its own view of what is there by now
                self._intents.remove(Stage.CHANGING)
            case (Stage.COPYING, intent):
                self._discard(intent)
        self._punch(ask, report)
        if is_rewriting:
            self._rewrite(ask, report)
        return report

    def undo(self) -> ReclaimReport:
        """Take the last reclaim back, as if it had never been. NothingToUndo; NiFiInUse; DiskFull: call it again."""
        refuse_in_use(self._home, is_assured=self._is_assured)
        found = self._intents.find()
        if found is None:
            raise NothingToUndo("nothing was reclaimed here, or it was taken back already")
        return self._undo(state_of(self._home.flowfiles))

    def _undo(self, state: RepositoryState) -> ReclaimReport:
        """All that belongs together, the last one first."""
        report = ReclaimReport(ReclaimOutcome.UNDONE)
        series = None
        while (found := self._intents.find()) is not None and series in (None, found[1].series):
            stage, intent = found
            series = intent.series
            if stage is Stage.COPYING:
                self._discard(intent)
                continue
            self._put_all_back(intent, stage, state, report)
            if report.passed_over:
                break
            state = state_of(self._home.flowfiles)
        return report

    def _series(self, copies: str, state: RepositoryState) -> str:
        """A rewrite goes on with what was reclaimed since NiFi stopped, so that all of it is undone together."""
        done = self._intents.done()
        if done is not None and done.is_of(state) and bool(done.copies) is bool(copies):
            return done.series
        return secrets.token_hex(4)

    def _punch(self, ask: "_Asked", report: ReclaimReport) -> None:
        seen, report.damages = see_nifi(self._home, self._clock, ask.replays)
        plan = plan_reclaim(seen, [name for name, path in self._home.containers.items() if not self._can_punch(path)])
        report.plan = plan
        if plan.steps:
            self._carry_out(self._intent(plan.millis, plan.steps, plan.set_aside, ask), report)

    def _rewrite(self, ask: "_Asked", report: ReclaimReport) -> None:
        """As much at once as there is room for, until nothing is left that is worth it."""
        while True:
            seen, report.damages = see_nifi(self._home, self._clock, ask.replays, is_rewriting=True)
            rooms, report.short = rooms_of(self._home, self._changes)
            plan = plan_rewrite(seen, (), self._home.appendable, rooms, is_taken(self._home))
            if not plan.steps:
                if not report.short and plan.left:
                    report.short = f"{plan.left:,} files have survivors for which there is no room beside them"
                return
            if report.short:
                return
            intent = self._intent(seen.millis, plan.steps, [], ask, plan)
            try:
                self._carry_out(intent, report, (plan, seen.transaction))
            except NotSurveyable as error:
                report.short = str(error)
                return
            report.moved += plan.copied
            if not plan.left:
                return

    def _containers(self) -> dict[str, str]:
        return {name: os.path.abspath(path) for name, path in self._home.containers.items()}

    def _can_punch(self, path: str) -> bool:
        return os.path.isdir(path) and self._changes.can_punch(path)

    def _intent(
        self,
        millis: int,
        steps: list[FileStep],
        set_aside: list[str],
        ask: "_Asked",
        rewrite: RewritePlan | None = None,
    ) -> ReclaimIntent:
        owners = {}
        for step in steps:
            if step.is_deleted:
                container, _, below = step.file.partition("/")
                found = os.lstat(os.path.join(self._home.containers[container], below))
                owners[step.file] = (found.st_uid, found.st_gid, found.st_mode & 0o7777)
        return ReclaimIntent(
            id=f"{millis}-{secrets.token_hex(4)}",
            millis=millis,
            replays=ask.replays,
            copies=os.path.abspath(ask.copies) if ask.copies else "",
            containers=self._containers(),
            state=list(state_of(self._home.flowfiles).files),
            steps=steps,
            set_aside=[
                MovedEntry(directory, name)
                for directory in map(os.path.abspath, set_aside)
                for name in sorted(os.listdir(directory))
                if not name.startswith(NAME)
            ],
            owners=owners,
            series=ask.series,
            new=rewrite.new if rewrite is not None else [],
        )

    def _carry_out(
        self, intent: ReclaimIntent, report: ReclaimReport, rewrite: tuple[RewritePlan, int] | None = None
    ) -> None:
        """Write it down, copy what it takes away, do it."""
        _refuse_unchangeable(intent)
        intent = self._prepare(intent, rewrite)
        self._change(intent, report, is_new=True)
        if report.outcome is ReclaimOutcome.NOTHING:
            report.outcome = ReclaimOutcome.DONE

    def _prepare(self, intent: ReclaimIntent, rewrite: tuple[RewritePlan, int] | None) -> ReclaimIntent:
        """Write the intent down, and copy what it takes away; then, not before, something may be changed."""
        is_changing_at_once = not intent.copies and rewrite is None
        with _room(f"{self._home.flowfiles} has no room to write down what is to be done: make some, a MiB will do"):
            self._intents.write(intent, Stage.CHANGING if is_changing_at_once else Stage.COPYING)
        if is_changing_at_once:
            return intent
        try:
            if rewrite is not None:
                with _room("the room for survivors went while they were brought together: make some, and say it again"):
                    built = build_rewrite(self._home, rewrite[0], intent, rewrite[1], self._changes)
                intent = msgspec.structs.replace(intent, built=built)
            if intent.copies:
                with _room(
                    f"{intent.copies} has no room for the copies: {sum(each.freed for each in intent.steps):,} bytes"
                ):
                    keep(intent, self._home.flowfiles, self._changes)
            if rewrite is not None:
                self._intents.write(intent, Stage.COPYING)
        except Exception:
            self._discard(intent)
            raise
        self._intents.move(Stage.COPYING, Stage.CHANGING)
        return intent

    def _discard(self, intent: ReclaimIntent) -> None:
        """Nothing of NiFi's was changed yet: only copies and new files may have been made."""
        self._refuse_elsewhere(intent)
        if intent.copies:
            drop(intent, self._changes)
        if intent.new:
            switch = Switch(self._home.flowfiles, intent, self._changes)
            switch.drop_contents()
            switch.discard()
        self._intents.remove(Stage.COPYING)

    def _finish(self, intent: ReclaimIntent, report: ReclaimReport) -> None:
        """What an earlier call began: each step is held against what lives now, before it is done."""
        self._refuse_elsewhere(intent)
        self._change(intent, report, is_new=False)
        report.outcome = ReclaimOutcome.FINISHED

    def _refuse_elsewhere(self, intent: ReclaimIntent) -> None:
        """An intent is a file among NiFi's: it is not believed which directories it may change."""
        ours = {os.path.abspath(path) for path in self._home.provenance or ()}
        if intent.containers != self._containers() or not ours.issuperset(each.directory for each in intent.set_aside):
            raise NotSurveyable("what was begun can't be finished or undone: it was begun with other directories")

    def _known(self, intent: ReclaimIntent, report: ReclaimReport) -> dict[str, SeenFile]:
        """What lives now."""
        seen, report.damages = see_nifi(self._home, self._clock, intent.replays)
        if seen.doubts:
            raise NotSurveyable(f"what was begun can't be finished: {seen.doubts[0]}")
        return {file.file: file for file in seen.files}

    def _change(self, intent: ReclaimIntent, report: ReclaimReport, *, is_new: bool) -> None:
        """All steps. Unless `is_new`, some may have been done already."""
        switch = Switch(self._home.flowfiles, intent, self._changes)
        with Durability(self._changes, self._home.containers) as durable:
            known = None if is_new or intent.built else self._known(intent, report)
            report.set_aside += self._set_aside(intent)
            if intent.built:
                switch.forward()
                known = self._known(intent, report)
                report.freed -= switch.taken()
                report.new += len(intent.new)
            done: list[FileStep] = []
            for number, step in enumerate(intent.steps):
                if number % STEPS_UNSEEN == 0 and not intent.is_of(state_of(self._home.flowfiles)):
                    raise NiFiInUse("NiFi was started meanwhile: what was not done yet stays as it is")
                try:
                    if known is not None:
                        refuse_alive(step, known)
                    report.freed += take_away(intent, step, self._changes, durable, is_new=is_new)
                except (OSError, Unlike) as error:
                    report.passed_over.append(UntouchedFile(step.file, str(error)))
                else:
                    done.append(step)
            durable.finish()
        report.freed -= self._settled(intent, done, report)
        self._intents.complete(intent)
        if intent.copies:
            report.copies.append(folder_of(intent))

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

    def _put_all_back(self, intent: ReclaimIntent, stage: Stage, state: RepositoryState, report: ReclaimReport) -> None:
        self._refuse_elsewhere(intent)
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
        with closing(copies), _room("there is no room for what comes back: make some, and undo again"):
            damaged = [name for name, _, _ in intent.replaced if not copies.has_whole(name)]
            if damaged:
                raise NothingToUndo(f"the copy of {damaged[0]} in {folder_of(intent)} is damaged")
            if stage is not Stage.UNDOING:
                self._intents.move(stage, Stage.UNDOING)
            report.copies.append(folder_of(intent))
            self._put_files_back(intent, copies, report, is_new=stage is not Stage.UNDOING)
        if report.passed_over:  # events might name what is not back
            report.set_aside += sorted({os.path.join(each.directory, intent.aside) for each in intent.set_aside})
        else:
            self._bring_back(intent)
        self._intents.remove(Stage.UNDOING)

    def _put_files_back(
        self, intent: ReclaimIntent, copies: KeptCopies, report: ReclaimReport, *, is_new: bool
    ) -> None:
        """Contents, then, if all are back, the FlowFile repository that names them."""
        with Durability(self._changes, self._home.containers) as durable:
            done: list[FileStep] = []
            for step in intent.steps:
                try:
                    with _room("there is no room for what comes back: make some, and undo again"):
                        report.freed -= put_back(intent, step, copies, self._changes, durable, is_new=is_new)
                except (OSError, Unlike) as error:
                    report.passed_over.append(UntouchedFile(step.file, str(error)))
                else:
                    done.append(step)
            durable.finish()
            report.freed += self._settled(intent, done, report)
            if intent.built and not report.passed_over:
                report.freed -= self._switch_back(intent, copies)
                durable.finish()

    def _settled(self, intent: ReclaimIntent, done: list[FileStep], report: ReclaimReport) -> int:
        """Count these files; the bytes that they take now."""
        self._done.update(step.file for step in done)
        report.files = len(self._done)
        return sum(allocated(intent.path_of(step)) for step in done)

    def _switch_back(self, intent: ReclaimIntent, copies: KeptCopies) -> int:
        """The bytes that come back from where survivors were brought together."""
        switch = Switch(self._home.flowfiles, intent, self._changes)
        switch.back(copies)
        deleted = [step for step in intent.steps if step.is_deleted]
        self._intents.renumber(intent.series, {step.file: os.stat(intent.path_of(step)).st_ino for step in deleted})
        return switch.drop_contents()


class _Asked(NamedTuple):
    """How a reclaim was asked for. `series`: what is undone together."""

    replays: Replays
    copies: str
    series: str


def _refuse_unchangeable(intent: ReclaimIntent) -> None:
    """PermissionError before the first change: events would be out of sight for nothing."""
    for path in map(intent.path_of, intent.steps):
        if not (os.access(path, os.W_OK) and os.access(os.path.dirname(path), os.W_OK)):
            raise PermissionError(errno.EACCES, "may not be changed: run this as NiFi's user or as root", path)
    for directory in {entry.directory for entry in intent.set_aside}:
        if not os.access(directory, os.W_OK):
            raise PermissionError(errno.EACCES, "may not be changed: run this as NiFi's user or as root", directory)


@contextmanager
def _room(why: str) -> Iterator[None]:
    """DiskFull with this reason where the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DiskFull(why) from error
        raise

"""What a reclaim is about to do to a NiFi's disk, written down beside NiFi's own files before it does anything.

The intent lies in the FlowFile repository's folder, where NiFi passes over it, and its name says how far it is. A name
needs no room on a full disk to be changed, and is the old one or the new one after a crash:

    copying -> changing -> done          of a reclaim; one for good that only punches begins with `changing`
               changing, done -> undoing -> (no intent)   of an undo

A rewrite is a reclaim of its own, behind the one that punches. Both belong to one series, and are taken back together:
the newest one that is done has the name, those before it have numbers behind theirs.
"""

import enum
import os
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from ullage.beneath import NO_NAMES
from ullage.nifi.changes import Changes
from ullage.nifi.moment import SWAP
from ullage.nifi.opened import open_regular
from ullage.nifi.reclaimplan import FileStep, Replays
from ullage.nifi.rewriteplan import NewFile
from ullage.nifi.running import RepositoryState
from ullage.nifi.trouble import NotSurveyable

NAME: Final = "ullage-reclaim"
PARTIAL: Final = f"{NAME}.partial"
VERSION: Final = 2

NO_NAME: Final = frozenset("/\0")
"""Characters that no name of a file has."""


class Stage(enum.StrEnum):
    """How far it is, the most urgent one first."""

    UNDOING = "undoing"
    CHANGING = "changing"
    COPYING = "copying"
    DONE = "done"


class MovedEntry(msgspec.Struct, frozen=True):
    """Something of a provenance directory that is moved into a folder in it."""

    directory: str
    name: str


class ReclaimIntent(msgspec.Struct, frozen=True):
    """All that is changed. `copies`: the folder that gets what files lose; empty: nobody keeps it.

    `state`: of the FlowFile repository, which a NiFi that was started has changed. `owners`: of the files that are
    deleted, by their names: user, group and permissions. Of a rewrite: `new`, the files that get survivors, and
    `built`, the files of the FlowFile repository that take the place of those of the same names, as `state` has them;
    empty as long as they are being made.
    """

    id: str
    millis: int
    replays: Replays
    copies: str
    containers: dict[str, str]
    state: list[tuple[str, int, int]]
    steps: list[FileStep]
    set_aside: list[MovedEntry]
    owners: dict[str, tuple[int, int, int]]
    series: str = ""
    new: list[NewFile] = []
    built: list[tuple[str, int, int]] = []
    version: int = VERSION

    @property
    def aside(self) -> str:
        """The name of the folder that provenance directories have for what is set aside."""
        return f"{NAME}-{self.id}"

    @property
    def replaced(self) -> list[tuple[str, int, int]]:
        """Of `state`, those that a rewrite takes the place of."""
        names = {name for name, _, _ in self.built}
        return [each for each in self.state if each[0] in names]

    def is_of(self, state: RepositoryState) -> bool:
        """Whether no NiFi was started since: each file is as it was, or as a rewrite puts it there."""
        known = {*map(tuple, self.state), *map(tuple, self.built)}
        names = {name for name, _, _ in state.files}
        return known.issuperset(state.files) and names.issuperset(name for name, _, _ in self.state)

    def path_of(self, step: FileStep) -> str:
        return self.path(step.file)

    def path(self, file: str) -> str:
        """Of a content file."""
        return os.path.join(self.root_of(file), file.partition("/")[2])

    def root_of(self, file: str) -> str:
        """The directory of its container."""
        return self.containers[file.partition("/")[0]]


class IntentFolder:
    """Where the intent of a NiFi's repositories lies."""

    def __init__(self, flowfiles: str, changes: Changes) -> None:
        self._folder = flowfiles
        self._changes = changes

    def find(self) -> tuple[Stage, ReclaimIntent] | None:
        """The one that matters: what was interrupted comes before what is done."""
        for stage in Stage:
            intent = self._read(self._path(stage))
            if intent is not None:
                return stage, intent
        return None

    def done(self) -> ReclaimIntent | None:
        """The newest one that is done."""
        return self._read(self._path(Stage.DONE))

    def complete(self, intent: ReclaimIntent) -> None:
        """What was being changed is done; those before it are forgotten unless they are of its series."""
        path = os.path.join(self._folder, f"{NAME}.{Stage.DONE}")
        earlier = self._read(path)
        if earlier is not None and earlier.series == intent.series:
            self._changes.rename(path, f"{path}.{len(self._earlier()) + 1:06}")
            self._changes.sync_folder(self._folder)
        self._step(lambda: self._changes.rename(self._path(Stage.CHANGING), path))
        for name in self._earlier():
            found = self._read(os.path.join(self._folder, name))
            if found is None or found.series != intent.series:
                self._changes.unlink(os.path.join(self._folder, name))

    def write(self, intent: ReclaimIntent, stage: Stage) -> None:
        """Durable when this returns, in place of one that is at this stage. Nothing is changed, and nothing is left
        behind, if there is no room for it.
        """
        self._put(intent, self._path(stage))

    def renumber(self, series: str, numbers: Mapping[str, int]) -> None:
        """Files that a series has deleted, and that are back as they were, are other ones under the same names: those
        of it that are done are to know them.
        """
        for name in (f"{NAME}.{Stage.DONE}", *self._earlier()):
            path = os.path.join(self._folder, name)
            intent = self._read(path)
            if intent is None or intent.series != series:
                continue
            steps = [msgspec.structs.replace(step, inode=numbers.get(step.file, step.inode)) for step in intent.steps]
            if steps != intent.steps:
                self._put(msgspec.structs.replace(intent, steps=steps), path)

    def move(self, before: Stage, after: Stage) -> None:
        self._step(lambda: self._changes.rename(self._path(before), self._path(after)))

    def remove(self, stage: Stage) -> None:
        self._step(lambda: self._changes.unlink(self._path(stage)))

    def _step(self, act: Callable[[], None]) -> None:
        act()
        self._changes.sync_folder(self._folder)

    def _put(self, intent: ReclaimIntent, path: str) -> None:
        partial = os.path.join(self._folder, PARTIAL)
        if os.path.lexists(partial):
            self._changes.unlink(partial)
        self._changes.write_new(partial, [msgspec.json.encode(intent)])
        self._changes.rename(partial, path)
        self._changes.sync_folder(self._folder)

    def _read(self, path: str) -> ReclaimIntent | None:
        try:
            with open(open_regular(path), "rb") as file:
                data = file.read()
        except FileNotFoundError:  # it is not that far, or further
            return None
        except OSError as error:
            raise NotSurveyable(f"{path} can't be read: {error.strerror}") from error
        try:
            intent = msgspec.json.decode(data, type=ReclaimIntent)
        except msgspec.DecodeError as error:
            raise NotSurveyable(f"{path} can't be read: {error}") from error
        if intent.version != VERSION:
            raise NotSurveyable(f"{path} is of version {intent.version}: read is version {VERSION}")
        if not _stays_inside(intent):
            raise NotSurveyable(f"{path} names files elsewhere: it was not written by a reclaim")
        return intent

    def _earlier(self) -> list[str]:
        """Names of those that are done, oldest first, without the newest one."""
        return sorted(name for name in os.listdir(self._folder) if name.startswith(f"{NAME}.{Stage.DONE}."))

    def _path(self, stage: Stage) -> str:
        path = os.path.join(self._folder, f"{NAME}.{stage}")
        if stage is Stage.DONE and not os.path.lexists(path):
            return os.path.join(self._folder, [f"{NAME}.{stage}", *self._earlier()][-1])
        return path


def _stays_inside(intent: ReclaimIntent) -> bool:
    """Whoever may write into NiFi's folder may not have root, who reclaims, write anywhere else."""
    files = {*(step.file for step in intent.steps), *intent.owners}
    files.update(name for new in intent.new for name in (new.file, new.like))
    parts = [file.split("/") for file in files]
    names = [intent.aside, *(entry.name for entry in intent.set_aside)]
    names += [name.removeprefix(f"{SWAP}/") for name, _, _ in intent.built]
    return all(len(each) == 3 and each[0] in intent.containers for each in parts) and all(
        name not in NO_NAMES and not NO_NAME & set(name) for each in (*parts, names) for name in each
    )

"""What a reclaim is about to do to a NiFi's disk, written down beside NiFi's own files before it does anything.

The intent lies in the FlowFile repository's folder, where NiFi passes over it, and its name says how far it is. A name
needs no room on a full disk to be changed, and is the old one or the new one after a crash:

    copying -> changing -> done          of a reclaim; one for good begins with `changing`
               changing, done -> undoing -> (no intent)   of an undo
"""

import enum
import os
from collections.abc import Callable
from typing import Final

import msgspec

from ullage.nifi.changes import Changes
from ullage.nifi.reclaimplan import FileStep, Replays
from ullage.nifi.running import RepositoryState
from ullage.nifi.trouble import NotSurveyable

NAME: Final = "ullage-reclaim"
PARTIAL: Final = f"{NAME}.partial"
VERSION: Final = 1


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
    deleted, by their names: user, group and permissions.
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
    version: int = VERSION

    @property
    def aside(self) -> str:
        """The name of the folder that provenance directories have for what is set aside."""
        return f"{NAME}-{self.id}"

    def is_of(self, state: RepositoryState) -> bool:
        """Whether no NiFi was started since."""
        return tuple(map(tuple, self.state)) == state.files

    def path_of(self, step: FileStep) -> str:
        container, _, below = step.file.partition("/")
        return os.path.join(self.containers[container], below)


class IntentFolder:
    """Where the intent of a NiFi's repositories lies."""

    def __init__(self, flowfiles: str, changes: Changes) -> None:
        self._folder = flowfiles
        self._changes = changes

    def find(self) -> tuple[Stage, ReclaimIntent] | None:
        """The one that matters: what was interrupted comes before what is done."""
        for stage in Stage:
            try:
                with open(self._path(stage), "rb") as file:
                    data = file.read()
            except FileNotFoundError:  # it is not that far, or further
                continue
            try:
                intent = msgspec.json.decode(data, type=ReclaimIntent)
            except msgspec.DecodeError as error:
                raise NotSurveyable(f"{self._path(stage)} can't be read: {error}") from error
            if intent.version != VERSION:
                raise NotSurveyable(f"{self._path(stage)} is of version {intent.version}: read is version {VERSION}")
            return stage, intent
        return None

    def write(self, intent: ReclaimIntent, stage: Stage) -> None:
        """Durable when this returns. Nothing is changed, and nothing is left behind, if there is no room for it."""
        partial = os.path.join(self._folder, PARTIAL)
        if os.path.lexists(partial):
            self._changes.unlink(partial)
        self._changes.write_new(partial, [msgspec.json.encode(intent)])
        self._changes.rename(partial, self._path(stage))
        self._changes.sync_folder(self._folder)

    def move(self, before: Stage, after: Stage) -> None:
        self._step(lambda: self._changes.rename(self._path(before), self._path(after)))

    def remove(self, stage: Stage) -> None:
        self._step(lambda: self._changes.unlink(self._path(stage)))

    def _step(self, act: Callable[[], None]) -> None:
        act()
        self._changes.sync_folder(self._folder)

    def _path(self, stage: Stage) -> str:
        return os.path.join(self._folder, f"{NAME}.{stage}")

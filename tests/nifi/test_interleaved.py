"""A reader beside a NiFi that writes checkpoints: in whatever order their steps come, the reader names a moment.

NiFi's steps are those of `SequentialAccessWriteAheadLog.checkpoint`, `HashMapSnapshot.writeSnapshot` and
`LengthDelimitedJournal`, done to real files one after the other. The reader is the real one: whenever it opens, lists
or measures a file, the explorer may let NiFi do some steps first. It tries each order that the reader can tell apart:
at such a call only those steps matter that change what the call returns, and of those with the same result the fewest,
since NiFi can do the others later.
"""

import builtins
import os
import random
import shutil
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.nifi.written import (
    Written,
    checkpoint_of,
    created,
    deleted,
    journal_header,
    overflowed,
    transaction_of,
)
from ullage.nifi.moment import NiFiMoment

QUEUE = "11111111-2222-3333-4444-555555555555"
PARTIAL, CHECKPOINT = "checkpoint.partial", "checkpoint"
TOP = "."
"""The folder of the repository itself."""

FULL = "ULLAGE_NIFI_FULL" in os.environ
ORDERS_MAX = 900
"""Of two checkpoints there are more; of the others these are all."""

State = dict[int, int]
"""FlowFiles by number, which is their size as well, with when they were queued."""


class Step(NamedTuple):
    """Something that NiFi does at once, and what there is once it is done.

    `names`: of files, with which file it is; `sizes`: of those files; `happened`: the last transaction.
    """

    act: Callable[[Path], object]
    names: dict[str, str]
    sizes: dict[str, int]
    happened: int

    def result(self, call: str, of: str) -> object:
        """What a reader that makes a call gets."""
        match call:
            case "open":
                return self.names.get(of)
            case "list":
                return frozenset(name for name in self.names if (os.path.dirname(name) or TOP) == of)
            case "measure":
                return self.sizes.get(of)
            case _:
                return self.happened


class Script:
    """What NiFi does, from an empty repository on."""

    def __init__(self) -> None:
        self.steps = [Step(lambda _: None, {}, {}, -1)]
        self.states: dict[int, State] = {-1: {}}
        self.next = 0
        self.happened = -1
        self.journal = ""
        self.finished: list[str] = []
        self.is_checkpointed = False
        self.begun = 0
        """What is done before the reader comes."""

    def do(self, act: Callable[[Path], object], names: dict[str, str], sizes: dict[str, int] | None = None) -> None:
        last = self.steps[-1]
        self.steps.append(Step(act, names, last.sizes | (sizes or {}), self.happened))

    def make(self, name: str, data: bytes = b"") -> None:
        file = f"{name} of step {len(self.steps)}"
        self.do(lambda place: (place / name).write_bytes(data), self.steps[-1].names | {name: file}, {file: len(data)})

    def append(self, name: str, data: bytes) -> None:
        def act(place: Path) -> None:
            with (place / name).open("ab") as file:
                file.write(data)

        last = self.steps[-1]
        file = last.names[name]
        self.do(act, last.names, {file: last.sizes[file] + len(data)})

    def remove(self, name: str) -> None:
        names = {other: file for other, file in self.steps[-1].names.items() if other != name}
        self.do(lambda place: (place / name).unlink(), names)

    def rename(self, name: str, new: str) -> None:
        names = {new if other == name else other: file for other, file in self.steps[-1].names.items()}
        self.do(lambda place: (place / name).rename(place / new), names)

    def transact(self, *, is_overflowing: bool = False, is_failing: bool = False) -> None:
        """One FlowFile is queued anew, one comes, and one goes. `is_failing`: the disk is full amid it."""
        number, state = self.next, dict(self.states[self.happened])
        self.next += 1
        records = created(Written(0, QUEUE, queued_millis=number), "UPDATE")
        records += created(Written(number + 1, QUEUE, size=number + 1))
        state |= {0: number, number + 1: 0}
        if number % 2:
            records += deleted(number)
            state.pop(number, None)
        if is_overflowing:
            folder = f"journals/overflow-{self.journal[9:].partition('.')[0]}"
            self.do(lambda place: (place / folder).mkdir(), self.steps[-1].names)
            self.make(f"{folder}/0a-0b", records)
            self.finished.append(f"{folder}/0a-0b")
            whole = transaction_of(number, overflowed(f"/elsewhere/{folder}/0a-0b"))
        else:
            whole = transaction_of(number, records)
        self.append(self.journal, whole[:9])
        if is_failing:
            self.states[number] = self.states[self.happened]  # the next checkpoint has this number all the same
        else:
            self.states[number], self.happened = state, number
            self.append(self.journal, whole[9:])

    def checkpoint(self, *, is_closing: bool = True, is_failing: bool = False) -> None:
        """`is_closing`: the journal gets its end mark. `is_failing`: the disk is full, and NiFi tries again later."""
        if self.journal and is_closing:
            self.append(self.journal, b"\x7f")
        if self.journal:
            self.finished.insert(0, self.journal)
        held = [Written(id, QUEUE, size=id, queued_millis=at) for id, at in self.states[self.happened].items()]
        whole = checkpoint_of(self.next - 1, held)
        self.journal = f"journals/{self.next}.journal"
        self.make(self.journal)
        self.append(self.journal, journal_header())
        self.transact()
        self.make(PARTIAL)
        self.append(PARTIAL, whole[: len(whole) - 30])
        if is_failing:
            return
        self.append(PARTIAL, whole[len(whole) - 30 :])
        if self.is_checkpointed:
            self.remove(CHECKPOINT)
        self.rename(PARTIAL, CHECKPOINT)
        self.is_checkpointed = True
        for name in self.finished:
            self.remove(name)
        self.finished.clear()


class Watched:
    """One reader beside one NiFi that follows an order: at the reader's call number i it has done order[i] steps."""

    def __init__(self, script: Script, place: Path, order: tuple[int, ...]) -> None:
        self._steps = script.steps
        self._begun = script.begun
        self._place = place
        self._order = order
        self._files: dict[int, str] = {}
        self._is_writing = False
        self.is_still = False
        self.taken: list[int] = []
        self.others: list[tuple[int, ...]] = []
        """Orders that begin as this one did, and then differ in a way that the reader can tell."""

    @property
    def now(self) -> Step:
        return self._steps[self._position]

    @property
    def _position(self) -> int:
        return self.taken[-1] if self.taken else self._begun

    def reach(self, call: str, of: str) -> None:
        """The reader is about to make a call."""
        before, number = self._position, len(self.taken)
        after = before
        if number < len(self._order):
            after = self._order[number]
        elif not self.is_still:
            known = {self._steps[before].result(call, of)}
            for later in range(before + 1, len(self._steps)):
                result = self._steps[later].result(call, of)
                if result not in known:
                    known.add(result)
                    self.others.append((*self.taken, later))
        self._is_writing = True
        for step in self._steps[before + 1 : after + 1]:
            step.act(self._place)
        self._is_writing = False
        self.taken.append(after)

    def run(self, read: Callable[[], None]) -> None:
        for step in self._steps[: self._begun + 1]:
            step.act(self._place)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "open", partial(self._opened, os.open))
            patch.setattr(builtins, "open", partial(self._opened_file, open))
            patch.setattr(os, "listdir", partial(self._listed, os.listdir))
            patch.setattr(os, "fstat", partial(self._measured, os.fstat))
            read()

    def _opened(self, really: Callable[..., int], path: Any, *rest: Any, dir_fd: int | None = None) -> int:
        if self._is_writing:
            return really(path, *rest, dir_fd=dir_fd)
        assert dir_fd is None, "a survey names its files by their whole paths"
        self.reach("open", self._name_of(path))
        descriptor = really(path, *rest)
        self._files[descriptor] = self.now.names[self._name_of(path)]
        return descriptor

    def _opened_file(self, really: Callable[..., Any], path: Any, *rest: Any, **settings: Any) -> Any:
        if not self._is_writing:
            self.reach("open", self._name_of(path))
        return really(path, *rest, **settings)

    def _listed(self, really: Callable[..., list[str]], path: Any) -> list[str]:
        if not self._is_writing:
            self.reach("list", self._name_of(path))
        return really(path)

    def _measured(self, really: Callable[..., os.stat_result], descriptor: int) -> os.stat_result:
        if not self._is_writing and descriptor in self._files:
            self.reach("measure", self._files[descriptor])
        return really(descriptor)

    def _name_of(self, path: Any) -> str:
        return os.path.relpath(path, self._place)


def explored(script: Script, place: Path, read: Callable[[Script, Watched, Path], None], seed: int) -> int:
    """Each order, once; how many there are. Outside the full target no more than ORDERS_MAX, chosen by chance."""
    chance = random.Random(seed)
    orders: list[tuple[int, ...]] = [()]
    count = 0
    while orders and (FULL or count < ORDERS_MAX):
        count += 1
        shutil.rmtree(place, ignore_errors=True)
        (place / "journals").mkdir(parents=True)
        watched = Watched(script, place, orders.pop(-1 if FULL else chance.randrange(len(orders))))
        try:
            watched.run(partial(read, script, watched, place))
        except AssertionError as error:
            error.add_note(f"with NiFi's steps done at each of the reader's calls: {watched.taken}")
            raise
        orders += watched.others
    return count


def check(script: Script, watched: Watched, moment: NiFiMoment, since: int) -> None:
    """It is a moment that there was, and there was it while it was read."""
    assert moment.damages == []
    assert since <= moment.transaction <= watched.now.happened
    found = {each.size: each.queued_millis for each in moment.flowfiles()}
    assert found == script.states[moment.transaction], moment.transaction


def read_it(script: Script, watched: Watched, place: Path) -> None:
    """What has happened before a reader begins is in what it reads."""
    watched.reach("begin", "")
    since = watched.now.happened
    with closing(NiFiMoment(str(place))) as moment:
        moment.read()
        check(script, watched, moment, since)


def read_and_follow(script: Script, watched: Watched, place: Path) -> None:
    """What is read before NiFi goes on is checked by `read_it`."""
    watched.reach("begin", "")
    with closing(NiFiMoment(str(place))) as moment:
        watched.is_still = True
        moment.read()
        watched.is_still = False
        since = moment.transaction
        moment.advance()
        check(script, watched, moment, since)


def first() -> Script:
    """The first start of all: no checkpoint before the partial one."""
    script = Script()
    script.checkpoint()
    return script


def checkpoints() -> Script:
    """Two, after which the first one's partial file has come and gone."""
    script = Script()
    script.checkpoint()
    script.begun = len(script.steps) - 1
    script.checkpoint()
    script.checkpoint()
    return script


def overflowing() -> Script:
    """A transaction that overflows, into a file that a checkpoint removes."""
    script = Script()
    script.checkpoint()
    script.begun = len(script.steps) - 1
    script.transact(is_overflowing=True)
    script.checkpoint()
    return script


def failures() -> Script:
    """A disk that is full amid a transaction and amid a checkpoint, and then no more."""
    script = Script()
    script.checkpoint()
    script.begun = len(script.steps) - 1
    script.transact(is_failing=True)
    script.checkpoint(is_closing=False, is_failing=True)
    script.checkpoint()
    return script


@pytest.mark.parametrize("write", [first, checkpoints, overflowing, failures])
@pytest.mark.parametrize("read", [read_it, read_and_follow])
def test_whatever_is_read_beside_nifi_is_a_moment_that_there_was(
    write: Callable[[], Script], read: Callable[[Script, Watched, Path], None], tmp_path: Path, seed: int
) -> None:
    """Nothing of two moments is put together, nothing is told as damage that is none, and nothing is left behind."""
    assert explored(write(), tmp_path / "flowfile_repository", read, seed) > 1

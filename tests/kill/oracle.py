"""The parent of the workers: kills them, and knows from what they said which states of the repository are possible.

A transaction that was acknowledged stands. One that was announced and not answered stands as a whole or not at all; if
another one built upon it was acknowledged, it stands. With these few unknown, every combination is compared with what
the repository holds, byte for byte, and one has to fit.
"""

import itertools
import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from tests.kill.protocol import DELETED, HANDLE, LANE, MORTAL, Change, Line, Task, sha_of, spec_for
from tests.support import abandon
from ullage.contract import ContentRepositorySpec
from ullage.engine.engine import Engine
from ullage.engine.model import HANDLE_QUEUE
from ullage.errors import HandleDeleted

ROOT = Path(__file__).parents[2]

START_SECONDS = 60.0
"""A worker that has not opened the repository by then never will."""

EARLY_SHARE = 0.25
"""Kills during the start, so that recovery itself is killed; the others come while threads work."""

EARLY_SECONDS = 0.08
WORK_SECONDS = (0.05, 1.0)


class State(NamedTuple):
    """Where a FlowFile or handle is, and what it holds."""

    place: str
    sha: str
    mark: str


class Seen(NamedTuple):
    """A state on disk; `op` is the put that made the handle."""

    state: State
    op: str


States = dict[str, State | None]
"""None: removed, never to be seen again."""


def unavailable(repository: Engine) -> str:
    """The containers, some of what can't be read, and why: no seed brings back the moment of a kill."""
    containers = [(container.name, container.condition) for container in repository.content.containers.values()]
    return f"{containers} {repository.unavailable.listed(10)}"


class Oracle:
    """Drives workers over one repository, kill by kill."""

    worker = "tests.kill.worker"
    """The program that works it."""

    def __init__(self, path: Path, seed: int, after_kill: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self.random = random.Random(seed)
        self.spec = spec_for(path)
        self.after_kill = after_kill
        self.states: States = {}
        self.acknowledged = 0
        self.in_flight = 0
        Engine.initialize(self.spec)

    def kill_once(self) -> None:
        """Let a worker work, kill it, look what is there, and compare."""
        seed = self.random.getrandbits(32)
        lines = self._run_worker(seed)
        self.after_kill()
        repository = Engine.open(self.spec_of(seed))
        try:
            repository.proof.run()
            assert not repository.availability, f"a kill alone made content unavailable: {unavailable(repository)}"
            problems = repository.check(deep=True).problems
            assert problems == (), problems
            self.look(repository)
            self._compare(lines, observe(repository))
        except BaseException:
            abandon(repository)
            raise
        if self.random.random() < 0.5:
            abandon(repository)
        else:
            repository.close()

    def spec_of(self, seed: int) -> ContentRepositorySpec:
        """The settings under which a worker was run, and what it left is opened."""
        return self.spec

    def told(self) -> str:
        """What else there is to tell of a run."""
        return ""

    def look(self, repository: Engine) -> None:
        """What else must hold of what a kill left."""

    def _run_worker(self, seed: int) -> list[Line]:
        task = msgspec.json.encode(Task(str(self.path), seed)).decode()
        command = [sys.executable, "-m", self.worker, task]
        process = subprocess.Popen(command, bufsize=0, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        is_early = self.random.random() < EARLY_SHARE
        awaited = b'"opening"' if is_early else b'"ready"'
        seconds = self.random.uniform(0, EARLY_SECONDS) if is_early else self.random.uniform(*WORK_SECONDS)
        said = bytearray()
        try:
            deadline = time.monotonic() + START_SECONDS
            is_awaiting = True
            while (left := deadline - time.monotonic()) > 0:
                if not select.select([process.stdout], [], [], left)[0]:
                    continue
                piece = os.read(process.stdout.fileno(), 1 << 16)
                if not piece:
                    break
                said += piece
                if is_awaiting and awaited in said:
                    is_awaiting = False
                    deadline = time.monotonic() + seconds
            process.kill()
        finally:
            process.kill()
            rest, errors = process.communicate()
        lines = [msgspec.json.decode(line, type=Line) for line in bytes(said + rest).split(b"\n")[:-1]]
        trouble = [line.text for line in lines if line.kind == "trouble"]
        assert not trouble, trouble[0]
        assert not errors, errors.decode()
        assert not is_awaiting, "the worker did not start"
        return lines

    def _compare(self, lines: list[Line], seen: dict[str, Seen]) -> None:
        """Find the outcome that the disk shows; AssertionError with the nearest one if there is none."""
        answered = {line.op: line.kind for line in lines if line.kind in ("done", "refused")}
        acked = {op for op, kind in answered.items() if kind == "done"}
        open_lines = [line for line in lines if line.kind == "intend" and line.op not in answered]
        self.acknowledged += len(acked)
        self.in_flight += len(open_lines)
        ops = [line.op for line in open_lines if line.changes]
        nearest: list[str] | None = None
        for chosen in itertools.product((False, True), repeat=len(ops)):
            assumed = {op for op, stands in zip(ops, chosen, strict=True) if stands}
            expected = self._outcome(lines, acked | assumed, set(answered))
            if expected is None:
                continue
            self._add_open_puts(expected, open_lines, seen)
            self._settle_open_drops(expected, open_lines, seen)
            contradictions = list(_contradictions(expected, seen))
            if not contradictions:
                self.states = {id: state if id in seen else None for id, state in expected.items()}
                return
            if nearest is None or len(contradictions) < len(nearest):
                nearest = contradictions
        raise AssertionError(f"{len(nearest or [])} contradictions with {len(ops)} in flight: {(nearest or [])[:5]}")

    def _outcome(self, lines: list[Line], stands: set[str], answered: set[str]) -> States | None:
        """The states if these operations stand; None if one of them needs one that does not."""
        states = dict(self.states)
        unsettled: set[str] = set()
        intents = {line.op: line for line in lines if line.kind == "intend"}
        for line in lines:
            if line.kind not in ("intend", "done"):
                continue
            if line.kind == "done" and (drops := intents[line.op].drops):
                states.update({id: None for id, state in states.items() if state is not None and state.place == drops})
            if line.kind == "intend" and line.op in answered and line.op not in stands:
                continue  # refused
            if line.op not in stands:
                unsettled.update(line.changes)
                continue
            if not unsettled.isdisjoint(line.changes):
                return None
            for id, change in line.changes.items():
                states[id] = _changed(states.get(id), change)
        return states

    def _add_open_puts(self, expected: States, open_lines: list[Line], seen: dict[str, Seen]) -> None:
        """A batch of handles whose put was not answered is there as a whole, or not at all."""
        for line in open_lines:
            made = {id: found.state for id, found in seen.items() if line.puts and found.op == line.op}
            shas = [state.sha for state in made.values()]
            is_mortal = any(state.place == MORTAL for state in made.values())
            if sorted(shas) == sorted(line.puts) or (is_mortal and {"", *line.puts}.issuperset(shas)):
                expected.update(made)

    def _settle_open_drops(self, expected: States, open_lines: list[Line], seen: dict[str, Seen]) -> None:
        """A drop that was not answered may have come to any of its FlowFiles."""
        lanes = {line.drops for line in open_lines if line.drops}
        for id, state in list(expected.items()):
            if state is not None and state.place in lanes and id not in seen:
                expected[id] = None


def observe(repository: Engine) -> dict[str, Seen]:
    """Everything that can be had of a repository, with the contents read; it is as before afterwards."""
    seen: dict[str, Seen] = {}
    for queue in repository.queues.all():
        with repository.session() as session:
            records = session.get_many(queue.name, 1_000_000)
            if queue.name.startswith(LANE):
                numbers = [int(record.attribute_map()["number"]) for record in records]
                assert numbers == sorted(numbers), f"queue {queue.name} is out of order"
            for record in records:
                sha = sha_of(session.read(record).read())
                attributes = record.attribute_map()
                assert attributes["sha256"] == sha, record.id
                seen[record.id] = Seen(State(queue.name, sha, attributes.get("mark", "")), "")
    for record in list(repository.ledger.everything()):
        if record.queue == HANDLE_QUEUE:
            try:
                with repository.handles.get(record.id) as content:
                    state = State(MORTAL if record.expires_millis else HANDLE, sha_of(content.read()), "")
            except HandleDeleted:
                state = State(MORTAL if record.expires_millis else DELETED, "", "")
            seen[record.id] = Seen(state, record.attribute_map().get("op", ""))
    return seen


def _changed(state: State | None, change: Change | None) -> State | None:
    if change is None:
        return None
    old = state or State("", "", "")
    return State(change.place or old.place, change.sha or old.sha, change.mark or old.mark)


def _contradictions(expected: States, seen: dict[str, Seen]) -> Iterator[str]:
    for id, state in expected.items():
        found = seen.get(id)
        if found is None:
            # A deleted handle may have been purged: its retention is short.
            if state is not None and state.place not in (DELETED, MORTAL):
                yield f"{id} is lost: it was {state}"
        elif state is None:
            yield f"{id} came back: it is {found.state}"
        elif state.place == found.state.place == MORTAL and not found.state.sha:
            continue
        elif state != found.state and not state.place == found.state.place == DELETED:
            yield f"{id} is {found.state}, not {state}"
    yield from (f"{id} is there and was never announced: {seen[id]}" for id in seen.keys() - expected.keys())

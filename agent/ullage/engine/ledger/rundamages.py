"""What of a key space's runs cannot be read, as far as somebody has tried, and a person's word about it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from hashlib import blake2b
from typing import NamedTuple

from ullage.engine.ledger.runfiles import RunFiles
from ullage.engine.ledger.runlistings import given_up, given_up_blocks
from ullage.engine.ledger.state import LedgerState
from ullage.engine.model import UUID_BYTES, RunFile, SetAside
from ullage.engine.runs.rows import BlockDamaged


class _Damage(NamedTuple):
    number: int
    block: int | None
    reason: str


class RunDamages:
    """Thread-safe."""

    def __init__(
        self,
        ledger: LedgerState,
        files: RunFiles,
        on_none: Callable[[], object] = lambda: None,
        apart: Callable[[int], AbstractContextManager[bool]] = lambda _number: nullcontext(enter_result=True),
    ) -> None:
        """`on_none` is called when the last of what cannot be read was given up. While `apart` lasts nothing becomes of
        a run; it says whether all snapshots that a start may find list the run.
        """
        self._apart = apart
        self._ledger = ledger
        self._files = files
        self._on_none = on_none
        self._damages: dict[bytes, _Damage] = {}

    def note(self, number: int, error: BlockDamaged) -> None:
        """A run, or a block of it, cannot be read."""
        damage = _Damage(number, error.block, str(error))
        self._damages[self._id(damage)] = damage

    def forget(self, number: int, block: int) -> None:
        """A disk that failed gives a block now."""
        self._damages.pop(self._id(_Damage(number, block, "")), None)

    def has(self, number: int) -> bool:
        """Whether something of a run cannot be read."""
        return any(damage.number == number for damage in list(self._damages.values()))

    def set_aside(self) -> list[SetAside]:
        """All of it, in the form of records set aside."""
        listed = self._listed()
        return [
            SetAside(id, self._place(damage), damage.reason, b"", 0)
            for id, damage in sorted(self._damages.items())
            if damage.number in listed and damage.block not in given_up_blocks(listed[damage.number])
        ]

    def has_aside(self, id: bytes) -> bool:
        """Whether `set_aside` lists something by this id."""
        return self._without(id) is not None

    @contextmanager
    def giving_up(self, id: bytes) -> Iterator[RunFile | None]:
        """The run as it is once a person has given up what `set_aside` lists by this id; None: there is nothing of the
        kind, or no start would know the run before the next checkpoint. Called while there is none under way.
        """
        damage = self._damages.get(id)
        if damage is None:
            yield None
            return
        with self._apart(damage.number) as is_listed:
            yield self._without(id) if is_listed else None

    def gave_up(self, id: bytes) -> None:
        """What `giving_up` gave is durable."""
        self._damages.pop(id, None)
        if not self.set_aside():
            self._on_none()

    def _without(self, id: bytes) -> RunFile | None:
        """The run without something that cannot be read; None: it counts no more, or that was given up."""
        damage, listed = self._damages.get(id), self._listed()
        run = None if damage is None else listed.get(damage.number)
        if damage is None or run is None or damage.block in given_up_blocks(run):
            return None
        return given_up(run, damage.block)

    def _listed(self) -> dict[int, RunFile]:
        return {run.number: run for run in self._ledger.runs_of(self._files.space)}

    def _id(self, damage: _Damage) -> bytes:
        return blake2b(self._place(damage).encode(), digest_size=UUID_BYTES, person=b"run").digest()

    def _place(self, damage: _Damage) -> str:
        name = f"run {self._files.path(damage.number)}"
        return name if damage.block is None else f"block {damage.block} of {name}"

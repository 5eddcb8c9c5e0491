"""Several runs of handles become one, a step at a time: what is read last counts, and who leaves meanwhile is noted."""

from collections.abc import Callable, Iterator
from heapq import merge as heap_merge
from itertools import compress
from typing import Final

from ullage.engine.ledger.claimruns import NewHandles, WrittenHandles
from ullage.engine.ledger.coldhandles import ColdRun, MergedHandles, PassOver
from ullage.engine.packs import ClaimRow
from ullage.engine.runs.rows import BlockDamaged, RunRow

_ROW_BYTES: Final = 20


class HandleMerge:
    """Runs of handles becoming one. Used by one thread at a time."""

    def __init__(self, new: NewHandles, runs: tuple[ColdRun, ...], left: list[bytes], pass_over: PassOver) -> None:
        """`new` becomes that one; `left` gets those that leave these runs from now on; `pass_over` is told what cannot
        be read.
        """
        self.runs = runs
        self._left = left
        self._new = new
        self._rows = heap_merge(*(_rows_there(run, pass_over) for run in runs))

    def step(self, bytes_max: int) -> bool:
        """Merge so many bytes; whether it was the last of them. BlockDamaged."""
        done = 0
        for row, claim in self._rows:
            self._new.add(row, claim)
            done += _ROW_BYTES + len(row.value)
            if done >= bytes_max:
                return False
        return True

    def finish(self, opened: Callable[[WrittenHandles], ColdRun]) -> MergedHandles | None:
        """Make it durable; None: nothing was left."""
        if not self._new.rows:
            return None
        finished = self._new.finish(through=max(run.listed.through for run in self.runs))
        try:
            return MergedHandles(self.runs, opened(finished), self._left, self._new.close, self._new.discard)
        except BlockDamaged:
            self._new.give_up()  # it does not read back
            raise

    def close(self) -> None:
        """What is not finished is as if it had not begun."""
        self._new.close()


def _rows_there(run: ColdRun, pass_over: PassOver) -> Iterator[tuple[RunRow, ClaimRow | None]]:
    """Those that are handles when they are read, and what they claim: whoever leaves later is told of. BlockDamaged."""
    for number in run.blocks():
        try:
            block, rows = run.read(number)
        except BlockDamaged as error:
            pass_over(run.listed.number, error)
            raise
        yield from compress(zip(block, rows.claims, strict=True), run.visible(number, run.gone))

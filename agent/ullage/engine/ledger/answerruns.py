"""Answers on disk: a checkpoint writes those in memory as a run, and repeated requests are looked up in all of them.

A block that cannot be read may hold the answer to any key that the run's head leaves open. A request with such a key is
refused, since it may have been carried out; every other one is served. Older runs are not asked for it: what they hold
may have been replaced. So it stays until the run's hour is over, or until a person gives the block up.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import groupby
from operator import itemgetter

from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.remembered import is_over
from ullage.engine.ledger.rundamages import RunDamages
from ullage.engine.ledger.runfiles import RunFiles
from ullage.engine.ledger.runlistings import given_up_blocks
from ullage.engine.model import Answer, Operation, RunFile
from ullage.engine.runs.rows import BlockDamaged, Key, RowBlock, RunRow, key_of
from ullage.engine.wal.format import UNDECODABLE
from ullage.engine.wal.records import BLOCK_RECORDS
from ullage.engine.wal.serde import SerDe
from ullage.errors import AnswerUnknown


class AnswerRuns:
    """Thread-safe."""

    def __init__(self, ledger: Ledger, files: RunFiles, serde: SerDe) -> None:
        self.files = files
        self._ledger = ledger
        self._serde = serde
        self.damages = RunDamages(ledger, files)

    def find(self, key: bytes, now_millis: int) -> Answer | None:
        """The answer to a key, while it is good. AnswerUnknown where what may hold it cannot be read."""
        with self._ledger.lock:
            found, runs = self._ledger.answers.find(key, now_millis), self._ledger.answers.runs()
        if found is not None:
            return found
        place = key_of(key)
        for run in reversed(runs):
            if not is_over(run.newest_millis, now_millis):
                found = self._find_in(run, key, place)
                if found is not None:
                    return None if is_over(found.millis, now_millis) else found
        return None

    def freeze(self) -> Iterator[list[Operation]]:
        """The runs of this moment, as a snapshot lists them; the one of what is in memory is written when the first
        block is asked for.
        """
        with self._ledger.lock:
            answers, runs = self._ledger.answers.freeze()
        return self._write(answers, runs)

    def all(self, pass_over: Callable[[BlockDamaged], None] | None = None) -> Iterator[Answer]:
        """Every answer that can be read, oldest first, in memory and on disk; later ones replace earlier ones.

        `pass_over` is told of each block that cannot be read, and of answers that do not decode, which without it are
        raised: what comes behind them is read all the same.
        """
        with self._ledger.lock:
            answers, runs = self._ledger.answers.all(), self._ledger.answers.runs()
        for run in runs:
            yield from self._all_of(run, pass_over)
        yield from answers

    def of_run(self, run: RunFile) -> Iterator[Answer]:
        """Those of one run. BlockDamaged where there may be others, which can't be read."""
        for damage in self.files.damages(run, deep=True):
            raise damage
        yield from self._all_of(run, None)

    def problems(self, *, deep: bool) -> Iterator[str]:
        """What `check` has to say; `deep`: reads every block."""
        for run in self._ledger.runs_of(self.files.space):
            for damage in self.files.damages(run, deep=deep):
                self.damages.note(run.number, damage)
                yield f"{damage}; requests are refused whose answers it may hold"
        yield from self.files.leftovers()

    def _write(self, answers: Sequence[Answer], runs: tuple[RunFile, ...]) -> Iterator[list[Operation]]:
        readable, others = self._parted(answers)
        if readable:
            with closing(self.files.begin()) as new:
                for row in self._rows(readable):
                    new.add(row)
                run = new.finish(max(answer.millis for answer in readable))
                with self._ledger.lock:  # durable, and listed by this snapshot or, where that fails, by the next
                    self._ledger.answers.settle(run, others)
            runs = (*runs, run)
        self.files.list(runs)
        listed: list[Operation] = [*runs, *others]
        for at in range(0, len(listed), BLOCK_RECORDS):
            yield listed[at : at + BLOCK_RECORDS]

    def _parted(self, answers: Sequence[Answer]) -> tuple[list[Answer], list[Answer]]:
        """Those that can be read again, and the others: each of them stays a record, set aside alone at a start."""
        readable: list[Answer] = []
        others: list[Answer] = []
        for at in range(0, len(answers), BLOCK_RECORDS):
            some = answers[at : at + BLOCK_RECORDS]
            if self._is_readable(some):
                readable += some
            else:
                for answer in some:
                    (readable if self._is_readable([answer]) else others).append(answer)
        return readable, others

    def _is_readable(self, answers: Sequence[Answer]) -> bool:
        with suppress(*UNDECODABLE):  # that they do not decode is the answer
            return bool(self._serde.decode_block(self._serde.encode_block(answers), self._serde.version))
        return False

    def _rows(self, answers: Sequence[Answer]) -> Iterator[RunRow]:
        """In the order of keys. Digests that begin alike share a row."""
        ordered = sorted((key_of(answer.key), answer.key, answer) for answer in answers)
        for key, alike in groupby(ordered, itemgetter(0)):
            yield RunRow(key, self._serde.encode_block([answer for _, _, answer in alike]))

    def _find_in(self, run: RunFile, key: bytes, place: Key) -> Answer | None:
        try:
            opened = self.files.run(run)
            block = opened.block_of(place)
            if block is None or block in given_up_blocks(run):
                return None
            value = opened.block(block).find(place)
            answers = () if value is None else self._answers(run, value, block)
            self.damages.forget(run.number, block)
            return next((answer for answer in answers if answer.key == key), None)
        except BlockDamaged as error:
            with self._ledger.lock:
                is_listed = any(other.number == run.number for other in self._ledger.answers.runs())
            if not is_listed:  # its hour was over meanwhile, and its file is gone
                return None
            self.damages.note(run.number, error)
            raise AnswerUnknown(
                f"whether a request with this idempotency key was carried out cannot be read ({error}): nothing was "
                "done. Use a new key once you know that it was not, or give the damage up (`ullage set-aside`)"
            ) from error

    def _all_of(self, run: RunFile, pass_over: Callable[[BlockDamaged], None] | None) -> Iterator[Answer]:
        for block in self.files.blocks(run):
            if not isinstance(block, BlockDamaged):
                yield from self._answers_of(run, block, pass_over)
            elif pass_over is not None:
                pass_over(block)

    def _answers_of(
        self, run: RunFile, block: RowBlock, pass_over: Callable[[BlockDamaged], None] | None
    ) -> Iterator[Answer]:
        for row in block:
            try:
                yield from self._answers(run, row.value, None)
            except BlockDamaged as error:
                if pass_over is None:
                    raise
                pass_over(error)

    def _answers(self, run: RunFile, value: bytes, block: int | None) -> list[Answer]:
        try:
            found = self._serde.decode_block(value, self.files.run(run).head.serde_version)
        except UNDECODABLE as error:
            raise BlockDamaged(f"an answer in {self.files.path(run.number)} does not decode: {error}", block) from error
        return [each for each in found if isinstance(each, Answer)]

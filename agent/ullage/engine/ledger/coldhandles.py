"""Handles that no longer change, and rest in runs on the disk: which runs there are, and which of their rows count.

    packed -> a checkpoint writes them as a run, and publishes the snapshot that lists it -> cold
       ^-- somebody is about to change one: it is read, and its row in the run is gone -------'

A handle is in one place, in memory or in one run: so no run is newer than another, and what is gone is a bit of its
row. The runs are those of the last published snapshot, and a start that reads the log again comes to the same bits.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import compress
from typing import Final, NamedTuple

import msgspec

from ullage.engine.ledger.aside import HANDLES_SPACE as HANDLES_SPACE
from ullage.engine.ledger.coldshares import ColdShares
from ullage.engine.ledger.runlistings import given_up_blocks
from ullage.engine.model import FlowFileRecord, RestingShares, RunFile, format_uuid, split_uuids
from ullage.engine.packs import PackRows, read_rows, record_of
from ullage.engine.runs.blockcache import BlockCache
from ullage.engine.runs.rows import BlockDamaged, Key, RowBlock, RowRun, key_of, packed_key
from ullage.engine.wal.format import UNDECODABLE
from ullage.errors import RepositoryDamaged

CACHE_BYTES: Final = 8 << 20
"""Blocks that are kept in memory: some 60,000 handles."""

Unread = tuple[int, int | None]
"""The number of a run, and of one of its blocks; None: all of it."""

PassOver = Callable[[int, BlockDamaged], object]
"""Is told by a run's number what of it cannot be read, and passed over."""


Mended = Callable[[int, int], object]
"""Is told by a run's number of a block that can be read after all."""


class BesideRun(NamedTuple):
    """The run of what the handles of a run claim; None: its head cannot be read."""

    listed: RunFile
    run: RowRun | None


class ColdRun:
    """A run of handles, open for reading. Thread-safe; `gone` is changed under the ledger's lock."""

    def __init__(
        self, listed: RunFile, run: RowRun | None, claims: BesideRun | None, cache: BlockCache[RowBlock]
    ) -> None:
        """`run` is None where its head cannot be read: then nobody knows what it holds. `claims` are none where the
        snapshot's record of them was set aside.
        """
        self.listed = listed
        self.run = run
        self.claims = claims
        self.gone = bytearray(listed.gone or bytes(-(-listed.rows // 8)))
        self.count = 0
        """How many of its rows are handles, those of blocks that cannot be read included."""

        self.left: list[bytes] | None = None
        """Handles that leave it while it is merged with others; None: it is not."""

        self._unread: dict[int | None, str] = {}
        self._doubted: dict[int, Mended] = {}
        self._cache = cache
        self._given_up = given_up_blocks(listed)
        self._recount()

    @property
    def is_first(self) -> bool:
        """Whether it was written from memory, and not merged of others."""
        return self.listed.number == self.listed.through

    def give_up(self, listed: RunFile) -> None:
        """A person does without some of it."""
        self.listed = msgspec.structs.replace(self.listed, rows=listed.rows, given_up=listed.given_up)
        self._given_up = given_up_blocks(listed)
        self._recount()

    def _recount(self) -> None:
        rows = self.listed.rows
        self.count = rows and rows - int.from_bytes(self.gone, "little").bit_count()
        for number in self._given_up if self.run is not None and rows else ():
            self.count -= sum(self.visible(number, self.gone))

    def is_gone(self, row: int) -> bool:
        """Whether a row is no handle any more."""
        return bool(self.gone[row >> 3] & 1 << (row & 7))

    def hide(self, row: int) -> None:
        """A row is no handle any more."""
        self.gone[row >> 3] |= 1 << (row & 7)
        self.count -= 1

    def hide_all(self) -> None:
        """None of its rows is."""
        rows = self.listed.rows
        self.gone[:] = ((1 << rows) - 1).to_bytes(len(self.gone), "little")
        self.count = 0

    def show(self, row: int) -> None:
        """A row is one from now on."""
        self.gone[row >> 3] &= ~(1 << (row & 7))
        self.count += 1

    def row_of(self, uuid: bytes) -> int | None:
        """The number of a handle's row, gone or not. BlockDamaged."""
        found = self._place(uuid)
        return None if found is None else found[0]

    def find(self, uuid: bytes) -> "FoundHandle | None":
        """A handle, if it is there. BlockDamaged where nobody can tell."""
        found = self._place(uuid)
        if found is None or self.is_gone(found[0]):
            return None
        row, block, number, place = found
        try:
            return FoundHandle(self, row, record_of(uuid, block.value(place)))
        except UNDECODABLE as error:
            raise self.undecodable(number, error) from error

    def blocks(self, row: int = 0) -> Iterator[int]:
        """The numbers of the blocks from the one with this row on, without those that were given up."""
        if self.run is None or not self.listed.rows:
            return iter(())
        first = self.run.block_with(row) if row < self.run.rows else len(self.run)
        return (number for number in range(first, len(self.run)) if number not in self._given_up)

    def block_behind(self, uuid: bytes) -> int:
        """The row from which on uuids behind this one are; some before it may stand there too."""
        if self.run is None:
            return 0
        return self.run.first_row(self.run.block_before(key_of(uuid)))

    def rows(self, number: int) -> PackRows:
        """What all rows of a block say, gone or not. BlockDamaged."""
        return self.read(number)[1]

    def read(self, number: int) -> tuple[RowBlock, PackRows]:
        """A block, and what all its rows say, gone or not. BlockDamaged."""
        assert self.run is not None, "a run that cannot be read has no blocks"
        block = self.block(number)
        try:
            return block, read_rows(list(split_uuids(block.packed_keys)), block.ends, block.values)
        except UNDECODABLE as error:
            raise self.undecodable(number, error) from error

    def visible(self, number: int, gone: bytes | bytearray) -> list[bool]:
        """Of the rows of a block, which are handles, where these are gone."""
        assert self.run is not None, "a run that cannot be read has no blocks"
        first, end = self.run.first_row(number), self.run.first_row(number + 1)
        if not any(gone[first >> 3 : (end >> 3) + 1]):  # as of most blocks
            return [True] * (end - first)
        return [not gone[row >> 3] & 1 << (row & 7) for row in range(first, end)]

    def block(self, number: int) -> RowBlock:
        """One block, past the cache. BlockDamaged."""
        assert self.run is not None, "a run that cannot be read has no blocks"
        if number in self._unread:
            raise BlockDamaged(self._unread[number], number)
        found = self.run.block(number)
        if number in self._doubted:  # a disk that failed gives it now
            self._doubted.pop(number)(self.listed.number, number)
        return found

    def doubt(self, number: int, mended: Mended) -> None:
        """A block could not be read just now; `mended` is to be told when it can."""
        if number not in self._unread:
            self._doubted[number] = mended

    def pass_by(self, error: BlockDamaged) -> None:
        """A block is not to be read any more."""
        self._unread[error.block] = str(error)

    @property
    def is_readable(self) -> bool:
        """Whether all its handles can be read, as far as somebody has tried, but for those that were given up."""
        if self.run is None:
            return not self.count
        return {*self._unread, *self._doubted} <= set(self._given_up)

    def is_given_up(self, row: int) -> bool:
        """Whether a person does without a row."""
        return self.run is not None and bool(self._given_up) and self.run.block_with(row) in self._given_up

    def is_there(self, row: int) -> bool:
        """Whether a row is a handle that nobody does without."""
        return bool(self.listed.rows) and not self.is_gone(row) and not self.is_given_up(row)

    def has_given_up(self, block: int | None) -> bool:
        """Whether a person does without one of its blocks, or without all of them."""
        return block in self._given_up or not self.listed.rows

    @property
    def unread(self) -> list[Unread]:
        """What of it this process does not read, and nobody has given up."""
        if self.run is None:
            return [(self.listed.number, None)] if self.count else []
        return [(self.listed.number, number) for number in self._unread if number not in self._given_up]

    def may_have(self, uuid: bytes) -> bool:
        """Whether a uuid lies between its first and its last one."""
        return bool(self.listed.rows) and self.listed.first <= uuid <= self.listed.last

    def _place(self, uuid: bytes) -> tuple[int, RowBlock, int, int] | None:
        if not self.may_have(uuid):
            return None
        if self.run is None:
            raise BlockDamaged(f"run {self.listed.number} of handles cannot be read")
        key: Key = key_of(uuid)
        number = self.run.block_of(key)
        if number is None or number in self._given_up:
            return None
        block = self._cache.get((self.listed.number, "", number), partial(self.block, number))
        place = block.place_of(key)
        return None if place is None else (self.run.first_row(number) + place, block, number, place)

    def undecodable(self, number: int, error: Exception) -> BlockDamaged:
        """What says so of a block."""
        where = f"run {self.listed.number}" if self.run is None else self.run.path
        return BlockDamaged(f"handles in block {number} of {where} do not decode: {error}", number)


class FoundHandle(NamedTuple):
    """A cold handle, and where it was found."""

    run: ColdRun
    row: int
    record: FlowFileRecord


class ColdPart(NamedTuple):
    """The handles of a run as they were at one moment. It can be read as long as somebody has it."""

    run: ColdRun
    gone: bytes

    @property
    def size(self) -> int:
        """How many rows there are, gone ones included."""
        return self.run.listed.rows

    def has(self, row: int) -> bool:
        """Whether a row is a handle."""
        return not self.gone[row >> 3] & 1 << (row & 7) and not self.run.is_given_up(row)

    def with_those_of(self, later: "ColdPart") -> "ColdPart":
        """These, and what the same run has at a later moment."""
        gone = int.from_bytes(self.gone, "little") & int.from_bytes(later.gone, "little")
        return self._replace(gone=gone.to_bytes(len(self.gone), "little"))

    def records(
        self, start: int = 0, stop: int | None = None, pass_over: PassOver | None = None
    ) -> Iterator[FlowFileRecord]:
        """The handles among the rows from one to before another. RepositoryDamaged, but where `pass_over` is told."""
        stop = self.size if stop is None else stop
        run = self.run.run
        if run is None and self.size:
            self._fail(BlockDamaged(f"run {self.run.listed.number} of handles cannot be read"), pass_over)
        for number in self.run.blocks(start):
            assert run is not None, "a run that cannot be read has no blocks"
            first = run.first_row(number)
            if first >= stop:
                return
            try:
                found = self._of_block(number, max(start, first) - first, stop - first)
            except BlockDamaged as error:
                self._fail(error, pass_over)
            else:
                yield from found

    def _of_block(self, number: int, start: int, stop: int) -> list[FlowFileRecord]:
        rows = [*self.run.block(number)][start:stop]
        there = self.run.visible(number, self.gone)[start:stop]
        try:
            return [record_of(packed_key(key), value) for key, value in compress(rows, there)]
        except UNDECODABLE as error:
            raise self.run.undecodable(number, error) from error

    def _fail(self, error: BlockDamaged, pass_over: PassOver | None) -> None:
        if pass_over is None:
            raise RepositoryDamaged(f"handles cannot be read: {error}") from error
        pass_over(self.run.listed.number, error)


class MergedHandles:
    """A run that holds what several hold, and takes their place with the next snapshot."""

    def __init__(
        self,
        runs: Sequence[ColdRun],
        new: ColdRun,
        left: list[bytes],
        close: Callable[[], object],
        discard: Callable[[], object],
    ) -> None:
        """`left` are those that left these runs since the merge began: their rows in the new one are gone. `close` lets
        go of its file, which `discard` removes as well: no snapshot may list it then.
        """
        self.runs, self.new, self.left, self.close, self.discard = tuple(runs), new, left, close, discard
        self.resolved = 0
        """How many of these are gone in the new one."""

    def resolve(self, count: int) -> None:
        """The rows of the first so many that left are gone. BlockDamaged. It reads the disk."""
        for uuid in self.left[self.resolved : count]:
            row = self.new.row_of(uuid)
            if row is not None and not self.new.is_gone(row):
                self.new.hide(row)
            self.resolved += 1


class ColdMoment(NamedTuple):
    """The cold handles of one moment. `empty` runs had none. `merged` was ready then, `left` had so many left it."""

    parts: list[ColdPart]
    empty: list[ColdRun]
    merged: MergedHandles | None
    left: int


class ColdHandles:
    """All of them. Changed under the ledger's lock; who looks one up needs none, and reads the disk."""

    def __init__(self, note_share: Callable[[int], object]) -> None:
        """`note_share` is told of each resource claim whose share is another one now."""
        self.runs: tuple[ColdRun, ...] = ()
        self.listed: dict[int, RunFile] = {}
        """While a snapshot is read: the runs that it lists."""

        self.listed_claims: dict[int, RunFile] = {}
        """And the runs of claims beside them, by number: each has that of its run of handles."""

        self.listed_shares: list[RestingShares] = []
        """And what it says that they keep alive."""

        self.shares = ColdShares(note_share)
        """What they keep alive, by resource claim."""

        self.queued_max = 0
        """None of them has a greater place in a queue, nor had one."""

        self.moves = 0
        """Raised before handles leave memory for a run."""

        self.is_loaded = False
        """Whether the runs that a start's snapshot lists are open."""

        self.is_replaying = False
        """Whether a start reads the log behind its snapshot: then a block that fails once is not looked at again."""

        self.held: set[bytes] = set()
        """Handles that stay in memory for now: somebody is about to change them."""

        self.merged: MergedHandles | None = None
        """What takes the place of others with the next snapshot."""

        self.cache: BlockCache[RowBlock] = BlockCache(CACHE_BYTES)
        self.is_whole = True
        """Whether every block could be read, and none was given up: else nobody can count what all keep alive."""

        self.note: PassOver = lambda _number, _error: None
        """Who is told what cannot be read."""

        self.mended: Mended = lambda _number, _block: None
        """And what can, after all."""

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(run.count for run in self.runs)

    def all(self) -> tuple[RunFile, ...]:
        """The runs that count, as they are listed."""
        return (*(run.listed for run in self.runs if run.listed.rows), *self.listed.values())

    def all_claims(self) -> tuple[RunFile, ...]:
        """The runs of claims beside those."""
        return (
            *(run.claims.listed for run in self.runs if run.listed.rows and run.claims is not None),
            *self.listed_claims.values(),
        )

    def find(self, uuid: bytes) -> FoundHandle | None:
        """A handle. RepositoryDamaged where a block may have it that cannot be read."""
        damage: BlockDamaged | None = None
        for run in self.runs:
            try:
                found = run.find(uuid)
            except BlockDamaged as error:
                self.pass_over(run.listed.number, error)
                damage = error  # it is in one place: another run may have it still
                continue
            if found is not None:
                return found
        if damage is not None:
            raise RepositoryDamaged(
                f"nobody can tell whether there is a handle {format_uuid(uuid)}: {damage}. Restore a backup, or give "
                "up what is damaged (`ullage set-aside`)"
            ) from damage
        return None

    @property
    def unread(self) -> list[Unread]:
        """What a start could not read, and nobody has given up: this process does not look at it again."""
        return [each for run in self.runs for each in run.unread]

    def was_given_up(self, unread: Unread) -> bool:
        """Whether a person does without it by now."""
        number, block = unread
        return all(run.listed.number != number or run.has_given_up(block) for run in self.runs)

    def unread_with(self, uuid: bytes) -> list[Unread]:
        """Those of these in which a handle may be."""
        found: list[Unread] = []
        for run in self.runs:
            try:
                run.find(uuid)
            except BlockDamaged as error:
                found.append((run.listed.number, error.block))
        return found

    def pass_over(self, number: int, error: BlockDamaged) -> None:
        """Something cannot be read."""
        self.is_whole = False
        self.note(number, error)
        for run in self.runs:
            if run.listed.number == number and error.block is not None:
                if self.is_replaying:  # else a record that lacked it would find it, and be taken for wrong
                    run.pass_by(error)
                run.doubt(error.block, self.mended)

    def has(self, found: FoundHandle) -> bool:
        """Whether a handle is where it was found. Who finds one holds no lock: meanwhile it may have left, or its block
        have been given up, and it is counted out.
        """
        return found.run in self.runs and found.run.is_there(found.row)

    def take(self, found: FoundHandle) -> bool:
        """A handle leaves its run, for memory; False: it is not there any more, or not there alone."""
        run, row, record = found
        if not self.has(found):
            return False
        run.hide(row)
        if record.claim is not None:
            self.shares.lower(record.claim)
        if run.left is not None:
            run.left.append(record.uuid)
        return True

    def note_queued(self, queued: Iterable[int]) -> None:
        """There are, or will be, handles with these places; called by a start, or by whoever writes a checkpoint."""
        self.queued_max = max(self.queued_max, max(queued, default=0))

    def list(self, listed: RunFile) -> None:
        """A snapshot lists a run; or, in the log, something of one was given up."""
        for run in self.runs:
            if run.listed.number == listed.number:
                run.give_up(listed)
                self.is_whole = False
                return
        if self.is_loaded:
            raise LookupError(f"run {listed.number} of handles is listed by no snapshot")
        self.listed[listed.number] = listed

    def list_shares(self, listed: RestingShares) -> None:
        """A snapshot says what they keep alive."""
        if self.is_loaded:
            raise LookupError("what handles in runs keep alive is said by a snapshot only")
        self.listed_shares.append(listed)

    def list_claims(self, listed: RunFile) -> None:
        """A snapshot lists a run of claims."""
        if self.is_loaded:
            raise LookupError(f"run {listed.number} of claims is listed by no snapshot")
        self.listed_claims[listed.number] = listed

    def freeze(self) -> ColdMoment:
        """Those of this moment."""
        merged = self.merged
        parts = [ColdPart(run, bytes(run.gone)) for run in self.runs]
        empty = [run for run in self.runs if not run.count]
        return ColdMoment(parts, empty, merged, len(merged.left) if merged is not None else 0)

    def replace(self, gone: Collection[ColdRun], new: Sequence[ColdRun]) -> None:
        """A published snapshot lists these instead of those."""
        self.moves += 1
        self.runs = (*(run for run in self.runs if run not in gone), *new)


def behind(part: ColdPart, uuid: bytes, pass_over: PassOver) -> Iterator[FlowFileRecord]:
    """Of a part the handles whose uuids come behind this one, in order; b"": all."""
    start = part.run.block_behind(uuid) if uuid else 0
    return (record for record in part.records(start, None, pass_over) if record.uuid > uuid)

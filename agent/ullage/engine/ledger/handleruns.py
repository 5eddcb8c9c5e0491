"""Handles on disk: a checkpoint writes those that rest as a run, and runs are merged as they become many.

    packs, as frozen | run 3 and its claims written, synced | snapshot that lists 1 2 3 | rename | packs let go
    runs 1 2 | merge: 3 written, synced | snapshot that lists 3 in their place          | rename | 1 2 unlinked
                                                                                          ^ commit point

Until the rename memory has all that the new run holds; from then on each handle moves, a pack at a time, unless it is
another one by then. Not all leave memory: those with an end, which is near or may be looked for, and those whose
content file is still written to, of which a backup asks how far they reach.
"""

import errno
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import compress
from typing import Final, NamedTuple

from ullage.engine.ledger.claimrows import RESOURCE_BITS
from ullage.engine.ledger.claimruns import BYTES_OF_CLAIM, ClaimRuns, NewHandles, WrittenHandles
from ullage.engine.ledger.coldhandles import ColdMoment, ColdRun, MergedHandles
from ullage.engine.ledger.coldshares import (
    SaidShares,
    Tally,
    count_in,
    listed_shares,
    packed_numbers,
    shares_of,
    wrong_said,
)
from ullage.engine.ledger.handlemerge import HandleMerge
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.rundamages import RunDamages
from ullage.engine.ledger.runfiles import RunFiles
from ullage.engine.ledger.runlistings import with_gone
from ullage.engine.ledger.view import LedgerView
from ullage.engine.model import HandlePack, Operation, RestingShares, RunFile
from ullage.engine.packs import PackRows, only, packed_rows, record_of, rows_of
from ullage.engine.runs.rows import BlockDamaged, RunRow, key_of
from ullage.engine.runs.tiers import mergeable
from ullage.engine.uninterrupted import uninterrupted
from ullage.engine.wal.state import UNUSABLE

ROWS_MIN: Final = 1 << 16
"""Packed handles from which on a checkpoint writes a run: 7 MB of memory, or of a snapshot. Runs stay few, and who has
few handles none.
"""

GONE_SHARE: Final = 2
"""A run of which this part is gone is written anew by itself, as is one beside which something cannot be read."""

STEP_BYTES: Final = 1 << 20
"""What one step of a merge takes from its runs, at most."""

_BYTES_OF_ROW: Final = 110 + BYTES_OF_CLAIM
"""About what a handle takes in a run and beside it."""


class _Moved(NamedTuple):
    """A pack, as it was frozen, of which these rows were written from a row of the run on; None: all."""

    pack: HandlePack
    first: int
    rows: tuple[bool, ...] | None


class _Coming(NamedTuple):
    """What counts once the snapshot is published. `tally` is what the rows of the run claim."""

    run: ColdRun | None
    moved: list[_Moved]
    tally: Tally
    merged: MergedHandles | None
    dropped: list[ColdRun]


class HandleRuns:
    """Thread-safe."""

    def __init__(self, ledger: Ledger, files: RunFiles, claims: ClaimRuns) -> None:
        self.files = files
        self.claims = claims
        self.rows_min = ROWS_MIN
        self.damages = RunDamages(ledger, files, ledger.release_unread, self._unmerged)
        self._ledger = ledger
        self._cold = ledger.cold
        ledger.cold.note, ledger.cold.mended = self.damages.note, self.damages.forget
        self._coming: _Coming | None = None
        self._kept_back = 0
        """Handles that the last run left where they were: as long as no others come there is none to write."""

        self._left_out: frozenset[int] = frozenset()
        """Runs that memory has, and that the snapshot which a start would find may not list any more."""

        self._wrong: list[str] = []
        """Where the totals of the start's snapshot were others than those of its handles, which count."""

        self._step_lock = threading.Lock()
        self._merge: HandleMerge | None = None
        self._tried: tuple[ColdRun, ...] = ()
        """What is being merged, or was when that failed."""

        self._is_closed = False
        self._wanted: frozenset[int] = frozenset()
        """Runs that are to be written anew, however few have left them."""

    def load(self) -> None:
        """At a start, behind the snapshot: read all runs that it lists, and count what they keep alive."""
        with self._ledger.lock:
            listed, self._cold.listed, self._cold.is_loaded = self._cold.listed, {}, True
            claims, self._cold.listed_claims = self._cold.listed_claims, {}
            shares, self._cold.listed_shares = self._cold.listed_shares, []
        before = self._ledger.loaded_counts()
        tally: Tally = {}
        for run in sorted(filter(_has_rows, listed.values()), key=_by_number):
            cold = self._opened(run, claims.get(run.number))
            with self._ledger.lock:
                self._cold.runs = (*self._cold.runs, cold)
            for number in cold.blocks():
                self._load_block(cold, number, tally if before is None else None)
        self._settle(tally if before is None else self._ledger.tally_since(before))
        self._compare(shares_of(shares, listed))
        self._cold.is_replaying = True

    def started(self) -> None:
        """The log behind the snapshot is read, too: it may have given up what could not be."""
        if not self.damages.set_aside():
            self._ledger.release_unread()

    def written(self, view: LedgerView) -> Iterator[Sequence[Operation]]:
        """All of a checkpoint's records: what rests leaves for a run as they are asked for."""
        self._coming = None
        yield from view.named()
        moment = view.cold
        merged = self._resolved(moment)
        replaced = merged.runs if merged is not None else ()
        # Those that were empty at that moment: of what has left a run since, this snapshot knows nothing but the row.
        #
        # | moment | X, the last of run 1, is warmed and deleted | snapshot without run 1, which goes | restart: no X |
        dropped = [run for run in moment.empty if run not in replaced]
        kept = [part for part in moment.parts if part.run not in replaced and part.run not in dropped]
        listed = [with_gone(part.run.listed, part.gone) for part in kept]
        runs = [part.run for part in kept]
        if merged is not None and merged.new.count:
            listed.append(with_gone(merged.new.listed, merged.new.gone))
            runs.append(merged.new)
        beside = [run.claims.listed for run in runs if run.claims is not None]
        tally: Tally = {}
        run, moved = self._write(view, listed, beside, tally)
        self._coming = _Coming(run, moved, tally, merged, dropped)
        self._left_out |= _numbers((*replaced, *dropped))  # a rename that fails may have come to pass
        if listed:
            yield [*listed, *beside]
            if view.has_shares:
                numbers = packed_numbers([run.number for run in listed])
                last = RestingShares(queued=self._cold.queued_max, runs=numbers)
                yield from listed_shares(self._cold.shares, tally, self._ledger.lock, last)
        yield from view.naming()

    @uninterrupted
    def published(self) -> None:
        """The snapshot of `written` is: from here on what it says counts."""
        coming, self._coming = self._coming, None
        if coming is None:
            return
        self._left_out = frozenset()
        if coming.merged is not None:
            self._adopt(coming.merged)
        new: list[ColdRun] = []
        if coming.run is not None:
            new = [coming.run]
            new[0].hide_all()
        with self._ledger.lock:
            self._cold.replace(coming.dropped, new)
            self._cold.shares.begin_settling()
        # | handles leave memory | nobody is seen to need their file: deleted | share raised | they cannot be read |
        #
        # So it is raised first. Too great a share, of those that stay or have died meanwhile, keeps bytes only.
        self._settle(coming.tally)
        for moved in coming.moved:
            self._let_go(new[0], moved)
        with self._ledger.lock:
            self._cold.shares.end_settling()
        self._wrong = []

    def problems(self, *, deep: bool) -> Iterator[str]:
        """What `check` has to say; `deep`: reads every block."""
        for run in self._ledger.runs_of(self.files.space):
            for damage in self.files.damages(run, deep=deep):
                self._cold.pass_over(run.number, damage)
                yield f"{damage}; whether there are the handles that it may hold nobody can tell"
        yield from (f"the snapshot of the last start is wrong: {each}" for each in self._wrong)
        yield from self.files.leftovers()

    def merge_step(self, bytes_max: int = STEP_BYTES) -> bool:
        """Go on merging runs for a while; whether something was done. The next checkpoint lists what a merge has made.

        A merge that fails is given up, and not begun again before there are other runs.
        """
        with self._step_lock:
            if self._is_closed or self._cold.merged is not None or (self._merge is None and not self._begin()):
                return False
            merge = self._merge
            assert merge is not None, "just begun"
            try:
                if merge.step(min(bytes_max, STEP_BYTES)):
                    merged = merge.finish(self._read)
                    if merged is None:  # all of them have left: the next checkpoint lists their runs no more
                        self._give_up()
                        return True
                    with self._ledger.lock:
                        self._cold.merged = merged
                    self._merge, self._tried = None, ()
            except BlockDamaged:
                self._give_up()  # it is told of, and mended or given up by a person
            except BaseException:
                self._give_up()
                raise
            return True

    def hollow(self) -> frozenset[int]:
        """The numbers of runs that handles have left, whose rows are there still."""
        with self._ledger.lock:
            return frozenset(run.listed.number for run in self._cold.runs if run.count < run.listed.rows)

    def rewrite(self, numbers: frozenset[int]) -> bool:
        """Begin to rid these runs of what has left them, and go on until the next checkpoint has something to list;
        whether that is so. Called again after each, it comes to an end.
        """
        self._wanted, self._tried = numbers, ()
        try:
            while self._cold.merged is None and self.merge_step():
                continue
            return self._cold.merged is not None
        finally:
            self._wanted = frozenset()

    def close(self) -> None:
        """Give up what is being merged, and close the files."""
        with self._step_lock:
            self._is_closed = True
            self._give_up()
        self.files.close()

    def _opened(self, listed: RunFile, claims: RunFile | None) -> ColdRun:
        beside = None if claims is None else self.claims.opened(claims)
        try:
            return ColdRun(listed, self.files.run(listed), beside, self._cold.cache)
        except BlockDamaged as error:
            cold = ColdRun(listed, None, beside, self._cold.cache)
            self._note_unread(cold, error)
            return cold

    def _read(self, written: WrittenHandles) -> ColdRun:
        """A run that was just written, open. BlockDamaged."""
        return ColdRun(written.run, self.files.run(written.run), self.claims.opened(written.claims), self._cold.cache)

    def _settle(self, tally: Tally) -> None:
        is_settled = False
        while not is_settled:
            with self._ledger.lock:
                is_settled = self._cold.shares.settle(tally)

    def _load_block(self, run: ColdRun, number: int, tally: Tally | None) -> None:
        try:
            rows = run.rows(number)
        except BlockDamaged as error:
            self._note_unread(run, error)
            return
        try:
            self._ledger.take_cold(run, number, rows, tally)
        except UNUSABLE as error:
            reason = f"handles in block {number} of run {run.listed.number} cannot be used: {error}"
            self._note_unread(run, BlockDamaged(reason, number))

    def _note_unread(self, run: ColdRun, error: BlockDamaged) -> None:
        """Nobody has counted what it keeps alive, so it is not read later either, should the disk give it then."""
        run.pass_by(error)
        self._cold.pass_over(run.listed.number, error)
        self._ledger.hold_unread()

    def _resolved(self, moment: ColdMoment) -> MergedHandles | None:
        """What is merged, as of a moment; None: it stays away."""
        merged = moment.merged
        if merged is not None:
            try:
                merged.resolve(moment.left)
            except BlockDamaged:
                self._abandon(merged)
                return None
        return merged

    def _forget(self, merged: MergedHandles) -> None:
        self._cold.merged = None
        for run in merged.runs:
            run.left = None

    def _abandon(self, merged: MergedHandles) -> None:
        with self._ledger.lock:
            self._forget(merged)
        merged.close()  # a snapshot may list it, whose rename failed: the next one's removes it

    @contextmanager
    def _unmerged(self, number: int) -> Iterator[bool]:
        """While this lasts a run is made into no other one, and what was to become of it is given up; whether every
        snapshot that a start may find lists it. Called while there is no checkpoint.
        """
        with self._step_lock:
            if number in self._left_out:
                yield False
                return
            # merged, ready: has a block's handles | the block is given up | next snapshot: they are back
            merge, merged = self._merge, self._cold.merged
            if merge is not None and number in _numbers(merge.runs):
                self._give_up()
            if merged is not None and number in _numbers(merged.runs):
                with self._ledger.lock:
                    self._forget(merged)
                merged.discard()
            yield True
            self._tried = ()  # what could not be merged for the sake of a block can be without it

    def _adopt(self, merged: MergedHandles) -> None:
        """Its runs make room for it. Who left them meanwhile has left it too."""
        while True:
            with self._ledger.lock:
                count = len(merged.left)
                if merged.resolved == count:
                    self._forget(merged)
                    self._cold.replace(merged.runs, [merged.new] if merged.new.count else [])
                    break
            try:
                merged.resolve(count)
            except BlockDamaged:  # memory goes on with those that it was made of: the next snapshot lists them again
                self._left_out = _numbers(merged.runs)
                self._abandon(merged)
                return
        merged.close()

    def _write(
        self, view: LedgerView, listed: list[RunFile], beside: list[RunFile], tally: Tally
    ) -> tuple[ColdRun | None, list[_Moved]]:
        """A run of what rests, which joins those that are listed, its claims those `beside`, and what they are `tally`.
        OSError, also where it does not read back: before the snapshot counts, so that all is still where it was.
        """
        self._list(listed, beside)
        moved: list[_Moved] = []
        count = self._ledger.records.packed_count
        self._kept_back = min(self._kept_back, count)
        if count - self._kept_back < self.rows_min or not self.files.has_room(count * _BYTES_OF_ROW):
            return None, moved
        self._kept_back = 0
        new: NewHandles | None = None
        try:
            for shard, pack in view.packs():
                rows = rows_of(pack)
                chosen = _resting(rows, view.unsealed)
                self._kept_back += chosen.count(False)
                if not any(chosen):
                    continue
                if new is None:
                    new = NewHandles(self.files, self.claims.files)
                moved.append(_Moved(pack, new.rows, None if all(chosen) else tuple(chosen)))
                count_in(tally, compress(rows.claims, chosen))
                self._cold.note_queued(compress(rows.queued, chosen))  # if it is not published they are no nearer
                claimed = zip(packed_rows(pack), rows.claims, strict=True)
                for (uuid, row), claim in sorted(compress(claimed, chosen)):
                    new.add(RunRow(key_of(uuid), row), claim)
                view.keep_only(shard, pack, only(pack, [not each for each in chosen]))
            if new is None:
                return None, moved
            written = new.finish()
            listed.append(written.run)
            beside.append(written.claims)
            self._list(listed, beside)
            return self._read(written), moved
        except BlockDamaged as error:
            if new is not None:
                new.give_up()
            raise OSError(errno.EIO, str(error)) from error
        finally:
            if new is not None:
                new.close()

    def _compare(self, said: SaidShares | None) -> None:
        """At a start: what the snapshot says of handles, with what was counted and found in runs."""
        if said is None:
            return  # then what was found has to do
        found, cold = self._cold.queued_max, self._cold
        # Also of handles that nobody could read, so that no FlowFile gets the place of one that comes back.
        cold.note_queued([said.queued_max])
        if not cold.is_whole:
            return
        self._wrong = wrong_said(said.shares, cold.shares)
        if said.queued_max < found:
            self._wrong.append(f"a handle in runs has place {found}, and {said.queued_max} is said to be the last")

    def _list(self, listed: list[RunFile], beside: list[RunFile]) -> None:
        self.files.list(listed)
        self.claims.files.list(beside)

    def _let_go(self, run: ColdRun, moved: _Moved) -> None:
        """The handles of a pack leave memory, if they are what was written."""
        pack = moved.pack
        chosen = moved.rows or (True,) * pack.size
        written = _ordered(pack, chosen)
        staying = set(range(len(written)))

        def show(places: Sequence[int]) -> None:
            staying.difference_update(places)
            for place in places:
                run.show(moved.first + place)

        with self._ledger.lock:
            self._ledger.records.let_go(pack, written, self._cold.held, show)
            for claim in [record_of(*written[place]).claim for place in staying]:
                if claim is not None:
                    self._cold.shares.lower(claim)

    def _begin(self) -> bool:
        with self._ledger.lock:
            # Handles leave memory for a new run one by one, and are shown there as they do. It would look hollow, and
            # who is shown behind the merge's reading would be in no run.
            if not self._cold.shares.is_settled:
                return False
            runs = [run for run in self._cold.runs if run.run is not None and run.listed.rows]
        runs = [run for run in runs if run.count and not self.damages.has(run.listed.number)]
        part = mergeable([run.listed.length for run in runs])
        hollow = [run for run in runs if self._is_hollow(run)]
        chosen = hollow[:1] if part is None else runs[part]
        if not chosen or tuple(chosen) == self._tried:
            return False
        if not self.files.has_room(sum(run.listed.length + BYTES_OF_CLAIM * run.listed.rows for run in chosen)):
            return False
        self._tried = tuple(chosen)
        new = NewHandles(self.files, self.claims.files)
        left: list[bytes] = []
        with self._ledger.lock:
            for run in chosen:
                run.left = left
        self._merge = HandleMerge(new, tuple(chosen), left, self._cold.pass_over)
        return True

    def _is_hollow(self, run: ColdRun) -> bool:
        """Whether it is worth writing a run anew by itself, or asked for."""
        is_asked = run.listed.number in self._wanted
        return GONE_SHARE * run.count <= run.listed.rows or is_asked or self.claims.is_wanting(run)

    def _give_up(self) -> None:
        merge, self._merge = self._merge, None
        with self._ledger.lock:
            for run in merge.runs if merge is not None else ():
                run.left = None
        if merge is not None:
            merge.close()


def _has_rows(listed: RunFile) -> bool:
    return listed.rows > 0  # else all of it was given up


def _numbers(runs: Iterable[ColdRun]) -> frozenset[int]:
    return frozenset(run.listed.number for run in runs)


def _by_number(listed: RunFile) -> int:
    return listed.number


def _resting(rows: PackRows, unsealed: Collection[int]) -> list[bool]:
    """Which of a pack's handles may leave memory."""
    ends = map(any, zip(rows.expires_millis, rows.deleted_millis, strict=True))
    return [
        not has_end and (claim is None or (claim[0] not in unsealed and claim[0] < 1 << RESOURCE_BITS))
        for has_end, claim in zip(ends, rows.claims, strict=True)
    ]


def _ordered(pack: HandlePack, chosen: Sequence[bool]) -> list[tuple[bytes, bytes]]:
    """Uuids and rows of these, by uuid."""
    return sorted(compress(packed_rows(pack), chosen))

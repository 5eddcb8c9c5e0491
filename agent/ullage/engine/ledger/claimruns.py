"""What cold handles claim, on disk: a run of claims beside each run of handles, and who claims something is read there.

    claims and run of one number written, synced | snapshot that lists both synced | rename | both unlinked with the run
                                                                                     ^ commit point

A run of claims is written, merged and left out with its run of handles, from which it follows: what cannot be read is
made anew when those handles are written anew by themselves, which `is_wanting` asks for. Until then nobody can tell
what its range says.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ullage.engine.ledger.claimrows import (
    LAST_KEY,
    ClaimedRow,
    ClaimRowsWriter,
    bounds_of,
    claims_of,
    segments_of,
    total_of,
)
from ullage.engine.ledger.coldhandles import BesideRun, ColdPart, ColdRun
from ullage.engine.ledger.coldshares import ColdShare, Tally, count_in
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.runfiles import RunFiles
from ullage.engine.model import ContentClaim, RunFile
from ullage.engine.packs import ClaimRow
from ullage.engine.runs.rows import BlockDamaged, RowBlock, RowRun, RunRow

BYTES_OF_CLAIM = 20
"""About what a handle takes in a run of claims."""

LOOKS = 3
"""At what runs say of a resource claim, as long as each finds other runs than it began with."""


class WrittenHandles(NamedTuple):
    """A run of handles and that of what they claim."""

    run: RunFile
    claims: RunFile


class NewHandles:
    """A run of handles that is being written, and beside it what they claim. Used by one thread."""

    def __init__(self, files: RunFiles, claim_files: RunFiles) -> None:
        self._run = files.begin(claim_files.last_number)
        try:
            self._claims = claim_files.begin_beside(self._run.number)
        except BaseException:
            self._run.close()
            raise
        self._claim_rows = ClaimRowsWriter(self._claims.add)

    @property
    def rows(self) -> int:
        """How many handles there are."""
        return self._run.rows

    def add(self, row: RunRow, claim: ClaimRow | None) -> None:
        """The next handle, in order."""
        self._run.add(row)
        self._claim_rows.take(claim)

    def finish(self, through: int | None = None) -> WrittenHandles:
        """Make both and their names durable: only then may a snapshot list them."""
        try:
            self._claim_rows.finish()
            claims = self._claims.finish()
            return WrittenHandles(self._run.finish(through=through), claims)
        except BaseException:
            self.give_up()  # one without the other is nothing
            raise

    def give_up(self) -> None:
        """Nobody is going to list what was finished."""
        self._run.give_up()
        self._claims.give_up()

    def discard(self) -> None:
        """Remove what was finished."""
        self.give_up()
        self.close()

    def close(self) -> None:
        """What is not finished, or given up, is removed, now or with other leftovers."""
        try:
            self._run.close()
        finally:
            self._claims.close()


class _ColdLook(NamedTuple):
    """Runs under the ledger's lock, before what they claim of a resource claim is read without it. `share` is what is
    counted of that; None: some handles are leaving memory, or nobody could count all of them.
    """

    moves: int
    runs: tuple[ColdRun, ...]
    share: ColdShare | None


class ClaimRuns:
    """Thread-safe."""

    def __init__(self, ledger: Ledger, files: RunFiles) -> None:
        self.files = files
        self._ledger = ledger
        self._damaged: set[int] = set()
        """Numbers of runs of claims of which something could not be read."""

        self._differing: set[int] = set()
        """Resource claims of which runs said something else than memory."""

    def opened(self, listed: RunFile) -> BesideRun:
        """A run of claims that counts, open where its head can be read."""
        try:
            return BesideRun(listed, self.files.run(listed))
        except BlockDamaged:
            return BesideRun(listed, None)

    def is_wanting(self, run: ColdRun) -> bool:
        """Whether nobody can tell all that the handles of a run claim, as far as somebody has looked."""
        beside = run.claims
        return beside is None or beside.run is None or beside.listed.number in self._damaged

    def living(self, part: ColdPart, resource: int) -> list[ContentClaim]:
        """What the handles of a run claim of a resource claim, in the order of segments and offsets, once for each
        handle. BlockDamaged where nobody can tell. It reads the disk, a block or a few for each segment.
        """
        return [
            ContentClaim(*each.claim)
            for segment in segments_of(part.run.listed.rows)
            for each in self._between(part.run, *bounds_of(resource, segment))
            if part.has(each.row)
        ]

    def difference(self, resource: int) -> str:
        """In which way handles in runs claim something else of a resource claim than memory knows; empty: in none that
        anybody can tell. It reads the disk, so it is not for the lock.
        """
        # lock: runs, share | claims in memory | claims in runs, whose handles are there | lock: the same runs
        #
        # In that order. A row that is a handle is one since these runs are there, so its claim was in memory when that
        # was read: whoever dies in between has come back from its run first, and one that leaves for a run comes with
        # another one. Shares are compared where they are the same before and after: one that came back has lowered it,
        # and only other runs raise it again.
        said = f"resource claim {resource}: handles leave memory before anybody can read what they claim of it"
        for _ in range(LOOKS):
            with self._ledger.lock:
                entry, before = self._ledger.entry(resource), self._looked(resource)
                is_held = self._ledger.set_aside.is_holding_unread  # nobody has counted what could not be read
            if entry is None or not before.runs or is_held:
                return ""
            held = {claim.offset: (claim.length, claim.crc) for claim in entry.residents().claims}
            tally: Tally = {}
            try:
                lost = self._lost(before.runs, resource, held, tally)
            except BlockDamaged:  # `is_wanting` asks for another one; as long as memory has all of it, it has to do
                return ""
            with self._ledger.lock:
                after = self._looked(resource)
            if after.moves == before.moves:
                share = before.share if before.share == after.share else None
                said = _difference(resource, lost, tally, share)
                break
        (self._differing.add if said else self._differing.discard)(resource)
        return said

    def problems(self, *, deep: bool) -> Iterator[str]:
        """What `check` has to say; `deep`: reads every block, and compares it with the handles."""
        for run in self._ledger.cold.runs:
            number, beside = run.listed.number, run.claims
            if beside is None:
                yield f"run {number} of handles has no run of claims beside it; both are written anew"
                continue
            damages = self.files.damages(beside.listed, deep=deep)
            if damages:
                self._damaged.add(beside.listed.number)
            for damage in damages:
                yield f"{damage}; what handles of run {number} claim is read from them when they are written anew"
            if deep and not damages and beside.run is not None and self._is_other(run, beside.run):
                self._damaged.add(beside.listed.number)
                yield f"{beside.run.path} does not say what the handles of run {number} claim; both are written anew"
        yield from filter(None, map(self.difference, sorted(self._differing)))
        yield from self.files.leftovers()

    def _looked(self, resource: int) -> _ColdLook:
        """Called under the ledger's lock."""
        cold = self._ledger.cold
        share = cold.shares.of(resource) if cold.is_whole and cold.shares.is_settled else None
        return _ColdLook(cold.moves, cold.runs, share)

    def _lost(
        self, runs: Iterable[ColdRun], resource: int, held: Mapping[int, tuple[int, int]], tally: Tally
    ) -> ClaimRow | None:
        """One of the claims of handles in these runs that is not among those held; all are counted. BlockDamaged."""
        lost: ClaimRow | None = None
        for run in runs:
            for segment in segments_of(run.listed.rows):
                found = self._between(run, *bounds_of(resource, segment))
                there = [claim for row, claim in found if not run.is_gone(row) and not run.is_given_up(row)]
                count_in(tally, there)
                lost = lost or next((claim for claim in there if held.get(claim[1]) != claim[2:]), None)
        return lost

    def _between(self, run: ColdRun, first: tuple[int, int], last: tuple[int, int]) -> Iterator[ClaimedRow]:
        beside = run.claims
        if beside is None or beside.run is None:
            raise BlockDamaged(f"what the handles of run {run.listed.number} claim cannot be read")
        opened = beside.run
        for number in range(opened.block_before(first), opened.block_before(last) + 1):
            try:
                block = opened.block(number)
                for row in block.between(first, last):
                    yield from _claims_there(run, row)
            except BlockDamaged:
                self._damaged.add(beside.listed.number)
                raise
            except ValueError as error:
                self._damaged.add(beside.listed.number)
                raise BlockDamaged(f"{opened.path}: block {number}: {error}", number) from error

    def _is_other(self, run: ColdRun, claims: RowRun) -> bool:
        """Whether a run of claims says something else than its handles do, all of which can be read."""
        if not run.is_readable or run.run is None or len([*run.blocks()]) < len(run.run):
            return False  # there is nothing to compare it with
        there = (row for number in range(len(claims)) for row in claims.block(number))
        try:
            for wanted in _wanted(run):
                if next(there, None) != wanted:
                    return True
            return next(there, None) is not None
        except BlockDamaged:
            return False  # of the handles, which is told of elsewhere, or of what could be read just now


def _claims_there(run: ColdRun, row: RunRow) -> list[ClaimedRow]:
    """What a row says. ValueError: it is none, or that of a run with more rows."""
    found = claims_of(row)
    if max(each.row for each in found) >= 8 * len(run.gone):
        raise ValueError(f"claims of a row that run {run.listed.number} of handles does not have")
    return found


def _difference(resource: int, lost: ClaimRow | None, tally: Tally, share: ColdShare | None) -> str:
    """What is wrong with claims that were found in runs; empty: nothing."""
    if lost is not None:
        said = f"a handle in a run claims {lost[2]} bytes at offset {lost[1]} of it, which nobody knows to be in use"
    else:
        found = ColdShare(*tally.get(resource, (0, 0, 0)))
        if share is None or (found.claimants, found.claimed_bytes) == (share.claimants, share.claimed_bytes):
            return ""
        said = (
            f"{found.claimants} handles in runs claim {found.claimed_bytes} bytes of it, and {share.claimants} are "
            f"counted, of {share.claimed_bytes} bytes"
        )
    return f"resource claim {resource}: {said}; nothing of its file is given back (`ullage check --deep` tells more)"


def _wanted(run: ColdRun) -> Iterator[RunRow]:
    """The rows that belong beside a run. BlockDamaged."""
    made: list[RunRow] = []
    writer = ClaimRowsWriter(made.append)
    for number in run.blocks():
        for claim in run.rows(number).claims:
            writer.take(claim)
        yield from made
        made.clear()
    writer.finish()
    yield from made


def all_claims(blocks: Iterable[RowBlock]) -> Iterator[ClaimedRow]:
    """All that a run of claims says. ValueError: it is not whole, or none."""
    count = 0
    for block in blocks:
        for row in block:
            if row.key == LAST_KEY:
                if total_of(row) != count:
                    raise ValueError(f"{count} claims, and {total_of(row)} were written")
                return
            for each in claims_of(row):
                count += 1
                yield each
    raise ValueError("no last row")

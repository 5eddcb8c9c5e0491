"""The bytes of a subject go, whatever thresholds, windows and the archive say.

A file in which nothing lives is deleted, also from the archive; of one in which somebody else's content lives too, that
is copied to another file, and it goes. Both by the executor and the rewriter of reclamation, which derive each step
anew under the ledger's lock, and finish after a crash what they promised.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ullage.engine.byteranges import allocated_bytes
from ullage.engine.engine import Engine
from ullage.engine.ledger.placement import locate
from ullage.engine.model import Action, ContentClaim, ResourceClaim
from ullage.engine.reclaim.execute import UNKNOWN, Executor, ReclamationParts
from ullage.engine.reclaim.liveness import Liveness, LivenessScanner
from ullage.engine.reclaim.pacing import RunTicket, TokenBucket
from ullage.engine.reclaim.plan import ReclamationPlan, ReclamationStep
from ullage.engine.reclaim.report import ReclamationReport
from ullage.engine.reclaim.rewrite import Rewriter
from ullage.errors import ContentMissing, ContentReclaimed, RepositoryDamaged

ROUNDS: Final = 4
"""What did not fit into one transaction is taken in the next round."""

Told = Callable[[int], None]


class _FileWithSubject(NamedTuple):
    """A file that has bytes of the subject which nobody needs."""

    claim: ResourceClaim
    liveness: Liveness | None
    dead_bytes: int


class LeftContent(NamedTuple):
    """What is still there: bytes that others need, and in words what could not be given back now."""

    shared_claims: int
    shared_bytes: int
    left: tuple[str, ...]


class ContentWiper:
    """Used by one thread, on a repository that nobody else uses."""

    def __init__(self, engine: Engine, claims: Sequence[ContentClaim], on_step: Told) -> None:
        """`claims` are the subject's base claims; `on_step` is told of how many bytes were given back."""
        self._ledger, self._content, self._clock = engine.ledger, engine.content, engine.clock
        scanner = LivenessScanner(engine.ledger, engine.swap_files.read, engine.spaces.claims.difference)
        parts = ReclamationParts(
            engine.ledger, engine.content, scanner, engine.committer, engine.clock, engine.forgotten
        )
        self._scanner = scanner
        self._executor = Executor(parts)
        self._output_bytes = int(engine.spec.compaction.output_size)
        self._rewriter = Rewriter(parts, self._executor, self._output_bytes)
        self._claims = claims
        self._on_step = on_step
        self._reasons: dict[int, str] = {}

    def wipe(self) -> LeftContent:
        """Give back all that nobody else needs; what is left."""
        left = self._look()
        for _ in range(ROUNDS):
            places, left = left, []
            if not places:
                break
            self._reasons.clear()
            self._delete([place.claim for place in places if place.liveness is None])
            for group in self._grouped([place for place in places if place.liveness is not None]):
                self._rewrite(group)
            left = self._look()
            if {place.claim.index for place in left} == {place.claim.index for place in places}:
                break  # nothing moved: nor will it in another round
        return self._told(left)

    def dead(self) -> tuple[str, ...]:
        """What of these contents is there and nobody needs, file by file, in words. Nothing is changed."""
        left = self._look()
        return (*self._unknown, *(f"{place.dead_bytes} bytes in {_name(place.claim)}" for place in left))

    def _look(self) -> list[_FileWithSubject]:
        """The files that still have bytes of the subject which nobody needs."""
        self._shared: list[ContentClaim] = []
        self._unknown: list[str] = []
        by_file: defaultdict[int, list[ContentClaim]] = defaultdict(list)
        for claim in self._claims:
            try:
                by_file[locate(self._ledger, claim).file.index].append(claim)
            except ContentReclaimed:
                continue  # gone, as it should be
            except ContentMissing as error:
                self._unknown.append(str(error))
        return [place for index, claims in sorted(by_file.items()) if (place := self._place(index, claims)) is not None]

    def _place(self, index: int, claims: Sequence[ContentClaim]) -> _FileWithSubject | None:
        with self._ledger.lock:
            file = self._ledger.claim(index)
        if file is None:
            return None
        try:
            liveness = self._scanner.examine(index)
        except RepositoryDamaged as error:
            self._unknown.append(f"{_name(file)} is left, as {UNKNOWN}: {error}")
            return None
        survivors = () if liveness is None else liveness.survivors
        living = {(survivor.claim.resource, survivor.claim.offset) for survivor in survivors}
        self._shared += [claim for claim in claims if (claim.resource, claim.offset) in living]
        dead = [claim.length for claim in claims if (claim.resource, claim.offset) not in living]
        return _FileWithSubject(file, liveness if survivors else None, sum(dead)) if dead else None

    def _delete(self, files: Sequence[ResourceClaim]) -> None:
        steps = tuple(_step(Action.DELETE, file, allocated_bytes(file.length, file.holes)) for file in files)
        self._note(self._executor.execute(ReclamationPlan(steps), RunTicket()))

    def _rewrite(self, group: Sequence[_FileWithSubject]) -> None:
        """Not as fast as the budget allows, but at once: nobody else has the repository open."""
        steps = [_step(Action.REWRITE, place.claim, place.dead_bytes) for place in group]
        rewrite = self._rewriter.begin(steps, RunTicket(), TokenBucket(0, self._clock))
        self._note(self._rewriter.finish(rewrite))

    def _grouped(self, places: Sequence[_FileWithSubject]) -> list[list[_FileWithSubject]]:
        """What one output takes: of one container, one tenant and one lifetime, and no more than outputs have."""
        groups: defaultdict[tuple[str, str, int], list[list[_FileWithSubject]]] = defaultdict(list)
        sizes: dict[tuple[str, str, int], int] = {}
        for place in places:
            key = place.claim.container, place.claim.tenant, place.claim.lifetime
            size = 0 if place.liveness is None else place.liveness.live_bytes
            if key not in sizes or sizes[key] + size > self._output_bytes:
                groups[key].append([])
                sizes[key] = 0
            groups[key][-1].append(place)
            sizes[key] += size
        return [group for found in groups.values() for group in found]

    def _note(self, report: ReclamationReport) -> None:
        self._reasons |= {each.resource: each.reason for each in report.left}
        self._on_step(report.freed_bytes)

    def _told(self, left: Sequence[_FileWithSubject]) -> LeftContent:
        reasons = list(self._unknown)
        for place in left:
            claim = place.claim
            held = "it was not read back since an unclean end" if claim.unproved else "a lease or a record keeps it"
            reason = self._reasons.get(claim.index, held)
            reasons.append(f"{place.dead_bytes} bytes in {_name(claim)}, which was left as it is: {reason}")
        return LeftContent(len(self._shared), sum(claim.length for claim in self._shared), tuple(reasons))


def _step(action: Action, file: ResourceClaim, frees_bytes: int) -> ReclamationStep:
    return ReclamationStep(action, file.index, file.container, file.generation, 0, frees_bytes)


def _name(file: ResourceClaim) -> str:
    return f"content file {file.name} of container {file.container}"

"""Which files are worth rewriting, and in what order.

A policy is pure: candidates in, the chosen ones out, best first. More of them load by name from the entry-point group
`ullage.policies`; each entry point is called without arguments and returns a `Policy`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ullage.contract import CompactionSettings
from ullage.engine.byteranges import FS_BLOCK_BYTES, allocated_bytes
from ullage.engine.plugins import Plugins
from ullage.engine.reclaim.survey import ResourceFigures


class Candidate(NamedTuple):
    """A file that may be rewritten, and what it would still take on disk after what copies nothing."""

    figures: ResourceFigures
    disk_bytes: int

    @property
    def live_bytes(self) -> int:
        return self.figures.live_bytes

    @property
    def frees_bytes(self) -> int:
        """Blocks given back, less those that the survivors will take."""
        return self.disk_bytes - allocated_bytes(self.live_bytes)

    @property
    def live_fraction(self) -> float:
        return self.live_bytes / self.disk_bytes if self.disk_bytes else 1.0


class Policy(Protocol):
    """Chooses. `has_guards`: minReclaim applies, because it knows what a run would give back."""

    has_guards: bool

    def choose(self, candidates: Sequence[Candidate], settings: CompactionSettings, millis: int) -> list[Candidate]:
        """The candidates to rewrite, best first."""
        ...


class StatsBased:
    """Best bytes freed per byte moved, weighted by age, and only below `maxLiveFraction`.

        score = freed * age / (2 * live)

    This is the cost-benefit rule of log-structured file systems (Rosenblum and Ousterhout, 1992), which divides the
    free space generated and how long it will stay free by the cost: there (1 - u) * age / (1 + u), because a cleaner
    reads the whole segment and writes its share u back. Here only live bytes are read, so the cost is 2u. `age` is
    the time since the youngest content in the file was written: what has lived long will live on, and what is young
    is dying anyway, so that copying it now would be for nothing. Survivors never share an output with fresh writes,
    without which weighing by age gains nothing.
    """

    has_guards = True

    def choose(self, candidates: Sequence[Candidate], settings: CompactionSettings, millis: int) -> list[Candidate]:
        """See the class."""
        worth = [
            candidate
            for candidate in candidates
            if candidate.live_fraction <= settings.max_live_fraction and candidate.frees_bytes > 0
        ]
        return sorted(worth, key=lambda candidate: -self._score(candidate, millis))

    def _score(self, candidate: Candidate, millis: int) -> float:
        age = max(1, millis - candidate.figures.created_millis)
        return candidate.frees_bytes * age / (2 * max(candidate.live_bytes, FS_BLOCK_BYTES))


GAIN_SHARE_MIN = 0.02
"""Of what is copied at least this much must come back: what alignment and part-filled blocks cost an output, about, so
that no run rewrites what the last one wrote.
"""


class CompactAll:
    """Everything from which at least a fiftieth comes back, most first: for a disk that is full, or before a backup.

    Ambry's policy of this name takes every segment; here a file that has nothing to give is not copied.
    """

    has_guards = False

    def choose(self, candidates: Sequence[Candidate], settings: CompactionSettings, millis: int) -> list[Candidate]:
        """See the class."""
        return sorted(
            (c for c in candidates if c.frees_bytes > GAIN_SHARE_MIN * c.live_bytes),
            key=lambda candidate: -candidate.frees_bytes,
        )


POLICIES: Plugins[Callable[[], Policy]] = Plugins(
    "ullage.policies",
    "compaction policy",
    {"StatsBased": f"{__name__}:StatsBased", "CompactAll": f"{__name__}:CompactAll"},
)
"""All policies that there are."""


def load_policy(name: str) -> Policy:
    """The policy of this name; UnknownPlugin, with the names there are, if there is none, or if it cannot be loaded."""
    return POLICIES.load(name)()

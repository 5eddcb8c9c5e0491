"""What the comparisons with Apache NiFi share: sizes, the place, and rows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bench.harness import Harness
from bench.rounds import Rounds
from bench.table import Row, Target
from bench.workbench import Workbench

KILOBYTE = 1_024
MEGABYTE = 1 << 20

SYNCED = "NiFi, synced"
UNSYNCED = "NiFi, unsynced (we sync)"
DISK = "the disk"


@dataclass(frozen=True, slots=True)
class PeerSizes:
    """How much work each comparison does."""

    rounds: int
    contents: tuple[tuple[int, int, int], ...]
    """Bytes of a content, contents of a session, sessions of a round."""
    warm_files: int
    calls: tuple[tuple[int, int], ...]
    """Records a call, calls of a round that the threads share."""
    threads: tuple[int, ...]
    reads: int
    many: int
    """FlowFiles that are recovered, swapped, and kept in memory."""
    many_rounds: int
    dropped: int
    """Resource claims that die at once."""
    drop_rounds: int
    """Making them takes longer than all else, and a round holds thousands of commits."""
    registrations: tuple[tuple[int, int], ...] = ((1, 2_000), (15, 30_000), (1_000, 200_000))
    """Provenance events a call, events of a round."""
    events: int = 300_000
    """Provenance events that NiFi is asked about."""
    many_events: int = 10_000_000
    """The same of ours, besides as many as NiFi has."""
    queries: int = 500
    tails: int = 10
    """Resource claims of nine contents of 1 KB and one of 10 MB."""
    mixed_bytes: int = 256 * MEGABYTE
    compacted_bytes: int = 2 << 30
    """Put into Ambry and the engine before a part of it dies."""


PEER_FULL = PeerSizes(
    5,
    (
        (KILOBYTE, 1, 100),
        (KILOBYTE, 100, 20),
        (10 * KILOBYTE, 1, 100),
        (10 * KILOBYTE, 100, 10),
        (100 * KILOBYTE, 1, 50),
        (100 * KILOBYTE, 100, 2),
        (10 * MEGABYTE, 1, 4),
        (10 * MEGABYTE, 100, 1),
        (1 << 30, 1, 1),
    ),
    1_024,
    ((1, 400), (100, 160), (1_000, 24), (10_000, 8)),
    (1, 2, 8),
    2_000,
    1_000_000,
    3,
    300_000,
    1,
)
PEER_QUICK = PeerSizes(
    *(3, ((KILOBYTE, 1, 100), (KILOBYTE, 100, 20)), 1_024, ((1, 400), (100, 160)), (1, 8), 500, 100_000, 3, 30_000, 3),
    registrations=((1, 200), (1_000, 20_000)),
    events=20_000,
    many_events=100_000,
    queries=100,
    tails=3,
    mixed_bytes=16 * MEGABYTE,
    compacted_bytes=256 * MEGABYTE,
)
PEER_TINY = PeerSizes(
    *(1, ((KILOBYTE, 1, 2), (KILOBYTE, 100, 1)), 4, ((1, 8), (100, 8)), (1, 2), 10, 2_000, 1, 200, 1),
    registrations=((1, 10), (1_000, 2_000)),
    events=2_000,
    many_events=4_000,
    queries=10,
    tails=2,
    mixed_bytes=4 * MEGABYTE,
    compacted_bytes=64 * MEGABYTE,
)


@dataclass(frozen=True, slots=True)
class Arena:
    """Where both sides work, and how much."""

    bench: Workbench
    sizes: PeerSizes
    nifi: Harness


def rows(
    case: str, what: str, operations: int, seconds: Mapping[str, list[float]], targets: Mapping[str, Target | None]
) -> Iterator[Row]:
    """One row for each side that is not the engine."""
    for name, others in seconds.items():
        if name != "engine":
            yield Rounds(operations, seconds["engine"], others).row(case, what, name, targets.get(name))

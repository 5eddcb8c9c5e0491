"""Settings drawn at random, and small, so that everything happens often. Each process draws its own."""

import random
from pathlib import Path

import msgspec

from tests.kill.protocol import DELETED_RETENTION_MILLIS
from tests.support import containers, spec_at
from ullage.contract import ContentRepositorySpec, Duration, PunchSettings, Quantity, TruncationMode

KIB = 1 << 10


def spec_drawn(path: Path | str, seed: int) -> ContentRepositorySpec:
    """What may differ from one process to the next of one repository."""
    draw = random.Random(f"settings {seed}")
    threshold = draw.choice((10, 40, 200))
    return spec_at(
        path,
        storage=containers(c1=None, c2=None),
        claims={
            "max_appendable_size": Quantity(draw.choice((8, 64, 512)) * KIB),
            "max_flow_files": draw.choice((1, 10, 100)),
            "large_claim": Quantity(draw.choice((50_000, 200_000, 1 << 20))),
        },
        archive={
            "enabled": draw.random() < 0.6,
            "max_retention_period": Duration(draw.choice((0, 200, 60_000))),
            "backpressure_percentage": 100,
        },
        flow_file={
            "partitions": draw.choice((1, 2, 3)),
            "swap_threshold": threshold,
            "swap_batch": draw.randrange(5, threshold + 1),
        },
        truncation={"mode": draw.choice((TruncationMode.EAGER, TruncationMode.PRESSURE))},
        provenance={"rollover_time": Duration(draw.choice((10, 1_000))), "rollover_events": draw.choice((50, 1_000))},
        compaction={
            "deleted_retention": Duration(DELETED_RETENTION_MILLIS),
            "min_used_percentage": 0,
            "min_reclaim": 0,
            "output_size": Quantity(256 * KIB),
            "punch": PunchSettings(min_run=Quantity(draw.choice((4, 64)) * KIB), enabled=draw.random() < 0.7),
        },
    )


def spec_changed(spec: ContentRepositorySpec, path: Path | str, seed: int) -> ContentRepositorySpec:
    """Others of those that a repository can change while it is open."""
    drawn = spec_drawn(path, seed)
    compaction = msgspec.structs.replace(
        drawn.compaction, output_size=spec.compaction.output_size, deleted_retention=spec.compaction.deleted_retention
    )
    return msgspec.structs.replace(
        spec, claims=drawn.claims, archive=drawn.archive, truncation=drawn.truncation, compaction=compaction
    )

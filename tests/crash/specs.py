"""The specs under which workloads run: small, so that few steps come through everything."""

from dataclasses import dataclass

import msgspec

from tests.crash.steps import KB
from ullage.contract import (
    ArchiveSettings,
    ClaimSettings,
    CompactionSettings,
    ContainerSettings,
    ContentRepositorySpec,
    Duration,
    FlowFileSettings,
    HostPath,
    Isolation,
    ProvenanceSettings,
    PunchSettings,
    Quantity,
    StorageSettings,
    TruncationMode,
    TruncationSettings,
)

SPEC = ContentRepositorySpec(
    storage=StorageSettings(host_path=HostPath(path="/r"), sections=2),
    claims=ClaimSettings(
        max_appendable_size=Quantity(4 * KB),
        max_flow_files=5,
        max_batch_file=Quantity(16 * KB),
        large_claim=Quantity(5 * KB),
    ),
    archive=ArchiveSettings(enabled=False),
    flow_file=FlowFileSettings(swap_threshold=4, swap_batch=2),
    truncation=TruncationSettings(mode=TruncationMode.EAGER),
    compaction=CompactionSettings(
        deleted_retention=Duration(60_000),
        output_size=Quantity(16 * KB),
        bytes_per_second=Quantity(1 << 40),  # a limit, so that one call comes after the other
        punch=PunchSettings(min_run=Quantity(4 * KB)),
    ),
)


@dataclass(frozen=True)
class Restart:
    """The repository is opened again, under another spec if there is one; killed first, or closed."""

    is_kill: bool = False
    spec: ContentRepositorySpec | None = None


def spec_with(**sections: object) -> ContentRepositorySpec:
    """SPEC with other sections."""
    return msgspec.structs.replace(SPEC, **sections)


KEEPING = spec_with(
    archive=ArchiveSettings(max_retention_period=Duration(60_000), max_usage_percentage=99, backpressure_percentage=100)
)
ROOMY = spec_with(archive=KEEPING.archive, flow_file=FlowFileSettings())

THREE_PARTITIONS = spec_with(flow_file=FlowFileSettings(partitions=3, swap_threshold=4, swap_batch=2))
TWO_CONTAINERS = spec_with(
    storage=msgspec.structs.replace(
        SPEC.storage,
        containers=(ContainerSettings(name="c1", sub_path="c1"), ContainerSettings(name="c2", sub_path="volumes/c2")),
    )
)

DRAINED = spec_with(
    storage=msgspec.structs.replace(SPEC.storage, provenance_directories=("p1", "p2")),
    flow_file=FlowFileSettings(partitions=2, swap_threshold=4, swap_batch=2),
    provenance=ProvenanceSettings(rollover_events=4, max_storage_time=Duration(60_000)),
)

ISOLATED = spec_with(isolation=Isolation.PER_TENANT)

LEFT = ContainerSettings(name="c2", sub_path="volumes/c2", evacuate=True)
LEAVING = spec_with(
    storage=msgspec.structs.replace(SPEC.storage, containers=(ContainerSettings(name="c1", sub_path="c1"), LEFT))
)

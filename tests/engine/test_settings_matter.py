"""Every field of the contract changes something that can be seen: a setting without effect would be a lie."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.engine.observing_provenance import (
    event_bytes,
    event_files,
    refused_for_events,
    shards,
    without_files,
)
from tests.operator.test_settings_matter import CASES as OPERATOR_CASES
from tests.service.test_settings_matter import CASES as SERVICE_CASES
from tests.support import Workshop, committing, content_sizes, put_all
from ullage.contract import (
    Calendar,
    CompactionTrigger,
    ContainerSettings,
    ContentRepositorySpec,
    DurabilityMode,
    Duration,
    EmergencySettings,
    MaintenanceOperation,
    OnFull,
    PunchSettings,
    Quantity,
    QueueDefaults,
    QueuePriority,
    TruncationMode,
    Window,
)
from ullage.engine.maintenance import MaintenanceRunner
from ullage.engine.provenance.query import Query
from ullage.errors import BackPressure, DiskFull, UllageError

KB = 1024
MB = 1 << 20
HOUR = 3_600_000
Observe = Callable[[Workshop], object]


class Case(NamedTuple):
    """Two settings, and what is to differ between repositories made with them."""

    one: dict[str, Any]
    other: dict[str, Any]
    observe: Observe


def _files(contents: list[int]) -> Observe:
    """How many content files commits of these sizes make."""

    def observe(workshop: Workshop) -> object:
        for size in contents:
            put_all(workshop.repository, "q", [b"x" * size])
        return len(content_sizes(workshop.path))

    return observe


def _batch_files(workshop: Workshop) -> object:
    put_all(workshop.repository, "q", [b"x" * 40 * KB] * 4)
    return len(content_sizes(workshop.path))


def _directories(workshop: Workshop) -> object:
    put_all(workshop.repository, "q", [b"x" * 60 * KB])
    put_all(workshop.repository, "q", [b"x" * 60 * KB])
    return sorted(str(path.relative_to(workshop.path)) for path in workshop.path.glob("*/*") if path.is_dir())


def _large_offset(workshop: Workshop) -> object:
    return put_all(workshop.repository, "q", [b"x" * KB, b"y" * 300 * KB])[1].claim.offset  # type: ignore[union-attr]


def _time_of_commits(workshop: Workshop) -> object:
    start = workshop.clock.millis
    for _ in range(3):
        put_all(workshop.repository, "q", [b"x"])
    return workshop.clock.millis - start


def _put_error(workshop: Workshop) -> object:
    try:
        for _ in range(4):
            put_all(workshop.repository, "q", [b"x" * 60 * KB])
    except (BackPressure, DiskFull) as error:
        return type(error)
    return None


def _after_drop(advance_seconds: float) -> Observe:
    """Where content lies after its FlowFile was dropped, cleaned, and cleaned again later."""

    def observe(workshop: Workshop) -> object:
        repository = workshop.repository
        put_all(repository, "q", [b"x" * 60 * KB])
        repository.queues.drop(repository.queue("q"))
        repository.reclamation.clean()
        workshop.clock.advance(advance_seconds)
        repository.reclamation.clean()
        return [path.split("/")[-2] for path in content_sizes(workshop.path)]

    return observe


def _lazy(**fields: Any) -> dict[str, Any]:
    return {"provenance": LAZY["provenance"] | fields}


def _due_after(seconds: float) -> Observe:
    """Which periodic tasks are due after so long."""

    def observe(workshop: Workshop) -> object:
        maintenance = MaintenanceRunner(workshop.repository)
        put_all(workshop.repository, "q", [b"x" * KB] * 100)
        workshop.clock.advance(seconds)
        return maintenance.run_due()

    return observe


def _compacts_after(seconds: float) -> Observe:
    """Whether compaction is due again after so long."""

    def observe(workshop: Workshop) -> object:
        maintenance = MaintenanceRunner(workshop.repository)
        maintenance.run_due()
        workshop.clock.advance(seconds)
        return maintenance.run_due(is_heavy=True)

    return observe


def _snapshot_id(workshop: Workshop) -> object:
    for _ in range(3):
        put_all(workshop.repository, "q", [b"x"] * 200)
    return workshop.repository.log.snapshot_id > 1


def _after_truncation(workshop: Workshop) -> object:
    repository = workshop.repository
    with committing(repository) as session:
        session.transfer(session.write(session.create(), b"s" * KB), "small")
        session.transfer(session.write(session.create(), b"l" * 300 * KB), "large")
    repository.queues.drop(repository.queue("large"))
    repository.reclamation.truncate()
    return list(content_sizes(workshop.path).values())


def _partitions(workshop: Workshop) -> object:
    return len(list((workshop.path / "flowfile").glob("partition-*")))


def _swapped(workshop: Workshop) -> object:
    repository = workshop.repository
    put_all(repository, "q", [b""] * 100)
    figures = repository.queue("q").figures()
    return figures.swapped, figures.swap_files


def _order(workshop: Workshop) -> object:
    repository = workshop.repository
    put_all(repository, "q", [b"1", b"333", b"22"])
    return [record.size for record in repository.queue("q").records()]


def _is_full(workshop: Workshop) -> object:
    put_all(workshop.repository, "q", [b"x" * KB] * 3)
    return workshop.repository.queue("q").is_full


def _expired(workshop: Workshop) -> object:
    put_all(workshop.repository, "q", [b"x"])
    workshop.clock.advance(60)
    return workshop.repository.queues.expire()


def _purged(workshop: Workshop) -> object:
    repository = workshop.repository
    repository.handles.delete(repository.handles.put(b"x"))
    workshop.clock.advance(3600)
    return repository.handles.purge()


def _spared(workshop: Workshop) -> object:
    """What is left of the disk after maintenance that obeys the windows, on a Tuesday evening, and what it told."""
    repository = workshop.repository
    repository.reclamation.permit(Calendar(repository.spec.maintenance).permission)
    told = []
    repository.listeners.hear_reports(lambda name, report: told.append((name, report.emergency > 0)))
    put_all(repository, "q", [b"x" * 60 * KB] * 16)
    repository.content.retire_idle()
    repository.queues.drop(repository.queue("q"))
    upkeep = MaintenanceRunner(repository)
    workshop.clock.advance(60)
    upkeep.run_due()
    assert upkeep.failures == []
    return len(content_sizes(workshop.path)), told


def _fragmented(workshop: Workshop) -> Any:
    """Two files of ten claims of 100 KB, of which every third lives; nothing runs in between."""
    repository = workshop.repository
    for _ in range(2):
        with committing(repository) as session:
            for number in range(10):
                session.ingest("drop" if number % 3 else "keep", [bytes([number]) * (100 * KB)])
    repository.queues.drop(repository.queue("drop"))
    return repository.compactor


def _compacted(trigger: CompactionTrigger) -> Observe:
    """What a run that this trigger began did."""

    def observe(workshop: Workshop) -> object:
        report = _fragmented(workshop).run(trigger)
        return report.done, report.copied_bytes > 0

    return observe


def _planned(workshop: Workshop) -> object:
    """What a run would do."""
    plan = _fragmented(workshop).plan(keeps_guards=True)
    return [(step.action, len(step.holes), step.group) for step in plan.steps]


def _lease_error(milliseconds: int, count: int) -> Observe:
    """What it says to so many leases of such a length."""

    def observe(workshop: Workshop) -> object:
        try:
            for _ in range(count):
                workshop.repository.leases.acquire("reader", milliseconds)
        except UllageError as error:
            return type(error)
        return None

    return observe


def _two(**fields: Any) -> tuple[ContainerSettings, ...]:
    return ContainerSettings(name="c1", sub_path="c1"), ContainerSettings(name="c2", sub_path="c2", **fields)


def _used_containers(workshop: Workshop) -> object:
    for _ in range(2):
        put_all(workshop.repository, "q", [b"x" * 60 * KB])
    return {path.split("/")[0] for path in content_sizes(workshop.path)}


def _quota(capacity: int) -> tuple[ContainerSettings, ...]:
    return (ContainerSettings(name="c1", sub_path="c1", capacity=Quantity(capacity)),)


def _defaults(**fields: Any) -> dict[str, Any]:
    return {"flow_file": {"queue_defaults": QueueDefaults(**fields)}}


ROOMY = {"storage": {"containers": _quota(10_000 * KB)}}
"""A quota far from full, whatever the disk the tests run on looks like."""

SMALL = {"storage": {"containers": _quota(100 * KB)}}
EAGER = {"mode": TruncationMode.EAGER}
PRESSED = {"archive": {"enabled": False}, "storage": {"containers": _quota(500 * KB)}}

NIGHTS = {
    "windows": (
        Window(name="night", schedule="0 23 * * *", duration=Duration(HOUR), operations=tuple(MaintenanceOperation)),
    )
}
UNARCHIVED = {
    "archive": {"enabled": False, "backpressure_percentage": 100},
    "storage": {"containers": _quota(1_040 * KB)},
}
"""What dies is deleted; sixteen contents of 60 KB leave 7.7% free."""

LAZY: dict[str, Any] = {"provenance": {"rollover_time": Duration(5 * HOUR)}}
DROPPING: dict[str, Any] = {"provenance": {"rollover_events": 50, "on_full": OnFull.DROP}}
CRAMPED: dict[str, Any] = {"provenance": {"rollover_events": 50}}

UNGUARDED = {"min_used_percentage": 0, "min_reclaim": 0}
LOOSE_FIELDS = UNGUARDED | {"bytes_per_second": Quantity(0), "punch": PunchSettings(enabled=False)}


def _loose(**fields: Any) -> dict[str, Any]:
    """A compaction that no guard holds back, in files of a megabyte."""
    claims = {"max_appendable_size": Quantity(MB), "max_flow_files": 10}
    return {"claims": claims, "archive": {"enabled": False}, "compaction": LOOSE_FIELDS | fields}


def _punching(**fields: Any) -> dict[str, Any]:
    """The same, which only punches."""
    punch = msgspec.structs.replace(PunchSettings(min_run=Quantity(100 * KB)), **fields)
    return _loose(punch=punch, max_live_fraction=0.01)


LOOSE = _loose()

IN_MEMORY = {section: {"repository": "memory"} for section in ("content", "flow_file", "provenance")}
"""They go together: what one forgets, no other may keep."""


def _snapshots(workshop: Workshop) -> object:
    return list(workshop.path.glob("flowfile/snapshot*"))


CASES: dict[str, Case] = {
    "storage.containers.name": Case(
        {}, {"storage": {"containers": (ContainerSettings(name="c2", sub_path="c2"),)}}, _directories
    ),
    "storage.containers.subPath": Case(
        {}, {"storage": {"containers": (ContainerSettings(name="c1", sub_path="elsewhere"),)}}, _directories
    ),
    "storage.containers.capacity": Case({}, SMALL, _put_error),
    "storage.sections": Case({}, {"storage": {"sections": 1}}, _directories),
    "content.repository": Case({}, IN_MEMORY, _files([1])),
    "flowFile.repository": Case({}, IN_MEMORY, _snapshots),
    "claims.maxAppendableSize": Case(
        {}, {"claims": {"max_appendable_size": Quantity(10 * KB)}}, _files([20 * KB, 20 * KB])
    ),
    "claims.maxFlowFiles": Case({}, {"claims": {"max_flow_files": 1}}, _files([1, 1])),
    "claims.maxBatchFile": Case({}, {"claims": {"max_batch_file": Quantity(100 * KB)}}, _batch_files),
    "claims.largeClaim": Case({}, {"claims": {"large_claim": Quantity(200 * KB)}}, _large_offset),
    "durability.mode": Case({}, {"durability": {"mode": DurabilityMode.INTERVAL}}, _time_of_commits),
    "durability.interval": Case(
        {"durability": {"mode": DurabilityMode.INTERVAL}},
        {"durability": {"mode": DurabilityMode.INTERVAL, "interval": Duration(500)}},
        _time_of_commits,
    ),
    "archive.enabled": Case(ROOMY, ROOMY | {"archive": {"enabled": False}}, _after_drop(0)),
    "archive.maxRetentionPeriod": Case(
        ROOMY, ROOMY | {"archive": {"max_retention_period": Duration(HOUR)}}, _after_drop(2 * HOUR / 1000)
    ),
    "archive.maxUsagePercentage": Case(SMALL, SMALL | {"archive": {"max_usage_percentage": 80}}, _after_drop(0)),
    "archive.backpressurePercentage": Case(
        {"storage": {"containers": _quota(1000 * KB)}, "archive": {"max_usage_percentage": 1}},
        {
            "storage": {"containers": _quota(1000 * KB)},
            "archive": {"max_usage_percentage": 1, "backpressure_percentage": 10},
        },
        _put_error,
    ),
    "archive.cleanupFrequency": Case({}, {"archive": {"cleanup_frequency": Duration(10_000)}}, _due_after(20)),
    "archive.partial": Case(
        {"storage": {"containers": _quota(500 * KB)}},
        {"storage": {"containers": _quota(500 * KB)}, "archive": {"partial": True}},
        _after_truncation,
    ),
    "storage.containers.evacuate": Case(
        {"storage": {"containers": _two()}}, {"storage": {"containers": _two(evacuate=True)}}, _used_containers
    ),
    "flowFile.partitions": Case({}, {"flow_file": {"partitions": 3}}, _partitions),
    "flowFile.checkpointInterval": Case({}, {"flow_file": {"checkpoint_interval": Duration(10_000)}}, _due_after(20)),
    "flowFile.checkpointLogSize": Case({}, {"flow_file": {"checkpoint_log_size": Quantity(KB)}}, _due_after(0)),
    "flowFile.walMaxBytes": Case(
        {},
        {"flow_file": {"wal_max_bytes": Quantity(10 * KB), "checkpoint_log_size": Quantity(10 * KB)}},
        _snapshot_id,
    ),
    "flowFile.swapThreshold": Case(
        {"flow_file": {"swap_batch": 10}}, {"flow_file": {"swap_batch": 10, "swap_threshold": 30}}, _swapped
    ),
    "flowFile.swapBatch": Case(
        {"flow_file": {"swap_batch": 10, "swap_threshold": 30}},
        {"flow_file": {"swap_batch": 20, "swap_threshold": 30}},
        _swapped,
    ),
    "flowFile.queueDefaults.priority": Case({}, _defaults(priority=QueuePriority.LARGEST_FIRST), _order),
    "flowFile.queueDefaults.maxCount": Case({}, _defaults(max_count=3), _is_full),
    "flowFile.queueDefaults.maxSize": Case({}, _defaults(max_size=Quantity(KB)), _is_full),
    "flowFile.queueDefaults.expiration": Case({}, _defaults(expiration=Duration(30_000)), _expired),
    "truncation.enabled": Case({"truncation": EAGER}, {"truncation": EAGER | {"enabled": False}}, _after_truncation),
    "truncation.mode": Case(ROOMY, ROOMY | {"truncation": EAGER}, _after_truncation),
    "truncation.usageThresholdPercentage": Case(
        PRESSED, PRESSED | {"truncation": {"usage_threshold_percentage": 80}}, _after_truncation
    ),
    "truncation.frequency": Case({}, {"truncation": {"frequency": Duration(10_000)}}, _due_after(20)),
    "storage.provenanceDirectories": Case({}, {"storage": {"provenance_directories": ("p1",)}}, event_files(0)),
    "provenance.enabled": Case({}, {"provenance": {"enabled": False}}, event_files(60)),
    "provenance.repository": Case({}, {"provenance": {"repository": "memory"}}, event_files(60)),
    "provenance.maxStorageTime": Case({}, {"provenance": {"max_storage_time": Duration(10_000)}}, event_files(60)),
    "provenance.maxStorageSize": Case({}, {"provenance": {"max_storage_size": Quantity(KB)}}, event_files(60)),
    "provenance.rolloverTime": Case({}, LAZY, event_files(50)),
    "provenance.rolloverSize": Case(LAZY, _lazy(rollover_size=Quantity(KB)), event_files(50)),
    "provenance.rolloverEvents": Case(LAZY, _lazy(rollover_events=5), event_files(50)),
    "provenance.compressOnRollover": Case({}, {"provenance": {"compress_on_rollover": False}}, event_bytes),
    "provenance.indexedFields": Case({}, {"provenance": {"indexed_fields": ()}}, without_files(Query(component="x"))),
    "provenance.indexedAttributes": Case(
        {}, {"provenance": {"indexed_attributes": ("n",)}}, without_files(Query(attributes=(("n", "x"),)))
    ),
    "provenance.indexShardSize": Case({}, {"provenance": {"index_shard_size": Quantity(1)}}, shards),
    "provenance.onFull": Case(
        CRAMPED, {"provenance": CRAMPED["provenance"] | {"on_full": OnFull.DROP}}, refused_for_events
    ),
    "compaction.enabled": Case(LOOSE, _loose(enabled=False), _compacted(CompactionTrigger.ADMIN)),
    "compaction.policy": Case(
        _loose(max_live_fraction=0.1), _loose(max_live_fraction=0.1, policy="CompactAll"), _planned
    ),
    "compaction.triggers": Case(LOOSE, _loose(triggers=()), _compacted(CompactionTrigger.PERIODIC)),
    "compaction.checkFrequency": Case({}, {"compaction": {"check_frequency": Duration(10_000)}}, _compacts_after(20)),
    "compaction.bytesPerSecond": Case(
        LOOSE,
        _loose(bytes_per_second=Quantity(100 * KB)),
        lambda workshop: _fragmented(workshop).run(CompactionTrigger.ADMIN).seconds > 1,
    ),
    "compaction.minUsedPercentage": Case(LOOSE, _loose(min_used_percentage=99), _planned),
    "compaction.minReclaim": Case(LOOSE, _loose(min_reclaim=1_000), _planned),
    "compaction.maxLiveFraction": Case(LOOSE, _loose(max_live_fraction=0.1), _planned),
    "compaction.outputSize": Case(LOOSE, _loose(output_size=Quantity(100 * KB)), _planned),
    "compaction.punch.enabled": Case(_punching(), _punching(enabled=False), _planned),
    "compaction.punch.minRun": Case(_punching(), _punching(min_run=Quantity(MB)), _planned),
    "compaction.punch.maxHolesPerFile": Case(_punching(), _punching(max_holes_per_file=1), _planned),
    "leases.maxDuration": Case({}, {"leases": {"max_duration": Duration(1_000)}}, _lease_error(2_000, 1)),
    "leases.maxCount": Case({}, {"leases": {"max_count": 2}}, _lease_error(500, 3)),
    "compaction.deletedRetention": Case({}, {"compaction": {"deleted_retention": Duration(60_000)}}, _purged),
    "maintenance.paused": Case(
        UNARCHIVED,
        UNARCHIVED | {"maintenance": {"paused": True, "emergency": EmergencySettings(min_free_percentage=100)}},
        _spared,
    ),
    "maintenance.timeZone": Case(
        UNARCHIVED | {"maintenance": NIGHTS},
        UNARCHIVED | {"maintenance": NIGHTS | {"time_zone": "Europe/Berlin"}},
        _spared,
    ),
    "maintenance.windows": Case(UNARCHIVED, UNARCHIVED | {"maintenance": NIGHTS}, _spared),
    "maintenance.emergency.minFreePercentage": Case(
        UNARCHIVED | {"maintenance": NIGHTS},
        UNARCHIVED | {"maintenance": NIGHTS | {"emergency": EmergencySettings(min_free_percentage=10)}},
        _spared,
    ),
}


@pytest.mark.parametrize("field", CASES)
def test_a_change_of_this_field_changes_what_happens(field: str, tmp_path: Path) -> None:
    """Two repositories that differ in this field alone behave differently."""
    case = CASES[field]
    observed = []
    for name, sections in (("one", case.one), ("other", case.other)):
        workshop = Workshop(tmp_path / name)
        workshop.make(**sections)
        try:
            observed.append(case.observe(workshop))
        finally:
            workshop.close()

    assert observed[0] != observed[1]


def test_the_path_is_where_the_repository_lies(workshop: Workshop) -> None:
    """spec.storage.hostPath.path is the root of everything on disk."""
    workshop.make()

    assert (workshop.path / "ullage.json").exists()


def _leaves(kind: type, path: str = "") -> list[str]:
    """The path of each field below a Struct, in the contract's notation."""
    found: list[str] = []
    for field in msgspec.structs.fields(kind):
        name = f"{path}{field.encode_name}"
        nested = field.type if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct) else None
        if field.encode_name == "containers":
            nested = ContainerSettings
        found.extend(_leaves(nested, f"{name}.") if nested is not None else [name])
    return found


def test_no_field_of_the_contract_is_left_out() -> None:
    """The cases here, and those of the service, name every field there is: a new one must come with its effect."""
    assert {*CASES, *SERVICE_CASES, *OPERATOR_CASES, "storage.hostPath.path"} == set(_leaves(ContentRepositorySpec))

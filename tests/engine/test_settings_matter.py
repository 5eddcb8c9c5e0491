"""Every field of the contract changes something that can be seen: a setting without effect would be a lie."""

from collections.abc import Callable, Mapping
from copy import deepcopy
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
from tests.support import Workshop, claim_of, committing, content_sizes, put_all, spec_at
from ullage.contract import (
    Calendar,
    CompactionTrigger,
    ContainerSettings,
    ContentRepository,
    ContentRepositorySpec,
    Metadata,
    dump,
    parse,
)
from ullage.engine.engine import Engine
from ullage.engine.maintenance import MaintenanceRunner
from ullage.errors import UllageError
from ullage.wire.provenance import EventQuery

KB = 1024
Observe = Callable[[Workshop], object]
Settings = Mapping[str, object]
"""Fields by their paths, with values in the contract's notation."""

DEFAULTS: Settings = {}


class Case(NamedTuple):
    """A value of a field, what differs once it is set, and the settings that both repositories have."""

    value: object
    observe: Observe
    base: Settings = DEFAULTS
    along: Settings = DEFAULTS
    """What the contract wants to be set together with it."""


def make(workshop: Workshop, settings: Settings) -> None:
    """Initialize and open; a field of containers is set in the last of them."""
    document = dump(ContentRepository(metadata=Metadata(name="flows"), spec=spec_at(workshop.path)))
    for field, value in settings.items():
        *sections, name = field.split(".")
        place: Any = document["spec"]
        for section in sections:
            place = place[section][-1] if section == "containers" else place[section]
        place[name] = deepcopy(value)
    workshop.spec = parse(document).spec
    Engine.initialize(workshop.spec, workshop.files, workshop.clock)
    workshop.open()


def _files(*commits: list[int]) -> Observe:
    """How many content files commits of these sizes make."""

    def observe(workshop: Workshop) -> object:
        for sizes in commits:
            put_all(workshop.repository, "q", [b"x" * size for size in sizes])
        return len(content_sizes(workshop.path))

    return observe


def _directories(workshop: Workshop) -> object:
    for _ in range(2):
        put_all(workshop.repository, "q", [b"x" * 60 * KB])
    return sorted(str(path.relative_to(workshop.path)) for path in workshop.path.glob("*/*") if path.is_dir())


def _used_containers(workshop: Workshop) -> object:
    for _ in range(2):
        put_all(workshop.repository, "q", [b"x" * 60 * KB])
    return {entry.claim.container for entry in workshop.repository.ledger.entries()}


def _large_offset(workshop: Workshop) -> object:
    return claim_of(put_all(workshop.repository, "q", [b"x" * KB, b"y" * 300 * KB])[1]).offset


def _time_of_commits(workshop: Workshop) -> object:
    start = workshop.clock.millis
    for _ in range(3):
        put_all(workshop.repository, "q", [b"x"])
    return workshop.clock.millis - start


def _tenants_files(workshop: Workshop) -> object:
    """How many files two tenants' contents lie in."""
    for tenant in ("a", "b"):
        workshop.repository.handles.put_many([b"x"], by=tenant)
    return len(content_sizes(workshop.path))


def _refused(count: int, ask: Callable[[Engine], object]) -> Observe:
    """How so many requests are refused, if they are."""

    def observe(workshop: Workshop) -> object:
        try:
            for _ in range(count):
                ask(workshop.repository)
        except UllageError as error:
            return type(error)
        return None

    return observe


_refused_puts = _refused(4, lambda repository: put_all(repository, "q", [b"x" * 60 * KB]))


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


def _due_after(seconds: float) -> Observe:
    """Which tasks are due so long after they ran, and some work."""

    def observe(workshop: Workshop) -> object:
        maintenance = MaintenanceRunner(workshop.repository)
        maintenance.run_due()
        put_all(workshop.repository, "q", [b"x" * KB] * 100)
        workshop.clock.advance(seconds)
        return maintenance.run_due()

    return observe


def _snapshot_id(workshop: Workshop) -> object:
    for _ in range(3):
        put_all(workshop.repository, "q", [b"x"] * 200)
    return workshop.repository.log.snapshot_id > 1


def _snapshots(workshop: Workshop) -> object:
    return list(workshop.path.glob("flowfile/snapshot*"))


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
    repository.report_listeners.append(lambda name, report: told.append((name, report.emergency > 0)))
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


def _is_slow(workshop: Workshop) -> object:
    return _fragmented(workshop).run(CompactionTrigger.ADMIN).seconds > 1


def _planned(workshop: Workshop) -> object:
    """What a run would do."""
    plan = _fragmented(workshop).plan(keeps_guards=True)
    return [(step.action, len(step.holes), step.group) for step in plan.steps]


def _quota(capacity: str) -> Settings:
    return {"storage.containers.capacity": capacity}


TWO = {"storage.containers": [{"name": name, "subPath": name} for name in ("c1", "c2")]}
SMALL = _quota("100Ki")
HALF_FULL = _quota("500Ki")
ROOMY = _quota("10000Ki")
"""Far from full, whatever the disk the tests run on looks like."""

UNARCHIVED = {"archive.enabled": False, **_quota("1040Ki")}
"""What dies is deleted; sixteen contents of 60 KB leave 7.7% free."""

WINDOW = {
    "name": "night",
    "schedule": "0 23 * * *",
    "duration": "1h",
    "operations": ["Delete", "Truncate", "Punch", "Rewrite"],
}
NIGHTLY = {**UNARCHIVED, "maintenance.windows": [WINDOW]}

LOOSE: Settings = {
    "claims.maxAppendableSize": "1Mi",
    "claims.maxFlowFiles": 10,
    "archive.enabled": False,
    "compaction.minUsedPercentage": 0,
    "compaction.minReclaim": 0,
    "compaction.bytesPerSecond": 0,
    "compaction.punch.enabled": False,
}
"""A compaction that no guard holds back, in files of a megabyte."""

PUNCHING: Settings = {
    **LOOSE,
    "compaction.maxLiveFraction": 0.01,
    "compaction.punch.enabled": True,
    "compaction.punch.minRun": "100Ki",
}
"""The same, which only punches."""

SWAPPING = {"flowFile.swapBatch": 10, "flowFile.swapThreshold": 30}
EAGER = {"truncation.mode": "Eager"}
LAZY = {"provenance.rolloverTime": "5h"}

CASES: dict[str, Case] = {
    "storage.containers.name": Case("c2", _used_containers),
    "storage.containers.subPath": Case("elsewhere", _directories),
    "storage.containers.capacity": Case("100Ki", _refused_puts),
    "storage.containers.evacuate": Case(True, _used_containers, TWO),
    "storage.sections": Case(1, _directories),
    "storage.provenanceDirectories": Case(["p1"], event_files(0)),
    "content.repository": Case(
        "memory", _files([1]), {"provenance.repository": "memory"}, {"flowFile.repository": "memory"}
    ),
    "flowFile.repository": Case(
        "memory", _snapshots, {"provenance.repository": "memory"}, {"content.repository": "memory"}
    ),
    "claims.maxAppendableSize": Case("10Ki", _files([20 * KB], [20 * KB])),
    "claims.maxFlowFiles": Case(1, _files([1], [1])),
    "isolation": Case("PerTenant", _tenants_files),
    "claims.maxBatchFile": Case("100Ki", _files([40 * KB] * 4)),
    "claims.largeClaim": Case("200Ki", _large_offset),
    "durability.mode": Case("Interval", _time_of_commits),
    "durability.interval": Case("500ms", _time_of_commits, {"durability.mode": "Interval"}),
    "archive.enabled": Case(False, _after_drop(0), ROOMY),
    "archive.maxRetentionPeriod": Case("1h", _after_drop(7_200), ROOMY),
    "archive.maxUsagePercentage": Case(80, _after_drop(0), SMALL),
    "archive.backpressurePercentage": Case(10, _refused_puts, {"archive.maxUsagePercentage": 1, **_quota("1000Ki")}),
    "archive.cleanupFrequency": Case("10s", _due_after(20)),
    "archive.partial": Case(True, _after_truncation, HALF_FULL),
    "flowFile.partitions": Case(3, _partitions),
    "flowFile.checkpointInterval": Case("10s", _due_after(20)),
    "flowFile.checkpointLogSize": Case("1Ki", _due_after(0)),
    "flowFile.walMaxBytes": Case("10Ki", _snapshot_id, {"flowFile.checkpointLogSize": "10Ki"}),
    "flowFile.swapThreshold": Case(40, _swapped, SWAPPING),
    "flowFile.swapBatch": Case(20, _swapped, SWAPPING),
    "flowFile.queueDefaults.priority": Case("LargestFirst", _order),
    "flowFile.queueDefaults.maxCount": Case(3, _is_full),
    "flowFile.queueDefaults.maxSize": Case("1Ki", _is_full),
    "flowFile.queueDefaults.expiration": Case("30s", _expired),
    "truncation.enabled": Case(False, _after_truncation, EAGER),
    "truncation.mode": Case("Eager", _after_truncation, ROOMY),
    "truncation.usageThresholdPercentage": Case(80, _after_truncation, {"archive.enabled": False, **HALF_FULL}),
    "truncation.frequency": Case("10s", _due_after(20)),
    "provenance.enabled": Case(False, event_files(60)),
    "provenance.repository": Case("memory", event_files(60)),
    "provenance.maxStorageTime": Case("10s", event_files(60)),
    "provenance.maxStorageSize": Case("1Ki", event_files(60)),
    "provenance.rolloverTime": Case("5h", event_files(50)),
    "provenance.rolloverSize": Case("1Ki", event_files(50), LAZY),
    "provenance.rolloverEvents": Case(5, event_files(50), LAZY),
    "provenance.compressOnRollover": Case(False, event_bytes),
    "provenance.indexedFields": Case([], without_files(EventQuery(component="x"))),
    "provenance.indexedAttributes": Case(["n"], without_files(EventQuery(attributes={"n": "x"}))),
    "provenance.indexShardSize": Case(1, shards),
    "provenance.onFull": Case("Drop", refused_for_events, {"provenance.rolloverEvents": 50}),
    "compaction.enabled": Case(False, _compacted(CompactionTrigger.ADMIN), LOOSE),
    "compaction.policy": Case("CompactAll", _planned, {**LOOSE, "compaction.maxLiveFraction": 0.1}),
    "compaction.triggers": Case([], _compacted(CompactionTrigger.PERIODIC), LOOSE),
    "compaction.checkFrequency": Case("10s", _due_after(20)),
    "compaction.bytesPerSecond": Case("100Ki", _is_slow, LOOSE),
    "compaction.minUsedPercentage": Case(99, _planned, LOOSE),
    "compaction.minReclaim": Case(1_000, _planned, LOOSE),
    "compaction.maxLiveFraction": Case(0.1, _planned, LOOSE),
    "compaction.goal.diskToLive": Case(50, _planned, LOOSE),
    "compaction.goal.maxDeadAge": Case("24h", _planned, LOOSE),
    "compaction.outputSize": Case("100Ki", _planned, LOOSE),
    "compaction.punch.enabled": Case(False, _planned, PUNCHING),
    "compaction.punch.minRun": Case("1Mi", _planned, PUNCHING),
    "compaction.punch.maxHolesPerFile": Case(1, _planned, PUNCHING),
    "compaction.deletedRetention": Case("1m", _purged),
    "replication.mode": Case(
        "Async", lambda workshop: workshop.repository.tap.is_open, along={"replication.url": "s3://flows/replicas"}
    ),
    "leases.maxDuration": Case("1s", _refused(1, lambda repository: repository.leases.acquire("reader", 2_000))),
    "leases.maxCount": Case(2, _refused(3, lambda repository: repository.leases.acquire("reader", 500))),
    "maintenance.paused": Case(True, _spared, {**UNARCHIVED, "maintenance.emergency.minFreePercentage": 100}),
    "maintenance.timeZone": Case("Europe/Berlin", _spared, NIGHTLY),
    "maintenance.windows": Case([WINDOW], _spared, UNARCHIVED),
    "maintenance.emergency.minFreePercentage": Case(10, _spared, NIGHTLY),
}


@pytest.mark.parametrize("field", CASES)
def test_a_change_of_this_field_changes_what_happens(field: str, tmp_path: Path) -> None:
    """Two repositories that differ in this field alone behave differently."""
    case = CASES[field]
    observed = []
    for name, settings in (("one", case.base), ("other", {**case.base, **case.along, field: case.value})):
        workshop = Workshop(tmp_path / name)
        make(workshop, settings)
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
    """The cases here, and those of the service, name every field there is: a new one must come with its effect. Some go
    on into what a list holds.
    """
    fields = set(_leaves(ContentRepositorySpec))
    elsewhere = {"storage.hostPath.path", "storage.containers.mounted"}  # above, and in tests/faults
    cases = {*CASES, *SERVICE_CASES, *OPERATOR_CASES, *elsewhere}
    assert fields <= cases
    assert {case for case in cases - fields if case.rpartition(".")[0] not in fields} == set()

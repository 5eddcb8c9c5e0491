"""The one description of a ContentRepository: its group, kind and settings, with types, bounds and reasons.

A file for the command line and an object in Kubernetes are the same document. Reading is strict, because a
setting that is misspelt, or not obeyed yet, would otherwise be a promise that nobody keeps: unknown fields,
duplicate keys and the sections of later versions are errors that name the field. Rules that join fields hold
for a spec built in Python too.
"""

import enum
import os
import posixpath
import re
from collections.abc import Hashable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Self

import msgspec
import yaml
from msgspec import Meta

from ullage_agent.fleet_sections import (
    BlockerMode as BlockerMode,
    Blockers as Blockers,
    DeletionPolicy as DeletionPolicy,
    Labels,
    Planning as Planning,
    PodSelector as PodSelector,
    Resources as Resources,
    SparkPods as SparkPods,
    TaintEffect as TaintEffect,
    Toleration as Toleration,
    TolerationOperator as TolerationOperator,
    UpdateStrategy as UpdateStrategy,
    UpdateType as UpdateType,
    fleet_problems,
    nodes_at_once as nodes_at_once,
)
from ullage_agent.provenance_sections import (
    IndexedField as IndexedField,
    OnFull as OnFull,
    Provenance as Provenance,
)
from ullage_agent.sections import DNS_LABEL, Section
from ullage_agent.service_sections import (
    Auth as Auth,
    AuthMode as AuthMode,
    MetricsAccess as MetricsAccess,
    Service as Service,
    Tls as Tls,
    TlsMode as TlsMode,
    listen_address as listen_address,
    service_problems,
)
from ullage_agent.space_sections import (
    Archive as Archive,
    Compaction as Compaction,
    CompactionTrigger as CompactionTrigger,
    Leases as Leases,
    Punch as Punch,
    Truncation as Truncation,
    TruncationMode as TruncationMode,
)
from ullage_agent.storage_sections import (
    RESERVED_PATHS as RESERVED_PATHS,
    SOCKET_NAME as SOCKET_NAME,
    Container as Container,
    HostPath as HostPath,
    LocalPersistentVolume as LocalPersistentVolume,
    Storage as Storage,
    storage_problems,
)
from ullage_agent.units import (
    Duration as Duration,  # part of the contract: whoever reads it has them
    Quantity as Quantity,
)
from ullage_agent.window_sections import (
    Emergency as Emergency,
    Maintenance as Maintenance,
    MaintenanceOperation as MaintenanceOperation,
    Overrun as Overrun,
    Window as Window,
    WindowKind as WindowKind,
    window_problems,
)

GROUP: Final = "ullage.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = "ullage.dev/v1alpha1"
KIND: Final = "ContentRepository"

DNS_SUBDOMAIN: Final = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"

LATER: Final[dict[str, frozenset[str]]] = {
    "spec.provenance": frozenset({"journalCount"}),
}
"""Fields of the contract that this version does not obey: refused by name rather than ignored."""


class ContractError(ValueError):
    """The document is not a ContentRepository that this version can obey. The message names the field."""


class DurabilityMode(enum.StrEnum):
    """When the write-ahead log is synced."""

    COMMIT = "Commit"
    INTERVAL = "Interval"


class QueuePriority(enum.StrEnum):
    """Which FlowFile of a queue comes first."""

    FIRST_IN_FIRST_OUT = "FirstInFirstOut"
    OLDEST_FIRST = "OldestFirst"
    NEWEST_FIRST = "NewestFirst"
    PRIORITY_ATTRIBUTE = "PriorityAttribute"
    LARGEST_FIRST = "LargestFirst"


CHOICES: Final[dict[str, type[enum.StrEnum]]] = {
    "spec.durability.mode": DurabilityMode,
    "spec.truncation.mode": TruncationMode,
    "spec.flowFile.queueDefaults.priority": QueuePriority,
    "spec.maintenance.windows[].kind": WindowKind,
    "spec.maintenance.windows[].operations[]": MaintenanceOperation,
    "spec.maintenance.windows[].overrun": Overrun,
    "spec.provenance.onFull": OnFull,
    "spec.tls.mode": TlsMode,
    "spec.auth.mode": AuthMode,
    "spec.auth.metrics": MetricsAccess,
    "spec.tolerations[].operator": TolerationOperator,
    "spec.tolerations[].effect": TaintEffect,
    "spec.maintenance.blockers.sparkPods.mode": BlockerMode,
    "spec.deletionPolicy": DeletionPolicy,
    "spec.updateStrategy.type": UpdateType,
}
"""For the message of a wrong one."""


class Claims(Section, frozen=True, kw_only=True):
    """How content is packed into resource claims."""

    max_appendable_size: Quantity = Quantity(50 * 1024)
    """Bytes: a resource claim this long is sealed, not appended to. Small, so that a large claim shares its
    file with little else (NiFi: nifi.content.claim.max.appendable.size, the same default)."""

    max_flow_files: Annotated[int, Meta(ge=1)] = 100
    """Content claims in one resource claim before it is sealed; limits how much one survivor keeps alive
    (NiFi: nifi.content.claim.max.flow.files, the same default)."""

    max_batch_file: Quantity = Quantity(64 * 1024**2)
    """Bytes of one resource claim that a single batch may fill, whatever the two limits above say: a batch of
    small claims costs one sync (NiFi: none)."""

    large_claim: Quantity = Quantity(1024**2)
    """Bytes: from here on a claim starts on a 4 KiB boundary, ends its file and may be truncated. Truncation
    considers claims from the smaller of this and maxAppendableSize on (NiFi: the constant 1 MB in its
    truncation)."""


class Durability(Section, frozen=True, kw_only=True):
    """When an answer may be given. In both modes acknowledged means durable."""

    mode: DurabilityMode = DurabilityMode.COMMIT
    """Commit: each commit leads or joins a sync at once. Interval: answers wait for the next timed sync,
    fewer syncs, never an early answer (NiFi: nifi.flowfile.repository.always.sync, default false; Ambry:
    none)."""

    interval: Duration = Duration(5)
    """Time between two syncs in mode Interval. 5 ms is about one sync of a slow disk: longer only adds to
    each answer."""


class QueueDefaults(Section, frozen=True, kw_only=True):
    """What a queue has that says nothing else."""

    priority: QueuePriority = QueuePriority.FIRST_IN_FIRST_OUT
    """Which FlowFile comes first; PriorityAttribute reads the attribute `priority` (NiFi: a connection's
    prioritizers)."""

    max_count: Annotated[int, Meta(ge=0)] = 10_000
    """FlowFiles from which the queue is full; 0: no limit (NiFi: nifi.queue.backpressure.count)."""

    max_size: Quantity = Quantity(1024**3)
    """Bytes of content from which the queue is full; 0: no limit (NiFi: nifi.queue.backpressure.size)."""

    expiration: Duration = Duration(0)
    """Age, since entry into the flow, at which a FlowFile is dropped; 0s: never, since data should not vanish
    unasked (NiFi: a connection's FlowFile expiration)."""


class FlowFileSettings(Section, frozen=True, kw_only=True):
    """The write-ahead log, its checkpoints, and the queues."""

    partitions: Annotated[int, Meta(ge=1, le=256)] = 1
    """Log files written side by side. One is fastest where commits share a sync; more only help on several
    disks (NiFi: nifi.flowfile.repository.partitions)."""

    checkpoint_interval: Duration = Duration(120_000)
    """Time between two checkpoints; bounds what a start must replay (NiFi:
    nifi.flowfile.repository.checkpoint.interval)."""

    checkpoint_log_size: Quantity = Quantity(512 * 1024**2)
    """Bytes of log after which a checkpoint starts early (NiFi:
    nifi.flowfile.repository.checkpoint.max.journal.size)."""

    wal_max_bytes: Quantity = Quantity(4 * 1024**3)
    """Bytes of log at which new content is refused; removing and reclaiming still pass. Room for eight early
    checkpoints that failed (NiFi: none)."""

    swap_threshold: Annotated[int, Meta(ge=1)] = 20_000
    """FlowFiles of one queue held in memory; more are swapped out (NiFi: nifi.queue.swap.threshold)."""

    swap_batch: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    """FlowFiles in one swap file; at most swapThreshold (NiFi: a constant, the same)."""

    queue_defaults: QueueDefaults = QueueDefaults()
    """What a queue has that says nothing else (NiFi: the defaults of a connection)."""


class ContentRepositorySpec(Section, frozen=True, kw_only=True):
    """The wish: what the engine, the service and the cluster obey."""

    node_selector: Labels = msgspec.field(default_factory=dict)
    """The nodes that get an agent: those with all of these labels (NiFi, Ambry: none)."""

    tolerations: Annotated[tuple[Toleration, ...], Meta(max_length=32)] = ()
    """Taints that agents put up with (NiFi, Ambry: none)."""

    affinity: dict[str, Any] = msgspec.field(default_factory=dict)
    """A pod's `affinity`, for what nodeSelector cannot say; its nodeAffinity also chooses nodes (NiFi, Ambry: none)."""

    priority_class_name: Annotated[str, Meta(max_length=253)] = "system-node-critical"
    """The pods' priority class: content is not to be pushed off its node. Empty: the cluster's default (NiFi, Ambry:
    none)."""

    resources: Resources = Resources()
    """What an agent asks of its node (NiFi, Ambry: none)."""

    image: Annotated[str, Meta(max_length=512)] = ""
    """The agent's image; empty: the one that the operator came with (NiFi, Ambry: none)."""

    storage: Storage = Storage()
    claims: Claims = Claims()
    durability: Durability = Durability()
    archive: Archive = Archive()
    flow_file: FlowFileSettings = FlowFileSettings()
    truncation: Truncation = Truncation()
    compaction: Compaction = Compaction()
    maintenance: Maintenance = Maintenance()
    provenance: Provenance = Provenance()
    leases: Leases = Leases()
    service: Service = Service()
    tls: Tls = Tls()
    auth: Auth = Auth()
    planning: Planning = Planning()

    deletion_policy: DeletionPolicy = DeletionPolicy.RETAIN
    """Retain: data stays when this object is deleted. Delete: claims of volumes go too, and directories of nodes are
    emptied (NiFi, Ambry: none)."""

    update_strategy: UpdateStrategy = UpdateStrategy()
    """How agents are rolled (NiFi, Ambry: none)."""

    def __post_init__(self) -> None:
        """Hold the rules that join several fields, or that a bare type cannot say."""
        problems = [
            *storage_problems(self.storage),
            *_minimum_problems(self),
            *_order_problems(self),
            *window_problems(self.maintenance),
            *service_problems(self.service, self.tls, self.auth),
            *fleet_problems(self),
        ]
        if problems:
            raise ContractError("; ".join(problems))

    @classmethod
    def embedded(cls, path: str | os.PathLike[str]) -> Self:
        """Return the defaults on a local folder, with one container `c1` in it, for this machine alone."""
        root = os.path.abspath(path)
        return cls(
            storage=Storage(host_path=HostPath(path=root)),
            service=Service(socket_path=posixpath.join(root, SOCKET_NAME)),
            tls=Tls(mode=TlsMode.NONE),
            auth=Auth(mode=AuthMode.NONE),
        )


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """The name. What else Kubernetes writes here is its own affair and passes unread."""

    name: Annotated[str, Meta(pattern=DNS_SUBDOMAIN, max_length=253)]
    namespace: Annotated[str, Meta(pattern=DNS_LABEL, max_length=63)] = "default"


class ContentRepository(Section, frozen=True, kw_only=True):
    """One object: `apiVersion`, `kind`, `metadata`, `spec`."""

    api_version: Literal["ullage.dev/v1alpha1"] = API_VERSION
    kind: Literal["ContentRepository"] = KIND
    metadata: Metadata
    spec: ContentRepositorySpec = msgspec.field(default_factory=ContentRepositorySpec)


def load_yaml(text: str) -> ContentRepository:
    """Read one YAML document. Keys given twice are an error: one of the two would be lost in silence."""
    try:
        document = yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - it is a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # dates that are none, nesting without end
        raise ContractError(f"not a YAML document: {error}") from error
    return parse(document)


def parse(document: Mapping[str, Any]) -> ContentRepository:
    """Turn a decoded document into a ContentRepository, or say which field is wrong and why."""
    if not isinstance(document, Mapping):
        raise ContractError(f"expected a {KIND} document, got {type(document).__name__}")
    for field, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if document.get(field) != expected:
            raise ContractError(f"{field}: expected {expected}, got {document.get(field)!r}")
    if later := list(_later_fields(document)):
        raise ContractError("; ".join(f"{path} is not supported by this version: remove it" for path in later))
    storage = (document.get("spec") or {}).get("storage") if isinstance(document.get("spec"), Mapping) else None
    if isinstance(storage, Mapping) and {"hostPath", "localPersistentVolume"} <= {k for k, v in storage.items() if v}:
        raise ContractError("spec.storage: hostPath and localPersistentVolume exclude each other")
    wish = {key: value for key, value in document.items() if key != "status"}  # status is the cluster's report, no wish
    try:
        return msgspec.convert(wish, ContentRepository, dec_hook=_from_notation)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ContractError):
            raise error.__cause__ from None
        raise ContractError(_name_field(str(error))) from error


def dump(repository: ContentRepository) -> dict[str, Any]:
    """Turn a ContentRepository into plain mappings, lists and scalars in Kubernetes notation: `parse(dump(x))
    == x`.
    """
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(repository, enc_hook=str))
    storage = document["spec"]["storage"]
    del storage["localPersistentVolume" if storage["localPersistentVolume"] is None else "hostPath"]
    return document


def _from_notation(kind: type, value: object) -> object:
    if kind is Quantity and type(value) is int:
        return Quantity(value)
    if isinstance(value, kind):
        return value
    if issubclass(kind, Quantity | Duration) and isinstance(value, str):
        return kind.parse(value)
    example = "50Ki" if kind is Quantity else "5ms"
    raise ValueError(f"{value!r} is not a {kind.__name__.lower()}: write it like {example}")


def _later_fields(document: Mapping[str, Any]) -> Iterator[str]:
    for parent, names in LATER.items():
        for path, node in _nodes(document, parent):
            yield from (f"{path}.{name}" for name in node if name in names)


def _nodes(document: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    node: object = document
    for key in path.split("."):
        node = node.get(key) if isinstance(node, Mapping) else None
    if isinstance(node, Mapping):
        yield path, node
    if isinstance(node, list):
        yield from ((f"{path}[{index}]", item) for index, item in enumerate(node) if isinstance(item, Mapping))


def _name_field(message: str) -> str:
    reason, _, path = message.partition(" - at `$")
    path = path.removesuffix("`").lstrip(".")
    if match := re.fullmatch(r"Object (contains unknown|missing required) field `(.+)`", reason):
        path = f"{path}.{match[2]}".lstrip(".")
        reason = "unknown field" if match[1] == "contains unknown" else "required field is missing"
    if choices := CHOICES.get(re.sub(r"\[(?:[0-9]+|\.\.\.)\]", "[]", path)):
        reason += f", expected one of {', '.join(choices)}"
    return f"{path}: {reason[:1].lower()}{reason[1:]}" if path else reason


def _minimum_problems(spec: ContentRepositorySpec) -> Iterator[str]:
    positive: dict[str, int] = {
        "claims.maxAppendableSize": spec.claims.max_appendable_size,
        "claims.maxBatchFile": spec.claims.max_batch_file,
        "claims.largeClaim": spec.claims.large_claim,
        "durability.interval": spec.durability.interval,
        "archive.cleanupFrequency": spec.archive.cleanup_frequency,
        "flowFile.checkpointInterval": spec.flow_file.checkpoint_interval,
        "flowFile.checkpointLogSize": spec.flow_file.checkpoint_log_size,
        "flowFile.walMaxBytes": spec.flow_file.wal_max_bytes,
        "truncation.frequency": spec.truncation.frequency,
        **spec.provenance.positive(),
        "compaction.checkFrequency": spec.compaction.check_frequency,
        "compaction.outputSize": spec.compaction.output_size,
        "compaction.punch.minRun": spec.compaction.punch.min_run,
        "leases.maxDuration": spec.leases.max_duration,
    }
    yield from (f"spec.{path}: must be above 0" for path, value in positive.items() if value < 1)


def _order_problems(spec: ContentRepositorySpec) -> Iterator[str]:
    claims, archive, flow_file = spec.claims, spec.archive, spec.flow_file
    if archive.backpressure_percentage <= archive.max_usage_percentage:
        yield (
            f"spec.archive.backpressurePercentage: {archive.backpressure_percentage} must be above "
            f"spec.archive.maxUsagePercentage ({archive.max_usage_percentage})"
        )
    if claims.max_appendable_size > claims.max_batch_file:
        yield (
            f"spec.claims.maxAppendableSize: {claims.max_appendable_size} must be at most "
            f"spec.claims.maxBatchFile ({claims.max_batch_file})"
        )
    if flow_file.swap_batch > flow_file.swap_threshold:
        yield (
            f"spec.flowFile.swapBatch: {flow_file.swap_batch} must be at most "
            f"spec.flowFile.swapThreshold ({flow_file.swap_threshold})"
        )
    if flow_file.checkpoint_log_size > flow_file.wal_max_bytes:
        yield (
            f"spec.flowFile.checkpointLogSize: {flow_file.checkpoint_log_size} must be at most "
            f"spec.flowFile.walMaxBytes ({flow_file.wal_max_bytes})"
        )


class _StrictLoader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                if key_node.value in seen:
                    problem = f"key {key_node.value!r} is given twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)

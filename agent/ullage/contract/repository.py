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
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, Self, TypeVar, get_args

import msgspec
import yaml
from msgspec import Meta

from ullage.contract.affinity import affinity_problems
from ullage.contract.fleet_settings import (
    DeletionPolicy,
    Labels,
    NetworkSettings,
    PlanningSettings,
    ResourceRequirements,
    Toleration,
    UpdateStrategy,
    fleet_problems,
)
from ullage.contract.provenance_settings import ProvenanceSettings
from ullage.contract.replication_settings import ReplicationSettings, replication_problems
from ullage.contract.service_settings import (
    AuditSettings,
    AuthMode,
    AuthSettings,
    ServiceSettings,
    TlsMode,
    TlsSettings,
    service_problems,
)
from ullage.contract.settings import (
    API_VERSION,
    DNS_LABEL,
    DNS_NAME,
    REPOSITORY_NAME,
    REPOSITORY_NAME_MAX,
    PluginName,
    Settings,
)
from ullage.contract.space_settings import (
    ArchiveSettings,
    CompactionSettings,
    LeaseSettings,
    TruncationSettings,
    goal_problems,
)
from ullage.contract.storage_settings import SOCKET_NAME, HostPath, StorageSettings, storage_problems
from ullage.contract.units import Duration, Quantity
from ullage.contract.window_settings import (
    MaintenanceSettings,
    window_problems,
)

S = TypeVar("S", bound=msgspec.Struct)

KIND: Final = "ContentRepository"

LATER: Final = frozenset({"spec.provenance.journalCount"})
"""Fields of the contract that this version does not obey: unknown ones, refused as what they are."""

_POSITIVE: Final = (
    *("claims.maxAppendableSize", "claims.maxBatchFile", "claims.largeClaim"),
    *("durability.interval", "archive.cleanupFrequency"),
    *("flowFile.checkpointInterval", "flowFile.checkpointLogSize", "flowFile.walMaxBytes", "truncation.frequency"),
    *("provenance.maxStorageTime", "provenance.maxStorageSize", "provenance.rolloverTime", "provenance.rolloverSize"),
    *("provenance.indexShardSize", "compaction.checkFrequency", "compaction.outputSize", "compaction.punch.minRun"),
    *("leases.maxDuration", "replication.interval", "replication.maxLag", "replication.maxHeld"),
    "replication.retention",
)
"""Sizes and times that must be above 0."""

_AT_MOST: Final = (
    ("claims.maxAppendableSize", "claims.maxBatchFile"),
    ("flowFile.swapBatch", "flowFile.swapThreshold"),
    ("flowFile.checkpointLogSize", "flowFile.walMaxBytes"),
    ("replication.interval", "replication.maxLag"),
)
"""Fields of which the first must not be above the second."""


class ContractError(ValueError):
    """The document is not a ContentRepository that this version can obey. The message names the field."""


class DurabilityMode(enum.StrEnum):
    """When the write-ahead log is synced."""

    COMMIT = "Commit"
    INTERVAL = "Interval"


class Isolation(enum.StrEnum):
    """Whose content may lie in one file."""

    NONE = "None"
    PER_TENANT = "PerTenant"


class QueuePriority(enum.StrEnum):
    """Which FlowFile of a queue comes first."""

    FIRST_IN_FIRST_OUT = "FirstInFirstOut"
    OLDEST_FIRST = "OldestFirst"
    NEWEST_FIRST = "NewestFirst"
    PRIORITY_ATTRIBUTE = "PriorityAttribute"
    LARGEST_FIRST = "LargestFirst"


class ClaimSettings(Settings, frozen=True, kw_only=True):
    """How content claims are packed into resource claims."""

    max_appendable_size: Quantity = Quantity(50 * 1024)
    """A resource claim that has reached this many bytes is sealed and takes no more content. A small value makes a
    large claim share its file with little else. It must be at most maxBatchFile (NiFi:
    nifi.content.claim.max.appendable.size)."""

    max_flow_files: Annotated[int, Meta(ge=1)] = 100
    """A resource claim with this many content claims is sealed. This limits how much one survivor keeps alive (NiFi:
    nifi.content.claim.max.flow.files)."""

    max_batch_file: Quantity = Quantity(64 * 1024**2)
    """The bytes that one batch may write into a single resource claim, whatever maxAppendableSize and maxFlowFiles say,
    so that a batch of small claims costs one sync."""

    large_claim: Quantity = Quantity(1024**2)
    """A content claim of at least this many bytes starts on a 4 KiB boundary and ends its file, so that its space can
    be given back alone. Truncation considers claims from the smaller of this and maxAppendableSize on (NiFi: the
    constant 1 MB)."""


class DurabilitySettings(Settings, frozen=True, kw_only=True):
    """When a commit is answered. In both modes an answer means that the data is on disk."""

    mode: DurabilityMode = DurabilityMode.COMMIT
    """With Commit, each commit leads or joins a sync at once. With Interval, answers wait for the next timed sync,
    which needs fewer syncs but never answers early (NiFi: nifi.flowfile.repository.always.sync)."""

    interval: Duration = Duration(5)
    """The time between two syncs in mode Interval. The default is about one sync of a slow disk; a longer one only
    delays each answer."""


class QueueDefaults(Settings, frozen=True, kw_only=True):
    """What holds for a queue that sets nothing else."""

    priority: QueuePriority = QueuePriority.FIRST_IN_FIRST_OUT
    """Which FlowFile of a queue comes first. PriorityAttribute reads the attribute `priority` (NiFi: a connection's
    prioritizers)."""

    max_count: Annotated[int, Meta(ge=0, le=1 << 62)] = 10_000
    """A queue with this many FlowFiles is full. 0 sets no limit (NiFi: nifi.queue.backpressure.count)."""

    max_size: Quantity = Quantity(1024**3)
    """A queue with this many bytes of content is full. 0 sets no limit (NiFi: nifi.queue.backpressure.size)."""

    expiration: Duration = Duration(0)
    """The age, counted from entry into the flow, at which a FlowFile is dropped. With 0s none is ever dropped, since
    data should not vanish unasked (NiFi: a connection's FlowFile expiration)."""


class ContentSettings(Settings, frozen=True, kw_only=True):
    """What keeps the bytes of content."""

    repository: PluginName = ""
    """The implementation of the content repository: empty for files in the containers, memory for one whose content is
    gone when the process ends, or an entry point of the group `ullage.content_repositories`. A repository keeps the one
    that it was made with (NiFi: nifi.content.repository.implementation)."""


class FlowFileSettings(Settings, frozen=True, kw_only=True):
    """The write-ahead log, its checkpoints, and the queues."""

    repository: PluginName = ""
    """The implementation of the FlowFile repository: empty for a write-ahead log, memory for one whose FlowFiles are
    gone when the process ends, or an entry point of the group `ullage.flowfile_repositories`. A repository keeps the
    one that it was made with. What is gone with the process must be gone with its content and events: content and
    FlowFiles are both in memory or neither, and so are events if they are (NiFi:
    nifi.flowfile.repository.implementation)."""

    partitions: Annotated[int, Meta(ge=1, le=256)] = 1
    """The number of log files that are written side by side. One is fastest where commits share a sync; more only help
    on several disks (NiFi: nifi.flowfile.repository.partitions)."""

    checkpoint_interval: Duration = Duration(120_000)
    """The time between two checkpoints. It bounds what a start must replay (NiFi:
    nifi.flowfile.repository.checkpoint.interval)."""

    checkpoint_log_size: Quantity = Quantity(512 * 1024**2)
    """A checkpoint starts early when the log has this many bytes. It must be at most walMaxBytes (NiFi:
    nifi.flowfile.repository.checkpoint.max.journal.size)."""

    wal_max_bytes: Quantity = Quantity(4 * 1024**3)
    """When the log has this many bytes, new content is refused; removing and reclaiming still pass. The default leaves
    room for eight early checkpoints that failed."""

    swap_threshold: Annotated[int, Meta(ge=1)] = 20_000
    """The number of FlowFiles of one queue that are held in memory. More are swapped out to disk (NiFi:
    nifi.queue.swap.threshold)."""

    swap_batch: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    """The number of FlowFiles in one swap file. It must be at most swapThreshold (NiFi: a constant, the same)."""

    queue_defaults: QueueDefaults = QueueDefaults()
    """What holds for a queue that sets nothing else (NiFi: the defaults of a connection)."""


class ContentRepositorySpec(Settings, frozen=True, kw_only=True):
    """The desired state: what the engine, the service and the cluster obey."""

    node_selector: Labels = msgspec.field(default_factory=dict)
    """Only nodes with all of these labels get an agent."""

    tolerations: Annotated[tuple[Toleration, ...], Meta(max_length=32)] = ()
    """The taints that agents tolerate, as in a pod."""

    affinity: dict[str, Any] = msgspec.field(default_factory=dict)
    """A pod's `affinity`, for what nodeSelector cannot say. Its nodeAffinity also decides which nodes get an agent. The
    operator reads it as strictly as the API server reads a pod's."""

    priority_class_name: Annotated[str, Meta(pattern=f"^$|{DNS_NAME}", max_length=253)] = ""
    """The priority class of the agents' pods. Empty takes the one that the operator was installed with,
    which keeps other pods from pushing content off its node."""

    resources: ResourceRequirements = ResourceRequirements()
    """The resources that an agent requests, and those that it may not exceed. What it neither requests nor limits is
    requested by default: `cpu: 100m` and `memory: 256Mi`."""

    image: Annotated[str, Meta(max_length=512)] = ""
    """The agents' image, of those that the operator allows. Empty takes the image that the operator came with."""

    storage: StorageSettings = StorageSettings()
    content: ContentSettings = ContentSettings()
    claims: ClaimSettings = ClaimSettings()
    isolation: Isolation = Isolation.NONE
    """Whose content may lie in one resource claim. With None that of everybody, and a descriptor of its file goes only
    to who may read everything. PerTenant gives each tenant, which is the principal that writes, resource claims of its
    own, and who reads what it wrote itself gets descriptors too. It holds for what is written from then on."""

    durability: DurabilitySettings = DurabilitySettings()
    archive: ArchiveSettings = ArchiveSettings()
    flow_file: FlowFileSettings = FlowFileSettings()
    truncation: TruncationSettings = TruncationSettings()
    compaction: CompactionSettings = CompactionSettings()
    maintenance: MaintenanceSettings = MaintenanceSettings()
    provenance: ProvenanceSettings = ProvenanceSettings()
    leases: LeaseSettings = LeaseSettings()
    replication: ReplicationSettings = ReplicationSettings()
    service: ServiceSettings = ServiceSettings()
    tls: TlsSettings = TlsSettings()
    auth: AuthSettings = AuthSettings()
    audit: AuditSettings = AuditSettings()
    network: NetworkSettings = NetworkSettings()
    planning: PlanningSettings = PlanningSettings()

    deletion_policy: DeletionPolicy = DeletionPolicy.RETAIN
    """What happens to the data when this object is deleted. Retain keeps it. Delete also deletes claims of volumes, and
    empties the directories on nodes."""

    update_strategy: UpdateStrategy = UpdateStrategy()
    """How agents take over what they can only take over by a restart."""

    def __post_init__(self) -> None:
        """Hold the rules that join several fields, or that a bare type cannot say."""
        problems = [
            *storage_problems(self.storage),
            *_minimum_problems(self),
            *_order_problems(self),
            *window_problems(self.maintenance),
            *goal_problems(self.compaction),
            *service_problems(self.service, self.tls, self.auth),
            *fleet_problems(self),
            *replication_problems(self.replication),
            *affinity_problems(self.affinity),
        ]
        if problems:
            raise ContractError("; ".join(problems))

    @classmethod
    def embedded(cls, path: str | os.PathLike[str]) -> Self:
        """Return the defaults on a local folder, with one container `c1` in it, for this machine alone."""
        root = os.path.abspath(path)
        return cls(
            storage=StorageSettings(host_path=HostPath(path=root)),
            service=ServiceSettings(socket_path=posixpath.join(root, SOCKET_NAME)),
            tls=TlsSettings(mode=TlsMode.NONE),
            auth=AuthSettings(mode=AuthMode.NONE),
        )


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """The name. What else Kubernetes writes here is its own affair and passes unread."""

    name: Annotated[str, Meta(pattern=REPOSITORY_NAME, max_length=REPOSITORY_NAME_MAX)]
    namespace: Annotated[str, Meta(pattern=DNS_LABEL, max_length=63)] = "default"


class ContentRepository(Settings, frozen=True, kw_only=True):
    """A content repository for data flows: how nodes keep content on their disks, and how they give the space of dead
    content back.
    """

    api_version: Literal["ullage.dev/v1alpha1"] = API_VERSION
    kind: Literal["ContentRepository"] = KIND
    metadata: Metadata
    spec: ContentRepositorySpec = msgspec.field(default_factory=ContentRepositorySpec)


def load_yaml(text: str) -> ContentRepository:
    """Read one YAML document. Keys given twice are an error: one of the two would be lost in silence."""
    try:
        document = yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - it is a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # dates that are none, nesting without end
        raise ContractError(f"not a YAML document: {' '.join(str(error).split())}") from error
    return parse(document)


def parse(document: Mapping[str, Any]) -> ContentRepository:
    """Turn a decoded document into a ContentRepository, or say which field is wrong and why."""
    if not isinstance(document, Mapping):
        raise ContractError(f"expected a {KIND} document, got {type(document).__name__}")
    for field, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if document.get(field) != expected:
            raise ContractError(f"{field}: expected {expected}, got {document.get(field)!r}")
    storage = (document.get("spec") or {}).get("storage") if isinstance(document.get("spec"), Mapping) else None
    if isinstance(storage, Mapping) and {"hostPath", "localPersistentVolume"} <= {k for k, v in storage.items() if v}:
        raise ContractError("spec.storage: hostPath and localPersistentVolume exclude each other")
    wish = {key: value for key, value in document.items() if key != "status"}  # status is the cluster's report, no wish
    return _converted(wish, ContentRepository)


def parse_maintenance(document: Mapping[str, Any]) -> MaintenanceSettings:
    """The section `spec.maintenance` from plain mappings and scalars, as `dump` makes them; ContractError."""
    return _converted(document, MaintenanceSettings)


def dump(repository: ContentRepository) -> dict[str, Any]:
    """Turn a ContentRepository into plain mappings, lists and scalars in Kubernetes notation: `parse(dump(x))
    == x`.
    """
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(repository, enc_hook=str))
    storage = document["spec"]["storage"]
    del storage["localPersistentVolume" if storage["localPersistentVolume"] is None else "hostPath"]
    return document


def _converted(document: Mapping[str, Any], kind: type[S]) -> S:
    try:
        found = msgspec.convert(document, kind, dec_hook=_from_notation)
        msgspec.json.encode(found, enc_hook=str)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ContractError):
            raise error.__cause__ from None
        raise ContractError(_name_field(str(error))) from error
    except UnicodeEncodeError as error:  # YAML can escape half of a surrogate pair, and nobody could write it down
        raise ContractError(f"{error.object!r} is no Unicode text that can be encoded") from error
    return found


def _from_notation(kind: type, value: object) -> object:
    if kind is Quantity and type(value) is int:
        return Quantity(value)
    if isinstance(value, kind):
        return value
    if issubclass(kind, Quantity | Duration) and isinstance(value, str):
        return kind.parse(value)
    example = "50Ki" if kind is Quantity else "5ms"
    raise ValueError(f"{value!r} is not a {kind.__name__.lower()}: write it like {example}")


def _name_field(message: str) -> str:
    # Of a map's key it says `at `key` in `$.spec.nodeSelector``.
    reason, _, path = message.replace(" - at `key` in `$", ": a key - at `$").partition(" - at `$")
    path = path.removesuffix("`").lstrip(".")
    if match := re.fullmatch(r"Object (contains unknown|missing required) field `(.+)`", reason):
        path = f"{path}.{match[2]}".lstrip(".")
        if path in LATER:
            return f"{path} is not supported by this version: remove it"
        reason = "unknown field" if match[1] == "contains unknown" else "required field is missing"
    if choices := _choices(path):
        reason += f", expected one of {', '.join(choices)}"
    return f"{path}: {reason[:1].lower()}{reason[1:]}" if path else reason


def _choices(path: str) -> list[str]:
    """The words that the field of this path may say, if it takes one of several."""
    kind: Any = ContentRepository
    for name in re.sub(r"\[[^]]*\]", "", path).split("."):
        fields = msgspec.structs.fields(kind) if isinstance(kind, type(msgspec.Struct)) else ()
        kind = next((found for field in fields if field.encode_name == name for found in _kinds(field.type)), None)
    return list(kind) if isinstance(kind, enum.EnumMeta) else []


def _kinds(annotation: Any) -> Iterator[type]:
    """The settings and choices in a field's type."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct | enum.StrEnum):
        yield annotation
    for part in get_args(annotation):
        yield from _kinds(part)


def _minimum_problems(spec: ContentRepositorySpec) -> Iterator[str]:
    yield from (f"spec.{path}: must be above 0" for path in _POSITIVE if _value_at(spec, path) < 1)


def _order_problems(spec: ContentRepositorySpec) -> Iterator[str]:
    archive = spec.archive
    if archive.backpressure_percentage <= archive.max_usage_percentage:
        yield (
            f"spec.archive.backpressurePercentage: {archive.backpressure_percentage} must be above "
            f"spec.archive.maxUsagePercentage ({archive.max_usage_percentage})"
        )
    for field, other in _AT_MOST:
        value, bound = _value_at(spec, field), _value_at(spec, other)
        if value > bound:
            yield f"spec.{field}: {value} must be at most spec.{other} ({bound})"


def _value_at(spec: ContentRepositorySpec, path: str) -> int:
    """The number that a field has, by its path in the document (`flowFile.swapBatch`)."""
    names = re.sub(r"[A-Z]", lambda capital: f"_{capital[0].lower()}", path)
    found: int = attrgetter(names)(spec)
    return found


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


_OPEN: Final = (
    *("archive", "claims", "compaction", "isolation", "leases", "maintenance", "truncation"),
    *("flowFile.checkpointInterval", "flowFile.checkpointLogSize", "flowFile.queueDefaults", "flowFile.walMaxBytes"),
    *("auth.queues", "service.maxRequestBytes"),
)
_FIXED: Final = ("compaction.deletedRetention", "compaction.outputSize")
"""Exceptions below those: when a handle goes is decided when it is deleted, and outputs may be half written."""


def needs_no_restart(path: str) -> bool:
    """Whether a field of the spec (`flowFile.partitions`) can change while the repository is open.

    Agents take these over, and the operator rolls pods for all others.
    """

    def lies_in(fields: tuple[str, ...]) -> bool:
        return any(f"{path}.".startswith(f"{field}.") for field in fields)

    return lies_in(_OPEN) and not lies_in(_FIXED)

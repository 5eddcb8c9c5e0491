"""The one description of a repository in a cluster and on a machine alone: kinds, settings, units, and windows.

Import from here: the modules below are how it is laid out. What is here talks to nobody and needs no engine.
"""

from ullage.contract.backups import (
    BACKUP_RESULTS_MAX as BACKUP_RESULTS_MAX,
    BackupKeepRule as BackupKeepRule,
    BackupNode as BackupNode,
    BackupSpec as BackupSpec,
    BackupStatus as BackupStatus,
    BackupTicket as BackupTicket,
    BackupTicketReport as BackupTicketReport,
    ContentBackup as ContentBackup,
    VerificationNode as VerificationNode,
    VerificationReport as VerificationReport,
    VerificationStatus as VerificationStatus,
    VerificationTicket as VerificationTicket,
    VerifyRule as VerifyRule,
)
from ullage.contract.conditions import (
    TABLE as TABLE,
    Cell as Cell,
    Condition as Condition,
    ConditionRow as ConditionRow,
    ConditionStatus as ConditionStatus,
    News as News,
    cell_of as cell_of,
)
from ullage.contract.fleet import (
    DRAIN as DRAIN,
    ENGINE_FORMAT as ENGINE_FORMAT,
    FINISHED_MAX as FINISHED_MAX,
    HEARTBEAT_FIELDS as HEARTBEAT_FIELDS,
    HEARTBEAT_SECONDS as HEARTBEAT_SECONDS,
    NODE_LABEL as NODE_LABEL,
    OUT_OF_REACH_MAX as OUT_OF_REACH_MAX,
    PEM_MAX as PEM_MAX,
    REPOSITORY_LABEL as REPOSITORY_LABEL,
    RESULTS_MAX as RESULTS_MAX,
    ContentRepositoryNode as ContentRepositoryNode,
    Deferral as Deferral,
    FinishedRun as FinishedRun,
    NextWindow as NextWindow,
    NodeSpec as NodeSpec,
    NodeStatus as NodeStatus,
    OutOfReach as OutOfReach,
    PlanningResult as PlanningResult,
    PlanningStatus as PlanningStatus,
    ReclamationRun as ReclamationRun,
    RepositoryStatus as RepositoryStatus,
    Returning as Returning,
    RunNode as RunNode,
    RunSpec as RunSpec,
    RunStatus as RunStatus,
    Space as Space,
)
from ullage.contract.fleet_settings import (
    BlockerMode as BlockerMode,
    BlockerSettings as BlockerSettings,
    DeletionPolicy as DeletionPolicy,
    LabelSelector as LabelSelector,
    NetworkPeer as NetworkPeer,
    NetworkSettings as NetworkSettings,
    PlanningSettings as PlanningSettings,
    PodSelector as PodSelector,
    ResourceRequirements as ResourceRequirements,
    SparkPodSettings as SparkPodSettings,
    TaintEffect as TaintEffect,
    Toleration as Toleration,
    TolerationOperator as TolerationOperator,
    UpdateStrategy as UpdateStrategy,
    UpdateType as UpdateType,
    nodes_at_once as nodes_at_once,
)
from ullage.contract.objects import (
    TOKEN_FILE as TOKEN_FILE,
    audience_of as audience_of,
    conditions_of as conditions_of,
    document_of as document_of,
    millis_of as millis_of,
    object_name as object_name,
    record_of as record_of,
    status_of as status_of,
    time_of as time_of,
)
from ullage.contract.permission import (
    Permission as Permission,
    PermissionFor as PermissionFor,
    default_permission as default_permission,
    without_windows as without_windows,
)
from ullage.contract.provenance_settings import (
    IndexedField as IndexedField,
    OnFull as OnFull,
    ProvenanceSettings as ProvenanceSettings,
)
from ullage.contract.queue_rules import (
    FEED_PREFIX as FEED_PREFIX,
    NO_QUEUE as NO_QUEUE,
    QueueAccess as QueueAccess,
    QueueRule as QueueRule,
    QueueUse as QueueUse,
)
from ullage.contract.replication_settings import (
    ReplicationMode as ReplicationMode,
    ReplicationSettings as ReplicationSettings,
)
from ullage.contract.repository import (
    ClaimSettings as ClaimSettings,
    ContentRepository as ContentRepository,
    ContentRepositorySpec as ContentRepositorySpec,
    ContentSettings as ContentSettings,
    ContractError as ContractError,
    DurabilityMode as DurabilityMode,
    DurabilitySettings as DurabilitySettings,
    FlowFileSettings as FlowFileSettings,
    Isolation as Isolation,
    Metadata as Metadata,
    QueueDefaults as QueueDefaults,
    QueuePriority as QueuePriority,
    dump as dump,
    load_yaml as load_yaml,
    needs_no_restart as needs_no_restart,
    parse as parse,
    parse_maintenance as parse_maintenance,
)
from ullage.contract.restores import (
    RESTORE_SECONDS_TOLD as RESTORE_SECONDS_TOLD,
    ContentRestore as ContentRestore,
    RestoreSpec as RestoreSpec,
    RestoreStatus as RestoreStatus,
    RestoreTicket as RestoreTicket,
    RestoreTicketReport as RestoreTicketReport,
)
from ullage.contract.rights import (
    ROLES as ROLES,
    Right as Right,
    parse_rights as parse_rights,
    rights_named as rights_named,
    rules_of as rules_of,
)
from ullage.contract.service_settings import (
    AuditSettings as AuditSettings,
    AuthMode as AuthMode,
    AuthSettings as AuthSettings,
    BackupBucket as BackupBucket,
    MetricsAccess as MetricsAccess,
    ServiceSettings as ServiceSettings,
    TlsMode as TlsMode,
    TlsSettings as TlsSettings,
    is_loopback as is_loopback,
    listen_address as listen_address,
)
from ullage.contract.settings import (
    API_VERSION as API_VERSION,
    GROUP as GROUP,
    REPOSITORY_NAME as REPOSITORY_NAME,
    REPOSITORY_NAME_MAX as REPOSITORY_NAME_MAX,
    ClusterRecord as ClusterRecord,
)
from ullage.contract.space_settings import (
    POLICIES as POLICIES,
    ArchiveSettings as ArchiveSettings,
    CompactionSettings as CompactionSettings,
    CompactionTrigger as CompactionTrigger,
    GoalSettings as GoalSettings,
    LeaseSettings as LeaseSettings,
    PunchSettings as PunchSettings,
    TruncationMode as TruncationMode,
    TruncationSettings as TruncationSettings,
)
from ullage.contract.storage_settings import (
    ContainerSettings as ContainerSettings,
    HostPath as HostPath,
    LocalPersistentVolume as LocalPersistentVolume,
    Sections as Sections,
    StorageSettings as StorageSettings,
)
from ullage.contract.tickets import (
    ENDED as ENDED,
    RUNNABLE as RUNNABLE,
    TICKETED as TICKETED,
    RunPhase as RunPhase,
    Ticket as Ticket,
    TicketReport as TicketReport,
    TicketState as TicketState,
)
from ullage.contract.units import (
    Duration as Duration,
    Quantity as Quantity,
)
from ullage.contract.window_settings import (
    EmergencySettings as EmergencySettings,
    MaintenanceOperation as MaintenanceOperation,
    MaintenanceSettings as MaintenanceSettings,
    Overrun as Overrun,
    Window as Window,
    WindowKind as WindowKind,
)
from ullage.contract.windows import (
    HORIZON_MILLIS as HORIZON_MILLIS,
    Calendar as Calendar,
    Opening as Opening,
    Timetable as Timetable,
    WindowStatus as WindowStatus,
    in_words as in_words,
)

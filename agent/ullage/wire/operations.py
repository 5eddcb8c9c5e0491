"""What a node does over HTTP: each operation with its path, what it takes, what it answers, and what it may refuse.

The OpenAPI document is made from this table, and a test holds that the service has exactly these. Parameters of the
query stand where they are read; what an operation is for stands below it, and OpenAPI says it again.
"""

from typing import Any, Final

from ullage import errors
from ullage.contract import Opening, Right, WindowStatus
from ullage.wire.backupoperations import (
    BACK_UP as BACK_UP,
    GET_BACKUP as GET_BACKUP,
    LIST_BACKUPS as LIST_BACKUPS,
    LIST_GENERATIONS as LIST_GENERATIONS,
    STOP_BACKUP as STOP_BACKUP,
    VERIFY_BACKUP as VERIFY_BACKUP,
)
from ullage.wire.content import (
    HandleBatch,
    HandleContent,
    HandleHead,
    HandleIds,
    HandlePage,
    StoredBatch,
    StoredFlowFile,
    StoredHandle,
)
from ullage.wire.documents import ActionResult
from ullage.wire.firstuse import prepare
from ullage.wire.holders import HolderStatus
from ullage.wire.leases import LeaseRenewal, LeaseRequest, LeaseStatus
from ullage.wire.operation import (
    ADMINISTERING,
    COMMIT,
    HANDLE,
    HANDLE_NAME,
    OF_DELETED,
    OF_OTHERS,
    READ,
    STORE,
    OctetStream,
    Operation,
    PlainText,
    reading,
    storing,
)
from ullage.wire.provenance import Event, EventPage, Lineage, Replayability, ReplayRequest, ReplayResult
from ullage.wire.queues import DropResult, FlowFile, FlowFileBatch, QueueSettings, QueueStatus
from ullage.wire.service import ClockStatus, ServiceStatus
from ullage.wire.sessions import (
    ChangesRequest,
    CloneRequest,
    CommitRequest,
    CreateRequest,
    ExtendRequest,
    ImportRequest,
    MergeRequest,
    PollRequest,
    RollbackRequest,
    SessionPollRequest,
    SessionRequest,
    SessionStatus,
    SplitRequest,
)
from ullage.wire.setaside import RecordSetAside, SetAsideDrop, SetAsideResult
from ullage.wire.space import (
    CleaningReport,
    CleaningRequest,
    CompactionPolicies,
    GoalStatus,
    Plan,
    ResourceClaimMap,
    ResourceClaimPage,
    RunProgress,
    RunRequest,
    SpaceExplanation,
    SpaceForecast,
    Survey,
)
from ullage.wire.tickets import NodeIdentity
from ullage.wire.unavailable import AcceptedLoss, UnavailableContent, UnavailableResult
from ullage.wire.upkeep import CheckpointReport, CheckReport
from ullage.wire.volumes import Volume, VolumeForgotten

HOLDING: Final = (Right.HOLDERS,)
RECORDS: Final = (Right.RECORDS,)
READING: Final = (Right.READ,)
WRITING: Final = (Right.WRITE,)
DELETING: Final = (Right.DELETE,)
UNDELETING: Final = (Right.UNDELETE,)
PAST: Final = (Right.PROVENANCE,)
PAST_CONTENT: Final = (Right.PROVENANCE, Right.READ)
SPACE: Final = (Right.SPACE,)
LEASING: Final = (Right.LEASE,)
RECLAIMING: Final = (Right.RECLAIM,)


GET_HEALTH: Final = Operation("getHealth", "GET /healthz", PlainText)
"""Answers 200 as long as the process does."""

GET_READINESS: Final = Operation("getReadiness", "GET /readyz", PlainText)
"""Answers 200 while commits can succeed. It is 503 while the service stops, or needs a restart after a failure."""

GET_STATE: Final = reading("getState", "/v1/state", ServiceStatus, SPACE)
"""Return the state of the repository at a glance."""

GET_NODE: Final = reading("getNode", "/v1/node", NodeIdentity, ())
"""Return what the node says of itself: what its handles carry behind their `@`, and whose repository it has."""

LIST_HANDLES: Final = reading("listHandles", "/v1/handles", HandlePage, RECORDS, *HANDLE_NAME)
"""List handles by id, deleted ones whose retention lasts included."""

PUT_HANDLE: Final = storing("putHandle", "POST /v1/handles -> 201", StoredHandle, OctetStream)
"""Store the body as a handle. The answer comes when it is durable."""

PUT_HANDLES: Final = storing("putHandles", "POST /v1/handles/batch -> 201", StoredBatch, HandleBatch)
"""Store many small contents in one transaction: all of them or none."""

GET_HANDLES: Final = Operation(
    "getHandles",
    "POST /v1/handles/batch/get",
    list[HandleContent],
    READING,
    (*HANDLE, *READ),
    body=HandleIds,
    is_repeatable=True,
)
"""Read many small contents. Ask for `application/x-msgpack` to get bytes rather than base64."""

GET_HANDLE: Final = reading("getHandle", "/v1/handles/{id}", OctetStream, READING, *READ, sometimes=OF_DELETED)
"""Return the content, or a range of it."""

DESCRIBE_HANDLE: Final = reading("describeHandle", "/v1/handles/{id}/head", HandleHead, RECORDS)
"""Return size, attributes and dates, also of a deleted handle while its tombstone stands."""

DELETE_HANDLE: Final = Operation("deleteHandle", "DELETE /v1/handles/{id}", ActionResult, DELETING, COMMIT)
"""Delete a handle; until its retention ends it can be undeleted."""

UNDELETE_HANDLE: Final = Operation(
    "undeleteHandle", "POST /v1/handles/{id}/undelete", ActionResult, UNDELETING, (errors.HandleNotDeleted, *COMMIT)
)
"""Bring a deleted handle back."""

SET_HANDLE_TTL: Final = Operation("setHandleTtl", "PUT /v1/handles/{id}/ttl", HandleHead, DELETING, COMMIT)
"""Let a handle live for so long from now on, whatever was said before."""

LIST_QUEUES: Final = reading("listQueues", "/v1/queues", list[QueueStatus], RECORDS)
"""List all queues by name."""

GET_QUEUE: Final = reading("getQueue", "/v1/queues/{queue}", QueueStatus, RECORDS, errors.QueueNotFound)
"""Return the settings and figures of one queue."""

DEFINE_QUEUE: Final = Operation(
    "defineQueue", "PUT /v1/queues/{queue}", QueueStatus, (Right.QUEUES,), STORE, body=QueueSettings
)
"""Make a queue, or give it new settings. A repeat changes nothing; one with a key does not undo newer settings."""

REMOVE_QUEUE: Final = Operation(
    "removeQueue",
    "DELETE /v1/queues/{queue}",
    ActionResult,
    (Right.QUEUES,),
    (errors.QueueNotFound, errors.QueueNotEmpty, *COMMIT),
)
"""Remove a queue that is empty."""

LIST_FLOW_FILES: Final = reading(
    "listFlowFiles", "/v1/queues/{queue}/flowfiles", list[FlowFile], RECORDS, errors.QueueNotFound
)
"""List FlowFiles of a queue in its order, from behind the first `skip` on, without those that a session holds. There
are fewer than `limit` where their attributes are large: only an answer without any is the end.
"""

PUT_FLOW_FILE: Final = storing("putFlowFile", "POST /v1/queues/{queue}/flowfiles -> 201", StoredFlowFile, OctetStream)
"""Store the body as a FlowFile of this queue. 429 while the queue is full, unless forced."""

PUT_FLOW_FILES: Final = storing("putFlowFiles", "POST /v1/queues/{queue}/batch -> 201", StoredBatch, FlowFileBatch)
"""Store many small contents as FlowFiles in one transaction: all of them or none."""

POLL_QUEUE: Final = Operation(
    "pollQueue",
    "POST /v1/queues/{queue}/poll -> 201",
    SessionStatus,
    DELETING,
    (errors.QueueNotFound,),
    body=PollRequest,
)
"""Take FlowFiles for as long as the visibility time lasts: a session that holds them. See `/v1/sessions`."""

DROP_FLOW_FILES: Final = Operation(
    "dropFlowFiles", "DELETE /v1/queues/{queue}/flowfiles", DropResult, DELETING, (errors.QueueNotFound, *COMMIT)
)
"""Drop all FlowFiles of a queue that no session holds. A repeat with the key drops nothing that came since."""

BEGIN_SESSION: Final = Operation(
    "beginSession", "POST /v1/sessions -> 201", SessionStatus, DELETING, body=SessionRequest
)
"""Open a session that holds nothing yet."""

GET_SESSION: Final = reading("getSession", "/v1/sessions/{session}", SessionStatus, RECORDS)
"""List the FlowFiles that a session holds."""

EXTEND_SESSION: Final = Operation(
    "extendSession",
    "POST /v1/sessions/{session}/extend",
    ActionResult,
    DELETING,
    body=ExtendRequest,
    is_repeatable=True,
)
"""Begin the visibility time of a session anew, as a heartbeat."""

POLL_SESSION: Final = Operation(
    "pollSession",
    "POST /v1/sessions/{session}/poll -> 201",
    list[FlowFile],
    DELETING,
    (errors.QueueNotFound,),
    body=SessionPollRequest,
)
"""Take more FlowFiles into the session."""

CREATE_FLOW_FILE: Final = storing(
    "createFlowFile", "POST /v1/sessions/{session}/create -> 201", FlowFile, CreateRequest
)
"""Make a FlowFile without content; its parents are FlowFiles of the session."""

STORE_FLOW_FILE: Final = storing("storeFlowFile", "POST /v1/sessions/{session}/flowfiles -> 201", FlowFile, OctetStream)
"""Make a FlowFile in the session, with the body as its content; its parents are FlowFiles of the session."""

IMPORT_HANDLE: Final = storing(
    "importHandle", "POST /v1/sessions/{session}/import -> 201", FlowFile, ImportRequest, *HANDLE
)
"""Make a FlowFile over the content of a handle; nothing is copied."""

INGEST_FLOW_FILES: Final = storing(
    "ingestFlowFiles", "POST /v1/sessions/{session}/ingest -> 201", StoredBatch, FlowFileBatch
)
"""Make a FlowFile of each content, on its way to a queue."""

GET_FLOW_FILE: Final = reading(
    "getFlowFileContent", "/v1/sessions/{session}/flowfiles/{id}", OctetStream, READING, *READ
)
"""Return the content of a FlowFile that the session holds, or a range of it."""

WRITE_FLOW_FILE: Final = storing("writeFlowFile", "PUT /v1/sessions/{session}/flowfiles/{id}", FlowFile, OctetStream)
"""Replace the content of a FlowFile that the session holds by the body."""

APPEND_FLOW_FILE: Final = storing(
    "appendFlowFile", "POST /v1/sessions/{session}/flowfiles/{id}/append -> 201", FlowFile, OctetStream
)
"""Put the body behind the content of a FlowFile that the session holds."""

CLONE_FLOW_FILE: Final = storing(
    "cloneFlowFile",
    "POST /v1/sessions/{session}/flowfiles/{id}/clone -> 201",
    FlowFile,
    CloneRequest,
    errors.RangeNotSatisfiable,
)
"""Make a FlowFile over the same content, or a slice of it; nothing is copied."""

SPLIT_FLOW_FILE: Final = storing(
    "splitFlowFile",
    "POST /v1/sessions/{session}/flowfiles/{id}/split -> 201",
    list[FlowFile],
    SplitRequest,
    errors.RangeNotSatisfiable,
)
"""Make FlowFiles over consecutive slices of the content; nothing is copied."""

MERGE_FLOW_FILES: Final = storing(
    "mergeFlowFiles", "POST /v1/sessions/{session}/merge -> 201", FlowFile, MergeRequest, *READ
)
"""Make a FlowFile whose content is that of others in order."""

CHANGE_FLOW_FILES: Final = Operation(
    "changeFlowFiles", "POST /v1/sessions/{session}/changes", ActionResult, DELETING, STORE, body=ChangesRequest
)
"""Change what the session holds, in order; nobody sees it before the commit."""

COMMIT_SESSION: Final = Operation(
    "commitSession", "POST /v1/sessions/{session}/commit", ActionResult, DELETING, STORE, body=CommitRequest
)
"""Settle everything in one transaction and end the session. A commit whose answer was lost can be sent again."""

ROLLBACK_SESSION: Final = Operation(
    "rollbackSession",
    "POST /v1/sessions/{session}/rollback",
    ActionResult,
    DELETING,
    body=RollbackRequest,
    is_repeatable=True,
)
"""Put everything back as it was and end the session."""

SEARCH_EVENTS: Final = reading("searchEvents", "/v1/provenance/events", EventPage, PAST)
"""Search events, in order. A condition that is left out is not applied."""

GET_EVENT: Final = reading("getEvent", "/v1/provenance/events/{event}", Event, PAST)
"""Return one event, by its sequence number or by its id, such as 17.0."""

GET_EVENT_CONTENT: Final = reading(
    "getEventContent", "/v1/provenance/events/{event}/content", OctetStream, PAST_CONTENT, *READ, sometimes=OF_DELETED
)
"""Return the content at the event, or before it, as long as its bytes are there."""

CHECK_REPLAY: Final = reading(
    "checkReplay", "/v1/provenance/events/{event}/replay", Replayability, PAST_CONTENT, sometimes=OF_DELETED
)
"""Say whether the event can be replayed now, and why not. It reads the whole content to find out."""

REPLAY_EVENT: Final = Operation(
    "replayEvent",
    "POST /v1/provenance/events/{event}/replay -> 201",
    ReplayResult,
    (Right.PROVENANCE, Right.READ, Right.WRITE),
    (errors.ReplayRefused, *STORE),
    body=ReplayRequest,
    sometimes=OF_DELETED,
)
"""Put what the event was about back into the queue it came from, or into another one."""

TRACE_LINEAGE: Final = reading("traceLineage", "/v1/provenance/lineage/{flow_file}", Lineage, PAST)
"""Return what a FlowFile was made from and what became of it."""

SURVEY_SPACE: Final = reading("surveySpace", "/v1/reclamation/survey", Survey, SPACE)
"""Return what the disk holds now: live, dead, archived, and kept for an undelete."""

EXPLAIN_SPACE: Final = reading("explainSpace", "/v1/reclamation/explanation", SpaceExplanation, SPACE)
"""Say of every allocated byte what it is there for, and of dead ones until when. It reads all directories."""

FORECAST_SPACE: Final = reading("forecastSpace", "/v1/reclamation/forecast", SpaceForecast, SPACE)
"""Say of every dead byte of content by what and when it comes back, or what keeps it and what would help."""

GET_GOAL: Final = reading("getGoal", "/v1/reclamation/goal", GoalStatus, SPACE)
"""Say how spec.compaction.goal is held, what was decided, and what will be missed and why."""

LIST_RESOURCE_CLAIMS: Final = reading("listResourceClaims", "/v1/reclamation/resources", ResourceClaimPage, SPACE)
"""List resource claims by index, for a map of the disk."""

MAP_RESOURCE_CLAIM: Final = reading("mapResourceClaim", "/v1/reclamation/resources/{resource}", ResourceClaimMap, SPACE)
"""Return which bytes of one file live, which are dead, and which are holes."""

PLAN_RECLAMATION: Final = reading("planReclamation", "/v1/reclamation/plan", Plan, SPACE, errors.UnknownPlugin)
"""Return what a run would do now, and how many bytes it would copy. Nothing is changed."""

LIST_POLICIES: Final = reading("listPolicies", "/v1/reclamation/policies", CompactionPolicies, SPACE)
"""List the policies of compaction that are installed here, those of other packages included."""

LIST_WINDOWS: Final = reading("listWindows", "/v1/reclamation/windows", list[WindowStatus], SPACE)
"""Say of each operation whether it is allowed now, until when or from when on, and why."""

LIST_OPENINGS: Final = reading("listOpenings", "/v1/reclamation/openings", list[Opening], SPACE)
"""Say of each window of spec.maintenance when it was last open, whether it is now, and when it opens next."""

GET_MAINTENANCE: Final = reading("getMaintenance", "/v1/reclamation/maintenance", dict[str, Any], SPACE)
"""Return spec.maintenance, as it is set, in the notation of Kubernetes."""

CLEAN: Final = Operation(
    "cleanRepository",
    "POST /v1/reclamation/clean",
    CleaningReport,
    RECLAIMING,
    (errors.WindowClosed, *COMMIT),
    body=CleaningRequest,
    is_long=True,
)
"""Take away what nobody refers to: expired FlowFiles and handles, unused resource claims, old archive."""

BEGIN_RUN: Final = Operation(
    "beginRun",
    "POST /v1/reclamation/runs -> 202",
    RunProgress,
    RECLAIMING,
    (errors.WindowClosed, errors.CompactionRefused, errors.RunUnderWay),
    body=RunRequest,
)
"""Begin a run that gives space back, as the windows allow. The answer comes at once, and the run goes on."""

LIST_RUNS: Final = reading("listRuns", "/v1/reclamation/runs", list[RunProgress], SPACE)
"""List the last runs, oldest first."""

GET_RUN: Final = reading("getRun", "/v1/reclamation/runs/{run}", RunProgress, SPACE)
"""Return how far one run is."""

STOP_RUN: Final = Operation(
    "stopRun", "DELETE /v1/reclamation/runs/{run} -> 202", RunProgress, RECLAIMING, is_repeatable=True
)
"""Stop a run after its present action."""

LIST_LEASES: Final = reading("listLeases", "/v1/leases", list[LeaseStatus], SPACE)
"""List every lease that stands, by its beginning."""

ACQUIRE_LEASE: Final = Operation(
    "acquireLease",
    "POST /v1/leases -> 201",
    LeaseStatus,
    LEASING,
    (errors.LeaseRefused, errors.ClaimGone, *COMMIT),
    body=LeaseRequest,
)
"""Take a lease. Its time is bounded by spec.leases.maxDuration; it need not be given back to end."""

GET_LEASE: Final = reading("getLease", "/v1/leases/{lease}", LeaseStatus, SPACE)
"""Return one lease."""

RENEW_LEASE: Final = Operation(
    "renewLease",
    "POST /v1/leases/{lease}/renew",
    LeaseStatus,
    LEASING,
    (errors.LeaseRefused, *COMMIT),
    body=LeaseRenewal,
    sometimes=OF_OTHERS,
)
"""Renew a lease, as a heartbeat."""

RELEASE_LEASE: Final = Operation(
    "releaseLease", "DELETE /v1/leases/{lease}", ActionResult, LEASING, COMMIT, sometimes=OF_OTHERS
)
"""Release a lease: its holder has read what it wanted."""

REVOKE_LEASE: Final = Operation("revokeLease", "POST /v1/leases/{lease}/revoke", ActionResult, (Right.REVOKE,), COMMIT)
"""End somebody's lease against their will: their reads fail from now on."""

GET_CONTENT: Final = reading(
    "getContent", "/v1/contents/{id}", OctetStream, READING, errors.FlowFileNotFound, *HANDLE, *READ
)
"""Return the content of a handle or of a FlowFile, which stays in its queue, or a range of it."""

LIST_HOLDERS: Final = reading("listHolders", "/v1/holders", list[HolderStatus], HOLDING)
"""List who holds what and until when: leases, staged writes, sessions, snapshots, streams, events, uploads."""

LIST_UNAVAILABLE: Final = reading("listUnavailable", "/v1/unavailable", list[UnavailableContent], RECORDS)
"""List FlowFiles and handles whose content is known to be damaged or missing."""

RETRY_UNAVAILABLE: Final = Operation(
    "retryUnavailable", "POST /v1/unavailable/retry", UnavailableResult, ADMINISTERING, is_repeatable=True, is_long=True
)
"""Read again what could not be read, and let FlowFiles whose content reads back return to their places."""

DROP_UNAVAILABLE: Final = Operation(
    "dropUnavailable",
    "POST /v1/unavailable/drop",
    UnavailableResult,
    ADMINISTERING,
    COMMIT,
    body=AcceptedLoss,
    is_repeatable=True,
)
"""Give up FlowFiles and handles whose content can't be read. Others are left alone."""

LIST_SET_ASIDE: Final = reading("listSetAside", "/v1/set-aside", list[RecordSetAside], RECORDS)
"""List records of the log, the snapshot and swap files that can't be used and were set aside."""

DROP_SET_ASIDE: Final = Operation(
    "dropSetAside",
    "POST /v1/set-aside/drop",
    SetAsideResult,
    ADMINISTERING,
    COMMIT,
    body=SetAsideDrop,
    is_repeatable=True,
)
"""Give up records that were set aside, and the FlowFiles that went with them."""

LIST_VOLUMES: Final = reading("listVolumes", "/v1/volumes", list[Volume], SPACE)
"""List the volumes that containers lie on: what each can do now, and what would be lost with it."""

FORGET_VOLUME: Final = Operation(
    "forgetVolume", "POST /v1/volumes/forget", Volume, ADMINISTERING, COMMIT, body=VolumeForgotten
)
"""Give up a volume that is away, with all content on it."""

ACCEPT_CLOCK: Final = Operation(
    "acceptClock", "POST /v1/clock/accept", ClockStatus, ADMINISTERING, STORE, is_repeatable=True
)
"""Believe the machine's clock, where that is implausible: whatever is due by it is due."""

CHECK: Final = Operation("checkRepository", "POST /v1/check", CheckReport, ADMINISTERING, is_long=True)
"""Verify everything against everything; deeply, every byte of live content too."""

CHECKPOINT: Final = Operation(
    "writeCheckpoint", "POST /v1/checkpoint", CheckpointReport, ADMINISTERING, STORE, is_long=True
)
"""Write a snapshot, and drop the logs that it covers."""

OPERATIONS: Final = tuple(each for each in tuple(vars().values()) if isinstance(each, Operation))
"""All of these."""

prepare(
    *(kind for each in OPERATIONS for kind in (each.body, each.answer) if kind not in (None, OctetStream, PlainText))
)

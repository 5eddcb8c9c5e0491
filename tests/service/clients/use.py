"""Uses the client that openapi-python-client has made: `python use.py URL`. A test checks and runs it."""

import io
import sys

from ullage_http import Client
from ullage_http.api.handles import describe_handle, get_handle, put_handle
from ullage_http.api.leases import acquire_lease, release_lease
from ullage_http.api.provenance import search_events
from ullage_http.api.queues import define_queue, get_queue, poll_queue, put_flow_file
from ullage_http.api.reclamation import plan_reclamation
from ullage_http.api.sessions import (
    begin_session,
    commit_session,
    get_flow_file_content,
    get_session,
    split_flow_file,
    store_flow_file,
)
from ullage_http.models import (
    ActionResult,
    CommitRequest,
    EventPage,
    FlowFile,
    HandleHead,
    LeaseRequest,
    LeaseStatus,
    Plan,
    PollRequest,
    ProblemDetails,
    QueueSettings,
    QueueStatus,
    SessionRequest,
    SessionStatus,
    SplitRequest,
    StoredFlowFile,
    StoredHandle,
)
from ullage_http.types import File, Response

client = Client(base_url=sys.argv[1])
CONTENT = bytes(range(256))


def put() -> Response[StoredHandle | ProblemDetails]:
    """The same each time, carried out once."""
    body = File(io.BytesIO(CONTENT))
    return put_handle.sync_detailed(client=client, body=body, attribute=["colour=red"], idempotency_key="k1")


stored = put().parsed
assert isinstance(stored, StoredHandle)
assert stored.size == len(CONTENT)
again = put()
assert isinstance(again.parsed, StoredHandle)
assert (again.parsed.id, again.headers["Ullage-Repeated"]) == (stored.id, "true")
part = get_handle.sync_detailed(stored.id, client=client, range_="bytes=10-12")
assert isinstance(part.parsed, File)
assert (part.status_code, part.parsed.payload.read()) == (206, CONTENT[10:13])
head = describe_handle.sync(stored.id, client=client)
assert isinstance(head, HandleHead)
assert head.attributes["colour"] == "red"
missing = get_handle.sync("0" * 32, client=client)
assert isinstance(missing, ProblemDetails)
assert missing.slug == "no-such-handle"

queue = define_queue.sync("in", client=client, body=QueueSettings(count_max=1))
assert isinstance(queue, QueueStatus)
made = put_flow_file.sync("in", client=client, body=File(io.BytesIO(b"flow")))
assert isinstance(made, StoredFlowFile)
full = put_flow_file.sync_detailed("in", client=client, body=File(io.BytesIO(b"more")))
assert isinstance(full.parsed, ProblemDetails)
assert (full.status_code, full.parsed.slug, full.headers["Retry-After"]) == (429, "back-pressure", "5")
held = poll_queue.sync("in", client=client, body=PollRequest(count=10))
assert isinstance(held, SessionStatus)
assert [each.id for each in held.flow_files] == [made.id]
content = get_flow_file_content.sync(held.session, made.id, client=client)
assert isinstance(content, File)
assert content.payload.read() == b"flow"
commit_session.sync(held.session, client=client, body=CommitRequest(rest_to="out"))
moved = get_queue.sync("out", client=client)
assert isinstance(moved, QueueStatus)
assert moved.flow_files == 1

slashed = define_queue.sync("a/b", client=client, body=QueueSettings())
assert isinstance(slashed, QueueStatus)
assert slashed.name == "a/b"
begun = begin_session.sync(client=client, body=SessionRequest(component="maker"))
assert isinstance(begun, SessionStatus)
stored_one = store_flow_file.sync(begun.session, client=client, body=File(io.BytesIO(b"a,b")))
assert isinstance(stored_one, FlowFile)
halves = split_flow_file.sync(begun.session, stored_one.id, client=client, body=SplitRequest(sizes=[1, 2]))
assert isinstance(halves, list)
assert [each.size for each in halves] == [1, 2]
settled = commit_session.sync(begun.session, client=client, body=CommitRequest(rest_to="a/b"))
assert isinstance(settled, ActionResult)
gone = get_session.sync_detailed(begun.session, client=client)
assert isinstance(gone.parsed, ProblemDetails)
assert (gone.status_code, gone.parsed.slug) == (410, "session-gone")
events = search_events.sync(client=client, component="maker", type_=["FORK"])
assert isinstance(events, EventPage)
assert {child for each in events.events for child in each.children} == {each.id for each in halves}
lease = acquire_lease.sync(client=client, body=LeaseRequest(duration_millis=1_000))
assert isinstance(lease, LeaseStatus)
released = release_lease.sync(lease.id, client=client)
assert isinstance(released, ActionResult)

plan = plan_reclamation.sync(client=client)
assert isinstance(plan, Plan)
assert plan.step_count == len(plan.steps)

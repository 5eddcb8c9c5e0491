"""Which events a session, a queue and a handle leave without being asked (NiFi in Depth)."""

from tests.engine.provenance.history import history, of_type, types
from tests.support import Workshop, committing, put_all
from ullage.engine.engine import Engine
from ullage.engine.model import EventType


def test_a_new_flow_file_is_created(repository: Engine) -> None:
    """CREATE carries the attributes and the claim as of the commit, and nothing from before."""
    with repository.session("gen", "GenerateFlowFile") as session:
        made = session.write(session.create(attributes={"a": "1"}), b"content")
        made = session.put_attribute(made, "b", "2")
        session.transfer(made, "q")
        session.commit()

    (event,) = history(repository)
    assert (event.type, event.sequence, event.ordinal, event.uuid) == (EventType.CREATE, 1, 0, made.uuid)
    assert (event.component, event.component_type) == ("gen", "GenerateFlowFile")
    assert event.attribute_map() == {"a": "1", "b": "2"}
    assert event.updated_attributes() == {"a": "1", "b": "2"}
    assert event.previous_attributes() == {}
    assert event.content_before is None
    assert event.content is not None
    assert event.content.size == 7
    assert event.size == 7
    assert event.filename == made.id


def test_an_ingested_batch_costs_one_run(workshop: Workshop) -> None:
    """A hundred ingested FlowFiles have a hundred events, and add less than a byte each to the log."""
    sizes = []
    for number, enabled in enumerate((False, True)):
        shop = Workshop(workshop.path / str(number))
        workshop.path.mkdir(exist_ok=True)
        repository = shop.make(provenance={"enabled": enabled})
        repository.queue("q")
        before = repository.log.log_bytes
        put_all(repository, "q", [b"x"] * 100)
        sizes.append(repository.log.log_bytes - before)
        events = history(repository)
        assert len(events) == (100 if enabled else 0)
        shop.close()
    assert sizes[1] - sizes[0] < 100


def test_a_received_flow_file_is_not_created_as_well(repository: Engine) -> None:
    """RECEIVE takes the place of CREATE, for single FlowFiles and for an ingested batch."""
    with repository.session("get", "GetHTTP") as session:
        one = session.create()
        session.transfer(one, "q")
        session.provenance.receive(one, "https://example.org/", details="seed", duration_millis=12)
        batch = session.ingest("q", [b"a", b"b", b"c"])
        session.provenance.receive(batch[:2], "file:///tmp")
        session.commit()

    events = history(repository)
    assert sorted(types(events)) == ["CREATE", "RECEIVE", "RECEIVE", "RECEIVE"]
    (first,) = [event for event in events if event.uuid == one.uuid]
    assert (first.transit_uri, first.details, first.duration_millis) == ("https://example.org/", "seed", 12)
    (created,) = of_type(repository, EventType.CREATE)
    assert created.uuid == batch[2].uuid


def test_a_changed_flow_file_tells_what_it_was(repository: Engine) -> None:
    """CONTENT_MODIFIED and ATTRIBUTES_MODIFIED carry attributes and claims from before and after."""
    put_all(repository, "in", [b"one", b"two"], a="1", b="2")
    with repository.session("update") as session:
        first, second = session.get_many("in", 2)
        session.transfer(session.remove_attributes(session.put_attribute(first, "a", "9"), ["b"]), "out")
        session.transfer(session.write(second, b"other content"), "out")
        session.commit()

    attributes, content = history(repository)[2:]
    assert (attributes.type, attributes.uuid) == (EventType.ATTRIBUTES_MODIFIED, first.uuid)
    assert attributes.previous_attributes() == {"a": "1", "b": "2"}
    assert attributes.updated_attributes() == {"a": "9", "b": None}
    assert attributes.queue == "in"
    assert attributes.content == attributes.content_before
    assert (content.type, content.uuid) == (EventType.CONTENT_MODIFIED, second.uuid)
    assert content.content_before is not None
    assert content.content is not None
    assert (content.content_before.size, content.content.size) == (3, 13)


def test_moving_on_is_silent_and_a_relationship_is_a_route(repository: Engine) -> None:
    """A transfer without a name leaves nothing: so a funnel with one output is invisible."""
    put_all(repository, "in", [b"x"])
    for source, target, relationship in (("in", "funnel", ""), ("funnel", "out", "matched")):
        with committing(repository) as session:
            flow_file = session.get(source)
            assert flow_file is not None
            session.transfer(flow_file, target, relationship)

    assert types(history(repository)) == ["CREATE", "ROUTE"]
    assert history(repository)[1].relationship == "matched"


def test_children_name_their_parents(repository: Engine) -> None:
    """CLONE and FORK are the parent's events and name the children, JOIN is the child's and names the parents."""
    put_all(repository, "in", [b"abcdef"])
    with committing(repository) as session:
        (parent,) = session.get_many("in", 1)
        clone = session.clone(parent)
        parts = session.split(parent, [2, 4])
        merged = session.merge([clone, *parts])
        session.transfer_many([parent, clone, *parts, merged], "out")

    clone_event, join, fork = history(repository)[1:]
    assert types([clone_event, join, fork]) == ["CLONE", "JOIN", "FORK"]
    assert (clone_event.uuid, clone_event.children) == (parent.uuid, clone.uuid)
    assert (fork.uuid, fork.children) == (parent.uuid, b"".join(part.uuid for part in parts))
    assert (join.uuid, join.parents) == (merged.uuid, b"".join(each.uuid for each in (clone, *parts)))


def test_what_goes_is_dropped_with_its_last_attributes(repository: Engine) -> None:
    """DROP shows what the session had changed, and a reported reason; what it made and removed left no trace."""
    put_all(repository, "in", [b"x", b"y"], a="1")
    with committing(repository) as session:
        first, second = session.get_many("in", 2)
        session.remove(session.put_attribute(first, "discard.reason", "no match"))
        session.provenance.drop(second, details="duplicate")
        session.remove_many([second, session.create()])

    reported, automatic = history(repository)[2:]
    assert types([reported, automatic]) == ["DROP", "DROP"]
    assert (reported.uuid, reported.details) == (second.uuid, "duplicate")
    assert (automatic.uuid, automatic.details) == (first.uuid, "no match")
    assert automatic.updated_attributes() == {"discard.reason": "no match"}
    assert automatic.content_before == automatic.content


def test_a_sent_flow_file_is_shown_as_it_was_sent(repository: Engine) -> None:
    """SEND keeps attributes and content of the emission; what the session changes later shows in its other events."""
    put_all(repository, "in", [b"sent"], a="1")
    with committing(repository) as session:
        (flow_file,) = session.get_many("in", 1)
        flow_file = session.put_attribute(flow_file, "a", "sent")
        session.provenance.send(flow_file, "sftp://example.org/x")
        flow_file = session.write(session.put_attribute(flow_file, "a", "later"), b"later")
        session.transfer(flow_file, "out")

    send, modified = history(repository)[1:]
    assert types([send, modified]) == ["SEND", "CONTENT_MODIFIED"]
    assert send.attribute_map() == {"a": "sent"}
    assert send.content == send.content_before
    assert modified.attribute_map() == {"a": "later"}


def test_what_was_sent_and_never_kept_is_told_all_the_same(repository: Engine) -> None:
    """A FlowFile that was created, sent and removed in one session leaves its SEND."""
    with committing(repository) as session:
        flow_file = session.create(attributes={"a": "1"})
        session.provenance.send(flow_file, "udp://example.org")
        session.remove(flow_file)

    (event,) = history(repository)
    assert (event.type, event.uuid, event.attribute_map()) == (EventType.SEND, flow_file.uuid, {"a": "1"})


def test_an_alternate_identifier_is_associated(repository: Engine) -> None:
    """Setting the attribute emits ADDINFO, on a new FlowFile, an old one and in a batch; reporting it does as well."""
    with committing(repository) as session:
        session.transfer(session.create(attributes={"x": "y"}), "q")
        session.ingest("q", [b"a"], {"alternate.identifier": "batch"})
    with committing(repository) as session:
        first, second = session.get_many("q", 2)
        session.transfer(session.put_attribute(first, "alternate.identifier", "file:1"), "q")
        session.provenance.associate(second, "sftp", "second.txt")
        session.transfer(second, "q")

    found = sorted(event.alternate_identifier for event in of_type(repository, EventType.ADDINFO))
    assert found == ["batch", "file:1", "sftp:second.txt"]


def test_emptied_and_expired_queues_tell_it(workshop: Workshop) -> None:
    """DROP for what is emptied, EXPIRE for what grew too old, swapped FlowFiles included."""
    repository = workshop.make(flow_file={"swap_threshold": 4, "swap_batch": 2})
    settings = {"priority": "FirstInFirstOut", "count_max": 0, "bytes_max": 0}
    repository.queues.define("brief", expiration_millis=1000, **settings)  # type: ignore[arg-type]
    expired = put_all(repository, "brief", [b"x"] * 9)
    emptied = put_all(repository, "plain", [b"y"] * 9)
    workshop.clock.advance(2)

    repository.queues.expire()
    repository.queues.drop(repository.queue("plain"))

    assert {event.uuid for event in of_type(repository, EventType.EXPIRE)} == {record.uuid for record in expired}
    assert {event.uuid for event in of_type(repository, EventType.DROP)} == {record.uuid for record in emptied}


def test_handles_have_a_history(workshop: Workshop, repository: Engine) -> None:
    """CREATE when stored, DROP when deleted, ADDINFO when undeleted, EXPIRE when their time is over."""
    brief, kept = (repository.handles.put(b"x", ttl_millis=ttl) for ttl in (1000, 0))
    repository.handles.delete(kept)
    repository.handles.undelete(kept)
    with committing(repository) as session:
        session.transfer(session.import_handle(_bytes(kept)), "q")
    workshop.clock.advance(2)
    repository.handles.purge()

    events = [(event.type.name, event.flow_file) for event in history(repository)]
    assert events[:4] == [("CREATE", brief), ("CREATE", kept), ("DROP", kept), ("ADDINFO", kept)]
    assert events[4][0] == "CLONE"
    assert history(repository)[4].parent_ids == [kept]
    assert events[5] == ("EXPIRE", brief)


def test_a_rollback_leaves_no_events(repository: Engine) -> None:
    """What was reported goes with the session's work."""
    with repository.session() as session:
        session.provenance.receive(session.create(), "nowhere")
        session.rollback()
        session.commit()

    assert history(repository) == []


def test_removal_passes_however_large_the_attributes_are(repository: Engine) -> None:
    """Attributes too large to be repeated are left out of the events, which say so; the FlowFiles go all the same."""
    for _ in range(3):
        put_all(repository, "q", [b"x"], large="v" * 2_000_000)
    repository.queues.drop(repository.queue("q"))

    dropped = of_type(repository, EventType.DROP)
    assert [event.previous_attributes() for event in dropped] == [{}] * 3
    assert all("attributes omitted" in event.details for event in dropped)


def _bytes(id: str) -> bytes:
    return bytes.fromhex(id.replace("-", ""))

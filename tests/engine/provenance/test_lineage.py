"""Lineage both ways, with its bounds, and what leads to what."""

import pytest

from tests.support import Workshop, put_all
from ullage.engine.engine import Engine
from ullage.engine.model import FlowFileRecord
from ullage.engine.provenance.lineage import trace
from ullage.engine.provenance.query import Page
from ullage.enums import LineageDirection
from ullage.errors import InvalidArgument
from ullage.wire.provenance import EventQuery


def family(repository: Engine) -> dict[str, FlowFileRecord]:
    """Two sources; one is split in two, a half is merged with the other source, the merged one is cloned and sent."""
    one, other = put_all(repository, "in", [b"aabb", b"cc"])
    with repository.session("split") as session:
        held = session.get_many("in", 2)
        left, right = session.split(held[0], [2, 2])
        session.remove(held[0])
        session.transfer_many([left, right, held[1]], "parts")
        session.commit()
    with repository.session("merge") as session:
        parts = {flow_file.uuid: flow_file for flow_file in session.get_many("parts", 3)}
        merged = session.merge([parts[left.uuid], parts[other.uuid]])
        session.remove_many([parts[left.uuid], parts[other.uuid]])
        session.transfer(parts[right.uuid], "rest")
        session.transfer(merged, "merged")
        session.commit()
    with repository.session("send") as session:
        (flow_file,) = session.get_many("merged", 1)
        clone = session.clone(flow_file)
        session.provenance.send(clone, "sftp://example.org")
        session.remove(flow_file)
        session.transfer(clone, "sent")
        session.commit()
    return {"one": one, "other": other, "left": left, "right": right, "merged": merged, "clone": clone}


def test_a_lineage_of_large_events_is_cut(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the limit of events: a graph is made, and sent, as a whole."""
    repository = workshop.make()
    made = family(repository)
    whole = repository.history.lineage(made["merged"].id)

    monkeypatch.setattr("ullage.engine.paging.PAGE_BYTES", 100)
    cut = repository.history.lineage(made["merged"].id)

    assert (whole.is_cut, cut.is_cut) == (False, True)
    assert 0 < len(cut.events) < len(whole.events)


@pytest.mark.parametrize("drains", [False, True])
def test_ancestors_and_descendants_are_found(workshop: Workshop, *, drains: bool) -> None:
    """The merged FlowFile came from both sources and went out; the other half is no relative of it."""
    repository = workshop.make()
    made = family(repository)
    if drains:
        repository.provenance.drain()
        repository.provenance.index_step()

    lineage = repository.history.lineage(made["merged"].id)

    names = [event.type.name for event in lineage.events]
    assert sorted(names) == ["CLONE", "CREATE", "CREATE", "DROP", "DROP", "DROP", "DROP", "FORK", "JOIN", "SEND"]
    assert made["right"].uuid not in {event.uuid for event in lineage.events}
    assert lineage.unexpanded == ()
    up = repository.history.lineage(made["merged"].id, way=LineageDirection.PARENTS)
    down = repository.history.lineage(made["merged"].id, way=LineageDirection.CHILDREN)
    assert {event.sequence for event in up.events} | {event.sequence for event in down.events} == {
        event.sequence for event in lineage.events
    }
    assert made["one"].uuid in {event.uuid for event in up.events}
    assert made["one"].uuid not in {event.uuid for event in down.events}


def test_nothing_is_searched_for_twice(repository: Engine) -> None:
    """Both ways begin at the same FlowFile, whose events one search brings."""
    merged = family(repository)["merged"]
    asked: list[tuple[str, ...]] = []

    def search(query: EventQuery) -> Page:
        asked.append(tuple(query.related))
        return repository.history.query(query)

    assert trace(search, [merged.uuid]) == repository.history.lineage(merged.id)
    assert len(asked) == len(set(asked)) > 2


def test_links_lead_from_cause_to_effect(repository: Engine) -> None:
    """An event follows its FlowFile's last one, a JOIN both its parents', a child's first one its FORK."""
    made = family(repository)

    lineage = repository.history.lineage(made["merged"].id)

    by_sequence = {event.sequence: event for event in lineage.events}
    links = {(by_sequence[one].type.name, by_sequence[other].type.name) for one, other in lineage.links}
    assert ("CREATE", "FORK") in links
    assert ("FORK", "JOIN") in links
    assert ("CREATE", "JOIN") in links
    assert all(one < other for one, other in lineage.links)
    reached = {other for _, other in lineage.links}
    assert {event.type.name for event in lineage.events if event.sequence not in reached} == {"CREATE"}


def test_depth_and_limit_bound_a_lineage_and_say_what_is_left(repository: Engine) -> None:
    """A depth of 0 is the FlowFile's own events; what was not expanded is named and can be expanded."""
    made = family(repository)

    own = repository.history.lineage(made["merged"].id, depth=0)
    assert {event.uuid for event in own.events} == {made["merged"].uuid}
    assert set(own.unexpanded) >= {made["left"].uuid, made["other"].uuid}
    parents = repository.history.lineage(made["merged"].id, way=LineageDirection.PARENTS, depth=1)
    assert made["left"].uuid in {event.uuid for event in parents.events}
    assert made["one"].uuid in parents.unexpanded
    cut = repository.history.lineage(made["merged"].id, events_max=3)
    assert cut.is_cut
    assert len(cut.events) == 3
    assert not own.is_cut
    for bounds in ({"depth": -1}, {"events_max": 0}, {"events_max": 10_001}):
        with pytest.raises(InvalidArgument):
            repository.history.lineage(made["merged"].id, **bounds)  # type: ignore[arg-type]


def test_an_unknown_flow_file_has_no_lineage(repository: Engine) -> None:
    """An empty graph, not an error."""
    family(repository)

    assert repository.history.lineage("00000000-0000-4000-8000-000000000000").events == ()


def test_content_gone_does_not_take_the_lineage_with_it(workshop: Workshop) -> None:
    """After the bytes were given back every event is still told."""
    repository = workshop.make(archive={"enabled": False})
    made = family(repository)
    before = {event.sequence for event in repository.history.lineage(made["one"].id).events}
    repository.queues.drop(repository.queue("rest"))
    repository.reclamation.clean()

    after = {event.sequence for event in repository.history.lineage(made["one"].id).events}

    assert before < after

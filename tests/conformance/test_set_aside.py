"""Records that can't be used, as a program meets them, here and over HTTP."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.conftest import opened
from tests.service.socket.conftest import short_path as short_path
from tests.support import careless_log as careless_log
from ullage import Repository
from ullage.embedded.repository import EmbeddedRepository
from ullage.engine.model import Update
from ullage.errors import InvalidArgument
from ullage.uuids import parse_uuid
from ullage.wire.provenance import EventQuery


@pytest.fixture(params=["embedded", "http", "all transports"])
def poisoned(
    request: pytest.FixtureRequest, tmp_path: Path, short_path: Path, careless_log: None
) -> Iterator[Repository]:
    """A FlowFile of which the log says what no start can use, and one beside it."""
    path = tmp_path / "repository"
    with opened("embedded", path, short_path) as repository:
        assert isinstance(repository, EmbeddedRepository)
        lost = repository.queues.put("in", b"lost")
        repository.queues.put("in", b"kept")
        engine = repository.engine
        engine.committer.commit([Update(parse_uuid(lost), queued=-1)], creates=False)
        engine.log.abandon()
    with opened(request.param, path, short_path) as repository:
        yield repository


def test_everything_else_serves_and_the_record_is_listed(poisoned: Repository) -> None:
    """With its place, its reason, its bytes and the FlowFile that went with it; a check succeeds."""
    (flow_file,) = poisoned.queues.flow_files("in")
    (record,) = poisoned.set_aside()

    with poisoned.content(flow_file.id) as content:
        assert content.read() == b"kept"
    assert (record.flow_file_count, record.holds_all, record.size) == (1, False, len(record.data))
    assert record.flow_files != [flow_file.id]
    assert "transaction" in record.place
    assert "does not decode" in record.reason
    assert parse_uuid(record.flow_files[0]) in record.data
    assert poisoned.state().records_set_aside == 1
    check = poisoned.check()
    assert check.problems == ()
    assert record.id in check.set_aside[0]


def test_only_an_accepted_loss_drops_it(poisoned: Repository) -> None:
    """Ids that are none are refused before anything is done, and those of nothing are passed over."""
    (record,) = poisoned.set_aside()

    with pytest.raises(InvalidArgument, match="accept_loss"):
        poisoned.drop_set_aside([record.id])
    with pytest.raises(InvalidArgument, match="no uuid"):
        poisoned.drop_set_aside([record.id, "nothing"], accept_loss=True)
    assert len(poisoned.set_aside()) == 1
    assert poisoned.drop_set_aside([record.id, record.flow_files[0]], accept_loss=True) == 1

    assert poisoned.set_aside() == []
    assert poisoned.state().records_set_aside == 0
    found = poisoned.provenance.search(EventQuery(types=["DROP"])).events
    assert [event.flow_file for event in found] == record.flow_files

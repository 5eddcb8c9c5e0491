"""What tables of large attributes take: room before a batch is made, and turns bit by bit."""

from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.service.flight.peer import Peer
from tests.service.running import until
from tests.support import (
    committing,
    seed as seed,  # a fixture
)
from ullage.embedded import eventtable
from ullage.embedded.pace import ALONE, Pace
from ullage.embedded.repository import EmbeddedRepository
from ullage.embedded.tables import Moment
from ullage.engine import batches
from ullage.engine.engine import Engine
from ullage.wire.tickets import TableTicket
from ullage_agent.service.access import Principal
from ullage_agent.service.budget import Grant
from ullage_agent.service.limits import Limits

NAMES = [f"n{number}" for number in range(2_000)]


def filled(repository: Engine, count: int = 60) -> Engine:
    """With many short attributes: as columns they take twice what they take in the log, as objects twenty times."""
    with committing(repository) as session:
        session.ingest("in", [b""] * count, [dict.fromkeys(NAMES, "") | {"mine": str(each)} for each in range(count)])
    return repository


class Asked(Pace):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.steps = 0

    def step(self) -> None:
        self.steps += 1

    def make(self, size: int) -> None:
        self.sizes.append(size)


@pytest.mark.parametrize("table", ["flowfiles", "provenance"])
@pytest.mark.parametrize("where", ["", "attributes['mine'] != '7'"])
@pytest.mark.parametrize("drained", [False, True])
def test_room_is_asked_for_before_a_batch_is_made(
    repository: Engine, monkeypatch: pytest.MonkeyPatch, table: str, where: str, *, drained: bool
) -> None:
    """At least what it takes, and not many times that; nothing large has been made by then."""
    monkeypatch.setattr("ullage.embedded.flowfiles.BATCH_BYTES", 300_000)
    monkeypatch.setattr("ullage.embedded.flowfiles.JOINED_BYTES", 300_000)
    filled(repository)
    if drained:
        repository.provenance.drain()
    pace = Asked()
    moment = Moment(EmbeddedRepository(repository, node="here"))
    wanted = TableTicket(name=table, columns=["uuid", "attributes"], where=where)
    asked: list[int] = []
    rows = 0
    for batch in moment.batches(wanted, pace):
        rows += batch.batch.num_rows
        asked, pace.sizes = asked + pace.sizes, []
        if not where and table == "flowfiles":
            assert batch.batch.nbytes <= asked[-1] <= 3 * batch.batch.nbytes
            assert asked[-1] < 400_000

    assert rows == 60 - bool(where)
    whole = pa.Table.from_batches([each.batch for each in moment.batches(wanted)]).nbytes
    assert whole < sum(asked) < 6 * whole
    assert len(asked) > 1 or drained


def test_flow_files_are_unpacked_with_pauses(repository: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they are shown or only looked at."""
    monkeypatch.setattr(batches, "STEP_BYTES", 20_000)
    moment = Moment(EmbeddedRepository(filled(repository, 30), node="here"))
    for where in ("", "attributes['mine'] LIKE '1%'"):
        pace = Asked()
        list(moment.batches(TableTicket(name="flowfiles", columns=["attributes"], where=where), pace))
        assert pace.steps > 5


def test_a_filter_finds_the_same_in_small_batches(repository: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of attributes that are looked at bit by bit."""
    filled(repository)

    def found(where: str) -> list[str]:
        with Peer.serving(repository) as peer:
            table = peer.table("flowfiles", columns=["attributes"], where=where)
        return [dict(row)["mine"] for row in table["attributes"].to_pylist()]

    conditions = ("attributes['mine'] = '7'", "attributes['mine'] LIKE '%1' AND attributes['n3'] = ''", "")
    whole = [found(where) for where in conditions]
    monkeypatch.setattr("ullage.embedded.flowfiles.BATCH_BYTES", 100_000)
    monkeypatch.setattr(batches, "STEP_BYTES", 10_000)
    assert [found(where) for where in conditions] == whole
    assert list(map(len, whole)) == [1, 6, 60]


SMALL = Limits(decoded_bytes=8 << 20, decoded_bytes_each=8 << 20, decoded_seconds=0.05)


def full(peer: Peer) -> Grant:
    """Nearly all of its room, held by somebody: a ticket still finds some."""
    return peer.terms.budget.count(Principal("somebody"), SMALL.decoded_bytes - (32 << 10))


@pytest.mark.parametrize("table", ["flowfiles", "provenance"])
def test_nothing_is_unpacked_without_room(repository: Engine, monkeypatch: pytest.MonkeyPatch, table: str) -> None:
    """The stream is refused instead; what is small is answered. And a stream that has ended has no room any more."""
    filled(repository)
    unpacked = batches.unpack_all_attributes
    calls: list[int] = []

    def noted(packed: Any) -> Any:
        calls.append(len(packed))
        return unpacked(packed)

    monkeypatch.setattr(batches, "unpack_all_attributes", noted)
    with Peer.serving(repository, SMALL) as peer:
        with full(peer):
            with pytest.raises(flight.FlightUnavailableError, match="under way"):
                peer.table(table)
            assert calls == []
            assert peer.table("queues").num_rows == 1
        assert peer.table(table).num_rows == 60
        assert calls
        reader = peer.client.do_get(flight.Ticket(b'{"kind":"table","name":"%b"}' % table.encode()))
        reader.read_chunk()
        reader.cancel()
        until(lambda: takes_all(peer), "its room is there again")


def takes_all(peer: Peer) -> bool:
    """Whether nobody has any room."""
    room = peer.terms.budget.take_now(Principal("somebody"), SMALL.decoded_bytes)
    if room is None:
        return False
    room.release()
    return True


def merged(before: list[tuple[str, str]], updated: list[tuple[str, str | None]]) -> list[tuple[str, str]]:
    found = dict(before)
    for name, value in updated:
        if value is None:
            found.pop(name, None)
        else:
            found[name] = value
    return list(found.items())


def test_attributes_of_events_are_merged_as_python_would(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, of columns that are parts of others, in steps of any size."""
    random = Random(seed)
    kind = pa.map_(pa.string(), pa.string())

    def maps(values: list[Any]) -> list[list[tuple[str, Any]]]:
        return [
            [(name, random.choice(values)) for name in random.sample("abcdef", random.randrange(5))] for _ in range(9)
        ]

    for _ in range(300):
        before, updated = maps(["x", "y", ""]), maps(["x", "z", None])
        start, end = random.randrange(3), random.randrange(4, 10)
        monkeypatch.setattr(eventtable, "STEP_ATTRIBUTES", random.choice([1, 10, 1_000]))
        columns = {"attributes_before": before, "attributes_updated": updated}
        found = eventtable.SOURCES["attributes"].make(
            {name: pa.array(rows, kind)[start:end] for name, rows in columns.items()}, ALONE
        )
        found.validate(full=True)
        assert found.to_pylist() == list(map(merged, before[start:end], updated[start:end]))

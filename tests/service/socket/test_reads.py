"""Reading through the Unix socket: descriptors, leases, what happens to files meanwhile."""

import errno
import os
import random
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from tests.service.socket.node import LOOSE, Node
from tests.service.socket.reader import Reader, Refusal
from tests.support import Workshop
from ullage.client.socket import HELD_SECONDS, SocketClient
from ullage.engine.content.protocol import IntentOutcome
from ullage.engine.model import Action, ResourceClaim
from ullage.engine.reclaim.report import ReclamationReport
from ullage.enums import GivenBack, SpaceUse
from ullage.errors import HandleDeleted, LeaseLost, NotReachable
from ullage.wire.frames import ClaimKey

KB = 1024
MB = 1 << 20


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_a_reader_written_from_the_document_alone_reads_everything(node: Node) -> None:
    """Empty, small, of one block, of many, and a slice: docs/protocol.md says all that is needed."""
    chooser = random.Random(1)
    contents = [b"", b"x", chooser.randbytes(256 * KB), chooser.randbytes(3 * MB + 17)]
    uuids = node.put(*contents)
    reader = Reader(node.path)

    assert [reader.read(uuid) for uuid in uuids] == contents
    assert (reader.version, reader.body_max, reader.resolve_max) == (1, 4 * MB, 10_000)
    reader.close()


def test_the_client_reads_what_was_put_and_in_its_order(node: Node) -> None:
    """Small neighbours are read together, larger ones by themselves, empty ones not at all: each gets its own bytes.
    One descriptor a file serves them all.
    """
    chooser = random.Random(2)
    sizes = [0, 1, 16 * KB, 16 * KB + 1, 0, 0, 100 * KB, 256 * KB, 256 * KB + 1, 2 * MB, 3] + [900] * 700
    sizes += [*(chooser.randint(0, 3_000) for _ in range(500)), 2 * MB]
    contents = [chooser.randbytes(size) for size in sizes]
    uuids = node.put(*contents)
    order = chooser.sample(range(len(uuids)), len(uuids))

    with SocketClient(node.path) as client:
        assert client.read_all(uuids) == contents
        assert client.read_all([uuids[at] for at in order]) == [contents[at] for at in order]
        assert b"".join(client.open(uuids[-1], 100, MB)[1]) == contents[-1][100 : 100 + MB]
        assert client.descriptors == len({place.file for place in client.resolve(uuids) if place.length})


def test_places_of_files_that_were_given_back_are_read_no_more(node: Node) -> None:
    """The descriptor is closed, its number may be another file's by now."""
    uuids = node.put(*[bytes([number]) * 60_000 for number in range(3)])
    with SocketClient(node.path) as client:
        places = client.resolve(uuids)

        client.give_back()

        with pytest.raises(LeaseLost, match="given back"):
            client.read(places)


@pytest.mark.parametrize(
    "read",
    [
        lambda client, uuid: client.read_all([uuid])[0],
        lambda client, uuid: b"".join(client.open(uuid)[1]),
    ],
    ids=["read_all", "stream"],
)
def test_a_program_that_reads_all_day_does_not_keep_every_file(
    node: Node, read: Callable[[SocketClient, bytes], bytes]
) -> None:
    """For half a minute the next content in a file costs no lease; then what is dead in there can be reclaimed."""
    contents = [bytes([number]) * 2 * MB for number in range(3)]  # each in a file of its own
    uuids = node.put(*contents)
    seconds = 0.0
    with SocketClient(node.path, now=lambda: seconds) as client:
        client.read_all(uuids)
        remove(node, uuids[1:])
        seconds = HELD_SECONDS
        assert read(client, uuids[0]) == contents[0]
        assert node.reclaim() == 0
        assert client.descriptors == 3
        before = disk(node)

        seconds += 1
        assert read(client, uuids[0]) == contents[0]

        assert client.descriptors == 1
        assert disk(node) == before - 4 * MB
        assert read(client, uuids[0]) == contents[0]


def test_what_is_missing_is_refused_in_its_place(node: Node) -> None:
    """A handle that was deleted or never was has a slug where the others have their place."""
    kept, deleted = node.put(b"kept", b"deleted")
    node.repository.handles.delete(deleted.hex())

    with SocketClient(node.path) as client:
        places = client.resolve([bytes(16), kept, deleted])
        assert [place.slug for place in places] == ["no-such-handle", "", "handle-deleted"]
        with pytest.raises(HandleDeleted):
            client.read_all([kept, deleted])
        assert client.read(places[1:2]) == [b"kept"]


def test_claims_are_resolved_by_their_address(node: Node) -> None:
    """A base claim's address, as the tables have it, is enough; one in a resource claim that never was is refused."""
    (uuid,) = node.put(b"content")
    claim = node.repository.handles.record(uuid).claim
    assert claim is not None
    key = ClaimKey(claim.resource, claim.offset, claim.length, claim.crc)

    with SocketClient(node.path) as client:
        places = client.resolve_claims([key, key._replace(resource=99_999)])
        assert [place.slug for place in places] == ["", "claim-gone"]
        assert client.read(places[:1]) == [b"content"]


def test_rewritten_content_is_found_where_it_lies_now(node: Node) -> None:
    """The address stays, the place is the output's."""
    chooser = random.Random(3)
    contents = [chooser.randbytes(20_000) for _ in range(80)]
    uuids = node.put(*contents)
    births = {node.repository.handles.record(uuid).claim.resource for uuid in uuids[::4]}  # type: ignore[union-attr]
    remove(node, [uuid for number, uuid in enumerate(uuids) if number % 4])
    assert node.reclaim() > 0

    with SocketClient(node.path) as client:
        places = client.resolve(uuids[::4])
        assert births.isdisjoint(place.file for place in places)
        assert client.read(places) == contents[::4]
    reader = Reader(node.path)
    assert reader.read(uuids[4]) == contents[4]
    reader.close()


def test_a_file_that_is_read_is_rewritten_and_read_on(node: Node) -> None:
    """Most of it dies, and what lives moves on. The reader in the middle reads its old file to the end: ranges, blocks,
    dead claims too. Until it closes it the survey counts its blocks, and it is told who has it.
    """
    chooser = random.Random(4)
    contents = [chooser.randbytes(60_000) for _ in range(60)] + [chooser.randbytes(MB)]
    uuids = node.put(*contents)
    client = SocketClient(node.path)
    places = client.resolve(uuids)
    half = client.read(places[:30])
    _, large = client.open(uuids[-1], 100, MB - 200)
    begun = next(large)
    before = disk(node)
    remove(node, [uuid for number, uuid in enumerate(uuids[:60]) if number % 10])

    assert node.reclaim() == 0
    assert half + client.read(places[30:-1]) == contents[:-1]
    assert begun + b"".join(large) == contents[-1][100:-100]
    again = client.resolve(uuids[:60:10])
    assert {place.file for place in again}.isdisjoint(place.file for place in places[:60])
    assert client.read(again) == contents[:60:10]
    held = [each for each in node.repository.account.forecast(node.repository.spec) if each.use == SpaceUse.LEASE]
    assert sum(each.bytes for each in held) >= 60 * 60_000
    assert all("socket: " in each.reason and each.when == GivenBack.HOLDER_LETS_GO for each in held)
    assert disk(node) >= before

    client.close()
    wait_for_no_lease(node)
    assert node.repository.reclamation.passed.kept() == []
    assert disk(node) < before - 2 * MB
    reader = Reader(node.path)
    assert [reader.read(uuid) for uuid in uuids[:60:10]] == contents[:60:10]
    reader.close()


@pytest.mark.parametrize("action", [Action.TRUNCATE, Action.PUNCH])
def test_an_output_is_not_changed_in_place_under_its_reader(node: Node, action: Action) -> None:
    """What the reader has found dies whole, and with it the record under which it was leased: nothing else ties the
    lease to the file that it was moved to.
    """
    chooser = random.Random(6)
    contents = [chooser.randbytes(900_000) for _ in range(3)]
    kept = [node.put(chooser.randbytes(700_000), content) for content in contents]
    remove(node, [uuids[0] for uuids in kept])
    assert run(node, Action.REWRITE).done[Action.REWRITE] == 3
    first, read, last = (uuids[1] for uuids in kept)
    client = SocketClient(node.path)
    places = client.resolve([read])
    size, pieces = client.open(read, 0)
    begun = next(pieces)
    remove(node, [read, last] if action == Action.TRUNCATE else [read])

    report = run(node, action)

    assert report.done[action] == 0
    assert client.read(places) == [contents[1]]
    assert begun + b"".join(pieces) == contents[1]
    assert size == len(contents[1])
    client.close()
    wait_for_no_lease(node)
    assert run(node, action).done[action] == 1
    with closing(Reader(node.path)) as reader:
        assert reader.read(first) == contents[0]


def test_no_descriptor_of_a_file_is_given_while_it_is_changed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content comes as bytes instead, and is right."""
    contents = [bytes([number]) * 200_000 for number in range(6)]
    uuids = node.put(*contents)
    remove(node, uuids[1::2])
    carrying_out, found = node.repository.content.carry_out, list[bytes]()

    def late(intents: Sequence[ResourceClaim]) -> list[IntentOutcome | OSError]:
        with SocketClient(node.path) as client:
            found.extend(client.read_all(uuids[::2]))
            assert client.descriptors == 0
        return carrying_out(intents)

    monkeypatch.setattr(node.repository.content, "carry_out", late)

    assert run(node, Action.PUNCH).done[Action.PUNCH] == 1

    assert found == contents[::2]
    with SocketClient(node.path) as client:
        assert client.read_all(uuids[::2]) == contents[::2]
        assert client.descriptors == 1


def test_a_change_that_has_failed_waits_for_its_reader(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its intent is durable, and the next run finishes it: unless somebody got a descriptor in between."""
    contents = [bytes([number]) * 200_000 for number in range(6)]
    uuids = node.put(*contents)
    remove(node, uuids[1::2])
    with monkeypatch.context() as patch:
        patch.setattr(node.repository.content, "carry_out", lambda intents: [OSError(errno.EIO, "it fails")])
        with pytest.raises(OSError, match="it fails"):
            run(node, Action.PUNCH)
    with SocketClient(node.path) as client:
        places = client.resolve(uuids[:3:2])
        before = os.fstat(next(iter(client._descriptors.values()))).st_blocks

        report = node.repository.reclamation.clean()

        assert [each.reason for each in report.left] == ["somebody reads it through a descriptor"]
        assert client.read(places) == contents[:3:2]
        assert os.fstat(next(iter(client._descriptors.values()))).st_blocks == before
    wait_for_no_lease(node)
    assert node.repository.reclamation.clean().done == {Action.PUNCH: 1}
    with SocketClient(node.path) as client:
        assert client.read_all(uuids[::2]) == contents[::2]


def test_a_dead_file_is_deleted_under_its_reader(node: Node) -> None:
    """All of it is gone from the directory, and what the reader has found it still reads."""
    contents = [bytes([number]) * 60_000 for number in range(20)]
    uuids = node.put(*contents)
    with SocketClient(node.path) as client:
        places = client.resolve(uuids)
        remove(node, uuids)

        assert node.reclaim() == 0
        assert list(node.repository.ledger.entries()) == []
        assert client.read(places) == contents
        assert disk(node) >= 20 * 60_000
    wait_for_no_lease(node)
    assert disk(node) == 0


def test_a_file_that_moves_between_the_look_and_the_opening_is_looked_up_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place that was found is another file's by then."""
    contents = [bytes([number]) * 60_000 for number in range(20)]
    uuids = node.put(*contents)
    remove(node, uuids[1::2])
    content = node.repository.content
    opening, opened = content.open_descriptor, list[int]()

    def late(claim: ResourceClaim) -> int:
        opened.append(claim.index)
        if len(opened) == 1:
            node.reclaim()
        return opening(claim)

    monkeypatch.setattr(content, "open_descriptor", late)
    with SocketClient(node.path) as client:
        assert client.read_all(uuids[::2]) == contents[::2]
    assert len(set(opened)) == 2
    wait_for_no_lease(node)
    assert node.repository.reclamation.passed.kept() == []


def test_files_that_were_given_back_are_leased_no_longer(node: Node) -> None:
    """The connection goes on without them."""
    uuids = node.put(*[bytes([number]) * 60_000 for number in range(40)])
    with SocketClient(node.path) as client:
        client.read_all(uuids)
        remove(node, uuids[1:])
        assert node.reclaim() == 0
        before = disk(node)

        client.give_back()

        assert node.repository.leases.all() == []
        assert disk(node) < before - 2 * MB
        assert client.read_all(uuids[:1]) == [bytes(60_000)]


def test_a_revoked_client_is_told_and_discards_what_it_read(node: Node) -> None:
    """An admin revokes: the client learns it by the look after its read; a new connection reads again."""
    uuids = node.put(*[bytes([number]) * 60_000 for number in range(40)])
    client = SocketClient(node.path)
    places = client.resolve(uuids)
    remove(node, uuids[1:])
    (lease,) = node.repository.leases.all()

    node.repository.leases.revoke(lease.id)
    assert node.repository.reclamation.execute(node.repository.reclamation.plan_truncation(eager=True)).done == {}
    node.server.look()

    with pytest.raises(LeaseLost, match="has ended: discard"):
        client.read(places)
    assert client.descriptors == 0
    wait_for_no_lease(node)
    assert node.reclaim() > 0
    assert client.read_all(uuids[:1]) == [bytes(60_000)]
    client.close()


def test_a_lease_ends_after_its_longest_time(workshop: Workshop, short_path: Path) -> None:
    """Then the connection is told to go: no program holds space for ever."""
    node = Node(workshop, short_path)
    (uuid,) = node.put(b"x")
    reader = Reader(node.path)
    assert reader.read(uuid) == b"x"

    workshop.clock.advance(node.repository.spec.leases.max_duration / 1000 + 1)
    node.server.look()

    with pytest.raises(Refusal, match="lease-lost"):
        reader.hear()
    assert node.server.wait_for(0, 10)
    assert reader.lost()
    reader.close()
    node.server.stop()


def test_a_stopping_server_says_so_and_leaves_nothing(node: Node) -> None:
    """Clients learn it, no lease and no socket file is left."""
    (uuid,) = node.put(b"x")
    client = SocketClient(node.path)
    (place,) = client.resolve([uuid])

    node.server.stop()

    with pytest.raises(LeaseLost, match="stopping"):
        client.read([place])
    with pytest.raises(NotReachable):
        client.read_all([uuid])
    assert node.repository.leases.all() == []
    assert not os.path.exists(node.path)
    client.close()


def test_a_restart_after_a_kill_forgets_the_leases_of_broken_connections(node: Node, workshop: Workshop) -> None:
    """They stand in the log with an hour to go; their clients saw the connection break, so nobody waits for them."""
    uuids = node.put(*[bytes([number]) * 60_000 for number in range(40)])
    client = SocketClient(node.path)
    client.resolve(uuids)
    assert len(node.repository.leases.all()) == 1
    crashed = node.server
    repository = workshop.crash(**LOOSE)
    assert len(repository.leases.all()) == 1

    crashed.stop()
    node.serve(repository)

    assert repository.leases.all() == []
    assert client.read_all(uuids[:1]) == [bytes(60_000)]
    client.close()


def test_no_descriptor_is_leaked_on_either_side(node: Node) -> None:
    """Connections that read, break and come again leave as many descriptors as there were."""
    uuids = node.put(*[bytes([number]) * (MB + 1) for number in range(5)])
    with SocketClient(node.path) as client:
        client.read_all(uuids)
    wait_for_no_lease(node)
    # The repository keeps its own descriptors open between reads; those are there by now.
    for uuid in uuids:
        node.repository.handles.get(uuid.hex()).close()
    before = open_descriptors()

    for number in range(20):
        reader = Reader(node.path)
        for uuid in uuids:
            reader.place(uuid)
        if number % 2:
            reader.tell(2, 1, b"".join(uuids))  # its answer is never received
        reader.close()
    wait_for_no_lease(node)

    assert len(open_descriptors()) <= len(before)


def test_punched_or_cut_bytes_never_come_out_as_content(node: Node) -> None:
    """Where a file is cut although it was passed, since the agent that passed it is gone: the client's look says so.
    Zeros and short reads are never handed out.
    """
    uuids = node.put(*[bytes([number + 1]) * 60_000 for number in range(20)])
    client = SocketClient(node.path)
    places = client.resolve(uuids)
    claim = node.repository.ledger.entry(places[0].file)
    assert claim is not None
    path = node.repository.content.path_of(claim.claim)
    content = Path(path).read_bytes()

    os.truncate(path, 60_000)
    node.server.stop()

    with pytest.raises(LeaseLost):
        client.read(places)
    Path(path).write_bytes(content)


def run(node: Node, action: Action) -> ReclamationReport:
    """What is dead is given back by this alone; records that nothing needs go first."""
    node.repository.reclamation.clean()
    compactor = node.repository.compactor
    return compactor.execute(compactor.plan(policy="CompactAll", actions=frozenset({action})))


def disk(node: Node) -> int:
    """What the survey counts."""
    return sum(container.disk_bytes for container in node.repository.reclamation.survey().containers)


def remove(node: Node, uuids: list[bytes]) -> None:
    """Delete handles for good: their retention is over at once."""
    for uuid in uuids:
        node.repository.handles.delete(uuid.hex())
    node.workshop.clock.advance(1)
    node.repository.handles.purge()


def wait_for_no_lease(node: Node) -> None:
    """The end of a connection takes a moment to reach its thread."""
    assert node.server.wait_for(0, 10)
    assert node.repository.leases.all() == []

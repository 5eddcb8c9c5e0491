"""Small claims read by their addresses, with one question a resource claim."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.service.socket.node import Node
from tests.service.socket.reader import Reader, Refusal
from tests.support import Workshop
from ullage.client.descriptors import Address, Neighbours
from ullage.client.socket import SocketClient
from ullage.errors import ContentCorrupt, LeaseLost
from ullage.wire.frames import ClaimKey, Place
from ullage_agent.service.limits import Limits

KB = 1024
MB = 1 << 20


class Asking(SocketClient):
    """A client that counts the claims it asks for."""

    asked = 0

    def resolve_claims(self, claims: Sequence[ClaimKey]) -> list[Place]:
        self.asked += len(claims)
        return super().resolve_claims(claims)


def address_of(node: Node, uuid: bytes) -> Address:
    record = node.repository.handles.record(uuid)
    claim = record.claim
    assert claim is not None
    return (claim.resource, claim.offset, claim.length, claim.crc, record.start, record.size)


def filled(node: Node, *contents: bytes) -> list[Address]:
    return [address_of(node, uuid) for uuid in node.put(*contents)]


def test_many_claims_cost_one_question_a_file(node: Node) -> None:
    """In the order of their addresses or any other, whole or a part of one, each gets its own bytes."""
    chooser = random.Random(11)
    contents = [chooser.randbytes(chooser.choice([1, 900, 20 * KB])) for _ in range(300)]
    addresses = filled(node, *contents)
    files = {address[0] for address in addresses}
    order = chooser.sample(range(300), 300)
    (resource, offset, length, crc, _, _) = addresses[7]

    with Asking(node.path) as client:
        assert client.read_born(addresses) == contents
        assert client.asked == len(files) < 100
        assert client.read_born([addresses[at] for at in order]) == [contents[at] for at in order]
        assert client.read_born([(resource, offset, length, crc, 0, 1)] * 3) == [contents[7][:1]] * 3
        assert client.read_born([]) == []


def test_what_needs_a_question_of_its_own_is_left(node: Node) -> None:
    """Ones that a rewrite has moved, ones that are gone: amid others that are there, small and large."""
    chooser = random.Random(12)
    contents = [chooser.randbytes(20_000) for _ in range(80)]
    uuids = node.put(*contents)
    moved = [address_of(node, uuid) for uuid in uuids]
    for number, uuid in enumerate(uuids):
        if number % 4:
            node.repository.handles.delete(uuid.hex())
    node.workshop.clock.advance(1)
    node.repository.handles.purge()
    assert node.reclaim() > 0
    one_of_two_blocks = chooser.randbytes(256 * KB + 1)
    small, large = filled(node, b"small", one_of_two_blocks)

    with SocketClient(node.path) as client:
        never = (small[0] + 99_999, 0, 5, small[3], 0, 5)
        found = client.read_born([*moved, small, large, never])
        assert found == [None] * 80 + [b"small", one_of_two_blocks, None]
        places = client.resolve_claims([ClaimKey(*moved[4][:4])])
        assert client.read(places) == [contents[4]]


def test_bytes_that_are_not_what_their_checksum_says_are_left(node: Node) -> None:
    """Cut, punched and rotten ones never come out as content; their neighbours do."""
    contents = [bytes([number + 1]) * 1_000 for number in range(6)]
    addresses = filled(node, *contents)
    entry = node.repository.ledger.entry(addresses[0][0])
    assert entry is not None
    path = Path(node.repository.content.path_of(entry.claim))
    before = path.read_bytes()
    rotten = bytearray(before)
    rotten[addresses[1][1]] ^= 1
    rotten[addresses[3][1] : addresses[3][1] + 1_000] = bytes(1_000)
    path.write_bytes(rotten[: addresses[5][1] + 999])

    begins = [each[1] - addresses[0][1] for each in addresses]
    ends = [begin + 1_000 for begin in begins]
    run = Neighbours(*addresses[0][:2], ends[-1], begins, ends, [each[3] for each in addresses])
    apart = [each[:4] for each in addresses]
    first = Neighbours(*addresses[0][:2], 1_000, begins[:1], ends[:1], [addresses[0][3]])
    with SocketClient(node.path) as client:
        assert client.read_neighbours([run], []) == []  # nobody has asked for the file
        assert client.read_neighbours([], apart) == []
        found = client.read_born(addresses)
        one, all_ = client.read_neighbours([first], apart[2:3]), client.read_neighbours([first, run], [])
        ruined = [client.read_neighbours([first], [each]) for each in (apart[1], apart[3], apart[5])]
        path.write_bytes(before)
        assert client.read_neighbours([run, run], apart) == contents * 3

    assert (one, all_, ruined) == ([contents[0], contents[2]], [], [[]] * 3)
    assert found == [contents[0], None, contents[2], None, contents[4], None]


def test_more_files_than_a_connection_may_hold_are_read_in_turns(workshop: Workshop, short_path: Path) -> None:
    """What the node refuses at once is asked for in parts, and earlier files are given back."""
    node = Node(workshop, short_path, Limits(socket_files=3, stall_seconds=5))
    contents = [bytes([number]) * (200 * KB) for number in range(20)]
    uuids = [node.put(content, bytes(MB))[0] for content in contents]
    addresses = [address_of(node, uuid) for uuid in uuids]
    assert len({address[0] for address in addresses}) == 20

    with Asking(node.path) as client:
        for at in (0, 3, 6):
            client.expect(addresses[at : at + 3])
            assert client.descriptors == 3
            assert client.read_born(addresses[at : at + 3]) == contents[at : at + 3]
        assert client.asked == 9
        assert client.read_born(addresses) == contents
        assert client.read_all(uuids) == contents
        assert client.descriptors <= 3
    reader = Reader(node.path)
    with pytest.raises(Refusal, match="lease-refused"):
        reader.ask(2, b"".join(uuids))
    reader.close()
    node.server.stop()


def test_a_lost_lease_is_told(node: Node) -> None:
    """A node that has taken its files back says so; a new connection reads again."""
    addresses = filled(node, b"a", b"b")
    with SocketClient(node.path) as client:
        assert client.read_born(addresses) == [b"a", b"b"]
        (lease,) = node.repository.leases.all()
        node.repository.leases.revoke(lease.id)
        node.server.look()

        with pytest.raises(LeaseLost):
            client.read_born(addresses)
        assert client.read_born(addresses) == [b"a", b"b"]


def test_what_was_expected_is_asked_for_once(node: Node) -> None:
    """Ahead of the reads, in one question, large claims too; given back it is asked for again."""
    contents = [bytes([number]) * (200 * KB if number % 3 else 300 * KB) for number in range(12)]
    addresses = [filled(node, content, bytes(MB))[0] for content in contents]
    count = 4 + len({address[0] for number, address in enumerate(addresses) if number % 3})
    resource, offset, length, crc, _, _ = addresses[0]
    with Asking(node.path) as client:
        client.expect(addresses)
        before = node.repository.log.durable

        assert [client.read_born([address]) for address in addresses] == [[content] for content in contents]
        assert client.read_born([(resource, offset, length, crc, 7, 270 * KB)]) == [contents[0][7 : 7 + 270 * KB]]

        assert (client.asked, node.repository.log.durable) == (count, before)
        client.give_back()
        assert client.read_born(addresses) == contents
        assert client.asked == 2 * count


def test_a_large_claim_that_was_asked_for_is_read_where_it_lies_and_no_rotten_block_comes_out(node: Node) -> None:
    """Out of a file that a rewrite has made; every block is verified, also when only a part of it is wanted."""
    contents = [random.Random(number).randbytes(300 * KB) for number in range(4)]
    uuids = node.put(*(each for content in contents for each in (content, bytes(30 * KB), bytes(30 * KB))))
    addresses = [address_of(node, uuid) for uuid in uuids[::3]]
    for number, uuid in enumerate(uuids):
        if number % 3:
            node.repository.handles.delete(uuid.hex())
    node.workshop.clock.advance(1)
    node.repository.handles.purge()
    assert node.reclaim() > 0

    with Asking(node.path) as client:
        client.expect(addresses)
        assert client.read_born(addresses) == contents
        assert client.asked == 4
        (place,) = client.resolve_claims([ClaimKey(*addresses[1][:4])])
        assert place.file != addresses[1][0]
        entry = node.repository.ledger.entry(place.file)
        assert entry is not None
        path = Path(node.repository.content.path_of(entry.claim))
        before = path.read_bytes()
        rotten = bytearray(before)
        rotten[place.offset + 280 * KB] ^= 1
        path.write_bytes(rotten)

        def part(start: int, size: int) -> list[bytes | None]:
            return client.read_born([(*addresses[1][:4], start, size)])

        assert part(0, 256 * KB) == [contents[1][: 256 * KB]]
        for start, size in ((0, 300 * KB), (299 * KB, 1), (256 * KB - 1, 2)):
            with pytest.raises(ContentCorrupt):
                part(start, size)
        path.write_bytes(before)

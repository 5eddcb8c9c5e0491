"""A file's descriptor goes only to who may read everything in that file; to others content goes as bytes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.socket.node import MB, Node
from tests.service.socket.reader import Reader
from tests.support import Workshop
from ullage.client.socket import SocketClient
from ullage.contract import AuthSettings, Isolation, QueueAccess, QueueRule, Right
from ullage.embedded.acting import Acting
from ullage.embedded.repository import EmbeddedRepository
from ullage.errors import HandleDeleted, HandleNotFound, Unauthenticated
from ullage.uuids import format_uuid, parse_uuid
from ullage.wire import frames
from ullage_agent.service.access import Principal

NAMES = ("ann", "bob", "admin")


class ByName:
    """Who says a name has it, and every right."""

    may_block = False

    def authenticate(self, token: str | None, peer: str = "") -> Principal:
        if token not in NAMES:
            raise Unauthenticated("nobody")
        return Principal(token)

    def authorize(self, principal: Principal, right: Right) -> None:
        return


OF_THE_ADMIN = AuthSettings(queues=(QueueRule(prefix="private", read=("admin",)),))
"""Of all of them only the admin may read everything."""


@pytest.fixture(params=list(Isolation))
def shared(request: pytest.FixtureRequest, workshop: Workshop, short_path: Path) -> Iterator[Node]:
    """A node with several principals, with isolated tenants and without."""
    made = Node(workshop, short_path, None, ByName(), isolation=request.param, auth=OF_THE_ADMIN)
    yield made
    made.server.stop()


def client(node: Node, name: str) -> SocketClient:
    return SocketClient(node.path, name)


def is_isolated(node: Node) -> bool:
    return node.repository.spec.isolation == Isolation.PER_TENANT


def mine(name: str, number: int) -> bytes:
    """Recognizable wherever it lies."""
    return f"<{name}:{number}>".encode() * 50


def test_a_descriptor_shows_nobody_elses_content(shared: Node) -> None:
    """Not even what others have deleted: without isolation nothing is passed, with it files of one tenant alone."""
    handles: dict[str, list[bytes]] = {name: [] for name in NAMES}
    clients = {name: client(shared, name) for name in NAMES}
    for number in range(12):
        for name in NAMES:
            handles[name] += clients[name].put_many([mine(name, number)])
    for name in NAMES:
        shared.repository.handles.delete(format_uuid(handles[name].pop()))

    for name in ("ann", "bob"):
        reader = Reader(shared.path, name.encode())
        if is_isolated(shared):
            assert [reader.read(handle) for handle in handles[name]] == [mine(name, number) for number in range(11)]
        for other in NAMES:
            for handle in handles[other] if other != name or not is_isolated(shared) else ():
                status_and_slug = reader.ask(2, handle)
                assert b"descriptor-refused" in status_and_slug
        assert bool(reader.files) == is_isolated(shared)
        for descriptor in reader.files.values():
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read()
            assert f"<{name}:11>".encode() in data  # deleted, and its own
            assert not any(f"<{other}:".encode() in data for other in NAMES if other != name)
        reader.close()
    for each in clients.values():
        each.close()


def test_content_that_is_not_passed_comes_as_bytes(shared: Node) -> None:
    """Whole, in ranges and of any size, as if it had been read through a descriptor."""
    content = bytes(range(256)) * (3 * MB // 256) + b"end"
    with client(shared, "bob") as bob:
        small, empty = bob.put_many([b"small", b""])
        large = bob.put_stream([content])
    with client(shared, "ann") as ann:
        assert ann.read_all([small, large, small, empty]) == [b"small", content, b"small", b""]
        for start, size in ((0, None), (5, 10), (MB - 3, MB + 7), (len(content) - 3, None), (7, 0)):
            total, pieces = ann.open(large, start, size)
            assert total == len(content)
            assert b"".join(pieces) == content[start : None if size is None else start + size]
        assert ann.descriptors == 0
        assert not shared.repository.leases.all()


def test_who_may_read_everything_is_passed_everything(shared: Node) -> None:
    """With isolation as without."""
    with client(shared, "ann") as ann, client(shared, "bob") as bob, client(shared, "admin") as admin:
        handles = ann.put_many([b"a"]) + bob.put_many([b"b"])

        assert admin.read_all(handles) == [b"a", b"b"]
        assert admin.descriptors == (2 if is_isolated(shared) else 1)


def test_a_refusal_as_bytes_is_the_same_as_through_a_descriptor(shared: Node) -> None:
    """A handle that was deleted, or never was."""
    with client(shared, "bob") as bob, client(shared, "ann") as ann:
        (gone,) = bob.put_many([b"gone"])
        shared.repository.handles.delete(format_uuid(gone))
        with pytest.raises(HandleDeleted):
            ann.read_all([gone])
        with pytest.raises(HandleNotFound):
            ann.read_all([bytes(16)])
        assert ann.read_all(bob.put_many([b"there"])) == [b"there"]


def test_what_moved_is_still_its_tenants(shared: Node) -> None:
    """A rewrite's output is passed to whom its sources would have been, and to nobody else."""
    with client(shared, "ann") as ann, client(shared, "bob") as bob:
        own, others = [], []
        for _ in range(20):
            own += ann.put_many([b"<ann>" * 2_000])
            others += bob.put_many([b"<bob>" * 2_000])
        for handle in own[1:] + others[1:]:
            shared.repository.handles.delete(format_uuid(handle))
    shared.repository.content.retire_idle()
    shared.workshop.clock.advance(8 * 24 * 3600)
    shared.repository.handles.purge()
    assert shared.reclaim()

    with client(shared, "ann") as ann:
        assert ann.read_all(own[:1]) == [b"<ann>" * 2_000]
        assert ann.descriptors == is_isolated(shared)
        assert ann.read_all(others[:1]) == [b"<bob>" * 2_000]
        assert ann.descriptors == is_isolated(shared)


def test_claims_by_address_are_refused_alike(shared: Node) -> None:
    """An address is no way round: who knows one of another's content gets no descriptor, whatever it says."""
    with client(shared, "ann") as ann, client(shared, "bob") as bob, client(shared, "admin") as admin:
        own, others = ann.put_many([b"own"])[0], bob.put_many([b"others"])[0]
        keys = []
        for handle in (own, others):
            record = shared.repository.handles.record(handle)
            assert record.claim is not None
            claim = record.claim
            keys.append(frames.ClaimKey(claim.resource, claim.offset, claim.length, claim.crc))

        places = ann.resolve_claims(keys)
        assert [place.slug for place in places] == [
            "" if is_isolated(shared) else "descriptor-refused",
            "descriptor-refused",
        ]
        assert not any(place.slug for place in admin.resolve_claims(keys))


def test_a_principal_without_a_name_is_no_tenant(workshop: Workshop) -> None:
    """Files of nobody in particular hold what anybody wrote."""
    lent = EmbeddedRepository(workshop.make(isolation=Isolation.PER_TENANT)).lend("x", 10)
    (handle,) = workshop.repository.handles.put_many([b"x"])
    lent.acting = Acting("", QueueAccess(OF_THE_ADMIN.queues, ""))

    assert lent.handles([parse_uuid(handle)])[0].slug == "descriptor-refused"

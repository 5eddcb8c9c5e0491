"""What a node that was followed by another has alone, and bringing it over as new records.

    here    records of the root, as its log and snapshot prove them: that changes nothing in it, while bringing their
            content over opens it as each start does
    there   records of the share up to the fence of whoever took it from this root: what that one began with
    here and not there: made after the last that was shipped. It is put into the repository that goes on, with new ids

What stood there when it was taken is the follower's, whatever became of it on either side. The follower need not be who
adopted it last: a copy of the root may have gone on, removed some of it, and been adopted itself. That all that stood
there was made here has to be noted (`ownwriters.py`): a copy lacks what its origin removed behind it.

    here    1 2 3 4              4 is here alone
    a copy  1 2 3 | x y          y removes what 2 made: it is not brought back
    adopter 1 2 3 | x y | z
"""

import os
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from ullage.embedded.partialrestoring import records_beside
from ullage.embedded.repository import EmbeddedRepository, open_embedded
from ullage.embedded.restoreddocument import document_of
from ullage.embedded.shares import FoundShare, share_in
from ullage.engine.check.salvage import survey
from ullage.engine.check.salvageevents import SalvagedEvents
from ullage.engine.check.salvagestate import SalvagedState
from ullage.engine.files import Files, OsFiles
from ullage.engine.model import HANDLE_QUEUE, STAGED_QUEUE, FlowFileRecord, unpack_attributes
from ullage.engine.opening import RepositoryIdentity, lock_repository, read_identity
from ullage.engine.salvaging import decided
from ullage.engine.shipping.adopting import fence_behind, follower_of, owner_of
from ullage.engine.shipping.ownwriters import last_own_writer, noted_fence
from ullage.engine.shipping.pinning import pinned
from ullage.engine.shipping.sharerecords import fetch_records
from ullage.engine.shipping.sharerestoring import identity_in, share_to_restore
from ullage.engine.wal.failingdisk import FailingDisk
from ullage.engine.wal.serde import SerDe
from ullage.errors import ContentCorrupt, ContentMissing, InvalidArgument, RepositoryDamaged, VolumeAway
from ullage.interface.buckets import Bucket
from ullage.interface.repository import Repository
from ullage.wire.upkeep import RejoinReport

UNREADABLE = (ContentCorrupt, ContentMissing, VolumeAway)

Records = dict[bytes, FlowFileRecord]


class _Parted(NamedTuple):
    """What both sides have, by uuid, without tombstones; and the names of the queues here."""

    here: Records
    there: Records
    queues: dict[int, str]

    def alone(self) -> list[FlowFileRecord]:
        """Made here, and not there, in their order."""
        found = [record for uuid, record in self.here.items() if uuid not in self.there]
        return sorted(found, key=lambda each: (each.queue, each.queued))

    def changed(self) -> int:
        """How many are in another queue here, or have other attributes or content."""
        both = self.here.keys() & self.there.keys()
        return sum(_visible(self.here[uuid]) != _visible(self.there[uuid]) for uuid in both)


def _visible(record: FlowFileRecord) -> tuple[object, ...]:
    return record.queue, record.claim, record.start, record.size, record.attributes


def rejoin_from(
    root: str | os.PathLike[str], source: str | os.PathLike[str] | Bucket, to: Repository | None
) -> RejoinReport:
    """What `ullage.rejoin` promises."""
    root, share, files = os.path.abspath(root), share_in(source), OsFiles()
    identity = read_identity(files, root)
    if identity.repository != share.share:
        raise InvalidArgument(f"{root} holds repository {identity.repository}, and {share.place.name} is another's")
    if to is not None:
        _require_writer(to, identity, share)
    with closing(lock_repository(files, root)):
        parted = _parted(files, root, share, identity)
    alone = parted.alone()
    queues: dict[str, int] = {}
    for record in alone:
        if record.queue != HANDLE_QUEUE:
            name = parted.queues[record.queue]
            queues[name] = queues.get(name, 0) + 1
    brought, lost = ({}, ()) if to is None else _brought(root, identity, parted, to)
    return RejoinReport(
        owner=owner_of(share.place, share.share).owner,
        queues=queues,
        handles=sum(record.queue == HANDLE_QUEUE for record in alone),
        bytes=sum(record.size for record in alone),
        changed=parted.changed(),
        removed=len(parted.there.keys() - parted.here.keys()),
        brought=brought,
        lost=lost,
    )


def _require_writer(to: Repository, identity: RepositoryIdentity, share: FoundShare) -> None:
    """InvalidArgument unless this is the same repository, and writes the share now: elsewhere nobody looks for what is
    brought, and what is put to one that was followed itself is a divergent tail once more, whether it knows that by now
    or not.
    """
    state = to.state()
    if state.repository != identity.repository:
        raise InvalidArgument(
            f"the node {state.node} has repository {state.repository}, and {identity.repository} is to be brought "
            "over: name the node that has adopted it"
        )
    ships = state.replication
    if ships is None or ships.url != share.place.name:
        where = "ships nothing" if ships is None else f"ships to {ships.url}"
        raise InvalidArgument(
            f"the node {state.node} {where}, and what is brought to it would not be in {share.place.name}: name the "
            "node that writes there, served with the same spec.replication"
        )
    if ships.state == "fenced":
        raise InvalidArgument(f"the node {state.node} was followed by another itself: name the one that goes on")
    if not ships.epoch:
        raise InvalidArgument(f"the node {state.node} has not taken {ships.url} since its start: ask once more")
    now = owner_of(share.place, share.share)
    if (now.epoch, now.owner) != (ships.epoch, state.node):
        raise InvalidArgument(
            f"{share.place.name} is written by node {now.owner} in epoch {now.epoch}, and node {state.node} wrote it "
            f"last in epoch {ships.epoch}: name node {now.owner}"
        )


def _parted(files: Files, root: str, share: FoundShare, identity: RepositoryIdentity) -> _Parted:
    point = _parted_at(files, root, share, identity)
    asked = share_to_restore(share.place, share.share, point)
    with pinned(asked.place, asked.share, asked.base, asked.through), records_beside(root) as scratch:
        there_identity = identity_in(asked)
        fetch_records(files, asked, there_identity, document_of(there_identity, scratch, {}).spec, lambda _: None)
        there = _state(files, scratch, f"{share.place.name} at {point}")
    here = _state(files, root, root)
    names = {queue.number: queue.name for queue in here.queues.values()}
    return _Parted(dict(_living(here)), dict(_living(there)), names)


def _parted_at(files: Files, root: str, share: FoundShare, identity: RepositoryIdentity) -> int:
    """The fence of who took the share from this root, where it is proved what that had of it; else that of who adopted
    it first. InvalidArgument: neither is there.
    """
    wrote = last_own_writer(files, root, share.place.name)
    follower = follower_of(share.place, share.share, wrote) if wrote else None
    if follower is not None and follower.goes_on:
        return follower.fence
    try:
        return fence_behind(share.place, share.share, identity.adoption)
    except InvalidArgument:
        if follower is not None:
            raise InvalidArgument(
                f"{share.place.name} was taken by a copy of this root, or by one behind it, that did not go on with "
                "what was shipped: what it never had can't be told from what was removed there. Read what is here, and "
                "write it there"
            ) from None
        if noted_fence(files, root) is None:
            raise InvalidArgument(
                f"{share.place.name} was adopted by nobody since this repository was made, or too often, and this root "
                "has not seen that another took it. If one did, start it once with its spec.replication: it notes then "
                "whether all that it had shipped is here"
            ) from None
        raise InvalidArgument(
            f"{share.place.name} was adopted by nobody since this repository was made, or too often, and nothing "
            "proves that this root has all that was shipped before another took it, as a copy and a volume that was "
            "put back have not: what it has alone can't be told from what was removed there. Read what is here, and "
            "write it there"
        ) from None


def _state(files: Files, root: str, where: str) -> SalvagedState:
    disk = FailingDisk(files)
    found = survey(files, root, disk)
    if not found.is_whole or found.repository is None:
        raise RepositoryDamaged(f"the records of {where} are not whole: salvage what it proves")
    return decided(disk, found, SalvagedEvents(files, disk, root, found.repository, ()), SerDe())


def _living(state: SalvagedState) -> Iterator[tuple[bytes, FlowFileRecord]]:
    """What somebody was told is there: a write that is staged and not decided was told to nobody."""
    return (
        (uuid, record)
        for uuid, record in state.records.items()
        if not record.deleted_millis and record.queue != STAGED_QUEUE
    )


def _brought(
    root: str, identity: RepositoryIdentity, parted: _Parted, to: Repository
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Each with a key of its own, so that a repeat brings nothing twice."""
    brought, lost = dict[str, str](), list[str]()
    with open_embedded(None, document_of(identity, root, {}), create=False, maintain=False) as repository:
        now = repository.clock.now_millis()
        for record in parted.alone():
            if record.expires_millis and record.expires_millis <= now:
                continue
            try:
                brought[record.id] = _put(repository, record, parted.queues.get(record.queue, ""), to, now)
            except UNREADABLE as error:
                lost.append(f"{record.id}: {error}")
    return brought, tuple(lost)


def _put(repository: EmbeddedRepository, record: FlowFileRecord, queue: str, to: Repository, now: int) -> str:
    attributes, key = unpack_attributes(record.attributes), f"rejoin-{record.id}"
    with repository.content(record.id) as content:
        if record.queue != HANDLE_QUEUE:
            return to.queues.put(queue, content, attributes, force=True, key=key)
        ttl = record.expires_millis - now if record.expires_millis else 0
        return to.handles.put(content, attributes, ttl_millis=ttl, key=key)

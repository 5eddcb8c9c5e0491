"""Whether a share has the history of the repository that is about to write it.

A repository that was restored to an earlier point, or whose volume was put back, goes on in another way from there: of
a number of a transaction, and of an address, the share may have something else then. So a share is gone on with only if
its last transaction is found in the log, or if the repository left a mark when it was closed that all was shipped; the
mark is taken away before anything is written. Else it gets a new base with all content.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from ullage.engine.files import Files, read_file, replace_file
from ullage.engine.model import Operation
from ullage.engine.opening import IDENTITY, RepositoryIdentity
from ullage.engine.servingright import CHANGES
from ullage.engine.shipping.baseobject import BasePosition, BaseReader
from ullage.engine.shipping.contentpack import PIECE_BYTES, read_pack_index
from ullage.engine.shipping.logobject import NamedPack
from ullage.engine.shipping.logreader import read_log
from ullage.engine.shipping.sharedocs import ListedBase, ShareManifest, decode_document
from ullage.engine.shipping.shareplace import MANIFEST, SharePlace, ShareWriter, pack_of
from ullage.engine.shipping.shippedcontent import IN_LOG, ShippedContent
from ullage.engine.wal.format import UNDECODABLE
from ullage.engine.wal.serde import SerDe
from ullage.errors import ContentMissing, RepositoryDamaged

PACKS_MEMBER: Final = "packs"
"""Of a base: which packs it needs."""

MARK: Final = "shipped.json"
"""In the root of a repository that was closed when all was shipped."""


class ShippedMark(msgspec.Struct, frozen=True):
    """Who shipped, and up to which transaction."""

    epoch: int
    nonce: str
    through: int

    def has_all(self, waiting: Sequence["Committed"], start: int) -> bool:
        """Whether none of those that were committed behind it, up to a start, makes or removes anything: it may have
        been shipped since, by another that this root is a copy of, and been removed there.
        """
        behind = [each for each in waiting if self.through < each.id <= start]
        operations = (operation for each in behind for operation in each.operations)
        return len(behind) == start - self.through and not any(type(each) in CHANGES for each in operations)


class AsShipped(Protocol):
    """A transaction as it leaves its node."""

    id: int
    payload: bytes


class Committed(AsShipped, Protocol):
    """With what it does."""

    operations: Sequence[Operation]


class KnownShare(NamedTuple):
    """What a share has: its last transaction, by whom, and all content."""

    last: int
    payload: bytes | None
    writer: ShareWriter
    content: ShippedContent
    log_bytes: int
    base_bytes: int
    bases: int
    """How many count."""

    next_log: int
    """The log object behind the newest base."""

    containers: frozenset[str]
    """Those that the base names."""

    def is_history_of(self, mark: ShippedMark | None, waiting: Sequence[AsShipped], durable: int) -> bool:
        """Whether the log that these come from, which ends with `durable`, leads to the end of the share, and all that
        it has behind that is among them.
        """
        if sum(each.id > self.last for each in waiting) != durable - self.last:
            return False
        if mark is not None and mark == ShippedMark(*self.writer, self.last):
            return True
        found = next((each for each in waiting if each.id == self.last), None)
        return found is not None and found.payload == self.payload


def leave_mark(files: Files, root: str, writer: ShareWriter, through: int) -> None:
    """All was shipped."""
    replace_file(files, os.path.join(root, MARK), msgspec.json.encode(ShippedMark(*writer, through)))


def take_mark(files: Files, root: str) -> ShippedMark | None:
    """The mark, which is gone from now on."""
    path = os.path.join(root, MARK)
    if not files.exists(path):
        return None
    try:
        mark = msgspec.json.decode(read_file(files, path), type=ShippedMark)
    except UNDECODABLE:  # without one the share gets a new base
        mark = None
    files.unlink(path)
    files.sync_directory(root)
    return mark


def listed_bases(place: SharePlace, share: str) -> tuple[ListedBase, ...]:
    """The bases of a share; none where there is no manifest."""
    found = place.get(MANIFEST)
    if found is None:
        return ()
    return decode_document(found.data, ShareManifest, share, f"{place.name}/{MANIFEST}").bases


def base_reader(place: SharePlace, name: str, share: str, after: BasePosition | None = None) -> BaseReader:
    """Reads a base, a piece at a time, and its members from where an earlier reader was."""

    def pieces(at: int) -> Iterator[bytes]:
        while piece := place.read(name, at, at + PIECE_BYTES):
            yield piece
            at += len(piece)

    reader = BaseReader(pieces(0), name, share, f"{place.name}/{name}")
    if after is not None:
        reader.go_on(after, pieces(after.offset))
    return reader


def known_share(place: SharePlace, share: str, serde: SerDe) -> KnownShare | None:
    """What a share has, read from its newest base on; None if it has none, or can't be read."""
    bases = listed_bases(place, share)
    if not bases:
        return None
    try:
        return _known(place, share, serde, bases)
    except (RepositoryDamaged, ContentMissing):
        return None  # nobody can go on with it: a new base makes it whole


def _known(place: SharePlace, share: str, serde: SerDe, bases: Sequence[ListedBase]) -> KnownShare:
    base, content = bases[-1], ShippedContent()
    reader = base_reader(place, base.name, share)
    identity, packs = base_head(reader)
    for pack in packs:
        _take_pack(place, share, content, pack)
    last, payload, writer, log_bytes = base.transaction, None, reader.header.writer, 0
    for found in read_log(place, share, serde, base):
        if found.header.is_fence:
            continue
        for pack in found.header.packs:
            _take_pack(place, share, content, pack)
        for each in found.contents:
            content.add(each.claim, IN_LOG)
            log_bytes += each.claim.length
        log_bytes += sum(map(len, found.payloads))
        last, payload, writer = found.header.last, found.payloads[-1], found.header.writer
    base_bytes = place.lengths(base.name.partition("/")[0]).get(base.name, 0)
    containers = frozenset(identity.containers)
    return KnownShare(last, payload, writer, content, log_bytes, base_bytes, len(bases), base.next_log, containers)


def base_head(reader: BaseReader) -> tuple[RepositoryIdentity, list[NamedPack]]:
    """Whose base it is, and the packs that it needs: its first members. RepositoryDamaged."""
    found = {IDENTITY: b"", PACKS_MEMBER: b""}
    for name, piece in reader.members():
        if name not in found:
            break
        found[name] += piece
    try:
        identity = msgspec.json.decode(found[IDENTITY], type=RepositoryIdentity)
        packs = msgspec.json.decode(found[PACKS_MEMBER], type=list[NamedPack])
    except UNDECODABLE as error:
        raise RepositoryDamaged(f"a base does not say whose it is, and which packs it needs: {error}") from error
    if misnamed := [pack.name for pack in packs if pack_of(pack.name) is None]:
        raise RepositoryDamaged(f"a base names {misnamed[0]!r}, which is no pack")
    return identity, packs


def _take_pack(place: SharePlace, share: str, content: ShippedContent, pack: NamedPack) -> None:
    index = read_pack_index(place, pack.name, share)
    number = content.add_pack(pack.name, sum(claim.length for claim in index.places))
    for claim in index.places:
        content.add(claim, number)

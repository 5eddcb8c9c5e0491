"""Ships what a repository commits to a share, behind the commits: nobody waits for it.

    begin   take the log over | the share has this history: go on behind it; else a new base
    step    what is durable | packs of what lives at its end | log object | hold what died since then no longer
                                                                ^ commit point: a point to restore to

What died after the last log object stays on the disk until it is shipped: so everything that lives at the end of the
next one can be read, whenever it died. Beyond a bound nothing waits any more, and a new base follows.

Steps raise BucketUnavailable and BucketRefused, and may be tried again: what was under way is put again as it was.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from typing import Final

from ullage.engine.model import ContentClaim, ResourceClaimGone
from ullage.engine.shipping.baseobject import BaseHeader
from ullage.engine.shipping.basing import FrozenMoment, keep_mostly_live, missing_in
from ullage.engine.shipping.contentpack import PACK_CONTENTS_MAX, pack_length, pack_pieces
from ullage.engine.shipping.history import KnownShare, ShippedMark, known_share, leave_mark, take_mark
from ullage.engine.shipping.lastlook import LastLook
from ullage.engine.shipping.lease import OwnedLease
from ullage.engine.shipping.logical import Claimants, LogicalView
from ullage.engine.shipping.logobject import PACKS_MAX, TRANSACTIONS_MAX, LogBatch, NamedPack, SmallContent
from ullage.engine.shipping.logwriter import LogWriter
from ullage.engine.shipping.ownwriters import begin_as_itself
from ullage.engine.shipping.parting import parted_after
from ullage.engine.shipping.probing import probe
from ullage.engine.shipping.publishing import collect, publish, take_manifest
from ullage.engine.shipping.sharedocs import SHARE_FORMAT, ListedBase
from ullage.engine.shipping.shareplace import EPOCH, SharePlace, base_name, pack_name
from ullage.engine.shipping.shippedcontent import IN_LOG, ShippedContent
from ullage.engine.shipping.shippingparts import (
    ShippingFigures,
    ShippingLimits,
    ShippingParts,
    WaitingTransaction,
    WatchedPieces,
)
from ullage.errors import (
    BucketRefused,
    BucketUnavailable,
    ContentCorrupt,
    ContentMissing,
    ContentReclaimed,
    RepositoryDamaged,
    ShareFenced,
    VolumeAway,
)

DEFAULTS: Final = ShippingLimits()

BASES_A_DOUBLING: Final = 100
"""For each so many bases that count, twice as much log lies behind the next: so a busy node has fewer than a manifest
has room for, for as long as points are retained.
"""

UNREADABLE: Final = (ContentCorrupt, ContentMissing, VolumeAway)
"""What a content may be here, and is where it is restored."""


@dataclass(slots=True)
class _ObjectUnderWay:
    """A log object that is being put, or was and may be there."""

    batch: LogBatch
    last: int
    taken: int
    claims: list[tuple[ContentClaim, int]] = field(default_factory=list)


class Shipper:
    """One share of an open repository. For one thread, but for `figures`, which is replaced whole."""

    def __init__(self, parts: ShippingParts, place: SharePlace, owner: str, limits: ShippingLimits = DEFAULTS) -> None:
        """`owner` is who writes, for people. Call `begin` once the repository is open; `lease` is what it serves by."""
        self.lease: OwnedLease | None = None
        self._parts = parts
        self._place = place
        self._owner = owner
        self._limits = limits
        self._share = parts.identity().repository
        self._brought_back = parts.log.last_id
        """The last transaction that the log had at the start: through this, all may be in the share as well."""
        self._logical = LogicalView()
        self._keeping_swaps: ExitStack | None = ExitStack()
        self._keeping_swaps.enter_context(parts.committer.keeping_swaps())
        self._content = ShippedContent()
        self._waiting: list[WaitingTransaction] = []
        self._waiting_bytes = 0
        self._under_way: _ObjectUnderWay | None = None
        self._writer: LogWriter | None = None
        self._mark: ShippedMark | None = None
        self._containers: frozenset[str] = frozenset()
        self._next_pack = self._next_base = 1
        self._base: ListedBase | None = None
        self._log_bytes = self._base_bytes = self._bases = 0
        self._next_log = 1
        self._through = 0
        self._awaits_base = True
        self._look = LastLook(parts.files, parts.root, parts.clock, place.name)
        self.figures = ShippingFigures()
        self.wrote = ""
        """The last writer of the share of which it is known that all that it put is this root's; "" for none."""

    @property
    def has_begun(self) -> bool:
        """Whether it writes the share."""
        return self._writer is not None

    def begin(self) -> None:
        """Take the share over, and see what it has. BucketRefused: the bucket keeps no conditions. ShareFenced, also if
        it was adopted since this root was made, or taken since it wrote there; BucketUnavailable: begin once more.
        """
        self._know_swaps()  # and keep none of them for one that is fenced
        found = self._place.get(EPOCH)
        if found is None:
            probe(self._place)
        self._mark = take_mark(self._parts.files, self._parts.root) or self._mark
        try:
            writer = begin_as_itself(self._parts, self._place, self._owner, self.lease, found)
        except ShareFenced:
            self._part()
            raise
        take_manifest(self._place, self._share, writer.writer)
        known = known_share(self._place, self._share, self._parts.serde)
        durable = self._parts.log.durable
        self._absorb(durable)
        self._writer = writer
        self._note(epoch=writer.writer.epoch)
        if (
            known is None
            or self._parts.tap.is_lost
            or not known.is_history_of(self._mark, self._waiting, durable)
            or not all(each.is_whole for each in self._waiting if each.id > known.last)
        ):
            self._parts.tap.lose()
            return
        self._go_on(known)
        self.wrote = writer.writer.nonce

    def _part(self) -> None:
        """Somebody else has the share: how much is here alone is the last that is told."""
        self._absorb(self._parts.log.durable)
        if self._mark is not None and self._mark.has_all(self._waiting, self._brought_back):
            self.wrote = self._mark.nonce
        with suppress(RepositoryDamaged, BucketUnavailable, BucketRefused):  # then nobody knows how much that is
            common, wrote = parted_after(self._place, self._share, self._parts.serde, self._waiting)
            self.wrote = self.wrote or wrote
            if common is not None:
                self._reach(common)
                self._look.look(common, self._parts.log.durable, self._waiting_bytes, is_known=True)
                self._note()

    def step(self) -> None:
        """Ship what is durable; whatever is under way first. Where nothing is put, one look at `epoch`."""
        before = self.figures.log_objects
        if self._base is not None:
            self._publish(self._base)
        if self._parts.tap.is_lost:
            self._make_base()
        self._absorb(self._parts.log.durable)
        if self._is_wider():
            if self._under_way is not None:
                self._ship()
            self._make_base()
        try:
            while (self._waiting or self._under_way) and not self._parts.tap.is_lost:
                self._ship()
        except ContentReclaimed:  # by whoever had it open meanwhile, and held nothing back for shipping
            self._give_up()
        if self._is_log_long():
            self._make_base()
        # Who is idle would else learn of a successor with its next commit, which is acknowledged by then.
        if self._writer and self.figures.log_objects == before and self.lease is None:
            self._writer.require_epoch()
        self._look.note()

    def _is_log_long(self) -> bool:
        """Whether it is time for a base: a restoration reads all behind the last one."""
        assert self._writer is not None, "it has begun"
        doublings = self._bases // BASES_A_DOUBLING
        objects = self._writer.number - self._next_log
        is_large = self._log_bytes > max(self._limits.log_bytes_min, self._base_bytes) << doublings
        return is_large or objects > self._limits.log_objects_max << doublings

    def _is_wider(self) -> bool:
        """Whether there is a container that the base does not name: what lies there could not be restored behind it."""
        return bool(self._parts.identity().containers.keys() - self._containers)

    def absorb(self) -> None:
        """Between tries, those to begin too: note what has become durable, and give up what waits where that is too
        much.
        """
        self._absorb(self._parts.log.durable)
        self._look.note()

    def close(self) -> None:
        """Leave a mark, by which the next start knows that the share has this history, if all was shipped."""
        if self._keeping_swaps is not None:
            self._keeping_swaps.close()
        if self._writer is not None and self._under_way is None and self._through == self._parts.log.last_id:
            leave_mark(self._parts.files, self._parts.root, self._writer.writer, self._through)
            self._look.note(is_last=True)

    def _go_on(self, known: KnownShare) -> None:
        self._content, self._containers = known.content, known.containers
        self._log_bytes, self._base_bytes, self._next_log = known.log_bytes, known.base_bytes, known.next_log
        self._bases = known.bases
        self._awaits_base = False
        self._reach(known.last)

    def _taken_in(self, durable: int) -> list[WaitingTransaction]:
        found = []
        for id, millis, operations in self._parts.tap.through(durable):
            self._logical.is_whole = True
            logical = self._logical.of(operations)
            claimants = Claimants()
            claimants.take(logical)
            new_bytes = sum(claim.length for claim in claimants.in_use())
            payload = self._parts.serde.encode(millis, logical)
            found.append(WaitingTransaction(id, millis, payload, logical, new_bytes, self._logical.is_whole))
        return found

    def _know_swaps(self) -> None:
        """What is in swap files since before the start: whoever drops one of them does not say it."""
        keeping, self._keeping_swaps = self._keeping_swaps, None
        if keeping is None:
            return
        with keeping:
            ledger = self._parts.ledger
            for name in () if self._parts.tap.is_lost else [*list(ledger.swaps), *list(ledger.retired_swaps)]:
                with suppress(RepositoryDamaged):  # told by whoever needs it; once it is dropped, a base is made
                    found = self._parts.swap_files.read(name)
                    self._logical.swapped[name] = b"".join(record.uuid for record in found.records)

    def _absorb(self, durable: int) -> None:
        self._know_swaps()
        if self._parts.tap.is_lost:
            self._give_up()
            return
        new = self._taken_in(durable)
        self._waiting += new
        self._waiting_bytes += sum(each.bytes for each in new)
        is_whole = self._writer is None or all(each.is_whole for each in new)
        if self._counted_bytes() > self._limits.held_bytes or not is_whole:
            self._give_up()
        if self._writer is None:
            self._look.add(self._waiting, durable)
        self._note()

    def _counted_bytes(self) -> int:
        """What counts against the bound of what waits: before it has begun, only what was committed since the start."""
        if self._writer is not None:
            return self._waiting_bytes
        brought = bisect_right(self._waiting, self._brought_back, key=lambda each: each.id)
        return self._waiting_bytes - sum(each.bytes for each in self._waiting[:brought])

    def _give_up(self) -> None:
        """Nothing waits any more, and nothing is held for it: a new base follows."""
        self._parts.tap.lose()
        self._awaits_base = True
        self._waiting, self._waiting_bytes = [], 0
        self._look.forget()
        self._parts.ledger.shipping_since = 0
        self._note()

    def _reach(self, last: int) -> None:
        """Everything up to here is in the share, and waits no more."""
        shipped = bisect_right(self._waiting, last, key=lambda each: each.id)
        self._waiting_bytes -= sum(each.bytes for each in self._waiting[:shipped])
        del self._waiting[:shipped]
        self._through = last
        self._parts.ledger.shipping_since = max(1, last)
        self._note()

    def _ship(self) -> None:
        writer = self._writer
        assert writer is not None, "it has begun"
        if self._under_way is None:
            self._under_way = self._prepared()
        under_way = self._under_way
        writer.append(under_way.batch)
        for claim, pack in under_way.claims:
            self._content.add(claim, pack)
        size = sum(map(len, under_way.batch.payloads)) + sum(len(each.data) for each in under_way.batch.contents)
        self._log_bytes += size
        self._under_way = None
        for each in self._waiting[: under_way.taken]:
            for operation in each.operations:
                if isinstance(operation, ResourceClaimGone):
                    self._content.forget(operation.index)
        self._note(log_objects=self.figures.log_objects + 1, shipped_bytes=self.figures.shipped_bytes + size)
        self._reach(under_way.last)

    def _prepared(self) -> _ObjectUnderWay:
        """The next log object, after all that it needs was put."""
        taken, claims = self._cut()
        some = self._waiting[:taken]
        under_way = _ObjectUnderWay(LogBatch(0, 0, ()), some[-1].id, taken)
        small, large = self._parted([claim for claim in claims if self._content.pack_of(claim) is None])
        packs = [self._put_pack(group, under_way.claims) for group in self._grouped(large)]
        under_way.claims += [(each.claim, IN_LOG) for each in small]
        named = [pack for pack in packs if pack is not None]
        under_way.batch = LogBatch(some[0].id, some[-1].millis, [each.payload for each in some], small, named)
        return under_way

    def _cut(self) -> tuple[int, list[ContentClaim]]:
        """How many of those that wait go into the next log object, and what of them lives at its end."""
        claimants = Claimants()
        payload_bytes = new_bytes = taken = 0
        for each in self._waiting[:TRANSACTIONS_MAX]:
            payload_bytes, new_bytes = payload_bytes + len(each.payload), new_bytes + each.new_bytes
            is_full = payload_bytes > self._limits.batch_payload_bytes or new_bytes > self._limits.batch_content_bytes
            if taken and is_full:
                break
            claimants.take(each.operations)
            taken += 1
        return taken, claimants.in_use()

    def _parted(self, claims: list[ContentClaim]) -> tuple[list[SmallContent], list[ContentClaim]]:
        """Those that ride in the log object, read; and the others."""
        small, large = list[SmallContent](), list[ContentClaim]()
        rest = self._limits.batch_small_bytes
        for claim in claims:
            if claim.length > self._limits.small_bytes or claim.length > rest:
                large.append(claim)
                continue
            try:
                data = self._parts.reader.read(claim, 0, claim.length)
            except UNREADABLE:
                self._note(unreadable=self.figures.unreadable + 1)  # unavailable here, and where it is restored
                continue
            small.append(SmallContent(claim, data))
            rest -= claim.length
        return small, large

    def _grouped(self, claims: Sequence[ContentClaim]) -> Iterator[list[ContentClaim]]:
        """For a pack each; fewer packs than a log object may name."""
        pack_bytes = max(self._limits.pack_bytes, sum(claim.length for claim in claims) // (PACKS_MAX // 2))
        group: list[ContentClaim] = []
        size = 0
        for claim in claims:
            if group and (size + claim.length > pack_bytes or len(group) == PACK_CONTENTS_MAX):
                yield group
                group, size = [], 0
            group.append(claim)
            size += claim.length
        if group:
            yield group

    def _put_pack(self, claims: list[ContentClaim], put: list[tuple[ContentClaim, int]]) -> NamedPack | None:
        """Put a pack of those that can be read, which are noted; None if none can."""
        writer = self._writer
        assert writer is not None, "it has begun"
        while claims:
            number, self._next_pack = self._next_pack, self._next_pack + 1
            name = pack_name(writer.writer, number)
            length = pack_length(claims)
            pieces = WatchedPieces(pack_pieces(self._share, writer.writer, number, claims, self._read))
            try:
                self._place.put_pieces(name, pieces, length)
            except Exception:
                if pieces.failure is None:
                    raise
            if pieces.failure is not None:
                # What was put of it nobody names. The next has a name of its own: this one may come late.
                if not isinstance(pieces.failure, UNREADABLE):
                    raise pieces.failure
                readable = [claim for claim in claims if self._is_readable(claim)]
                self._note(unreadable=self.figures.unreadable + len(claims) - len(readable))
                claims = readable
                continue
            told = self._content.add_pack(name, sum(claim.length for claim in claims))
            put += [(claim, told) for claim in claims]
            figures = self.figures
            self._note(packs=figures.packs + 1, shipped_bytes=figures.shipped_bytes + length)
            return NamedPack(name, length)
        return None

    def _read(self, claim: ContentClaim) -> Iterator[bytes]:
        return self._parts.reader.stream(claim, 0, claim.length)

    def _is_readable(self, claim: ContentClaim) -> bool:
        try:
            self._parts.reader.verify(claim)
        except UNREADABLE:
            return False
        return True

    def _make_base(self) -> None:
        """See `basing.py`. What waits from the frozen moment on goes into log objects behind it."""
        parts = self._parts
        if parts.tap.is_lost:
            self._settle()
            self._waiting, self._waiting_bytes = [], 0
            parts.tap.open()
            try:
                self._base = self._new_base()
            except BaseException:
                self._give_up()  # what is behind a base that is not there counts for nothing
                raise
        else:
            self._base = self._new_base()
        self._publish(self._base)

    def _new_base(self) -> ListedBase:
        with closing(FrozenMoment(self._parts, self._logical)) as moment:
            return self._put_base(moment)

    def _settle(self) -> None:
        """Put what is under way: only then is the next number known."""
        if self._under_way is not None:
            assert self._writer is not None, "it has begun"
            self._writer.append(self._under_way.batch)
            self._under_way = None

    def _put_base(self, moment: FrozenMoment) -> ListedBase:
        writer = self._writer
        assert writer is not None, "it has begun"
        keep_mostly_live(self._content, moment)
        for group in self._grouped_lazily(moment):
            noted: list[tuple[ContentClaim, int]] = []
            self._put_pack(group, noted)
            for claim, pack in noted:
                self._content.add(claim, pack)
        packs = [NamedPack(name, length) for name, length in self._content.names.values()]
        header = BaseHeader(
            format=SHARE_FORMAT,
            share=self._share,
            epoch=writer.writer.epoch,
            nonce=writer.writer.nonce,
            transaction=moment.transaction,
            millis=moment.millis,
            next_log=writer.number,
        )
        number, self._next_base = self._next_base, self._next_base + 1
        name = base_name(moment.transaction, writer.writer, number)
        pieces = WatchedPieces(moment.pieces(header, packs))
        self._place.put_pieces(name, pieces, moment.length)
        if pieces.failure is not None:  # and what was put is none
            raise pieces.failure
        self._base_bytes, self._log_bytes, self._next_log = moment.length, 0, writer.number
        self._containers = frozenset(moment.identity.containers)
        self._reach(moment.transaction)
        return ListedBase(
            name=name,
            transaction=moment.transaction,
            millis=moment.millis,
            next_log=writer.number,
            next_pack=self._next_pack,
        )

    def _grouped_lazily(self, moment: FrozenMoment) -> Iterator[list[ContentClaim]]:
        """What the share lacks, in groups for a pack each; a group is noted before the next is asked for."""
        group: dict[ContentClaim, None] = {}
        size = 0
        for claim in missing_in(self._content, moment):
            if claim in group:
                continue
            if group and (size + claim.length > self._limits.pack_bytes or len(group) == PACK_CONTENTS_MAX):
                yield sorted(group, key=lambda each: (each.resource, each.offset))
                group, size = {}, 0
                if self._content.pack_of(claim) is not None:
                    continue
            group[claim] = None
            size += claim.length
        if group:
            yield sorted(group, key=lambda each: (each.resource, each.offset))

    def _publish(self, base: ListedBase) -> None:
        """From here on restorations begin with it."""
        writer = self._writer
        assert writer is not None, "it has begun"
        manifest = publish(self._place, self._share, writer.writer, base, self._limits.retention_millis)
        self._base, self._bases, self._awaits_base = None, len(manifest.bases), self._parts.tap.is_lost
        self._note(bases=self.figures.bases + 1)
        self.wrote = writer.writer.nonce  # not before: else what is restored up to here is another's
        collect(self._place, self._share, writer.writer, manifest)

    def _note(self, **known: int) -> None:
        waiting, waiting_bytes, through = self._waiting, self._waiting_bytes, self._through
        transactions, awaits_base = len(waiting), self._awaits_base
        if self._writer is not None:
            self._look.look(through, waiting[-1].id if waiting else through, waiting_bytes, is_known=not awaits_base)
        elif (before := self._look.known) is not None:
            waiting = waiting[bisect_right(waiting, before.through, key=lambda each: each.id) :]
            waiting_bytes, through, awaits_base = before.waiting_bytes, before.through, False
            transactions = before.as_of - through
        self.figures = self.figures._replace(
            through=through,
            since_millis=waiting[0].millis if waiting else None,
            waiting_bytes=waiting_bytes,
            waiting_transactions=transactions,
            awaits_base=awaits_base,
            **known,
        )

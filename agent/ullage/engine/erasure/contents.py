"""The bytes of a subject: which of them only it needs, which others need as well, and which nobody does any more."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from ullage.engine.byteranges import ByteRange, merged, without
from ullage.engine.erasure.tally import ErasureTally
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.placement import locate
from ullage.engine.model import Content, ContentClaim, FlowFileRecord
from ullage.errors import ContentMissing, ContentReclaimed
from ullage.wire.erasure import ErasurePlace


class SubjectContents:
    """Slices of base claims: first all of the subject's, then those of others on the same claims."""

    def __init__(self) -> None:
        self._now: defaultdict[ContentClaim, list[ByteRange]] = defaultdict(list)
        self._before: defaultdict[ContentClaim, list[ByteRange]] = defaultdict(list)
        self._others: defaultdict[ContentClaim, list[ByteRange]] = defaultdict(list)

    def need(self, record: FlowFileRecord) -> None:
        """A FlowFile or handle of the subject has this content."""
        _note(self._now, record)

    def needed(self, content: Content) -> None:
        """An event of the subject tells of this content."""
        _note(self._before, content)

    def also_need(self, record: FlowFileRecord) -> None:
        """A FlowFile or handle of somebody else has this content. To be called once all of the subject is known."""
        if record.claim in self._now or record.claim in self._before:
            _note(self._others, record)

    def claims(self) -> tuple[ContentClaim, ...]:
        """All that the subject has, or had."""
        return tuple(sorted(self._now.keys() | self._before.keys(), key=_place_of))

    def count(self, ledger: Ledger, tally: ErasureTally) -> None:
        """Tell each byte once: as shared, else as the subject's own, else as archived or dead."""
        for claim in self._now.keys() | self._before.keys():
            others = merged(self._others[claim])
            now, before = merged(self._now[claim]), merged(self._before[claim])
            own = _without(now, others)
            dead = _without(_without(before, others), now)
            all = merged([*now, *before])
            shared = _length(all) - _length(own) - _length(dead)
            try:
                place = locate(ledger, claim)
            except ContentReclaimed as error:  # of bytes that are gone already there is nothing to tell
                if own or shared:
                    tally.miss(error)
                continue
            except ContentMissing as error:
                tally.miss(error)
                continue
            rest = ErasurePlace.ARCHIVED_CONTENT if place.file.archived_millis else ErasurePlace.DEAD_CONTENT
            for where, size in (
                (ErasurePlace.OWN_CONTENT, _length(own)),
                (ErasurePlace.SHARED_CONTENT, shared),
                (rest, _length(dead)),
            ):
                if size:
                    tally.add(where, size)
            if place.file.index != claim.resource:
                tally.add(ErasurePlace.RELOCATED_CONTENT, _length(all))


def _place_of(claim: ContentClaim) -> tuple[int, int]:
    return claim.resource, claim.offset


def _note(slices: defaultdict[ContentClaim, list[ByteRange]], content: FlowFileRecord | Content) -> None:
    if content.claim is not None and content.size:
        slices[content.claim].append(ByteRange(content.start, content.size))


def _without(runs: Iterable[ByteRange], others: Sequence[ByteRange]) -> list[ByteRange]:
    return [left for run in runs for left in without(run, others)]


def _length(runs: Iterable[ByteRange]) -> int:
    return sum(run.length for run in runs)

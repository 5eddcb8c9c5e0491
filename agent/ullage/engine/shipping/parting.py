"""Where a repository and its share have parted: what stands behind that was acknowledged here, and is nowhere else.

here    1 2 3 4 5          the log of a node that was fenced: 4 and 5 are its divergent tail
share   1 2 3 a b c        somebody adopted it behind 3

Whether this root has all that one of its writers put is told by the same: 3 is that writer's last, and is here. A copy
of the root carries the names of writers as well, but not what they put after it was made.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ullage.engine.shipping.history import AsShipped, listed_bases
from ullage.engine.shipping.logreader import read_log
from ullage.engine.shipping.shareplace import SharePlace
from ullage.engine.wal.serde import SerDe


class Parting(NamedTuple):
    """`last`: the last transaction that a share has as a log has it, however others went on from there; None where they
    have none in common that both still hold. `wrote`: the nonce of the writer whose last transaction that is, "" where
    it put more, or nobody followed.
    """

    last: int | None = None
    wrote: str = ""


def parted_after(place: SharePlace, share: str, serde: SerDe, here: Sequence[AsShipped]) -> Parting:
    """Of a share, and of these of a log. RepositoryDamaged; BucketUnavailable; BucketRefused."""
    bases = listed_bases(place, share)
    if not here or not bases:
        return Parting()
    payloads = {each.id: each.payload for each in here}
    base = next((each for each in reversed(bases) if each.transaction < here[0].id), bases[0])
    common, end, writer, wrote = None, 0, "", ""
    for found in read_log(place, share, serde, base):
        if found.header.is_fence and found.header.nonce != writer and common == end:
            wrote = wrote or writer
        for id, payload in found.transactions():
            if id in payloads and payloads[id] != payload:
                return Parting(common, wrote)
            # In common with a later one: then what the earlier put is not the last that this root has shipped.
            common, wrote = (id, "") if id in payloads else (common, wrote)
            end, writer = id, found.header.nonce
    return Parting(common, wrote)

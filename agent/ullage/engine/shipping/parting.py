"""Where a repository and its share have parted: what stands behind that was acknowledged here, and is nowhere else.

here    1 2 3 4 5          the log of a node that was fenced: 4 and 5 are its divergent tail
share   1 2 3 a b c        somebody adopted it behind 3
"""

from collections.abc import Sequence

from ullage.engine.shipping.history import AsShipped, listed_bases
from ullage.engine.shipping.logreader import read_log
from ullage.engine.shipping.shareplace import SharePlace
from ullage.engine.wal.serde import SerDe


def parted_after(place: SharePlace, share: str, serde: SerDe, here: Sequence[AsShipped]) -> int | None:
    """The last transaction that a share has as a log has it, however others went on from there; None where they have
    none in common that both still hold. RepositoryDamaged; BucketUnavailable; BucketRefused.
    """
    bases = listed_bases(place, share)
    if not here or not bases:
        return None
    payloads = {each.id: each.payload for each in here}
    base = next((each for each in reversed(bases) if each.transaction < here[0].id), bases[0])
    common = None
    for found in read_log(place, share, serde, base):
        for id, payload in found.transactions():
            if id in payloads and payloads[id] != payload:
                return common
            common = id if id in payloads else common
    return common

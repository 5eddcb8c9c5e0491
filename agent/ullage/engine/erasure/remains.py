"""What an erasure could not do, in words, and whether another one may."""

from collections.abc import Sequence

from ullage.engine.erasure.forcing import LeftContent
from ullage.wire.erasure import ErasurePlace, ErasureSurvey

_CONTENT = frozenset(place for place in ErasurePlace if place.endswith("Content"))


def remains_of(
    after: ErasureSurvey, content: LeftContent, failures: Sequence[str], *, are_runs_whole: bool
) -> tuple[tuple[str, ...], bool]:
    """Sentences, by what a look afterwards has found, and `failures` otherwise; and whether nothing is left that may go
    another time.
    """
    passing = [
        f"{each.place}: {each.count} are still there" for each in after.findings if _is_left(each.place, each.count)
    ]
    passing += [f"could not be read, and may have more of the subject: {each}" for each in after.unread]
    passing += content.left
    passing += failures
    if not are_runs_whole:
        passing.append("runs of handles could not be written anew: a block is damaged, or there is no room")
    lasting = []
    if content.shared_bytes:
        lasting.append(
            f"{content.shared_bytes} bytes of content ({content.shared_claims} contents) stay, because FlowFiles or "
            "handles of somebody else have the same content, or a part of it"
        )
    return (*passing, *lasting), not passing


def _is_left(place: ErasurePlace, count: int) -> bool:
    return count > 0 and place not in _CONTENT  # of content the files were looked at

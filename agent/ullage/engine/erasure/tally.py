"""What a look for a subject has found so far."""

from collections import Counter

from ullage.wire.erasure import ErasureFinding, ErasurePlace


class ErasureTally:
    """Counts and bytes by place; `uuids` of the subject's FlowFiles and handles; what could not be read."""

    def __init__(self) -> None:
        self._counts: Counter[ErasurePlace] = Counter()
        self._bytes: Counter[ErasurePlace] = Counter()
        self.uuids: set[bytes] = set()
        self.unread: dict[str, None] = {}

    def add(self, place: ErasurePlace, size: int, count: int = 1) -> None:
        """One more of a place."""
        self._counts[place] += count
        self._bytes[place] += size

    def miss(self, what: object) -> None:
        """Something could not be read: it is told once."""
        self.unread[str(what)] = None

    def findings(self) -> tuple[ErasureFinding, ...]:
        """Every place in its order, also those that have nothing."""
        return tuple(
            ErasureFinding(place=place, count=self._counts[place], bytes=self._bytes[place]) for place in ErasurePlace
        )

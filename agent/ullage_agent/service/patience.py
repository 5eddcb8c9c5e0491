"""How many tokens that nobody vouches for a peer may bring before it must wait.

Each token that was not seen before costs the API server a review, whoever brings it: a thousand made up in a second
would be a thousand reviews, and who shares that API server would wait. So each peer has some reviews, and gets back
what turned out well. A token that was good before needs none of them.
"""

import math
import threading
from collections import OrderedDict
from typing import Final

from ullage.clock import Clock
from ullage.errors import TooManyTokens
from ullage_agent.service.addresses import client_of

REVIEWS: Final = 10
"""At once: what somebody who mixes up their tokens needs."""

SECONDS_A_REVIEW: Final = 6.0
"""How soon a peer that has used them up has one more."""

PEERS_MAX: Final = 10_000
"""Peers that are remembered; the one that was heard of longest ago is forgotten first."""


class Patience:
    """See the module's text. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, peer: str) -> None:
        """One review for this peer. TooManyTokens, which says how long to wait, if it has none left."""
        key, now = client_of(peer), self._clock.monotonic()
        with self._lock:
            left, at = self._left.pop(key, (float(REVIEWS), now))
            left = min(float(REVIEWS), left + (now - at) / SECONDS_A_REVIEW)
            self._left[key] = (left - 1.0 if left >= 1.0 else left, now)
            while len(self._left) > PEERS_MAX:
                self._left.popitem(last=False)
        if left < 1.0:
            # Whole seconds, as Retry-After has them: rounded up, so that who waits as long gets a review.
            seconds = math.ceil((1.0 - left) * SECONDS_A_REVIEW)
            error = TooManyTokens(
                f"too many bearer tokens that the cluster does not vouch for came from {peer or 'here'}: wait "
                f"{seconds} seconds before another one"
            )
            error.retry_after_seconds = seconds
            raise error

    def give_back(self, peer: str) -> None:
        """It was needed for nothing bad: the token was good, or the API server did not answer."""
        key = client_of(peer)
        with self._lock:
            left, at = self._left.get(key, (float(REVIEWS), self._clock.monotonic()))
            self._left[key] = (min(float(REVIEWS), left + 1.0), at)

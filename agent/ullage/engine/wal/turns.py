"""Whose turn it is to sync: one commit leads, those that come meanwhile follow.

Each follower sleeps on a lock of its own. A lock they share would pass from one to the next, and the first that is not
covered yet would sync before those behind it have had their turn to append.
"""

import threading


class Turns:
    """Gives the lead to one commit at a time. Nobody who waits is ever left without a leader before it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_led = False
        self._followers: list[tuple[int, threading.Lock]] = []

    def lead_or_wait(self, id: int) -> bool:
        """True: the caller leads, and calls `done` whatever happens. False: it has waited, and looks again."""
        with self._lock:
            if not self._is_led:
                self._is_led = True
                return True
            turn = threading.Lock()
            turn.acquire()
            follower = (id, turn)
            self._followers.append(follower)
        try:
            turn.acquire()
        except BaseException:
            self._leave(follower)
            raise
        return False

    def done(self, durable: int) -> None:
        """Wake those whose transaction is durable, and of the others the first: to lead, or to meet a failure."""
        with self._lock:
            self._is_led = False
            woken = [follower for follower in self._followers if follower[0] <= durable]
            self._followers = [follower for follower in self._followers if follower[0] > durable]
            if self._followers:
                # One of them, even where the sync failed: it meets the same failure, and wakes the next.
                woken.append(self._followers.pop(0))
        for _, turn in woken:
            turn.release()

    def wake_all(self) -> None:
        """There is nothing left to sync: each looks for itself at what became of its transaction."""
        with self._lock:
            woken, self._followers = self._followers, []
        for _, turn in woken:
            turn.release()

    def _leave(self, follower: tuple[int, threading.Lock]) -> None:
        """A signal ended the wait. If the lead had just been passed to this one, all others look who takes it."""
        with self._lock:
            if follower in self._followers:
                self._followers.remove(follower)
                return
        self.wake_all()

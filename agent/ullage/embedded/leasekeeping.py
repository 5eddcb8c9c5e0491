"""Keeps the lease of a repository that ships, by a thread of its own: renewals never wait for what is shipped."""

import threading
from collections.abc import Callable
from typing import Final

from ullage.embedded.toldonce import ToldOnce
from ullage.engine.servingright import ServingRight
from ullage.engine.shipping.lease import LeaseRenewer, OwnedLease
from ullage.engine.shipping.shareplace import SharePlace
from ullage.errors import ShareFenced

RENEWALS: Final = 5
"""In a term: so many may fail but one."""

TASK: Final = "lease"


class LeaseKeeper:
    """`held` is what the shipper begins with: whoever takes the share has it from then on."""

    def __init__(
        self,
        held: OwnedLease,
        right: ServingRight,
        place: SharePlace,
        share: str,
        on_failure: Callable[[str, Exception], None],
        reopen: Callable[[], None],
    ) -> None:
        """From here on nothing is served before the share is taken. `place` is its own, for one thread."""
        self.held = held
        self._right = right
        self._place = place
        self._share = share
        self._told = ToldOnce(TASK, on_failure)
        self._reopen = reopen
        self._renewer: LeaseRenewer | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ullage-lease", daemon=True)
        right.bind(held.lease)
        held.on_change = right.notice

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def stop(self) -> None:
        """Renew no more. It lapses by itself: who adopts the share waits for that."""
        self._stop.set()
        self._thread.join(self.held.term)

    def step(self) -> None:
        """One renewal, if the share is taken. Nothing is raised; what went wrong is told once."""
        writer = self.held.writer
        if writer is None or self.held.lease.is_lost:
            return
        if self._renewer is None or self._renewer.writer != writer:
            self._renewer = LeaseRenewer(self._place, self._share, writer, self.held.lease)
        try:
            self._renewer.renew(self.held.term)
            self._told.forget()
        except ShareFenced as error:
            if self.held.writer == writer:
                self.held.lease.lose()
            self._told.tell(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the lease lapses, and the next try may succeed
            self._reopen()  # credentials and authorities may have come, or been rotated
            self._told.tell(error)
        self._right.notice()

    def _run(self) -> None:
        while not self._stop.wait(self.held.term / RENEWALS):
            self.step()

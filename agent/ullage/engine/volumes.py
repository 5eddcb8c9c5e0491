"""The volumes that containers lie on: what each can do now, what follows when one is back, and giving one up.

Contents on a volume that is away are unavailable, and nothing else is: writes go to the others, and each is reclaimed
by itself. A start without one serves the rest.

    add:    its directory and identity are durable | the repository has it | written to
                                                     ^ made at a start, or whenever it can be made after that
    forget: its name is durably forgotten | what had content there is dropped | resource claims end | it is no container
            ^ from here on it is not looked for, and what a crash or a session left is dropped later
"""

import threading
from collections.abc import Callable
from contextlib import suppress

from ullage.engine.committer import Committer
from ullage.engine.content.containers import Container
from ullage.engine.content.protocol import ContentStore
from ullage.engine.flowfile.manager import QueueManager
from ullage.engine.holdings import Holdings, holdings
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.placement import is_unused
from ullage.engine.ledger.resources import ResourceEntry
from ullage.engine.ledger.swap import SwapFiles
from ullage.engine.model import Operation, ResourceClaimGone
from ullage.engine.reclaim.execute import charged_bytes
from ullage.engine.unavailable import UnavailableContents
from ullage.engine.uninterrupted import uninterrupted
from ullage.errors import ForeignContainer, InvalidArgument, RepositoryDamaged

GIVEN_UP = "its volume was forgotten, and the loss accepted"

ENDED_TOGETHER = 1_000
"""Records that one transaction ends, and those of what had been moved to the last of them."""


class Volumes:
    """Thread-safe."""

    def __init__(
        self,
        content: ContentStore,
        queues: QueueManager,
        ledger: Ledger,
        swap_files: SwapFiles,
        unavailable: UnavailableContents,
        committer: Committer,
        add: Callable[[str], None],
        record: Callable[[str, bool], None],
    ) -> None:
        """`add` says durably that the repository has a container; `record` that one is forgotten, and with True that
        nothing is left of it.
        """
        self._content = content
        self._queues = queues
        self._ledger = ledger
        self._swap_files = swap_files
        self._unavailable = unavailable
        self._committer = committer
        self._add = add
        self._record = record
        self._away = content.away
        self._lock = threading.RLock()

    def listed(self) -> list[tuple[Container, Holdings]]:
        """Each container, and what lies in it. Reads every swap file that may count."""
        return [(container, self._holdings(container)) for container in list(self._content.containers.values())]

    def look(self) -> None:
        """See which volumes are there. Containers that could not be made are tried again. FlowFiles that consumers
        passed over while their volume was away return to their places when it is back. What is left of a forgotten one
        is dropped.
        """
        with self._lock:
            for container in self._content.containers.values():
                if container.unmade and not container.is_forgotten:
                    self._make(container)
            self._content.look_at_volumes()
            was, self._away = self._away, self._content.away
            if was - self._away:
                for queue in self._queues.all():
                    queue.put_back()
            for container in list(self._content.containers.values()):
                if container.is_forgotten:
                    self._end(container)

    def forget(self, name: str, by: str = "") -> tuple[Container, Holdings]:
        """Give up a container whose volume is away, with all that lies on it: what that was.

        Each FlowFile and handle gets a DROP event, which names who; one that goes after a restart names nobody. What a
        session holds goes when it is given back; nothing else that follows needs the caller. The name is never used
        again. InvalidArgument, with nothing changed, for a container that there is not, whose volume is there, or
        without which no volume would be.
        """
        container = self._content.containers.get(name)
        if container is None:
            raise InvalidArgument(f"there is no container {name!r}: {', '.join(sorted(self._content.containers))}")
        with self._lock:
            self._content.look_at_volumes()
            if container.is_available:
                raise InvalidArgument(
                    f"the volume of {name} is there: to empty it, set evacuate: true for it in spec.storage.containers"
                )
            if not any(each.is_available for each in self._content.containers.values()):
                raise InvalidArgument(f"no other volume than that of {name} is there: mount or add one first")
            held = self._holdings(container)
            self._record(name, False)
            container.forgotten_by = by
            container.is_forgotten = True
            self._content.retire_idle()  # a file there that waits for the next writer would be in use for ever
            self.look()
        return container, held

    def _make(self, container: Container) -> None:
        try:
            self._content.make(container.name)
            # A start that finds content there must know the container, whatever the settings list by then.
            self._add(container.name)
        except (OSError, ForeignContainer) as error:
            container.unmade = str(error)  # what its condition says
        else:
            container.unmade = ""

    def _holdings(self, container: Container) -> Holdings:
        return holdings(self._ledger, self._swap_files.read, container.name)

    def _end(self, container: Container) -> None:
        """Drop what can be dropped now, and forget the container once nothing is left."""
        # It keeps what it points at, and the container: `Holdings.unread` names it. It is read again at each look, and
        # must not keep the rest from its end.
        with suppress(RepositoryDamaged):  # a swap file
            self._unavailable.give_up(container.name, GIVEN_UP, container.forgotten_by)
        self._end_claims(container)
        left = [*(entry.claim for entry in self._ledger.entries()), *self._content.open_claims()]
        if all(claim.container != container.name for claim in left):
            # A log that still tells of it would be read by a start that knows no such container.
            self._committer.checkpoint()
            self._record(container.name, True)
            self._content.forget(container.name)
            self._away = self._content.away

    @uninterrupted
    def _end_claims(self, container: Container) -> None:
        """The records of its files that nothing needs: there is no file to be taken away."""
        written = {claim.index for claim in self._content.open_claims()}
        entries = list(self._ledger.entries())
        with self._ledger.lock:
            taken = [
                entry
                for entry in entries
                if self._is_over(entry, container, written) and self._ledger.take({entry.claim.index})
            ]
        try:
            operations: list[Operation] = []
            charged = 0
            for entry in taken:
                # What was moved here goes first: a record with sources can't go.
                operations += map(ResourceClaimGone, (*sorted(entry.sources or ()), entry.claim.index))
                charged += charged_bytes(entry.claim)
                if len(operations) >= ENDED_TOGETHER or entry is taken[-1]:
                    self._committer.commit(operations, creates=False)
                    container.add_bytes(-charged)
                    operations, charged = [], 0
        finally:
            self._ledger.give_back({entry.claim.index for entry in taken})

    def _is_over(self, entry: ResourceEntry, container: Container, written: set[int]) -> bool:
        """Of a file, not of an address whose bytes a rewrite moved: that goes with the file where they lie."""
        claim = entry.claim
        is_file = claim.container == container.name and entry.relocation is None and claim.index not in written
        return is_file and is_unused(self._ledger, entry)

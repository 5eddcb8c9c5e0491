"""Before a node has a repository: whether an empty one may be made, or a backup is to be brought back instead.

A repository that is there is opened without asking anybody; the API server may be away. Where there is none the node's
object is asked: an empty directory may be a volume that is missing, and somebody may want a ContentRestore here. Until
that has gone well no empty repository is made in its place.
"""

import os
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from ullage import __version__
from ullage.clock import Clock
from ullage.contract import (
    ENDED,
    RESTORE_SECONDS_TOLD,
    ContentRepository,
    NodeStatus,
    RestoreTicket,
    RestoreTicketReport,
    TicketState,
    millis_of,
    time_of,
)
from ullage.embedded.upkeep import generation_at, is_whole, restore, restore_some
from ullage.errors import BucketUnavailable, NotARepository, RepositoryDamaged, UllageError
from ullage.interface.buckets import Bucket
from ullage.interface.repository import Bytes
from ullage_agent.node.objects import NodeObjectClient, NodeObjectError, ObservedNode
from ullage_agent.service.backupplaces import allowed_bucket, waits_for_credentials
from ullage_agent.service.log import logger

WAIT_SECONDS: Final = 2.0


class NodeRestore:
    """`report` is what became of the restoration that was asked for last; None if none was."""

    def __init__(
        self,
        api: NodeObjectClient,
        settings: Callable[[], tuple[ContentRepository, int]],
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`settings`: as they are now, and of which generation."""
        self._api = api
        self._settings = settings
        self._clock = clock or Clock()
        self._sleep = sleep
        self._log = logger("node")
        self._next_told = 0.0
        self.report: RestoreTicketReport | None = None

    def may_make(self, root: str) -> bool:
        """Whether an empty repository may be made in `root`; False: there is one, or is by now. NotARepository: one was
        here, and its volume is missing.
        """
        # What was cut short while some of a backup was brought back is told of as failed, and not by a process that
        # ends again and again because it cannot open it.
        while not is_whole(root):
            try:
                seen = self._api.read()
            except NodeObjectError as error:
                self._log.warning("nothing here, and the cluster cannot be asked", problem=str(error))
            else:
                if seen is None:
                    self._log.info("waiting for the operator", object=self._api.name)
                elif seen.status.repository_uuid:
                    raise NotARepository(
                        f"{root} is empty, and there was a repository on this node: mount its volume again. Only if "
                        f"the disk is lost for good, give up what it held: `kubectl annotate contentrepositorynode "
                        f"{self._api.name} --namespace {self._api.namespace} ullage.dev/release={seen.uid}`; an empty "
                        "one is made then, or what a ContentRestore brings back"
                    )
                elif seen.spec.restoration is None:
                    return True
                else:
                    self._bring_back(root, seen, seen.spec.restoration)
                    continue
            self._sleep(WAIT_SECONDS)
        return False

    def _bring_back(self, root: str, seen: ObservedNode, ticket: RestoreTicket) -> None:
        """Once; what can't be done now is tried again soon."""
        if self.report is None:
            self.report = seen.status.restoration
        if self.report is None or self.report.id != ticket.id:
            started = time_of(self._clock.now_millis())
            self.report = RestoreTicketReport(id=ticket.id, state=TicketState.RUNNING, started=started)
        if self.report.state not in ENDED:
            document, generation = self._settings()
            if waits := self._try(root, document, generation, ticket):
                self._tell(message=waits)
            if self.report.state == TicketState.COMPLETED:
                return
        self._sleep(WAIT_SECONDS)

    def _try(self, root: str, document: ContentRepository, generation: int, ticket: RestoreTicket) -> str:
        """For what it waits; empty: it has ended."""
        if generation < ticket.generation:
            return "waits for the settings that allow the place"
        try:
            bucket = allowed_bucket(document.spec.service.backup_buckets, ticket.place)
            if bucket.credentials_file and not os.path.exists(bucket.credentials_file):
                return waits_for_credentials(bucket)
            found = brought_back(bucket, root, document, ticket, self._reach)
        except BucketUnavailable as error:
            return f"{type(error).__name__}: {error}"
        except UllageError as error:
            self._end(TicketState.FAILED, f"{type(error).__name__}: {error}")
            return ""
        lost, reason = found.lost, found.reason
        words = f"the backup lacks the content of {lost:,} FlowFiles and handles, {reason}" if lost else ""
        if found.problems:
            words = f"{len(found.problems):,} problems, {found.problems[0]}"
        self._end(TicketState.COMPLETED, words, generation=found.generation, lost=lost, erased=found.erased)
        return ""

    def _reach(self, done: int, total: int) -> None:
        if self._clock.monotonic() >= self._next_told:
            self._next_told = self._clock.monotonic() + RESTORE_SECONDS_TOLD
            self._tell(bytes_done=done, bytes=max(done, total), message="")

    def _end(self, state: TicketState, message: str, **more: object) -> None:
        self._log.info("restoration ended", state=str(state), message=message)
        ended = time_of(self._clock.now_millis())
        self._tell(state=state, message=message[:1024], ended=ended, **more)

    def _tell(self, **known: object) -> None:
        """What is known now. There is no repository whose state the rest of the status could tell."""
        assert self.report is not None
        before, self.report = self.report, msgspec.structs.replace(self.report, **known)
        if before == self.report:
            return
        now = time_of(self._clock.now_millis())
        try:
            self._api.write(NodeStatus(version=__version__, heartbeat=now, restoration=self.report))
        except NodeObjectError as error:  # whoever serves then tells it with the rest
            self._log.warning("status not written", problem=str(error))


class BroughtBack(NamedTuple):
    """What came of a restoration. `lost`: FlowFiles and handles without content there, `reason`: why one has none;
    `erased`: those that a register names, and nobody brings back.
    """

    generation: int
    lost: int
    reason: str
    problems: Sequence[str]
    erased: int


def brought_back(
    bucket: Bucket, root: str, document: ContentRepository, ticket: RestoreTicket, reach: Bytes
) -> BroughtBack:
    """Make the repository of all that a ticket asks for, in containers as the settings have them."""
    paths = {each.name: each.sub_path for each in document.spec.storage.containers if each.sub_path}
    generation = ticket.backup_generation
    if ticket.at is not None:
        generation = generation_at(bucket, millis_of(ticket.at))
    if not (ticket.queues or ticket.ids):
        found = restore(bucket, root, containers=paths, generation=generation, on_progress=reach)
        if unfinished := next((each for each in found.erased if not each.is_finished), None):
            raise RepositoryDamaged(f"{root} does not open, as not all could be erased: {unfinished.remains[0]}")
        lost, erased = found.backup.lost, sum(each.uuids for each in found.erased)
        reason = lost[0].reason if lost else ""
        return BroughtBack(found.backup.generation, len(lost), reason, found.check.problems, erased)
    some = restore_some(
        bucket,
        root,
        queues=ticket.queues,
        ids=ticket.ids,
        containers=paths,
        generation=generation,
        on_progress=reach,
    )
    reason = some.lost[0].reason if some.lost else ""
    return BroughtBack(some.generation, some.lost_count, reason, some.check.problems, some.erased)


def restoration_of(seen: ObservedNode, known: RestoreTicketReport | None) -> RestoreTicketReport | None:
    """What is to be told of it once a repository is open: what was told last, if this process has brought nothing back.
    One that was under way has gone well, or there would be no repository; one that was never begun finds one there.
    """
    known = known or seen.status.restoration
    if known is not None and known.state == TicketState.RUNNING:
        known = msgspec.structs.replace(known, state=TicketState.COMPLETED, message="")
    ticket = seen.spec.restoration
    if ticket is not None and (known is None or known.id != ticket.id):
        known = RestoreTicketReport(id=ticket.id, state=TicketState.REFUSED, message="there is a repository already")
    return known

"""Reclamation: what the disk holds, what of it is dead, and giving that back."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from ullage.contract import MaintenanceSettings, Opening, WindowStatus
from ullage.interface.checks import run_request
from ullage.wire.space import (
    CleaningReport,
    CompactionPolicies,
    GoalStatus,
    Plan,
    ResourceClaimMap,
    ResourceClaimUsage,
    RunProgress,
    RunRequest,
    SpaceExplanation,
    SpaceForecast,
    Survey,
)

PROGRESS_SECONDS = 0.2
"""How often somebody who waits is told how far a run is."""

Progress = Callable[[RunProgress], bool]
"""Is told now and then how far a run is; once it says False the run is stopped after its present action."""


class Reclamation(ABC):
    """The space of a repository. Thread-safe.

    >>> id = repository.queues.put("inbox", b"content" * 10_000)
    >>> repository.queues.drop("inbox")
    1
    >>> [step.action for step in repository.reclamation.plan().steps]  # kept for replays until the archive is full
    ['archive']
    >>> repository.reclamation.reclaim().report.done["archive"]
    1
    """

    @abstractmethod
    def survey(self) -> Survey:
        """How full each container is, and of what: live, dead, archived, kept for an undelete.

        >>> [container.live_bytes for container in repository.reclamation.survey().containers]
        [0]
        """

    @abstractmethod
    def explain(self) -> SpaceExplanation:
        """What every allocated byte is there for: what lives, and of what does not why it is still there, until when.

        It reads all directories; its sum is what the filesystem says of them, to the block.

        >>> explanation = repository.reclamation.explain()
        >>> sum(share.bytes for share in explanation.shares) == explanation.allocated_bytes
        True
        """

    @abstractmethod
    def forecast(self) -> SpaceForecast:
        """When each dead byte of content comes back: by what operation, not before when, and if that can be told until
        when; of those that do not come by themselves, what keeps them and what would help.

        A repository that nobody maintains, as with `maintain=False`, gives nothing back by itself.

        >>> forecast = repository.reclamation.forecast()
        >>> sum(coming.bytes for coming in forecast.coming) == forecast.dead_bytes
        True
        """

    @abstractmethod
    def goal(self) -> GoalStatus:
        """How `spec.compaction.goal` is held, what was decided in the last minute, and what will be missed and why.

        >>> repository.reclamation.goal().disk_to_live is None  # there is no goal
        True
        """

    @abstractmethod
    def resources(self) -> Iterator[ResourceClaimUsage]:
        """Every resource claim with its figures, by index.

        >>> list(repository.reclamation.resources())
        []
        """

    @abstractmethod
    def resource(self, index: int) -> ResourceClaimMap:
        """One resource claim from its beginning to its end: what lives, what is dead, and what is a hole.

        NotFound if there is no such resource claim.

        >>> handle = repository.handles.put(b"content")
        >>> [first] = repository.reclamation.resources()
        >>> repository.reclamation.resource(first.resource).resource == first
        True
        """

    @abstractmethod
    def policies(self) -> CompactionPolicies:
        """The policies of compaction that there are, those of other packages included, and the one that is set.

        >>> repository.reclamation.policies().configured
        'StatsBased'
        """

    @abstractmethod
    def windows(self) -> list[WindowStatus]:
        """For each operation whether the windows of `spec.maintenance` allow it now, until or from when, and why.

        >>> all(verdict.is_allowed for verdict in repository.reclamation.windows())
        True
        """

    @abstractmethod
    def openings(self) -> list[Opening]:
        """For each window when it was last open, whether it is now, and when it opens next.

        >>> repository.reclamation.openings()
        []
        """

    @abstractmethod
    def maintenance(self) -> MaintenanceSettings:
        """The windows as `spec.maintenance` sets them, from which `ullage.contract.Calendar` tells any moment.

        >>> repository.reclamation.maintenance().paused
        False
        """

    def plan(
        self,
        policy: str | None = None,
        *,
        operations: Sequence[str] = ("Delete", "Truncate", "Punch", "Rewrite"),
        respects_guards: bool = False,
        archive: bool = False,
    ) -> Plan:
        """What a run would do now, and for how many bytes copied. Changes nothing.

        `policy` is one of `policies`; None: the one that is set. With `respects_guards`, only what is worth it by
        `spec.compaction`; of Truncate alone, what `spec.truncation` would cut now. With `archive` what is kept for
        replays goes too. UnknownPlugin for a policy that there is not.

        >>> repository.reclamation.plan().frees_bytes
        0
        """
        asked = {"policy": policy, "operations": operations, "respects_guards": respects_guards, "archive": archive}
        return self._plan(run_request(**asked))

    def reclaim(
        self,
        policy: str | None = None,
        *,
        operations: Sequence[str] = ("Delete", "Truncate", "Punch", "Rewrite"),
        override: bool = False,
        bytes_per_second: int | None = None,
        respects_guards: bool = False,
        seconds: float | None = None,
        archive: bool = False,
        resources: Sequence[tuple[int, int]] | None = None,
        on_progress: Progress | None = None,
    ) -> RunProgress:
        """Give dead space back, and wait for the end; what was done, and what is left and why, stands in the run's
        report.

        It begins nothing once `seconds` have passed. CompactionRefused if it would punch or rewrite and
        `spec.compaction` lets nobody do that by hand. WindowClosed out of hours, unless `override` passes over them,
        which is written down; RunUnderWay beside another run. `bytes_per_second` bounds what is read and copied: None,
        as the settings say; 0, nothing. With `archive` what is kept for replays goes too. `resources` chooses resource
        claims, each with the generation for which it was planned.

        >>> repository.reclamation.reclaim().report.freed_bytes
        0
        """
        run = self.begin(
            run_request(
                policy=policy,
                operations=operations,
                override=override,
                bytes_per_second=bytes_per_second,
                respects_guards=respects_guards,
                seconds=seconds,
                archive=archive,
                resources=resources,
            )
        )
        is_stopped = False
        while run.ended_millis is None:
            if on_progress is not None and not is_stopped and not on_progress(run):
                self.stop(run.id)
                is_stopped = True
            run = self.run(run.id, wait_seconds=PROGRESS_SECONDS)
        return run

    @abstractmethod
    def begin(self, request: RunRequest) -> RunProgress:
        """Begin what `reclaim` waits for, and go on; errors as there.

        >>> run = repository.reclamation.begin(RunRequest(respects_guards=True))
        >>> repository.reclamation.run(run.id, wait_seconds=60).problem is None
        True
        """

    @abstractmethod
    def run(self, id: str, *, wait_seconds: float = 0) -> RunProgress:
        """How far one of the last runs is, or how it ended, for which it waits so long. NotFound.

        >>> run = repository.reclamation.begin(RunRequest())
        >>> repository.reclamation.run(run.id, wait_seconds=60).id == run.id
        True
        """

    @abstractmethod
    def stop(self, id: str) -> RunProgress:
        """Stop a run after its present action. NotFound.

        >>> run = repository.reclamation.begin(RunRequest())
        >>> repository.reclamation.stop(run.id).id == run.id
        True
        """

    @abstractmethod
    def clean(self, *, adopts_orphans: bool = False, override: bool = False) -> CleaningReport:
        """Take away what nobody refers to: expired FlowFiles and handles, unused resource claims, old archive.

        With the archive enabled, unused resource claims move there first, and go when its retention is over, or while
        the volume is fuller than `spec.archive.maxUsagePercentage`. With `adopts_orphans` also content files that a
        crash left and that nothing refers to. WindowClosed out of hours, unless `override` passes over the windows.

        >>> repository.reclamation.clean().purged_handles
        0
        """

    @abstractmethod
    def runs(self) -> list[RunProgress]:
        """The last runs, oldest first.

        >>> len(repository.reclamation.runs())
        0
        """

    @abstractmethod
    def _plan(self, request: RunRequest) -> Plan:
        """What a run would do that is asked for so."""

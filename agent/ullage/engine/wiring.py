"""The parts that each repository is built of, made in the order in which one needs the other.

    Transactions   files -> swap files -> ledger -> log -> provenance -> checkpoints -> committer
    ContentSpace   content -> reader -> reclamation -> compactor -> admission of writers

Nothing is assigned after construction, and nothing looks for another part by itself: what a part may touch is what it
was given here. `Engine` builds sessions, queues, handles and the rest on these two.
"""

import os
from collections.abc import Callable

from ullage.contract import PermissionFor
from ullage.engine.checkpoints import Checkpoints
from ullage.engine.committer import Committer
from ullage.engine.content.protocol import ContentStore
from ullage.engine.content.reader import ContentReader
from ullage.engine.content.reserve import Reserves
from ullage.engine.content.writer import WriterAdmission
from ullage.engine.flowfile_repository import FLOWFILE
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.swap import SwapFiles
from ullage.engine.opening import SWAP
from ullage.engine.parts import RepositoryParts
from ullage.engine.purges import PurgeSchedule
from ullage.engine.reclaim.compactor import Compactor
from ullage.engine.reclaim.execute import Executor, ReclamationParts
from ullage.engine.reclaim.liveness import LivenessScanner
from ullage.engine.reclaim.reclamation import Reclaimer
from ullage.engine.reclaim.report import ReclamationReport
from ullage.engine.reclaim.rewrite import Rewriter
from ullage.engine.recorded import RecordedState
from ullage.engine.repositories import Chosen
from ullage.engine.wal.state import RecordDirectory

CommitListener = Callable[[float], None]
"""Gets how long a commit took, in seconds."""

ReportListener = Callable[[str, ReclamationReport], None]
"""Gets the name of a run (clean, truncate, compact, reclaim) and what it did. `report.emergency` is above 0 where a
nearly full disk overruled the windows.
"""


class Listeners:
    """Called one after the other from the thread that did the work, which waits for them."""

    def __init__(self) -> None:
        self._of_commits: tuple[CommitListener, ...] = ()
        self._of_reports: tuple[ReportListener, ...] = ()

    def hear_commits(self, listener: CommitListener) -> None:
        """From now on."""
        self._of_commits = (*self._of_commits, listener)

    def hear_reports(self, listener: ReportListener) -> None:
        """From now on."""
        self._of_reports = (*self._of_reports, listener)

    def committed(self, seconds: float) -> None:
        for listener in self._of_commits:
            listener(seconds)

    def reported(self, name: str, report: ReclamationReport) -> ReclamationReport:
        """Tell, and return the report."""
        for listener in self._of_reports:
            listener(name, report)
        return report


class Transactions:
    """The state in memory, and the way in which it changes for good."""

    def __init__(self, parts: RepositoryParts, make: Chosen, content: ContentStore) -> None:
        root, settings = parts.spec.storage.host_path.path, parts.spec.flow_file
        swap = RecordDirectory(parts.files, os.path.join(root, SWAP), parts.repository, parts.serde)
        self.swap_files = SwapFiles(swap)
        self.ledger = Ledger(self.swap_files.read)

        def durable() -> int:  # nobody asks before the log, to which provenance belongs, is there
            return self.log.durable

        self.provenance = make.provenance(parts, durable, self.ledger.queue_name)
        partitions = 0 if make.flow_file.is_volatile else settings.partitions  # of which room is kept on the disk
        reserves = Reserves(parts.files, os.path.join(root, FLOWFILE), partitions, content)
        self.log = make.flow_file(parts, RecordedState(self.ledger, self.provenance), reserves.spend)
        self.checkpoints = Checkpoints(self.log, self.ledger, self.swap_files, self.provenance, reserves)
        self.listeners = Listeners()
        self.committer = Committer(
            self.log, self.checkpoints, self.provenance, reserves, parts.clock, settings, self.listeners.committed
        )


class ContentSpace:
    """Content, and the space of what is dead of it."""

    def __init__(
        self, parts: RepositoryParts, content: ContentStore, transactions: Transactions, permission: PermissionFor
    ) -> None:
        clock, spec = parts.clock, parts.spec
        ledger, committer, tell = transactions.ledger, transactions.committer, transactions.listeners.reported
        self.content = content
        self.reader = ContentReader(content, ledger)
        self.purges = PurgeSchedule(ledger, clock, int(spec.compaction.deleted_retention))
        scanner = LivenessScanner(ledger, transactions.swap_files.read)
        shared = ReclamationParts(ledger, content, scanner, committer, clock)
        executor = Executor(shared)
        self.reclamation = Reclaimer(shared, executor, transactions.log, self.purges.tombstones, spec, permission, tell)
        rewriter = Rewriter(shared, executor, spec.compaction.output_size)
        self.compactor = Compactor(shared, self.reclamation, rewriter, spec, tell)
        self.admission = WriterAdmission(content, clock, self.compactor.relieve)

"""All records that leave memory: each key space with its runs, as the log, a start, a check and a backup see them."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ullage.engine.ledger.answerruns import AnswerRuns
from ullage.engine.ledger.blockrows import BLOCKS_SPACE
from ullage.engine.ledger.blockruns import BlockRuns
from ullage.engine.ledger.claimrows import CLAIMS_SPACE
from ullage.engine.ledger.claimruns import ClaimRuns
from ullage.engine.ledger.coldhandles import HANDLES_SPACE
from ullage.engine.ledger.handleruns import HandleRuns
from ullage.engine.ledger.ledger import Ledger
from ullage.engine.ledger.remembered import ANSWERS_SPACE
from ullage.engine.ledger.rundamages import RunDamages
from ullage.engine.ledger.runfiles import RunFiles
from ullage.engine.model import Operation, RunFile
from ullage.engine.runs.rows import BlockDamaged
from ullage.engine.wal.state import RecordDirectory

SPACES = (ANSWERS_SPACE, BLOCKS_SPACE, HANDLES_SPACE, CLAIMS_SPACE)

FOLLOWING = frozenset({BLOCKS_SPACE, CLAIMS_SPACE})
"""Those of which nothing can be lost: what they hold is worked out again."""


class KeySpaces:
    """The runs of one repository, below a directory. Thread-safe."""

    def __init__(self, ledger: Ledger, place: RecordDirectory) -> None:
        def files(space: str) -> RunFiles:
            inside = RecordDirectory(place.files, os.path.join(place.path, space), place.repository, place.serde)
            return RunFiles(inside, space, ledger)

        self.answers = AnswerRuns(ledger, files(ANSWERS_SPACE), place.serde)
        self.blocks = BlockRuns(ledger, files(BLOCKS_SPACE))
        self.handles = HandleRuns(ledger, files(HANDLES_SPACE), ClaimRuns(ledger, files(CLAIMS_SPACE)))
        self.claims = self.handles.claims
        keepers = self.answers, self.blocks, self.handles, self.claims
        self._files = {each.files.space: each.files for each in keepers}

    @property
    def damages(self) -> tuple[RunDamages, ...]:
        """What cannot be read of rows that nothing else tells of."""
        return self.answers.damages, self.handles.damages

    def freeze(self) -> Iterator[list[Operation]]:
        """The runs of this moment, as a snapshot lists them; those of handles stand with these."""
        frozen = self.answers.freeze(), self.blocks.freeze()
        return (block for blocks in frozen for block in blocks)

    def published(self) -> None:
        """The snapshot that lists them is."""
        self.handles.published()
        for files in self._files.values():
            files.published()

    def remove_leftovers(self) -> None:
        """Runs that the snapshot of a start does not list; the log behind it is read."""
        self.handles.started()
        for files in self._files.values():
            files.remove_leftovers()

    def problems(self, *, deep: bool) -> Iterator[str]:
        """What `check` has to say; `deep`: reads every block."""
        yield from self.answers.problems(deep=deep)
        yield from self.blocks.problems(deep=deep)
        yield from self.handles.problems(deep=deep)
        yield from self.claims.problems(deep=deep)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """While this lasts, no run is removed."""
        with ExitStack() as stack:
            for files in self._files.values():
                stack.enter_context(files.keeping())
            yield

    def damages_in(self, run: RunFile) -> list[BlockDamaged]:
        """What of a run cannot be read, but for what was given up and for rows that are worked out again."""
        return [] if run.space in FOLLOWING else self._files[run.space].damages(run, deep=True)

    def path(self, run: RunFile) -> str:
        """Where the file of a run lies."""
        return self._files[run.space].path(run.number)

    def sync_names(self) -> None:
        """Make it durable which files there are: one that was removed does not come back after a crash."""
        for files in self._files.values():
            files.sync_names()

    def close(self) -> None:
        """Close the files."""
        self.blocks.close()
        self.handles.close()
        self.claims.files.close()
        self.answers.files.close()

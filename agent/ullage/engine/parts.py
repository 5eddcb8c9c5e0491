"""What every implementation of a content, FlowFile or provenance repository is given (see repositories.py)."""

import os
from dataclasses import dataclass

from ullage.clock import Clock
from ullage.contract import ContentRepositorySpec
from ullage.engine.files import Files
from ullage.engine.wal.serde import SerDe
from ullage.engine.wal.state import RecordDirectory


@dataclass(frozen=True, slots=True)
class RepositoryParts:
    """`repository` is the uuid of the repository that this is a part of, for what must never be taken for another's."""

    files: Files
    clock: Clock
    spec: ContentRepositorySpec
    serde: SerDe
    repository: str

    def directory(self, *names: str) -> RecordDirectory:
        """A directory of files of records, below the root."""
        return RecordDirectory(
            self.files, os.path.join(self.spec.storage.host_path.path, *names), self.repository, self.serde
        )

"""What every implementation of a content, FlowFile or provenance repository is given (see repositories.py)."""

from dataclasses import dataclass

from ullage.clock import Clock
from ullage.contract import ContentRepositorySpec
from ullage.engine.files import Files
from ullage.engine.wal.serde import SerDe


@dataclass(frozen=True, slots=True)
class RepositoryParts:
    """`repository` is the uuid of the repository that this is a part of, for what must never be taken for another's."""

    files: Files
    clock: Clock
    spec: ContentRepositorySpec
    serde: SerDe
    repository: str

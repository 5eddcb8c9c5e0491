"""The FlowFile repository that is ours: a write-ahead log and its snapshot, in files."""

import os
from collections.abc import Callable

from ullage.contract import DurabilityMode
from ullage.engine.parts import RepositoryParts
from ullage.engine.wal.log import WriteAheadLog
from ullage.engine.wal.state import LoggedState, RecordDirectory

FLOWFILE = "flowfile"
"""Its directory below the root."""


class FileFlowFileRepository(WriteAheadLog):
    """See `FlowFileRepository`. Thread-safe."""

    is_volatile = False

    def __init__(self, parts: RepositoryParts, state: LoggedState, on_full: Callable[[], object]) -> None:
        durability, root = parts.spec.durability, parts.spec.storage.host_path.path
        interval = durability.interval.seconds if durability.mode == DurabilityMode.INTERVAL else 0.0
        super().__init__(
            RecordDirectory(parts.files, os.path.join(root, FLOWFILE), parts.repository, parts.serde),
            state,
            parts.clock,
            parts.spec.flow_file.partitions,
            interval,
            on_full,
        )

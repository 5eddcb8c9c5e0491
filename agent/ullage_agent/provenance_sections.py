"""The contract's section `provenance`; contract.py is where everybody gets it from."""

import enum
import posixpath
from collections.abc import Iterator, Sequence
from typing import Annotated

from msgspec import Meta

from ullage_agent.sections import Section
from ullage_agent.units import Duration, Quantity


class OnFull(enum.StrEnum):
    """What happens to provenance events that find no room."""

    BLOCK = "Block"
    DROP = "Drop"


class IndexedField(enum.StrEnum):
    """Fields of a provenance event that a search can be led by."""

    EVENT_TYPE = "eventType"
    FLOW_FILE_UUID = "flowFileUuid"
    FILENAME = "filename"
    COMPONENT_ID = "componentId"
    RELATIONSHIP = "relationship"
    TRANSIT_URI = "transitUri"
    ALTERNATE_IDENTIFIER = "alternateIdentifier"


class Provenance(Section, frozen=True, kw_only=True):
    """The history of FlowFiles: what is recorded, how long it is kept, and what it can be searched by."""

    enabled: bool = True
    """Record events at all (NiFi: the choice of provenance repository)."""

    max_storage_time: Duration = Duration(24 * 3_600_000)
    """How long events are kept, counted from the newest of an event file (NiFi:
    nifi.provenance.repository.max.storage.time)."""

    max_storage_size: Quantity = Quantity(1024**3)
    """Bytes of event files above which the oldest go (NiFi: nifi.provenance.repository.max.storage.size)."""

    rollover_time: Duration = Duration(30_000)
    """Age of the oldest event that only the log holds, at which events move to an event file (NiFi:
    nifi.provenance.repository.rollover.time)."""

    rollover_size: Quantity = Quantity(100 * 1024**2)
    """Bytes of events (about) at which they move early; also what one event file is made from at most (NiFi:
    nifi.provenance.repository.rollover.size)."""

    rollover_events: Annotated[int, Meta(ge=1)] = 1_000_000
    """The same in events; bounds the memory that the newest ones take (NiFi:
    nifi.provenance.repository.rollover.events)."""

    compress_on_rollover: bool = True
    """Compress event files with zstd (NiFi: nifi.provenance.repository.compress.on.rollover)."""

    indexed_fields: tuple[IndexedField, ...] = (
        IndexedField.EVENT_TYPE,
        IndexedField.FLOW_FILE_UUID,
        IndexedField.FILENAME,
        IndexedField.COMPONENT_ID,
        IndexedField.RELATIONSHIP,
    )
    """Fields that searches find through the index; by others they read the event files (NiFi:
    nifi.provenance.repository.indexed.fields)."""

    indexed_attributes: tuple[str, ...] = ()
    """The same for attributes (NiFi: nifi.provenance.repository.indexed.attributes)."""

    index_shard_size: Quantity = Quantity(500 * 1024**2)
    """Bytes of event files that one shard of the index covers; shards are dropped whole (NiFi:
    nifi.provenance.repository.index.shard.size)."""

    on_full: OnFull = OnFull.BLOCK
    """When events find no room and two rollovers' worth of them wait. Block: new content is refused. Drop: they
    are given up, counted and reported (NiFi: none, it loses them in silence)."""

    def positive(self) -> dict[str, int]:
        """Fields that must be above 0, by their path in the contract."""
        return {
            "provenance.maxStorageTime": self.max_storage_time,
            "provenance.maxStorageSize": self.max_storage_size,
            "provenance.rolloverTime": self.rollover_time,
            "provenance.rolloverSize": self.rollover_size,
            "provenance.indexShardSize": self.index_shard_size,
        }


def directory_problems(directories: Sequence[str], taken: Sequence[str], reserved: frozenset[str]) -> Iterator[str]:
    """What is wrong with `spec.storage.provenanceDirectories`, beside the containers' paths."""
    paths = list(taken)
    for index, directory in enumerate(directories):
        field = f"spec.storage.provenanceDirectories[{index}]"
        path = posixpath.normpath(directory)
        if posixpath.isabs(path) or path == "." or ".." in directory.split("/") or "\0" in path:
            yield f"{field}: {directory!r} is not a directory below the root"
        if path.split("/")[0] in reserved - {"provenance"}:
            yield f"{field}: {directory!r} is where the repository keeps its own files"
        if any(path == other or path.startswith(f"{other}/") or other.startswith(f"{path}/") for other in paths):
            yield f"{field}: {directory!r} overlaps another directory"
        paths.append(path)

"""The contract's section `provenance`; contract.py is where everybody gets it from."""

import enum
from typing import Annotated

from msgspec import Meta

from ullage.contract.settings import PluginName, Settings
from ullage.contract.units import Duration, Quantity


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


class ProvenanceSettings(Settings, frozen=True, kw_only=True):
    """The history of FlowFiles: what is recorded, how long it is kept, and what it can be searched by."""

    enabled: bool = True
    """Whether events are recorded at all (NiFi: the choice of provenance repository)."""

    repository: PluginName = ""
    """The implementation of the provenance repository: empty for event files, memory for one whose events are gone
    when the process ends, or an entry point of the group `ullage.provenance_repositories`. A repository keeps the one
    that it was made with (NiFi: nifi.provenance.repository.implementation)."""

    max_storage_time: Duration = Duration(24 * 3_600_000)
    """How long events are kept, counted from the newest event of their file (NiFi:
    nifi.provenance.repository.max.storage.time)."""

    max_storage_size: Quantity = Quantity(1024**3)
    """When event files have more than this many bytes, the oldest go (NiFi:
    nifi.provenance.repository.max.storage.size)."""

    rollover_time: Duration = Duration(30_000)
    """When the oldest event that only the log holds has this age, events move to an event file. A checkpoint moves them
    too (NiFi: nifi.provenance.repository.rollover.time)."""

    rollover_size: Quantity = Quantity(100 * 1024**2)
    """When about this many bytes of events wait in the log, they move to an event file early. One event file is made
    from at most so many bytes (NiFi: nifi.provenance.repository.rollover.size)."""

    rollover_events: Annotated[int, Meta(ge=1)] = 1_000_000
    """When this many events wait in the log, they move to an event file early. It bounds the memory that the newest
    events take (NiFi: nifi.provenance.repository.rollover.events)."""

    compress_on_rollover: bool = True
    """Whether event files are compressed, with zstd (NiFi: nifi.provenance.repository.compress.on.rollover)."""

    indexed_fields: tuple[IndexedField, ...] = (
        IndexedField.EVENT_TYPE,
        IndexedField.FLOW_FILE_UUID,
        IndexedField.FILENAME,
        IndexedField.COMPONENT_ID,
        IndexedField.RELATIONSHIP,
    )
    """The fields that searches find through the index. By other fields they read the event files (NiFi:
    nifi.provenance.repository.indexed.fields)."""

    indexed_attributes: tuple[str, ...] = ()
    """The attributes that searches find through the index. By other attributes they read the event files (NiFi:
    nifi.provenance.repository.indexed.attributes)."""

    index_shard_size: Quantity = Quantity(500 * 1024**2)
    """The bytes of event files that one shard of the index covers. Shards are dropped whole (NiFi:
    nifi.provenance.repository.index.shard.size)."""

    on_full: OnFull = OnFull.BLOCK
    """What happens when events find no room and two rollovers' worth of them wait. With Block, new content is refused
    and removing still passes. With Drop, events are given up, counted and reported as lost."""

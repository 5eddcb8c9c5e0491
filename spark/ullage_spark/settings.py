"""The options of the source and the sink, read once: every name, its default and what is refused."""

import json
import os
from collections.abc import Mapping
from typing import Annotated, Any, Final, Self

import msgspec
from msgspec import Meta, field

from ullage.contract import TOKEN_FILE
from ullage_spark.errors import SparkSourceError

MIB: Final = 1 << 20
GROUP_BYTES: Final = 8 * MIB
"""Content that a task holds at a time; one that is larger comes alone. So many that a call costs nothing beside it, and
so few that the processor's cache still has some of it.
"""

TRUE: Final = frozenset({"true", "1", "yes"})
FALSE: Final = frozenset({"false", "0", "no"})

SPARKS_OWN: Final = frozenset({"path", "checkpointlocation", "paths"})
"""Options that Spark adds: nothing here asks for them."""


def _option_name(name: str) -> str:
    """Spark has them in small letters, whatever is written."""
    return name.replace("_", "")


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True, rename=_option_name):
    """One read's or write's options. Sizes in bytes, times in milliseconds."""

    endpoint: str = ""
    nodes: str = ""
    table: str = "flowfiles"
    columns: tuple[str, ...] = ()
    where: str = ""
    snapshot: str = ""
    parts: Annotated[int, Meta(ge=0, le=100_000)] = 0
    payload: bool = False
    batch_bytes: Annotated[int, Meta(ge=1, le=64 * MIB)] = 4 * MIB
    locality_wait_millis: Annotated[int, Meta(ge=0, le=3_600_000)] = field(default=3_000, name="localitywait")
    use: str = ""
    """What `Snapshot.with_content` has tasks call: pickled, in Base64. The next two are for it as well."""

    skips_missing: bool = False
    group_bytes: Annotated[int, Meta(ge=1, le=1 << 40)] = GROUP_BYTES
    token: str = ""
    token_file: str = ""
    ca_file: str = ""
    socket: str = ""
    queue: str = ""
    ttl_millis: Annotated[int, Meta(ge=0, le=1 << 60)] = field(default=0, name="ttl")
    write: str = ""
    application: str = ""
    stage_bytes: Annotated[int, Meta(ge=1, le=32 * MIB)] = 8 * MIB
    lasts_millis: Annotated[int, Meta(ge=1_000, le=86_400_000)] = field(default=3_600_000, name="lasts")
    starting_position: str = "earliest"
    events_max: Annotated[int, Meta(ge=1, le=1 << 60)] = field(default=1_000_000, name="maxevents")
    fails_on_data_loss: bool = field(default=True, name="failondataloss")
    hold_millis: Annotated[int, Meta(ge=0, le=7 * 86_400_000)] = field(default=86_400_000, name="hold")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """SparkSourceError for an option that there is not, or that cannot be."""
        given = {name.lower(): str(value) for name, value in options.items() if name.lower() not in SPARKS_OWN}
        kinds = {each.encode_name: each.type for each in msgspec.inspect.type_info(cls).fields}  # type: ignore[attr-defined]
        if unknown := given.keys() - kinds:
            raise SparkSourceError(f"unknown option {', '.join(sorted(unknown))}: see docs/spark.md")
        found = msgspec.convert({name: _parsed(name, text, kinds[name]) for name, text in given.items()}, cls)
        if not found.endpoint and not found.nodes:
            raise SparkSourceError("name the fleet: option endpoint (grpc://host:8481,..., or kubernetes:ns/name)")
        return found

    def bearer(self) -> str | None:
        """The token as it is now: a projected one is renewed every hour, so each use reads it again."""
        if self.token:
            return self.token
        path = self.token_file or (TOKEN_FILE if os.path.exists(TOKEN_FILE) else "")
        if not path:
            return None
        with open(path, encoding="utf-8") as file:
            return file.read().strip()

    def snapshots(self) -> dict[str, str]:
        """The snapshot's id on each node, by the node's name; empty without one."""
        if not self.snapshot:
            return {}
        try:
            return msgspec.json.decode(self.snapshot, type=dict[str, str])
        except (msgspec.DecodeError, UnicodeError) as error:
            raise SparkSourceError("option snapshot is the id of a snapshot(...): see docs/spark.md") from error


def _parsed(name: str, text: str, kind: msgspec.inspect.Type) -> object:
    """An option's text as its field takes it."""
    if isinstance(kind, msgspec.inspect.IntType):
        try:
            value = int(text)
        except ValueError:
            value = -1
        if not (kind.ge or 0) <= value <= (kind.le or 0):
            raise SparkSourceError(f"option {name} is a number from {kind.ge} to {kind.le}, not {text!r}")
        return value
    if isinstance(kind, msgspec.inspect.BoolType):
        if text.lower() not in TRUE | FALSE:
            raise SparkSourceError(f"option {name} is true or false, not {text.lower()!r}")
        return text.lower() in TRUE
    return [each.strip() for each in text.split(",") if each.strip()] if name == "columns" else text


def as_options(settings: Mapping[str, Any]) -> dict[str, str]:
    """Python's own values as Spark takes options: `True`, numbers, and lists of names or nodes."""
    return {name: _text(value) for name, value in settings.items() if value is not None}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(value) if all(isinstance(each, str) for each in value) else json.dumps(value)
    return str(value)

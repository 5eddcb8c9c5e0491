"""The options of the source and the sink, read once: every name, its default and what is refused."""

import json
import os
from collections.abc import Mapping
from typing import Any, Final, Self

import msgspec

from ullage_spark.errors import SparkSourceError

MIB: Final = 1 << 20
TOKEN_FILE: Final = "/var/run/secrets/tokens/ullage"  # noqa: S105 - a path
"""Where docs/spark.md mounts the projected token: taken if it is there and no other is named."""

GROUP_BYTES: Final = 8 * MIB
"""Content that a task holds at a time; one that is larger comes alone. So many that a call costs nothing beside it, and
so few that the processor's cache still has some of it.
"""

TRUE: Final = frozenset({"true", "1", "yes"})
FALSE: Final = frozenset({"false", "0", "no"})

NAMES: Final = frozenset(
    {
        *("endpoint", "nodes", "table", "columns", "where", "snapshot", "parts", "payload", "batchbytes"),
        *("localitywait", "use", "skipsmissing", "groupbytes"),
        *("token", "tokenfile", "cafile", "socket"),
        *("queue", "ttl", "write", "application", "stagebytes", "lasts"),
        *("startingposition", "maxevents", "failondataloss", "hold", "path", "checkpointlocation", "paths"),
    }
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One read's or write's options. Sizes in bytes, times in milliseconds."""

    endpoint: str = ""
    nodes: str = ""
    table: str = "flowfiles"
    columns: tuple[str, ...] = ()
    where: str = ""
    snapshot: str = ""
    parts: int = 0
    payload: bool = False
    batch_bytes: int = 4 * MIB
    locality_wait_millis: int = 3_000
    use: str = ""
    """What `Snapshot.with_content` has tasks call: pickled, in Base64. The next two are for it as well."""

    skips_missing: bool = False
    group_bytes: int = GROUP_BYTES
    token: str = ""
    token_file: str = ""
    ca_file: str = ""
    socket: str = ""
    queue: str = ""
    ttl_millis: int = 0
    write: str = ""
    application: str = ""
    stage_bytes: int = 8 * MIB
    lasts_millis: int = 3_600_000
    starting_position: str = "earliest"
    events_max: int = 1_000_000
    fails_on_data_loss: bool = True
    hold_millis: int = 86_400_000

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """SparkSourceError for an option that there is not, or that cannot be."""
        given = {name.lower(): str(value) for name, value in options.items()}
        if unknown := given.keys() - NAMES:
            raise SparkSourceError(f"unknown option {', '.join(sorted(unknown))}: see docs/spark.md")
        found = cls(
            endpoint=given.get("endpoint", ""),
            nodes=given.get("nodes", ""),
            table=given.get("table", "flowfiles"),
            columns=tuple(name.strip() for name in given.get("columns", "").split(",") if name.strip()),
            where=given.get("where", ""),
            snapshot=given.get("snapshot", ""),
            parts=_whole(given, "parts", 0, 100_000),
            payload=_flag(given, "payload", default=False),
            batch_bytes=_whole(given, "batchbytes", 4 * MIB, 64 * MIB, least=1),
            locality_wait_millis=_whole(given, "localitywait", 3_000, 3_600_000),
            use=given.get("use", ""),
            skips_missing=_flag(given, "skipsmissing", default=False),
            group_bytes=_whole(given, "groupbytes", GROUP_BYTES, 1 << 40, least=1),
            token=given.get("token", ""),
            token_file=given.get("tokenfile", ""),
            ca_file=given.get("cafile", ""),
            socket=given.get("socket", ""),
            queue=given.get("queue", ""),
            ttl_millis=_whole(given, "ttl", 0, 1 << 60),
            write=given.get("write", ""),
            application=given.get("application", ""),
            stage_bytes=_whole(given, "stagebytes", 8 * MIB, 32 * MIB, least=1),
            lasts_millis=_whole(given, "lasts", 3_600_000, 86_400_000, least=1_000),
            starting_position=given.get("startingposition", "earliest"),
            events_max=_whole(given, "maxevents", 1_000_000, 1 << 60, least=1),
            fails_on_data_loss=_flag(given, "failondataloss", default=True),
            hold_millis=_whole(given, "hold", 86_400_000, 7 * 86_400_000),
        )
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
        except msgspec.DecodeError as error:
            raise SparkSourceError("option snapshot is the id of a snapshot(...): see docs/spark.md") from error


def _whole(given: Mapping[str, str], name: str, default: int, most: int, *, least: int = 0) -> int:
    text = given.get(name, str(default))
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not least <= value <= most:
        raise SparkSourceError(f"option {name} is a number from {least} to {most}, not {text!r}")
    return value


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name, str(default)).lower()
    if text not in TRUE | FALSE:
        raise SparkSourceError(f"option {name} is true or false, not {text!r}")
    return text in TRUE


def as_options(settings: Mapping[str, Any]) -> dict[str, str]:
    """Python's own values as Spark takes options: `True`, numbers, and lists of names or nodes."""
    return {name: _text(value) for name, value in settings.items() if value is not None}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(value) if all(isinstance(each, str) for each in value) else json.dumps(value)
    return str(value)

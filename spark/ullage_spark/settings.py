"""The options of each use of the source, read once: every name, its default and what is refused."""

import difflib
import itertools
import json
import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Literal, Self
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, field

from ullage.beneath import names_below
from ullage.contract import TOKEN_FILE, is_loopback
from ullage.wire.documents import COUNT_MAX
from ullage_spark.errors import SparkSourceError

MIB: Final = 1 << 20
CREDENTIALS: Final = "ULLAGE_CREDENTIALS"
"""The environment variable with the folders, joined by colons, in which options may name a token and an authority.

Options come from whoever may write SQL. Any other file of the executor's would be sent, as a token, to an endpoint of
the same author's.
"""

FOLDER: Final = posixpath.dirname(TOKEN_FILE)
"""Where docs/spark.md mounts both: the folder where the variable names none."""

AUTHORITY_FILE: Final = f"{FOLDER}/ca.crt"
"""The same: then no endpoint gets the token but one with this authority's certificate."""


NUMBER: Final = re.compile(r"[0-9]{1,20}")
SHOWN_MAX: Final = 100
"""Characters of a value that an error quotes."""

TRUE: Final = frozenset({"true", "1", "yes"})
FALSE: Final = frozenset({"false", "0", "no"})

MissingNodes = Literal["fail", "skip", "wait"]
"""What becomes of a read or write while nodes do not answer."""

SPARKS_OWN: Final = frozenset({"path", "checkpointlocation", "paths"})
"""Options that Spark adds: nothing here asks for them."""


def _option_name(name: str) -> str:
    """As docs/spark.md spells it; Spark has them in small letters, whatever is written."""
    first, *others = name.split("_")
    return first + "".join(map(str.title, others))


class NodeSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One node's part of a snapshot: its id there, where the node is, and the bytes of content in use that it shows."""

    id: str
    flight: str = ""
    live_bytes: int | None = None


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True, rename=_option_name):
    """What names a fleet; each use of it adds its own. Sizes in bytes, times in milliseconds."""

    USE: ClassVar[str] = "a fleet"

    endpoint: str = ""
    nodes: str = ""
    missing_nodes: MissingNodes = "fail"
    missing_wait_millis: Annotated[int, Meta(ge=0, le=86_400_000)] = field(default=600_000, name="missingWait")
    token: str = ""
    token_file: str = ""
    ca_file: str = ""
    socket: str = ""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """SparkSourceError for an option that there is not, or that cannot be."""
        given = {name.lower(): str(value) for name, value in options.items() if name.lower() not in SPARKS_OWN}
        if len(given) < len(options.keys() - SPARKS_OWN):
            _refuse_twice(options)
        known = _fields(cls)
        if unknown := sorted(given.keys() - known.keys()):
            raise SparkSourceError(_unknown(unknown[0], [cls], cls.USE))
        found = {known[name].encode_name: _parsed(known[name], text) for name, text in given.items()}
        made = msgspec.convert(found, cls)
        if not made.endpoint and not made.nodes:
            raise SparkSourceError(
                "name the fleet: option endpoint (grpc://host:8481,..., or kubernetes:ns/name). A table of SQL keeps "
                "its options only if CREATE TABLE names no columns and no SELECT"
            )
        return made

    def bearer(self, url: str) -> str | None:
        """The token for an endpoint as it is now: a projected one is renewed every hour, so each use reads it again.

        SparkSourceError where it is the executor's and the endpoint could be anybody's.
        """
        if self.token:
            return _bearer("option token", self.token)
        path = _credential("tokenFile", self.token_file) or (TOKEN_FILE if os.path.exists(TOKEN_FILE) else "")
        if not path:
            return None
        if not _is_proved(url):
            raise SparkSourceError(f"{url} is no endpoint with TLS: it is sent no token out of a file")
        try:
            with open(path, encoding="utf-8") as file:
                return _bearer(path, file.read().strip())
        except (OSError, UnicodeError) as error:
            raise SparkSourceError(f"the token cannot be read: {error}") from error

    def authority(self) -> str | None:
        """The file with the certificate authority to trust; None: the system's."""
        found = _credential("caFile", self.ca_file)
        return found or (AUTHORITY_FILE if os.path.exists(AUTHORITY_FILE) else None)

    def snapshots(self) -> dict[str, NodeSnapshot]:
        """The parts of the snapshot, by their nodes' names; empty without one."""
        return {}


class TableOptions(SourceOptions, frozen=True, kw_only=True, rename=_option_name):
    """Of a table's rows, once or as a stream."""

    USE: ClassVar[str] = "a table"

    table: str = "flowfiles"
    columns: tuple[str, ...] = ()
    where: str = ""
    payload: bool = False
    batch_bytes: Annotated[int, Meta(ge=1, le=64 * MIB)] = 4 * MIB


class ReadOptions(TableOptions, frozen=True, kw_only=True, rename=_option_name):
    """Of `spark.read`."""

    USE: ClassVar[str] = "a read"

    snapshot: str = ""
    after: Annotated[int, Meta(ge=0, le=COUNT_MAX)] = 0
    through: Annotated[int, Meta(ge=0, le=COUNT_MAX)] = COUNT_MAX
    parts: Annotated[int, Meta(ge=0, le=100_000)] = 0
    locality_wait_millis: Annotated[int, Meta(ge=0, le=3_600_000)] = field(default=3_000, name="localityWait")
    pushdown: bool = False

    def snapshots(self) -> dict[str, NodeSnapshot]:
        if not self.snapshot:
            return {}
        try:
            return msgspec.json.decode(self.snapshot, type=dict[str, NodeSnapshot])
        except (msgspec.DecodeError, UnicodeError) as error:
            raise SparkSourceError("option snapshot is the id of a snapshot(...): see docs/spark.md") from error


class FollowOptions(TableOptions, frozen=True, kw_only=True, rename=_option_name):
    """Of `spark.readStream`."""

    USE: ClassVar[str] = "a stream that reads"

    queue: str = ""
    application: str = ""
    starting_position: Literal["earliest", "latest"] = "earliest"
    events_max: Annotated[int, Meta(ge=1, le=1 << 60)] = field(default=1_000_000, name="maxEvents")
    fails_on_data_loss: bool = field(default=True, name="failOnDataLoss")
    hold_millis: Annotated[int, Meta(ge=0, le=7 * 86_400_000)] = field(default=86_400_000, name="hold")


class StoreOptions(SourceOptions, frozen=True, kw_only=True, rename=_option_name):
    """Of what is written, once or as a stream."""

    queue: str = ""
    ttl_millis: Annotated[int, Meta(ge=0, le=1 << 60)] = field(default=0, name="ttl")
    stage_bytes: Annotated[int, Meta(ge=1, le=32 * MIB)] = 8 * MIB
    lasts_millis: Annotated[int, Meta(ge=1_000, le=86_400_000)] = field(default=3_600_000, name="lasts")


class WriteOptions(StoreOptions, frozen=True, kw_only=True, rename=_option_name):
    """Of `df.write`."""

    USE: ClassVar[str] = "a write"

    write: str = ""


class SinkOptions(StoreOptions, frozen=True, kw_only=True, rename=_option_name):
    """Of `df.writeStream`."""

    USE: ClassVar[str] = "a stream that writes"

    application: str = ""


USES: Final[tuple[type[SourceOptions], ...]] = (ReadOptions, WriteOptions, FollowOptions, SinkOptions)
"""Each use of the source has a class of its own: what one of them needs must not slip into another."""


def of_any_use(options: Mapping[str, Any]) -> ReadOptions:
    """What a table looks like, as long as nobody says what it is for: options of every use may stand there, and are
    checked as theirs.
    """
    known = {name for kind in USES for name in _fields(kind)} | SPARKS_OWN
    if unknown := sorted(name.lower() for name in options if name.lower() not in known):
        raise SparkSourceError(_unknown(unknown[0], USES, "a table"))
    for kind in USES:
        kind.of(of_use(options, kind))
    return ReadOptions.of(of_use(options, ReadOptions))


def of_use(options: Mapping[str, Any], kind: type[SourceOptions]) -> dict[str, Any]:
    """Those that this use has."""
    return {name: value for name, value in options.items() if name.lower() in _fields(kind)}


@cache
def _fields(kind: type[SourceOptions]) -> dict[str, msgspec.inspect.Field]:
    """By their names in small letters."""
    return {each.encode_name.lower(): each for each in msgspec.inspect.type_info(kind).fields}  # type: ignore[attr-defined]


def _unknown(name: str, kinds: Sequence[type[SourceOptions]], use: str) -> str:
    """What is to be said of an option that this use has not: whose it is, or which one is meant."""
    others = [each for each in USES if name in _fields(each)]
    if others:
        spelled = _fields(others[0])[name].encode_name
        return f"option {spelled} is of {' or of '.join(each.USE for each in others)}, and this is {use}"
    known = {low: each.encode_name for kind in kinds for low, each in _fields(kind).items()}
    near = difflib.get_close_matches(name, known, n=1)
    meant = f"did you mean {known[near[0]]}? " if near else ""
    return f"unknown option {name}: {meant}{use.capitalize()} takes {', '.join(sorted(known.values(), key=str.lower))}"


def _credential(option: str, path: str) -> str:
    folders = os.environ.get(CREDENTIALS, FOLDER).split(os.pathsep)
    if path and not any(folder and names_below(path, folder) for folder in folders):
        raise SparkSourceError(
            f"option {option}: {path} lies in no folder of credentials ({', '.join(folders)}); whoever sets Spark up "
            f"names these in the environment variable {CREDENTIALS} of driver and executors"
        )
    return path


def _bearer(source: str, token: str) -> str:
    """The token; SparkSourceError, which does not show it, for what gRPC would refuse as metadata."""
    if not token.isascii() or not token.isprintable():
        raise SparkSourceError(f"{source} holds characters that no token has")
    return token


def _is_proved(url: str) -> bool:
    """Whether somebody's certificate says who answers, or only this machine does."""
    found = urlsplit(url)
    return found.scheme in ("grpc+tls", "https") or is_loopback(found.hostname or "")


def _parsed(option: msgspec.inspect.Field, text: str) -> object:
    """An option's text as its field takes it."""
    name, kind = option.encode_name, option.type
    if isinstance(kind, msgspec.inspect.IntType):
        value = int(text) if NUMBER.fullmatch(text.strip()) else -1
        if not (kind.ge or 0) <= value <= (kind.le or 0):
            raise SparkSourceError(f"option {name} is a number from {kind.ge} to {kind.le}, not {_shown(text)}")
        return value
    if isinstance(kind, msgspec.inspect.BoolType):
        if text.lower() not in TRUE | FALSE:
            raise SparkSourceError(f"option {name} is true or false, not {_shown(text)}")
        return text.lower() in TRUE
    if isinstance(kind, msgspec.inspect.LiteralType):
        if text.lower() not in kind.values:
            raise SparkSourceError(f"option {name} is {' or '.join(map(str, kind.values))}, not {_shown(text)}")
        return text.lower()
    return [each.strip() for each in text.split(",") if each.strip()] if name == "columns" else text


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}...")


def _refuse_twice(options: Mapping[str, Any]) -> None:
    names = sorted(name.lower() for name in options)
    if twice := [name for name, following in itertools.pairwise(names) if name == following]:
        raise SparkSourceError(f"option {twice[0]} is given twice: small and capital letters are alike")


def as_options(settings: Mapping[str, Any]) -> dict[str, str]:
    """Python's own values as Spark takes options: `True`, numbers, and lists of names or nodes."""
    return {name: _text(value) for name, value in settings.items() if value is not None}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(value) if all(isinstance(each, str) for each in value) else json.dumps(value)
    return str(value)

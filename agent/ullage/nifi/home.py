"""Where a NiFi keeps its repositories, as its nifi.properties says, and the names of its queues, as its flow says."""

import gzip
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from ullage.errors import InvalidArgument
from ullage.nifi.opened import open_regular
from ullage.nifi.trouble import NiFiDamage, NotSurveyable

PROPERTIES: Final = "nifi.properties"
PROPERTIES_BYTES_MAX: Final = 4 << 20
FLOW_BYTES_MAX: Final = 512 << 20
"""Of a flow.json that is unpacked; large ones have some 100 MB."""

NAME_MAX: Final = 500
"""Characters of a queue's own name, and of those of its groups: more than fits into a line."""

CONTAINER: Final = "nifi.content.repository.directory."

TRUNCATING: Final = "nifi.content.claim.truncation.enabled"
APPENDABLE: Final = "nifi.content.claim.max.appendable.size"
APPENDABLE_BYTES: Final = 50 << 10
APPENDABLE_BYTES_MAX: Final = 100 << 20
TRUNCATED_BYTES_MAX: Final = 1_000_000
"""NiFi cuts off no dead content that is not larger than this or than what it appends to, whichever is less."""

PROVENANCE: Final = "nifi.provenance.repository.directory."
PROVENANCE_KEPT_BY: Final = "nifi.provenance.repository.implementation"
PROVENANCE_SHIPPED: Final = "./provenance_repository"
FORGETFUL: Final = frozenset({"VolatileProvenanceRepository", "NoOpProvenanceRepository"})
"""What keeps provenance events in memory, or none: once NiFi has stopped there are none."""

IMPLEMENTATIONS: Final = {
    "nifi.flowfile.repository.implementation": "WriteAheadFlowFileRepository",
    "nifi.flowfile.repository.wal.implementation": "SequentialAccessWriteAheadLog",
    "nifi.content.repository.implementation": "FileSystemRepository",
    "nifi.swap.manager.implementation": "FileSystemSwapManager",
}
"""What each repository must be kept by to be read here; all that NiFi ships by default."""

ENCRYPTED: Final = "nifi.repository.encryption.protocol.version"

DURATION: Final = re.compile(
    r"(\d{1,9}(?:\.\d{1,9})?)\s*"
    r"(ms|milli|millis|millisecond|milliseconds|s|sec|secs|second|seconds|m|min|mins|minute|minutes"
    r"|h|hr|hrs|hour|hours|d|day|days|w|wk|wks|week|weeks)"
)
UNITS: Final = (
    ("ms", 1),
    ("milli", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
    ("w", 604_800_000),
)
"""Milliseconds by how a unit begins; of those that begin alike the longer name first."""

ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class NiFiHome(msgspec.Struct, frozen=True):
    """The directories of one NiFi. `containers`: of its content repository, by name. `flow`: empty if not known.

    `truncated_above`: bytes of a dead content at a file's end that NiFi 2.10 and later cut off; None: told not to.
    `provenance`: the directories of its events; none if it keeps them in memory; None if that is not known.
    `appendable`: bytes of a file from which on NiFi appends no further content to it.
    """

    flowfiles: str
    containers: dict[str, str]
    flow: str = ""
    is_archiving: bool = True
    truncated_above: int | None = APPENDABLE_BYTES
    provenance: tuple[str, ...] | None = None
    appendable: int = APPENDABLE_BYTES


def find_home(path: str) -> NiFiHome:
    """What nifi.properties says: `path` is that file, its folder, or the folder in which NiFi was unpacked.

    InvalidArgument if there is none, or one without repositories. NotSurveyable if they can't be read here.
    """
    for candidate in (path, os.path.join(path, PROPERTIES), os.path.join(path, "conf", PROPERTIES)):
        if os.path.isfile(candidate):
            return home_of(properties_of(candidate), os.path.dirname(os.path.dirname(os.path.abspath(candidate))))
    raise InvalidArgument(f"{path} is no nifi.properties, and no folder that has one or has one in conf/")


def home_of(properties: Mapping[str, str], base: str) -> NiFiHome:
    """`base`: what NiFi's relative paths begin at, the folder in which it was unpacked."""
    _refuse(properties)
    containers = {
        name.removeprefix(CONTAINER): os.path.join(base, value)
        for name, value in properties.items()
        if name.startswith(CONTAINER) and value
    }
    flowfiles = properties.get("nifi.flowfile.repository.directory", "")
    if not containers or not flowfiles:
        raise InvalidArgument("these properties name no FlowFile repository, or no container of a content repository")
    # NiFi 1 has its flow twice: as XML, which the first property names there, and as JSON.
    flow = properties.get("nifi.flow.configuration.json.file") or properties.get("nifi.flow.configuration.file", "")
    return NiFiHome(
        flowfiles=os.path.join(base, flowfiles),
        containers=containers,
        flow=os.path.join(base, flow) if ".json" in flow else "",
        is_archiving=_is_on(properties, "nifi.content.repository.archive.enabled"),
        truncated_above=min(_appendable(properties), TRUNCATED_BYTES_MAX) if _is_on(properties, TRUNCATING) else None,
        provenance=tuple(os.path.join(base, path) for path in _provenance(properties)),
        appendable=_appendable(properties),
    )


def properties_of(path: str) -> dict[str, str]:
    """What java.util.Properties reads from a file. InvalidArgument if it is too large to be one."""
    with open(path, "rb") as file:
        data = file.read(PROPERTIES_BYTES_MAX + 1)
    if len(data) > PROPERTIES_BYTES_MAX:
        raise InvalidArgument(f"{path} has more than {PROPERTIES_BYTES_MAX:,} bytes: it is no nifi.properties")
    found = {}
    for line in _logical_lines(data.decode("utf-8", "replace")):
        match = re.match(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)", line, re.DOTALL)
        if match:
            found[_unescaped(match.group(1))] = _unescaped(match.group(2)).strip()
    return found


def queue_names(path: str) -> tuple[dict[str, str], list[NiFiDamage]]:
    """Of each queue, by its identifier, what a person calls it: its name, or from where to where it leads.

    The flow only helps: where it can't be read, the queues have their identifiers, and the damage says so.
    """
    connections, damages = connections_of(path)
    return {identifier: connection.name for identifier, connection in connections.items()}, damages


class NiFiConnection(NamedTuple):
    """A queue as the flow defines it. `name`: what a person calls it. `prioritizers`: names of NiFi's classes, the
    most important first. Limits of 0: none.
    """

    name: str
    prioritizers: tuple[str, ...] = ()
    expiration_millis: int = 0
    count_max: int = 0
    bytes_max: int = 0


def connections_of(path: str) -> tuple[dict[str, NiFiConnection], list[NiFiDamage]]:
    """All queues of a flow, by their identifiers; none, with the damage, where it can't be read."""
    found: dict[str, NiFiConnection] = {}
    if not path:
        return found, []
    try:
        with os.fdopen(open_regular(path), "rb") as packed, gzip.open(packed) as file:
            data = file.read(FLOW_BYTES_MAX + 1)
        if len(data) > FLOW_BYTES_MAX:
            raise ValueError(f"it has more than {FLOW_BYTES_MAX:,} bytes")
        _collect(msgspec.json.decode(data, type=_Flow).rootGroup, "", found)
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        return found, [NiFiDamage(path, f"the queues have no names: {error}", loses_flowfiles=False)]
    return found, []


class _End(msgspec.Struct):
    name: str | None = None
    type: str | None = None


class _Connection(msgspec.Struct):
    identifier: str
    instanceIdentifier: str | None = None  # noqa: N815 - as NiFi's flow has it
    name: str | None = None
    source: _End | None = None
    destination: _End | None = None
    prioritizers: list[str] | None = None
    flowFileExpiration: str | None = None  # noqa: N815 - as NiFi's flow has it
    backPressureObjectThreshold: int | None = None  # noqa: N815 - as NiFi's flow has it
    backPressureDataSizeThreshold: str | None = None  # noqa: N815 - as NiFi's flow has it


class _Group(msgspec.Struct):
    name: str | None = None
    connections: list[_Connection] = []
    processGroups: list["_Group"] = []  # noqa: N815 - as NiFi's flow has it


class _Flow(msgspec.Struct):
    rootGroup: _Group  # noqa: N815 - as NiFi's flow has it


def _collect(group: _Group, where: str, found: dict[str, NiFiConnection]) -> None:
    """A group's queues, and of those below. Each has the names of all its groups, so long ones are cut."""
    for connection in group.connections:
        ends = " -> ".join(_called(end) for end in (connection.source, connection.destination))
        name = f"{connection.name}: {ends}" if connection.name else ends
        # In memory, and so in the repository, a queue goes by the identifier of this instance of the flow.
        found[connection.instanceIdentifier or connection.identifier] = NiFiConnection(
            f"{where}{name[:NAME_MAX]}",
            tuple(each.rpartition(".")[2] for each in connection.prioritizers or ()),
            _millis(connection.flowFileExpiration or ""),
            max(0, connection.backPressureObjectThreshold or 0),
            _bytes(connection.backPressureDataSizeThreshold or "") or 0,
        )
    for below in group.processGroups:
        _collect(below, f"{where}{below.name or '?'}"[:NAME_MAX] + " / ", found)


def _called(end: _End | None) -> str:
    return (end.name or (end.type or "?").lower()) if end else "?"


def _provenance(properties: Mapping[str, str]) -> Iterator[str]:
    if properties.get(PROVENANCE_KEPT_BY, "").rpartition(".")[2] not in FORGETFUL:
        named = [value for name, value in properties.items() if name.startswith(PROVENANCE) and value]
        yield from named or [PROVENANCE_SHIPPED]


def _is_on(properties: Mapping[str, str], name: str) -> bool:
    return properties.get(name, "true").strip().lower() != "false"


def _appendable(properties: Mapping[str, str]) -> int:
    """As NiFi reads the size of a resource claim; what is none is the default."""
    stated = _bytes(properties.get(APPENDABLE, ""))
    return min(APPENDABLE_BYTES if stated is None else stated, APPENDABLE_BYTES_MAX)


def _bytes(stated: str) -> int | None:
    """`1 GB`, as NiFi reads it; None: it is no size."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*([KMGT]?)B", stated.strip().upper())
    return None if match is None else int(float(match[1]) * 1024 ** " KMGT".index(match[2] or " "))


def _millis(stated: str) -> int:
    """`30 min`, as NiFi reads it; 0: it is none, or no duration."""
    match = DURATION.fullmatch(stated.strip().lower())
    return 0 if match is None else int(float(match[1]) * next(ms for unit, ms in UNITS if match[2].startswith(unit)))


def _refuse(properties: Mapping[str, str]) -> None:
    if properties.get(ENCRYPTED):
        raise NotSurveyable(f"this NiFi encrypts its repositories ({ENCRYPTED}): they can't be read without its key")
    for name, kept_by in IMPLEMENTATIONS.items():
        value = properties.get(name, "")
        if value and value.rpartition(".")[2] != kept_by:
            why = "it encrypts" if "Encrypted" in value else f"read is what {kept_by} keeps"
            raise NotSurveyable(f"{name} is {value}: {why}")


def _logical_lines(content: str) -> Iterator[str]:
    """Without comments; a line that ends in a backslash goes on in the next one."""
    begun = ""
    for natural in content.splitlines():
        line = natural.lstrip()
        if not begun and line[:1] in ("", "#", "!"):
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            begun += line[:-1]
            continue
        yield begun + line
        begun = ""
    if begun:
        yield begun


def _unescaped(value: str) -> str:
    def one(match: re.Match[str]) -> str:
        escaped = match.group(1)
        return chr(int(escaped[1:], 16)) if len(escaped) > 1 else ESCAPED.get(escaped, escaped)

    return ESCAPE.sub(one, value)

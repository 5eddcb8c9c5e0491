"""What every entrance refuses before anything is written, said once; docs/valid.md tells it to people.

Bounds and types are those of the documents (`ullage.wire`), which HTTP and Flight are held to. What is of another kind
than its signature says is a TypeError, which a type checker would have told; every other refusal is an InvalidArgument.
"""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import msgspec

from ullage.enums import Lifetime, LineageDirection
from ullage.errors import Elsewhere, InvalidArgument
from ullage.interface.values import AnyFlowFile, Attributes, CheckedAttributes, Subjects
from ullage.uuids import parse_uuid
from ullage.wire.documents import (
    ATTRIBUTES_MAX,
    CONDITIONS_MAX,
    COUNT_MAX,
    EVENTS_MAX,
    GENERATIONS_MAX,
    NAME_CHARACTERS_MAX,
    TEXT_BYTES_MAX,
)
from ullage.wire.firstuse import prepare
from ullage.wire.leases import LeaseRequest
from ullage.wire.provenance import EventQuery
from ullage.wire.queues import FlowFile, QueueSettings
from ullage.wire.sessions import SessionRequest
from ullage.wire.space import RunRequest
from ullage.wire.unavailable import AcceptedLoss
from ullage.wire.upkeep import VerificationRequest
from ullage.wire.volumes import VolumeForgotten

T = TypeVar("T")

KEY_CHARACTERS_MAX = 255
WAIT_SECONDS_MAX = 24 * 3_600

_TEXT = {str}
_MAPPINGS = "attributes are a mapping of texts, or a list of them"


def checked_attributes(attributes: Attributes | None) -> dict[str, str]:
    """The same, if they can be stored: `uuid` is the record's own, and text is Unicode that can be encoded."""
    if type(attributes) is not dict and attributes is not None and not isinstance(attributes, Mapping):
        raise TypeError(f"attributes are a mapping of texts, not {type(attributes).__name__}")
    found = dict(attributes or {})
    if "uuid" in found:
        raise InvalidArgument("the attribute uuid belongs to the record and cannot be set")
    return found if _are_texts([*found, *found.values()]) else _checked_pairs(found)


def checked_conditions(attributes: Attributes | None) -> dict[str, str] | None:
    """Attributes that are looked for: `uuid` too."""
    if attributes is None:
        return None
    if not isinstance(attributes, Mapping):
        raise TypeError(f"attributes are a mapping of texts, not {type(attributes).__name__}")
    if len(attributes) > CONDITIONS_MAX:
        raise InvalidArgument(f"attributes to choose by are at most {CONDITIONS_MAX}, not {len(attributes)}")
    return _checked_pairs(dict(attributes))


def _checked_pairs(attributes: dict[str, str]) -> dict[str, str]:
    return {
        checked_text(name, "an attribute's name"): checked_text(value, f"the attribute {name}")
        for name, value in attributes.items()
    }


def _are_texts(texts: list[str]) -> bool:
    """Whether all names and values are: in one go, because a batch has thousands."""
    if not _TEXT.issuperset(map(type, texts)):
        return False
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True


def checked_all(attributes: Attributes | Sequence[Attributes] | None) -> CheckedAttributes:
    """The same of a batch: for all of it, or of each."""
    if attributes is None or isinstance(attributes, Mapping):
        return checked_attributes(attributes)
    found = [dict(each) if type(each) is dict else checked_attributes(each) for each in _listed(attributes, _MAPPINGS)]
    names = list(chain.from_iterable(found))
    if "uuid" not in names and _are_texts([*names, *chain.from_iterable(map(dict.values, found))]):
        return found
    return [checked_attributes(each) for each in found]


def checked_batch(
    contents: Iterable[bytes], attributes: Attributes | Sequence[Attributes] | None
) -> tuple[list[bytes], CheckedAttributes]:
    """Contents of a batch, and attributes for all of them, or of each."""
    if isinstance(contents, bytes | bytearray | memoryview | str):
        raise TypeError(f"contents are a list of bytes, not one {type(contents).__name__}")
    found = _listed(contents, "contents are a list of bytes")
    for content in found:
        if not isinstance(content, bytes):
            raise TypeError(f"each content of a batch is bytes, not {type(content).__name__}")
    mappings = checked_all(attributes)
    if isinstance(mappings, list) and len(mappings) != len(found):
        raise InvalidArgument(f"{len(found)} contents came with attributes for {len(mappings)}")
    return found, mappings


def checked_text(text: str, what: str) -> str:
    """The same, if it is one. TypeError, for what no type checker has seen."""
    if not isinstance(text, str):
        raise TypeError(f"{what} is a text, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{what} is no Unicode text that can be encoded") from error
    return text if type(text) is str else str.__str__(text)  # no encoder knows a class that somebody made of it


def checked_label(text: str, what: str) -> str:
    """A short text, or none."""
    found = checked_text(text, what)
    if len(found) > NAME_CHARACTERS_MAX:
        raise InvalidArgument(f"{what} has at most {NAME_CHARACTERS_MAX} characters, not {len(found)}")
    return found


def checked_note(text: str, what: str) -> str:
    """A text for people and searches, or none."""
    if len(checked_text(text, what).encode()) > TEXT_BYTES_MAX:
        raise InvalidArgument(f"{what} has more than {TEXT_BYTES_MAX} bytes")
    return str.__str__(text)


def checked_path(path: str, what: str) -> str:
    """The name of a file or directory."""
    if not checked_text(path, what):
        raise InvalidArgument(f"{what} has a name")
    if "\0" in path:
        raise InvalidArgument(f"{what} is {path!r}: no name holds a NUL")
    return str.__str__(path)


def checked_place(said: str | os.PathLike[str]) -> str:
    """Where a backup lies, as people say it: the path of a directory, or the URL of a bucket."""
    return checked_path(os.fspath(said) if isinstance(said, os.PathLike) else said, "a backup's directory")


def checked_texts(texts: Iterable[str], what: str) -> list[str]:
    """Each of them."""
    return [checked_text(text, what) for text in _listed(texts, f"a list of texts belongs here, each {what}")]


def checked_removals(names: Iterable[str]) -> list[str]:
    """Attributes to be removed, each once."""
    found = list(dict.fromkeys(checked_texts(names, "an attribute's name")))
    if len(found) > ATTRIBUTES_MAX:
        raise InvalidArgument(f"attributes to remove are at most {ATTRIBUTES_MAX}, not {len(found)}")
    return found


def checked_name(name: str, what: str) -> str:
    """A name of something."""
    if not 0 < len(checked_text(name, what)) <= NAME_CHARACTERS_MAX:
        raise InvalidArgument(f"{what} has 1 to {NAME_CHARACTERS_MAX} characters, not {len(name)}")
    return str.__str__(name)


def checked_key(key: str | None) -> str | None:
    """An idempotency key, if it is one."""
    if key is None:
        return None
    if not (
        0 < len(checked_text(key, "a key")) <= KEY_CHARACTERS_MAX
        and key.isascii()
        and key.isprintable()
        and key == key.strip()
    ):
        raise InvalidArgument(
            f"an idempotency key is 1 to {KEY_CHARACTERS_MAX} printable ASCII characters, without blanks around them"
        )
    return str.__str__(key)


def checked_queue(name: str) -> str:
    """A queue's name, if it is one."""
    return checked_name(name, "a queue's name")


def checked_number(number: int, what: str, least: int = -COUNT_MAX, most: int = COUNT_MAX) -> int:
    """The same, if it is one and within its bounds: `size / 2`, or True, could be logged and never be read again."""
    if type(number) is not int:
        raise TypeError(f"{what} is a whole number, not {type(number).__name__}")
    if not least <= number <= most:
        bounds = f"{least} or more" if number < least and most == COUNT_MAX else f"{least} to {most}"
        raise InvalidArgument(f"{what} is {bounds}, not {number}")
    return number


def checked_numbers(numbers: Iterable[int], what: str) -> list[int]:
    """Each of them; see `checked_number`."""
    return [checked_number(number, what) for number in _listed(numbers, f"a list of numbers belongs here, each {what}")]


def checked_seconds(seconds: float, what: str) -> float:
    """A time to wait."""
    if type(seconds) not in (int, float):
        raise TypeError(f"{what} is a number, not {type(seconds).__name__}")
    if not (math.isfinite(seconds) and 0 <= seconds <= WAIT_SECONDS_MAX):
        raise InvalidArgument(f"{what} is 0 to {WAIT_SECONDS_MAX} seconds, not {seconds}")
    return seconds


def checked_millis(millis: int, what: str) -> int:
    """A duration that lasts."""
    return checked_number(millis, what, 1)


def checked_part(start: int, size: int | None) -> tuple[int, int | None]:
    """Where a part of a content begins, and its bytes; None: up to the end."""
    return checked_number(start, "start"), None if size is None else checked_number(size, "size")


def checked_lifetime(lifetime: Lifetime) -> Lifetime:
    """The same, if it is one."""
    try:
        return Lifetime(lifetime)
    except ValueError as error:
        raise InvalidArgument(f"{lifetime!r} is none of the classes of Lifetime") from error


def id_of(flow_file: AnyFlowFile) -> str:
    """The id of a FlowFile."""
    return flow_file.id if isinstance(flow_file, FlowFile) else checked_text(flow_file, "a FlowFile, or its id,")


def ids_of(flow_files: Subjects) -> list[str]:
    """The id of one FlowFile, or of each of several."""
    if isinstance(flow_files, FlowFile | str | bytes) or not isinstance(flow_files, Iterable):
        return [id_of(flow_files)]
    return [id_of(each) for each in flow_files]


def queue_settings(**asked: Any) -> QueueSettings:
    """How a queue is to be, if it can be so; InvalidArgument."""
    return _converted(asked, QueueSettings)


def run_request(**asked: Any) -> RunRequest:
    """What was asked for, if it can be; InvalidArgument."""
    request = _converted(asked, RunRequest)
    if request.seconds is not None:
        checked_seconds(request.seconds, "seconds")
    return msgspec.structs.replace(request, operations=list(dict.fromkeys(request.operations)))


def checked_run(request: RunRequest) -> RunRequest:
    """The same; a document that a program makes is checked by nobody else."""
    return run_request(**_fields_of(request, RunRequest))


def verification_request(
    source: str, generation: int | None = None, sample: float = 1.0, seed: int | None = None
) -> VerificationRequest:
    """What of a backup is to be looked at, if it can be."""
    if type(sample) not in (int, float):
        raise TypeError(f"a sample is a number, not {type(sample).__name__}")
    if not 0 < sample <= 1:
        raise InvalidArgument(f"a sample is a share above 0, up to 1, not {sample:g}")
    return VerificationRequest(
        source=checked_place(source),
        generation=None if generation is None else checked_number(generation, "a generation"),
        sample=float(sample),
        seed=None if seed is None else checked_number(seed, "a seed"),
    )


def checked_query(query: EventQuery | None) -> EventQuery:
    """The same of what is searched for; None: everything."""
    return EventQuery() if query is None else _converted(_fields_of(query, EventQuery), EventQuery)


def lease_request(**asked: Any) -> LeaseRequest:
    """A lease to take, if it can be one."""
    resources = _listed(asked["resources"], "resources are a list of resource claims")
    return LeaseRequest(
        duration_millis=checked_millis(asked["duration_millis"], "duration_millis"),
        resources=[checked_number(each, "a resource", 1) for each in resources],
        purpose=checked_label(asked["purpose"], "purpose"),
    )


def session_request(component: str, component_type: str, seconds: float) -> SessionRequest:
    """A session to open, if it can be one."""
    if type(seconds) not in (int, float):
        raise TypeError(f"lease_seconds is a number, not {type(seconds).__name__}")
    return _converted(
        {
            "component": checked_label(component, "component"),
            "component_type": checked_label(component_type, "component_type"),
            "visibility_seconds": seconds,
        },
        SessionRequest,
    )


def lineage_bounds(way: str, depth: int, limit: int) -> tuple[LineageDirection, int, int]:
    """How much of a lineage is wanted."""
    try:
        found = LineageDirection(way)
    except ValueError as error:
        raise InvalidArgument(f"way is {', '.join(LineageDirection)}, not {way!r}") from error
    return (
        found,
        checked_number(depth, "depth", 0, GENERATIONS_MAX),
        checked_number(limit, "limit", 1, EVENTS_MAX),
    )


def accepted_loss(ids: Sequence[str], accept_loss: bool) -> AcceptedLoss:
    """What is to be given up, if it is uuids and its loss was accepted; InvalidArgument."""
    ids = checked_texts(ids, "an id")
    for id in ids:
        try:
            parse_uuid(id)
        except ValueError as error:
            raise InvalidArgument(f"{id!r} is no uuid: {error}") from error
    if accept_loss is not True:
        raise InvalidArgument("what is dropped is lost, whatever is mended later: say accept_loss=True")
    return AcceptedLoss(ids=ids, accept_loss=True)


def volume_forgotten(container: str, accept_loss: bool) -> VolumeForgotten:
    """Which volume is to be given up, if its loss was accepted; InvalidArgument."""
    if accept_loss is not True:
        raise InvalidArgument("all content on a forgotten volume is lost, also if it comes back: say accept_loss=True")
    return _converted({"container": container, "accept_loss": True}, VolumeForgotten)


prepare(AcceptedLoss, EventQuery, LeaseRequest, QueueSettings, RunRequest, SessionRequest, VolumeForgotten)


def _converted(asked: dict[str, Any], kind: type[T]) -> T:
    """A document with these fields, if it can be one, and be sent and stored."""
    try:
        found = msgspec.convert(asked, kind)
        msgspec.msgpack.encode(found)
    except msgspec.ValidationError as error:
        raise InvalidArgument(str(error)) from error
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"a text is no Unicode that can be encoded: {error}") from error
    except (TypeError, OverflowError, AttributeError) as error:  # of what only looks like a list, or a mapping
        raise InvalidArgument(f"no value of {kind.__name__}: {error}") from error
    return found


def _fields_of(document: Any, kind: type[Any]) -> dict[str, Any]:
    if not isinstance(document, kind):
        raise TypeError(f"a {kind.__name__} belongs here, not {type(document).__name__}")
    return msgspec.structs.asdict(document)


def _listed(values: Any, what: str) -> list[Any]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"{what}, not {type(values).__name__}")
    return list(values)


def own_id(handle: str, node: str) -> str:
    """The uuid of a handle, which may be followed by its node's name. Elsewhere if that is another node."""
    id, _, name = checked_text(handle, "a handle").partition("@")
    if name and node and name != node:
        raise Elsewhere(f"handle {id} lives on node {name}; this is {node}")
    return id

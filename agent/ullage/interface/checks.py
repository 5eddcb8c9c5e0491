"""What every entrance refuses before anything is written, said once."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from ullage.enums import Lifetime
from ullage.errors import Elsewhere, InvalidArgument
from ullage.interface.values import AnyFlowFile, Attributes, CheckedAttributes, Subjects
from ullage.wire.documents import COUNT_MAX
from ullage.wire.queues import FlowFile, QueueSettings
from ullage.wire.space import RunRequest

T = TypeVar("T")

KEY_CHARACTERS_MAX = 255
QUEUE_CHARACTERS_MAX = 255


def checked_attributes(attributes: Attributes | None) -> dict[str, str]:
    """The same, if they can be stored: `uuid` is the record's own, and text is Unicode that can be encoded."""
    if attributes is not None and not isinstance(attributes, Mapping):
        raise TypeError(f"attributes are a mapping of texts, not {type(attributes).__name__}")
    found = dict(attributes or {})
    if "uuid" in found:
        raise InvalidArgument("the attribute uuid belongs to the record and cannot be set")
    try:
        "".join([*found, *found.values()]).encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument("an attribute is no Unicode text that can be encoded") from error
    except TypeError as error:
        for name, value in found.items():
            checked_text(name, "an attribute's name")
            checked_text(value, f"the attribute {name}")
        raise AssertionError("texts that cannot be joined") from error
    return found


def checked_all(attributes: Attributes | Sequence[Attributes] | None) -> CheckedAttributes:
    """The same of a batch: for all of it, or of each."""
    if attributes is None or isinstance(attributes, Mapping):
        return checked_attributes(attributes)
    return [checked_attributes(each) for each in attributes]


def checked_batch(
    contents: Iterable[bytes], attributes: Attributes | Sequence[Attributes] | None
) -> tuple[list[bytes], CheckedAttributes]:
    """Contents of a batch, and attributes for all of them, or of each."""
    if isinstance(contents, bytes | bytearray | memoryview | str):
        raise TypeError(f"contents are a list of bytes, not one {type(contents).__name__}")
    found = list(contents)
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
    return text


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
    return key


def checked_queue(name: str) -> str:
    """A queue's name, if it is one."""
    if not 0 < len(checked_text(name, "a queue's name")) <= QUEUE_CHARACTERS_MAX:
        raise InvalidArgument(f"a queue's name has 1 to {QUEUE_CHARACTERS_MAX} characters, not {len(name)}")
    return name


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
    return [checked_number(number, what) for number in numbers]


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
    if isinstance(flow_files, FlowFile | str) or not isinstance(flow_files, Iterable):
        return [id_of(flow_files)]
    return [id_of(each) for each in flow_files]


def queue_settings(**asked: Any) -> QueueSettings:
    """How a queue is to be, if it can be so; InvalidArgument."""
    return _converted(asked, QueueSettings)


def run_request(**asked: Any) -> RunRequest:
    """What was asked for, if it can be; InvalidArgument."""
    return _converted(asked | {"operations": list(dict.fromkeys(asked["operations"]))}, RunRequest)


def _converted(asked: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(asked, kind)
    except msgspec.ValidationError as error:
        raise InvalidArgument(str(error)) from error


def own_id(handle: str, node: str) -> str:
    """The uuid of a handle, which may be followed by its node's name. Elsewhere if that is another node."""
    id, _, name = checked_text(handle, "a handle").partition("@")
    if name and node and name != node:
        raise Elsewhere(f"handle {id} lives on node {name}; this is {node}")
    return id

"""UUIDs as the records hold them: 16 bytes, and many of them joined."""

import os
from collections.abc import Iterator, Sequence

from ullage.errors import HandleNotFound

UUID_BYTES = 16

NOTATION = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
"""A regular expression of what `format_uuid` writes."""

_TEXT_LENGTH = 36
_DASHES = (8, 13, 18, 23)

FEW = 20
"""Fewer of them are sooner written one by one."""

_VERSION_4 = bytes(0x40 | (byte & 0x0F) for byte in range(256))
_VARIANT_1 = bytes(0x80 | (byte & 0x3F) for byte in range(256))


def new_uuids(count: int) -> list[bytes]:
    """`count` random UUIDs (version 4) as 16 bytes each, from one read of the system's randomness."""
    raw = bytearray(os.urandom(UUID_BYTES * count))
    raw[6::UUID_BYTES] = raw[6::UUID_BYTES].translate(_VERSION_4)
    raw[8::UUID_BYTES] = raw[8::UUID_BYTES].translate(_VARIANT_1)
    frozen = bytes(raw)
    return [frozen[at : at + UUID_BYTES] for at in range(0, len(frozen), UUID_BYTES)]


def format_uuid(uuid: bytes) -> str:
    """16 bytes as 8-4-4-4-12 hexadecimal digits."""
    digits = uuid.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def format_uuids(uuids: Sequence[bytes]) -> list[str]:
    """The same of many, in half the time: the digits of all in the first place are put there in one step, and so on."""
    count = len(uuids)
    if count < FEW:
        return list(map(format_uuid, uuids))
    digits = b"".join(uuids).hex().encode()
    texts = bytearray(b"-" * (_TEXT_LENGTH * count))
    places = (at for at in range(_TEXT_LENGTH) if at not in _DASHES)
    for digit, at in enumerate(places):
        texts[at::_TEXT_LENGTH] = digits[digit :: 2 * UUID_BYTES]
    joined = texts.decode()
    return [joined[at : at + _TEXT_LENGTH] for at in range(0, len(joined), _TEXT_LENGTH)]


def parse_uuid(text: str) -> bytes:
    """The inverse of `format_uuid`; ValueError for anything else."""
    is_dashed = len(text) == _TEXT_LENGTH and all(text[at] == "-" for at in _DASHES)
    digits = text.replace("-", "") if is_dashed else text
    uuid = bytes.fromhex(digits) if len(digits) == 2 * UUID_BYTES else b""
    if len(uuid) != UUID_BYTES:  # `fromhex` skips spaces
        raise ValueError(f"{text!r} is not a uuid: expected 32 hexadecimal digits")
    return uuid


def parse_handle(id: str) -> bytes:
    """A handle's bytes; HandleNotFound for text that can be none."""
    try:
        return parse_uuid(id)
    except ValueError as error:
        raise HandleNotFound(f"{id!r} is not a handle: {error}") from error


def parse_uuids(texts: Sequence[str]) -> list[bytes] | None:
    """The same of many in one step; None unless all are written alike, as `format_uuid` does or as 32 digits alone."""
    joined, count = "".join(texts), len(texts)
    lengths = set(map(len, texts))
    if lengths == {_TEXT_LENGTH}:
        if joined.count("-") != 4 * count or any(joined[at::_TEXT_LENGTH] != "-" * count for at in _DASHES):
            return None
        joined = joined.replace("-", "")
    elif lengths != {2 * UUID_BYTES}:
        return None
    try:
        found = bytes.fromhex(joined)
    except ValueError:
        return None
    if len(found) != UUID_BYTES * count:  # `fromhex` skips spaces
        return None
    return list(split_uuids(found))


def split_uuids(joined: bytes) -> Iterator[bytes]:
    """The uuids of a joined run, in order."""
    return (joined[at : at + UUID_BYTES] for at in range(0, len(joined), UUID_BYTES))

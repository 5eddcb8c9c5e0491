"""A subject is recognized in bytes that no decoder takes."""

import msgspec
import pytest

from ullage.engine.erasure.subject import Subject
from ullage.engine.model import SetAside


@pytest.mark.parametrize("size", [0, 1, 31, 32, 255, 256, 70_000])
def test_an_attribute_among_the_bytes_of_a_record_is_found_at_any_length(size: int) -> None:
    """As this encoder packs it, and no longer or shorter one that holds the same bytes."""
    value = "v" * size
    aside = SetAside(b"i" * 16, "log", "", b"..." + msgspec.msgpack.encode({"n": 5, "customer": value}), 1)

    assert Subject({"customer": value}).has_aside(aside)
    assert not Subject({"customer": value + "v"}).has_aside(aside)
    assert not Subject({"customer": value[1:] or "w"}).has_aside(aside)

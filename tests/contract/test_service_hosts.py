"""Which hosts are this machine: the one rule by which clients send tokens and agents answer without them."""

import pytest

from ullage.contract import is_loopback


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.1", "::1"])
def test_loopback_is_this_machine(host: str) -> None:
    """By name or by any address of it."""
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "::", "10.0.0.1", "localhost.example", "127.0.0.1.example", "1", "[::1]"]
)
def test_no_other_name_or_address_is(host: str) -> None:
    """Whoever answers there may be anybody, whatever the name looks like."""
    assert not is_loopback(host)

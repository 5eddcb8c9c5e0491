"""Which addresses are one client's: what is bounded for each client must not be had again from the next address."""

import ipaddress
from typing import Final

NETWORK_BITS: Final = 64
"""Of an IPv6 address: who has one has all that begin so."""


def bare(address: str) -> str:
    """An address as the other side of a connection may have it too: without a zone, and IPv4 as such."""
    address = address.partition("%")[0]
    if ":" not in address:
        return address
    try:
        mapped = ipaddress.IPv6Address(address).ipv4_mapped
    except ValueError:
        return address
    return address if mapped is None else str(mapped)


def client_of(address: str) -> str:
    """Those addresses that one client may have at will count as one; what is no address stands for itself."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, NETWORK_BITS), strict=False))

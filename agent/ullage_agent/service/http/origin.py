"""Whose page a request comes from: a browser sends what any page asks it to, also to a service that only listens here.

Without authentication, being able to connect is all that protects a service on loopback, and a browser can connect for
everybody. Two ways in, and what shuts each:

    another site's form or script posts here          browsers name the site in `Origin`: it must be this host
    another site's name is made to lead here (DNS     browsers name it in `Host`: without authentication that must be
    rebinding), and its script reads answers          a name of loopback
"""

import ipaddress
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})


def foreign(method: str, headers: Mapping[bytes, bytes], *, is_open: bool) -> str:
    """Why a request is refused, "" if it is not. `is_open`: nobody is asked for a token."""
    host = headers.get(b"host", b"").decode("latin-1").lower()
    if is_open and host and not _is_loopback(host):  # no browser leaves it out
        return f"without authentication only names of loopback are answered, and this asks for {host[:100]!r}"
    origin = headers.get(b"origin", b"").decode("latin-1").lower()
    if method not in READING and origin and urlsplit(origin).netloc != host:
        return f"a page of {origin[:100]!r} may change nothing here"
    return ""


def _is_loopback(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:  # another name, or none
        return False

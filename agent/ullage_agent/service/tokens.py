"""Bearer tokens in a file: what the agent uses that has no cluster to ask.

    # name    rights           expires                 SHA-256 of the token
    ingest    content:create   2027-01-31T00:00:00Z    9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    views     reader,metrics   never                   d7a8fbb307d7809469ca9abcb0082e4f8d5651e46d3cdb762d02d0bf37c9e592
    admin     *                never                   60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752

Rights are words of `ullage.contract.rights` between commas: a right, a subresource for all verbs of it, a role, or `*`.

Only hashes stand there, so that whoever reads the file learns no token. Two lines of one name are two tokens: that is
how they are rotated. The file is read again when it changes; one that has become unreadable keeps the last good one,
because an editor's half a file must not lock everybody out, nor let anybody in.
"""

import hashlib
import os
import re
import secrets
import stat
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TextIO

from ullage.clock import Clock, moment_of
from ullage.contract import Right, parse_rights
from ullage.errors import Unauthenticated
from ullage_agent.service.access import Principal, forbidden
from ullage_agent.service.errors import CannotListen

NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.:@/]{0,252}")
DIGEST = re.compile(r"[0-9a-f]{64}")
TOKEN_BYTES = 32
FILE_BYTES_MAX = 1 << 20
"""About ten thousand tokens: more want a cluster."""

LOOK_SECONDS = 1.0
"""How often the file's date is looked at."""


Tokens = dict[str, tuple[Principal, int | None]]
"""By their hash: whose they are, and until when (milliseconds since 1970; None: for ever)."""


class TokenFile:
    """Authenticates by the file. CannotListen if the first read fails. Thread-safe."""

    may_block = False

    def __init__(self, path: str, clock: Clock, on_problem: Callable[[str], None] = lambda _: None) -> None:
        self._path = path
        self._clock = clock
        self._on_problem = on_problem
        self._lock = threading.Lock()
        self._looked = clock.monotonic()
        try:
            self._seen = stamp_of(path)
            self._tokens = _read(path)
        except (OSError, ValueError) as error:
            raise CannotListen(f"spec.auth.tokenFile: {path} cannot be used: {error}") from error

    def authenticate(self, token: str | None, peer: str = "") -> Principal:
        """Who this token stands for."""
        self._refresh()
        if token is None:
            raise Unauthenticated("a bearer token is needed")
        principal, expires_millis = self._tokens.get(hashlib.sha256(token.encode()).hexdigest(), (None, None))
        if principal is None:
            raise Unauthenticated("the bearer token is not known")
        if expires_millis is not None and expires_millis <= self._clock.now_millis():
            raise Unauthenticated(f"the bearer token of {principal.name} has expired")
        return principal

    def authorize(self, principal: Principal, right: Right) -> None:
        """By the token's line."""
        if right not in principal.rights:
            raise forbidden(principal, right)

    def _refresh(self) -> None:
        now = self._clock.monotonic()
        with self._lock:
            if now - self._looked < LOOK_SECONDS:
                return
            self._looked = now
            try:
                stamp = stamp_of(self._path)
                if stamp != self._seen:
                    self._tokens = _read(self._path)
                    self._seen = stamp
            except (OSError, ValueError) as error:
                self._on_problem(f"{self._path} cannot be used, the tokens known before stay: {error}")


def new_token() -> tuple[str, str]:
    """A token nobody can guess, and the hash that stands in the file."""
    token = f"ullage_{secrets.token_urlsafe(TOKEN_BYTES)}"
    return token, hashlib.sha256(token.encode()).hexdigest()


def line_of(name: str, rights: Iterable[str], expires_millis: int | None, digest: str) -> str:
    """A line of the file, with these words for rights. ValueError for a name that could be read as something else, and
    for a word that is no right.
    """
    words = ",".join(rights)
    parse_rights(words)
    if NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no name: letters, digits and -_.:@/, at most 253, the first a letter or digit")
    expires = "never"
    if expires_millis is not None:
        expires = moment_of(expires_millis).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{name}\t{words}\t{expires}\t{digest}\n"


def add_line(path: str, line: str) -> None:
    """Append a line to a file of tokens, which is made if it is not there. ValueError, and nothing is written, for a
    file that holds something else: an agent that is to start with it would not.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "r+", encoding="utf-8") as file:
        text = _text_of(file)
        _parsed(text)
        # What an editor left without an end would take the line in.
        file.write(line if not text or text.endswith("\n") else f"\n{line}")


def _parsed(text: str) -> Tokens:
    """The tokens by their hash; ValueError names the line that is wrong."""
    tokens: Tokens = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        fields = line.split()
        if len(fields) != 4:
            raise ValueError(f"line {number} has {len(fields)} fields: a name, rights, when it expires, and a SHA-256")
        name, words, expires, digest = fields
        if NAME.fullmatch(name) is None or DIGEST.fullmatch(digest) is None:
            raise ValueError(f"line {number}: the name or the SHA-256 is none")
        try:
            rights = parse_rights(words)
            until = None if expires == "never" else _millis(expires)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        tokens[digest] = Principal(name, rights=rights), until
    return tokens


def _millis(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def stamp_of(path: str) -> tuple[int, int, int]:
    """What differs once the file has changed."""
    found = os.stat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns


def _read(path: str) -> Tokens:
    # What is no file, such as a pipe, could keep whoever opens it waiting: without end, and with them everybody.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, encoding="utf-8") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no regular file")
        return _parsed(_text_of(file))


def _text_of(file: TextIO) -> str:
    text = file.read(FILE_BYTES_MAX + 1)
    if len(text) > FILE_BYTES_MAX:
        raise ValueError(f"more than {FILE_BYTES_MAX} bytes")
    return text

"""The bytes on the Unix socket; docs/protocol.md says the same in prose. Server and client both build on this module.

Every message is one frame, and all numbers are little-endian:

    0   u32  bytes of the body, at most FRAME_BYTES_MAX
    4   u8   kind
    5   u8   0
    6   u16  number of the request, chosen by the client; its answers carry it. 0: the server speaks unasked
    8        the body

Descriptors travel as SCM_RIGHTS beside the first byte of a FILES frame, and beside nothing else.
"""

import enum
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from ullage.errors import RequestTooLarge, UllageError
from ullage.wire.problems import ProblemDetails, error_of, problem_of

MAGIC: Final = b"ULLAGE\0\0"
VERSION: Final = 1

HEADER: Final = struct.Struct("<IBBH")
HELLO: Final = struct.Struct("<8sHHI")
"""Magic, lowest and highest version the client speaks, bytes of the token that follows (UTF-8)."""

WELCOME: Final = struct.Struct("<8sHHIIII")
"""Magic, version chosen, 0, bytes of a frame, claims of a request, descriptors of a connection, contents of a put."""

CLAIM: Final = struct.Struct("<QQQII")
"""Of a request: resource claim, offset, length, CRC-32C, 0."""

FILE: Final = struct.Struct("<QQ")
"""Resource claim whose file the descriptor is, and its generation."""

PLACE: Final = struct.Struct("<HHIQQQIIQQ")
"""Status (0: found), bytes of the slug that follows, number of block checksums that follow, file, offset and length of
the base claim in it, its CRC-32C, 0, start of the content in the base claim, size of the content.
"""

PUT: Final = struct.Struct("<QIIHBB")
"""Time to live in milliseconds (0: for ever), number of contents, bytes of attributes (JSON), bytes of the idempotency
key, lifetime class, 0. Then attributes, key, a u32 of length for each content, the contents.
"""

READ: Final = struct.Struct("<16sQQ")
"""Uuid of a handle, where to start in its content, bytes wanted."""

TOTAL: Final = struct.Struct("<Q")
"""Size of the whole content. Then bytes of it."""

PROBLEM: Final = struct.Struct("<HHII")
"""Status, bytes of the slug, bytes of the text, seconds to wait before a retry (0: not said). Then slug and text."""

FRAME_BYTES_MAX: Final = 4 << 20
"""What either side must be ready to hold for one message: some thousand contents of a kilobyte."""

TOKEN_BYTES_MAX: Final = 16 << 10
"""Kubernetes' tokens have one to two thousand."""

RESOLVE_MAX: Final = 10_000
"""Handles or claims of one request."""

FILES_MAX: Final = 64
"""Descriptors beside one frame; the kernel allows 253."""

PIECE_BYTES_MAX: Final = 1 << 20
"""Of content in one CONTENT."""

BLOCK_BYTES: Final = 256 << 10
"""A base claim longer than this has a CRC-32C for each block of so many bytes, the last one shorter."""

UUID_BYTES: Final = 16


class FrameKind(enum.IntEnum):
    """What a frame is. Below 128 the client asks, from there on the server answers."""

    HELLO = 1
    """greeting"""

    RESOLVE_HANDLES = 2
    """up to 10,000 uuids, 16 bytes each"""

    RESOLVE_CLAIMS = 3
    """up to 10,000 claims, 32 bytes each"""

    GIVE_BACK = 4
    """up to 10,000 resource claims, u64 each: their descriptors are closed"""

    PUT = 5
    """contents to store in one transaction"""

    PUT_STREAM = 6
    """the head of a put of one content, without lengths; the content follows"""

    DATA = 7
    """a piece of that content"""

    END = 8
    """empty: the content is complete. Not empty: it is given up"""

    PROVE = 9
    """TLS records of a client that wants to know who answers, before it greets"""

    READ = 10
    """a piece of a handle's content, as bytes"""

    TABLE = 11
    """a ticket for a table, in JSON as over Flight"""

    WELCOME = 128
    """answer to HELLO"""

    FILES = 129
    """part of the answer to a resolve: files, with their descriptors"""

    RESOLVED = 130
    """the rest of it: places"""

    GIVEN_BACK = 131
    """empty"""

    STORED = 132
    """the uuids of what was put, 16 bytes each, in order"""

    PROOF = 133
    """TLS records in answer to PROVE"""

    CONTENT = 134
    """answer to READ: the size of the whole content, and the piece"""

    ROWS = 135
    """answer to TABLE: a piece of an Arrow IPC stream; empty: it has ended"""

    PROBLEM = 254
    """the request failed; the connection goes on"""

    REVOKED = 255
    """what is held is lost, for the reason in the body; the connection ends"""


class BadFrame(ValueError):
    """Bytes that are no frame of this protocol, or more than it allows: the connection cannot go on."""


class Header(NamedTuple):
    """The first eight bytes of a frame."""

    kind: FrameKind
    request: int
    body_bytes: int


class Hello(NamedTuple):
    """How a client introduces itself."""

    version_min: int
    version_max: int
    token: str | None


class Welcome(NamedTuple):
    """What the server settles on."""

    version: int
    frame_bytes_max: int
    resolve_max: int
    descriptors_max: int
    put_max: int


class ClaimKey(NamedTuple):
    """A base claim by its address."""

    resource: int
    offset: int
    length: int
    crc: int


class Place(NamedTuple):
    """Where one content is to be read, or, with a `slug`, why not.

    `offset`, `length`, `crc` are of the base claim in `file`; `start` and `size` of the content in the base claim.
    `blocks` are the packed block checksums, empty for a claim of one block, or where only `crc` is known.
    """

    status: int = 0
    slug: str = ""
    file: int = 0
    offset: int = 0
    length: int = 0
    crc: int = 0
    start: int = 0
    size: int = 0
    blocks: bytes = b""


class PutHead(NamedTuple):
    """What a put says before the bytes."""

    ttl_millis: int
    lifetime: int
    attributes: bytes
    """A JSON object for all contents, or as many as there are contents, each in a line of its own; may be empty."""

    key: str
    lengths: tuple[int, ...]


def pack_frame(kind: FrameKind, request: int, *parts: bytes | memoryview) -> bytes:
    """One frame, whole."""
    return b"".join((pack_header(kind, request, sum(map(len, parts))), *parts))


def pack_header(kind: FrameKind, request: int, body_bytes: int) -> bytes:
    """What a frame begins with."""
    assert body_bytes <= FRAME_BYTES_MAX, f"a {kind.name} of {body_bytes} bytes"
    return HEADER.pack(body_bytes, kind, 0, request)


def parse_header(data: bytes, body_bytes_max: int = FRAME_BYTES_MAX) -> Header:
    """BadFrame for an unknown kind or too long a body."""
    body_bytes, kind, zero, request = HEADER.unpack(data)
    if zero or body_bytes > body_bytes_max:
        raise BadFrame(f"a frame of {body_bytes} bytes, at most {body_bytes_max} are allowed here")
    try:
        return Header(FrameKind(kind), request, body_bytes)
    except ValueError as error:
        raise BadFrame(f"frames of kind {kind} are unknown") from error


def pack_hello(hello: Hello) -> bytes:
    """The body of a HELLO."""
    token = b"" if hello.token is None else hello.token.encode()
    return HELLO.pack(MAGIC, hello.version_min, hello.version_max, len(token)) + token


def parse_hello(body: bytes) -> Hello:
    """BadFrame unless this client speaks the protocol at all."""
    magic, lowest, highest, token_bytes = _unpack(HELLO, body)
    if magic != MAGIC or token_bytes > TOKEN_BYTES_MAX or len(body) != HELLO.size + token_bytes:
        raise BadFrame("this is no greeting of the protocol")
    return Hello(lowest, highest, _text(body[HELLO.size :]) or None)


def pack_welcome(welcome: Welcome) -> bytes:
    """The body of a WELCOME."""
    return WELCOME.pack(MAGIC, welcome.version, 0, *welcome[1:])


def parse_welcome(body: bytes) -> Welcome:
    """BadFrame unless a server of this protocol sent it."""
    magic, version, _, frame_bytes, resolve, descriptors, contents = _unpack(WELCOME, body)
    if magic != MAGIC:
        raise BadFrame("this is no greeting of the protocol")
    return Welcome(version, frame_bytes, resolve, descriptors, contents)


def parse_uuids(body: bytes) -> list[bytes]:
    """BadFrame unless these are whole uuids, and not too many."""
    if len(body) % UUID_BYTES or len(body) > RESOLVE_MAX * UUID_BYTES:
        raise BadFrame(f"{len(body)} bytes are not up to {RESOLVE_MAX} uuids")
    return [body[at : at + UUID_BYTES] for at in range(0, len(body), UUID_BYTES)]


def pack_claims(claims: Sequence[ClaimKey]) -> bytes:
    """The body of a RESOLVE_CLAIMS."""
    return b"".join(CLAIM.pack(*claim, 0) for claim in claims)


def parse_claims(body: bytes) -> list[ClaimKey]:
    """BadFrame unless these are whole claims, and not too many."""
    if len(body) % CLAIM.size or len(body) > RESOLVE_MAX * CLAIM.size:
        raise BadFrame(f"{len(body)} bytes are not up to {RESOLVE_MAX} claims")
    return [ClaimKey(*fields[:4]) for fields in CLAIM.iter_unpack(body)]


def pack_files(files: Sequence[tuple[int, int]]) -> bytes:
    """The body of a FILES, from resource claims and generations."""
    return b"".join(FILE.pack(*file) for file in files)


def parse_files(body: bytes) -> list[tuple[int, int]]:
    """Resource claims and generations, in the order of the descriptors."""
    if len(body) % FILE.size:
        raise BadFrame(f"{len(body)} bytes are no whole number of files")
    return [(resource, generation) for resource, generation in FILE.iter_unpack(body)]


def pack_numbers(numbers: Sequence[int]) -> bytes:
    """The body of a GIVE_BACK."""
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def parse_numbers(body: bytes) -> list[int]:
    """Resource claims that are given back."""
    if len(body) % 8 or len(body) > RESOLVE_MAX * 8:
        raise BadFrame(f"{len(body)} bytes are not up to {RESOLVE_MAX} numbers")
    return [number for (number,) in struct.iter_unpack("<Q", body)]


def pack_place(place: Place) -> bytes:
    """One place of a RESOLVED."""
    if not place.slug and not place.blocks:  # a small content, of which there are thousands in a frame
        return PLACE.pack(place.status, 0, 0, *place[2:6], 0, *place[6:8])
    slug = place.slug.encode()
    file_offset_length_crc, start_size = place[2:6], place[6:8]
    head = PLACE.pack(place.status, len(slug), len(place.blocks) // 4, *file_offset_length_crc, 0, *start_size)
    return b"".join((head, slug, place.blocks))


def parse_places(body: bytes) -> Iterator[Place]:
    """The places of a RESOLVED; BadFrame if the last one is cut off."""
    at = 0
    while at < len(body):
        if len(body) - at < PLACE.size:
            raise BadFrame(f"a place of {len(body) - at} bytes")
        status, slug_bytes, blocks, file, offset, length, crc, _, start, size = PLACE.unpack_from(body, at)
        middle = at + PLACE.size + slug_bytes
        end = middle + 4 * blocks
        if end > len(body):
            raise BadFrame("a place is cut off")
        yield Place(
            status, body[at + PLACE.size : middle].decode(), file, offset, length, crc, start, size, body[middle:end]
        )
        at = end


def pack_put(head: PutHead) -> bytes:
    """Everything but the contents."""
    key = head.key.encode()
    fixed = PUT.pack(head.ttl_millis, len(head.lengths), len(head.attributes), len(key), head.lifetime, 0)
    return b"".join((fixed, head.attributes, key, struct.pack(f"<{len(head.lengths)}I", *head.lengths)))


def parse_put(body: bytes, *, has_content: bool, count_max: int = RESOLVE_MAX) -> tuple[PutHead, int]:
    """The head, and where the contents begin. BadFrame if the parts do not make up the body, RequestTooLarge for more
    contents than `count_max`.
    """
    ttl_millis, count, attribute_bytes, key_bytes, lifetime, _ = _unpack(PUT, body)
    key_at = PUT.size + attribute_bytes
    lengths_at = key_at + key_bytes
    begin = lengths_at + 4 * count
    if begin > len(body):
        raise BadFrame("the head of a put is cut off")
    if count > count_max:
        raise RequestTooLarge(f"{count} contents, at most {count_max} are allowed in one put")
    lengths = struct.unpack_from(f"<{count}I", body, lengths_at)
    if begin + (sum(lengths) if has_content else 0) != len(body):
        raise BadFrame(f"a put of {len(body)} bytes whose parts have {begin + sum(lengths)}")
    head = PutHead(ttl_millis, lifetime, body[PUT.size : key_at], _text(body[key_at:lengths_at]), lengths)
    return head, begin


def parse_read(body: bytes) -> tuple[bytes, int, int]:
    """Uuid, start and bytes wanted."""
    if len(body) != READ.size:
        raise BadFrame(f"{len(body)} bytes where a READ has {READ.size}")
    uuid, start, size = READ.unpack(body)
    return uuid, start, size


def parse_content(body: bytes) -> tuple[int, bytes]:
    """The size of the whole content, and the piece."""
    (total,) = _unpack(TOTAL, body)
    return total, body[TOTAL.size :]


def pack_problem(error: Exception) -> bytes:
    """The body of a PROBLEM or REVOKED."""
    problem = problem_of(error)
    slug, detail = problem.slug.encode(), problem.detail.encode()
    seconds = int(problem.retry_after_seconds or 0)
    return PROBLEM.pack(problem.status, len(slug), len(detail), seconds) + slug + detail


def parse_problem(body: bytes) -> UllageError:
    """The error that it says; BadFrame unless its parts make up the body."""
    status, slug_bytes, detail_bytes, seconds = _unpack(PROBLEM, body)
    middle = PROBLEM.size + slug_bytes
    if middle + detail_bytes != len(body):
        raise BadFrame("a problem is cut off")
    slug, detail = _text(body[PROBLEM.size : middle]), _text(body[middle:])
    details = ProblemDetails(
        type="", title="", status=status, detail=detail, slug=slug, retry_after_seconds=seconds or None
    )
    return error_of(details)


def _unpack(layout: struct.Struct, body: bytes) -> tuple[Any, ...]:
    if len(body) < layout.size:
        raise BadFrame(f"{len(body)} bytes where at least {layout.size} belong")
    return layout.unpack_from(body)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadFrame("text that is not UTF-8") from error

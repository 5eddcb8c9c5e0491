"""What a guided fuzzer's inputs mean: whole files, or bodies that get valid checksums, which no change would find."""

from tests.fuzz.corpus import block_of, files_of, frame_of, header_of, with_block, with_frame, with_header
from tests.fuzz.test_parsers import PARSERS, parse

WHOLE, HEADER, BODY = range(3)
"""The first byte of an input: what the rest is."""

FRAMES = 4
"""Of a log, the second byte chooses one of its first frames."""


def seeds(kind: str) -> list[bytes]:
    """Real files and their parts, as inputs."""
    found = []
    for data in files_of(PARSERS[kind][0]):
        found.append(bytes((WHOLE,)) + data)
        if kind == "identity":
            continue
        found.append(bytes((HEADER,)) + header_of(data))
        if kind == "log":
            found += [bytes((BODY, choice)) + frame_of(data, choice) for choice in range(FRAMES)]
        else:
            found.append(bytes((BODY,)) + block_of(data))
    return found


def file_of(kind: str, template: bytes, given: bytes) -> bytes:
    """The file that an input stands for."""
    what, rest = given[:1], given[1:]
    if kind == "identity" or not what or what[0] % 3 == WHOLE:
        return rest
    if what[0] % 3 == HEADER:
        return with_header(template, rest)
    if kind == "log":
        return with_frame(template, rest[1:], rest[0] % FRAMES if rest else 0)
    return with_block(template, rest or b"\x90")


def run(kind: str, given: bytes) -> None:
    """Parse the file that an input stands for; only the engine's errors are caught."""
    parse(kind, file_of(kind, files_of(PARSERS[kind][0])[0], given))

"""The content of a damaged repository: a claim's bytes, wherever a file has them that its CRC-32C proves."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

from crc32c import crc32c

from ullage.engine.byteranges import find_move
from ullage.engine.content.containers import ARCHIVE
from ullage.engine.files import Files
from ullage.engine.model import ContentClaim, Relocation
from ullage.engine.provenance.eventfiles import SUFFIX
from ullage.engine.wal.failingdisk import FailingDisk
from ullage.errors import ContentCorrupt

PIECE_BYTES = 1 << 20
DEPTH_MAX = 8
"""Of directories below the root."""


class FoundFiles:
    """Content and event files by their names, which nothing else has, anywhere below a root: they need no identity.

    `content` are paths by resource claim; `unlisted` says of directories why they can't be read.
    """

    def __init__(self, files: Files, root: str) -> None:
        self.unlisted: dict[str, str] = {}
        self.content: dict[int, list[str]] = {}
        self.events: list[str] = []
        for path in self._walk(files, root, DEPTH_MAX):
            if path.endswith(SUFFIX):
                self.events.append(path)
            else:
                self.content.setdefault(int(path.rpartition("-")[2]), []).append(path)

    def _walk(self, files: Files, directory: str, depth: int) -> Iterator[str]:
        try:
            names = files.list_directory(directory)
        except (NotADirectoryError, FileNotFoundError):
            return
        except OSError as error:
            self.unlisted[directory] = str(error)
            return
        for name in names:
            path = os.path.join(directory, name)
            millis, _, index = name.partition("-")
            if name.endswith(SUFFIX) or (millis.isdecimal() and index.isdecimal()):
                yield path
            elif depth and (name == ARCHIVE or not name.endswith((".json", ".wal", ".swap"))):
                yield from self._walk(files, path, depth - 1)


class SalvagedContent:
    """The bytes of claims; `paths` are the content files that were found, by resource claim."""

    def __init__(self, disk: FailingDisk, paths: Mapping[int, Sequence[str]], moves: Mapping[int, Relocation]) -> None:
        self._disk = disk
        self._moves = moves
        self._paths = paths

    def path_of(self, claim: ContentClaim) -> str:
        """Where the bytes should be, for people; empty if there is no such file."""
        return next((path for path, _ in self._places(claim)), "")

    def find(self, claim: ContentClaim) -> tuple[str, int]:
        """The file and offset where the claim's bytes are proved; ContentCorrupt says why they are nowhere."""
        reasons = []
        for path, offset in self._places(claim):
            try:
                crc = length = 0
                for piece in self.pieces(path, offset, claim.length):
                    crc, length = crc32c(piece, crc), length + len(piece)
            except OSError as error:
                reasons.append(f"{path} can't be read: {error}")
                continue
            if (length, crc) == (claim.length, claim.crc):
                return path, offset
            what = "its CRC-32C is wrong" if length == claim.length else f"only {length} bytes are there"
            reasons.append(f"{path} at offset {offset}: {what}")
        raise ContentCorrupt("; ".join(reasons) or f"there is no file of resource claim {claim.resource}")

    def pieces(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        """Up to `length` bytes of a file."""
        with closing(self._disk.open(path)) as file:
            end = offset + length
            while offset < end and (piece := file.read(min(PIECE_BYTES, end - offset), offset)):
                yield piece
                offset += len(piece)

    def _places(self, claim: ContentClaim) -> Iterator[tuple[str, int]]:
        relocation = self._moves.get(claim.resource)
        move = None if relocation is None else find_move(relocation.moves, claim.offset)
        if relocation is not None and move is not None and claim.end <= move.end:
            for path in self._paths.get(relocation.output, ()):
                yield path, move.target + claim.offset - move.offset
        # Also where it was born: the record of a move may be lost, or the file of one that moved may still be there.
        for path in self._paths.get(claim.resource, ()):
            yield path, claim.offset

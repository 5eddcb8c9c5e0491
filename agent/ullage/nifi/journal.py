"""The journals of a FlowFile repository: what happened after the checkpoint, a transaction after the other.

The format of org.apache.nifi.wali.LengthDelimitedJournal. A transaction of more than 5 MB lies in a file of its own, an
overflow file, whose path the journal has. Paths are absolute: of a copy they are wrong, so only the name is used.
"""

import os
import re
import struct
from collections.abc import Iterator
from typing import Final

from ullage.nifi.checkpoint import read_end
from ullage.nifi.fields import OUT_OF_BYTES, text
from ullage.nifi.flowfiles import Attributes, FlowFileMap, FlowFileUpdate, RecordFormat, check_writer
from ullage.nifi.opened import open_regular
from ullage.nifi.pieces import LONGEST_BYTES, PIECE_BYTES, PieceReader
from ullage.nifi.trouble import Damages, NiFiDamage, NotSurveyable, TornFile, Unparsable

WRITER: Final = "org.apache.nifi.wali.LengthDelimitedJournal"
VERSION: Final = 1
TRANSACTION_FOLLOWS: Final = 64
JOURNAL_COMPLETE: Final = 127

PREAMBLE: Final = struct.Struct(">Bqi")

OVERFLOW: Final = re.compile(r"overflow-\d+/[0-9A-Za-z-]+")
"""Of an overflow file, beside the journals: a name that is damaged leads nowhere else."""


class Journal:
    """One journal file, held open so that it stays readable when NiFi has removed it. `read` goes on where it was."""

    def __init__(self, directory: str, name: str, *, attributes: Attributes) -> None:
        """FileNotFoundError if a checkpoint has made it superfluous just now."""
        self.name = name
        self.first = int(name.partition(".")[0])
        self.last = -1
        """The last transaction that was read; -1: none."""
        self.is_complete = False
        """NiFi has closed it, or what follows can't be read: nothing more comes from it."""
        self._damages = Damages()
        self._directory = directory
        self._attributes = attributes
        self._format: RecordFormat | None = None
        self._descriptor = open_regular(os.path.join(directory, name))
        self._pieces = PieceReader(self._descriptor, 0)

    @property
    def damages(self) -> list[NiFiDamage]:
        """What could not be read of it."""
        return self._damages.all()

    @property
    def position(self) -> int:
        return self._pieces.position

    @property
    def is_torn(self) -> bool:
        """It ends, as far as it was read, amid a transaction."""
        return not self.is_complete and not self._pieces.is_at_end

    def close(self) -> None:
        os.close(self._descriptor)

    def reach(self) -> None:
        """Read, from now on, to where the file ends now."""
        self._pieces.reach(os.fstat(self._descriptor).st_size)

    def read(self, into: FlowFileMap) -> None:
        """Apply all whole transactions up to where it may be read. A transaction that is not whole did not happen."""
        while not self.is_complete and not self._pieces.is_at_end:
            try:
                if self._format is None:
                    self._format = self._pieces.take(self._header)
                    into.formats.append(self._format)
                    continue
                body = self._pieces.take(self._transaction)
                if body is None:
                    self.is_complete = True
                else:
                    self._apply(self._format, *body, into)
            except TornFile:  # it is being written, or was when NiFi died: NiFi leaves such a transaction out, too
                return
            except Unparsable as error:
                self.is_complete = True
                if not self._is_zero():
                    self._damaged(self.name, read_end(error))

    def _header(self, data: bytes, at: int) -> tuple[RecordFormat, int]:
        writer, at = text(data, at)
        if writer != WRITER:
            raise Unparsable(f"the name {writer[:80]!r} where a journal names its writer")
        (version,) = struct.unpack_from(">i", data, at)
        if version != VERSION:
            raise NotSurveyable(f"the journal {self.name} is of version {version}: read is version {VERSION}")
        serde, at = text(data, at + 4)
        serde_version, length = struct.unpack_from(">ii", data, at)
        check_writer(serde, serde_version)
        form, end = RecordFormat.from_header(serde, serde_version, data, at + 8, attributes=self._attributes)
        if end != at + 8 + length:
            raise Unparsable("a schema of another length than it states")
        return form, end

    def _transaction(self, data: bytes, at: int) -> tuple[tuple[int, bytes] | None, int]:
        if data[at] == JOURNAL_COMPLETE:
            return None, at + 1
        mark, number, length = PREAMBLE.unpack_from(data, at)
        if mark != TRANSACTION_FOLLOWS:
            raise Unparsable(f"the byte {mark} at {self._pieces.position:,}, where a transaction begins or the end is")
        if not 0 <= length <= LONGEST_BYTES:
            raise Unparsable(f"a transaction at byte {self._pieces.position:,} of {length:,} bytes")
        at += PREAMBLE.size
        if at + length > len(data):
            raise IndexError
        return (number, data[at : at + length]), at + length

    def _apply(self, form: RecordFormat, number: int, body: bytes, into: FlowFileMap) -> None:
        updates: list[FlowFileUpdate] = []
        overflow: str | None = None
        at = 0
        self.last = max(self.last, number)
        try:
            while at < len(body):
                update, at = form.update(body, at)
                if isinstance(update, str):
                    overflow = update
                else:
                    updates.append(update)
        except OUT_OF_BYTES as error:
            # Where it ends is stated, so what follows it is still read; NiFi itself would not start with this journal.
            self._damaged(self.name, f"transaction {number:,} ends amid a record ({type(error).__name__})")
            return
        except Unparsable as error:
            self._damaged(self.name, f"transaction {number:,} has {error}")
            return
        into.apply(updates)
        if overflow is not None:
            into.apply(self._overflowed(form, overflow))

    def _overflowed(self, form: RecordFormat, path: str) -> Iterator[FlowFileUpdate]:
        folder, name = ["", "", *path.replace("\\", "/").split("/")][-2:]
        shown = f"{folder}/{name}"
        if not OVERFLOW.fullmatch(shown):
            self._damaged(self.name, f"a transaction names {path[:200]!r} as its overflow file")
            return
        try:
            descriptor = open_regular(os.path.join(self._directory, folder, name))
        except OSError as error:
            # NiFi takes this for the end of the journal, starts, and removes the content of the FlowFiles it lost.
            self._damaged(shown, f"it holds a whole transaction of {self.name} and can't be opened: {error.strerror}")
            return
        try:
            pieces = PieceReader(descriptor, os.fstat(descriptor).st_size)
            while not pieces.is_at_end:
                yield pieces.take(form.inline)
        except (TornFile, Unparsable) as error:
            self._damaged(shown, read_end(error))
        finally:
            os.close(descriptor)

    def _is_zero(self) -> bool:
        """Whether all that follows is zero, as after a power failure: NiFi takes that for the end, too."""
        position, size = self._pieces.position, os.fstat(self._descriptor).st_size
        while position < size:
            piece = os.pread(self._descriptor, PIECE_BYTES, position)
            if piece.strip(b"\0"):
                return False
            position += len(piece) or size
        return True

    def _damaged(self, file: str, what: str) -> None:
        self._damages.add(NiFiDamage(file, what, loses_flowfiles=True))

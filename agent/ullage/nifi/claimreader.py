"""Reads contents where they lie in NiFi's files."""

import os
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from ullage.nifi.importplan import ContentPlaces
from ullage.nifi.opened import open_regular
from ullage.nifi.trouble import NiFiContentLost

OPEN_MAX: Final = 64
PIECE_BYTES: Final = 1 << 20


class ClaimReader:
    """Keeps the files open that were read last. Close it. What is short is an error, never fewer bytes."""

    def __init__(self, places: ContentPlaces) -> None:
        self._places = places
        self._open: OrderedDict[str, int] = OrderedDict()

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def read(self, file: str, start: int, size: int) -> bytes:
        """These bytes of a resource claim. NiFiContentLost."""
        try:
            data = os.pread(self._descriptor(file), size, start)
        except OSError as error:
            raise NiFiContentLost(f"{file} can't be read: {error.strerror}") from error
        if len(data) == size:
            return data
        return b"".join((data, *self.pieces(file, start + len(data), size - len(data))))

    def pieces(self, file: str, start: int, size: int) -> Iterator[bytes]:
        """The same a piece at a time."""
        while size:
            try:
                data = os.pread(self._descriptor(file), min(size, PIECE_BYTES), start)
            except OSError as error:
                raise NiFiContentLost(f"{file} can't be read: {error.strerror}") from error
            if not data:
                raise NiFiContentLost(f"{file} ends {size:,} bytes too early")
            yield data
            start += len(data)
            size -= len(data)

    def _descriptor(self, file: str) -> int:
        descriptor = self._open.get(file)
        if descriptor is None:
            if len(self._open) >= OPEN_MAX:
                os.close(self._open.popitem(last=False)[1])
            descriptor = self._open[file] = open_regular(self._places.find(file)[0], self._places.root_of(file))
        else:
            self._open.move_to_end(file)
        return descriptor

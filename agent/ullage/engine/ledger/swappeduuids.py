"""Which swap files a FlowFile cannot be in: four bytes of each uuid in files that were read for a uuid before.

Only who looks for a FlowFile by its uuid pays for it, once a file: the next one reads the file that has it, and no
other. Nothing depends on it, and a start begins without.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from ullage.engine.model import FlowFileRecord

MARKS_MAX: Final = 4 << 20
"""FlowFiles that are marked, in 16 MiB. Files beyond are read each time."""

MARK: Final = slice(-4, None)
"""Of a uuid: its end is random, as `new_uuids` makes it."""


class SwappedUuids:
    """Marks by the name of a swap file, which holds the same FlowFiles as long as it is there. Thread-safe."""

    def __init__(self) -> None:
        self._marks: dict[str, array[int]] = {}

    def keep(self, name: str, records: Iterable[FlowFileRecord]) -> None:
        """If there is room."""
        if name not in self._marks:
            marks = array("I", sorted(int.from_bytes(record.uuid[MARK], "big") for record in records))
            if len(marks) + sum(map(len, list(self._marks.values()))) <= MARKS_MAX:
                self._marks[name] = marks

    def may_hold(self, name: str, uuids: Iterable[bytes]) -> bool:
        """Whether one of these may be in the file: always of one that has no marks."""
        marks = self._marks.get(name)
        return marks is None or any(_is_in(marks, int.from_bytes(uuid[MARK], "big")) for uuid in uuids)

    def forget(self, name: str) -> None:
        """The file is gone."""
        self._marks.pop(name, None)


def _is_in(marks: "array[int]", mark: int) -> bool:
    at = bisect_left(marks, mark)
    return at < len(marks) and marks[at] == mark

"""The frames of the Unix socket are those of docs/protocol.md."""

import re
import struct
from pathlib import Path

import pytest

from ullage.wire import frames

DOC = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
TYPES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "8 bytes": "8s"}
LAYOUTS = {
    "| at | type | what |\n|---|---|---|\n| 0 | u32 | bytes of the body": frames.HEADER,
    "| HELLO at |": frames.HELLO,
    "| WELCOME at |": frames.WELCOME,
    "| place at |": frames.PLACE,
    "| PUT, PUT_STREAM at |": frames.PUT,
    "| at | type | what |\n|---|---|---|\n| 0 | u16 | status": frames.PROBLEM,
}


@pytest.mark.parametrize("head", LAYOUTS)
def test_the_page_has_each_number_where_it_is(head: str) -> None:
    """Offsets and types of a table are those of the struct, and what follows the numbers begins where it ends."""
    table = DOC[DOC.index(head) :].partition("\n\n")[0]
    rows = re.findall(r"^\| (\d*) \| ([^|]*?) ?\|", table, flags=re.MULTILINE)
    fixed = [(int(at), kind) for at, kind in rows if kind in TYPES]
    layout = "<" + "".join(TYPES[kind] for _, kind in fixed)

    assert LAYOUTS[head].format == layout
    assert [at for at, _ in fixed] == [
        struct.calcsize(layout[:1] + "".join(TYPES[kind] for _, kind in fixed[:number])) for number in range(len(fixed))
    ]
    assert next((int(at) for at, kind in rows if at and kind not in TYPES), LAYOUTS[head].size) == LAYOUTS[head].size

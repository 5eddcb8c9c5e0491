"""Values that somebody passes by mistake or by malice, whatever the field is for."""

import enum
from typing import Any


class Word(str):
    """A text that is more than one."""

    __slots__ = ()


class Figure(int):
    """A number that is more than one."""


class Choice(enum.StrEnum):
    """What programs name their queues by."""

    ONE = "one"


NUMBERS: tuple[Any, ...] = (
    -1, 0, 1, True, False, 255, 10_001, 2**31, 2**32 - 1, 2**53 + 1, 2**62, 2**62 + 1, 2**63 - 1, 2**63, 2**64 - 1,
    2**64, -(2**62), -(2**63), -(2**63) - 1, 10**30,
    0.0, 1.5, 2.0, -0.0, 1e300, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
TEXTS: tuple[Any, ...] = (
    "", " ", "a\0b", "\ud800", "a\udcffb", "\n", "ä€😀", "..", "a/b", "a=b", "%00", "\ufeff", "x" * 255, "x" * 256,
    "x" * 65_536, "€" * 65_536, "uuid", "None", "1e999", "99999999999h", "00000000-0000-0000-0000-000000000000",
)  # fmt: skip
PLAIN: tuple[Any, ...] = (
    None, [], {}, [None], [1], ["a"], [["a"]], {"a": None}, {"a": 5}, {"a": "b"}, {"": ""}, {"uuid": "a"}, [{}],
    [{"a": 5}],
    {"a": "\ud800"}, {"x" * 70_000: "y"}, {"a": "b" * 70_000}, {str(name): "v" for name in range(300)},
)  # fmt: skip
"""What JSON can say too."""

SIMPLE: tuple[Any, ...] = (*NUMBERS, *TEXTS, *PLAIN)
OBJECTS: tuple[Any, ...] = (
    b"", b"bytes", bytearray(b"a"), (), ("a", 1), {1, 2}, object(), {1: "a"}, {b"a": "b"}, 1j, Word("word"), Figure(7),
    Choice.ONE, {Word("a"): Word("b")}, {"a": float("nan")}, int, [b"a"], {"a": "b" * (5 << 20)}, range(3),
)  # fmt: skip
WILD: tuple[Any, ...] = (*SIMPLE, *OBJECTS)

"""Quantities and durations in Kubernetes notation: ints that know how people write them.

Kubernetes keeps a quantity as it was written; here it is a plain number, so that the engine can calculate
with it, and `str()` gives one canonical text back. Both types refuse what they cannot hold exactly: a size
that is no whole number of bytes, a duration that is no whole number of milliseconds. Arithmetic on either
gives a plain int.
"""

import re
from fractions import Fraction
from typing import ClassVar, Final, Self

INT64_MAX: Final = 2**63 - 1  # Kubernetes quantities and Go durations both end here
DIGITS_MAX: Final = 40  # more are garbage, and would make the exact arithmetic below slow
BINARY_SUFFIXES: Final = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
DECIMAL_SUFFIXES: Final = ("k", "M", "G", "T", "P", "E")

NUMBER: Final = rf"(?:[0-9]{{1,{DIGITS_MAX}}}(?:\.[0-9]{{0,{DIGITS_MAX}}})?|\.[0-9]{{1,{DIGITS_MAX}}})"
QUANTITY: Final = re.compile(rf"(?P<number>[+-]?{NUMBER})(?P<suffix>[KMGTPE]i|[munkMGTPE]|[eE][+-]?[0-9]{{1,2}})?")
DURATION_TERM: Final = re.compile(rf"({NUMBER})(ns|us|µs|μs|ms|s|m|h)")  # Go accepts both signs for micro
DURATION: Final = re.compile(rf"(?:{DURATION_TERM.pattern})+")

QUANTITY_SCALES: Final[dict[str, Fraction]] = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{suffix: Fraction(1000**power) for power, suffix in enumerate(DECIMAL_SUFFIXES, start=1)},
    **{suffix: Fraction(1024**power) for power, suffix in enumerate(BINARY_SUFFIXES, start=1)},
}
DURATION_SCALES_MS: Final[dict[str, Fraction]] = {
    "ns": Fraction(1, 10**6),
    "us": Fraction(1, 1000),
    "µs": Fraction(1, 1000),
    "μs": Fraction(1, 1000),
    "ms": Fraction(1),
    "s": Fraction(1000),
    "m": Fraction(60_000),
    "h": Fraction(3_600_000),
}


class Quantity(int):
    """A number of bytes. `Quantity.parse("50Ki") == 51200` and `str(Quantity(51200)) == "50Ki"`."""

    MAX: ClassVar[int] = INT64_MAX

    def __new__(cls, value: int = 0) -> Self:
        """Refuse what no file can have: a negative size, or one above 2^63 - 1."""
        if not 0 <= value <= cls.MAX:
            raise ValueError(f"{int(value)} is not a size: it must be between 0 and {cls.MAX} bytes")
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a Kubernetes quantity: `50Ki`, `1Gi`, `64M`, `1.5Gi`, `1e6`, `4096`."""
        size = _number_of(text)
        if size < 0:
            raise ValueError(f"{text!r} is negative: a size is 0 or more")
        if size.denominator != 1:
            raise ValueError(f"{text!r} is not a whole number of bytes")
        if size > cls.MAX:
            raise ValueError(f"{text!r} is above the largest size, {cls.MAX} bytes")
        return cls(int(size))

    @classmethod
    def whole_of(cls, text: str) -> Self:
        """The whole bytes of what others wrote: an API server keeps parts of one, such as `1181116006400m`."""
        return cls(min(int(_number_of(text)), cls.MAX))

    def __str__(self) -> str:
        """Return the shortest exact notation; the binary one where both are as short."""
        best = str(int(self))
        for base, suffixes in ((1024, BINARY_SUFFIXES), (1000, DECIMAL_SUFFIXES)):
            number, power = int(self), 0
            while number and number % base == 0 and power < len(suffixes):
                number, power = number // base, power + 1
            if power:
                best = min(best, f"{number}{suffixes[power - 1]}", key=len)
        return best

    def __repr__(self) -> str:
        return f"Quantity({int(self)})"


def _number_of(text: str) -> Fraction:
    match = QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity: write bytes, or a number with a suffix such as 50Ki, 64M or 1Gi")
    suffix = match["suffix"] or ""
    scale = QUANTITY_SCALES[suffix] if suffix in QUANTITY_SCALES else Fraction(10) ** int(suffix[1:])
    return Fraction(match["number"]) * scale


class Duration(int):
    """A number of milliseconds. `Duration.parse("1h30m") == 5_400_000` and `str(Duration(5_400_000)) ==
    "1h30m"`.
    """

    MAX: ClassVar[int] = INT64_MAX // 10**6  # what Go's nanoseconds can hold

    def __new__(cls, value: int = 0) -> Self:
        """Refuse what no timer can have: a negative time, or one above 292 years."""
        if not 0 <= value <= cls.MAX:
            raise ValueError(f"{int(value)} is not a duration: it must be between 0 and {cls.MAX} milliseconds")
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a Kubernetes (Go) duration: `5ms`, `2m`, `1h30m`, `1.5s`, `0s`, `0`."""
        if text == "0":
            return cls(0)
        if text.startswith("-"):
            raise ValueError(f"{text!r} is negative: a duration is 0s or more")
        if DURATION.fullmatch(text) is None:
            raise ValueError(f"{text!r} is not a duration: write numbers with units, such as 5ms, 2m or 1h30m")
        total = sum(
            (Fraction(number) * DURATION_SCALES_MS[unit] for number, unit in DURATION_TERM.findall(text)),
            Fraction(0),
        )
        if total.denominator != 1:
            raise ValueError(f"{text!r} is not a whole number of milliseconds")
        if total > cls.MAX:
            raise ValueError(f"{text!r} is above the longest duration, {cls.MAX} milliseconds")
        return cls(int(total))

    @property
    def seconds(self) -> float:
        """The same time in seconds, as clocks and conditions want it."""
        return int(self) / 1000

    def __str__(self) -> str:
        """Return whole hours, minutes, seconds and milliseconds, without those that are 0."""
        rest, terms = int(self), []
        for unit, scale_ms in (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
            number, rest = divmod(rest, scale_ms)
            if number:
                terms.append(f"{number}{unit}")
        return "".join(terms) or "0s"

    def __repr__(self) -> str:
        return f"Duration({int(self)})"

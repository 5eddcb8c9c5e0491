"""Times as Kubernetes writes them, and sizes as people read them."""

from datetime import UTC, datetime
from typing import Final

STEPS: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
DIGITS: Final = 3


def text_of(millis: int) -> str:
    """RFC 3339 in UTC, whole seconds: `2026-03-01T01:00:00Z`."""
    return datetime.fromtimestamp(millis // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def millis_of(text: str) -> int:
    """Milliseconds since 1970."""
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def rounded(size: int) -> str:
    """A size to three digits, so that a status does not change with every byte: `1.23Gi`."""
    number, step = float(size), 0
    while number >= 1000 and step < len(STEPS) - 1:
        number, step = number / 1024, step + 1
    if step == 0:
        return str(size)
    return f"{number:.{DIGITS}g}{STEPS[step]}"

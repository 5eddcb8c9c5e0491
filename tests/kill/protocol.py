"""What a worker tells its parent, one JSON line each, and the settings under which both open the repository.

opening | ready | intend <op> ... | done <op> ... or refused <op> | ... | trouble <text>

`intend` is written before the call that commits, `done` after it returned. A line that the kill tore counts for
nothing: a torn `intend` means that nothing was begun, a torn `done` that nothing was promised.
"""

import hashlib
import os
import sys
from pathlib import Path

import msgspec

from tests.support import spec_at
from ullage.contract import ContentRepositorySpec, Duration, Quantity, TruncationMode

HANDLE = "(handle)"
DELETED = "(deleted handle)"
MORTAL = "(handle that expires)"
"""Whether its time is over when somebody looks, nobody knows beforehand."""
LANE = "lane"
"""Queues `lane<n>` belong to thread n alone, which fills and drops them. They are first in, first out, by `number`."""

QUEUES = ("a", "b", "c")
DELETED_RETENTION_MILLIS = 150


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """What becomes of one FlowFile or handle; an empty field stays as it was."""

    place: str = ""
    sha: str = ""
    mark: str = ""


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line. `changes` maps ids to what they become, None: they cease to exist."""

    kind: str
    op: str = ""
    changes: dict[str, Change | None] = {}
    puts: list[str] = []
    """SHA-256 of handles whose ids are known only when they are stored."""
    drops: str = ""
    """The queue that is dropped, FlowFile by FlowFile."""
    text: str = ""


class Task(msgspec.Struct, frozen=True):
    """A worker's argument."""

    path: str
    seed: int
    threads: int = 4


def tell(line: Line) -> None:
    """Unbuffered and whole."""
    data = msgspec.json.encode(line) + b"\n"
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


def sha_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def spec_for(path: Path | str) -> ContentRepositorySpec:
    """Settings that make everything happen within a second."""
    return spec_at(
        path,
        claims={"max_appendable_size": Quantity(64 << 10), "max_flow_files": 10, "large_claim": Quantity(200_000)},
        archive={"enabled": True, "max_retention_period": Duration(200), "backpressure_percentage": 100},
        flow_file={"partitions": 2, "swap_threshold": 40, "swap_batch": 20},
        truncation={"mode": TruncationMode.EAGER},
        compaction={"deleted_retention": Duration(DELETED_RETENTION_MILLIS)},
    )

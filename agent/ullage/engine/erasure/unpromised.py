"""Where more of a subject may be, that no look into a repository's own records finds: in words, for people."""

import os
from typing import Final

from ullage.contract import ReplicationMode
from ullage.engine.engine import Engine
from ullage.engine.shipping.lastlook import KNOWN

COPIES: Final = (
    "The log, the last checkpoint, and runs and swap files that are no longer in use may hold further copies of the "
    "attributes that were counted, until checkpoints and merges have replaced them."
)
"""True until an erasure has rid the repository of them."""

FREED: Final = (
    "Contents and attributes that were removed earlier may still lie in free blocks of the disk. An SSD, or a "
    "filesystem that copies on write, may keep them in places that no program can reach."
)
"""What an erasure that overwrites says in other words."""

_ALWAYS = (
    "Backups and other copies of this repository were not looked at: nobody but you knows where they are.",
    FREED,
    COPIES,
    (
        "Of provenance events only attributes and content were looked at, not their details, their transit URIs, or "
        "the index, which is made of the events. Attributes that an event left out, because they were too large for "
        "it, can't be found."
    ),
    "The audit log, application logs, and the bytes of contents were not searched for the value.",
)
"""What is true of every repository."""


def not_promised(engine: Engine) -> tuple[str, ...]:
    """Sentences: those that are always true, and those that are true of this repository."""
    found = list(_ALWAYS)
    # Whoever works on the files with no more than a root has no document that says so.
    has_shipped = engine.files.exists(os.path.join(engine.root, KNOWN))
    if has_shipped or engine.spec.replication.mode != ReplicationMode.NONE:
        found.append("This repository is or was shipped to a bucket, which was not looked at and keeps what it has.")
    leases = len(engine.ledger.leases)
    if leases:
        found.append(
            f"Leases that are open or were not ended: {leases}. Whoever has one may still read, or have copied, what "
            "it covers."
        )
    aside = engine.set_aside.count
    if aside:
        found.append(
            f"Records that can't be used: {aside}. One in which an attribute's name and its value do not stand beside "
            "each other as they are packed is not known for the subject's: look at them (`ullage ls --set-aside`)."
        )
    return tuple(found)

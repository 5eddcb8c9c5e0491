"""What looking after a repository tells."""

from typing import Annotated

import msgspec
from msgspec import Meta

from ullage.wire.unavailable import UnavailableContent


class BackupRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a backup goes."""

    destination: Annotated[str, Meta(min_length=1, max_length=4_096)]
    """The path of a directory on the node, from its root on. It lies in the folder spec.service.backupDirectory."""


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a check found."""

    problems: tuple[str, ...]
    """Contradictions, each naming the claim, file and offset; none: all is well."""

    orphans: tuple[str, ...]
    """Content files that nothing refers to, kept until somebody cleans them up."""

    set_aside: tuple[str, ...] = ()
    """Records that can't be used, each with its id, its place and the reason. They are no problem: all else serves."""

    clock: str = ""
    """Why the machine's clock is not believed; empty where it is. It is no problem of what is stored."""

    flow_files: int
    """How many there are, handles included."""

    resource_claims: int

    bytes_verified: int
    """Bytes of content that were read; 0 unless it was deep."""


class BackupReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup or a restoration did."""

    last_id: int
    """The last transaction that is in it."""

    copied_files: int

    copied_bytes: int

    kept_files: int
    """Files that were there already: of the last backup, or of one, or a restoration, that was cut short."""

    kept_bytes: int

    lost: tuple[UnavailableContent, ...] = ()
    """FlowFiles and handles, up to 10,000, that are in it without their content, which could not be read; and swap
    files that could not be, each with all of its FlowFiles.
    """

    saved: tuple[UnavailableContent, ...] = ()
    """The same of what is in it because the last backup had it. What that has whole is read again only if it is gone or
    cut, or if a read has met damage in it.
    """

    damaged_files: int = 0
    """Content files, and swap files, that could not be read whole."""


class CheckpointReport(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that was written."""

    last_transaction: int
    """Up to this one all are in it."""

    snapshot_bytes: int


class InitReport(msgspec.Struct, frozen=True, kw_only=True):
    """A repository that was made."""

    repository: str
    """Its uuid."""

    containers: dict[str, str]
    """The path of each container below the root, by name."""


class Mended(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a repair mends, or would mend."""

    mend: str
    """Adopt, reseal, forget or remove, in small letters."""

    path: str
    """Of the file."""

    resource: int
    """Its resource claim; 0: none."""

    length: int
    """Bytes of the file, where that is the point; else 0."""


class RepairReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a repair mended, and what it found."""

    mended: list[Mended]

    check: CheckReport
    """What was found behind it, or in a dry run: what is there."""


class RestorationReport(msgspec.Struct, frozen=True, kw_only=True):
    """A repository that was made of a backup."""

    backup: BackupReport
    """What was copied."""

    check: CheckReport
    """What was found in it, deeply."""


class RecoveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a start had to do, because the last end was unclean."""

    transactions: int
    """How many were replayed from the log."""

    torn_bytes: int
    """What was cut off the ends of logs: frames that were never acknowledged."""

    discarded: int
    """Transactions whose frame is whole, and that were never acknowledged."""

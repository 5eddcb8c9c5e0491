"""What looking after a repository tells."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ullage.wire.erasure import RestoredErasure
from ullage.wire.unavailable import UnavailableContent

KEPT_MAX = 10_000


class Keep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which generations of a backup are kept: the newest always, and those that any of these means. A day, like the
    other periods, is one of UTC, and is kept by its newest generation; periods without a backup do not count.

    >>> repository.backup("copy", keep=ullage.Keep(daily=7, weekly=4, monthly=12)).generations
    1
    """

    last: Annotated[int, Meta(ge=0, le=KEPT_MAX)] = 0
    """So many of the newest."""

    hourly: Annotated[int, Meta(ge=0, le=KEPT_MAX)] = 0
    """One of each of so many hours."""

    daily: Annotated[int, Meta(ge=0, le=KEPT_MAX)] = 0
    """One of each of so many days."""

    weekly: Annotated[int, Meta(ge=0, le=KEPT_MAX)] = 0
    """One of each of so many weeks, which begin on Mondays."""

    monthly: Annotated[int, Meta(ge=0, le=KEPT_MAX)] = 0
    """One of each of so many months."""

    yearly: Annotated[int, Meta(ge=0, le=KEPT_MAX)] = 0
    """One of each of so many years."""


class BackupGeneration(msgspec.Struct, frozen=True, kw_only=True):
    """One moment that a backup can be restored to."""

    sequence: int
    """Its number."""

    created_millis: int

    last_id: int
    """The last transaction that is in it."""

    files: int

    bytes: int
    """Of all its files; most of them it has in common with others."""


class BackupDamage(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a backup that is not as it was written."""

    path: str
    """Where it lies in the backup."""

    generations: tuple[int, ...]
    """The numbers of those that need it."""

    reason: str


class BackupVerification(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in a backup."""

    generations: int
    """How many it has whose manifests could be read."""

    files: int
    """All that they need, each of which was looked for."""

    bytes: int

    read_files: int
    """Those that were read and compared."""

    read_bytes: int

    seed: int
    """What draws the same files once more."""

    damaged_files: int

    damaged: tuple[BackupDamage, ...]
    """Up to 10,000 of them, by path."""


BackupPath = Annotated[str, Meta(min_length=1, max_length=4_096)]


class BackupRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a backup goes."""

    destination: BackupPath
    """The path of a directory on the node, from its root on, in the folder spec.service.backupDirectory; or
    s3://BUCKET/PREFIX, in one of spec.service.backupBuckets.
    """

    keep: Keep | None = None
    """Which generations stay; as it was said before without it."""


class VerificationRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What of a backup is to be read and compared."""

    source: BackupPath
    """Where it lies, as `destination` says it of a backup."""

    generation: int | None = None
    """The number of one; None: all."""

    sample: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """The share of the contents and of the event files that is read, at least one of each. Records of FlowFiles and
    handles are always read, and all files are looked for."""

    seed: int | None = None
    """What draws them; None: others each time."""


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

    generation: int = 0
    """The number of the generation that was written or restored."""

    generations: int = 1
    """How many there were when that was written, it included."""

    saved: tuple[UnavailableContent, ...] = ()
    """The same of what is in it because the last backup had it. What that has whole is read again only if it is gone or
    cut, or if a read has met damage in it.
    """

    damaged_files: int = 0
    """Content files, and swap files, that could not be read whole."""


class BackupProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A backup, or a verification of one: how far it is, or how it ended."""

    id: str
    """Its uuid."""

    action: Literal["write", "verify"]

    owner: str
    """The principal that asked for it."""

    place: str
    """Where the backup lies."""

    began_millis: int

    ended_millis: int | None = None
    """None as long as it goes on."""

    files_done: int = 0
    """Of those that are copied, or read."""

    files: int = 0
    """All of these; 0 before it is known."""

    bytes_done: int = 0

    bytes: int = 0

    report: BackupReport | None = None
    """Of a backup; None before its end, if it failed, and in a list."""

    found: BackupVerification | None = None
    """The same of a verification."""

    problem: str | None = None
    """Why it failed; None if it did not."""

    slug: str | None = None
    """The slug of the problem."""


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


class SharePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A point that a share can be restored to."""

    number: int
    """Of the log object with which it ends; `ullage restore --generation` takes it."""

    last_id: int
    """The last transaction that is in it."""

    millis: int
    """When that was committed."""


class RestorationReport(msgspec.Struct, frozen=True, kw_only=True):
    """A repository that was made of a backup."""

    backup: BackupReport
    """What was copied."""

    check: CheckReport
    """What was found in it, deeply."""

    erased: tuple[RestoredErasure, ...] = ()
    """Who of those that a register names was in the backup, and is no more. Where one is not finished, the repository
    does not open: the next restoration goes on.
    """


class RejoinReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a node acknowledged that was followed by another, and that other does not have."""

    owner: str
    """Who writes the share now."""

    queues: dict[str, int]
    """FlowFiles that were made there alone, by the queue in which they stand."""

    handles: int
    """Handles that were made there alone."""

    bytes: int
    """Of their content."""

    changed: int
    """FlowFiles and handles that both have, and that were changed there: they stay as the other has them."""

    removed: int
    """Those that were removed there, and that the other got: they stay there, for what was taken may be taken again."""

    brought: dict[str, str]
    """By the id that each had, which it has now; empty where nothing was to be brought."""

    lost: tuple[str, ...] = ()
    """Ids of those whose content can't be read, and why."""


class AdoptionReport(msgspec.Struct, frozen=True, kw_only=True):
    """A repository that goes on elsewhere, from a share."""

    backup: BackupReport
    """What was copied."""

    check: CheckReport | None = None
    """What was found in it, deeply, if that was asked for."""

    epoch: int
    """Of the share from now on: whoever wrote it in a lower one is fenced."""

    owner: str
    """The node that wrote it before; who began, where an adoption that was cut short went on."""


class PartialRestoration(msgspec.Struct, frozen=True, kw_only=True):
    """A repository that was made of some of a backup."""

    generation: int
    """The number of the backup's generation that it is of."""

    queues: dict[str, int]
    """How many FlowFiles are in it, by queue."""

    handles: int
    """How many handles are."""

    bytes: int
    """The sum of their sizes."""

    lost: tuple[UnavailableContent, ...]
    """What of that, up to 10,000, the backup has without its content. It is not in the repository."""

    lost_count: int
    """How many those are in all."""

    check: CheckReport
    """What was found in the repository, deeply."""

    erased: int = 0
    """How many FlowFiles and handles were left out, because a register of erasures names whom they are of."""


class RecoveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a start had to do, because the last end was unclean."""

    transactions: int
    """How many were replayed from the log."""

    torn_bytes: int
    """What was cut off the ends of logs: frames that were never acknowledged."""

    discarded: int
    """Transactions whose frame is whole, and that were never acknowledged."""

"""What a node does with backups over HTTP; a part of the table of operations."""

from typing import Final

from ullage import errors
from ullage.wire.operation import ADMINISTERING, Operation, reading
from ullage.wire.upkeep import BackupGeneration, BackupProgress, BackupRequest, VerificationRequest

BACKUP_PLACE: Final = (
    errors.NotABackup,
    errors.RepositoryDamaged,
    errors.FormatTooNew,
    errors.BucketRefused,
    errors.BucketUnavailable,
)
"""What may come of looking at where a backup lies."""

BACK_UP: Final = Operation(
    "backUpRepository",
    "POST /v1/backup -> 202",
    BackupProgress,
    ADMINISTERING,
    (errors.RunUnderWay,),
    body=BackupRequest,
)
"""Begin to bring a backup up to date, while sessions go on. The answer comes at once, and the backup goes on."""

VERIFY_BACKUP: Final = Operation(
    "verifyBackup",
    "POST /v1/backup/verify -> 202",
    BackupProgress,
    ADMINISTERING,
    (errors.RunUnderWay,),
    body=VerificationRequest,
)
"""Begin to look for what a backup needs, and to read and compare it. The answer comes at once."""

LIST_GENERATIONS: Final = reading(
    "listBackupGenerations", "/v1/backup/generations", list[BackupGeneration], ADMINISTERING, *BACKUP_PLACE
)
"""List the moments that a backup can be restored to, oldest first."""

LIST_BACKUPS: Final = reading("listBackupRuns", "/v1/backup/runs", list[BackupProgress], ADMINISTERING)
"""List backups and verifications: those that go on, and how the last ones ended, oldest first."""

GET_BACKUP: Final = reading("getBackupRun", "/v1/backup/runs/{run}", BackupProgress, ADMINISTERING)
"""Return how far a backup or a verification is, or what came of it."""

STOP_BACKUP: Final = Operation(
    "stopBackupRun", "DELETE /v1/backup/runs/{run} -> 202", BackupProgress, ADMINISTERING, is_repeatable=True
)
"""Stop a backup or a verification after the file that is under way."""

"""Whether a backup can be restored: what its manifests list is there, and is what was written (docs/storage.md)."""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final, NamedTuple

from crc32c import crc32c

from ullage.beneath import LeadsOut
from ullage.engine.backupfiles import BackupFile, BackupManifest, all_files, newest_manifest
from ullage.engine.backupgenerations import older_manifest
from ullage.engine.backupplace import SNAPSHOTS, BackupPlace
from ullage.engine.backuptally import Progress, Tally, untold
from ullage.engine.lanes import in_lanes
from ullage.errors import ContentMissing, NotABackup, RepositoryDamaged
from ullage.wire.unavailable import LISTED_MAX
from ullage.wire.upkeep import BackupDamage, BackupVerification

OTHER_BYTES = "its bytes are not what was written: they do not match its checksum"


DRAW_BYTES: Final = 8
"""As finely as a share is drawn."""

RECORDS: Final = (SNAPSHOTS, "runs", "swap")
"""The directories of records: of FlowFiles, swapped ones included, and of handles."""


class _Needed(NamedTuple):
    """A file, and the generations that need it."""

    file: BackupFile
    generations: list[int]


def verify(
    place: BackupPlace,
    generation: int | None,
    sample: float,
    seed: int,
    on_progress: Progress = untold,
) -> BackupVerification:
    """Look at the files of one generation, or of all: each is there in its length, and a `sample` of them, a share that
    the seed draws, is read and compared; see `_drawn`. It writes nothing, and pins nothing: what a backup drops
    meanwhile does not count. NotABackup; RepositoryDamaged where the newest manifest can't be read.
    """
    manifests, damages = _manifests(place, generation)
    needed = _needed(manifests)
    held = place.held()
    there: list[_Needed] = []
    for each in needed.values():
        length = held.get(each.file.lies_at)
        if length == each.file.length:
            there.append(each)
        else:
            reason = (
                "it is missing" if length is None else f"it has {length:,} bytes, {each.file.length:,} were written"
            )
            damages.append(_damage(each, reason))
    drawn = _drawn(there, sample, seed)
    total = sum(each.file.length for each in drawn)
    done = 0
    on_progress(Tally(0, len(drawn), 0, total))
    reading = in_lanes(
        drawn, lambda one: _wrong(place, one.file), lambda one: one.file.length, place.lanes, place.in_flight_bytes
    )
    for files_done, (each, reason) in enumerate(reading, 1):
        if reason:
            damages.append(_damage(each, reason))
        done += each.file.length
        on_progress(Tally(files_done, len(drawn), done, total))
    damages = list(_still(place, damages))
    return BackupVerification(
        generations=len(manifests),
        files=len(needed),
        bytes=sum(each.file.length for each in needed.values()),
        read_files=len(drawn),
        read_bytes=total,
        seed=seed,
        damaged_files=len(damages),
        damaged=tuple(sorted(damages, key=lambda each: each.path)[:LISTED_MAX]),
    )


def _manifests(place: BackupPlace, generation: int | None) -> tuple[list[BackupManifest], list[BackupDamage]]:
    """Those that can be read, and the others."""
    newest = newest_manifest(place)
    there = [*(each.generation.sequence for each in newest.older), newest.sequence]
    if generation is not None and generation not in there:
        raise NotABackup(f"{place.name} has no generation {generation}, only {', '.join(map(str, there))}")
    manifests = [newest] if generation in (None, newest.sequence) else []
    damages: list[BackupDamage] = []
    for each in newest.older:
        if generation in (None, each.generation.sequence):
            try:
                manifests.append(older_manifest(place, each).manifest)
            except RepositoryDamaged as error:
                damages.append(
                    BackupDamage(path=each.lies_at, generations=(each.generation.sequence,), reason=str(error))
                )
    return manifests, damages


def _needed(manifests: Iterable[BackupManifest]) -> dict[str, _Needed]:
    needed: dict[str, _Needed] = {}
    for manifest in manifests:
        for file in all_files(manifest):
            needed.setdefault(file.lies_at, _Needed(file, [])).generations.append(manifest.sequence)
    return needed


def _drawn(there: list[_Needed], sample: float, seed: int) -> list[_Needed]:
    """What is read. Whatever a sample is, all records are: without a snapshot no content is of any use. Of content, and
    of events, it is a share, and one at least: that nothing was damaged says nothing where nothing was read.
    """
    lots: dict[str, dict[str, float]] = {}
    for each in there:
        if (folder := each.file.path.partition("/")[0]) not in RECORDS:
            lots.setdefault(folder, {})[each.file.lies_at] = _lot(each.file, seed)
    left: set[str] = set()
    for found in lots.values():
        bound = max(sample, min(found.values()))
        left.update(path for path, lot in found.items() if lot > bound)
    return [each for each in there if each.file.lies_at not in left]


def _lot(file: BackupFile, seed: int) -> float:
    """From 0 to 1, of each file by itself, so that a seed draws the same ones whatever else is there.

    By a hash that a seed changes altogether. A CRC is linear: two names that agree in their first bit agree in it under
    every seed, so that a half was the same half for ever, or all of it.
    """
    digest = blake2b(file.lies_at.encode(), digest_size=DRAW_BYTES, key=b"%d" % seed).digest()
    return int.from_bytes(digest) / (1 << 8 * DRAW_BYTES)


def _wrong(place: BackupPlace, file: BackupFile) -> str:
    """What is wrong with its bytes; empty: nothing."""
    crc = 0
    try:
        for piece in place.pieces(file.lies_at, file.length):
            crc = crc32c(piece, crc)
    except (ContentMissing, LeadsOut) as error:
        return str(error)
    return "" if crc == file.crc else OTHER_BYTES


def _damage(needed: _Needed, reason: str) -> BackupDamage:
    return BackupDamage(path=needed.file.lies_at, generations=tuple(sorted(needed.generations)), reason=reason)


def _still(place: BackupPlace, damages: list[BackupDamage]) -> Iterable[BackupDamage]:
    """Those of generations that are there still: a backup may have dropped one, and removed its files."""
    if damages:
        newest = newest_manifest(place)
        there = {*(each.generation.sequence for each in newest.older), newest.sequence}
        yield from (each for each in damages if there.intersection(each.generations))

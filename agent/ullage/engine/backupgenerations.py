"""Generations of a backup: which are kept, where their manifests lie, and how one is read while others go.

    put the manifest that was the newest | publish the new one, with the list of those that are kept | remove
                                           ^ commit point: what is dropped is gone from here on

Manifests are never written again either; what one lists is removed only when no manifest that is kept needs it.
"""

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from ullage.engine.backupfiles import BackupManifest, OlderManifest, all_files, decode_manifest, newest_manifest
from ullage.engine.backupplace import GENERATIONS, MANIFEST, BackupPlace
from ullage.errors import NotABackup, RepositoryDamaged
from ullage.wire.upkeep import BackupGeneration, Keep

PERIODS: Final[dict[str, str]] = {
    "hourly": "%Y-%m-%d %H",
    "daily": "%Y-%m-%d",
    "weekly": "%G-%V",
    "monthly": "%Y-%m",
    "yearly": "%Y",
}
"""What tells one period from the next, in UTC: the hour that summer time repeats is two."""

LAST_MILLIS: Final = 253_402_300_799_000
"""The end of the year 9999, after which no date is."""

LOOKS: Final = 5
"""So often a generation that was replaced while somebody began to read it is followed by the next one."""


class FollowedManifest(NamedTuple):
    """A manifest, and its bytes."""

    data: bytes
    manifest: BackupManifest


def kept_sequences(generations: Iterable[BackupGeneration], keep: Keep) -> set[int]:
    """The numbers of those that stay: the newest by number, for the clock may have gone back, and what the rule means.

    A period counts once, wherever in the order it comes again.
    """
    newest_first = sorted(generations, key=lambda each: -each.sequence)
    kept = {each.sequence for each in newest_first[: max(1, keep.last)]}
    for name, form in PERIODS.items():
        newest_of: dict[str, int] = {}
        for each in newest_first:
            seconds = min(max(each.created_millis, 0), LAST_MILLIS) / 1000
            newest_of.setdefault(datetime.fromtimestamp(seconds, UTC).strftime(form), each.sequence)
        kept.update(list(newest_of.values())[: getattr(keep, name)])
    return kept


def followed_at(place: BackupPlace) -> FollowedManifest | None:
    """The newest manifest, which the next one follows; None if there is none. RepositoryDamaged, FormatTooNew."""
    data = place.manifest()
    return None if data is None else FollowedManifest(data, decode_manifest(data, f"{place.name}/{MANIFEST}"))


def with_older(
    place: BackupPlace, followed: FollowedManifest | None, manifest: BackupManifest, keep: Keep | None
) -> BackupManifest:
    """The same with the generations that stay behind it, by the rule that is said, or was said before. The manifest
    that it follows is put where older ones lie.
    """
    if followed is None:
        return msgspec.structs.replace(manifest, keep=keep or Keep())
    last = followed.manifest
    keep = keep or last.keep
    path = os.path.join(GENERATIONS, f"{last.sequence}{place.suffix}")
    known = (*last.older, OlderManifest(lies_at=path, length=len(followed.data), generation=last.generation))
    kept = kept_sequences([*(each.generation for each in known), manifest.generation], keep)
    if last.sequence in kept:
        place.put(path, [followed.data], len(followed.data))
    older = tuple(each for each in known if each.generation.sequence in kept)
    return msgspec.structs.replace(manifest, keep=keep, older=older)


def remove_unneeded(place: BackupPlace, manifest: BackupManifest) -> None:
    """Remove what neither the manifest needs, which counts by now, nor one of those behind it, nor somebody who reads.

    Where one of them does not say what it needs, nothing is removed.
    """
    needed = listed_by(manifest)
    try:
        for each in manifest.older:
            needed |= _files_of(older_manifest(place, each).manifest)
        place.remove_unlisted(needed, _listed_in)
    except RepositoryDamaged:
        return  # `verify_backup` names it, and it goes when the rule does not keep it any more


def listed_by(manifest: BackupManifest) -> set[str]:
    """Where its files lie, and the manifests of those behind it."""
    return {*_files_of(manifest), *(each.lies_at for each in manifest.older)}


def _files_of(manifest: BackupManifest) -> set[str]:
    return {file.lies_at for file in all_files(manifest)}


@contextmanager
def reading(place: BackupPlace, sequence: int | None = None) -> Iterator[BackupManifest]:
    """A generation, the newest by default, of which nothing is removed meanwhile, and `erased` of the newest.
    NotABackup, RepositoryDamaged.
    """
    for _ in range(LOOKS):
        found = _found(place, sequence)
        with place.pinned(found.data):
            # Once more: it may have been dropped before it was pinned, and be about to go.
            again = newest_manifest(place)
            if found.manifest.sequence in {again.sequence, *(each.generation.sequence for each in again.older)}:
                # Of an older generation, too: it may be of before an erasure that only the newest knows.
                yield msgspec.structs.replace(found.manifest, erased=again.erased)
                return
    raise NotABackup(f"{place.name} is brought up to date faster than a restoration can begin: try again")


def generations_at(place: BackupPlace) -> list[BackupGeneration]:
    """All that can be restored, oldest first. NotABackup."""
    newest = newest_manifest(place)
    return [*(each.generation for each in newest.older), newest.generation]


def _found(place: BackupPlace, sequence: int | None) -> FollowedManifest:
    newest = followed_at(place)
    if newest is None:
        raise NotABackup(f"{place.name} holds no backup: there is no {MANIFEST} in it")
    if sequence in (None, newest.manifest.sequence):
        return newest
    older = {each.generation.sequence: each for each in newest.manifest.older}
    if sequence not in older:
        there = ", ".join(map(str, (*older, newest.manifest.sequence)))
        raise NotABackup(f"{place.name} has no generation {sequence}, only {there}")
    return older_manifest(place, older[sequence])


def older_manifest(place: BackupPlace, older: OlderManifest) -> FollowedManifest:
    """One that is not the newest. RepositoryDamaged."""
    where = f"{place.name}/{older.lies_at}"
    try:
        data = place.read(older.lies_at, 0, older.length)
    except OSError as error:
        raise RepositoryDamaged(f"{where} can't be read: {error.strerror}") from error
    manifest = decode_manifest(data, where)
    if manifest.generation != older.generation:
        raise RepositoryDamaged(f"{where} is not the generation that {MANIFEST} has there: use another one")
    return FollowedManifest(data, manifest)


def _listed_in(data: bytes) -> Collection[str]:
    return _files_of(decode_manifest(data, "a pin"))

"""The manifest of a share: which bases count, and what may go once others do.

    base put | manifest put on condition | remove what no base, dropped one or pin needs
                ^ commit point

Who takes a share over claims the manifest first, by putting its own epoch there: nobody before it publishes any more.
A base serves points until the next one was made, and counts as long as points of that time are retained; of more than
a manifest has room for the oldest are dropped. What only it needs goes a day after it was dropped, and not while
somebody's pin names it. Fences stay for ever: a writer that wakes after years meets the one at its number. What belongs
to higher epochs is another writer's, who may be about to name it.
"""

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Final

import msgspec

from ullage.engine.pins import PIN_SECONDS
from ullage.engine.shipping.history import base_head, base_reader
from ullage.engine.shipping.logreader import log_headers
from ullage.engine.shipping.sharedocs import (
    BASES_MAX,
    DroppedBase,
    ListedBase,
    ShareManifest,
    SharePin,
    decode_document,
    encode_document,
)
from ullage.engine.shipping.shareplace import (
    BASES,
    CONTENT,
    LOG,
    MANIFEST,
    PINS,
    BaseName,
    SharedObject,
    SharePlace,
    ShareWriter,
    Taken,
    base_of,
    log_name,
    log_number,
    pack_of,
)
from ullage.errors import BucketUnavailable, ShareFenced

DROPPED_MILLIS: Final = 86_400_000
"""How long what a dropped base needs stays."""


def take_manifest(place: SharePlace, share: str, writer: ShareWriter) -> None:
    """Have nobody of a lower epoch publish from here on: what such a one is about to put meets another manifest than it
    has read. ShareFenced; BucketUnavailable: nobody knows.

    Of a base of its predecessor a writer must know when it decides with what it goes on: it may hold what the log has
    not. Where there is no manifest yet it puts one without bases.
    """
    while True:
        found = place.get(MANIFEST)
        before = None if found is None else _decoded(found, share, place)
        if before is not None and before.epoch >= writer.epoch:
            if before.writer == writer:
                return
            raise _fenced(place)
        mine = ShareManifest(share=share, epoch=writer.epoch, nonce=writer.nonce)
        if before is not None:
            mine = msgspec.structs.replace(mine, bases=before.bases, dropped=before.dropped)
        with suppress(Taken):  # by a lower epoch, just before, or by this very put, whose answer was lost
            _put(place, encode_document(mine), found)


def _put(place: SharePlace, data: bytes, found: SharedObject | None) -> None:
    if found is None:
        place.put_new(MANIFEST, data)
    else:
        place.put_over(MANIFEST, data, found.tag)


def _decoded(found: SharedObject, share: str, place: SharePlace) -> ShareManifest:
    return decode_document(found.data, ShareManifest, share, f"{place.name}/{MANIFEST}")


def _fenced(place: SharePlace) -> ShareFenced:
    return ShareFenced(f"{place.name}/{MANIFEST} is another writer's now")


def publish(
    place: SharePlace, share: str, writer: ShareWriter, base: ListedBase, retention_millis: int
) -> ShareManifest:
    """Have a base counted, and those dropped whose time is over; the manifest that counts. ShareFenced."""
    found = place.get(MANIFEST)
    before = None if found is None else _decoded(found, share, place)
    if before is not None and before.writer != writer and before.epoch >= writer.epoch:
        raise _fenced(place)
    if before is not None and base in before.bases:
        return before
    manifest = _with(before, share, writer, base, retention_millis)
    data = encode_document(manifest)
    try:
        _put(place, data, found)
    except (Taken, BucketUnavailable) as error:
        there = place.get(MANIFEST)
        if there is None or there.data != data:
            if isinstance(error, BucketUnavailable):
                raise
            raise _fenced(place) from None
    return manifest


def _with(
    before: ShareManifest | None, share: str, writer: ShareWriter, base: ListedBase, retention_millis: int
) -> ShareManifest:
    bases = () if before is None else before.bases
    dropped = () if before is None else before.dropped
    now = base.millis
    ends = [each.millis for each in (*bases, base)][1:]
    retained = [each for each, end in zip(bases, ends, strict=True) if end >= now - retention_millis]
    retained = retained[-(BASES_MAX - 1) :]
    gone = [each for each in bases if each not in retained]
    lingering = [
        *(each for each in dropped if each.millis > now - DROPPED_MILLIS),
        *(DroppedBase(base=each, millis=now) for each in gone),
    ]
    return ShareManifest(
        share=share,
        epoch=writer.epoch,
        nonce=writer.nonce,
        bases=(*retained, base),
        dropped=tuple(lingering[-BASES_MAX:]),
    )


def collect(place: SharePlace, share: str, writer: ShareWriter, manifest: ShareManifest) -> int:
    """Remove what nothing needs once this manifest counts; how many objects."""
    ages = place.ages(PINS)
    dead_pins = {key for key, age in ages.items() if age > PIN_SECONDS}
    pinned = _pinned(place, share, ages.keys() - dead_pins)
    kept = [*manifest.bases, *(each.base for each in manifest.dropped), *pinned]
    first = min(kept, key=lambda each: each.next_log)
    names = {each.name for each in kept}
    needed = {pack.name for name in names for pack in base_head(base_reader(place, name, share))[1]}
    unneeded = [
        *_old_log(place, share, first.next_log),
        *(name for name in place.lengths(CONTENT) if name not in needed and _is_before(name, first, writer)),
        *(name for name in place.lengths(BASES) if name not in names and _is_mine_or_older(base_of(name), writer)),
        *dead_pins,
    ]
    place.delete(unneeded)
    return len(unneeded)


def _old_log(place: SharePlace, share: str, next_log: int) -> Iterator[str]:
    lengths = place.lengths(LOG)
    old = {name: length for name, length in lengths.items() if (log_number(name) or next_log) < next_log}
    for number, header in log_headers(place, share, old):
        if header is None or not header.is_fence:
            yield log_name(number)


def _is_before(name: str, first: ListedBase, writer: ShareWriter) -> bool:
    """Whether a pack was put before the first base that is kept: what log objects behind it need was put later."""
    found = pack_of(name)
    if found is None:
        return False
    by, number = found
    if by == first.writer:
        return number < first.next_pack
    return by.epoch <= first.writer.epoch <= writer.epoch


def _is_mine_or_older(found: BaseName | None, writer: ShareWriter) -> bool:
    return found is not None and (found.writer == writer or found.writer.epoch < writer.epoch)


def _pinned(place: SharePlace, share: str, pins: Collection[str]) -> Iterator[ListedBase]:
    for key in pins:
        found = place.get(key)
        if found is not None:
            yield decode_document(found.data, SharePin, share, f"{place.name}/{key}").base

"""The new files of a rewrite: contents beside NiFi's, and, in a folder of their own, what takes the place of files of
its FlowFile repository. Nothing of NiFi's is changed here, and everything is durable afterwards.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import closing
from typing import Final

from ullage.nifi import checkpoint
from ullage.nifi.changes import Changes, Durability, Likeness
from ullage.nifi.flowfiles import FlowFileMap, Kept
from ullage.nifi.home import NiFiHome
from ullage.nifi.intent import ReclaimIntent
from ullage.nifi.moment import CHECKPOINT, JOURNALS, PARTIAL, SWAP, NiFiMoment, first_of, journal_names
from ullage.nifi.opened import open_regular
from ullage.nifi.pieces import read_span
from ullage.nifi.relocating import Records, swap_file_pieces, utf
from ullage.nifi.rewriteplan import MovedClaim, NewFile, RewritePlan
from ullage.nifi.trouble import NiFiInUse, NotSurveyable

MIXED_FORMATS: Final = (
    "the FlowFile repository has records of two versions of NiFi: start NiFi once and stop it, then it has one"
)
CHANGED: Final = "it changed since it was looked at"


def build_rewrite(
    home: NiFiHome, plan: RewritePlan, intent: ReclaimIntent, transaction: int, changes: Changes
) -> list[tuple[str, int, int]]:
    """Make them all; returns those of the FlowFile repository as its state will have them.

    OSError; NiFiInUse: NiFi went on meanwhile; NotSurveyable: its records can't be written.
    """
    with Durability(changes, home.containers) as durable:
        _build_contents(home, plan, intent, changes, durable)
        durable.finish()
    folder = os.path.join(home.flowfiles, intent.aside)
    changes.make_folder(folder)
    changes.sync_folder(home.flowfiles)
    built = []
    with closing(NiFiMoment(home.flowfiles, attributes=Kept.RECORD)) as moment:
        moment.read()
        moment.read_swaps()
        if moment.damages or moment.transaction != transaction:
            raise NiFiInUse("NiFi was started meanwhile: nothing was changed")
        for name, flowfiles in moment.swapped():
            if any(each.file in plan.old for each in flowfiles):
                path = os.path.join(home.flowfiles, SWAP, name)
                like = Likeness.of(os.stat(path))
                changes.write_new(os.path.join(folder, name), swap_file_pieces(path, plan.place, home.flowfiles), like)
                built.append(f"{SWAP}/{name}")
        like = _like_checkpoint(home.flowfiles)
        pieces = _checkpoint(moment.map, plan, _last(home.flowfiles, transaction))
        changes.write_new(os.path.join(folder, CHECKPOINT), pieces, like)
        built.append(CHECKPOINT)
    changes.sync_folder(folder)
    return [_stated(folder, name) for name in built]


def _stated(folder: str, name: str) -> tuple[str, int, int]:
    found = os.stat(os.path.join(folder, os.path.basename(name)))
    return (name, found.st_size, found.st_mtime_ns)


def _build_contents(
    home: NiFiHome, plan: RewritePlan, intent: ReclaimIntent, changes: Changes, durable: Durability
) -> None:
    steps = {step.file: (step.inode, step.size, step.modified_ns) for step in plan.steps}
    for new in plan.new:
        container = new.file.partition("/")[0]
        path = intent.path(new.file)
        section = os.path.dirname(path)
        if not os.path.isdir(section):
            changes.make_folder(section, Likeness.of(os.stat(home.containers[container])))
            durable.folder(container, home.containers[container])
        pieces = _survivors(intent, plan.moves[new.file], steps)
        changes.write_new(path, pieces, _like(intent, new), is_synced=not durable.is_whole(container))
        durable.folder(container, section)


def _like(intent: ReclaimIntent, new: NewFile) -> Likeness:
    return Likeness.of(os.lstat(intent.path(new.like)))


def _survivors(
    intent: ReclaimIntent, claims: list[MovedClaim], steps: dict[str, tuple[int, int, int]]
) -> Iterator[bytes]:
    opened, descriptor = "", -1
    try:
        for claim in claims:
            if not claim.pieces:
                yield bytes(claim.size)
            elif claim.file != opened:
                if descriptor >= 0:
                    os.close(descriptor)
                    descriptor = -1
                descriptor = open_regular(intent.path(claim.file), intent.root_of(claim.file))
                opened = claim.file
                found = os.fstat(descriptor)
                if (found.st_ino, found.st_size, found.st_mtime_ns) != steps[claim.file]:
                    raise OSError(0, CHANGED, claim.file)
            for begin, end in claim.pieces:
                yield from read_span(descriptor, begin, end, claim.file)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _checkpoint(found: FlowFileMap, plan: RewritePlan, transaction: int) -> Iterator[bytes]:
    """As `HashMapSnapshot.writeSnapshot` writes it."""
    headers = {form.header for form in found.formats}
    if len(headers) != 1 or None in headers:
        raise NotSurveyable(MIXED_FORMATS)
    form = found.formats[0]
    assert form.header is not None
    serde, version, schema = form.header
    yield utf(checkpoint.WRITER) + struct.pack(">i", checkpoint.VERSION) + utf(serde)
    yield checkpoint.NUMBERS.pack(version, transaction, len(found.flowfiles)) + schema
    records = Records(form)
    for flowfile in found.flowfiles.values():
        yield records.moved(flowfile.record, plan.place) if flowfile.file in plan.old else flowfile.record
    yield struct.pack(">i", len(found.swaps))
    for name in sorted(found.swaps):
        yield utf(found.locations[name])


def _last(flowfiles: str, transaction: int) -> int:
    """A transaction behind all that journals have, or may begin with: then NiFi passes over these journals, and removes
    them as it starts.
    """
    return max([transaction, *map(first_of, journal_names(flowfiles))]) + 1


def _like_checkpoint(flowfiles: str) -> Likeness:
    """Where there is none yet, NiFi's newest journal has the same owner."""
    for name in (CHECKPOINT, PARTIAL):
        path = os.path.join(flowfiles, name)
        if os.path.lexists(path):
            return Likeness.of(os.stat(path))
    return Likeness.of(os.stat(os.path.join(flowfiles, JOURNALS, journal_names(flowfiles)[-1])))

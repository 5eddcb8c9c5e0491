"""One file of a NiFi's content repository loses what is dead in it, or gets it back."""

import os
from collections.abc import Mapping

from ullage.nifi.changes import Changes, Durability
from ullage.nifi.contents import BLOCK_BYTES
from ullage.nifi.copies import KeptCopies
from ullage.nifi.intent import ReclaimIntent
from ullage.nifi.reclaimplan import FileStep, SeenFile
from ullage.nifi.spans import common, merged


class Unlike(Exception):
    """This is not what was planned for, or what is wanted back is not there."""


def take_away(intent: ReclaimIntent, step: FileStep, changes: Changes, durable: Durability, *, is_new: bool) -> int:
    """One step; the bytes that the file took before. Unlike: this is not the file that was planned for."""
    path, container = intent.path_of(step), step.file.partition("/")[0]
    _refuse_link(path)
    if not is_new and step.is_deleted and not os.path.lexists(path):
        return 0
    descriptor = changes.open(path)
    try:
        found = os.fstat(descriptor)
        refuse_unlike(step, found, is_new=is_new)
        if step.is_deleted:
            changes.unlink(path)
            durable.folder(container, os.path.dirname(path))
            return found.st_blocks * BLOCK_BYTES
        for begin, end in step.holes:
            changes.punch(descriptor, begin, end)
        if step.cut is not None:
            changes.truncate(descriptor, step.cut)
        changes.date(descriptor, step.modified_ns)
        durable.file(container, descriptor)
        return found.st_blocks * BLOCK_BYTES
    finally:
        os.close(descriptor)


def allocated(path: str) -> int:
    """Bytes that a file takes; 0: it is gone. A filesystem may know it once it is durable, and not before."""
    try:
        return os.lstat(path).st_blocks * BLOCK_BYTES
    except FileNotFoundError:
        return 0


def put_back(
    intent: ReclaimIntent,
    step: FileStep,
    copies: KeptCopies,
    changes: Changes,
    durable: Durability,
    *,
    is_new: bool,
) -> int:
    """What one file lost; the bytes that it took before. Unlike."""
    if not copies.is_whole(step):
        raise Unlike("its copy is damaged")
    path, container = intent.path_of(step), step.file.partition("/")[0]
    _refuse_link(path)
    if step.is_deleted:
        if is_new and os.path.lexists(path):
            refuse_unlike(step, os.lstat(path), is_new=True)
            return allocated(path)  # it was not deleted yet
        descriptor = changes.create(path, 0o600)
    else:
        descriptor = changes.open(path)
    try:
        found = os.fstat(descriptor)
        if not step.is_deleted:
            refuse_unlike(step, found, is_new=False)
        elif found.st_nlink != 1:
            raise Unlike("it has another name elsewhere")
        changes.truncate(descriptor, step.size)
        for at, piece in copies.pieces(step):
            changes.write(descriptor, piece, at)
        if step.is_deleted:
            changes.own(descriptor, *intent.owners[step.file])
        changes.date(descriptor, step.modified_ns)
        durable.file(container, descriptor)
        if step.is_deleted:
            durable.folder(container, os.path.dirname(path))
        return found.st_blocks * BLOCK_BYTES
    finally:
        os.close(descriptor)


def refuse_unlike(step: FileStep, found: os.stat_result, *, is_new: bool) -> None:
    """Unlike if a file is not the one that was seen. One that a step was begun with may have been cut already."""
    sizes = {step.size} if is_new or step.cut is None else {step.size, step.cut}
    is_same = found.st_ino == step.inode and found.st_size in sizes and found.st_nlink == 1
    if not is_same or (is_new and found.st_mtime_ns != step.modified_ns):
        raise Unlike("it changed since it was looked at")


def _refuse_link(path: str) -> None:
    """Unlike if its section is a link, of which NiFi makes none: the file would lie elsewhere."""
    if os.path.islink(os.path.dirname(path)):
        raise Unlike("its section is a link to elsewhere")


def refuse_alive(step: FileStep, known: Mapping[str, SeenFile]) -> None:
    """Unlike if a step would take something away that must stay."""
    file = known.get(step.file)
    if file is None:
        return
    stays = merged([*file.live, *file.named])
    if common(step.gone, stays) or (step.is_deleted and file.is_held):
        raise Unlike("something in it is alive by now")

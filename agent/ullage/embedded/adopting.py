"""Adoption of a share: a repository goes on elsewhere, from where its bucket has it."""

import errno
import os
import platform
from typing import Final

import msgspec

from ullage.clock import Clock
from ullage.embedded.restoreddocument import document_of
from ullage.embedded.shares import FoundShare, checked_deeply, made_of_share, share_in
from ullage.engine.content.containers import directories_of
from ullage.engine.files import Files, OsFiles, make_directories
from ullage.engine.restoring import require_empty
from ullage.engine.shipping.adopting import Adoption, adopt_share, adoption_cut_short, owner_of
from ullage.engine.shipping.lease import LeaseWatch
from ullage.engine.shipping.restoredbase import BegunRestoration, begun_restoration
from ullage.engine.shipping.sharedocs import EpochDocument
from ullage.engine.shipping.sharerestoring import identity_in, share_to_restore
from ullage.engine.wal.serde import SerDe
from ullage.errors import DirectoryNotEmpty, InvalidArgument
from ullage.interface.buckets import Bucket
from ullage.interface.repository import Bytes
from ullage.wire.upkeep import AdoptionReport

LOOK_SECONDS: Final = 1.0
"""Between two looks at a lease: a renewal is seen so soon, and said."""


def adopt_from(
    source: str | os.PathLike[str] | Bucket,
    root: str | os.PathLike[str],
    containers: dict[str, str],
    node: str,
    on_progress: Bytes | None,
    *,
    node_is_off: bool,
    check: bool = False,
    clock: Clock | None = None,
) -> AdoptionReport:
    """What `ullage.adopt` promises."""
    share = share_in(source)
    files, clock = OsFiles(), clock or Clock()
    before = owner_of(share.place, share.share)
    begun = begun_restoration(files, os.path.abspath(root))
    if begun is not None:
        adoption = adoption_cut_short(share.place, share.share, begun.asked)
        if adoption is None or begun.share != share.share:
            raise DirectoryNotEmpty(f"{root} holds part of something else that was cut short: remove what is there")
        return _adopted(share, root, containers, adoption, begun, before.owner, on_progress, check=check)
    if node_is_off is not True and not before.term_millis:
        raise InvalidArgument(
            f"{share.place.name} was last written by {before.owner}: what that node acknowledges and has not shipped "
            "is not adopted. Make sure that it is off, and say so: --node-is-off, or node_is_off=True in a program"
        )
    _require_room(files, share, root, containers)
    watched = None if node_is_off is True else _watched(share, clock)
    adoption = adopt_share(share.place, share.share, node or platform.node(), SerDe(), watched=watched)
    return _adopted(share, root, containers, adoption, None, before.owner, on_progress, check=check)


def _watched(share: FoundShare, clock: Clock) -> EpochDocument:
    """What `epoch` says since longer than its owner may serve. InvalidArgument: it renews its lease."""
    watch = LeaseWatch(share.place, share.share, clock.boottime)
    rest = watch.look()
    first = watch.seen
    while rest > 0:
        clock.sleep(min(rest, LOOK_SECONDS))
        rest = watch.look()
        if watch.seen != first:
            break
    if watch.seen is None or watch.seen != first:
        raise InvalidArgument(
            f"{share.place.name}: {watch.seen and watch.seen.owner} renews its lease, so that node serves. Stop it "
            "there, or, where it is off and another has started, adopt it again"
        )
    return watch.seen


def _require_room(files: Files, share: FoundShare, root: str | os.PathLike[str], containers: dict[str, str]) -> None:
    """Before anybody is fenced, that there is something to adopt, and where it may go."""
    spec = document_of(identity_in(share_to_restore(share.place, share.share, None)), root, containers).spec
    directories = {container.name: container for container in directories_of(files, spec)}
    require_empty(files, spec, directories)
    # A parent that is a file, or a volume that is mounted read-only: whoever serves it now would be fenced for nothing.
    for path in (spec.storage.host_path.path, *(container.path for container in directories.values())):
        make_directories(files, path)
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, "it can't be written", path)


def _adopted(
    share: FoundShare,
    root: str | os.PathLike[str],
    containers: dict[str, str],
    adoption: Adoption,
    begun: BegunRestoration | None,
    owner: str,
    on_progress: Bytes | None,
    *,
    check: bool,
) -> AdoptionReport:
    asked = share_to_restore(share.place, share.share, adoption.fence, begun)
    # Not the adoption that `epoch` names by now: somebody may have adopted it from us, and is the one who may write.
    identity = msgspec.structs.replace(identity_in(asked), adoption=adoption.writer.nonce)
    made = made_of_share(asked, identity, root, containers, on_progress)
    found = checked_deeply(identity, root, containers, on_progress) if check else None
    return AdoptionReport(backup=made, check=found, epoch=adoption.writer.epoch, owner=owner)

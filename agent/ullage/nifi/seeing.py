"""Looks at a NiFi for what its disk could give back: what stays of each file, and what speaks against touching it.

Where anything is in doubt, that is said, and a plan leaves it alone. Nothing is changed or locked.
"""

import errno
import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

import msgspec

from ullage.clock import Clock
from ullage.nifi.contents import BLOCK_BYTES, ContentListing
from ullage.nifi.events import NamedContents
from ullage.nifi.flowfiles import NiFiFlowFile
from ullage.nifi.home import NiFiHome
from ullage.nifi.moment import NiFiMoment
from ullage.nifi.opened import open_regular
from ullage.nifi.reclaimplan import Replays, SeenFile, SeenNiFi
from ullage.nifi.spans import Span, between, merged, total
from ullage.nifi.surveying import looked_at
from ullage.nifi.trouble import NiFiDamage, TornFile, Unparsable

BLOCK_MIN: Final = 4096
"""Bytes of a hole at the least: no filesystem that has holes gives back less."""

UNTOLD_BYTES: Final = 64 << 10
"""What a filesystem may have given to a file beyond its blocks of data, for its own records of it."""

ENCRYPTED: Final = b"\0\0\xac\xed\0\5"
"""How EncryptedFileSystemRepository begins each content: a mark, and a serialized object of Java's."""

STRAY: Final = "a swap file that NiFi passes over names contents in it"
NAMED: Final = "provenance events name contents in it"

UNKNOWN_HISTORY: Final = "where NiFi keeps its provenance events is not known: name it, or say that there are none"


def see_nifi(
    home: NiFiHome, clock: Clock, replays: Replays, *, is_rewriting: bool = False
) -> tuple[SeenNiFi, list[NiFiDamage]]:
    """For a plan, at a moment that is found as `survey_nifi` finds it; and what could not be read. NotSurveyable.

    `is_rewriting`: files are looked at as well in which nothing is dead, and where each content lies in its file.
    """
    with looked_at(home, attributes=False) as (moment, listing, _):
        damages = [*moment.damages, *listing.damages]
        # A folder that can't be listed needs no doubt: what lies there is not touched, and is missing to its FlowFiles.
        doubts = [f"{each.file}: {each.what}" for each in moment.damages]
        doubts += _aliases(home.containers)
        flowfiles = list(moment.flowfiles())
        strays = _strays(moment, doubts)
        held: dict[str, list[Span]] = defaultdict(list)
        firsts: dict[str, int] = {}
        claims: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for each in (*flowfiles, *strays):
            held[each.file].append((each.start, each.start + each.size))
            if each.size:
                firsts[each.file] = min(each.claim_start, firsts.get(each.file, each.claim_start))
            if is_rewriting:
                claims[each.file].append((each.start, each.start + each.size, each.claim_start))
        held.pop("", None)
        doubts += _unknown_containers(held, home.containers)
        named = _named(home, replays, listing, damages, doubts)
        look = partial(_seen, home, listing, is_rewriting=is_rewriting)
        files = [look(file, held.get(file), named.of(file), firsts.get(file, -1)) for file in sorted(listing.files)]
        if is_rewriting:
            astray = {each.file for each in strays}
            files = [_movable(each, claims.get(each.file, []), listing, is_stray=each.file in astray) for each in files]
        return (
            SeenNiFi(
                millis=clock.now_millis(),
                transaction=moment.transaction,
                replays=replays,
                flowfiles=len(flowfiles),
                missing=_missing(flowfiles, listing),
                blocks={name: _block(path) for name, path in home.containers.items()},
                files=files,
                history=[path for path in home.provenance or () if os.path.isdir(path)],
                doubts=doubts,
            ),
            damages,
        )


def _strays(moment: NiFiMoment, doubts: list[str]) -> list[NiFiFlowFile]:
    """Of swap files that NiFi passes over: what they have is kept all the same, for whoever wants it back."""
    found: list[NiFiFlowFile] = []
    try:
        found.extend(moment.stray_swaps())
    except (OSError, TornFile, Unparsable) as error:
        doubts.append(f"a swap file that no journal tells of can't be read: {error}")
    return found


def _named(
    home: NiFiHome, replays: Replays, listing: ContentListing, damages: list[NiFiDamage], doubts: list[str]
) -> NamedContents:
    """What events name, if that is to be kept; else none. What can't be read may name anything."""
    found = NamedContents(listing.files)
    if home.provenance is None:
        doubts.append(UNKNOWN_HISTORY)
    elif replays is Replays.KEEP:
        found.read(home.provenance)
        damages += found.damages
        doubts += [f"{each.file}: {each.what}, so any content may be named there" for each in found.damages]
    return found


def _movable(
    file: SeenFile, claims: list[tuple[int, int, int]], listing: ContentListing, *, is_stray: bool
) -> SeenFile:
    """With what a rewrite needs to know as well."""
    stays = STRAY if is_stray else NAMED if file.named else ""
    return msgspec.structs.replace(
        file, allocated=listing.files[file.file].allocated, claims=sorted(claims), stays=stays
    )


def _seen(
    home: NiFiHome,
    listing: ContentListing,
    file: str,
    held: list[Span] | None,
    named: list[Span],
    first: int,
    *,
    is_rewriting: bool,
) -> SeenFile:
    """`first`: where the first content lies of which some FlowFile has bytes; -1: nowhere."""
    facts = listing.files[file]
    live = merged(held or ())
    least = max((begin for begin, _ in held or ()), default=0)
    data: list[Span] = []
    doubt, inode, modified_ns = "", 0, 0
    if max([least, *(end for _, end in live)]) > facts.size:
        doubt = "it is too short for the content of some FlowFile"
    # What is dead in none of its bytes is not opened: it is most of them.
    elif is_rewriting or held is None or between(merged([*live, *named]), facts.size):
        container, _, below = file.partition("/")
        try:
            root = home.containers[container]
            descriptor = open_regular(os.path.join(root, below), root)
        except OSError as error:
            doubt = f"it can't be read in its section: {error.strerror}"
        else:
            try:
                found = os.fstat(descriptor)
                inode, modified_ns = found.st_ino, found.st_mtime_ns
                doubt = _doubt(found, facts.size)
                if first >= 0 and os.pread(descriptor, len(ENCRYPTED), first) == ENCRYPTED:
                    doubt = "its contents are encrypted, and longer than the FlowFile repository says"
                data = data_of(descriptor, found)
            finally:
                os.close(descriptor)
    return SeenFile(file, facts.size, held is not None, live, named, least, data, doubt, inode, modified_ns)


def _doubt(found: os.stat_result, size: int) -> str:
    if found.st_nlink > 1:
        return "it has another name elsewhere, as backups by hard links have it, and would be changed there too"
    return "" if found.st_size == size else "it changed while it was looked at"


def data_of(descriptor: int, found: os.stat_result) -> list[Span]:
    """What the filesystem keeps blocks for; all, where it does not tell."""
    spans: list[Span] = []
    at, size = 0, found.st_size
    try:
        while at < size:
            begin = os.lseek(descriptor, at, os.SEEK_DATA)
            at = os.lseek(descriptor, begin, os.SEEK_HOLE)
            spans.append((begin, min(at, size)))
    except OSError as error:
        if error.errno != errno.ENXIO:  # that is: nothing but a hole behind this
            return [(0, size)]
    # Blocks that are there and were never written count as a hole, and come back all the same.
    return spans if found.st_blocks * BLOCK_BYTES <= total(spans) + UNTOLD_BYTES else [(0, size)]


def _missing(flowfiles: Iterable[NiFiFlowFile], listing: ContentListing) -> int:
    count = 0
    for each in flowfiles:
        facts = listing.files.get(each.file)
        count += bool(each.file and each.size and (facts is None or facts.size < each.start + each.size))
    return count


def _block(path: str) -> int:
    try:
        return max(BLOCK_MIN, os.statvfs(path).f_frsize)
    except (OSError, ValueError):  # told among the damages: nothing of it was listed
        return BLOCK_MIN


def _unknown_containers(held: Iterable[str], containers: Mapping[str, str]) -> list[str]:
    unknown = sorted({file.partition("/")[0] for file in held} - containers.keys())
    return [f"FlowFiles lie in the container {name}, of which no directory is known" for name in unknown]


def _aliases(containers: Mapping[str, str]) -> list[str]:
    """Two containers of one directory: a file would be alive by one name and dead by the other."""
    found: list[str] = []
    paths = {name: os.path.realpath(path) for name, path in containers.items()}
    places: dict[object, str] = {}
    for name, path in sorted(paths.items()):
        try:
            status = os.stat(path)
        except (OSError, ValueError):  # told among the damages: nothing of it was listed
            continue
        if not stat.S_ISDIR(status.st_mode):
            continue
        other = places.setdefault((status.st_dev, status.st_ino), name)
        inside = [each for each, above in paths.items() if each != name and path.startswith(above + os.sep)]
        found += [f"the containers {each} and {name} lie in one another: {path}" for each in {other, *inside} - {name}]
    return found

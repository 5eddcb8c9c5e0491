"""Content opened inside the task that uses it, by the fastest path from where it runs.

    Unix socket: descriptors, pread, checksum    the node's own machine
    Arrow Flight, in batches                     everywhere else

Only what the function makes of it goes through Spark: contents of a whole source would pass the JVM twice.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ullage.client.descriptors import Address
from ullage.client.socket import SocketClient
from ullage.contentfile import FIRST_BYTES, ContentFile
from ullage.errors import ContentCorrupt, ContentMissing, Forbidden, LeaseLost, LeaseRefused, NotReachable, UllageError
from ullage.wire.frames import ClaimKey
from ullage.wire.problems import problem_of
from ullage_spark.addresses import FleetNode
from ullage_spark.carried import Carried
from ullage_spark.errors import ContentUnreadable, SparkSourceError
from ullage_spark.fleet import BUSY_SECONDS, asked_again, flight_of, socket_of
from ullage_spark.settings import MIB, SourceOptions
from ullage_spark.tables import NODE
from ullage_spark.whereabouts import ADDRESS, NO_CLAIM, Whereabouts
from ullage_spark.workers import begin_task

FOUND_BY: Final = (NODE, *ADDRESS)
"""Columns that rows need, so that their content is found."""

SEAL: Final = "seal"
"""The column that rows need besides, for who may not read every queue."""

GROUP_BYTES: Final = 8 * MIB
"""Content that a task holds at a time; one that is larger comes alone. So many that a call costs nothing beside it, and
so few that the processor's cache still has some of it.
"""

GROUP_BYTES_MAX: Final = 1 << 30
"""Half of what a batch of Arrow's may hold."""

GROUP_ROWS: Final = 10_000
AHEAD: Final = 64
"""Files, or large claims, that a task asks its node for at a time, ahead of reading: the node leases them in one
transaction, whose sync takes as long as reading some MiB. So few that not much is kept from being reclaimed while a
slow function works.
"""

ATTEMPTS: Final = 4
"""A lease may end while a task reads; what was read under it is read again."""

LEFT_TO_FLIGHT: Final = (LeaseLost, LeaseRefused, ContentCorrupt, ContentMissing, NotReachable)
"""What descriptors do not give: too many files at a time, a content that is damaged, or anything of an agent that
restarts. Over Flight each has an answer of its own, and a restart is waited for.
"""

FORBIDDEN: Final = problem_of(Forbidden("")).slug

Seals = Mapping[Address, bytes]
"""What the column `seal` has of contents, by where they lie."""

Ranges = Sequence[tuple[int, int]] | None
"""Of each content where to begin, and how many bytes; None: all of it."""

Use = Callable[[pa.RecordBatch, list[Any]], pa.RecordBatch | Iterator[pa.RecordBatch]]
"""What a program makes of rows and of their contents, each as bytes or a `ContentFile`, None for one that is gone: one
batch, or several.
"""


def pickled(use: Callable[..., Any]) -> bytes:
    """A function as it travels: one of a notebook has no module to be found in."""
    from pyspark import cloudpickle  # noqa: PLC0415 - tasks need it without this

    return cloudpickle.dumps(use)  # type: ignore[no-untyped-call, no-any-return]


def use_of(use: Use, *, skips_missing: bool, group_bytes: Any, as_files: bool) -> "ContentUse":
    """What a program says that is to be done; SparkSourceError for what a task could not do."""
    if not callable(use):
        raise SparkSourceError(f"{use!r} is no function of rows and contents")
    if not isinstance(group_bytes, int) or not 0 <= group_bytes <= GROUP_BYTES_MAX:
        raise SparkSourceError(f"group_bytes is a number from 0 to {GROUP_BYTES_MAX}, not {group_bytes!r}")
    return ContentUse(pickled(use), skips_missing, group_bytes, as_files)


class ContentUse(NamedTuple):
    """What is to be done with contents: `use` as `pickled` made it. See `with_content`. `tells_problems`: in the place
    of a content that cannot be read stands the slug of its problem, whichever it is.
    """

    use: bytes
    skips_missing: bool = False
    group_bytes: int = GROUP_BYTES
    as_files: bool = False
    tells_problems: bool = False


@dataclass
class Opener(Carried):
    """What runs in a task."""

    settings: SourceOptions
    nodes: Mapping[str, FleetNode]
    how: ContentUse

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What `use` makes of each group of rows."""
        from pyspark import cloudpickle  # noqa: PLC0415

        begin_task()
        use = cloudpickle.loads(self.how.use)
        # The C library keeps memory that is given back only up to the largest block that it has seen come and go: with
        # less, each group would be faulted in anew, which takes longer than reading it. Nothing touches this one.
        bytes(self.how.group_bytes)
        try:
            for batch in batches:
                yield from self._used(use, batch)
        finally:
            self._give_back()

    def _give_back(self) -> None:
        """Python workers outlive their tasks: what they held open would keep files from being reclaimed for an hour."""
        for node in self.nodes.values():
            client = socket_of(self.settings, node)
            if client is not None and client.descriptors:
                client.close()

    def _used(self, use: Use, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        names = pc.unique(batch.column(NODE)).to_pylist()
        for name in names:
            rows = batch if len(names) == 1 else batch.filter(pc.equal(batch.column(NODE), pa.scalar(name)))
            node = self.nodes.get(name)
            if node is None:
                raise SparkSourceError(f"node {name} is not in the fleet that the options name")
            wanted = Whereabouts.of(rows)
            ahead = self._ahead(node, wanted)
            asked, local = next(ahead)
            for at, count in wanted.groups(self.how.group_bytes, GROUP_ROWS):
                while asked < at + count:
                    asked, local = next(ahead)
                # Nothing here holds contents by a name: they are given back when the function has returned, and the
                # next ones come to lie in the same memory, which is faulted in and partly in the processor's cache.
                group = rows.slice(at, count)
                yield from _batches_of(use(group, self._opened(local, node, group, wanted.part(at, count))))

    def _opened(
        self, local: SocketClient | None, node: FleetNode, group: pa.RecordBatch, wanted: Whereabouts
    ) -> list[Any]:
        return (self._files if self.how.as_files else self._contents)(local, node, group, wanted)

    def _ahead(self, node: FleetNode, wanted: Whereabouts) -> Iterator[tuple[int, SocketClient | None]]:
        """Ask for some more of a node that is local, each time this is asked for: up to which row that is enough, and
        over what these rows are read.
        """
        asked = wanted.asked_rows()
        for begin in range(0, max(1, len(asked)), AHEAD):
            end = begin + AHEAD
            local = socket_of(self.settings, node)
            if local is not None:
                with suppress(UllageError):  # whoever reads asks again, and says what is wrong
                    local.expect(wanted.addresses(asked[begin:end]))
            yield asked[end] if end < len(asked) else len(wanted), local

    def _contents(
        self, local: SocketClient | None, node: FleetNode, group: pa.RecordBatch, where: Whereabouts
    ) -> list[Any]:
        """Contents in order; of an empty one, which has no claim, no bytes. Those of one checksum are read in the order
        of their addresses, small ones that lie near each other together.
        """
        near = None if local is None else _near(local, where)
        if near is None:
            return self._one_by_one(local, node, _seals(group, where), where.addresses())
        found, rows = near
        contents: list[Any] = found
        if len(found) < len(where) or (rows[1:] < rows[:-1]).any():
            contents = [None] * len(where)
            for row, content in zip(rows.tolist(), found, strict=True):
                contents[row] = content
        for row, start, end in where.slices(rows):
            contents[row] = contents[row][start:end]
        if len(found) < len(where):
            others = where.others(rows)
            left = self._one_by_one(local, node, _seals(group, where), where.addresses(others))
            for row, other in zip(others, left, strict=True):
                contents[row] = other
        return contents

    def _one_by_one(
        self, local: SocketClient | None, node: FleetNode, seals: Seals, addresses: Sequence[Address]
    ) -> list[bytes | str | None]:
        """The same of contents that lie anywhere.

        They are looked for in the order of their addresses: neighbours are read with one call.
        """
        wanted = sorted(each for each in addresses if each[0] != NO_CLAIM)
        found = self._remote(node, wanted, seals) if local is None else self._nearest(local, node, wanted, seals)
        if wanted != addresses:
            order = sorted(range(len(addresses)), key=addresses.__getitem__)  # those without a claim come first
            in_order = dict(zip(order[len(addresses) - len(wanted) :], found, strict=True))
            found = [in_order.get(at, b"") for at in range(len(addresses))]
        if {bytes}.issuperset(map(type, found)):
            return found  # type: ignore[return-value]
        each = zip(found, addresses, strict=True)
        return [one if isinstance(one, bytes) else self._instead(node, address, one) for one, address in each]

    def _instead(self, node: FleetNode, address: Address, slug: str) -> str | None:
        """What stands in the place of a content that cannot be read. ContentUnreadable if nothing may."""
        if self.how.tells_problems:
            return slug
        where = f"node {node.name}, resource claim {address[0]}"
        if slug == FORBIDDEN:
            raise ContentUnreadable(
                f"{where}: this account may not read its content, or its column {SEAL} is not of this row, or older "
                "than the agent's last start: read the rows again",
                slug,
            )
        if not self.how.skips_missing:
            raise ContentUnreadable(
                f"{where}: its content is gone ({slug}): read at a snapshot, or say skips_missing", slug
            )
        return None

    def _files(
        self, local: SocketClient | None, node: FleetNode, group: pa.RecordBatch, where: Whereabouts
    ) -> list[ContentFile | str | None]:
        """The contents as files: of a large one, which is alone in its group, a window at a time."""
        (first,) = where.addresses([0])
        if first[-1] > self.how.group_bytes:
            return [self._large(node, first, _seals(group, where))]
        found = self._contents(local, node, group, where)
        return [ContentFile(len(each), _nothing_more, each) if isinstance(each, bytes) else each for each in found]

    def _large(self, node: FleetNode, address: Address, seals: Seals) -> ContentFile | str | None:
        def asked(at: int, count: int) -> bytes | str:
            local = socket_of(self.settings, node)
            if local is not None:
                with suppress(*LEFT_TO_FLIGHT):  # Flight gives it, or says what is wrong
                    (found,) = self._by_descriptors(local, [(*address[:4], address[4] + at, count)])
                    if isinstance(found, bytes):
                        return found
            return self._remote(node, [address], seals, [(at, count)])[0]

        def fetch(at: int, count: int) -> bytes:
            found = asked(at, count)
            if isinstance(found, bytes):
                return found
            raise ContentUnreadable(
                f"node {node.name}, resource claim {address[0]}: content cannot be read from byte {at} on ({found})",
                found,
            )

        first = asked(0, min(FIRST_BYTES, address[-1]))
        if isinstance(first, bytes):
            return ContentFile(address[-1], fetch, first)
        return self._instead(node, address, first)

    def _nearest(
        self, client: SocketClient, node: FleetNode, wanted: Sequence[Address], seals: Seals
    ) -> list[bytes | str]:
        """Through descriptors; over Flight what they do not give: too many files at a time, one that holds what is not
        for this reader, or one in which nothing lives any more, and which only the snapshot's lease keeps.
        """
        try:
            contents = self._by_descriptors(client, wanted)
        except LEFT_TO_FLIGHT:
            return self._remote(node, wanted, seals)
        left = [at for at, content in enumerate(contents) if isinstance(content, str)]
        if left:
            for at, content in zip(left, self._remote(node, [wanted[at] for at in left], seals), strict=True):
                contents[at] = content
        return contents

    def _by_descriptors(self, client: SocketClient, wanted: Sequence[Address]) -> list[bytes | str]:
        """With what was asked ahead where that is enough, else with one question a claim."""
        try:
            found = client.read_born(wanted)
        except (LeaseLost, NotReachable):
            return self._local(client, wanted)
        left = [address for address, content in zip(wanted, found, strict=True) if content is None]
        if not left:
            return found  # type: ignore[return-value]
        asked = iter(self._local(client, left))
        return [next(asked) if content is None else content for content in found]

    def _local(self, client: SocketClient, wanted: Sequence[Address]) -> list[bytes | str]:
        """Through descriptors. What a lost lease spoils is resolved and read again."""
        contents: list[bytes | str] = []
        failures = 0
        while len(contents) < len(wanted):
            rest = wanted[len(contents) : len(contents) + GROUP_ROWS]
            try:
                places = client.resolve_claims([ClaimKey(*address[:4]) for address in rest])
                cut = [
                    place if place.slug else place._replace(start=address[4], size=address[5])
                    for place, address in zip(places, rest, strict=False)
                ]
                found = iter(client.read([place for place in cut if not place.slug]))
            except (LeaseLost, NotReachable):
                failures += 1
                if failures >= ATTEMPTS:
                    raise
                continue
            contents += [place.slug or next(found) for place in cut]
        return contents

    def _remote(
        self, node: FleetNode, wanted: Sequence[Address], seals: Seals, ranges: Ranges = None
    ) -> list[bytes | str]:
        return asked_again(self.settings, lambda: self._fetched(node, wanted, seals, ranges), busy_seconds=BUSY_SECONDS)

    def _fetched(self, node: FleetNode, wanted: Sequence[Address], seals: Seals, ranges: Ranges) -> list[bytes | str]:
        pieces: list[list[bytes]] = [[] for _ in wanted]
        slugs: dict[int, str] = {}
        client = flight_of(self.settings, node)
        for first in range(0, len(wanted), GROUP_ROWS):
            asked = wanted[first : first + GROUP_ROWS]
            shown = [seals.get(address, b"") for address in asked] if seals else None
            cut = None if ranges is None else ranges[first : first + GROUP_ROWS]
            for item, content, slug in client.get_rows(claims=asked, seals=shown, ranges=cut):
                if slug:
                    slugs[first + item] = slug
                else:
                    pieces[first + item].append(content)
        contents = [each[0] if len(each) == 1 else b"".join(each) for each in pieces]
        sizes = [address[-1] for address in wanted] if ranges is None else [count for _, count in ranges]
        for at, (content, size) in enumerate(zip(contents, sizes, strict=True)):
            if at not in slugs and len(content) != size:
                raise NotReachable(f"{node.flight}: of {size} bytes of a content {len(content)} came")
        return [slugs.get(at, content) for at, content in enumerate(contents)]


def _batches_of(made: Any) -> Iterator[pa.RecordBatch]:
    """What a program's function has returned, as far as it is what one may return."""
    for each in made if isinstance(made, Iterator) else (made,):
        if not isinstance(each, pa.RecordBatch):
            raise SparkSourceError(
                f"the function that got contents returned {type(each).__name__}: it returns a pyarrow.RecordBatch, or "
                "is a generator that yields some"
            )
        yield each


def _nothing_more(start: int, count: int) -> bytes:
    raise AssertionError(f"{count} bytes from {start} on were asked for, of a content that is all there")


def _near(client: SocketClient, where: Whereabouts) -> tuple[list[bytes], Any] | None:
    """The claims of one checksum, and their rows; None if all are to be asked for one by one, or over Flight."""
    near = where.nearest()
    if not len(near.rows):
        return None
    with suppress(*LEFT_TO_FLIGHT):  # whoever asks for them one by one is told what it was
        if found := client.read_neighbours(near.runs, near.apart):
            return found if near.numbers is None else [found[number] for number in near.numbers], near.rows
    return None


def _seals(rows: pa.RecordBatch, where: Whereabouts) -> Seals:
    """By address; nothing where rows have none, or the node says that they need none."""
    if SEAL not in rows.schema.names or rows.column(SEAL).null_count == rows.num_rows:
        return {}
    return dict(zip(where.addresses(), rows.column(SEAL).to_pylist(), strict=True))

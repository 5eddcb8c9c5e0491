"""The index: it hurries an answer and never makes one, whatever has become of its files."""

import errno
import random
from itertools import count
from pathlib import Path

import msgspec
import pytest

from tests.failing_files import FailingFiles
from tests.support import Workshop, committing, event_store, flip, put_all
from ullage.contract import IndexedField, Quantity
from ullage.engine.engine import Engine
from ullage.engine.files import OsFiles
from ullage.engine.model import EventType
from ullage.engine.provenance.index import SHARD_EVENTS_MAX, mergeable_spans
from ullage.engine.provenance.search import search
from ullage.engine.provenance.shard import Shard, Span
from ullage.engine.provenance.terms import number_of
from ullage.engine.runs.blockcache import BlockCache
from ullage.engine.runs.sorted_run import BLOCK_KEYS
from ullage.errors import ProvenanceDamaged
from ullage.wire.provenance import EventQuery

ALL_FIELDS = {"indexed_fields": tuple(IndexedField), "indexed_attributes": ("kind", "n")}


def shards(workshop: Workshop) -> list[Path]:
    """Files of the index, in order."""
    return sorted((workshop.path / "provenance" / "index").iterdir())


def place(repository: Engine) -> None:
    """Move what there is to an event file, and index it."""
    repository.provenance.drain()
    repository.provenance.index_step()


def pages(repository: Engine, query: EventQuery) -> list[int]:
    """The sequence numbers of all pages of an answer."""
    seen: list[int] = []
    while True:
        page = repository.history.query(query)
        seen += [event.sequence for event in page.events]
        if page.next is None:
            return seen
        query = msgspec.structs.replace(query, **{"before" if query.newest_first else "after": page.next})


def some_history(repository: Engine, chooser: random.Random, files: int) -> list[str]:
    """Event files of all kinds of events; returns uuids that occur in them."""
    uuids: list[str] = []
    for number in range(files):
        for _ in range(chooser.randint(1, 4)):
            with repository.session(chooser.choice("ab"), "Kind") as session:
                contents = [bytes(chooser.randint(0, 3)) for _ in range(chooser.randint(1, 9))]
                made = session.ingest("in", contents, {"kind": chooser.choice("xy"), "n": str(number)})
                if chooser.random() < 0.3:
                    session.provenance.receive(made[:2], "https://example.org/1")
                session.commit()
                uuids += [flow_file.id for flow_file in made]
        with repository.session("c") as session:
            for flow_file in session.get_many("in", chooser.randint(1, 9)):
                clone = session.clone(flow_file)
                session.transfer(clone, "out", chooser.choice(("one", "other")))
                session.remove(flow_file)
                uuids.append(clone.id)
            session.commit()
        place(repository)
    return uuids


def two_of_one_number() -> tuple[str, str]:
    """Two texts that the index takes for one."""
    seen: dict[int, str] = {}
    for text in map(str, count()):
        other = seen.setdefault(number_of(text), text)
        if other != text:
            return text, other
    raise AssertionError


@pytest.mark.parametrize("seed", range(2))
def test_an_answer_is_what_reading_all_events_gives(workshop: Workshop, seed: int) -> None:
    """Conditions of all kinds together, in both orders and pages of any size, over merged shards."""
    chooser = random.Random(seed)
    repository = workshop.make(provenance=ALL_FIELDS)
    uuids = some_history(repository, chooser, 12)
    assert len(shards(workshop)) < 12

    def one_in(share: int, value: object) -> object:
        return value if chooser.randrange(share) == 0 else None

    for _ in range(50):
        some = chooser.sample(uuids, chooser.randint(1, 3))
        wishes = {
            "types": one_in(2, ["CREATE", *chooser.sample(list(EventType.__members__), 3)]),
            "flow_file": one_in(4, chooser.choice(uuids)),
            "related": one_in(4, some),
            "component": one_in(3, chooser.choice("abcd")),
            "relationship": one_in(4, chooser.choice(("one", "other"))),
            "filename": one_in(6, chooser.choice(uuids)),
            "attributes": one_in(2, {"kind": chooser.choice("xy")}),
            "size_min": one_in(4, 2),
            "after": one_in(3, chooser.randrange(100)),
            "before": one_in(3, chooser.randrange(40, 200)),
        }
        given = {name: value for name, value in wishes.items() if value is not None}
        query = EventQuery(limit=chooser.randint(1, 20), newest_first=chooser.random() < 0.5, **given)  # type: ignore[arg-type]
        whole = search(event_store(repository), None, msgspec.structs.replace(query, limit=10_000)).events
        assert pages(repository, query) == [event.sequence for event in whole], f"seed {seed}: {query}"


def test_texts_of_one_number_are_told_apart(workshop: Workshop) -> None:
    """The index knows a checksum of each text; which event is meant is for the event to say."""
    text, other = two_of_one_number()
    repository = workshop.make(provenance={"indexed_attributes": ("n",)})
    for value in (text, other, text):
        put_all(repository, "q", [b"x"], n=value)
    place(repository)

    assert pages(repository, EventQuery(attributes={"n": text}, limit=1)) == [1, 3]
    assert pages(repository, EventQuery(attributes={"n": other}, limit=1, newest_first=True)) == [2]


def test_what_an_event_has_not_takes_no_room(workshop: Workshop) -> None:
    """Most events have no address, relationship or other identifier."""
    repository = workshop.make(provenance=ALL_FIELDS)
    put_all(repository, "q", [b"x"] * 3)
    with committing(repository) as session:
        session.transfer_many(session.get_many("q", 2), "r", "matched")
    place(repository)

    shard = Shard.open(OsFiles(), str(shards(workshop)[0]), BlockCache(1 << 20))

    assert shard is not None
    assert {section.name: section.keys for section in shard.run.sections} == {
        "type": 5,
        "flow_file": 5,
        "filename": 5,
        "relationship": 2,
    }


def test_a_flipped_bit_makes_no_answer(workshop: Workshop, repository: Engine) -> None:
    """Anywhere in a shard's file: the event files answer, and the shard is made anew."""
    made = put_all(repository, "q", [b"x"] * 3)
    place(repository)
    (path,) = shards(workshop)
    data = path.read_bytes()
    for at in range(len(data)):
        workshop.shut()
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        path.write_bytes(flipped)
        repository = workshop.open()
        assert pages(repository, EventQuery(flow_file=made[1].id)) == [2], f"byte {at}"
        assert pages(repository, EventQuery(types=["CREATE"])) == [1, 2, 3], f"byte {at}"


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_block_that_fails_in_the_middle_of_an_answer_costs_no_event(
    workshop: Workshop, *, newest_first: bool
) -> None:
    """What was found before stays, and the event file says the rest; none is missing or double."""
    repository = workshop.make(provenance={"indexed_fields": (), "indexed_attributes": ("n",)})
    kinds = [{"n": "rare"}, *[{"n": "often"}] * 8, {"n": "rare"}]  # a row group begins and ends with a rare one
    for _ in range(650):
        with committing(repository) as session:
            session.ingest("q", [b""] * 10, kinds)
    place(repository)
    (path,) = shards(workshop)
    data = bytearray(path.read_bytes())
    data[3 * BLOCK_KEYS * 8 + 5] ^= 1  # of a block in the middle, and the index has read none yet
    path.write_bytes(data)

    often = EventQuery(attributes={"n": "often"}, newest_first=newest_first, limit=6_000)
    found = pages(repository, often)

    wanted = [sequence for sequence in range(1, 6_501) if sequence % 10 > 1]
    assert found == (wanted[::-1] if newest_first else wanted)
    assert repository.provenance.index_step() == 6_500
    assert repository.provenance.index_step() == 0


@pytest.mark.parametrize(
    ("kind", "path"), [("list_directory", "*/index"), ("open", "*/index/*"), ("read", "*/index/*")]
)
def test_an_index_that_the_disk_does_not_give_makes_no_answer(
    workshop: Workshop, files: FailingFiles, kind: str, path: str
) -> None:
    """The event files answer alone, and a shard that is not given is made anew."""
    repository = workshop.make()
    made = put_all(repository, "q", [b"x"] * 3)
    place(repository)
    workshop.shut()
    repository = workshop.open(files)
    files.fail(kind, path)

    assert pages(repository, EventQuery(flow_file=made[1].id)) == [2]
    assert repository.provenance.index_step() == (0 if kind == "list_directory" else 3)


def test_a_shard_that_is_damaged_keeps_no_others_from_being_merged(workshop: Workshop, repository: Engine) -> None:
    """None of them is in the new one, and all that they held is indexed anew."""
    for number in range(3):
        put_all(repository, "q", [b"x"], n=str(number))
        place(repository)
    flip(shards(workshop)[1], 5)

    put_all(repository, "q", [b"x"], n="3")
    place(repository)

    assert repository.provenance.index_step() == 4
    assert pages(repository, EventQuery(types=["CREATE"], limit=3)) == [1, 2, 3, 4]


def test_a_shard_that_finds_no_room_leaves_that_error(workshop: Workshop, files: FailingFiles) -> None:
    """Also where what was written of it cannot be removed; the next step begins anew."""
    repository = workshop.make()
    put_all(repository, "q", [b"x"])
    repository.provenance.drain()
    files.fail("write", "*/index/*", error=errno.ENOSPC)
    files.fail("unlink", "*/index/*")

    with pytest.raises(OSError, match="No space left"):
        repository.provenance.index_step()

    assert repository.provenance.index_step() == 1


def test_small_shards_become_one(workshop: Workshop, repository: Engine) -> None:
    """So that a search does not look at a file for each rollover; what an interrupted merge left is removed."""
    before: dict[Path, bytes] = {}
    for number in range(20):
        put_all(repository, "q", [b"x"], n=str(number))
        place(repository)
        if number == 2:
            before.update((path, path.read_bytes()) for path in shards(workshop))
    merged = shards(workshop)
    assert len(before) == 3
    assert len(merged) < 8
    workshop.shut()
    for path, data in before.items():
        path.write_bytes(data)

    repository = workshop.open()

    assert pages(repository, EventQuery(types=["CREATE"], limit=3)) == list(range(1, 21))
    assert repository.provenance.index_step() == 0
    assert shards(workshop) == merged


def test_shards_are_merged_only_where_each_event_between_is_indexed(workshop: Workshop, repository: Engine) -> None:
    """A file that cannot be read is not covered by a shard that goes past it."""
    for number in range(9):
        put_all(repository, "q", [b"x"], n=str(number))
        repository.provenance.drain()
    files = sorted((workshop.path / "provenance" / "events").iterdir())
    hidden = files[3].read_bytes()
    files[3].write_bytes(b"")
    with pytest.raises(ProvenanceDamaged, match=files[3].name):
        repository.provenance.index_step()
    assert len(shards(workshop)) == 3 + 2  # the first three, and of the five behind it four in one

    files[3].write_bytes(hidden)

    assert pages(repository, EventQuery(types=["CREATE"])) == list(range(1, 10))
    assert repository.provenance.index_step() == 1
    assert pages(repository, EventQuery(types=["CREATE"])) == list(range(1, 10))


def test_indexing_leaves_no_event_file_open(workshop: Workshop, repository: Engine) -> None:
    """Each is read once for that; a node that nobody asks anything holds no footers, and no descriptors."""
    for number in range(3):
        put_all(repository, "q", [b"x"], n=str(number))
        place(repository)
    links = [path.resolve() for path in Path("/proc/self/fd").iterdir() if path.exists()]
    assert not [link for link in links if link.parent == (workshop.path / "provenance" / "events").resolve()]


def test_merging_is_worth_its_writing() -> None:
    """None of the merged ones is more than a fourth of the whole, events and bytes have bounds; else all stay."""
    alike = [Span(at, at, 10, 100) for at in range(10)]
    assert mergeable_spans(alike, 10_000) == slice(0, 10)
    assert mergeable_spans(alike, 599) == slice(0, 5)
    assert mergeable_spans(alike, 399) is None
    assert mergeable_spans(alike[:3], 10_000) is None
    large = [Span(0, 0, 1_000, 100), *alike[:3]]
    assert mergeable_spans(large, 10_000) is None
    assert mergeable_spans([*large, *alike[:1]], 10_000) == slice(1, 5)
    assert mergeable_spans([Span(at, at, SHARD_EVENTS_MAX // 4 + 1, 1) for at in range(9)], 10_000) is None


def test_an_event_is_merged_seldom() -> None:
    """Over a thousand rollovers of all sizes an event is written again some times, and shards stay few."""
    chooser = random.Random(1)
    spans: list[Span] = []
    written = put = 0
    for at in range(1_000):
        events = chooser.choice((10, 100, 1_000))
        spans.append(Span(at, at, events, events))
        put += events
        while (run := mergeable_spans(spans, 1 << 40)) is not None:
            chosen = spans[run]
            events = sum(span.events for span in chosen)
            written += events
            spans[run] = [Span(chosen[0].first, chosen[-1].last, events, events)]
    assert written < 6 * put, written / put
    assert len(spans) < 40


@pytest.mark.parametrize("size", [1, 1 << 40])
def test_the_size_of_shards_has_a_bound(workshop: Workshop, size: int) -> None:
    """Bytes of event files, as `indexShardSize` says."""
    repository = workshop.make(provenance={"index_shard_size": Quantity(size)})
    for number in range(8):
        put_all(repository, "q", [b"x"], n=str(number))
        place(repository)
    assert len(shards(workshop)) == (8 if size == 1 else 2)

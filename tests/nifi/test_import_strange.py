"""What an import does with what no repository takes, with orders, names and limits, on repositories written here."""

import gzip
import json
import os
import struct
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.nifi.example import LONG_AGO, write_nifi
from tests.nifi.imported import bring, opened, stored_bytes
from tests.nifi.test_command import run
from tests.nifi.written import Written
from ullage import EventQuery
from ullage.embedded.nifiimport import ALREADY_THERE, NiFiImporter, NiFiSource
from ullage.errors import DiskFull
from ullage.nifi import importplan
from ullage.nifi.home import find_home
from ullage.nifi.importplan import legal_names
from ullage.nifi.trouble import NiFiInUse

QUEUE, OTHER = (str(uuid.UUID(int=number)) for number in (0xA, 0xB))
FILE = f"default/1/{LONG_AGO}-1"
PRIORITIZER = "org.apache.nifi.prioritizer."


def uuid_of(number: int) -> str:
    return str(uuid.UUID(int=number))


def flowfile(number: int, start: int = 0, size: int = 0, *, queue: str = QUEUE, **attributes: Any) -> Written:
    named = {"uuid": uuid_of(number), "filename": f"{number}.txt", "path": "./"}
    return Written(number, queue, FILE if size else "", start, size, LONG_AGO + number, named | attributes)


def connection(identifier: str, name: str = "", **rest: Any) -> dict[str, Any]:
    ends = {"source": {"name": "A"}, "destination": {"name": "B"}}
    return {"identifier": identifier, "name": name, **ends, **rest}


def nifi(place: Path, flowfiles: Sequence[Written], connections: Sequence[Mapping[str, Any]] = ()) -> Path:
    """A NiFi with these FlowFiles, and 1,000 bytes in its only file."""
    write_nifi(place, flowfiles, len(flowfiles))
    content = place / "content_repository" / "1" / f"{LONG_AGO}-1"
    content.parent.mkdir()
    content.write_bytes(bytes(number % 251 for number in range(1_000)))
    if connections:
        flow = {"rootGroup": {"connections": connections}}
        (place / "conf" / "flow.json.gz").write_bytes(gzip.compress(json.dumps(flow).encode()))
    return place


def test_what_no_repository_takes_is_left_out_and_named(tmp_path: Path) -> None:
    """Each with its reason; everything else comes."""
    place = nifi(
        tmp_path / "nifi",
        [
            flowfile(1, 0, 10),
            flowfile(2, 0, 10, uuid="no uuid"),
            flowfile(3, 0, 10, uuid=uuid_of(1)),
            flowfile(4, 0, 10, uuid=uuid_of(0xABC).upper()),
            flowfile(5, 0, 10, large="x" * (5 << 20)),
            flowfile(6, 995, 10),
            flowfile(7)._replace(file="default/9/1-1", size=10),
            flowfile(8, 0, 10, broken="?broken?"),
            flowfile(9)._replace(queued_millis=-5),
            flowfile(10)._replace(size=3),
        ],
    )
    checkpoint = place / "flowfile_repository" / "checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes().replace(b"?broken?", b"\xff\xfebroke\xff"))

    with opened(root=tmp_path / "target") as repository:
        report = bring(repository, find_home(str(place)))
        stands = [each.id for each in repository.queues.all_flow_files(QUEUE)]

    reasons = {each.filename: each.why for each in report.left_out}
    assert stands == [uuid_of(1)]
    assert (report.flow_files, report.imported, report.is_complete) == (10, 1, False)
    assert sorted(reasons) == sorted(f"{number}.txt" if number != 8 else "" for number in range(2, 11))
    assert "its uuid is 'no uuid'" in reasons["2.txt"]
    assert reasons["3.txt"] == "another FlowFile of this NiFi has its uuid"
    assert "not written as NiFi writes one" in reasons["4.txt"]
    assert "4194304" in reasons["5.txt"]
    assert reasons["6.txt"] == f"of its 10 bytes in {FILE} 5 are on the disk"
    assert "0 are on the disk" in reasons["7.txt"]
    assert reasons[""] == "an attribute is no Unicode text"
    assert reasons["9.txt"] == "its dates are before 1970"
    assert reasons["10.txt"] == "it has 3 bytes, and no content"


def test_strange_texts_come_as_they_are(tmp_path: Path) -> None:
    """NUL, what lies beyond the basic plane, a replacement character of NiFi's own, empty and long ones."""
    strange = {"nul": "a\0b", "plane": "\N{GRINNING FACE}", "replaced": "\ufffd", "": "empty", "long": "ä" * 100_000}
    place = nifi(
        tmp_path / "nifi",
        [flowfile(1)._replace(attributes={"uuid": uuid_of(1), "filename": "1.txt", "path": "./"} | strange)],
    )

    with opened(root=tmp_path / "target") as repository:
        bring(repository, find_home(str(place)))
        (found,) = repository.queues.all_flow_files(QUEUE)

    assert found.attributes == {"uuid": uuid_of(1), "filename": "1.txt", "path": "./"} | strange


@pytest.mark.parametrize(
    ("prioritizers", "priority", "order"),
    [
        ([], "FirstInFirstOut", [4, 1, 2, 3]),  # without content first, then where the contents lie
        (["FirstInFirstOutPrioritizer"], "FirstInFirstOut", [1, 2, 3, 4]),
        (["NewestFlowFileFirstPrioritizer"], "NewestFirst", [4, 3, 2, 1]),
        (["OldestFlowFileFirstPrioritizer"], "OldestFirst", [1, 2, 3, 4]),
        (["PriorityAttributePrioritizer", "NewestFlowFileFirstPrioritizer"], "PriorityAttribute", [3, 2, 1, 4]),
    ],
)
def test_the_order_is_that_of_nifis_prioritizers(
    tmp_path: Path, prioritizers: list[str], priority: str, order: list[int]
) -> None:
    """And what comes later is ordered alike."""
    flowfiles = [
        flowfile(3, 700, 10, priority="-2"),
        flowfile(1, 100, 10, priority="10"),
        flowfile(2, 300, 10, priority="9"),
        flowfile(4, priority="later"),
    ]
    made = connection(QUEUE, "q", prioritizers=[PRIORITIZER + each for each in prioritizers])
    place = nifi(tmp_path / "nifi", flowfiles, [made])

    with opened(root=tmp_path / "target") as repository:
        bring(repository, find_home(str(place)))
        (queue,) = repository.queues.all()
        stands = [each.id for each in repository.queues.all_flow_files(queue.name)]

    assert stands == list(map(uuid_of, order))
    assert queue.priority == priority


def test_a_queue_has_nifis_name_and_limits(tmp_path: Path) -> None:
    """One that is there already keeps its own; two of one name are told apart."""
    stated = {"flowFileExpiration": "2 hours", "backPressureObjectThreshold": 77}
    connections = [
        connection(QUEUE, "in", **stated, backPressureDataSizeThreshold="1.5 GB"),
        connection(OTHER, "in", flowFileExpiration="0 sec"),
    ]
    place = nifi(tmp_path / "nifi", [flowfile(1), flowfile(2, queue=OTHER)], connections)

    with opened(root=tmp_path / "target") as repository:
        report = bring(repository, find_home(str(place)))
        one, other = repository.queues.all()

    assert (one.name, other.name) == (f"in: A -> B ({QUEUE})", f"in: A -> B ({OTHER})")
    assert (one.count_max, one.bytes_max, one.expiration_millis) == (77, 3 << 29, 7_200_000)
    assert (other.count_max, other.bytes_max, other.expiration_millis) == (0, 0, 0)
    assert [(each.identifier, each.original, each.name) for each in report.queues] == [
        (QUEUE, "in: A -> B", one.name),
        (OTHER, "in: A -> B", other.name),
    ]


def test_names_are_legal_and_unique() -> None:
    """None is longer than a name may be, none begins as a stream's does, and no two are the same."""
    long = "x" * 400
    names = legal_names({"a": long, "b": long, "c": "stream:one", "d": "two\nlines", "e": "", "f": "e"}, "stream:")

    assert len(set(names.values())) == 6
    assert max(map(len, names.values())) <= 255
    assert not any(name.startswith("stream:") for name in names.values())
    assert names["d"] == "two_lines"


def test_a_flowfile_that_is_there_already_does_not_come_again(tmp_path: Path) -> None:
    """NiFi went on after an import: what it had then is here; what is new comes."""
    first = nifi(tmp_path / "nifi", [flowfile(1, 0, 10)])
    later = nifi(tmp_path / "later", [flowfile(1, 0, 10), flowfile(2, 0, 10)])

    with opened(root=tmp_path / "target") as repository:
        bring(repository, find_home(str(first)))
        report = bring(repository, find_home(str(later)))
        again = bring(repository, find_home(str(later)))
        stands = [each.id for each in repository.queues.all_flow_files(QUEUE)]

    assert stands == [uuid_of(1), uuid_of(2)]
    assert (report.imported, report.before) == (1, 0)
    assert [(each.uuid, each.why) for each in report.left_out] == [(uuid_of(1), ALREADY_THERE)]
    assert (again.imported, again.before, again.left_out) == (0, 1, report.left_out)


def test_a_content_that_shrinks_meanwhile_costs_only_its_flowfiles(tmp_path: Path) -> None:
    """Named, in a report of a later call too."""
    large = f"default/2/{LONG_AGO}-2"
    flowfiles = [flowfile(1, 0, 10), flowfile(2)._replace(file=large, size=3 << 20), flowfile(3, 20, 10)]
    place = nifi(tmp_path / "nifi", flowfiles)
    path = place / "content_repository" / "2" / f"{LONG_AGO}-2"
    path.parent.mkdir()
    path.write_bytes(bytes(3 << 20))
    source, other = (NiFiSource(find_home(str(place))) for _ in range(2))
    os.truncate(path, 2 << 20)

    with opened(root=tmp_path / "target") as repository:
        report = NiFiImporter(repository, source).run(lambda done, total: None)
        again = NiFiImporter(repository, other).run(lambda done, total: None)
        stands = [each.id for each in repository.queues.all_flow_files(QUEUE)]
        assert repository.check(deep=True).problems == ()

    assert stands == [uuid_of(1), uuid_of(3)]
    (left,) = report.left_out
    assert left.why == f"{large} ends {1 << 20:,} bytes too early"
    assert again.left_out == [left]


def test_each_flowfile_begins_with_an_event_that_says_where_it_came_from(tmp_path: Path) -> None:
    """Instead of NiFi's own events, which stay behind; and one that NiFi knows by another name is found by that."""
    named = flowfile(2, 20, 10)
    named = named._replace(attributes={**named.attributes, "alternate.identifier": "urn:two"})
    place = nifi(tmp_path / "nifi", [flowfile(1, 0, 10), named, flowfile(3, queue=OTHER)])

    with opened(root=tmp_path / "target") as repository:
        report = bring(repository, find_home(str(place)))
        events = repository.provenance.search(EventQuery()).events

    assert [(each.type, each.flow_file) for each in events] == [
        *(("ADDINFO", uuid_of(2)), ("RECEIVE", uuid_of(1)), ("RECEIVE", uuid_of(2)), ("RECEIVE", uuid_of(3)))
    ]
    assert {each.transit_uri for each in events[1:]} == {f"nifi:{place}/flowfile_repository"}
    assert events[1].details == f"from NiFi's queue {QUEUE}, at transaction 88123"
    assert "provenance events" in report.not_brought[0]


class Stopped(Exception):
    """It was interrupted after a transaction."""


@pytest.mark.parametrize("batches", range(5))
def test_what_flowfiles_share_is_stored_once_wherever_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    """Clones and parts of a content, in two queues and in many transactions, some of them swapped out by then."""
    monkeypatch.setattr(importplan, "BATCH_FLOWFILES", 12)
    large = [flowfile(each, 0, 900 - each, queue=(QUEUE, OTHER)[each % 2]) for each in range(1, 50)]
    place = nifi(tmp_path / "nifi", [*large, flowfile(60, 950, 30), flowfile(61, 960, 5, queue=OTHER)])
    source = NiFiSource(find_home(str(place)))

    def stop(done: int, total: int) -> None:
        if done >= 12 * batches:
            raise Stopped

    with opened(root=tmp_path / "target", swaps=True) as repository, pytest.raises(Stopped):
        NiFiImporter(repository, source).run(stop)
    with opened(root=tmp_path / "target", swaps=True) as repository:
        report = bring(repository, find_home(str(place)))
        contents = {number: repository.content(uuid_of(number)).read() for number in (1, 2, 48, 49, 60, 61)}
        assert stored_bytes(repository) == report.stored == 899 + 30
        assert sum(queue.flow_files for queue in repository.queues.all()) == 51
        assert repository.check(deep=True).problems == ()

    whole = bytes(number % 251 for number in range(1_000))
    assert contents == {
        **{number: whole[: 900 - number] for number in (1, 2, 48, 49)},
        60: whole[950:980],
        61: whole[960:965],
    }


def test_a_content_that_was_changed_since_is_not_taken_for_nifis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody worked with the first FlowFiles before the import went on."""
    monkeypatch.setattr(importplan, "BATCH_FLOWFILES", 1)
    place = nifi(tmp_path / "nifi", [flowfile(1, 0, 10), flowfile(2, 0, 10)])

    def stop(done: int, total: int) -> None:
        if done == 1:
            raise Stopped

    with opened(root=tmp_path / "target") as repository:
        with pytest.raises(Stopped):
            NiFiImporter(repository, NiFiSource(find_home(str(place)))).run(stop)
        with repository.session() as session:
            found = session.get(QUEUE)
            assert found is not None
            session.transfer(session.write(found, b"0123456789"), QUEUE)
            session.commit()
        bring(repository, find_home(str(place)))
        contents = {each.id: repository.content(each.id).read() for each in repository.queues.all_flow_files(QUEUE)}

    assert contents == {uuid_of(1): b"0123456789", uuid_of(2): bytes(range(10))}


def test_what_is_in_the_repository_takes_no_memory_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million FlowFiles would be held twice; and what was forgotten is not brought over by another import."""
    monkeypatch.setattr(importplan, "BATCH_FLOWFILES", 2)
    source = NiFiSource(find_home(str(nifi(tmp_path / "nifi", [flowfile(number, 0, 10) for number in range(1, 8)]))))
    left: list[int] = []

    def count(done: int, total: int) -> None:
        left.append(sum(row.details is not None for row in source.plan.rows))

    with opened(root=tmp_path / "target") as repository:
        report = NiFiImporter(repository, source).run(count)
        with pytest.raises(ValueError, match="was brought over"):
            NiFiImporter(repository, source)

    assert (report.imported, [each.flow_files for each in report.queues]) == (7, [7])
    assert left == [7, 5, 3, 1, 0]


def test_a_nifi_that_is_started_meanwhile_stops_it(tmp_path: Path) -> None:
    """What it moves on would be in both."""
    place = nifi(tmp_path / "nifi", [flowfile(1)])
    source = NiFiSource(find_home(str(place)))
    (place / "flowfile_repository" / "journals" / "99.journal").write_bytes(b"")

    with opened(root=tmp_path / "target") as repository, pytest.raises(NiFiInUse, match="was started"):
        NiFiImporter(repository, source).run(lambda done, total: None)


def test_too_little_room_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it would take."""
    place = nifi(tmp_path / "nifi", [flowfile(1, 0, 1_000)])
    full = os.statvfs_result((4096, 4096, 100, 0, 0, 10, 10, 10, 0, 255))
    with opened(root=tmp_path / "target") as repository:
        importer = NiFiImporter(repository, NiFiSource(find_home(str(place))))
        assert importer.needed() > 1_000
        monkeypatch.setattr("os.statvfs", lambda path: full)
        with pytest.raises(DiskFull, match="have 0 left"):
            importer.require_room()


def test_the_command_tells_what_came_and_what_did_not(tmp_path: Path) -> None:
    """In words, in JSON, before and after."""
    place = nifi(tmp_path / "nifi", [flowfile(1, 0, 10), flowfile(2, 995, 10)], [connection(QUEUE, "in")])

    preview = run("import", place, tmp_path / "target", "--dry-run", expect=11)
    assert "1 FlowFile of transaction" in preview.stdout
    assert not (tmp_path / "target").exists()

    told = run("import", place, tmp_path / "target", expect=11)
    assert "1 of 2 FlowFiles of transaction" in told.stdout
    assert "in: A -> B" in told.stdout
    assert "Left out: 1 FlowFile" in told.stdout
    assert "Not brought over: provenance events" in told.stdout
    assert "To come: 1 of 1 FlowFile, with 10 B of content" in told.stderr

    document = json.loads(run("import", place, tmp_path / "target", "--json", expect=11).stdout)
    assert (document["imported"], document["before"], document["is_complete"]) == (0, 1, False)
    assert document["left_out"][0]["uuid"] == uuid_of(2)


def test_a_nifi_that_was_not_stopped_is_refused(tmp_path: Path) -> None:
    """Unless somebody says that none runs."""
    place = nifi(tmp_path / "nifi", [flowfile(1)])
    (place / "flowfile_repository" / "journals" / "99.journal").write_bytes(struct.pack(">H", 0))

    assert "--not-running" in run("import", place, tmp_path / "target", expect=3).stderr
    run("import", place, tmp_path / "target", "--not-running")

"""Where content goes: containers, sections, resource claims."""

import threading
from collections import Counter
from pathlib import Path

import msgspec

from tests.failing_files import FailingFiles
from tests.support import TWO, Workshop, claim_of, committing, content_sizes, drain, entry_of, put_all, put_each
from ullage.contract import Quantity
from ullage.engine.content.claims import Indexes
from ullage.engine.engine import Engine
from ullage.engine.model import Lifetime

KB = 1024


def files_below(path: Path) -> list[Path]:
    return [file for file in path.glob("c1/*/*-*") if file.is_file()]


def test_files_lie_in_the_section_of_their_index_modulo_1024(workshop: Workshop) -> None:
    """Sixteen in a row share a section, so that one sync makes their names durable; all sections come in turn."""
    repository = workshop.make(claims={"max_batch_file": Quantity(10), "max_appendable_size": Quantity(1)})

    put_all(repository, "q", [b"0123456789"] * 1_030)

    places = [Path(name).parts for name in content_sizes(workshop.path)]
    assert len(places) == 1_030
    assert all(int(section) == int(name.split("-")[1]) % 1024 for _, section, name in places)
    in_section = Counter(int(section) for _, section, _ in places)
    assert in_section == dict.fromkeys(range(1, 65), 16) | {65: 6}


def test_a_section_comes_again_after_all_the_others(workshop: Workshop) -> None:
    """Indexes are used once; a block of them fills every section alike."""
    used = [0]
    indexes = Indexes(4, used.append)

    taken = [index for _ in range(3_000) for index in indexes.take(3)]

    assert len(set(taken)) == len(taken)
    assert max(taken) <= used[-1]
    assert used == [0, *(4_096 * number for number in range(1, len(used)))]
    assert Counter(index % 4 for index in taken[: taken.index(4_097)]) == dict.fromkeys(range(4), 1_024)


def test_files_are_made_ahead_where_many_are_needed(workshop: Workshop, files: FailingFiles) -> None:
    """Their names are synced together: sixteen sessions with a file each cost one sync of a directory."""
    repository = workshop.make(claims={"max_flow_files": 1})
    put_each(repository, "q", [b"x"] * 16)
    before = files.count("sync_directory", "*/c1/*"), files.count("create", "*/c1/*")

    put_each(repository, "q", [b"x"] * 32)

    assert (files.count("sync_directory", "*/c1/*") - before[0], files.count("create", "*/c1/*") - before[1]) == (2, 32)


def test_files_made_ahead_go_with_a_close(workshop: Workshop) -> None:
    """A repository that is closed holds the files that its records name, and no others."""
    repository = workshop.make(claims={"max_flow_files": 1})
    for lifetime in Lifetime:
        for _ in range(10):
            with committing(repository) as session:
                session.write(record := session.create(), b"x", lifetime)
                session.transfer(record, "q")
    assert len(files_below(workshop.path)) > 30
    assert not repository.reclamation.orphans.look()

    workshop.close()

    assert len(files_below(workshop.path)) == 30


def test_files_made_ahead_are_orphans_after_a_crash(workshop: Workshop) -> None:
    """They are few and empty, a start leaves them alone, and whoever adopts orphans gets rid of them."""
    repository = workshop.make(claims={"max_flow_files": 1})
    put_each(repository, "q", [b"x"] * 10)
    ahead = len(files_below(workshop.path)) - 10
    assert 0 < ahead < 16

    repository = workshop.crash()

    orphans = repository.reclamation.orphans.look()
    assert [orphan.length for orphan in orphans] == [0] * ahead
    assert repository.reclamation.adopt_orphans() == ahead
    repository.reclamation.clean()
    assert len(content_sizes(workshop.path)) == 10
    assert len(drain(repository, "q")) == 10


def test_a_file_is_appended_to_until_max_appendable_size(workshop: Workshop) -> None:
    """The limit is tested when the file returns to the pool, so the claim that crosses it is still inside."""
    repository = workshop.make(claims={"max_appendable_size": Quantity(100)})

    records = put_each(repository, "q", [b"x" * 60] * 3)

    first, second, third = map(claim_of, records)
    assert (first.offset, second.offset, third.offset) == (0, 60, 0)
    assert first.resource == second.resource != third.resource
    assert entry_of(repository, records[0]).claim.sealed
    assert not entry_of(repository, records[2]).claim.sealed


def test_a_file_holds_at_most_max_flow_files_when_they_come_one_by_one(workshop: Workshop) -> None:
    """Three claims end the file where three are allowed."""
    repository = workshop.make(claims={"max_flow_files": 3})

    claims = [claim_of(record) for record in put_each(repository, "q", [b"x"] * 7)]

    assert [claims.index(claim) // 3 for claim in claims] == [
        sorted({claim.resource for claim in claims}).index(claim.resource) for claim in claims
    ]


def test_a_batch_fills_files_up_to_max_batch_file(workshop: Workshop) -> None:
    """A batch ignores both limits up to its own, so that it costs few syncs."""
    repository = workshop.make(claims={"max_batch_file": Quantity(64 * KB), "max_flow_files": 2})

    records = put_all(repository, "q", [b"x" * KB] * 100)

    by_file = Counter(claim_of(record).resource for record in records)
    assert by_file.total() == 100
    assert max(by_file.values()) <= 64
    assert len(by_file) <= 4
    assert all(entry_of(repository, record).claim.sealed for record in records)


def test_a_large_claim_starts_on_4_kib_and_ends_its_file(repository: Engine) -> None:
    """It shares its file with what came before, and with nothing after it."""
    small = put_all(repository, "q", [b"a" * 100])[0]

    large = put_all(repository, "q", [b"b" * (2 << 20)])[0]
    after = put_all(repository, "q", [b"c" * 100])[0]

    assert claim_of(large).resource == claim_of(small).resource
    assert claim_of(large).offset == 4096
    assert entry_of(repository, large).claim.sealed
    assert entry_of(repository, large).claim.length == claim_of(large).end
    assert claim_of(after).resource != claim_of(large).resource


def test_a_large_claim_ends_its_file_inside_one_session_too(repository: Engine) -> None:
    """What the same session writes while a large content streams lands in another file."""
    with committing(repository) as session:
        large, small = session.create(), session.create()
        with session.writing(large) as out:
            out.write(b"L" * (2 << 20))
            small = session.write(small, b"amid")
            out.write(b"L" * (1 << 20))
        session.transfer_many([large, small], "q")

    found = {record.size: record for record in repository.ledger.flow_files()}
    assert claim_of(found[3 << 20]).resource != claim_of(found[4]).resource
    assert repository.reader.read(claim_of(found[4]), 0, 4) == b"amid"


def test_lifetime_classes_never_share_a_file(repository: Engine) -> None:
    """Each class has its own files, so that files die whole."""
    with committing(repository) as session:
        records = {lifetime: session.ingest("q", [b"x"] * 3, lifetime=lifetime) for lifetime in Lifetime}

    files = {lifetime: {claim_of(record).resource for record in some} for lifetime, some in records.items()}
    assert len(set.union(*files.values())) == 3
    assert all(entry_of(repository, some[0]).claim.lifetime == lifetime for lifetime, some in records.items())


def test_nothing_is_appended_after_a_restart(workshop: Workshop, repository: Engine) -> None:
    """What was open is sealed at close, and after a crash at the next start."""
    before = put_all(repository, "q", [b"before"])[0]

    repository = workshop.reopen()
    between = put_all(repository, "q", [b"between"])[0]
    repository = workshop.crash()
    after = put_all(repository, "q", [b"after"])[0]

    assert len({claim_of(record).resource for record in (before, between, after)}) == 3
    assert entry_of(repository, before).claim.sealed
    assert entry_of(repository, between).claim.sealed


def test_indexes_are_never_used_twice_whatever_the_clock_does(workshop: Workshop) -> None:
    """A crash, a clean restart and a clock that goes back an hour: every file gets an index of its own."""
    repository = workshop.make(claims={"max_flow_files": 1})
    seen = [claim_of(record).resource for record in put_each(repository, "q", [b"x"] * 3)]

    for reopen in (workshop.crash, workshop.reopen, workshop.crash):
        workshop.clock.advance(-3600)
        repository = reopen()
        with repository.session() as session:
            seen.append(claim_of(session.ingest("q", [b"lost"])[0]).resource)
        seen.append(claim_of(put_all(repository, "q", [b"y"])[0]).resource)

    assert seen[0] == 1
    assert len(set(seen[:3] + seen[4::2])) == 6
    assert all(index > max(seen[:3]) for index in seen[3:])


def test_an_index_is_not_used_again_after_its_file_was_deleted(workshop: Workshop) -> None:
    """Deleting the newest file and restarting does not bring its index back."""
    repository = workshop.make(archive={"enabled": False}, claims={"max_flow_files": 1})
    index = claim_of(put_all(repository, "q", [b"x"])[0]).resource
    repository.queues.drop(repository.queue("q"))
    repository.reclamation.clean()
    repository.checkpoint()

    repository = workshop.crash()

    assert claim_of(put_all(repository, "q", [b"y"])[0]).resource > index


def test_a_file_is_not_appended_to_once_its_seal_is_logged(workshop: Workshop, files: FailingFiles) -> None:
    """Whatever limits are adopted between the transaction that seals it and its being given back."""
    repository = workshop.make(claims={"max_appendable_size": Quantity(10)})
    put_all(repository, "q", [b"first"])  # so that the numbers of files are reserved
    gate = files.hold("sync", "*.wal")
    sealing = threading.Thread(target=put_all, args=(repository, "q", [b"0123456789"]))
    sealing.start()
    gate.wait_until_reached()

    larger = msgspec.structs.replace(repository.spec.claims, max_appendable_size=Quantity(100))
    repository.adopt(msgspec.structs.replace(repository.spec, claims=larger))
    gate.open()
    sealing.join()
    put_all(repository, "q", [b"more"])

    assert repository.check(deep=True).problems == ()
    assert drain(workshop.crash(), "q") == [b"first", b"0123456789", b"more"]


def test_programs_that_store_one_content_each_fill_all_containers(workshop: Workshop) -> None:
    """A store begins where least lies: the turn of a program that has ended is not known any more."""
    repository = workshop.make(storage=TWO)
    for _ in range(8):
        put_each(repository, "q", [bytes(10 * KB)])
        repository = workshop.reopen()

    names = Counter(name.split("/")[0] for name in content_sizes(workshop.path))
    assert names == {"c1": 4, "c2": 4}

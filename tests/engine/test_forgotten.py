"""What is dropped without an end gives back what it held, at the next safe point, with a warning that names its line.

A finalizer takes no lock: each test of that kind collects while the collecting thread holds the locks itself.
"""

import gc
import inspect
import subprocess
import sys
import threading
from _thread import start_new_thread
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue

import pytest

import ullage
from tests.support import Workshop, drain, entry_of, open_descriptors, put_all
from ullage.embedded.repository import EmbeddedRepository, open_embedded
from ullage.engine.engine import Engine
from ullage.engine.maintenance import MaintenanceRunner
from ullage.engine.session import ProcessSession
from ullage.errors import CommitOutcomeUnknown

BIG = bytes(range(256)) * 8_000


def here() -> str:
    """The caller's line, as a warning names it."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"{__file__}:{frame.f_back.f_lineno}"


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[EmbeddedRepository]:
    """As programs have it."""
    with closing(open_embedded(tmp_path / "r", None, create=True, maintain=False)) as repository:
        yield repository


def test_a_forgotten_session_returns_what_it_polled(repository: Engine) -> None:
    """To their queues, as they were, whatever it has made of them; those it created are gone with its files."""
    put_all(repository, "q", [b"1", b"2", b"3"])
    session = repository.session()
    first, second = session.get_many("q", 2)
    session.remove(session.put_attribute(first, "changed", "yes"))
    session.write(second, BIG)
    session.transfer(second, "elsewhere")

    with pytest.warns(ResourceWarning, match="a session opened at .*: end it"):
        del session

    with repository.session() as session:
        assert [record.attribute_map().get("changed") for record in session.get_many("q", 9)] == [None] * 3
    assert repository.queue("elsewhere").is_empty


def test_the_warning_names_where_it_was_opened(opened: EmbeddedRepository) -> None:
    """File and line of the program, not of this package: of a session, of a stream and of a put."""
    opened.queues.put("q", b"content")
    handle = opened.handles.put(b"content")
    session, line = opened.session(), here()
    session.get_many("q")
    with pytest.warns(ResourceWarning, match=f"a session opened at {line} was forgotten") as warned:
        del session
    assert f"{warned[0].filename}:{warned[0].lineno}" == line

    stream, line = opened.handles.stream(handle), here()
    with pytest.warns(ResourceWarning, match=f"a content stream opened at {line} was forgotten"):
        del stream

    stream, line = opened.content(opened.queues.put("q", b"other")), here()
    with pytest.warns(ResourceWarning, match=f"a content stream opened at {line} was forgotten"):
        del stream
    assert opened.state().forgotten == 3


def test_a_thread_that_begins_with_the_call_opens_as_any_other(repository: Engine) -> None:
    """Above the call there is no program then, whose line a warning could name."""
    opened: SimpleQueue[ProcessSession] = SimpleQueue()
    start_new_thread(deque, (map(opened.put, map(repository.session, ["component"])),))  # no frame of Python's own

    with opened.get(timeout=60) as session:
        assert session.get_many("q", 1) == []


def test_what_was_ended_is_not_forgotten(opened: EmbeddedRepository) -> None:
    """Committed, rolled back, closed, or never used: no warning, which would fail this test, and nothing counted."""
    opened.queues.put("q", b"content")
    handle = opened.handles.put(b"content")
    with opened.session() as session:
        session.remove(session.get_many("q"))
        session.commit()
    kept = opened.session()
    kept.ingest("q", [b"more"])
    kept.rollback()
    opened.session()
    with opened.handles.stream(handle) as stream:
        stream.read(3)
    del session, kept, stream
    gc.collect()

    assert opened.state().forgotten == 0


def test_a_stream_of_a_session_keeps_its_flow_file(opened: EmbeddedRepository) -> None:
    """Only the stream is left: the FlowFile that it reads stays held until that is gone, too."""
    opened.queues.put("q", BIG)
    session = opened.session()
    (flow_file,) = session.get_many("q")
    stream = session.read(flow_file)
    del session
    gc.collect()

    assert opened.queues.find("q").held == 1
    assert stream.read() == BIG
    with pytest.warns(ResourceWarning, match="a session"):
        del stream
    assert opened.queues.find("q").held == 0


def test_a_forgotten_stream_lets_space_be_given_back(workshop: Workshop, repository: Engine) -> None:
    """Its pin is gone before the next survey: the content that has died meanwhile is reclaimed."""
    handle = repository.handles.put(BIG)
    entry = entry_of(repository, repository.handles.head(handle))
    stream = repository.handles.get(handle)
    repository.handles.delete(handle)
    workshop.clock.advance(365 * 86_400)
    repository.handles.purge()
    assert entry.pins

    with pytest.warns(ResourceWarning, match="a content stream"):
        del stream
    assert entry.pins, "a finalizer has taken the ledger's lock"
    repository.reclamation.survey()

    assert not entry.pins


def test_a_forgotten_import_gives_its_pin_back(repository: Engine) -> None:
    """A session pins a handle that it imports until its end."""
    handle = repository.handles.put(b"content")
    record = repository.handles.head(handle)
    session = repository.session()
    session.import_handle(record.uuid)
    with pytest.warns(ResourceWarning, match="a session"):
        del session

    repository.session()
    assert not entry_of(repository, record).pins


def test_a_forgotten_put_gives_its_file_back(workshop: Workshop, repository: Engine) -> None:
    """What was written is dead; its descriptor is closed, and its file gone."""
    put = repository.handles.begin()
    put.write(BIG)
    assert open_descriptors(workshop.path / "c1")
    with pytest.warns(ResourceWarning, match="the put of a handle"):
        del put

    repository.session()
    assert not open_descriptors(workshop.path / "c1")


def test_an_unknown_outcome_is_not_given_back(
    workshop: Workshop, repository: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction may stand: what it polled stays out of the queue until a restart tells."""
    put_all(repository, "q", [b"1"])
    session = repository.session()
    session.remove_many(session.get_many("q", 1))

    def unknown(_: int) -> None:
        raise CommitOutcomeUnknown("nobody can say")

    with monkeypatch.context() as patched:
        patched.setattr(repository.log, "wait_durable", unknown)
        with pytest.raises(CommitOutcomeUnknown):
            session.commit()
    del session
    gc.collect()

    repository.forgotten.tend()
    assert (repository.queue("q").figures().held, repository.forgotten.noted) == (1, 0)
    workshop.crash()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_collection_under_the_engines_locks_waits_for_nothing(repository: Engine) -> None:
    """Sessions, streams and puts in cycles, collected by a thread that holds the locks of ledger, queue and pool."""
    put_all(repository, "q", [b"1", b"2"])
    handle = repository.handles.put(b"content")
    record = repository.handles.head(handle)

    def forget() -> None:
        session, stream, put = repository.session(), repository.handles.get(handle), repository.handles.begin()
        session.get_many("q", 2)
        session.import_handle(record.uuid)
        session.ingest("q", [b"3"])
        put.write(BIG)
        cycle: list[object] = [session, stream, put]
        cycle.append(cycle)

    def collect() -> None:
        locks = repository.ledger.lock, repository.queue("q")._lock, repository.content._lock  # type: ignore[attr-defined]
        with locks[0], locks[1], locks[2]:
            gc.collect()

    gc.disable()
    try:
        forget()
        thread = threading.Thread(target=collect, daemon=True)
        thread.start()
        thread.join(60)
    finally:
        gc.enable()
    assert not thread.is_alive(), "a finalizer waits for a lock that its own thread holds"
    assert repository.forgotten.noted == 3

    assert sorted(drain(repository, "q")) == [b"1", b"2"]
    assert not entry_of(repository, record).pins


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_threads_that_forget_lose_nothing(opened: EmbeddedRepository) -> None:
    """Four threads poll and forget, while the others poll: in the end each FlowFile stands in its queue once."""
    opened.queues.put_many("q", [b"%d" % number for number in range(400)])

    def forget() -> None:
        for _ in range(50):
            session = opened.session()
            session.get_many("q", 5)

    threads = [threading.Thread(target=forget) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()

    with opened.session() as session:
        found = {session.read(flow_file).read() for flow_file in session.get_many("q", 1_000)}
    assert found == {b"%d" % number for number in range(400)}
    assert opened.queues.find("q").held == 0


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_upkeep_gives_back_and_tells_what_fails(repository: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who only comes by meets no error of somebody else's session; maintenance tells it, and goes on."""
    put_all(repository, "q", [b"1"])
    runner = MaintenanceRunner(repository)
    session: ProcessSession | None = repository.session()
    assert session is not None
    session.get_many("q", 1)
    monkeypatch.setattr(repository.ledger, "unpin", lambda _: 1 / 0)
    session = None

    repository.session()
    with pytest.raises(ZeroDivisionError):
        repository.forgotten.tend()
    repository.forgotten.tend()
    assert "forgotten" in [task.name for task in runner._tasks]
    assert repository.queue("q").figures().held == 0


def test_what_is_forgotten_behind_the_close_stays_silent(workshop: Workshop, repository: Engine) -> None:
    """Nothing is given back into a repository that another process may have open by now; the next start has it all."""
    put_all(repository, "q", [b"1"])
    session = repository.session()
    session.get_many("q", 1)
    stream = repository.handles.get(repository.handles.put(b"content"))
    repository.close()
    del session, stream
    gc.collect()

    assert drain(workshop.open(), "q") == [b"1"]


def test_the_close_gives_back_what_waits(workshop: Workshop, repository: Engine) -> None:
    """A put that was forgotten just before: its file goes with the close, and is no orphan of the next start."""
    put = repository.handles.begin()
    put.write(BIG)
    with pytest.warns(ResourceWarning, match="put"):
        del put
    repository.close()

    files = [path for path in (workshop.path / "c1").rglob("*") if path.is_file() and path.name != "ballast"]
    assert not [path for path in files if path.stat().st_size >= len(BIG)]


ENDS = """
import sys, ullage
repository = ullage.open(sys.argv[1], create=True, maintain=False)
repository.queues.put("q", b"content")
session = repository.session()
session.get_many("q")
stream = repository.handles.stream(repository.handles.put(b"content"))
kept = [session, stream]
kept.append(kept)
"""


def test_the_end_of_a_program_is_silent(tmp_path: Path) -> None:
    """With everything left open, and all warnings on: nothing is printed, and the next start finds everything."""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", ENDS, str(tmp_path / "r")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with ullage.open(tmp_path / "r") as repository, repository.session() as session:
        assert len(session.get_many("q")) == 1

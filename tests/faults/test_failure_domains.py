"""Nothing stops more than itself: for each fault what may be lost or stopped, what goes on, and who is told.

Each test is one row of that table, with a real repository on a real disk, through what users have: `ullage.open`,
`ullage.connect` and the command line. What each part does in detail is tested where it lies.
"""

import json
import socket
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

import ullage
from tests.cli.test_errors import assert_fails, run
from tests.faults import volumes
from tests.service.running import Running, document_at, until
from tests.support import TWO, careless_log as careless_log, flip
from ullage.clock import Clock
from ullage.contract import dump
from ullage.embedded.repository import EmbeddedRepository, open_embedded
from ullage.engine.maintenance import MaintenanceRunner
from ullage.engine.model import FlowFileRecord
from ullage.errors import ContentCorrupt, ContentMissing, HandleDeleted, HandleNotFound, RepositoryDamaged
from ullage_agent.cli.exits import ExitCode
from ullage_agent.service.limits import Limits

DAY = 86_400_000
YEAR = 365 * DAY

CONTENTS = [b"%d " % number * 20_000 for number in range(6)]
"""Six queues have one each: see `stored`."""

SETTINGS: dict[str, Any] = {
    "claims": {"max_flow_files": 1},
    "archive": {"enabled": False, "backpressure_percentage": 100},
}


def here(root: Path, **sections: Any) -> EmbeddedRepository:
    """Opened as a program opens it, with a file for each content."""
    document = document_at(root, **SETTINGS | sections)
    (root.parent / "flows.yaml").write_text(json.dumps(dump(document)), encoding="utf-8")
    return open_embedded(None, document, create=True, maintain=False)


def command(root: Path, *words: str) -> Any:
    return run(*words, "--config", root.parent / "flows.yaml")


def stored(repository: ullage.Repository) -> list[str]:
    """One FlowFile in a queue of its own for each content; their uuids."""
    return [
        repository.queues.put(f"q{number}", content, {"filename": f"{number}.txt"})
        for number, content in enumerate(CONTENTS)
    ]


def taken(repository: ullage.Repository, *queues: int) -> list[bytes]:
    """What consumers of these queues get, all of it removed."""
    found = []
    with repository.session() as session:
        for number in queues:
            for flow_file in session.get_many(f"q{number}", 10):
                found.append(session.read(flow_file).read())
                session.remove(flow_file)
        session.commit()
    return found


def goes_on(repository: ullage.Repository) -> None:
    """Writing, reading, removing, a checkpoint and giving space back."""
    handle = repository.handles.put(b"as ever")
    assert repository.handles.get(handle) == b"as ever"
    repository.handles.delete(handle)
    repository.queues.put("on", b"and on")
    with repository.session() as session:
        (flow_file,) = session.get_many("on", 1)
        assert session.read(flow_file).read() == b"and on"
        session.remove(flow_file)
        session.commit()
    repository.checkpoint()
    repository.reclamation.reclaim(respects_guards=True)


def everything(root: Path) -> dict[str, bytes]:
    """The bytes of each file."""
    return {str(each): each.read_bytes() for each in root.rglob("*") if each.is_file()}


def content_file(root: Path, content: bytes) -> Path:
    """Where a content of a file of its own lies."""
    return next(Path(file) for file, found in everything(root / "c1").items() if found == content)


def test_a_record_that_cannot_be_used(tmp_path: Path, careless_log: None) -> None:
    """Lost: that record, which is kept with bytes and reason. All else goes on, the start included; `check`, `ls`,
    state and survey tell, and only a person gives it up.
    """
    root = tmp_path / "r"
    with closing(here(root)) as repository:
        stored(repository)
        record = FlowFileRecord(b"u" * 16, 1, None, 0, 0, 1 << 63, 1, 1, b"\x80")
        repository.engine.committer.commit([record], creates=False)

    with closing(here(root)) as repository:
        (aside,) = repository.set_aside(10)
        assert aside.reason
        assert repository.state().records_set_aside == 1
        goes_on(repository)
        assert taken(repository, *range(6)) == CONTENTS
    told = command(root, "ls", "--set-aside", "--json").stdout
    assert aside.id in told
    assert b64encode(msgspec.msgpack.encode(record)).decode() in told
    checked = command(root, "check")
    assert (checked.exit_code, aside.id in checked.stdout) == (ExitCode.OK, True)
    assert_fails(command(root, "set-aside", "drop", aside.id), ExitCode.USAGE, "--accept-loss")
    assert command(root, "set-aside", "drop", aside.id, "--accept-loss").exit_code == ExitCode.OK
    with closing(here(root)) as repository:
        assert repository.set_aside(10) == []


def damaged(file: Path) -> None:
    flip(file, 1_000)


def cut_short(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.truncate(1_000)


def missing(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize("fault", [damaged, cut_short, missing])
@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_damaged_short_or_missing_content_file(tmp_path: Path, fault: Callable[[Path], None], how: str) -> None:
    """Stopped: the FlowFile whose bytes are in it, which keeps its place and is named by uuid, filename, queue and
    file. The start, all others and the reclamation of other files go on; `check`, `ls` and state tell.
    """
    root = tmp_path / "r"
    repository = here(root)
    ids = stored(repository)
    if how == "killed":
        repository.engine.log.abandon()
    repository.close()
    file = content_file(root, CONTENTS[2])
    whole = file.read_bytes()
    fault(file)

    with closing(here(root)) as repository:
        repository.engine.proof.run()
        goes_on(repository)
        if how == "closed":  # after a kill it is found without a reader
            with pytest.raises((ContentCorrupt, ContentMissing), match=f"{ids[2]}.*2.txt.*q2.*{file.name}"):
                taken(repository, 2)
        assert taken(repository, 0, 1, 2) == CONTENTS[:2]
        repository.reclamation.reclaim()
        assert CONTENTS[0] not in everything(root / "c1").values()
    checked = command(root, "check", "--deep")
    assert checked.exit_code == ExitCode.PROBLEMS
    told = command(root, "ls", "--unavailable", "--json").stdout
    assert not [id for id in ids if id in told and id != ids[2]]
    for tells in (ids[2], "2.txt", "q2", file.name):
        assert tells in checked.stdout
        assert tells in told

    file.write_bytes(whole)
    assert command(root, "unavailable", "retry").exit_code == ExitCode.OK
    with closing(here(root)) as repository:
        assert taken(repository, *range(6)) == CONTENTS[2:]


@contextmanager
def gone(volume: Path) -> Iterator[None]:
    """Unmounted: what is left is the empty directory that it was mounted on."""
    aside = volume.with_name("aside")
    volume.rename(aside)
    volume.mkdir()
    yield
    volume.rmdir()
    aside.rename(volume)


@contextmanager
def read_only(volume: Path) -> Iterator[None]:
    """As a kernel makes it that has found an error."""
    volumes.run("mount", "-o", "remount,ro", str(volume))
    yield
    volumes.run("mount", "-o", "remount,rw", str(volume))


@contextmanager
def full(volume: Path) -> Iterator[None]:
    """Others have taken what room was left."""
    filled = volumes.Volume(volume, volume / "none")
    filled.fill()
    yield
    filled.unfill()


VOLUME = {gone: "away", read_only: "read-only", full: "available"}
"""What the survey calls it; of a full one it says how full."""

MOUNTED = pytest.mark.skipif("tmpfs" not in volumes.fillable(), reason="mounting needs root")


@pytest.mark.parametrize("fault", [gone, pytest.param(read_only, marks=MOUNTED), pytest.param(full, marks=MOUNTED)])
def test_a_volume_gone_read_only_or_full(tmp_path: Path, fault: Any) -> None:
    """Stopped: the contents on a volume that is gone, until it is back. Writes go to the other one, each volume gives
    its own space back, a start serves what is there; survey, state and `check` tell.
    """
    root = tmp_path / "r"
    two = {"storage": TWO}
    with ExitStack() as mounts:
        (root / "c2").mkdir(parents=True)
        if fault is not gone:
            volumes.run("mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(root / "c2"))
            mounts.callback(volumes.run, "umount", "--lazy", str(root / "c2"))
        repository = here(root, **two)
        stored(repository)
        on_c2 = everything(root / "c2").values()
        on_it = [number for number, content in enumerate(CONTENTS) if content in on_c2]
        others = [number for number in range(6) if number not in on_it]
        assert on_it
        assert others
        repository.engine.content.retire_idle()  # no kernel remounts read-only what is open for writing
        with fault(root / "c2"):
            repository.engine.volumes.look()
            goes_on(repository)
            for number in range(6):
                repository.queues.put("more", CONTENTS[number])
            assert taken(repository, *others[1:]) == [CONTENTS[number] for number in others[1:]]
            states = {each.name: each.volume for each in repository.reclamation.survey().containers}
            assert states == {"c1": "available", "c2": VOLUME[fault]}
            if fault is gone:
                assert taken(repository, *on_it) == []
                problems = repository.check().problems
                assert "c2" in problems[0]
                assert all(any(f"{n}.txt" in problem for problem in problems) for n in on_it)
            else:
                assert taken(repository, on_it[0]) == [CONTENTS[on_it[0]]]
            repository.close()
            repository = here(root, **two)
            assert taken(repository, others[0]) == [CONTENTS[others[0]]]
        repository.engine.volumes.look()
        left = on_it if fault is gone else on_it[1:]
        assert taken(repository, *left) == [CONTENTS[number] for number in left]
        repository.close()


@pytest.mark.parametrize("part", ["log", "snapshot"])
def test_a_log_or_snapshot_damaged_beyond_proof(tmp_path: Path, part: str) -> None:
    """Stopped: the start, with an exit code and a message that names the file and the way on; nothing is removed or
    changed. What can be proved is salvaged; put back, everything is there.
    """
    root = tmp_path / "r"
    with closing(here(root)) as repository:
        stored(repository)
        if part == "log":
            repository.engine.log.abandon()
    (file,) = root.glob("flowfile/partition-0/*.wal" if part == "log" else "flowfile/snapshot")
    whole = file.read_bytes()
    flip(file, 150)
    before = everything(root)

    shown = command(root, "ls", "queues")
    assert_fails(shown, ExitCode.REPOSITORY, file.name, "backup")
    assert_fails(command(root, "check"), ExitCode.REPOSITORY, file.name)
    with pytest.raises(RepositoryDamaged, match=file.name):
        here(root)
    made = run("salvage", root, tmp_path / "new")
    assert made.exit_code == ExitCode.INCOMPLETE
    assert file.name in made.stderr
    with closing(ullage.open(tmp_path / "new")) as repository:
        assert repository.check(deep=True).problems == ()
    assert everything(root) == before

    file.write_bytes(whole)
    with closing(here(root)) as repository:
        assert taken(repository, *range(6)) == CONTENTS


SHORT = Limits(header_seconds=1.0, stall_seconds=1.0)
"""Longer than a busy machine keeps a client that goes on from its next step. Not idle_seconds: a client may reuse its
connection in the moment in which the server closes it.
"""


def test_a_client_that_sends_bad_bytes_stalls_never_closes_or_dies(tmp_path: Path) -> None:
    """Lost: its request, its stream and its session, after a bound. Every other client goes on, the probes always;
    it is told with 4xx where it still listens, and the metrics count it.
    """
    with Running(document_at(tmp_path / "r", **SETTINGS), SHORT) as running:
        split = urlsplit(running.url)

        def said(raw: bytes) -> socket.socket:
            made = socket.create_connection((split.hostname, split.port), timeout=30)
            made.sendall(raw)
            return made

        bad = said(b"\0\xff" * 500 + b"\r\n\r\n")
        stalled = said(b"POST /v1/handles HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000000\r\n\r\nhalf")
        never_closes = said(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        dead = said(b"POST /v1/handles HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000000\r\n\r\nhalf")
        dead.close()
        session = running.client.post("/v1/sessions", json={"visibility_seconds": 1.0})
        assert session.status_code < 300, session.text
        with ullage.connect(running.url) as other:
            goes_on(other)
            stored(other)
        for client in (bad, stalled, never_closes):
            assert not [1 for line in answer(client).splitlines() if line.startswith(b"HTTP/1.1 5")]
        for probe in ("/healthz", "/readyz"):
            assert running.client.get(probe).status_code == 200
        until(lambda: running.client.get("/v1/state").json()["sessions"] == 0, "the forgotten session")
        with ullage.connect(running.url) as other:
            assert taken(other, *range(6)) == CONTENTS
            assert list(other.handles.all()) == [head for head in other.handles.all() if head.deleted_millis]


def answer(client: socket.socket) -> bytes:
    """Everything until the server closes."""
    received = b""
    with client:
        try:
            while data := client.recv(65_536):
                received += data
        except ConnectionResetError:
            return received  # it closed on what was still coming
    return received


def lives_on(repository: EmbeddedRepository, handle: str, deleted: str, jump: Callable[[int], None], by: int) -> None:
    """What would have died by a clock that is wrong is there after each task of maintenance, and all else goes on."""
    jump(by)
    assert repository.state().clock.reason
    repository.queues.put("q6", b"meanwhile")
    upkeep = MaintenanceRunner(repository.engine)
    for task in upkeep._tasks:
        task.run()
    goes_on(repository)
    repository.handles.undelete(deleted)
    assert repository.handles.get(deleted) == b"deleted"
    assert repository.handles.get(handle) == b"a day"
    assert taken(repository, *range(7)) == [*CONTENTS, b"meanwhile"]
    assert repository.provenance.search().events


@pytest.mark.parametrize("moment", ["at the start", "while running"])
@pytest.mark.parametrize("by", [11 * YEAR, -50 * YEAR], ids=["years ahead", "back to before 1980"])
def test_a_clock_that_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, by: int) -> None:
    """Lost: nothing, until a person accepts the time. Everything goes on; `clock`, `check` and state tell."""
    root, real = tmp_path / "r", Clock().now_millis()

    def jump(by: int) -> None:
        monkeypatch.setattr(Clock, "now_millis", lambda _: real + by)

    jump(0)
    with closing(here(root)) as repository:
        repository.queues.define("q0", expiration_millis=60_000)
        stored(repository)
        handle = repository.handles.put(b"a day", ttl_millis=DAY)
        deleted = repository.handles.put(b"deleted")
        repository.handles.delete(deleted)
        if moment == "while running":
            lives_on(repository, handle, deleted, jump, by)
    jump(by)
    if moment == "at the start":
        with closing(here(root)) as repository:
            lives_on(repository, handle, deleted, jump, by)

    assert "clock not believed" in command(root, "check").stdout
    assert command(root, "clock", "accept").exit_code == ExitCode.OK
    assert "is believed" in command(root, "clock").stdout
    with closing(here(root)) as repository:
        assert repository.state().clock.reason == ""
        if by > 0:
            with pytest.raises((HandleDeleted, HandleNotFound)):
                repository.handles.get(handle)


STRUCK = """
import os, resource, signal, sys, threading
import ullage
from ullage.enums import Lifetime
from ullage.errors import ForkedRepository, UllageError


class Struck(Exception):
    pass


def raises(number, frame):
    raise Struck


fault, root = sys.argv[1:]
stored = []
with ullage.open(root, create=True, maintain=False) as repository:
    stored.append(repository.handles.put(b"before"))
    if fault == "fork":
        child = os.fork()
        if child == 0:
            try:
                repository.handles.put(b"child")
            except ForkedRepository:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
    elif fault == "signal":
        struck = 0
        signal.signal(signal.SIGALRM, raises)
        for at in range(100):
            try:  # armed and disarmed in here, and far more puts than it lets through: it strikes nowhere else
                signal.setitimer(signal.ITIMER_REAL, 0.0002 + at % 20 * 0.0001)
                for _ in range(5_000):
                    stored.append(repository.handles.put(b"until it strikes"))
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Struck:
                struck += 1
        assert struck > 50
    elif fault == "too many open files":
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, hard))
        try:
            repository.handles.put(bytes(2_000_000), lifetime=Lifetime.SHORT)
        except (UllageError, OSError) as error:
            assert "open" in str(error), error
        else:
            raise AssertionError("nothing was refused")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    others = []
    threads = [threading.Thread(target=lambda: others.append(repository.handles.put(b"thread"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored += others
    assert len(others) == 4
    assert repository.state().poisoned == []
with ullage.open(root) as repository:
    assert {head.id for head in repository.handles.all()} >= set(stored)
    assert all(repository.handles.get(id) for id in stored)
    assert repository.check(deep=True).problems == ()
"""


@pytest.mark.parametrize("fault", ["signal", "fork", "too many open files"])
def test_a_signal_a_fork_or_too_many_open_files(tmp_path: Path, fault: str) -> None:
    """Lost: the call in which it fell, which is told. The repository and all threads go on."""
    done = subprocess.run(
        [sys.executable, "-c", STRUCK, fault, str(tmp_path / "r")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr


def test_a_session_or_stream_that_is_forgotten(tmp_path: Path) -> None:
    """Lost: nothing. Its FlowFiles stand in their queues, and its content can be given back; a warning names where it
    was opened, and the state counts.
    """
    with closing(here(tmp_path / "r")) as repository:
        stored(repository)
        handle = repository.handles.put(bytes(2_000_000))
        session = repository.session()
        session.write(session.get_many("q0", 1)[0], bytes(2_000_000))
        stream = repository.handles.stream(handle)
        with pytest.warns(ResourceWarning, match=f"opened at {__file__}:[0-9]+ was forgotten") as warned:
            del session, stream

        assert (len(warned), repository.state().forgotten) == (2, 2)
        assert repository.queues.find("q0").held == 0
        assert taken(repository, *range(6)) == CONTENTS
        goes_on(repository)

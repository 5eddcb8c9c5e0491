"""A repository that is open when its process forks stays the parent's; the child is refused, and holds nothing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import ullage

CHILD_ENDS = """
import os, sys, ullage
from ullage.errors import ForkedRepository, RepositoryLocked

def tree(root):
    return {(at, name): os.stat(os.path.join(at, name)).st_size for at, _, names in os.walk(root) for name in names}

root = sys.argv[1]
with ullage.open(root, create=True, maintain=True) as repository:
    first = repository.handles.put(b"before")
    engine, files = repository.engine, repository.engine._files
    closed = [files.open(root + "/ullage.json") for _ in range(20)]  # there is nothing to let go of, and no harm
    for file in closed:
        file.close()
    before = tree(root)
    child = os.fork()
    if child == 0:
        refused = 0
        for use in (
            lambda: repository.handles.put(b"child"),
            lambda: repository.handles.get(first),
            lambda: repository.queues.all(),
            lambda: repository.session(),
            lambda: repository.check(),
            lambda: repository.checkpoint(),
            lambda: repository.state(),
            lambda: files.create(root + "/child"),
            lambda: files.unlink(root + "/ullage.json"),
        ):
            try:
                use()
            except ForkedRepository as error:
                refused += "open it anew in the child" in str(error)
        engine.close()
        if refused != 9 or tree(root) != before:
            os._exit(1)
        sys.exit(0)  # leaves the `with`, collects, and ends as any process does
    assert os.waitpid(child, 0)[1] == 0
    assert tree(root) == before
    try:
        ullage.open(root)
    except RepositoryLocked:
        pass
    else:
        raise AssertionError("the child gave away the parent's lock")
    second = repository.handles.put(b"after")
with ullage.open(root) as repository:
    assert repository.handles.get(first) == b"before"
    assert repository.handles.get(second) == b"after"
    assert repository.check(deep=True).problems == ()
"""

WHAT_IT_HAS = """
import gc, os, signal, sys, threading, ullage, warnings
from pathlib import Path
from ullage.errors import ForkedRepository

def everything(root):
    return {str(path): path.read_bytes() for path in Path(root).rglob("*") if path.is_file()}

warnings.simplefilter("error")
root, big = sys.argv[1], bytes(2_000_000)
with ullage.open(root, create=True, maintain=False) as repository, repository.session() as session:
    engine, handles, queues = repository.engine, repository.handles, repository.queues
    first = handles.put(big)
    queues.put_many("q", [b"1", b"2", b"3"])
    queues.put("large", big)
    held, = session.get_many("q", 1)
    large, = session.get_many("large", 1)
    idle, put = repository.session(), handles.begin()
    with handles.stream(first) as stream, session.read(large) as own:
        begun, own_begun = iter(stream), iter(own)
        next(begun), next(own_begun)
        put.write(big)
        streaming = session.begin(large)
        streaming.write(big)
        dropped = [repository.session(), handles.stream(first), handles.begin()]
        dropped[0].get_many("q", 1)
        dropped[2].write(big)

        # What another thread does as the process forks is never over in the child: nothing there may wait for it.
        held_fast, over = threading.Event(), threading.Event()
        def hold():
            content = engine.content
            locks = (engine.ledger.lock, engine.queue("q")._lock, content._lock, content._open_files._lock)
            for lock in locks:
                lock.acquire()
            held_fast.set()
            over.wait()
            for lock in locks:
                lock.release()
        thread = threading.Thread(target=hold, daemon=True)
        before = everything(root)
        thread.start()
        assert held_fast.wait(30)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            uses = (
                lambda: session.get_many("q", 1),
                lambda: session.create(),
                lambda: session.put_attributes(held, {"a": "b"}),
                lambda: session.read(held),
                lambda: session.write(held, b"child"),
                lambda: session.remove(held),
                lambda: session.penalize(held),
                lambda: session.adjust_counter("c", 1),
                lambda: session.unsettled(),
                lambda: session.provenance.receive(held, "there"),
                lambda: session.commit(),
                lambda: session.rollback(),
                lambda: idle.create(),
                lambda: stream.read(1),
                lambda: next(begun),
                lambda: own.read(1),
                lambda: next(own_begun),
                lambda: put.write(b"child"),
                lambda: put.commit(),
                lambda: streaming.write(b"child"),
                lambda: streaming.commit(),
                lambda: handles.put(b"child"),
                lambda: handles.get(first),
                lambda: handles.head(first),
                lambda: queues.all(),
                lambda: repository.session(),
                lambda: engine.session(),
            )
            for number, use in enumerate(uses):
                try:
                    use()
                except ForkedRepository as error:
                    assert "open it anew in the child" in str(error)
                else:
                    raise AssertionError(f"use {number} was not refused")
            put.abandon(), stream.close(), idle.close()
            dropped.clear()
            gc.collect()
            del begun, own_begun, streaming, idle, put
            gc.collect()
            assert everything(root) == before
            sys.exit(0)  # leaves each `with`, and ends as any process does
        _, status = os.waitpid(child, 0)
        over.set()
        thread.join()
        assert status == 0, status
        assert everything(root) == before
        assert stream.read() and own.read()  # as if nothing had been
    put.abandon()
    idle.close()
    streaming.abandon()
    dropped[0].close(), dropped[1].close(), dropped[2].abandon()
    session.remove([held, large])
    session.commit()
with ullage.open(root, maintain=False) as repository:
    assert repository.handles.get(first) == big
    assert repository.queues.find("q").flow_files == 2
    assert repository.check(deep=True).problems == ()
"""

PARENT_IS_KILLED = """
import os, signal, sys, ullage
repository = ullage.open(sys.argv[1], create=True, maintain=False)
print(repository.handles.put(b"kept"), flush=True)
if os.fork() == 0:
    print(os.getpid(), flush=True)
    signal.pause()
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_child_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    """Every use by its class of error; leaving the `with`, closing and ending leave every file and the lock alone."""
    command = [sys.executable, "-c", CHILD_ENDS, str(tmp_path / "r")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    assert done.returncode == 0, done.stderr


def test_what_a_child_has_of_its_parent_is_refused(tmp_path: Path) -> None:
    """Sessions, streams in the midst of a read or a write, puts, and parts that were known before the fork: each use
    by the same error, without waiting for a lock. To let go of them, and their collection, changes and tells nothing.
    """
    command = [sys.executable, "-c", WHAT_IT_HAS, str(tmp_path / "r")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    assert (done.returncode, done.stderr) == (0, "")


def test_an_idle_child_does_not_hold_the_lock(tmp_path: Path) -> None:
    """The parent is killed while its child lives on: the next process opens at once, and nothing is lost."""
    command = [sys.executable, "-c", PARENT_IS_KILLED, str(tmp_path / "r")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        handle, child = parent.stdout.readline().strip(), int(parent.stdout.readline())
        try:
            parent.stdin.close()
            parent.wait(timeout=60)
            with ullage.open(tmp_path / "r", maintain=False) as repository:
                assert repository.handles.get(handle) == b"kept"
        finally:
            os.kill(child, signal.SIGKILL)

"""What one process of `bench.scale` does to a repository, and what it finds: printed as a line of JSON.

Each phase is a process of its own, in a group that bounds its memory and page cache together, so that what one leaves
in memory helps none of the others.
"""

import argparse
import gc
import json
import os
import random
import resource
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from bench.reclaim import NO_GUARDS
from bench.rounds import seconds_of
from bench.workbench import spec_at
from ullage.contract import ContentRepositorySpec
from ullage.engine.engine import Engine
from ullage.engine.model import Delete, format_uuid, parse_uuid

CONTENT: Final = bytes(range(16))
BATCH: Final = 1_000
SAMPLED: Final = 50
"""One handle in so many is written down, to be asked for and deleted later."""

KILOBYTE: Final = 1_024
PAGE: Final = 4_096


def spec_of(path: Path) -> ContentRepositorySpec:
    """The defaults, but that deleted contents may be given back at once, so that a survey has something to find."""
    return spec_at(path, compaction=NO_GUARDS)


class Phases(NamedTuple):
    """One of its methods is what a process does: with so many handles, and so many calls whose times are taken."""

    path: Path
    handles: int
    calls: int

    def fill(self) -> dict[str, float]:
        """Handles with three attributes, up to so many; a sample of them goes to `sampled` beside the repository."""
        file = self.path.with_suffix(".count")
        there = int(file.read_text(encoding="ascii")) if file.exists() else 0
        written = _written()
        with Engine.open(spec_of(self.path)) as repository:
            begun = time.perf_counter()
            for first in range(there, self.handles, BATCH):
                _put_batch(repository, self.path, range(first, min(first + BATCH, self.handles)))
                if first % 100_000 == 0:
                    print(f"{first:,} of {self.handles:,} handles", file=sys.stderr, flush=True)
            seconds = time.perf_counter() - begun
        file.write_text(str(self.handles), encoding="ascii")
        made = max(1, self.handles - there)
        return {"seconds": seconds / made, "written": (_written() - written) / made}

    def opened(self) -> dict[str, float]:
        """How long a start takes, and how large the process is then, beyond one that has opened nothing."""
        gc.collect()
        before = _resident()
        begun = time.perf_counter()
        with Engine.open(spec_of(self.path)):
            seconds = time.perf_counter() - begun
            gc.collect()
            return {"seconds": seconds, "resident": _resident() - before}

    def puts(self) -> dict[str, float]:
        """Single puts of 1 KB alone and beside checkpoints, in seconds; what a checkpoint writes after one handle in a
        hundred is new.
        """
        with Engine.open(spec_of(self.path)) as repository:
            put = _putting(repository)
            quiet = sorted(seconds_of(put) for _ in range(self.calls))
            repository.checkpoint()
            changed = max(BATCH, self.handles // 100)
            for first in range(0, changed, BATCH):
                _put_batch(repository, self.path, range(first, first + BATCH))
            before = _written()
            repository.checkpoint()
            checkpoint = (_written() - before) / changed
            beside = sorted(_beside_checkpoints(repository, put, self.calls))
        return {
            "put": statistics.median(quiet),
            "quiet p99": _p99(quiet),
            "p99 beside checkpoints": _p99(beside),
            "checkpoint": checkpoint,
        }

    def gets(self) -> dict[str, float]:
        """Contents of cold handles, and bare reads of as many bytes: nothing of the repository is in the page cache."""
        uuids = _sampled(self.path)
        chosen = random.sample(uuids, min(self.calls, len(uuids)))
        files = [file for file in self.path.glob("c*/*/*") if file.is_file() and file.stat().st_size >= PAGE]
        with Engine.open(spec_of(self.path)) as repository:

            def get(uuid: bytes) -> None:
                with repository.handles.get(format_uuid(uuid)) as stream:
                    assert stream.read() == CONTENT

            _forget_pages(self.path)
            reads = psutil.Process().io_counters().read_bytes
            found = [seconds_of(partial(get, uuid)) for uuid in chosen]
            reads = psutil.Process().io_counters().read_bytes - reads
            _forget_pages(self.path)
            bare = [seconds_of(lambda: _pread(random.choice(files))) for _ in chosen] if files else [0.0]
        return {"get": _p99(sorted(found)), "pread": _p99(sorted(bare)), "bytes read": reads / len(chosen)}

    def surveyed(self) -> dict[str, float]:
        """A survey and a plan after one handle in a hundred was deleted."""
        uuids = _sampled(self.path)
        with Engine.open(spec_of(self.path)) as repository:
            repository.reclamation.survey()
            gone = random.sample(uuids, len(uuids) // 2)
            for first in range(0, len(gone), BATCH):
                repository.committer.commit([Delete(b"".join(gone[first : first + BATCH]))], creates=False)
            seconds = seconds_of(repository.reclamation.survey) + seconds_of(repository.compactor.plan)
        self.path.with_suffix(".sampled").write_bytes(b"")
        return {"seconds": seconds}

    def killed(self) -> dict[str, float]:
        """Puts for a while, and then no more: it never returns."""
        repository = Engine.open(spec_of(self.path))
        put = _putting(repository)
        for _ in range(10 * self.calls):
            put()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it is over by now")


NAMES: Final = ("fill", "opened", "puts", "gets", "surveyed", "killed")


def _put_batch(repository: Engine, path: Path, numbers: range) -> None:
    attributes = [
        {"source": f"gateway-{number % 97:02d}", "kind": "reading", "number": str(number)} for number in numbers
    ]
    ids = repository.handles.put_many([CONTENT] * len(numbers), attributes)
    with path.with_suffix(".sampled").open("ab") as file:
        file.writelines(map(parse_uuid, ids[::SAMPLED]))


def _putting(repository: Engine) -> Callable[[], object]:
    contents = [os.urandom(KILOBYTE) for _ in range(64)]
    attributes = {"kind": "reading"}
    return lambda: repository.handles.put(random.choice(contents), attributes)


def _beside_checkpoints(repository: Engine, put: Callable[[], object], calls: int) -> Iterator[float]:
    over = threading.Event()
    failures: list[Exception] = []

    def checkpoints() -> None:
        try:
            while not over.is_set():
                repository.checkpoint()
        except Exception as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    thread = threading.Thread(target=checkpoints)
    thread.start()
    try:
        for _ in range(calls):
            yield seconds_of(put)
    finally:
        over.set()
        thread.join()
    if failures:
        raise failures[0]


def _pread(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(descriptor, len(CONTENT), random.randrange(os.fstat(descriptor).st_size - len(CONTENT)))
    finally:
        os.close(descriptor)


def _p99(ordered: Sequence[float]) -> float:
    return ordered[int(0.99 * (len(ordered) - 1))]


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)


def _written() -> int:
    """Bytes that this process has sent to the disk."""
    return int(psutil.Process().io_counters().write_bytes)


def _sampled(path: Path) -> list[bytes]:
    data = path.with_suffix(".sampled").read_bytes()
    return [data[at : at + 16] for at in range(0, len(data), 16)]


def _forget_pages(path: Path) -> None:
    """What is written of these files leaves the page cache."""
    for file in path.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def main() -> None:
    """Join the group, do one phase, say what was found."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale_phases")
    parser.add_argument("phase", choices=NAMES)
    parser.add_argument("path", type=Path)
    parser.add_argument("handles", type=int)
    parser.add_argument("calls", type=int)
    parser.add_argument("--group", type=Path, help="a memory cgroup's directory")
    options = parser.parse_args()
    if options.group is not None:
        (options.group / "cgroup.procs").write_text(str(os.getpid()))
    found: dict[str, float] = getattr(Phases(options.path, options.handles, options.calls), options.phase)()
    found["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024
    print(json.dumps(found))


if __name__ == "__main__":
    main()

"""One running cluster's folder, and the record in it of what it started: enough to end it after its owner was killed.

    CACHE/clusters/NAME/state.json   owner, processes, ports, control groups; replaced as a whole at each change
    CACHE/clusters/NAME/log/         what each process printed
    CACHE/clusters/NAME/...          certificates, etcd's data, the nodes' disks

A process is one of ours if its id, its start time and the machine's boot are those recorded: an id alone comes back.
It is recorded before it becomes what it is to be: it waits on a pipe, and if its owner dies in between, the pipe ends
and so does it.

    owner      fork ──────── record id and start time ──── write to the pipe
    process         waits ────────────────────────────────────────── exec etcd ...
"""

import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.cluster.cache import cache_root, locked
from tests.cluster.errors import ClusterError
from tests.cluster.say import say

GO = {"GOGC": "400"}
"""For programs in Go: by themselves an API server and kubectl spend a tenth of their time looking for free memory."""

PORTS = range(21_000, 31_000)
"""Below what Linux gives to outgoing connections: nobody takes one by chance between our choice and its use."""

HOLD = 'read -r _ && exec "$@" </dev/null'
"""Shell: become the program once the owner says so."""

SECONDS_TO_DIE = 20


@dataclass(frozen=True)
class Process:
    """A process that can be told from a later one with the same id."""

    pid: int
    started: int  # clock ticks since boot
    name: str = ""

    @classmethod
    def of(cls, pid: int, name: str = "") -> "Process":
        """The process that has this id now."""
        started = start_time(pid)
        if started is None:
            raise ClusterError(f"process {pid} ({name}) is gone")
        return cls(pid, started, name)

    @property
    def lives(self) -> bool:
        """Whether it still runs; a zombie does not."""
        return start_time(self.pid) == self.started

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End it and its group, and wait until it is gone."""
        if not self.lives:
            return
        descriptor = os.pidfd_open(self.pid)
        try:
            if self.lives:  # the descriptor holds this process, so from here on the id cannot have become another's
                try:
                    os.killpg(self.pid, number)
                except (ProcessLookupError, PermissionError):  # it ended by itself, or leads no group of ours
                    signal.pidfd_send_signal(descriptor, number)
                select.select([descriptor], [], [], SECONDS_TO_DIE)
        finally:
            os.close(descriptor)


def start_time(pid: int) -> int | None:
    """When the process began, in clock ticks since boot; None if there is none, or only what its parent has to reap."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def boot() -> str:
    """Names the time since the kernel started."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass
class State:
    """What must end with the cluster."""

    boot: str
    owner: Process | None  # None: kept until somebody takes it down
    processes: list[Process] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    cgroups: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, home: Path) -> "State":
        """What `home` recorded."""
        data = json.loads((home / "state.json").read_text())
        owner = data.pop("owner")
        processes = [Process(**process) for process in data.pop("processes")]
        return cls(owner=Process(**owner) if owner else None, processes=processes, **data)

    def write(self, home: Path) -> None:
        """Replace what `home` recorded."""
        fresh = home / "state.json.new"
        fresh.write_text(json.dumps(asdict(self), indent=1))
        os.replace(fresh, home / "state.json")

    @property
    def abandoned(self) -> bool:
        """Nobody will take it down: its owner is dead, or it was kept and none of it runs any more."""
        if self.boot != boot():
            return True
        if self.owner is not None:
            return not self.owner.lives
        return bool(self.processes) and not any(process.lives for process in self.processes)


class Instance:
    """A cluster's folder and processes. Use `create`, and `close` in a finally."""

    def __init__(self, home: Path, state: State) -> None:
        self.home = home
        self.state = state
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    @classmethod
    def create(cls, kind: str, *, kept_as: str | None = None) -> "Instance":
        """A new folder, after the removal of abandoned ones. `kept_as` names a cluster that outlives its owner."""
        sweep()
        with locked(clusters() / ".lock"):
            home = clusters() / (kept_as or f"{kind}-{secrets.token_hex(4)}")
            if home.exists():
                raise ClusterError(f"there is a cluster {home.name} already; `make cluster-down` takes it down")
            state = State(boot(), None if kept_as else Process.of(os.getpid(), "owner"))
            fresh = clusters() / f".{home.name}.new"
            shutil.rmtree(fresh, ignore_errors=True)
            (fresh / "log").mkdir(parents=True)
            state.write(fresh)
            fresh.rename(home)
        return cls(home, state)

    def free_port(self) -> int:
        """A port of this machine that no cluster of ours has, recorded as this one's."""
        with locked(clusters() / ".lock"):
            taken = {port for _, state in _recorded() for port in state.ports}
            for port in PORTS:
                if port not in taken and _can_listen(port):
                    self.state.ports.append(port)
                    self.state.write(self.home)
                    return port
        raise ClusterError(f"no free port in {PORTS}")

    def start(
        self, name: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process that ends with the cluster; what it prints goes to `log/NAME`."""
        with self.log(name).open("ab") as log:
            child = subprocess.Popen(
                ["sh", "-c", HOLD, "sh", *map(str, command)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self.home,
                env={**os.environ, **GO, **(environment or {})},
                start_new_session=True,  # Ctrl-C in a terminal is the owner's business, who then ends them in order
            )
        self._children[child.pid] = child
        self.state.processes.append(Process.of(child.pid, name))
        self.state.write(self.home)
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.close()
        return child

    def end(self, name: str, number: int = signal.SIGKILL) -> None:
        """End the processes of this name; when killed, what they hold is thrown away, or is to survive exactly that."""
        ending = [process for process in self.state.processes if process.name == name]
        for process in ending:
            process.kill(number)
            self._reap(process.pid)
        self.state.processes = [process for process in self.state.processes if process.name != name]
        self.state.write(self.home)

    def log(self, name: str) -> Path:
        """What a process printed."""
        return self.home / "log" / f"{name}.log"

    def close(self) -> None:
        """End all processes, the newest first, and remove the folder."""
        remove(self.home, self.state)
        for pid in list(self._children):
            self._reap(pid)

    def _reap(self, pid: int) -> None:
        if child := self._children.pop(pid, None):
            child.wait(SECONDS_TO_DIE)


def clusters() -> Path:
    """Where the instances' folders are."""
    return cache_root() / "clusters"


def homes() -> Iterator[Path]:
    """The folders of all instances, whoever owns them."""
    if clusters().exists():
        yield from sorted(path for path in clusters().iterdir() if (path / "state.json").exists())


def _recorded() -> Iterator[tuple[Path, State]]:
    """All instances with what they recorded; one that its owner takes down meanwhile, without our lock, is none."""
    for home in homes():
        try:
            state = State.read(home)
        except FileNotFoundError:  # taken down meanwhile
            continue
        yield home, state


def sweep() -> list[str]:
    """Remove what owners that were killed left behind; the names of what was removed."""
    removed = []
    with locked(clusters() / ".lock"):
        for home, state in _recorded():
            if state.abandoned:
                say(f"remove {home.name}: its owner is gone")
                remove(home, state)
                removed.append(home.name)
    return removed


def remove(home: Path, state: State) -> None:
    """End what a state recorded, and remove its folder last: killed in between, the next sweep goes on."""
    if state.boot == boot():
        for process in reversed(state.processes):
            process.kill()
    for cgroup in state.cgroups:
        _remove_cgroup(Path(cgroup))
    grave = home.with_name(f".{home.name}.removed")
    shutil.rmtree(grave, ignore_errors=True)
    home.rename(grave)
    shutil.rmtree(grave)


def _remove_cgroup(top: Path) -> None:
    """Remove a control group and those below it; the kernel lets them go once no process is in them."""
    for folder in sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True):
        folder.rmdir()
    if top.exists():
        top.rmdir()


def _can_listen(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

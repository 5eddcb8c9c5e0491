"""The Unix socket of a node: listens, gives each connection a thread, and looks after their leases.

Descriptors of content files are passed to clients, so that reading costs them what reading a file costs. What keeps
those bytes in place meanwhile is a lease that lives as long as the connection; see `embedded/lending.py`.
"""

import errno
import os
import socket
import stat
import threading
from typing import Final

from ullage.errors import LeaseLost, ServiceBusy, ServiceStopping
from ullage.wire import frames
from ullage.wire.frames import FrameKind
from ullage_agent.service.audit import reason_of
from ullage_agent.service.errors import CannotListen
from ullage_agent.service.listening import Terms
from ullage_agent.service.quota import Quota
from ullage_agent.service.socket.channel import Channel
from ullage_agent.service.socket.connection import Connection
from ullage_agent.service.socket.greeting import proving
from ullage_agent.service.socket.peers import Peer, peer_of

WATCH_SECONDS: Final = 1.0
"""How soon a client learns that its lease was revoked or is over. Its reads are safe: see `embedded/lending.py`."""

GOING_SECONDS: Final = 1.0
"""How long a connection that is cut off may take to go: its thread has nothing to do but to notice."""

MODE: Final = 0o666
"""Anybody may connect who may enter the folder; who may ask is decided by a token. Where spec.auth.mode is None nobody
is asked for one: then it is the folder's mode that says who reads and writes everything.
"""

BACKLOG: Final = 128
PATH_BYTES_MAX: Final = 107
"""What a socket's address has room for."""


class SocketServer:
    """See the module's text. It listens from its construction on; the same thread stops it."""

    def __init__(self, terms: Terms) -> None:
        """Listen. CannotListen if the path is taken by somebody who answers, or cannot be made, or if the certificate
        cannot be used.
        """
        self._path = terms.listening.socket_path
        self._terms = terms
        self._certificate = None if terms.listening.tls is None else proving(terms.listening.tls)
        self._lock = threading.Condition()
        self._connections: dict[Connection, None] = {}
        self._stopping = threading.Event()
        each, most = terms.limits.socket_connections_each, terms.limits.socket_connections
        self._quota = Quota("socket_connections_each", "connections to the Unix socket", each, most)
        self._threads: list[threading.Thread] = []
        terms.repository.release_leftovers()
        self._listener = _listen(self._path)
        for work, name in ((self._accept, "accept"), (self._watch, "watch")):
            thread = threading.Thread(target=work, name=f"ullage-socket-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def renew(self) -> None:
        """Prove with the certificate that is in the files now; CannotListen if it is of no use: the last one stays."""
        if self._certificate is not None and (problem := self._certificate.refresh()):
            raise CannotListen(problem)

    def stop(self) -> None:
        """Take no more, tell the clients, wait until nothing is held. Safe to call twice."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        _unlink(self._path)
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        finally:
            self._listener.close()
        for thread in self._threads:
            thread.join()
        with self._lock:
            left = list(self._connections)
        for connection in left:
            connection.revoke(ServiceStopping("the service is stopping"))
        self.wait_for(0, self._terms.limits.stop_seconds)

    def wait_for(self, connections: int, seconds: float) -> bool:
        """Until no more than so many are left, and what the others held is released; whether that came in time."""
        with self._lock:
            return self._lock.wait_for(lambda: len(self._connections) <= connections, seconds)

    def look(self) -> None:
        """End the connections whose lease is over, or was revoked."""
        with self._lock:
            found = list(self._connections)
        for connection in found:
            try:
                connection.lent.require()
            except LeaseLost as error:
                connection.revoke(error)

    def _watch(self) -> None:
        while not self._stopping.wait(WATCH_SECONDS):
            self.look()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                accepted, _ = self._listener.accept()
            except OSError as error:
                if self._stopping.is_set():
                    return
                self._terms.on_failure("the Unix socket could not accept a connection", error)
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED, errno.ENOMEM):
                    return
                self._stopping.wait(WATCH_SECONDS)  # until somebody has closed something
                continue
            self._begin(accepted)

    def _begin(self, accepted: socket.socket) -> None:
        channel = Channel(accepted, self._terms.limits.stall_seconds)
        if not self._has_room():
            self._turn_away(channel, peer_of(accepted))
            return
        connection = Connection(channel, peer_of(accepted), self._terms, self._certificate, self._quota)
        thread = threading.Thread(target=self._serve, args=(connection,), name="ullage-socket", daemon=True)
        with self._lock:
            self._connections[connection] = None
        thread.start()

    def _has_room(self) -> bool:
        """For one more, in the place of another if need be: of those that have not said who they are, the one that has
        taken longest goes. Else strangers who say nothing would keep everybody out who has a token.
        """
        with self._lock:
            if len(self._connections) < self._terms.limits.socket_connections:
                return True
            longest = next((each for each in self._connections if not each.is_greeted), None)
        if longest is None:
            return False
        longest.cut_off()
        return self.wait_for(self._terms.limits.socket_connections - 1, GOING_SECONDS)

    def _serve(self, connection: Connection) -> None:
        try:
            connection.serve()
        finally:
            with self._lock:
                del self._connections[connection]
                self._lock.notify_all()

    def _turn_away(self, channel: Channel, peer: Peer) -> None:
        error = ServiceBusy(f"{self._terms.limits.socket_connections} connections are open already")
        self._terms.audit.note(
            who="", via="socket", peer=str(peer), operation="HELLO", allowed=False, why=reason_of(error)
        )
        channel.try_send(FrameKind.PROBLEM, 0, frames.pack_problem(error))
        channel.close()


def _listen(path: str) -> socket.socket:
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise CannotListen(f"spec.service.socketPath: {path} is longer than {PATH_BYTES_MAX} bytes")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        _remove_stale(path)
        listener.bind(path)
        os.chmod(path, MODE)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise CannotListen(f"spec.service.socketPath: {path} cannot be listened on: {error}") from error
    except BaseException:
        listener.close()
        raise
    return listener


def _remove_stale(path: str) -> None:
    """What a killed process left; never a file, nor a socket behind which somebody listens."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise CannotListen(f"spec.service.socketPath: {path} exists and is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise CannotListen(f"spec.service.socketPath: another process listens on {path}")


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return  # somebody was faster

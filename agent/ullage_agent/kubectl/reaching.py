"""The way to an agent: through the API server to its pod, as `kubectl port-forward` goes.

The proxy for pods would be simpler, but takes the Authorization header away, and would hand the agent's answers over
without anybody having looked at its certificate.
"""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ullage.contract import AuthMode, ContentRepositorySpec, TlsMode
from ullage_agent.cli.exits import ExitCode
from ullage_agent.kubectl.cluster import Cluster
from ullage_agent.kubectl.trouble import Trouble

if TYPE_CHECKING:
    from ullage import Repository

CHUNK_BYTES = 65536


class Reach:
    """Opens the repositories of one fleet's nodes. The token and the authority are asked for once."""

    def __init__(self, cluster: Cluster, namespace: str, name: str, spec: ContentRepositorySpec, account: str) -> None:
        self._cluster, self._namespace, self._spec = cluster, namespace, spec
        self._token: str | None = None
        if spec.auth.mode == AuthMode.KUBERNETES:
            if not account:
                raise Trouble(
                    f"the agents of {namespace}/{name} ask who you are: name a service account of the namespace with "
                    "--account that has the ClusterRole ullage-reader there (docs/kubectl.md says how to make one)",
                    ExitCode.DENIED,
                )
            self._token = cluster.token(namespace, account, name)
        self._authority: str | None = None
        if spec.tls.mode != TlsMode.NONE:
            self._authority = cluster.authority(namespace, name)

    @contextmanager
    def opened(self, pod: str) -> Iterator[Repository]:
        """The repository that an agent serves."""
        import ullage
        from ullage import Retries

        with ExitStack() as stack:
            port = stack.enter_context(self._forwarded(pod))
            scheme = "http" if self._spec.tls.mode == TlsMode.NONE else "https"
            authority = None
            if self._authority:
                file = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".crt"))
                file.write(self._authority)
                file.flush()
                authority = file.name
            url = f"{scheme}://localhost:{port}/"
            retries = Retries(attempts=1)  # the way there is told of where it fails
            yield stack.enter_context(ullage.connect(url, token=self._token, ca_file=authority, retries=retries))

    @contextmanager
    def _forwarded(self, pod: str) -> Iterator[int]:
        """A port of this machine's loopback that leads to the agent's."""
        with socket.create_server(("127.0.0.1", 0)) as listening, self._first(pod) as first:
            ways: list[Any] = [first]
            thread = threading.Thread(target=self._serve, args=(listening, pod, ways), name="forward", daemon=True)
            thread.start()
            try:
                yield listening.getsockname()[1]
            finally:
                with suppress(OSError):  # wakes the thread, which waits for a connection
                    listening.shutdown(socket.SHUT_RDWR)
                thread.join()

    @contextmanager
    def _first(self, pod: str) -> Iterator[Any]:
        """The first way there: what is wrong with it is told before anybody waits for an answer."""
        with self._cluster.asking("create", "pods/portforward", self._namespace, pod):
            way = self._way(pod)
        try:
            yield way
        finally:
            way.close()

    def _way(self, pod: str) -> Any:
        from kubernetes.client import CoreV1Api
        from kubernetes.stream import portforward

        ports = str(self._spec.service.http_port)
        core = CoreV1Api(self._cluster.client())  # the package changes it while it connects
        return portforward(core.connect_get_namespaced_pod_portforward, pod, self._namespace, ports=ports)

    def _serve(self, listening: socket.socket, pod: str, ways: list[Any]) -> None:
        """Pass connections on, each over a way of its own, until the listening socket is shut."""
        while True:
            try:
                here, _ = listening.accept()
            except OSError:
                return
            try:
                way = ways.pop() if ways else self._way(pod)
            except Exception:  # noqa: BLE001 - whoever connected finds the connection closed, and tells of that
                here.close()
                continue
            there = way.socket(self._spec.service.http_port)
            there.setblocking(True)
            for one, other in ((here, there), (there, here)):
                threading.Thread(target=_copy, args=(one, other), daemon=True).start()


def _copy(source: Any, target: Any) -> None:
    """Until either end goes, then close both."""
    with suppress(OSError):  # the end of the connection: whoever uses it finds it ended
        while chunk := source.recv(CHUNK_BYTES):
            target.sendall(chunk)
    for each in (source, target):
        with suppress(OSError):  # the other direction has closed it already
            each.shutdown(socket.SHUT_RDWR)
        each.close()

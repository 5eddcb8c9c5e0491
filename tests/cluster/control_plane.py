"""etcd, the API server, the controllers and the scheduler: a Kubernetes without nodes, ready in seconds.

Enough for custom resources with their validation, defaults and status, for admission, RBAC, garbage collection, and for
an operator. Needs no privilege.
"""

import json
import os
import secrets
import select
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.certificates import Authority, Credentials
from tests.cluster.errors import ClusterError, printed
from tests.cluster.instance import GO, Instance
from tests.cluster.say import step
from tests.cluster.tools import CONTROL_PLANE, tool

ROOT = Path(__file__).parents[2]
LOOPBACK = "127.0.0.1"
SERVICES = "10.96.0.0/16"
PODS = "10.244.0.0/16"
KUBERNETES_SERVICE = "10.96.0.1"

READY_SECONDS_MAX = 120
"""A control plane is ready in a few seconds; this is for a machine with ten times as much to do."""
POLL_SECONDS = 0.1
ADMIN = ("admin", "system:masters")
SERVER_NAMES = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]


@dataclass(frozen=True)
class Place:
    """Where a control plane's processes run: here, or behind a command that enters a node's namespaces."""

    enter: tuple[str, ...] = ()
    network: int = 0  # a process of the network that its addresses are of; 0: ours
    address: str = LOOPBACK  # at which nodes and pods reach the API server
    listen: str = LOOPBACK


HERE = Place()


class ControlPlane:
    """A running control plane, and the commands of its administrator. Make one with `control_plane_running`."""

    def __init__(self, instance: Instance, place: Place = HERE) -> None:
        self.instance = instance
        self.place = place
        self.authority = Authority(instance.home / "certificates")
        self.port = instance.free_port()
        self._etcd_port = instance.free_port()
        self._names: dict[str, Path] = {}
        self.admin = self.authority.client(*ADMIN)
        self.kubeconfig = self.kubeconfig_for(*ADMIN, credentials=self.admin)
        self.audited_user = ""
        """Set before the start: the API server writes each request of this user into `audit_log`."""

    @property
    def audit_log(self) -> Path:
        """A JSON document a line."""
        return self.instance.home / "audit.log"

    @property
    def url(self) -> str:
        """Of the API server, for programs of this machine."""
        return f"https://{LOOPBACK}:{self.port}"

    @property
    def ca(self) -> Path:
        """The certificate that the API server's is signed with."""
        return self.authority.certificate

    def start(self) -> None:
        """Start everything, and wait until the API server is ready."""
        for name in CONTROL_PLANE:
            tool(name)  # built before the clock below runs
        with step("start etcd, API server, controllers, scheduler"):
            self.start_etcd()
            self.start_api_server()
            self.wait_until("the API server is ready", self.is_ready)  # with the roles that the next two need
            for name in ("kube-controller-manager", "kube-scheduler"):
                self.start_program(name, self._controller_flags(name))

    def start_program(self, name: str, flags: Sequence[str]) -> None:
        """Start one of the pinned programs where the control plane runs."""
        self.instance.start(name, [*self.place.enter, tool(name), *flags])

    def start_etcd(self) -> None:
        """Start etcd on its data; what it acknowledged survives its process, and need not survive the machine."""
        peer = self.instance.free_port()
        self.start_program(
            "etcd",
            [
                f"--data-dir={self.instance.home / 'etcd'}",
                "--unsafe-no-fsync",
                f"--listen-client-urls=http://{LOOPBACK}:{self._etcd_port}",
                f"--advertise-client-urls=http://{LOOPBACK}:{self._etcd_port}",
                f"--listen-peer-urls=http://{LOOPBACK}:{peer}",
                f"--initial-advertise-peer-urls=http://{LOOPBACK}:{peer}",
                f"--initial-cluster=default=http://{LOOPBACK}:{peer}",
                "--log-level=warn",
            ],
        )

    def start_api_server(self) -> None:
        """Start the API server; it waits for etcd by itself."""
        addresses = [LOOPBACK, KUBERNETES_SERVICE, *({self.place.address} - {LOOPBACK})]
        serving = self.authority.server("kube-apiserver", addresses, SERVER_NAMES)
        kubelet = self.authority.client("kube-apiserver-kubelet-client", "system:masters")
        signing, checking = self.authority.signing_pair("service-accounts")
        on_loopback = ["--endpoint-reconciler-type=none"] if self.place.address == LOOPBACK else []
        self.start_program(
            "kube-apiserver",
            [
                f"--etcd-servers=http://{LOOPBACK}:{self._etcd_port}",
                f"--bind-address={self.place.listen}",
                f"--advertise-address={self.place.address}",
                f"--secure-port={self.port}",
                f"--tls-cert-file={serving.certificate}",
                f"--tls-private-key-file={serving.key}",
                f"--client-ca-file={self.ca}",
                f"--kubelet-client-certificate={kubelet.certificate}",
                f"--kubelet-client-key={kubelet.key}",
                f"--kubelet-certificate-authority={self.ca}",
                "--kubelet-preferred-address-types=InternalIP",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={checking}",
                f"--service-account-signing-key-file={signing}",
                f"--service-cluster-ip-range={SERVICES}",
                "--allow-privileged=true",
                "--enable-aggregator-routing=true",  # to the pods of a webhook, not to its Service: no kube-proxy here
                *on_loopback,
                *self._audit_flags(),
            ],
        )

    def _audit_flags(self) -> list[str]:
        if not self.audited_user:
            return []
        policy = self.instance.home / "audit-policy.json"
        document = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["ResponseStarted", "ResponseComplete", "Panic"],  # each once, a watch when it begins
            "rules": [{"level": "Metadata", "users": [self.audited_user]}, {"level": "None"}],
        }
        policy.write_text(json.dumps(document))
        return [f"--audit-policy-file={policy}", f"--audit-log-path={self.audit_log}"]

    def _controller_flags(self, name: str) -> list[str]:
        user = f"system:{name}"
        config = self.kubeconfig_for(user)
        # Several clusters share this machine's loopback, so each takes a port of its own.
        shared = [f"--kubeconfig={config}", f"--bind-address={LOOPBACK}", "--leader-elect=false"]
        shared += [f"--secure-port={self.instance.free_port()}", f"--authentication-kubeconfig={config}"]
        shared += [f"--authorization-kubeconfig={config}"]
        if name == "kube-scheduler":
            return shared
        return [
            *shared,
            f"--service-account-private-key-file={self.authority.signing_pair('service-accounts')[0]}",
            f"--root-ca-file={self.ca}",
            f"--cluster-signing-cert-file={self.ca}",
            f"--cluster-signing-key-file={self.authority.key}",
            "--use-service-account-credentials=true",
            f"--service-cluster-ip-range={SERVICES}",
        ]

    def kubeconfig_for(self, user: str, *groups: str, credentials: Credentials | None = None, host: str = "") -> Path:
        """The path of a kubeconfig with which one acts as this user; `host` if it is read elsewhere than here."""
        signed = credentials or self.authority.client(user, *groups)
        cluster = {"server": f"https://{host or LOOPBACK}:{self.port}", "certificate-authority": str(self.ca)}
        identity = {"client-certificate": str(signed.certificate), "client-key": str(signed.key)}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "ullage", "cluster": cluster}],
            "users": [{"name": user, "user": identity}],
            "contexts": [{"name": "ullage", "context": {"cluster": "ullage", "user": user}}],
            "current-context": "ullage",
        }
        path = self.instance.home / f"{user.replace(':', '-')}.kubeconfig"
        path.write_text(json.dumps(document, indent=1))
        return path

    @property
    def environment(self) -> dict[str, str]:
        """For a program that is to work on this cluster: its kubeconfig, and our kubectl and helm first on the path."""
        helm = self.instance.home / "helm"
        folders = [str(tool("kubectl").parent), str(tool("helm").parent), os.environ.get("PATH", os.defpath)]
        homes = {f"HELM_{kind}_HOME": str(helm / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        kube = {"KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(self.instance.home / "kubectl")}
        return {**os.environ, **GO, **kube, "PATH": os.pathsep.join(folders), **homes}

    def kubectl(self, *arguments: str | Path, stdin: str = "") -> str:
        """What kubectl prints; `ClusterError` with its complaint if it fails."""
        return printed([tool("kubectl"), *arguments], stdin=stdin, environment=self.environment)

    def helm(self, *arguments: str | Path) -> str:
        """What helm prints; `ClusterError` with its complaint if it fails."""
        return printed([tool("helm"), *arguments], environment=self.environment)

    def get(self, *arguments: str) -> Any:
        """`kubectl get ARGUMENTS`, decoded."""
        return json.loads(self.kubectl("get", *arguments, "--output=json"))

    def field(self, path: str, name: str, place: str) -> str:
        """What an object says, by a path such as `{.status.phase}`; empty for what it does not say."""
        return self.kubectl("get", name, "--namespace", place, f"--output=jsonpath={path}")

    def serves_all_custom_resources(self) -> bool:
        """Whether every custom resource definition is established: `kubectl wait` trips over one without conditions."""

        def established(definition: dict[str, Any]) -> bool:
            conditions = definition.get("status", {}).get("conditions") or []
            return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)

        return all(established(definition) for definition in self.get("customresourcedefinitions")["items"])

    def apply(self, *objects: dict[str, Any]) -> None:
        """Create the objects, or make them what they are here."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", stdin=json.dumps(listed))

    def wait_until(self, what: str, holds: Callable[[], bool], seconds_max: float = READY_SECONDS_MAX) -> None:
        """Ask until it holds. `ClusterError` when the time is over, or at once when a process of the cluster ended."""
        deadline = time.monotonic() + seconds_max
        processes = list(self.instance.state.processes)
        descriptors = [os.pidfd_open(process.pid) for process in processes if process.lives]
        try:
            while not holds():
                # The sleep of this loop ends when a process does: nobody waits for what can no longer come.
                ended, _, _ = select.select(descriptors, [], [], POLL_SECONDS)
                if ended or len(descriptors) < len(processes):
                    gone = next((process.name for process in processes if not process.lives), "a process")
                    raise ClusterError(f"waiting until {what}: {gone} ended\n{self._tail(gone)}")
                if time.monotonic() > deadline:
                    raise ClusterError(f"waited {seconds_max:.0f} s in vain until {what}")
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _tail(self, name: str) -> str:
        log = self.instance.log(name)
        return log.read_text(errors="replace")[-3000:] if log.exists() else ""

    def forward(self, address: str, port: int, local: int = 0) -> int:
        """A port of this machine's loopback that leads to an address of the cluster: of a pod, a Service or a node.
        `local`: one that the caller has taken.
        """
        local = local or self.instance.free_port()
        name = f"forward-{local}"
        words = [sys.executable, "-m", "tests.cluster.forward", self.place.network, local, address, port]
        self.instance.start(name, [str(word) for word in words], {"PYTHONPATH": str(ROOT)})
        log = self.instance.log(name)
        self.wait_until(f"port {local} listens", lambda: "listening" in log.read_text())
        return local

    def is_ready(self) -> bool:
        """Whether the API server says so."""
        context = ssl.create_default_context(cafile=str(self.ca))
        context.load_cert_chain(self.admin.certificate, self.admin.key)
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", context=context, timeout=5) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            error.close()  # it answers, and is not ready yet
            return False
        except (urllib.error.URLError, OSError):
            return False

    def create_namespace(self, name: str) -> None:
        """Once it has its default service account: until then the API server refuses all pods there."""
        self.kubectl("create", "namespace", name)
        self.kubectl("wait", "--for=create", "serviceaccount/default", f"--namespace={name}", "--timeout=60s")

    @contextmanager
    def namespace(self, name: str = "", *, awaits_end: bool = True) -> Iterator[str]:
        """A namespace as `create_namespace` makes it, deleted at the end; without a name it gets one that nobody has.
        Until it is gone takes six seconds, even if it is empty: who will not use its name or its nodes again need not
        await that.
        """
        name = name or f"test-{secrets.token_hex(4)}"
        self.create_namespace(name)
        try:
            yield name
        finally:
            self.kubectl("delete", "namespace", name, f"--wait={awaits_end}".lower(), "--timeout=120s")


@contextmanager
def control_plane_running() -> Iterator[ControlPlane]:
    """A control plane of its own, gone at the end; if this process is killed, the next start removes it."""
    with closing(Instance.create("control-plane")) as instance:
        cluster = ControlPlane(instance)
        cluster.start()
        yield cluster

"""The programs of a cluster, pinned: each is built once from the Go module proxy and then taken from the cache.

`modules/NAME/go.mod` is a wrapper module: it requires the version we want and nothing else, so that its `go.sum` fixes
every byte that goes into the build; CoreDNS's has a main package too, with the few plugins that we need. (`go install
program@version` refuses modules with replace directives, as Kubernetes and etcd have.) What `KUBEBUILDER_ASSETS` holds
is used as it is: that is the convention of envtest.
"""

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.cache import cache_root, locked
from tests.cluster.errors import ClusterError, printed
from tests.cluster.packages import GO_LOCK, installed
from tests.cluster.say import step

MODULES = Path(__file__).parent / "modules"

GO_PLACES = ("/usr/local/go/bin/go", "/usr/lib/go/bin/go")
"""Where a Go may be that is not on the path."""

GO_ENVIRONMENT = {
    "CGO_ENABLED": "0",  # static: the same file runs on the machine and in an image without a C library
    "GOFLAGS": "-trimpath -buildvcs=false -mod=readonly",
    "GOTOOLCHAIN": "local",  # the Go we found or pinned, not one it would fetch by itself
    "GOWORK": "off",
}
STRIP = "-s -w"


@dataclass(frozen=True)
class Tool:
    """One program: the wrapper module that pins it, the module whose version names it, and its main package."""

    name: str
    wrapper: str
    module: str
    package: str
    stamps: str = ""  # -X flags, with {version}, {major} and {minor}: what the program says of itself

    @property
    def version(self) -> str:
        """The version that the wrapper requires."""
        text = (MODULES / self.wrapper / "go.mod").read_text()
        found = re.search(rf"^(?:require)?\s*{re.escape(self.module)} (v\S+)", text, re.MULTILINE)
        if found is None:
            raise ClusterError(f"modules/{self.wrapper}/go.mod does not require {self.module}")
        return found[1]

    @property
    def link_flags(self) -> str:
        """What the linker is told."""
        major, minor = self.version.removeprefix("v").split(".")[:2]
        return f"{STRIP} {self.stamps.format(version=self.version, major=major, minor=minor)}".strip()

    @property
    def digest(self) -> str:
        """Of everything that decides what is built."""
        wrapper = MODULES / self.wrapper
        sources = [wrapper / "go.mod", wrapper / "go.sum", *sorted(wrapper.glob("*.go"))]
        parts = [source.read_bytes() for source in sources]
        parts.append(json.dumps([self.package, self.link_flags, GO_ENVIRONMENT]).encode())
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def _kubernetes(name: str) -> Tool:
    package = "k8s.io/component-base/version"
    stamps = f"-X {package}.gitVersion={{version}} -X {package}.gitMajor={{major}} -X {package}.gitMinor={{minor}}"
    return Tool(name, "kubernetes", "k8s.io/kubernetes", f"k8s.io/kubernetes/cmd/{name}", stamps)


TOOLS = {
    tool.name: tool
    for tool in (
        Tool("etcd", "etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3"),
        _kubernetes("kube-apiserver"),
        _kubernetes("kube-controller-manager"),
        _kubernetes("kube-scheduler"),
        _kubernetes("kubectl"),
        _kubernetes("kubelet"),
        _kubernetes("kube-proxy"),
        Tool("helm", "helm", "helm.sh/helm/v4", "helm.sh/helm/v4/cmd/helm"),
        Tool("oras", "oras", "oras.land/oras", "oras.land/oras/cmd/oras"),
        Tool(
            "kubeconform", "kubeconform", "github.com/yannh/kubeconform", "github.com/yannh/kubeconform/cmd/kubeconform"
        ),
        Tool("kwok", "kwok", "sigs.k8s.io/kwok", "sigs.k8s.io/kwok/cmd/kwok"),
        Tool(
            "versitygw",
            "versitygw",
            "github.com/versity/versitygw",
            "github.com/versity/versitygw/cmd/versitygw",
        ),
        Tool("coredns", "coredns", "github.com/coredns/coredns", "."),
        Tool(
            "spark-operator",
            "spark-operator",
            "github.com/kubeflow/spark-operator/v2",
            "github.com/kubeflow/spark-operator/v2/cmd/operator",
        ),
    )
}

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "helm")
LEVELS = {
    "control-plane": CONTROL_PLANE,
    "fleet": (*CONTROL_PLANE, "kwok"),
    "node": (*CONTROL_PLANE, "kubelet", "kube-proxy", "coredns"),
    "spark": ("spark-operator",),
    "release": ("helm", "oras", "kubeconform"),
    "bucket": ("versitygw",),
}


def tool(name: str) -> Path:
    """The program's file, built now if neither `KUBEBUILDER_ASSETS` nor the cache has it.

    Raises `ClusterError` with the end of the compiler's output if the build fails.
    """
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        given = Path(assets) / name
        if os.access(given, os.X_OK):
            return given.absolute()
    wanted = TOOLS[name]
    kept = cache_root() / "tools" / f"{name}-{wanted.version}-{wanted.digest}" / name
    if kept.exists():
        return kept
    with locked(cache_root() / "tools" / f"{wanted.wrapper}.lock"):
        if not kept.exists():  # another process may have built it while we waited
            _build(wanted, kept)
    return kept


def _build(wanted: Tool, kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    fresh = kept.with_suffix(".new")
    with step(f"build {wanted.name} {wanted.version} with {_go_version(find_go())}"):
        _go(wanted.wrapper, "build", "-ldflags", wanted.link_flags, "-o", str(fresh), wanted.package)
    os.replace(fresh, kept)


def module_source(wrapper: str, module: str) -> Path:
    """The source of a module, as its wrapper pins it: for the files beside the code."""
    return Path(json.loads(_go(wrapper, "mod", "download", "-json", module))["Dir"])


def _go(wrapper: str, *arguments: str) -> str:
    """What Go prints in a wrapper. ClusterError with the end of what it said if it fails."""
    environment = {**os.environ, **GO_ENVIRONMENT}
    return printed([find_go(), *arguments], environment=environment, folder=MODULES / wrapper)


def find_go() -> Path:
    """A Go that is new enough for every wrapper: the machine's, or the pinned one of PyPI, in the cache."""
    oldest = max(_go_directive(wrapper) for wrapper in MODULES.iterdir() if (wrapper / "go.mod").exists())
    for candidate in (shutil.which("go"), *GO_PLACES):
        if candidate and os.access(candidate, os.X_OK) and _numbers(_go_version(Path(candidate))) >= oldest:
            return Path(candidate)
    # The package's own script `bin/go` finds its Python module only where that is installed for everybody.
    return installed(GO_LOCK) / "go" / "bin" / "go"


def _go_directive(wrapper: Path) -> tuple[int, ...]:
    found = re.search(r"^go (\S+)$", (wrapper / "go.mod").read_text(), re.MULTILINE)
    return _numbers(found[1]) if found else ()


def _go_version(go: Path) -> str:
    try:
        return printed([go, "env", "GOVERSION"], environment={**os.environ, "GOTOOLCHAIN": "local"}).strip()
    except ClusterError:  # not a Go at all
        return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))

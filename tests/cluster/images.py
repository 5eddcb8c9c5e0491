"""The project's images, built without a registry and without a container engine: buildah in a chroot.

The base is a Debian of debootstrap's from the machine's own mirror, where a machine that has a registry would pull the
Dockerfile's default. Each image is kept in the cache as an OCI archive, named by the digest of what went into it.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tests.cluster.cache import cache_root, locked
from tests.cluster.errors import NotPossibleHereError, printed
from tests.cluster.say import step

ROOT = Path(__file__).parents[2]
PROGRAMS = ("buildah", "debootstrap", "cc", "tar")
SUITE = "bookworm"
BASE_PACKAGES = "python3,python3-venv,ca-certificates"
BASE_NAME = "localhost/ullage-base:1"
PAUSE_NAME = "localhost/ullage-pause:1"
PAUSE = Path(__file__).parent / "pause.c"

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
"""Whom this machine trusts: a build in a chroot of it fetches through the same network."""

PIP_SETTINGS = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CERT", "PIP_DEFAULT_TIMEOUT")

MOMENT = 1580601600
"""The time of every file, in seconds since 1970, as in the Dockerfile: the same tree is the same image."""

ARCHIVES_KEPT = 3
"""Of each target: several checkouts may share a cache, and each image is hundreds of megabytes."""

LAYERS_KEPT = 80
"""Some eight builds. Beyond, what no present image stands on goes, the builder's stage too: the next build takes the
longer way, where a cache that only grows would fill the disk.
"""

RECIPE = ("Dockerfile", ".dockerignore", "deploy/requirements-build.lock")
PROJECT = ("pyproject.toml", "README.md", "LICENSE", "agent")
CONTEXTS = {
    "agent": (*RECIPE, "deploy/requirements-agent.lock", *PROJECT),
    "operator": (*RECIPE, "deploy/requirements-operator.lock", *PROJECT, "operator"),
    "spark": (
        *(*RECIPE, "deploy/requirements-spark.lock", "deploy/spark-entrypoint", "deploy/ullage_spark_submit.py"),
        "deploy/steady_keystore.py",
        *(*PROJECT, "spark"),
    ),
}
"""What of the checkout goes into each target: any of it changed means another image."""


def image_name(target: str) -> str:
    """The name by which pods ask for a target of the Dockerfile."""
    return f"localhost/ullage-{target}:dev"


def need(programs: Iterable[str]) -> None:
    """Raise `NotPossibleHereError` with the packages of the programs that are missing."""
    missing = [program for program in programs if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if os.geteuid() != 0:
        raise NotPossibleHereError("images and nodes need root: they mount, and make namespaces")
    if missing:
        raise NotPossibleHereError(f"missing: {' '.join(missing)}; tools/ci-packages installs them on Debian")


def archive(target: str) -> Path:
    """The OCI archive of a target of the Dockerfile, built now unless the cache has it."""
    return _once(f"{target}-{_digest_of(CONTEXTS[target])}", lambda kept: _build(target, kept))


def build_anew(target: str, archive: Path) -> None:
    """The same as `archive`, in a file of the caller's: every step is done again, whatever the cache has."""
    need(PROGRAMS)
    with locked(_images() / ".lock"):
        _build(target, archive, "--no-cache")


def base_archive() -> Path:
    """The base of the others, `BASE_NAME`: a small Debian with Python."""
    return _once(_base_stem(), _bootstrap)


def pause_archive() -> Path:
    """The image that holds a pod's namespaces: one static program."""
    return _once(f"pause-{hashlib.sha256(PAUSE.read_bytes()).hexdigest()[:12]}", _build_pause)


def _once(stem: str, build: Callable[[Path], None]) -> Path:
    kept = _images() / f"{stem}.tar"
    if not kept.exists():
        need(PROGRAMS)
        with locked(_images() / ".lock"):
            if not kept.exists():  # another process may have built it while we waited
                build(kept)
    return kept


def _build(target: str, kept: Path, *options: str) -> None:
    base = _images() / f"{_base_stem()}.tar"
    if not base.exists():
        _bootstrap(base)
    _buildah("pull", "--quiet", f"oci-archive:{base}")
    with step(f"build the image {target}"):
        chosen = [f"--file={ROOT / 'Dockerfile'}", f"--target={target}", f"--build-arg=BASE_IMAGE={BASE_NAME}"]
        _bud([*chosen, *_settings(), *options], ROOT, image_name(target), kept)


def _build_pause(kept: Path) -> None:
    with step("build the image pause"):
        context = _scratch("pause")
        _run(["cc", "-Os", "-static", "-o", str(context / "pause"), str(PAUSE)])
        (context / "Dockerfile").write_text('FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n')
        _bud([], context, PAUSE_NAME, kept)
        shutil.rmtree(context)


def _base_stem() -> str:
    return f"base-{hashlib.sha256(f'{SUITE} {BASE_PACKAGES}'.encode()).hexdigest()[:12]}"


def _bootstrap(kept: Path) -> None:
    with step(f"bootstrap a Debian {SUITE} with Python"):
        context = _scratch("base")
        include = ["--variant=minbase", f"--include={BASE_PACKAGES}"]
        _run(["debootstrap", *include, SUITE, str(context / "root"), *_mirror()])
        shutil.rmtree(context / "root" / "var" / "cache" / "apt")
        _run(["tar", "-C", str(context / "root"), "-cf", str(context / "root.tar"), "."])
        (context / "Dockerfile").write_text('FROM scratch\nADD root.tar /\nCMD ["/bin/sh"]\n')
        _bud(["--ignorefile=/dev/null"], context, BASE_NAME, kept)
        shutil.rmtree(context)


def _mirror() -> list[str]:
    """Where this machine's own Debian packages come from; elsewhere debootstrap has a mirror of its own."""
    if shutil.which("apt-get") is None:
        return []
    printed = _run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"])
    return printed.split()[:1]


def _settings() -> list[str]:
    """This machine's way to PyPI, for the stages that ask for it; it stays out of the image."""
    settings = [f"--build-arg={name}={os.environ[name]}" for name in PIP_SETTINGS if name in os.environ]
    if CERTIFICATES.exists():
        settings.append(f"--volume={CERTIFICATES}:{CERTIFICATES}:ro")
    return settings


def _bud(options: Sequence[str], context: Path, name: str, kept: Path) -> None:
    fresh = kept.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    same = (f"--timestamp={MOMENT}", "--identity-label=false")
    _buildah("bud", "--quiet", "--isolation=chroot", "--layers", *same, f"--tag={name}", *options, str(context))
    # Uncompressed: it goes to no other machine, and each node would have to inflate it again.
    _buildah("push", "--quiet", "--disable-compression", name, f"oci-archive:{fresh}:{name}")
    os.replace(fresh, kept)
    target = kept.stem.rpartition("-")[0]
    newest_first = sorted(kept.parent.glob(f"{target}-*.tar"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in newest_first[ARCHIVES_KEPT:]:
        old.unlink()
    if len(_buildah("images", "--all", "--quiet").split()) > LAYERS_KEPT:
        _buildah("rm", "--all")  # what a killed build left open keeps its layers; nobody else builds now
        _buildah("rmi", "--prune")


def _buildah(command: str, *arguments: str) -> str:
    storage = _images() / "storage"
    return _run(
        ["buildah", "--storage-driver=overlay", f"--root={storage}", f"--runroot={storage}-run", command, *arguments]
    )


def _run(command: list[str]) -> str:
    return printed(command, environment={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"})


def _digest_of(names: Iterable[str]) -> str:
    digest = hashlib.sha256(BASE_PACKAGES.encode())
    for name in names:
        top = ROOT / name
        files = sorted(path for path in top.rglob("*") if path.is_file()) if top.is_dir() else [top]
        for path in files:
            if path.exists() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _scratch(name: str) -> Path:
    folder = _images() / f"{name}.scratch"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _images() -> Path:
    return cache_root() / "images"

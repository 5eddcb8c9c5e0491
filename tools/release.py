"""A release in dist/: the wheel and the source, images with what is in them, and the chart that names them by digest.

`python -m tools.release build` makes it, `check` makes it once more from nothing and compares, and `push REGISTRY` puts
it there, with a chart that names the images of that registry. The same tree gives the same digests.
"""

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

import ullage
from tests.cluster import images
from tests.cluster.errors import ClusterError, printed
from tests.cluster.tools import tool
from tools import oci, sbom

ROOT: Final = Path(__file__).parents[1]
CHART: Final = ROOT / "charts/ullage"
DIST: Final = ROOT / "dist"
DIGESTS: Final = "digests.txt"
"""What of a release two builds must agree on: each file's and each manifest's digest, and its name."""

TARGETS: Final = tuple(images.CONTEXTS)
CHART_REPOSITORY: Final = "charts/ullage"
"""The chart's place in a registry, beside the images'."""

PREDICATE: Final = "https://cyclonedx.org/bom"
CHART_PLACES: Final = {
    "  repository: ullage-operator\n": "  repository: {operator}\n",
    '  digest: ""\n': "  digest: {operator_digest}\n",
    'agentImage: ""\n': "agentImage: {agent}@{agent_digest}\n",
    'sparkImage: ""\n': "sparkImage: {spark}@{spark_digest}\n",
}
"""Where the chart's values name images, and what stands there in a release."""


def repository(target: str) -> str:
    """The name of an image in a registry."""
    return f"ullage-{target}"


def build(out: Path, archives: Mapping[str, Path]) -> None:
    """Make the release in a folder, of OCI archives by target. ClusterError if a program that is needed fails."""
    add_python(out)
    add_images(out, archives)
    add_chart(out, image_digests(out))
    write_digests(out)


def add_python(out: Path) -> None:
    """The wheel, and the source that it is built from."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(images.MOMENT)}
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    printed(command, environment=environment)


def add_images(out: Path, archives: Mapping[str, Path]) -> None:
    """A layout for each, which holds a statement about the image's packages too; that list is a file besides."""
    for target, archive in archives.items():
        folder, name = layout_of(out, repository(target)), repository(target)
        layout = oci.Layout(folder)
        image = oci.add_image(layout, archive, ullage.__version__)
        packages = sbom.document(folder, name)
        layout.attach(_statement(name, image["digest"], packages), image)
        (out / f"{name}.cdx.json").write_text(json.dumps(packages, indent=1) + "\n", encoding="utf-8")


def image_digests(out: Path) -> dict[str, str]:
    """Of the release's images, by target."""
    return {target: tagged(layout_of(out, repository(target))) for target in TARGETS}


def add_chart(out: Path, digests: Mapping[str, str], registry: str = "") -> None:
    """The chart, which names images by these digests, in this registry if one is named.

    Raises `ValueError` if the chart's values have no place for an image.
    """
    names = {target: "/".join(filter(None, [registry, repository(target)])) for target in TARGETS}
    with tempfile.TemporaryDirectory() as scratch:
        staged = Path(scratch) / "ullage"
        shutil.copytree(CHART, staged)
        metadata = _metadata(names, digests)
        (staged / "Chart.yaml").write_text(yaml.safe_dump(metadata), encoding="utf-8")
        values = (staged / "values.yaml").read_text(encoding="utf-8")
        (staged / "values.yaml").write_text(_naming(values, names, digests), encoding="utf-8")
        for path in [staged, *staged.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
            os.utime(path, (images.MOMENT, images.MOMENT))  # Helm writes the times into the archive
        printed([tool("helm"), "package", staged, "--destination", scratch])
        packed = Path(scratch) / f"ullage-{metadata['version']}.tgz"
        shutil.copy(packed, out / packed.name)
    layout = oci.Layout(layout_of(out, CHART_REPOSITORY))
    content = layout.add((out / packed.name).read_bytes(), oci.CHART_CONTENT)
    told = {f"org.opencontainers.image.{key}": metadata[name] for key, name in _TOLD.items()}
    config = layout.add(oci.canonical(metadata), oci.CHART_CONFIG)
    layout.add_manifest(config, [content], tag=metadata["version"], annotations=told)


_TOLD: Final = {"title": "name", "description": "description", "version": "version"}
"""Annotations of a chart's manifest, as `helm push` makes them but for the time, and what of Chart.yaml they are."""


def write_digests(out: Path) -> None:
    """Of every file and tagged manifest of the release."""
    files = [path for path in out.iterdir() if path.is_file() and path.name != DIGESTS]
    lines = [f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()} {path.name}" for path in files]
    repositories = [*map(repository, TARGETS), CHART_REPOSITORY]
    lines += [f"{tagged(layout_of(out, name))} oci/{name}" for name in repositories]
    (out / DIGESTS).write_text("".join(f"{line}\n" for line in sorted(lines)), encoding="utf-8")


def layout_of(out: Path, name: str) -> Path:
    """The folder of a repository's layout."""
    return out / "oci" / name


def tagged(layout: Path) -> str:
    """The digest of the one manifest that has a tag."""
    listed = json.loads((layout / "index.json").read_text(encoding="utf-8"))["manifests"]
    (found,) = [each["digest"] for each in listed if oci.TAG in each.get("annotations", {})]
    return str(found)


def push(out: Path, registry: str, options: Sequence[str] = ()) -> None:
    """Put the release there, images first: the chart never names what is not there yet. Done again, it does no harm.

    Whoever is logged in by `docker login` is known. `options` go to `oras cp`. Raises `ValueError` if no release is in
    the folder, `ClusterError` with the registry's words if it takes something not.
    """
    _need(out)
    with tempfile.TemporaryDirectory() as scratch:
        add_chart(Path(scratch), image_digests(out), registry)
        for name in map(repository, TARGETS):
            _copy(layout_of(out, name), f"{registry}/{name}", options)
        _copy(layout_of(Path(scratch), CHART_REPOSITORY), f"{registry}/{CHART_REPOSITORY}", options)


def _need(out: Path) -> None:
    if not (out / DIGESTS).exists():
        raise ValueError(f"{out} holds no release: build one first (make release)")


def _copy(layout: Path, aim: str, options: Sequence[str]) -> None:
    tag = ullage.__version__
    how = ("cp", "--recursive", "--no-tty", "--from-oci-layout", *options)
    printed([tool("oras"), *how, f"{layout}:{tag}", f"{aim}:{tag}"])
    sys.stdout.write(f"pushed {aim}:{tag}, {tagged(layout)}\n")


def check(out: Path) -> int:
    """Make the release once more, every step of every image too; 1 and the names if a digest is another.

    Raises `ValueError` if no release is in the folder.
    """
    _need(out)
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        again, archives = Path(scratch) / "dist", {}
        again.mkdir()
        for target in TARGETS:
            archives[target] = Path(scratch) / f"{target}.tar"
            images.build_anew(target, archives[target])
        build(again, archives)
        first, second = ((each / DIGESTS).read_text(encoding="utf-8").splitlines() for each in (out, again))
    differing = sorted(set(first) ^ set(second))
    sys.stderr.writelines(f"release: two builds differ: {line}\n" for line in differing)
    return 1 if differing else 0


def _statement(name: str, digest: str, packages: Mapping[str, Any]) -> dict[str, Any]:
    """What is in an image, as in-toto has it; whoever signs it makes it an attestation that can be proved."""
    algorithm, _, value = digest.partition(":")
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {algorithm: value}}],
        "predicateType": PREDICATE,
        "predicate": packages,
    }


def _metadata(names: Mapping[str, str], digests: Mapping[str, str]) -> dict[str, Any]:
    """Chart.yaml, with the images and the kinds as Artifact Hub lists them."""
    metadata: dict[str, Any] = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    listed = [{"name": repository(each), "image": f"{names[each]}@{digests[each]}"} for each in TARGETS]
    kinds = [
        _kind(yaml.safe_load(path.read_text(encoding="utf-8"))) for path in sorted(CHART.glob("files/crds/*.yaml"))
    ]
    for name, told in {"images": listed, "crds": kinds}.items():
        metadata["annotations"][f"artifacthub.io/{name}"] = yaml.safe_dump(told, width=1000)
    return metadata


def _kind(definition: Mapping[str, Any]) -> dict[str, str]:
    kind, version = definition["spec"]["names"]["kind"], definition["spec"]["versions"][0]
    told = {"kind": kind, "name": definition["metadata"]["name"], "displayName": kind, "version": version["name"]}
    return told | {"description": version["schema"]["openAPIV3Schema"]["description"]}


def _naming(values: str, names: Mapping[str, str], digests: Mapping[str, str]) -> str:
    """values.yaml, comments and all, with the images of a release."""
    given = dict(names) | {f"{target}_digest": digest for target, digest in digests.items()}
    for place, filled in CHART_PLACES.items():
        if values.count(place) != 1:
            raise ValueError(f"values.yaml has {place!r} {values.count(place)} times; once is wanted")
        values = values.replace(place, filled.format_map(given))
    return values


def main() -> int:
    """Do what the command line says; 1 with the reason on stderr if it cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build")
    commands.add_parser("check")
    pushing = commands.add_parser("push")
    pushing.add_argument("registry", help="such as registry.example:5000/ullage")
    pushing.add_argument("options", nargs="*", help="after --: what `oras cp` is told, such as --to-plain-http")
    chosen = parser.parse_args()
    try:
        if chosen.command == "push":
            push(DIST, chosen.registry, chosen.options)
        elif chosen.command == "check":
            return check(DIST)
        else:
            shutil.rmtree(DIST, ignore_errors=True)
            DIST.mkdir()
            build(DIST, {target: images.archive(target) for target in TARGETS})
            sys.stdout.write((DIST / DIGESTS).read_text(encoding="utf-8"))
    except (ClusterError, OSError, ValueError) as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

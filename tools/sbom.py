#!/usr/bin/env python3
"""Tell what is in an image, as CycloneDX 1.6: `tools/sbom.py IMAGE NAME > NAME.cdx.json`.

`IMAGE` is an OCI archive of `docker save`, `skopeo copy` or `buildah push`, or the folder of an OCI layout. Read from
the image itself, not from what was asked for: Debian's packages from dpkg's status, Python's from their metadata. The
same image gives the same document.
"""

import io
import json
import re
import sys
import tarfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from email.parser import HeaderParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

OS_RELEASE = "usr/lib/os-release"
WANTED = re.compile(rf"(var/lib/dpkg/status|var/lib/dpkg/status\.d/[^/]+|{OS_RELEASE}|.*/[^/]+\.dist-info/METADATA)")
WHITEOUT = ".wh."
"""How a layer takes away what a lower one has."""

Component = dict[str, Any]


def main() -> None:
    """Print the document."""
    image, name = sys.argv[1:]
    json.dump(document(Path(image), name), sys.stdout, indent=1)
    sys.stdout.write("\n")


def document(image: Path, name: str) -> dict[str, Any]:
    """Of the image in an OCI archive or layout. ValueError if it holds no image, or one without packages."""
    config, digest, files = _read(image)
    components = sorted([*_debian(files), *_python(files), *_interpreter(config)], key=lambda each: str(each["purl"]))
    if not components:
        raise ValueError(f"{image}: the image has no package of Debian's or Python's")
    labels = config.get("config", {}).get("Labels") or {}
    whole = {
        "type": "container",
        "bom-ref": "image",
        "name": name,
        "version": labels.get("org.opencontainers.image.version", "unknown"),
        "hashes": [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")}],
    }
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, digest)}",
        "version": 1,
        "metadata": {"component": whole},
        "components": components,
        "dependencies": [{"ref": "image", "dependsOn": [each["bom-ref"] for each in components]}],
    }


def _read(image: Path) -> tuple[dict[str, Any], str, dict[str, bytes]]:
    """The image's configuration, the digest of its manifest, and those of its files that name packages."""
    with ExitStack() as opened:
        content = _folder(image) if image.is_dir() else _archive(opened.enter_context(tarfile.open(image)))

        def blob(digest: str) -> bytes:
            return content(f"blobs/{digest.replace(':', '/')}")

        # What else a layout may hold is about the image.
        images = [each for each in json.loads(content("index.json"))["manifests"] if "artifactType" not in each]
        if len(images) != 1:
            raise ValueError(f"{image}: {len(images)} images; one is wanted")
        digest = images[0]["digest"]
        manifest = json.loads(blob(digest))
        files: dict[str, bytes] = {}
        for layer in manifest["layers"]:
            for path, changed in _changes(blob(layer["digest"])):
                if changed is None:
                    files = {each: kept for each, kept in files.items() if not f"{each}/".startswith(f"{path}/")}
                else:
                    files[path] = changed
        return json.loads(blob(manifest["config"]["digest"])), digest, files


def _folder(layout: Path) -> Callable[[str], bytes]:
    return lambda name: (layout / name).read_bytes()


def _archive(archive: tarfile.TarFile) -> Callable[[str], bytes]:
    def content(name: str) -> bytes:
        file = archive.extractfile(name)
        if file is None:
            raise ValueError(f"{name} is no file")
        return file.read()

    return content


def _changes(layer: bytes) -> Iterator[tuple[str, bytes | None]]:
    """What a layer does to the files that we want: their content, or None for what it takes away."""
    with tarfile.open(fileobj=io.BytesIO(layer)) as opened:
        for entry in opened:
            path = entry.name.removeprefix("./")
            folder, _, last = path.rpartition("/")
            if last.startswith(WHITEOUT):
                yield f"{folder}/{last.removeprefix(WHITEOUT)}", None
            elif entry.isfile() and WANTED.fullmatch(path) and (file := opened.extractfile(entry)) is not None:
                yield path, file.read()


def _debian(files: dict[str, bytes]) -> Iterator[Component]:
    """Packages that are installed, by dpkg."""
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)', files.get(OS_RELEASE, b"").decode(), re.MULTILINE))
    distribution = f"{release.get('ID', 'debian')}-{release.get('VERSION_ID', '')}".rstrip("-")
    told = [content.decode() for path, content in files.items() if path.startswith("var/lib/dpkg/status")]
    for paragraph in "\n\n".join(told).split("\n\n"):
        fields = HeaderParser().parsestr(paragraph.strip())
        if fields["Package"] and fields.get("Status", "install ok installed").endswith(" installed"):
            name, version = fields["Package"], fields["Version"]
            purl = f"pkg:deb/{release.get('ID', 'debian')}/{quote(name)}@{quote(version, safe='')}"
            yield _component(name, version, f"{purl}?arch={fields['Architecture']}&distro={distribution}")


def _python(files: dict[str, bytes]) -> Iterator[Component]:
    """Distributions, with the license that each names."""
    for path, content in files.items():
        if path.endswith(".dist-info/METADATA"):
            fields = HeaderParser().parsestr(content.decode("utf-8", errors="replace"))
            name = re.sub(r"[-_.]+", "-", fields["Name"]).lower()
            made = _component(name, fields["Version"], f"pkg:pypi/{name}@{quote(fields['Version'], safe='')}")
            if expression := fields.get("License-Expression"):
                made["licenses"] = [{"expression": expression}]
            yield made


def _interpreter(config: dict[str, Any]) -> Iterator[Component]:
    """The Python of the official images, which is no package of Debian's."""
    for setting in config.get("config", {}).get("Env") or ():
        name, _, version = setting.partition("=")
        if name == "PYTHON_VERSION":
            yield _component("python", version, f"pkg:generic/python@{quote(version, safe='')}")


def _component(name: str, version: str, purl: str) -> Component:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


if __name__ == "__main__":
    main()

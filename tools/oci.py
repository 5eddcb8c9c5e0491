"""Layouts of OCI's image specification: a folder for each repository of a registry, as oras, skopeo and crane read it.

The same content gives the same files: times, names and order are none of a layout's.
"""

import gzip
import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, Final

IMAGE_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
IMAGE_INDEX: Final = "application/vnd.oci.image.index.v1+json"
PLAIN_LAYER: Final = "application/vnd.oci.image.layer.v1.tar"
LAYER: Final = f"{PLAIN_LAYER}+gzip"
EMPTY: Final = "application/vnd.oci.empty.v1+json"
STATEMENT: Final = "application/vnd.in-toto+json"
CHART_CONFIG: Final = "application/vnd.cncf.helm.config.v1+json"
CHART_CONTENT: Final = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"

TAG: Final = "org.opencontainers.image.ref.name"
PIECE_BYTES: Final = 1024 * 1024
"""Of a layer in memory at a time."""

Descriptor = dict[str, Any]
"""What a manifest says of a blob: media type, digest and size."""


class Layout:
    """A new layout in a folder, in place of what was there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._manifests: list[Descriptor] = []
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "blobs/sha256").mkdir(parents=True)
        (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')

    def add(self, content: bytes, media_type: str) -> Descriptor:
        """Keep these bytes."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self._path(digest).write_bytes(content)
        return {"mediaType": media_type, "digest": digest, "size": len(content)}

    def add_layer(self, layer: IO[bytes], *, is_packed: bool = False) -> Descriptor:
        """Keep a layer, whatever its size; compressed, if it is not yet. OSError if it cannot be read or kept."""
        fresh = self._folder / "layer.new"
        with fresh.open("wb") as file:
            if is_packed:
                shutil.copyfileobj(layer, file, PIECE_BYTES)
            else:  # no name and no time in the header: they would differ from build to build
                with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed:
                    shutil.copyfileobj(layer, packed, PIECE_BYTES)
        with fresh.open("rb") as written:
            digest = f"sha256:{hashlib.file_digest(written, 'sha256').hexdigest()}"
        size = fresh.stat().st_size
        os.replace(fresh, self._path(digest))
        return {"mediaType": LAYER, "digest": digest, "size": size}

    def add_manifest(
        self, config: Descriptor, layers: Iterable[Descriptor], *, tag: str | None = None, **more: Any
    ) -> Descriptor:
        """Keep a manifest, with a tag or without, and list it in the index."""
        manifest = {"schemaVersion": 2, "mediaType": IMAGE_MANIFEST, "config": config, "layers": list(layers), **more}
        kept = self.add(canonical(manifest), IMAGE_MANIFEST)
        listed = kept | {key: more[key] for key in ("artifactType",) if key in more}
        self._manifests.append(listed | ({"annotations": {TAG: tag}} if tag else {}))
        index = {"schemaVersion": 2, "mediaType": IMAGE_INDEX, "manifests": self._manifests}
        (self._folder / "index.json").write_bytes(canonical(index))
        return kept

    def attach(self, statement: Mapping[str, Any], subject: Descriptor) -> Descriptor:
        """Keep a statement of in-toto's about a manifest, as what refers to that."""
        predicate = {"in-toto.io/predicate-type": statement["predicateType"]}
        layer = self.add(canonical(statement), STATEMENT) | {"annotations": predicate}
        return self.add_manifest(self.add(b"{}", EMPTY), [layer], artifactType=STATEMENT, subject=subject)

    def _path(self, digest: str) -> Path:
        return self._folder / "blobs" / digest.replace(":", "/")


def add_image(layout: Layout, archive: Path, tag: str) -> Descriptor:
    """The one image of an OCI archive, its layers compressed: its manifest.

    Raises `ValueError` if the archive has another number of images, or a layer that is neither plain nor gzip's.
    """
    with tarfile.open(archive) as opened:
        listed = json.loads(_file(opened, "index.json").read())["manifests"]
        if len(listed) != 1:
            raise ValueError(f"{archive}: {len(listed)} images; one is wanted")
        manifest = json.loads(_blob(opened, listed[0]["digest"]).read())
        for layer in manifest["layers"]:
            if layer["mediaType"] not in (LAYER, PLAIN_LAYER):
                raise ValueError(f"{archive}: a layer is {layer['mediaType']}; {LAYER} or {PLAIN_LAYER} is wanted")
        config = layout.add(_blob(opened, manifest["config"]["digest"]).read(), manifest["config"]["mediaType"])
        layers = [
            # What buildah has pulled before, such as the base, it writes packed even if asked for plain layers.
            layout.add_layer(_blob(opened, layer["digest"]), is_packed=layer["mediaType"] == LAYER)
            for layer in manifest["layers"]
        ]
    return layout.add_manifest(config, layers, tag=tag)


def canonical(document: Mapping[str, Any]) -> bytes:
    """The same document is the same bytes."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _blob(opened: tarfile.TarFile, digest: str) -> IO[bytes]:
    return _file(opened, f"blobs/{digest.replace(':', '/')}")


def _file(opened: tarfile.TarFile, name: str) -> IO[bytes]:
    file = opened.extractfile(name)
    if file is None:
        raise ValueError(f"{name} is no file")
    return file

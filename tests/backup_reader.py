"""Backups as docs/storage.md describes them, made repositories that `StorageReader` reads."""

import json
from pathlib import Path

from crc32c import crc32c

from tests.storage_claims import require
from tests.storage_reader import FORMAT


def lay_out(backup: Path, root: Path) -> None:
    """Put the files of a backup where a repository has them, each verified against the manifest."""
    body, _, crc = (backup / "backup.json").read_bytes().rpartition(b"\n")
    require(crc == b"%08x" % crc32c(body), "backup.json")
    manifest = json.loads(body)
    require(manifest["format"] == 1, f"backup.json: format {manifest['format']}")
    identity = manifest["identity"]
    places = {manifest["snapshot"]["path"]: Path("flowfile", "snapshot")}
    places |= {file["path"]: Path("swap", file["name"]) for file in manifest["swaps"]}
    beside = [*manifest["provenance"], *manifest["runs"]]
    places |= {file["path"]: Path(file["directory"], file["name"]) for file in beside}
    for file in manifest["contents"]:
        section = Path(identity["containers"][file["container"]], str(file["resource"] % identity["sections"]))
        places[file["path"]] = (section / "archive" if file["is_archived"] else section) / file["name"]
    files = [manifest["snapshot"], *manifest["swaps"], *beside, *manifest["contents"]]
    for file in files:
        data = (backup / (file["path"] + file.get("suffix", ""))).read_bytes()
        require((len(data), crc32c(data)) == (file["length"], file["crc"]), file["path"])
        target = root / places[file["path"]]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    for name, path in identity["containers"].items():
        container = {"format": FORMAT, "repository": identity["repository"], "container": name}
        (root / path).mkdir(parents=True, exist_ok=True)
        (root / path / "ullage.json").write_text(json.dumps(container), encoding="utf-8")
    (root / "ullage.json").write_text(json.dumps(identity), encoding="utf-8")

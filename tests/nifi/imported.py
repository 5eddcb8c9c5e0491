"""What an imported repository holds, comparable with what NiFi's own classes say of the one that it came from."""

import subprocess
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from tests.nifi.judged import JudgedSample
from ullage.contract import ContentRepository, ContentRepositorySpec, Metadata
from ullage.embedded.nifiimport import ImportReport, NiFiImporter, NiFiSource
from ullage.embedded.repository import EmbeddedRepository, open_embedded
from ullage.nifi.home import NiFiHome
from ullage.testing.crashing import CrashFiles


class Standing(NamedTuple):
    """A FlowFile in its place."""

    queue: str
    uuid: str
    entry_millis: int
    lineage_millis: int
    size: int
    attributes: str
    content: str


def digest_of(attributes: Mapping[str, str]) -> str:
    """As Judge.java works it out: Java counts and sorts by halves of what lies beyond the basic plane."""

    def units(text: str) -> bytes:
        return text.encode("utf-16-be", "surrogatepass")

    found = sha256()
    for name in sorted(attributes, key=units):
        value = attributes[name]
        found.update(
            f"{len(units(name)) // 2}:{name}={len(units(value)) // 2}:{value}".encode("utf-16-be", "surrogatepass")
        )
    return found.hexdigest()


def told_by_nifi(sample: JudgedSample, java: list[str]) -> list[Standing]:
    """NiFi's own classes, which open it as NiFi does when it starts; it is put back afterwards."""
    sample.restore()
    command = [*java[:-1], "harness.Judge", "--ordered", str(sample.place)]
    told = subprocess.run(command, check=True, timeout=120, capture_output=True, text=True).stdout.splitlines()
    sample.restore()
    found = []
    for line in told:
        if line.startswith(("=", "#")):  # the directory, and what NiFi's diagnostics tell
            continue
        queue, _, _, entry, lineage, _, _, _, size, attributes, content, uuid = line.split("\t")
        found.append(Standing(queue, uuid, int(entry), int(lineage), int(size), attributes, content))
    return found


def standing(repository: EmbeddedRepository) -> list[Standing]:
    """Every FlowFile of every queue, in order, its content read."""
    return [
        Standing(
            queue.name,
            each.id,
            each.entry_millis,
            each.lineage_millis,
            each.size,
            digest_of(each.attributes),
            sha256(_read(repository, each.id)).hexdigest(),
        )
        for queue in repository.queues.all()
        for each in repository.queues.all_flow_files(queue.name)
    ]


def _read(repository: EmbeddedRepository, id: str) -> bytes:
    with repository.content(id) as content:
        return content.read()


def opened(files: CrashFiles | None = None, root: Path | str = "/target", *, swaps: bool = False) -> EmbeddedRepository:
    """A repository on this disk, made if it is not there; with `swaps` few FlowFiles of a queue stay in memory."""
    parts: dict[str, Any] = {} if files is None else {"files": files}
    spec = ContentRepositorySpec.embedded(Path(root))
    if swaps:
        spec = replace(spec, flow_file=replace(spec.flow_file, swap_threshold=20, swap_batch=10))
    document = ContentRepository(metadata=Metadata(name="target"), spec=spec)
    return open_embedded(None, document, create=True, maintain=False, **parts)


def bring(repository: EmbeddedRepository, home: NiFiHome) -> ImportReport:
    """All of it, from a NiFi of which it is known that none runs."""
    return NiFiImporter(repository, NiFiSource(home, is_assured=True)).run(lambda done, total: None)


def stored_bytes(repository: EmbeddedRepository) -> int:
    """Of all contents that FlowFiles have, in memory and in swap files, each counted once."""
    engine = repository.engine
    swapped = [record for name in engine.ledger.swaps for record in engine.swap_files.read(name).records]
    claims = {record.claim for record in [*engine.ledger.records, *swapped] if record.claim is not None}
    return sum(claim.length for claim in claims)

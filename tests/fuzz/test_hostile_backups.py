"""Backups that somebody forged: a restoration ends in a repository or an UllageError, and writes nowhere else."""

from typing import Any

import msgspec
from crc32c import crc32c
from hypothesis import given, seed, strategies as st

from tests.fuzz.corpus import EXAMPLES, SEED, Edit, backed_up, closed, edited, edits
from tests.fuzz.test_parsers import fuzz
from tests.proof.figures import note
from ullage_agent.contract import HostPath
from ullage_agent.engine.errors import UllageError
from ullage_agent.engine.repository import Repository
from ullage_agent.engine.testing import CrashFiles

MANIFEST = "/b/backup.json"
HOSTILE: tuple[object, ...] = (
    *("", ".", "..", "../../escaped", "/escaped", "a/../../../escaped", "a//b", "x" * 300, "\0", "ullage.json", "1-1"),
    *(-1, 0, 1 << 62, None, True, [], {}),
)
COPY = msgspec.structs.replace(
    closed().spec, storage=msgspec.structs.replace(closed().spec.storage, host_path=HostPath(path="/copy"))
)


def restore(body: bytes) -> None:
    """Restore the backup under this manifest, with a valid checksum."""
    data = body + b"\n%08x" % crc32c(body)
    before = backed_up()
    files = CrashFiles(before._replace(files={**before.files, MANIFEST: data}))
    try:
        Repository.restore_backup("/b", COPY, files)
    except UllageError:
        is_refused = True
    else:
        is_refused = False
    after = files.image().files
    changed = {path for path in after if after[path] != before.files.get(path)} - {MANIFEST}
    assert all(path.startswith("/copy/") for path in changed), changed
    assert not is_refused or "/copy/ullage.json" not in after


def body_of() -> bytes:
    return backed_up().files[MANIFEST].rpartition(b"\n")[0]


def places(found: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every value of a JSON document, by the keys that lead to it."""
    inner = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))][bool(not path) :]


def test_forged_manifests_are_refused_or_restored() -> None:
    """Any bytes under a valid checksum."""
    print(f"seed {SEED}")

    @seed(SEED)
    @fuzz
    @given(edits())
    def run(changes: list[Edit]) -> None:
        restore(edited(body_of(), changes))

    run()
    note(examples=EXAMPLES)


def test_a_backup_writes_nowhere_but_into_its_repository() -> None:
    """Names and numbers of a well-formed manifest are replaced by others that lead elsewhere."""
    whole = places(msgspec.json.decode(body_of()))
    print(f"seed {SEED}: {len(whole)} values")

    @seed(SEED)
    @fuzz
    @given(st.lists(st.tuples(st.sampled_from(whole), st.sampled_from(HOSTILE)), min_size=1, max_size=3))
    def run(changes: list[tuple[tuple[Any, ...], object]]) -> None:
        forged = msgspec.json.decode(body_of())
        for place, value in changes:
            inner = forged
            for key in place[:-1]:
                inner = inner[key] if isinstance(inner, dict | list) else None
            if isinstance(inner, dict | list):
                inner[place[-1]] = value
        restore(msgspec.json.encode(forged))

    run()
    note(examples=EXAMPLES)

"""Backups that somebody forged: a restoration ends in a repository or an UllageError, and writes nowhere else."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given, seed, strategies as st

from tests.fuzz.corpus import EXAMPLES, SEED, Edit, backed_up, closed, edited, edits
from tests.fuzz.test_parsers import fuzz
from tests.proof.figures import note
from ullage.contract import HostPath
from ullage.engine.backupdirectory import DirectoryPlace
from ullage.engine.backupgenerations import generations_at
from ullage.engine.backupverify import verify
from ullage.engine.engine import Engine
from ullage.errors import UllageError
from ullage.testing.crashing import CrashFiles

MANIFEST = "/b/backup.json"
HOSTILE: tuple[object, ...] = (
    *("", ".", "..", "../../escaped", "/escaped", "a/../../../escaped", "a//b", "x" * 300, "\0", "ullage.json", "1-1"),
    *(-1, 0, 1 << 40, 1 << 62, 1 << 63, None, True, 1.5, [], {}),
)
COPY = msgspec.structs.replace(
    closed().spec, storage=msgspec.structs.replace(closed().spec.storage, host_path=HostPath(path="/copy"))
)


def restore(body: bytes) -> None:
    """Restore the backup under this manifest."""
    files = holding(body)
    before = backed_up()
    try:
        Engine.restore_backup("/b", COPY, files)
    except UllageError:
        is_refused = True
    else:
        is_refused = False
    after = files.image().files
    changed = {path for path in after if after[path] != before.files.get(path)} - {MANIFEST}
    assert all(path.startswith("/copy/") for path in changed), changed
    assert not is_refused or "/copy/ullage.json" not in after


def holding(body: bytes) -> CrashFiles:
    """The backup under this manifest, with a valid checksum."""
    image = backed_up()
    return CrashFiles(image._replace(files={**image.files, MANIFEST: body + b"\n%08x" % crc32c(body)}))


def body_of() -> bytes:
    return backed_up().files[MANIFEST].rpartition(b"\n")[0]


def places(found: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every value of a JSON document, by the keys that lead to it."""
    inner = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))][bool(not path) :]


def holds(found: Any, key: Any) -> bool:
    """Whether there is still something to replace: a replacement before this one may have taken it away."""
    if isinstance(found, list):
        return isinstance(key, int) and key < len(found)
    return isinstance(found, dict) and key in found


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


def test_each_value_of_a_manifest_may_be_anything() -> None:
    """Whoever looks at such a backup, or restores it, is answered in words, and takes no memory for what it claims."""
    whole = places(msgspec.json.decode(body_of()))
    for place in whole:
        for value in HOSTILE:
            forged = msgspec.json.decode(body_of())
            inner = forged
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = value
            body = msgspec.json.encode(forged)
            looked_at = DirectoryPlace(holding(body), "/b")
            looks: tuple[Callable[[DirectoryPlace], object], ...] = (
                generations_at,
                lambda at: verify(at, None, 1.0, 1),
            )
            for look in looks:
                with suppress(UllageError):  # refused, or as it is: nothing else may come of it
                    look(looked_at)
            restore(body)
    note(values=len(whole), hostile=len(HOSTILE))


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
                inner = inner[key] if holds(inner, key) else None
            if holds(inner, place[-1]):
                inner[place[-1]] = value
        restore(msgspec.json.encode(forged))

    run()
    note(examples=EXAMPLES)


@pytest.mark.parametrize(
    ("directory", "said"),
    [
        ("{other}", "as no backup does"),
        ("{other}/deeper", "as no backup does"),
        ("c1", "give that container another subPath"),
        ("c1/0", "give that container another subPath"),
    ],
)
def test_event_files_get_places_of_their_own(directory: str, said: str) -> None:
    """A directory that is another file, or lies in a container, is refused before anything is written."""
    forged = msgspec.json.decode(body_of())
    first, other, *_ = forged["provenance"]
    first["directory"] = directory.format(other=f"{other['directory']}/{other['name']}")
    files = holding(msgspec.json.encode(forged))

    with pytest.raises(UllageError, match=said):
        Engine.restore_backup("/b", COPY, files)

    assert not any(path.startswith("/copy/") for path in files.image().files)


def test_two_event_files_of_one_place_are_refused() -> None:
    """The second would replace the first."""
    forged = msgspec.json.decode(body_of())
    forged["provenance"].append(forged["provenance"][0])

    with pytest.raises(UllageError, match="as no backup does"):
        Engine.restore_backup("/b", COPY, holding(msgspec.json.encode(forged)))

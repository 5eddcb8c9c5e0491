"""Flip any bit of a backup, cut any of its files: the restoration names the file, and leaves no repository."""

import os
import random
from collections.abc import Iterator

import msgspec
import pytest

from tests.proof.figures import note
from tests.rot.specimen import Shown, abandon, reopen, shown, specimen
from tests.rot.verdict import IDENTITY
from tests.support import ManualClock
from ullage.contract import ContentRepositorySpec, HostPath
from ullage.engine.engine import Engine
from ullage.errors import UllageError
from ullage.testing.crashing import CrashFiles, Image

SAMPLE = float(os.environ.get("ULLAGE_ROT_SAMPLE", "0.003"))
SEED = int(os.environ.get("ULLAGE_ROT_SEED", "20261121"))
BACKUP, COPY = "/b", "/copy"
PLACES_MAX = max(4, round(400 * SAMPLE))
"""Of each file: every byte of each is covered by the same checksum."""


class Backed:
    """A backup of the specimen, in memory: its files, the spec of a copy, and what is true of it."""

    def __init__(self) -> None:
        whole = specimen(closed=True, partitions=1)
        repository = reopen(whole.image, whole.spec)
        repository.backup(BACKUP)
        self.truth = shown(repository)[0]
        files = repository._files
        assert isinstance(files, CrashFiles)
        image = files.image()
        abandon(repository)
        inside = {path: data for path, data in image.files.items() if path.startswith(BACKUP + "/")}
        directories = frozenset(path for path in image.directories if path == "/" or path.startswith(BACKUP))
        self.image = Image(inside, directories)
        self.spec: ContentRepositorySpec = msgspec.structs.replace(
            whole.spec, storage=msgspec.structs.replace(whole.spec.storage, host_path=HostPath(path=COPY))
        )

    def refusal(self, path: str, data: bytes) -> str:
        """What a restoration says with `data` in the place of one file; there is no repository then."""
        files = CrashFiles(self.image._replace(files={**self.image.files, path: data}))
        with pytest.raises(UllageError) as caught:
            Engine.restore_backup(BACKUP, self.spec, files)
        assert not files.exists(f"{COPY}/{IDENTITY}")
        return str(caught.value)

    def restored(self) -> dict[bytes, Shown]:
        files = CrashFiles(self.image)
        Engine.restore_backup(BACKUP, self.spec, files)
        repository = Engine.open(self.spec, files, ManualClock(1_700_000_100_000))
        try:
            assert repository.check(deep=True).problems == ()
            return shown(repository)[0]
        finally:
            abandon(repository)


@pytest.fixture(scope="module")
def backed() -> Backed:
    return Backed()


def places(backed: Backed, chooser: random.Random) -> Iterator[tuple[str, bytes, int]]:
    """Bytes of every file of the backup."""
    for path, data in sorted(backed.image.files.items()):
        for at in sorted(chooser.sample(range(len(data)), min(len(data), PLACES_MAX))):
            yield path, data, at


def test_an_unharmed_backup_holds_every_kind_of_file(backed: Backed) -> None:
    """What is damaged below is a whole backup: snapshot, swap files, contents, event files and manifests."""
    kinds = {path.split("/")[2] for path in backed.image.files}

    assert kinds == {"backup.json", "flowfile", "runs", "swap", "content", "provenance"}
    assert backed.restored() == backed.truth


def test_any_flipped_bit_of_a_backup_is_named(backed: Backed) -> None:
    """There is no harmless bit: every file is covered by its checksum in the manifest, and that by its own."""
    chooser = random.Random(SEED)
    flips = 0
    for path, data, at in places(backed, chooser):
        bit = chooser.randrange(8)
        rotten = data[:at] + bytes((data[at] ^ (1 << bit),)) + data[at + 1 :]
        assert path in backed.refusal(path, rotten), f"seed {SEED}: bit {bit} of byte {at} in {path}"
        flips += 1
    print(f"seed {SEED}: {flips} flips in {len(backed.image.files)} files")
    note(flips=flips)

    assert flips >= len(backed.image.files)


def test_any_cut_file_of_a_backup_is_named(backed: Backed) -> None:
    """The same of files that end too early, or are gone."""
    chooser = random.Random(SEED)
    cuts = 0
    for path, data, at in places(backed, chooser):
        assert path in backed.refusal(path, data[:at]), f"seed {SEED}: {path} cut to {at} bytes"
        cuts += 1
    print(f"seed {SEED}: {cuts} cuts of {len(backed.image.files)} files")
    note(cuts=cuts)

    assert cuts >= len(backed.image.files)

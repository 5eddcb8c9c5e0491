"""Attributes as Arrow has them: what each says, and how many of them are Python's objects at a time."""

from collections.abc import Mapping, Sequence
from itertools import repeat
from random import Random

import pytest

from tests.support import seed as seed  # a fixture
from ullage.engine import batches
from ullage.engine.batches import attribute_maps, maps_of, unpack_all_attributes
from ullage.engine.model import FlowFileRecord, Update, pack_attributes, unpack_attributes
from ullage.engine.updates import updated
from ullage.wire.documents import ATTRIBUTES_MAX


def changed(packed: bytes, changes: dict[str, str]) -> bytes:
    """What an update makes of them: a small one is put behind what is there."""
    record = FlowFileRecord(bytes(16), 1, None, 0, 0, 0, 0, 0, packed, b"", 0)
    return updated(record, Update(record.uuid, set_attributes=pack_attributes(changes))).attributes


@pytest.mark.parametrize("step_bytes", [1, 40, 1 << 20])
def test_they_say_what_is_stored(seed: int, monkeypatch: pytest.MonkeyPatch, step_bytes: int) -> None:
    """In steps of any size, with names that an update has put behind what was there, and with the same ones again."""
    monkeypatch.setattr(batches, "STEP_BYTES", step_bytes)
    random = Random(seed)
    packed = []
    for _ in range(50):
        names = random.sample("abcdefgh", random.randrange(6))
        packed.append(changed(pack_attributes(dict(zip(names, repeat("é")))), {random.choice("abcdefgh"): "new"}))
    packed += [pack_attributes({}), *random.choices(packed, k=20)]
    assert any(len(unpack_attributes(each)) < each[0] - 0x80 for each in packed)  # a name that is there twice

    for some in (packed, packed[:1], []):
        found = attribute_maps(some)
        found.validate(full=True)
        assert found.to_pylist() == [list(unpack_attributes(each).items()) for each in some]


def test_a_step_is_hardly_longer_than_what_one_flow_file_may_take() -> None:
    """No other thread runs meanwhile: of the shortest attributes one FlowFile may have 50 kB."""
    shortest = {f"{number:03x}"[-3:]: "" for number in range(1 << 12)} | {f"{number:04}": "" for number in range(5_904)}
    assert len(shortest) == ATTRIBUTES_MAX
    assert 2 * len(pack_attributes(shortest)) > batches.STEP_BYTES


def test_few_are_objects_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large ones one by one, small ones together; each once, and others work in between."""
    packed = [pack_attributes({f"{row}-{name}": "" for name in range(count)}) for row, count in enumerate([9] * 900)]
    packed += [pack_attributes({f"{row}-{name}": "" for name in range(9_999)}) for row in range(4)]
    monkeypatch.setattr(batches, "STEP_BYTES", 20_000)
    seen: list[Sequence[bytes]] = []
    breaths = 0

    def unpacked(few: Sequence[bytes]) -> Sequence[Mapping[str, str | None]]:
        seen.append(few)
        return unpack_all_attributes(few)

    def step() -> None:
        nonlocal breaths
        breaths += 1

    found = maps_of([*packed, *packed], len, unpacked, step)

    assert len(found) == 2 * len(packed)
    assert [each for few in seen for each in few] == packed
    assert all(len(few) == 1 or sum(map(len, few)) <= batches.STEP_BYTES for few in seen)
    assert 900 > len(seen) > 4
    assert breaths == len(seen) - 1

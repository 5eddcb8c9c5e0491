"""What a record that can't be used names, read from its bytes field by field, and the `SetAside` that keeps it.

Whatever is not as expected counts as naming everything: nothing is given back that it might have meant.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from ullage.engine.model import UUID_BYTES, FlowFileRecord, SetAside, Whole
from ullage.engine.packs import BEFORE_UUID

HANDLES_SPACE = "handles"
"""How runs of handles name what they hold."""

Fields = list[msgspec.Raw]

_SURPRISES = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, IndexError)


class Named(NamedTuple):
    """FlowFiles by uuid, resource claims, and a swap file; `is_all`: the bytes do not say which, or mean all."""

    uuids: bytes = b""
    resources: tuple[int, ...] = ()
    swap_file: str = ""
    is_all: bool = False


class RecordsAside:
    """All that were set aside, by id. Changed under the ledger's lock only."""

    def __init__(self) -> None:
        self._records: dict[bytes, SetAside] = {}
        self._resources: Counter[int] = Counter()
        self._through = self._unread = 0

    def __len__(self) -> int:
        return len(self._records)

    def __bool__(self) -> bool:
        """Whether anything is held back; where runs cannot be read that is so without a record."""
        return bool(self._records) or self.is_holding_unread

    def all(self) -> list[SetAside]:
        return list(self._records.values())

    def find(self, id: bytes) -> SetAside | None:
        return self._records.get(id)

    def add(self, record: SetAside) -> None:
        """One more; the same one again changes nothing."""
        if record.id not in self._records:
            self._records[record.id] = record
            self._resources.update(record.resources)
            self._through = max(self._through, record.held_through)

    def end(self, id: bytes) -> SetAside | None:
        """One less: what only it may have meant is not held back any more."""
        ended = self._records.pop(id, None)
        if ended is not None:
            self._resources.subtract(ended.resources)
            self._resources = +self._resources
            self._through = max((record.held_through for record in self._records.values()), default=0)
        return ended

    def hold_unread(self, through: int) -> None:
        """What cannot be read may point at any resource claim up to this one; 0: all can be read, or is given up."""
        self._unread = through

    @property
    def is_holding_unread(self) -> bool:
        """Whether something cannot be read, and may point anywhere."""
        return self._unread > 0

    def may_mean(self, index: int) -> bool:
        """Whether one of them may point at this resource claim."""
        return index <= max(self._through, self._unread) or index in self._resources

    def may_mean_run(self) -> bool:
        """Whether one of them may list a run."""
        return self._through > 0 or any(_is_of_run(record.data) for record in self._records.values())

    def may_mean_swap(self, name: str) -> bool:
        """Whether one of them may speak of this swap file."""
        return self._through > 0 or any(record.swap_file == name for record in self._records.values())


def _is_of_run(data: bytes) -> bool:
    try:
        return bool(_decoded(_decoded(data, Fields)[0], int) == _RUN_TAG)
    except _SURPRISES:
        return False


def named_by(data: bytes) -> Named:
    """What the bytes of an operation name."""
    try:
        fields: Fields = _decoded(data, Fields)
        tag = _decoded(fields[0], int)
    except _SURPRISES:
        at = len(BEFORE_UUID)  # of a record that ends in what is none the beginning may say whose it was
        return Named(data[at : at + UUID_BYTES] if data.startswith(BEFORE_UUID) else b"", is_all=True)
    try:
        uuids = _decoded(fields[_UUIDS[tag]], bytes) if tag in _UUIDS else b""
    except _SURPRISES:
        uuids = b""
    try:
        return _NAMES[tag](fields)._replace(uuids=uuids)
    except (*_SURPRISES, KeyError):
        return Named(uuids, is_all=True)


def set_aside(
    data: bytes,
    reason: str,
    place: str,
    millis: int,
    ceiling: int,
    flow_files: Sequence[FlowFileRecord] = (),
    unread: Iterable[tuple[int, int | None]] = (),
) -> SetAside:
    """The record that keeps another one. `flow_files` are those of the ones it names that there were; `ceiling` is the
    greatest index of a resource claim that it may mean; `unread` is what nobody can use it without.
    """
    named = named_by(data)
    held = {*named.resources, *(record.claim.resource for record in flow_files if record.claim is not None)}
    return SetAside(
        id=blake2b(data, digest_size=UUID_BYTES, person=b"set aside", key=blake2b(place.encode()).digest()).digest(),
        place=place,
        reason=reason,
        data=data,
        millis=millis,
        uuids=named.uuids,
        flow_files=tuple(flow_files),
        resources=tuple(sorted(held)),
        swap_file=named.swap_file,
        held_through=max(1, ceiling) if named.is_all else 0,
        unread=tuple(unread),
    )


def _decoded(raw: bytes | msgspec.Raw, type: Any) -> Any:
    return msgspec.msgpack.decode(raw, type=type)


def _resource(raw: msgspec.Raw) -> tuple[int, ...]:
    """Of a content claim, or of none."""
    claim = _decoded(raw, Fields | None)
    return () if claim is None else (_decoded(claim[0], Whole),)


def _of_update(fields: Fields) -> Named:
    content = _decoded(fields[4], Fields | None) if len(fields) > 4 else None
    return Named(resources=() if content is None else _resource(content[0]))


def _of_swap_out(fields: Fields) -> Named:
    shares = _decoded(fields[8], list[Fields])
    return Named(resources=tuple(_decoded(share[0], Whole) for share in shares), swap_file=_decoded(fields[1], str))


def _of_lease(fields: Fields) -> Named:
    resources = _decoded(fields[3], tuple[Whole, ...])
    return Named(resources=resources, is_all=not resources)  # none: the snapshot as of a transaction


def _of_run(fields: Fields) -> Named:
    """What a run of handles keeps alive nobody knows without it."""
    return Named(is_all=_decoded(fields[2], str) == HANDLES_SPACE)


def _numbered(*places: int) -> Callable[[Fields], Named]:
    return lambda fields: Named(resources=tuple(_decoded(fields[place], Whole) for place in places))


_RUN_TAG = 30

_UUIDS = {1: 1, 2: 1, 3: 1, 9: 9, 27: 4, 31: 1}
"""Where operations have the uuids of FlowFiles that they change: of all others none is changed."""

_NAMES: dict[int, Callable[[Fields], Named]] = {
    1: lambda fields: Named(resources=_resource(fields[3])),
    2: _of_update,
    3: lambda _: Named(),
    4: lambda _: Named(),
    5: _numbered(1),
    6: _numbered(1),
    7: _numbered(1),
    8: lambda _: Named(),
    9: _of_swap_out,
    10: lambda fields: Named(swap_file=_decoded(fields[1], str)),
    11: lambda fields: Named(swap_file=_decoded(fields[1], str)),
    20: lambda _: Named(),
    21: lambda _: Named(),
    22: _numbered(1, 2),
    23: _of_lease,
    24: lambda _: Named(),
    25: lambda _: Named(),
    26: lambda _: Named(),
    27: lambda _: Named(),
    29: lambda _: Named(),
    _RUN_TAG: _of_run,
    32: lambda _: Named(),
}
"""By the tag of the operation (model.py). What is not here names everything."""

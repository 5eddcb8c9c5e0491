"""How operations become bytes. Every log, snapshot and swap file names the SerDe and version that wrote it.

As in NiFi, where each log names its SerDe, so that a record's form can change while old files stay readable: `decode`
is told the version that wrote the bytes.
"""

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import NamedTuple, get_args

import msgspec

from ullage.engine.model import (
    UUID_BYTES,
    Answer,
    ClaimBlocks,
    Delete,
    FlowFileRecord,
    HandlePack,
    Operation,
    ResourceClaim,
    RunFile,
    SetAside,
    Staged,
    StagedWrite,
    SwapOut,
    TransactionEvents,
    Update,
    Whole,
    unpack_attributes,
)
from ullage.engine.packs import encoded, is_whole
from ullage.engine.wal.format import OPERATIONS_MAX, PAYLOAD_BYTES_MAX, UNDECODABLE
from ullage.errors import FormatTooNew, InvalidArgument, RepositoryDamaged, TransactionTooLarge

READ_BACK_BYTES = 8 << 10
"""Transactions up to this size are read back whole before they are logged; it takes microseconds."""

_READ_BACK = frozenset(get_args(Operation)) - {FlowFileRecord, Update}
"""Of a large transaction: to read FlowFiles and updates takes longer than to encode them."""

_NOT_COUNTED = {ResourceClaim, ClaimBlocks, TransactionEvents, Answer, StagedWrite, Staged, SetAside, RunFile}


class Transaction(msgspec.Struct, array_like=True):
    """The payload of a transaction frame: when it was committed, and its operations in order."""

    millis: int
    operations: list[Operation]


class Undecodable(NamedTuple):
    """Bytes that should be an operation, or several, and why they are none."""

    data: bytes
    reason: str


class SerDe:
    """Msgpack arrays, each operation headed by its tag (model.py).

    Encodes the newest version, decodes every version up to it.
    """

    name = "ullage-msgpack"
    version = 1

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._transactions = msgspec.msgpack.Decoder(Transaction)
        self._blocks = msgspec.msgpack.Decoder(list[Operation])
        self._raw_transactions = msgspec.msgpack.Decoder(tuple[msgspec.Raw, list[msgspec.Raw]])
        self._raw_blocks = msgspec.msgpack.Decoder(list[msgspec.Raw])
        self._operations = msgspec.msgpack.Decoder(Operation)

    def encode(self, millis: int, operations: Sequence[Operation]) -> bytes:
        """A transaction's payload."""
        return self._encoder.encode((millis, operations))

    def decode(self, payload: bytes, version: int) -> Transaction:
        """The inverse, for a payload that `version` wrote."""
        return self._transactions.decode(payload)

    def encode_block(self, operations: Sequence[Operation]) -> bytes:
        """A run of records in a snapshot or swap file."""
        return self._encoder.encode(operations)

    def decode_block(self, payload: bytes, version: int) -> list[Operation]:
        """The inverse, for a block that `version` wrote."""
        return self._blocks.decode(payload)

    def decode_each(self, payload: bytes, version: int) -> tuple[int, list[Operation | Undecodable]]:
        """What `decode` would, operation by operation: what can't be decoded stands in its place as it is. Never fails;
        a time that can't be decoded is 0.
        """
        try:
            millis, found = self._raw_transactions.decode(payload)
        except UNDECODABLE as error:
            return 0, [Undecodable(payload, f"the transaction does not decode: {error}")]
        try:
            return msgspec.msgpack.decode(millis, type=Whole), [self.decode_one(raw) for raw in found]
        except UNDECODABLE:
            return 0, [self.decode_one(raw) for raw in found]  # it says when, and nothing follows from that

    def decode_block_each(self, payload: bytes, version: int) -> list[Operation | Undecodable]:
        """The same of `decode_block`; handles that stand in a pack stay there: see `taken_apart`."""
        try:
            return [self.decode_one(raw) for raw in self._raw_blocks.decode(payload)]
        except UNDECODABLE as error:
            return [Undecodable(payload, f"the block does not decode: {error}")]

    def decode_one(self, raw: msgspec.Raw | bytes) -> Operation | Undecodable:
        """One operation, or what stands in its place."""
        try:
            operation: Operation = self._operations.decode(raw)
            return operation
        except UNDECODABLE as error:
            return Undecodable(bytes(raw), f"it does not decode: {error}")

    def taken_apart(self, found: Sequence[Operation | Undecodable]) -> list[Operation | Undecodable]:
        """The same with handles one by one, each of which may be one that does not decode."""
        apart: list[Operation | Undecodable] = []
        for each in found:
            if not isinstance(each, HandlePack):
                apart.append(each)
            elif is_whole(each):
                apart += [self.decode_one(record) for record in encoded(each)]
            else:
                apart.append(Undecodable(self.encode_operation(each), "nobody can tell where its rows end"))
        return apart

    def encode_operation(self, operation: Operation) -> bytes:
        """One operation, as it stands in a payload."""
        return self._encoder.encode(operation)


def operation_count(operations: Iterable[Operation]) -> int:
    """How many records a transaction touches: a `Delete` or `SwapOut` counts for each uuid it names.

    What accompanies content and what tells of it is not counted: a session that fills its limit with FlowFiles may
    still say where they are, and what happened to them.
    """
    operations = list(operations)
    each = list(map(type, operations))
    kinds = set(each)
    count = len(each)
    for kind in kinds & _NOT_COUNTED:
        count -= each.count(kind)
    if Delete in kinds or SwapOut in kinds:
        for operation in operations:
            if type(operation) is Delete or type(operation) is SwapOut:
                count += len(operation.uuids) // UUID_BYTES - 1
    return count


def record_count(block: Sequence[Operation | Undecodable]) -> int:
    """How many records a block has: handles in a pack count one by one."""
    return len(block) + sum([each.size - 1 for each in block if type(each) is HandlePack])


def encode_transaction(serde: SerDe, operations: Sequence[Operation], millis: int) -> bytes:
    """A transaction's payload, or TransactionTooLarge. InvalidArgument for what no start could read again."""
    touched = operation_count(operations)
    if touched > OPERATIONS_MAX:
        raise TransactionTooLarge(
            f"{touched} records in one transaction, at most {OPERATIONS_MAX} are allowed: commit in parts"
        )
    try:
        payload = serde.encode(millis, operations)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"this cannot be stored, and nothing was: {error}") from error
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise TransactionTooLarge(
            f"a transaction of {len(payload)} bytes, at most {PAYLOAD_BYTES_MAX} are allowed: commit in parts"
        )
    require_readable(serde, payload, operations)
    return payload


def require_readable(serde: SerDe, payload: bytes, operations: Sequence[Operation]) -> None:
    """What is logged is read by the types that it was made with. The encoder does not look at them: a number beyond
    64 bits or a text where bytes belong would be acknowledged, and keep the repository shut from the next start on.

    Entrances refuse such values by name (`ullage.interface.checks`); what one of them forgets ends here.
    """
    is_small = len(payload) <= READ_BACK_BYTES
    try:
        if not is_small:
            told = compress(operations, map(_READ_BACK.__contains__, map(type, operations)))
            payload = serde.encode(0, list(map(_told, told)))
        found = serde.decode(payload, serde.version).operations
        for operation in found if is_small else ():
            if type(operation) is FlowFileRecord:
                unpack_attributes(operation.attributes)
            elif type(operation) is Update and operation.set_attributes is not None:
                unpack_attributes(operation.set_attributes)
    except UNDECODABLE as error:
        raise InvalidArgument(f"this could be stored and never be read again, and nothing was: {error}") from error


def _told(operation: Operation) -> Operation:
    """The same without FlowFiles as they were before: those were read, or logged, already."""
    if type(operation) is TransactionEvents and operation.before:
        return msgspec.structs.replace(operation, before=())
    return operation


def require_serde(serde: SerDe, name: str, version: int, path: str) -> None:
    """Refuse a file of another SerDe, or of a newer version of this one, naming both."""
    if name != serde.name:
        raise RepositoryDamaged(f"{path} was written with SerDe {name!r}; this repository uses {serde.name!r}")
    if version > serde.version:
        raise FormatTooNew(
            f"{path} was written with version {version} of SerDe {name!r}; this version of Ullage reads up to "
            f"{serde.version}: open it with the newer Ullage that wrote it"
        )

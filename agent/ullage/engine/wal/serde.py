"""How operations become bytes. Every log, snapshot and swap file names the SerDe and version that wrote it.

As in NiFi, where each log names its SerDe, so that a record's form can change while old files stay readable: `decode`
is told the version that wrote the bytes.
"""

from collections.abc import Sequence

import msgspec

from ullage.engine.model import Operation, operation_count
from ullage.engine.wal.format import OPERATIONS_MAX, PAYLOAD_BYTES_MAX
from ullage.errors import FormatTooNew, RepositoryDamaged, TransactionTooLarge


class Transaction(msgspec.Struct, array_like=True):
    """The payload of a transaction frame: when it was committed, and its operations in order."""

    millis: int
    operations: list[Operation]


class SerDe:
    """Msgpack arrays, each operation headed by its tag (model.py). Version 2 added provenance events.

    Encodes the newest version, decodes every version up to it.
    """

    name = "ullage-msgpack"
    version = 2

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._transactions = msgspec.msgpack.Decoder(Transaction)
        self._blocks = msgspec.msgpack.Decoder(list[Operation])

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


def encode_transaction(serde: SerDe, operations: Sequence[Operation], millis: int) -> bytes:
    """A transaction's payload, or TransactionTooLarge."""
    touched = operation_count(operations)
    if touched > OPERATIONS_MAX:
        raise TransactionTooLarge(
            f"{touched} records in one transaction, at most {OPERATIONS_MAX} are allowed: commit in parts"
        )
    payload = serde.encode(millis, operations)
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise TransactionTooLarge(
            f"a transaction of {len(payload)} bytes, at most {PAYLOAD_BYTES_MAX} are allowed: commit in parts"
        )
    return payload


def require_serde(serde: SerDe, name: str, version: int, path: str) -> None:
    """Refuse a file of another SerDe, or of a newer version of this one, naming both."""
    if name != serde.name:
        raise RepositoryDamaged(f"{path} was written with SerDe {name!r}; this repository uses {serde.name!r}")
    if version > serde.version:
        raise FormatTooNew(
            f"{path} was written with version {version} of SerDe {name!r}; this version of Ullage reads up to "
            f"{serde.version}: open it with the newer Ullage that wrote it"
        )

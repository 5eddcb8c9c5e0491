"""What one transaction may carry."""

import pytest

from tests.engine.wal.logbook import Logbook, note
from ullage.engine.model import NO_ATTRIBUTES, Delete, FlowFileRecord, Operation
from ullage.engine.wal.format import OPERATIONS_MAX, PAYLOAD_BYTES_MAX
from ullage.engine.wal.serde import SerDe
from ullage.errors import InvalidArgument, TransactionTooLarge

UNENCODABLE = FlowFileRecord(bytes(16), 1, None, 0, 0, 0, 0, 1 << 70, NO_ATTRIBUTES)


def size_of(logbook: Logbook, attributes: int) -> int:
    """A transaction's payload with so many bytes of attributes."""
    return len(SerDe().encode(logbook.clock.millis, [note(1, bytes(attributes))]))


def test_ten_thousand_records_are_the_most(logbook: Logbook) -> None:
    """10,000 operations pass; one more is refused, nothing applied, nothing written."""
    logbook.open()
    logbook.commit(*range(OPERATIONS_MAX))
    end = logbook.log.log_bytes
    with pytest.raises(TransactionTooLarge, match="10001 records"):
        logbook.append(*range(20_000, 20_001 + OPERATIONS_MAX))

    assert len(logbook.state.records) == OPERATIONS_MAX == 10_000
    assert (logbook.log.last_id, logbook.log.log_bytes) == (1, end)
    logbook.crash()
    logbook.open()
    assert len(logbook.state.records) == OPERATIONS_MAX


def test_each_record_that_a_delete_names_counts(logbook: Logbook) -> None:
    """One operation that removes 10,001 records is as large as 10,001 operations."""
    logbook.open()

    with pytest.raises(TransactionTooLarge):
        logbook.log.append([Delete(bytes(16 * (OPERATIONS_MAX + 1)))], 0)


def test_eight_mebibytes_are_the_most(logbook: Logbook) -> None:
    """A payload of exactly 8 MiB passes and comes back; one byte more is refused with nothing applied."""
    logbook.open()
    room = PAYLOAD_BYTES_MAX - size_of(logbook, PAYLOAD_BYTES_MAX) + PAYLOAD_BYTES_MAX
    assert size_of(logbook, room) == PAYLOAD_BYTES_MAX == 8 << 20
    with pytest.raises(TransactionTooLarge, match="8388609 bytes"):
        logbook.log.append([note(1, bytes(room + 1))], logbook.clock.millis)
    assert logbook.state.numbers == set()

    id = logbook.log.append([note(1, bytes(room))], logbook.clock.millis)
    logbook.log.wait_durable(id)
    logbook.commit(2)
    logbook.crash()
    logbook.open()
    assert logbook.state.numbers == {1, 2}
    assert len(logbook.state.records[(1).to_bytes(16)].attributes) == room


def test_what_cannot_be_encoded_applies_nothing(logbook: Logbook) -> None:
    """A record that the SerDe refuses fails before an id is taken, and the healthy ones beside it fail with it."""
    logbook.open()
    operations: list[Operation] = [note(1), UNENCODABLE]
    with pytest.raises(InvalidArgument):
        logbook.log.append(operations, 0)

    assert (logbook.state.numbers, logbook.log.last_id) == (set(), 0)
    assert logbook.commit(2) == 1


def test_a_validation_that_objects_applies_nothing(logbook: Logbook) -> None:
    """What `validate` raises under the lock comes out unchanged; no id is taken, and the lock is free again."""
    logbook.open()

    def objects() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        logbook.log.append([note(1)], 0, objects)

    assert (logbook.state.numbers, logbook.log.last_id) == (set(), 0)
    assert logbook.commit(2) == 1

"""JSON of clients: what is too much is refused before any of it is decoded."""

import json

import pytest

from ullage.errors import InvalidArgument, RequestTooLarge, TransactionTooLarge
from ullage.wire import tickets
from ullage.wire.bounded import AT_A_TIME, JsonBounds, decode_attributes, decode_counts
from ullage.wire.documents import ATTRIBUTES_MAX, COUNT_MAX
from ullage.wire.tickets import ACTIONS, DECISION_MAX, HOMES_MAX, SCAN, STAGED, WRITE_COMMIT, ScanHome
from ullage.wire.where import TEXT_MAX

UUID = "0198f3a4-1b2c-7def-8123-456789abcdef"
LABEL = "n" * 255


def test_very_many_values_are_refused_before_they_are_made() -> None:
    """What a decoder says of a list that is too long it says when it has made all of it."""
    homes = dict.fromkeys(map(str, range(160_000)))
    many = ["a"] * (tickets.TICKET.values_max + 2)
    for ticket in ({"kind": "table", "name": "claims", "columns": many}, {"kind": "get", "handles": many}):
        with pytest.raises(RequestTooLarge, match="values"):
            tickets.parse_ticket(json.dumps(ticket, separators=(",", ":")).encode())
    with pytest.raises(RequestTooLarge, match="values"):
        WRITE_COMMIT.parse(json.dumps({"write": UUID, "attempts": {}, "decision": "," * 300_000}).encode())
    with pytest.raises(RequestTooLarge, match="values"):
        SCAN.parse(json.dumps({"snapshot": UUID, "scan": UUID, "homes": homes}).encode())


def test_what_is_nested_too_deeply_is_refused_as_anything_else() -> None:
    """And no error of the node's own, with a line in its log for each."""
    with pytest.raises(InvalidArgument):
        tickets.parse_ticket(b'{"kind":"get","x":' + b"[" * 20_000)
    with pytest.raises(InvalidArgument):
        WRITE_COMMIT.parse(b'{"attempts":' + b'{"a":' * 10_000)


def test_no_request_has_more_bytes_than_its_kind_needs() -> None:
    """Nothing of it is looked at."""
    for each in ACTIONS:
        with pytest.raises(RequestTooLarge, match=each.name):
            each.parse(b"x" * (each.bounds.bytes_max + 1))
    with pytest.raises(RequestTooLarge, match="ticket"):
        tickets.parse_ticket(b"x" * (tickets.TICKET.bytes_max + 1))
    with pytest.raises(RequestTooLarge, match="command"):
        tickets.parse_command(b"x" * (tickets.COMMAND.bytes_max + 1))
    assert {each.name for each in ACTIONS if each.bounds is not tickets.COMMAND} == {
        "scan", "write-find", "write-begin", "write-prepare", "write-commit", "write-abort"
    }  # fmt: skip


def test_the_largest_requests_that_mean_something_are_taken() -> None:
    """10,000 contents of which everything is said, the longest predicate, a write of 70,000 tasks, a large fleet."""
    claims = [[COUNT_MAX] * 6] * 10_000
    ranges = [[COUNT_MAX] * 2] * 10_000
    found = tickets.parse_ticket(
        json.dumps({"kind": "get", "claims": claims, "ranges": ranges, "seals": ["A" * 32] * 10_000}).encode()
    )
    assert isinstance(found, tickets.ContentTicket)
    assert len(found.claims or ()) == 10_000
    tickets.parse_ticket(json.dumps({"kind": "get", "handles": [f"{UUID}@{LABEL}"] * 10_000}).encode())
    tickets.parse_ticket(json.dumps({"kind": "table", "name": "claims", "where": "ж" * TEXT_MAX}).encode())

    attempts = {f"{UUID[:-12]}{number:012x}": number for number in range(70_000)}
    decision = json.dumps({"nodes": {"n": attempts}})
    decision += '"' * (DECISION_MAX - len(decision))
    raw = json.dumps({"write": UUID, "attempts": attempts, "decision": decision}).encode()
    assert len(raw) <= STAGED.bytes_max
    step = WRITE_COMMIT.parse(raw)
    assert (step.attempts, step.decision) == (attempts, decision)

    homes = {f"{number}.{'n' * 250}": {"shares": 100, "where": "w" * 500} for number in range(HOMES_MAX)}
    fleet = SCAN.parse(json.dumps({"snapshot": UUID, "scan": UUID, "homes": homes}, separators=(",", ":")).encode())
    assert fleet.homes["1." + "n" * 250] == ScanHome(shares=100, where="w" * 500)


@pytest.mark.parametrize("count", [0, 1, AT_A_TIME, AT_A_TIME + 1, 3 * AT_A_TIME])
def test_a_long_mapping_that_is_decoded_bit_by_bit_is_the_same(count: int) -> None:
    """Spaces and all."""
    mapping = {f"attempt {number}": number for number in range(count)}
    for indent in (None, 1):
        raw = f" {json.dumps(mapping, indent=indent)}\n".encode()
        assert decode_counts(raw, tickets.Attempts, "attempts") == mapping


@pytest.mark.parametrize("wrong", [-1, "a text", None, {"a": 1, "b": 2}, [1, 2]])
def test_what_is_wrong_in_a_long_mapping_is_found(wrong: object) -> None:
    """Wherever it stands."""
    mapping = {f"attempt {number}": number for number in range(2 * AT_A_TIME)}
    for place in (0, AT_A_TIME, 2 * AT_A_TIME - 1):
        body = {"write": UUID, "attempts": mapping | {f"attempt {place}": wrong}}
        with pytest.raises(InvalidArgument, match="attempts"):
            WRITE_COMMIT.parse(json.dumps(body).encode())
    for attempts in (None, [], list(range(2 * AT_A_TIME)), "a", 1):
        with pytest.raises(InvalidArgument, match="attempts"):
            WRITE_COMMIT.parse(json.dumps({"write": UUID, "attempts": attempts}).encode())


def test_attributes_have_as_many_quotes_in_their_texts_as_they_like() -> None:
    """They are counted by theirs before any is made."""
    most = {f"a{number}": '"\\' for number in range(ATTRIBUTES_MAX)}
    assert decode_attributes(json.dumps(most).encode(), "attributes") == most
    text = {"a": json.dumps(["x"] * 100_000)}
    assert decode_attributes(json.dumps(text).encode(), "attributes") == text
    with pytest.raises(TransactionTooLarge, match="20000 attributes"):
        decode_attributes(json.dumps(dict.fromkeys(map(str, range(3 * ATTRIBUTES_MAX)), "\\")).encode(), "attributes")


def test_bounds_of_bytes_alone_count_no_values() -> None:
    """What is short may say what it likes."""
    assert JsonBounds(1_000).decode(b"[1,2,3]", list[int], "numbers") == [1, 2, 3]

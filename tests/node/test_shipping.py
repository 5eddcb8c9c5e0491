"""What a node's object says of shipping, and which content would be lost with the node."""

import msgspec
import pytest

from ullage.wire.service import ReplicationState, ReplicationStatus
from ullage_agent.node.shipping import NodeShipping, node_shipping

LIVE = 1_000


def status(
    state: ReplicationState = "shipping", lag_millis: int = 0, *, awaits_base: bool = False, has_lapsed: bool = False
) -> ReplicationStatus:
    """300 bytes wait; the bound is a minute."""
    return ReplicationStatus(
        url="s3://flows/replicas/u",
        state=state,
        epoch=1,
        shipped_transaction=7,
        lag_transactions=2,
        lag_bytes=300,
        lag_millis=lag_millis,
        log_objects=1,
        packs=1,
        bases=1,
        shipped_bytes=1,
        unreadable_contents=0,
        problem="" if state in ("starting", "shipping") else "in the words of the bucket",
        max_lag_millis=60_000,
        awaits_base=awaits_base,
        has_lapsed=has_lapsed,
    )


@pytest.mark.parametrize(
    ("found", "reason", "sole"),
    [
        (None, "NotAsked", LIVE),
        (status(), "Shipping", 300),
        (status(lag_millis=60_000), "Shipping", 300),
        (status(lag_millis=60_001), "Behind", 300),
        (status("failing"), "Failing", 300),
        (status("failing", awaits_base=True), "Failing", LIVE),
        (status("starting"), "Starting", 300),
        (status("starting", awaits_base=True), "Starting", LIVE),
        (status(lag_millis=60_001, awaits_base=True), "Behind", LIVE),
        (status("fenced"), "Fenced", LIVE),
        (status("failing", has_lapsed=True), "Lapsed", 300),
        (status("fenced", has_lapsed=True), "Fenced", LIVE),
    ],
)
def test_the_gravest_reason_is_told_and_what_has_one_copy(
    found: ReplicationStatus | None, reason: str, sole: int
) -> None:
    """Where it is not known what the bucket lacks, all that lives counts as lacking."""
    told = node_shipping(found, LIVE)
    assert (told.reason, told.sole_copy_bytes) == (reason, sole)
    if found is not None and found.problem:
        assert told.message.endswith(found.problem)


@pytest.mark.parametrize(
    ("found", "drained"),
    [
        (None, "SoleCopy"),
        (status(), "Shipping"),
        (status("fenced"), "SoleCopy"),
        (status("failing"), "Shipping"),
        (msgspec.structs.replace(status(), lag_transactions=0, lag_bytes=0), "Shipped"),
        (msgspec.structs.replace(status(), lag_transactions=0), "Shipping"),
        (msgspec.structs.replace(status("starting"), lag_transactions=0, lag_bytes=0), "Shipping"),
        (msgspec.structs.replace(status("failing"), lag_transactions=0, lag_bytes=0), "Shipping"),
        (msgspec.structs.replace(status(awaits_base=True), lag_transactions=0, lag_bytes=0), "Shipping"),
    ],
)
def test_drained_is_what_the_bucket_has_wholly(found: ReplicationStatus | None, drained: str) -> None:
    """As of now: what was so before a start, or before the bucket failed, lets no node go."""
    assert node_shipping(found, LIVE).drained == drained


def test_what_waits_is_no_more_than_what_lives() -> None:
    """Log waits as well, and content that has died since."""
    assert node_shipping(status(), 0) == NodeShipping("Shipping", drained="Shipping")

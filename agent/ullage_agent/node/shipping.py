"""How far a node's share in the bucket of spec.replication is, as its object says it; `ullage status` has the rest."""

from typing import Final, NamedTuple

from ullage.wire.service import ReplicationStatus

WORDS_MAX: Final = 1024
"""Characters of a message."""


class NodeShipping(NamedTuple):
    """What is told of it. `sole_copy_bytes`: content that would be lost with the node.

    A message has no figures, which would change with each look: metrics have them.
    """

    reason: str = "NotAsked"
    message: str = ""
    sole_copy_bytes: int = 0
    drained: str = "SoleCopy"
    """Of a node that takes nothing new: the reason of its condition Drained."""


def node_shipping(found: ReplicationStatus | None, live_bytes: int) -> NodeShipping:
    """Of now; None: nothing is shipped. What lies in backups does not count as a copy: it is of some time ago."""
    if found is None:
        return NodeShipping(sole_copy_bytes=live_bytes)
    is_known = not found.awaits_base and found.state != "fenced"
    sole = min(live_bytes, found.lag_bytes) if is_known else live_bytes
    return NodeShipping(*_said(found), sole, _drained(found))


def _drained(found: ReplicationStatus) -> str:
    if found.state == "fenced":
        return "SoleCopy"
    # Whoever removes the node because of it is not to believe what was so before a start: the bucket was looked at.
    has_all = found.state == "shipping" and not found.awaits_base and not (found.lag_transactions or found.lag_bytes)
    return "Shipped" if has_all else "Shipping"


def _said(found: ReplicationStatus) -> tuple[str, str]:
    if found.state == "fenced":
        return "Fenced", found.problem[:WORDS_MAX]
    if found.has_lapsed:
        said = f"Nothing is served until {found.url} answers (spec.replication.adoptAfter). {found.problem}"
        return "Lapsed", said[:WORDS_MAX].strip()
    if found.state == "failing":
        return "Failing", found.problem[:WORDS_MAX]
    return _said_of_lag(found)


def _said_of_lag(found: ReplicationStatus) -> tuple[str, str]:
    if found.lag_millis > found.max_lag_millis:
        return "Behind", "Commits wait to be shipped for longer than spec.replication.maxLag."
    if found.awaits_base:
        return "Starting", f"{found.url} gets a base: until then it is not known what it lacks."
    if found.state == "starting":
        return "Starting", f"{found.url} was not looked at since the start: what it has is as it was known before."
    return "Shipping", ""

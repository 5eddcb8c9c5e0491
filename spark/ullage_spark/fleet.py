"""The nodes of a fleet: who answers, what becomes of a job while some do not, and how each is reached from a task.

Clients are kept for the life of a Python worker. A token that was renewed makes a new one.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from ullage.client.flight import FlightClient
from ullage.client.localtables import local_table
from ullage.client.proof import Identity, identity_of
from ullage.client.retries import PASSING, Retries
from ullage.client.socket import SocketClient
from ullage.errors import QuotaReached, ServiceBusy, UllageError
from ullage.wire.tickets import (
    ABOUT,
    SKIPPED,
    FlightAction,
    NodeIdentity,
    Nothing,
    SkippedNodes,
    SocketIdentity,
    TableTicket,
)
from ullage_spark import skips
from ullage_spark.addresses import FleetNode, addresses
from ullage_spark.errors import NodesMissing, SparkSourceError
from ullage_spark.settings import NodeSnapshot, SourceOptions

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")

HERE: Final = "ULLAGE_NODE"
"""Set in executors' pods from `spec.nodeName`: see docs/spark.md, Locality."""

ASKED_MAX: Final = 128
"""Nodes that are asked at a time: each takes a thread that waits. So many may be silent before others wait for them."""

CLIENTS_MAX: Final = 2_048
"""Connections of a kind that a worker keeps: a driver asks all nodes of its fleet several times for each job."""

SKIP_OR_WAIT: Final = "missingNodes=skip goes on without them and says so, missingNodes=wait waits for them"

NAMED_MAX: Final = 20
"""Nodes that one error lists."""

ANSWER_SECONDS: Final = 5.0
"""How long a node may take to say who it is: it reads that off."""

MISSING_SECONDS: Final = 10.0
"""How long a node is asked before it counts as missing: one that restarts is back within seconds, and a task that
fails sooner costs Spark a stage.
"""

BUSY: Final = (ServiceBusy, QuotaReached)
"""Said by a node that is there, and has as much under way as it takes of all, or of one account."""

BUSY_SECONDS: Final = 300.0
"""How long a task waits for its turn to read or to write at such a node. A job of a hundred cores has more streams than
a node takes of one account: who gives up after some seconds costs it the task four times, and then the job.
"""

SILENCE_SECONDS: Final = 25.0
"""How long the socket of a node may say nothing amid a table: as long as its connection over Flight, where gRPC notices
that a process is stopped. A node waits for ten seconds for memory, and looking for rows it says something as often.
"""

AGAIN_SECONDS: Final = 0.5
"""Between two looks at the whole fleet: where Kubernetes lists it, nodes come and go meanwhile."""


class MissingNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that a read goes without, why, and how many bytes of content it holds; None: nobody knows."""

    name: str
    reason: str
    live_bytes: int | None = None


class Roll(NamedTuple):
    """Who answered, by name, and who did not."""

    nodes: tuple[FleetNode, ...]
    missing: tuple[MissingNode, ...]


def discover(settings: SourceOptions) -> tuple[FleetNode, ...]:
    """The nodes to read or write, by name. NodesMissing unless all are there, or the options say to go on without."""
    return called(settings).nodes


def called(settings: SourceOptions) -> Roll:
    """The same, with those that it goes on without."""
    found = roll_call(settings)
    if found.missing and settings.missing_nodes != "skip":
        raise missing_error(found.missing, len(found.nodes) + len(found.missing))
    if found.missing and not found.nodes:
        raise missing_error(found.missing, len(found.missing))
    _tell_skipped(settings, found.missing, found.nodes)
    return found


def _tell_skipped(settings: SourceOptions, missing: Sequence[MissingNode], there: Sequence[FleetNode]) -> None:
    """In the log, as an event, and to one of the nodes that are there, which counts it."""
    if missing:
        known = [each.live_bytes for each in missing if each.live_bytes is not None]
        unknown = f", and of {len(missing) - len(known)} nobody knows" if len(known) < len(missing) else ""
        held = f"which hold {sum(known)} bytes of content{unknown}"
        who = ", ".join(each.name for each in missing)
        count = len(missing) + len(there)
        text = f"a job goes on without {len(missing)} of {count} nodes, {held}: {_named(missing)}"
        if skips.tell(settings.endpoint, who, text):
            with suppress(UllageError):  # the log has it
                told = SkippedNodes(nodes=len(missing))
                flight_of(settings, there[0]).act(SKIPPED, told, timeout_seconds=ANSWER_SECONDS)


def _named(missing: Sequence[MissingNode]) -> str:
    more = f"; and {len(missing) - NAMED_MAX} more" if len(missing) > NAMED_MAX else ""
    return "; ".join(f"{each.name} ({each.reason})" for each in missing[:NAMED_MAX]) + more


def missing_error(missing: Sequence[MissingNode], count: int, why: str = "") -> NodesMissing:
    """Says which, and what to do; `why`, for what nodes may not be skipped."""
    return NodesMissing(
        f"{len(missing)} of {count} nodes cannot be read or written now: {_named(missing)}. Option "
        + (f"missingNodes=wait waits for them; none is skipped, because {why}" if why else SKIP_OR_WAIT)
    )


def roll_call(settings: SourceOptions) -> Roll:
    """Every node of the fleet is asked who it is; again and again for as long as the options wait for those that are
    missing. SparkSourceError for one that is not who it should be.
    """
    until = time.monotonic() + waits_seconds(settings)
    while (not (found := _asked_once(settings)).nodes or found.missing) and time.monotonic() < until:
        time.sleep(AGAIN_SECONDS)
    if not found.nodes and not found.missing:
        # An empty answer would look like one: a repository's name that is mistyped lists nothing either.
        where = settings.endpoint or f"nodes {settings.nodes}"
        raise SparkSourceError(f"there is no node in the fleet that the options name ({where}): is its name right?")
    return found


def waits_seconds(settings: SourceOptions) -> float:
    """How long the options wait for a node."""
    return settings.missing_wait_millis / 1000 if settings.missing_nodes == "wait" else 0.0


def _asked_once(settings: SourceOptions) -> Roll:
    answers = side_by_side(lambda each: _introduced(settings, each), addresses(settings))
    found = sorted((each for each in answers if isinstance(each, FleetNode)), key=lambda node: node.name)
    names = [node.name for node in found]
    if len(set(names)) != len(names):
        raise SparkSourceError(f"nodes {', '.join(names)}: two of them have the same name")
    missing = sorted((each for each in answers if isinstance(each, MissingNode)), key=lambda node: node.name)
    return at_snapshot(Roll(tuple(found), tuple(missing)), settings.snapshots())


def at_snapshot(found: Roll, snapshots: Mapping[str, NodeSnapshot]) -> Roll:
    """The same for a read at a snapshot: of the nodes that are there only those in it can be read, and one that was
    there when it was taken, and is not listed any more, is missing.
    """
    if not snapshots:
        return found
    # One that does not answer is known by its address alone, if that is how it was named.
    reasons = {each.name: each.reason for each in found.missing}
    there = {node.name for node in found.nodes}
    missing = [
        MissingNode(
            name=name,
            reason=reasons.pop(part.flight, "") or reasons.pop(name, "") or "it is not in the fleet any more",
            live_bytes=part.live_bytes,
        )
        for name, part in snapshots.items()
        if name not in there
    ]
    missing += [each for each in found.missing if each.name in reasons]
    missing += [
        MissingNode(name=node.name, reason="it is not in the snapshot", live_bytes=node.live_bytes)
        for node in found.nodes
        if node.name not in snapshots
    ]
    nodes = tuple(node for node in found.nodes if node.name in snapshots)
    return Roll(nodes, tuple(sorted(missing, key=lambda each: each.name)))


def on_each(
    settings: SourceOptions, nodes: Sequence[FleetNode], work: Callable[[FleetNode], object]
) -> list[MissingNode]:
    """Have it done on all of them; those that do not answer any more. NodesMissing if there may be none such."""

    def done(node: FleetNode) -> MissingNode | None:
        try:
            work(node)
        except PASSING as error:
            return MissingNode(name=node.name, reason=str(error), live_bytes=node.live_bytes)
        return None

    missing = [each for each in side_by_side(done, nodes) if each is not None]
    if missing and (settings.missing_nodes != "skip" or len(missing) == len(nodes)):
        raise missing_error(missing, len(nodes))
    gone = {each.name for each in missing}
    _tell_skipped(settings, missing, [node for node in nodes if node.name not in gone])
    return missing


def side_by_side(work: Callable[[Q], A], things: Iterable[Q], at_once: int = ASKED_MAX) -> list[A]:
    """What becomes of each, in order; all are begun, and what one raises is raised once all have ended."""
    listed = list(things)
    with ThreadPoolExecutor(min(at_once, max(1, len(listed)))) as pool:
        return list(pool.map(work, listed))


def flight_of(settings: SourceOptions, node: FleetNode) -> FlightClient:
    """A client of the node over Arrow Flight."""
    return _flight(os.getpid(), node.flight, settings.bearer(node.flight), settings.authority())


@lru_cache(CLIENTS_MAX)
def _flight(_process: int, url: str, token: str | None, ca_file: str | None) -> FlightClient:
    """By `_process`, too: a connection does not survive a fork."""
    return FlightClient(url, token, ca_file=ca_file)


def ask(settings: SourceOptions, node: FleetNode, action: FlightAction[Q, A], request: Q) -> A:
    """What a node answers over Arrow Flight; asked again while it restarts."""
    with naming(node):
        return asked_again(settings, lambda: flight_of(settings, node).act(action, request))


@contextmanager
def naming(node: FleetNode) -> Iterator[None]:
    """What a node refuses says which one refused it; who does not answer is named by its address already."""
    try:
        yield
    except PASSING:
        raise
    except UllageError as refusal:
        refusal.args = (f"node {node.name or node.flight}: {refusal}", *refusal.args[1:])
        raise


def asked_again(settings: SourceOptions, work: Callable[[], T], *, busy_seconds: float = 0.0) -> T:
    """What a node gives that was there a moment ago; tried again as long as the options say to wait, and for
    `busy_seconds` while it has enough to do.
    """
    within = max(MISSING_SECONDS, waits_seconds(settings))
    return _retries(max(within, busy_seconds), BUSY).run(lambda: _retries(within).run(work))


def _retries(within_seconds: float, passing: tuple[type[Exception], ...] = PASSING) -> Retries:
    return Retries(
        attempts=6 + int(within_seconds),
        first_seconds=0.2,
        longest_seconds=3.0,
        within_seconds=within_seconds,
        passing=passing,
    )


def table_of(settings: SourceOptions, node: FleetNode, wanted: TableTicket) -> pa.RecordBatchReader:
    """A table of the node, or what the ticket wants of it: over its Unix socket, if this is its machine."""
    place = _socket_place(settings, node)
    if place is not None:
        with suppress(UllageError):  # Flight gives it, or says what is wrong
            client = SocketClient(place.path, place.token, SILENCE_SECONDS, identity=place.identity)
            return local_table(client, wanted)
    return flight_of(settings, node).table(wanted)


def socket_of(settings: SourceOptions, node: FleetNode) -> SocketClient | None:
    """A client over the node's Unix socket, if this is its machine; None elsewhere."""
    place = _socket_place(settings, node)
    return None if place is None else _socket(os.getpid(), node.inode, place)


class SocketPlace(NamedTuple):
    """A socket, and what is said there to whom."""

    path: str
    token: str | None
    identity: Identity | None


def _socket_place(settings: SourceOptions, node: FleetNode) -> SocketPlace | None:
    """Of the node, if this is its machine.

    Every node has a socket of the same path: inode and birth say whose it is, through whatever mount it is seen.
    """
    path = settings.socket or node.socket
    if not path or not node.inode:
        return None
    try:
        seen = os.stat(path)
    except OSError:
        return None
    if (seen.st_ino, seen.st_ctime_ns) != (node.inode, node.changed_nanos):
        return None
    # The node's answer to ABOUT said which file it is: only that the same node answers there is proved by the socket.
    return SocketPlace(path, settings.bearer(node.flight), identity_of(node.flight, settings.authority()))


@lru_cache(64)
def _socket(_process: int, _inode: int, place: SocketPlace) -> SocketClient:
    return SocketClient(place.path, place.token, identity=place.identity)


def _introduced(settings: SourceOptions, node: FleetNode) -> FleetNode | MissingNode:
    missing = MissingNode(name=node.name or node.flight, reason=node.trouble, live_bytes=node.live_bytes)
    if not node.flight:
        return missing
    until = time.monotonic() + MISSING_SECONDS

    def about() -> NodeIdentity:
        seconds = min(ANSWER_SECONDS, max(1.0, until - time.monotonic()))
        return flight_of(settings, node).act(ABOUT, Nothing(), timeout_seconds=seconds)

    try:
        with naming(node):
            said = _retries(MISSING_SECONDS, (*PASSING, QuotaReached)).run(about)
    except PASSING as error:
        return msgspec.structs.replace(missing, reason=node.trouble or str(error))
    if node.name and node.name != said.node:
        raise SparkSourceError(f"{node.flight} is node {said.node}, not {node.name}")
    seen = said.socket or SocketIdentity(path="", inode=0, changed_nanos=0)
    return msgspec.structs.replace(
        node,
        name=said.node or node.flight,
        repository=said.repository,
        socket=node.socket or seen.path,
        inode=seen.inode,
        changed_nanos=seen.changed_nanos,
    )

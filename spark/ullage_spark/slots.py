"""Late binding: a task finds out on which node it runs, and asks for a share of a table that lies there.

    driver   partitions: numbered slots, none of them anybody's      one node of the fleet keeps the list
    task     slot 7, on node b -> share 2 of node b, for good        (the action `bind` of docs/flight.md)

Spark knows executors by the addresses of their pods, so it cannot place a task by its node. Whoever runs a slot again,
a retry or a speculative copy, gets the share that it got first, whatever its node: so partitions stay what they are.
"""

import os
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from pyspark.sql.datasource import InputPartition

from ullage.errors import NotReachable, UllageError
from ullage.wire.tickets import BIND, SCAN, ScanHome, ScanRequest, SlotRequest, SlotShare, SlotState
from ullage_spark.addresses import FleetNode
from ullage_spark.carried import Carried
from ullage_spark.errors import SparkSourceError
from ullage_spark.fleet import HERE, ask
from ullage_spark.settings import NodeSnapshot, ReadOptions, SourceOptions

SPARE: Final = 2
"""Slots a node beyond its shares: a fast node's task waits in one while a slow node still begins its own."""

POLL_SECONDS: Final = 0.1


class SlotPart(Carried, InputPartition):
    """One slot of a scan: a share of whichever node is nearest to the task."""

    def __init__(self, keeper: FleetNode, snapshot: str, scan: str, slot: int) -> None:
        self._keeper = keeper
        self._snapshot = snapshot
        self._scan = scan
        self._slot = slot

    def bound(self, settings: SourceOptions) -> tuple[FleetNode, SlotShare] | None:
        """The share of this slot, and its node; None if all are somebody's. Waits as long as the scan says."""
        near = [os.environ[HERE]] if os.environ.get(HERE) else []
        request = SlotRequest(snapshot=self._snapshot, scan=self._scan, slot=self._slot, near=near)
        while True:
            try:
                found = ask(settings, self._keeper, BIND, request)
            except NotReachable:
                raise
            except UllageError as refusal:
                raise SparkSourceError(str(refusal)) from refusal
            if found.state == SlotState.NONE:
                return None
            if found.state == SlotState.READ:
                return msgspec.json.decode(found.where, type=FleetNode), found
            time.sleep(POLL_SECONDS)


def begin_scan(
    settings: ReadOptions, nodes: Sequence[FleetNode], snapshots: Mapping[str, NodeSnapshot], shares: int
) -> list[InputPartition]:
    """Slots over so many shares of each node. Which node keeps the list is drawn."""
    scan = uuid.uuid4()
    keeper = nodes[scan.int % len(nodes)]
    snapshot = snapshots[keeper.name].id
    request = ScanRequest(
        snapshot=snapshot,
        scan=str(scan),
        homes={node.name: ScanHome(shares=shares, where=msgspec.json.encode(node).decode()) for node in nodes},
        patience_millis=settings.locality_wait_millis,
    )
    ask(settings, keeper, SCAN, request)
    return [SlotPart(keeper, snapshot, str(scan), slot) for slot in range((shares + SPARE) * len(nodes))]
